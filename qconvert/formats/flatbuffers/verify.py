"""Checks that a file is a sound FlatBuffer of a schema, before anything else looks at it.

The Python FlatBuffers library trusts every offset and length it finds. The rules here are those of the FlatBuffers C++
verifier as far as reading depends on them: every table, vtable, vector and string lies inside the file. Alignment and the
zero byte after a string are not asked for, as nothing here relies on them, and a union of a type that the schema does not
know yet is passed over, as in C++. Tables may share what hangs on them, so the amount that a walk over the whole model meets
is bounded by the size of the file; the depth is that of the schema, in which no table contains its own kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from struct import Struct, calcsize
from typing import NamedTuple

from qconvert.errors import InvalidModelError
from qconvert.formats.flatbuffers.schema import SCALARS, Schema

_U8, _U16, _U32, _I32, _U64 = (Struct(code).unpack_from for code in ("<B", "<H", "<I", "<i", "<Q"))
#: FLATBUFFERS_MAX_BUFFER_SIZE: offsets back to a vtable are signed. Only the data outside lies after it.
_MAX_FLATBUFFER = 2**31 - 1
#: Tables and vectors that a walk may meet, however large the file; a model of 50,000 operators has about half a million.
MOST_VISITS = 4_000_000
#: How many visits a vtable counts for, by the time and memory it takes: one at a place of its own, and each slot of one unlike
#: all others. Writers share equal vtables or give each table its own; either way a model has a few dozen different ones, of
#: about a hundred slots in all.
_OWN_VTABLE, _NEW_SLOT = 2, 4
#: Visits that a file of any size may need, for the slots and for vectors that it shares.
_ALLOWANCE = 8192


def verify_tables(
    view: memoryview, schema: Schema, *, max_tables: int = MOST_VISITS, outside: Mapping[str, tuple[int, int]] | None = None
) -> None:
    """Checks every offset, vtable, vector and string of a file whose first table is the schema's top.

    Afterwards every view of the schema stays inside the file, and a walk over the whole of it takes time and memory in proportion to its
    size.

    Args:
        view: the whole file, of bytes; at least 4.
        schema: in which no table contains its own kind, but for fields and members that are not in it.
        max_tables: how many tables and vectors a walk may meet. What is met twice counts twice, and a vtable counts by the work
            that it makes. A small file may hold fewer: one for every eight of its bytes, and 8192.
        outside: table -> the slots of (place, length) of data after the FlatBuffer, in files above 2 GB.

    Raises:
        InvalidModelError: it is damaged; the reason names the field, the place and the excess.
    """
    _Verifier(view, schema, max_tables, outside or {}).table(schema.top, _U32(view, 0)[0])


class _Field(NamedTuple):
    """A field that holds an offset, in tables of one vtable."""

    base_type: str
    offset: int
    item_size: int
    table: str
    name: str
    type_offset: int


class _Plan(NamedTuple):
    """What tables of one kind and one vtable have inline."""

    size: int
    visits: int
    fields: tuple[_Field, ...]
    outside: tuple[int, int] | None


class _Layout(NamedTuple):
    """The fields that the schema gives a table, as (position in the vtable, base type, detail, bytes of a scalar or an item, name)."""

    end: int
    fields: tuple[tuple[int, str, str, int, str], ...]


@cache
def _layout(schema: Schema, table: str) -> _Layout:
    found = []
    for field in schema.fields(table):
        size = calcsize("<" + SCALARS[field.detail]) if field.detail in SCALARS else 1 if field.base_type == "string" else 4
        found.append((field.slot, field.base_type, field.detail, size, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", field.name).lower()))
    return _Layout(max((slot for slot, *_ in found), default=2) + 2, tuple(found))


def _plan_vtable(schema: Schema, name: str, content: bytes, outside: tuple[int, int] | None) -> _Plan:
    """What a vtable, given without its two leading sizes, says about tables of the kind `name`."""
    size = 4
    offsets: dict[int, int] = {}
    found: list[_Field] = []
    for slot, base_type, detail, item_size, field_name in _layout(schema, name).fields:
        offset = _U16(content, slot - 4)[0] if slot - 4 < len(content) else 0
        if not offset:
            continue
        offsets[slot] = offset
        size = max(size, offset + (item_size if base_type == "scalar" else 4))
        if base_type != "scalar":
            found.append(_Field(base_type, offset, item_size, detail, field_name, offsets.get(slot - 2, 0)))
    places = [offsets[slot] for slot in outside or () if slot in offsets]
    following = (places[0], places[1]) if len(places) == 2 else None
    return _Plan(size, 1 + len(found) + (following is not None), tuple(found), following)


class _Verifier:
    def __init__(self, data: memoryview, schema: Schema, max_tables: int, outside: Mapping[str, tuple[int, int]]) -> None:
        self._data = data
        self._schema = schema
        self._outside_slots = outside
        self._end = min(len(data), _MAX_FLATBUFFER)
        # In a file that shares nothing, a table or vector takes eight bytes of its own: the offset that leads to it, and
        # its length or the offset of its vtable.
        explained = len(data) // 8 + _ALLOWANCE
        self._visits = min(explained, max_tables)
        self._max_tables = max_tables if max_tables < explained else None
        self._bytes = 2 * len(data) + 65536
        self._plans: dict[str, dict[int, _Plan]] = {name: {} for name in schema.tables}  # by place of the vtable
        self._contents: dict[str, dict[bytes, _Plan]] = {name: {} for name in schema.tables}  # by what it says

    def table(self, name: str, position: int) -> None:
        """Checks the table `name` at `position` and all that hangs on it."""
        data, end = self._data, self._end
        if position + 4 > end:
            raise self._overrun_error(f"table {name}", position, 4)
        vtable = position - _I32(data, position)[0]
        plan = self._plans[name].get(vtable) or self._plan(name, vtable)
        if position + plan.size > end:
            raise self._overrun_error(f"table {name}", position, plan.size)
        self._visits -= plan.visits
        if self._visits < 0:
            raise self._too_many_error()
        for base_type, offset, item_size, table, field_name, type_offset in plan.fields:
            place = position + offset
            target = place + _U32(data, place)[0]
            if base_type == "table":
                self.table(table, target)
            elif base_type == "union":
                member = self._schema.members(table).get(_U8(data, position + type_offset)[0]) if type_offset else None
                if member:
                    self.table(member, target)
            else:
                if target + 4 > end:
                    raise self._overrun_error(f"{base_type} {name}.{field_name}", target, 4)
                count = _U32(data, target)[0]
                size = count * item_size
                if target + 4 + size > end:
                    raise self._overrun_error(f"{base_type} {name}.{field_name}", target, 4 + size)
                self._bytes -= size
                if base_type == "tables":
                    self._items(table, target + 4, count)
                elif base_type == "strings":
                    self._texts(f"{name}.{field_name}", target + 4, count)
        if self._bytes < 0:
            raise _shared_parts_error()
        if plan.outside:
            self._outside(name, position, *plan.outside)

    def _items(self, table: str, start: int, count: int) -> None:
        for place in range(start, start + 4 * count, 4):
            self.table(table, place + _U32(self._data, place)[0])

    def _texts(self, what: str, start: int, count: int) -> None:
        self._visits -= count
        if self._visits < 0:
            raise self._too_many_error()
        for place in range(start, start + 4 * count, 4):
            target = place + _U32(self._data, place)[0]
            if target + 4 > self._end:
                raise self._overrun_error(f"string of {what}", target, 4)
            length = _U32(self._data, target)[0]
            if target + 4 + length > self._end:
                raise self._overrun_error(f"string of {what}", target, 4 + length)
            self._bytes -= length

    def _plan(self, name: str, vtable: int) -> _Plan:
        """Checks a vtable and notes what it says about tables of the kind `name`, once for all vtables of the same content."""
        if vtable < 0:
            raise damaged_error(f"the vtable of {name} would begin {-vtable} bytes before the start of the file")
        if vtable + 2 > self._end:
            raise self._overrun_error(f"the vtable of {name}", vtable, 2)
        length = _U16(self._data, vtable)[0]
        if length < 4 or length % 2:
            raise damaged_error(f"the vtable of {name} at byte {vtable} states a length of {length} bytes")
        if vtable + length > self._end:
            raise self._overrun_error(f"the vtable of {name}", vtable, length)
        layout = _layout(self._schema, name)
        content = bytes(self._data[vtable + 4 : vtable + min(length, layout.end)])
        plans = self._contents[name]
        plan = plans.get(content)
        if plan is None:
            self._visits -= _NEW_SLOT * (len(content) // 2 + 1)
            plan = plans[content] = _plan_vtable(self._schema, name, content, self._outside_slots.get(name))
        self._visits -= _OWN_VTABLE
        self._plans[name][vtable] = plan
        return plan

    def _outside(self, name: str, position: int, place_offset: int, length_offset: int) -> None:
        start = _U64(self._data, position + place_offset)[0]
        length = _U64(self._data, position + length_offset)[0]
        # schema.fbs: "only valid if > 1"; 0 and 1 mark a model whose data lies inside or is not written yet.
        if start > 1 and start + length > len(self._data):
            excess = start + length - len(self._data)
            raise damaged_error(f"data of {name} at byte {start} runs {excess} bytes past the end of the file")
        self._bytes -= length if start > 1 else 0
        if self._bytes < 0:
            raise _shared_parts_error()

    def _overrun_error(self, what: str, start: int, length: int) -> InvalidModelError:
        limit = "the end of the file" if self._end == len(self._data) else "the 2 GB that a FlatBuffer may have"
        shown = what.replace("tables ", "vector ", 1)
        return damaged_error(f"{shown} at byte {start} runs {start + length - self._end} bytes past {limit}")

    def _too_many_error(self) -> InvalidModelError:
        if self._max_tables is None:
            return _shared_parts_error()
        return InvalidModelError(
            f"the file has more than {self._max_tables} tables and vectors, which is the limit", rule="too-many-tables"
        )


def _shared_parts_error() -> InvalidModelError:
    return damaged_error("the tables of the file refer to the same parts over and over: there are more than its size explains")


def damaged_error(reason: str) -> InvalidModelError:
    """An error of a file that offsets lead out of."""
    return InvalidModelError(reason, remedy="The file is damaged or was cut off; fetch or export it again.", rule="damaged-file")
