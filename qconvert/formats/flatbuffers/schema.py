"""The tables of a FlatBuffers schema: their fields, as views on a file, and as objects that are written.

A view (Schema.root(), Table) reads a field when it is asked for; the file must have passed verify_tables(). An object holds the values of
its fields under the same names and is written by packing.pack_model(). Names are those of the API that flatc generates.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct
from typing import Any, ClassVar, NamedTuple

import numpy as np

#: Types of a schema -> their code in struct and numpy.
SCALARS = {
    "bool": "?", "byte": "b", "ubyte": "B", "short": "h", "ushort": "H", "int": "i", "uint": "I", "long": "q", "ulong": "Q",
    "float": "f", "double": "d",
}  # fmt: skip
_U16, _I32, _U32 = (Struct(code).unpack_from for code in ("<H", "<i", "<I"))


class Field(NamedTuple):
    """A field of a table.

    Attributes:
        name: in camel case.
        slot: its place in the vtable, from 4.
        base_type: "scalar", "string", "strings" (a vector of them), "vector" (of scalars), "table", "tables" (a vector of them) or "union",
            whose type is the field before it.
        detail: the type of the scalar or of the vector's items, or the table, or the union.
        default: of a scalar; None of all else.
        alignment: of a vector's items; 0 elsewhere.
    """

    name: str
    slot: int
    base_type: str
    detail: str
    default: Any
    alignment: int


class Schema:
    """A schema as data.

    Args:
        tables: table -> its fields in the order of the vtable, each "name:type" or "name:type=default"; the type of a union is the ubyte
            before it, and "-" is a field that is no longer used, or that nobody asks for.
        unions: union -> the tables of its types, from 1; one that is not among `tables` is passed over, as is one that is not known yet.
        top: the table that a file begins with.
        aligned: (table, field) -> bytes, of vectors whose data start at multiples of more than their items have (`force_align`).
        identifier: the four bytes of a file's file_identifier; empty if it has none.
    """

    def __init__(
        self,
        tables: Mapping[str, str],
        unions: Mapping[str, str],
        top: str,
        aligned: Mapping[tuple[str, str], int] | None = None,
        identifier: bytes = b"",
    ) -> None:
        self.tables, self.unions, self.top, self.identifier = tables, unions, top, identifier
        self._aligned = aligned or {}
        self._fields: dict[str, tuple[Field, ...]] = {}
        self._members: dict[str, dict[int, str]] = {}
        self._views: dict[str, type[Table]] = {}
        self._objects: dict[str, type[TableObject]] = {}

    def fields(self, table: str) -> tuple[Field, ...]:
        """The fields of a table, in the order of their slots, without those that are no longer used."""
        if table not in self._fields:
            made = []
            for position, text in enumerate(self.tables[table].split()):
                name, _, stated = text.partition(":")
                if stated:
                    made.append(self._field(table, name, 4 + 2 * position, *stated.partition("=")[::2]))
            self._fields[table] = tuple(made)
        return self._fields[table]

    def _field(self, table: str, name: str, slot: int, type_: str, default: str) -> Field:
        item = type_.strip("[]")
        code = SCALARS.get(item)
        if item != type_:
            alignment = self._aligned.get((table, name), Struct(f"<{code}").size if code else 4)
            base_type = "vector" if code else "strings" if item == "string" else "tables"
            return Field(name, slot, base_type, item, None, alignment)
        if code is None:
            return Field(name, slot, "string" if type_ == "string" else "union" if type_ in self.unions else "table", type_, None, 0)
        value = float(default or 0) if code in "fd" else bool(int(default or 0)) if code == "?" else int(default or 0)
        return Field(name, slot, "scalar", type_, value, 0)

    def members(self, union: str) -> dict[int, str]:
        """The tables of a union, by the number of the type."""
        if union not in self._members:
            self._members[union] = {number: name for number, name in enumerate(self.unions[union].split(), 1) if name in self.tables}
        return self._members[union]

    def root(self, data: mmap.mmap | bytes) -> Any:
        """The first table of a file that verify_tables() has accepted."""
        return self.view(self.top)(data, _U32(data, 0)[0])

    def view(self, table: str) -> type[Table]:
        """The class of views on a table."""
        found = self._views.get(table)
        if found is None:
            getters = {field.name: property(_make_getter(self, field)) for field in self.fields(table)}
            found = self._views[table] = type(table, (Table,), {"__slots__": (), "table": table, "schema": self, **getters})
        return found

    def object(self, table: str) -> type[TableObject]:
        """The class of objects of a table."""
        found = self._objects.get(table)
        if found is None:
            defaults = {field.name: field.default for field in self.fields(table)}
            found = self._objects[table] = type(f"{table}T", (TableObject,), {"table": table, "schema": self, **defaults})
        return found


# views


class Table:
    """A table in a file; its class has a property for each field.

    An absent scalar has its default, an absent vector of tables or strings is empty, and all else that is absent is None. Strings are
    bytes, and a vector of scalars is an array on the file's own bytes. A union of a type that the schema does not know is None.
    """

    __slots__ = ("_data", "_position", "_vtable", "_vtable_end")
    #: The table's name in the schema, and the schema.
    table = ""
    schema: ClassVar[Schema]

    def __init__(self, data: mmap.mmap | bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - _I32(data, position)[0]
        self._vtable_end = self._vtable + _U16(data, self._vtable)[0]

    def place(self, slot: int) -> int:
        """Where a field lies; 0 if it is absent."""
        entry = self._vtable + slot
        offset: int = _U16(self._data, entry)[0] if entry + 2 <= self._vtable_end else 0
        return offset and self._position + offset

    def target(self, slot: int) -> int:
        """The position that a field refers to; 0 if it is absent."""
        entry = self._vtable + slot  # as place(), without the call: half of all fields are read here
        offset: int = _U16(self._data, entry)[0] if entry + 2 <= self._vtable_end else 0
        place = self._position + offset
        return offset and place + int(_U32(self._data, place)[0])


def _read_text(data: mmap.mmap | bytes, target: int) -> bytes:
    return bytes(data[target + 4 : target + 4 + _U32(data, target)[0]])


def _read_numbers(dtype: np.dtype[Any], data: mmap.mmap | bytes, target: int) -> Any:
    return np.frombuffer(data, dtype, _U32(data, target)[0], target + 4)


def _targets(table: Table, slot: int) -> list[int]:
    """Where the items of a vector of offsets lie."""
    target, data = table.target(slot), table._data
    if not target:
        return []
    count = _U32(data, target)[0]
    offsets = Struct(f"<{count}I").unpack_from(data, target + 4)
    return [place + offset for place, offset in zip(range(target + 4, target + 4 + 4 * count, 4), offsets, strict=True)]


def _make_getter(schema: Schema, field: Field) -> Callable[[Table], Any]:
    """The function that reads a field of a table."""
    slot, detail = field.slot, field.detail
    if field.base_type == "scalar":
        default, unpack = field.default, Struct(f"<{SCALARS[detail]}").unpack_from
        return lambda table: unpack(table._data, place)[0] if (place := table.place(slot)) else default
    if field.base_type == "union":

        def get(table: Table) -> Table | None:
            target, type_ = table.target(slot), table.place(slot - 2)
            member = schema.members(detail).get(table._data[type_]) if target and type_ else None
            return schema.view(member)(table._data, target) if member else None

        return get
    read: Callable[[Any, int], Any] = (
        partial(_read_numbers, np.dtype(f"<{SCALARS[detail]}"))
        if field.base_type == "vector"
        else _read_text
        if detail == "string"
        else lambda data, target: schema.view(detail)(data, target)
    )
    if field.base_type in ("tables", "strings"):
        return lambda table: [read(table._data, target) for target in _targets(table, slot)]
    return lambda table: read(table._data, target) if (target := table.target(slot)) else None


# objects


class TableObject:
    """A table that is written; its class has a default for each field. None stands for what is not written."""

    #: The table's name in the schema, and the schema.
    table = ""
    schema: ClassVar[Schema]

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            if not hasattr(self, name):
                raise AttributeError(f"{self.table} has no field {name}")
            setattr(self, name, value)


def unpack_view(view: Any) -> Any:
    """The object of a view and of all that hangs on it, to be changed and written."""
    if isinstance(view, list):
        return [unpack_view(item) for item in view]
    if not isinstance(view, Table):
        return view
    found = view.schema.object(view.table)()
    for field in view.schema.fields(view.table):
        value = unpack_view(getattr(view, field.name))
        setattr(found, field.name, None if field.base_type in ("tables", "strings") and not view.place(field.slot) else value)
    return found
