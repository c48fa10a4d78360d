"""The tables of the TFLite schema: their fields, as views on a file, and as objects that are written.

A view (root(), Table) reads a field when it is asked for; the file must have passed verify(). An object (ModelT, TensorT …) holds the
values of its fields under the same names and is written by flatbuffer.packed(). Names are those of the API that flatc generates.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import cache
from struct import Struct
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from qconvert.formats.tflite.schema_table import BUILTIN_OPERATORS, TABLES, UNIONS

__all__ = ["BUILTIN_OPERATOR_NAMES", "SCALARS", "Field", "Table", "TableObject", "fields", "members", "root", "unpacked"]

#: Types of schema.fbs -> their code in struct and numpy.
SCALARS = {
    "bool": "?", "byte": "b", "ubyte": "B", "short": "h", "ushort": "H", "int": "i", "uint": "I", "long": "q", "ulong": "Q",
    "float": "f", "double": "d",
}  # fmt: skip
#: Vectors whose data start at multiples of more bytes than their items have (schema.fbs: `force_align`).
_ALIGNED = {("Buffer", "data"): 16}
BUILTIN_OPERATOR_NAMES = tuple(BUILTIN_OPERATORS.split())
_U16, _I32, _U32 = (Struct(code).unpack_from for code in ("<H", "<i", "<I"))


class Field(NamedTuple):
    """A field of a table.

    Attributes:
        name: in camel case.
        slot: its place in the vtable, from 4.
        kind: "scalar", "string", "vector" (of scalars), "table", "tables" (a vector of them) or "union", whose type is the field before it.
        detail: the type of the scalar or of the vector's items, or the table, or the union.
        default: of a scalar; None of all else.
        alignment: of a vector's items; 0 elsewhere.
    """

    name: str
    slot: int
    kind: str
    detail: str
    default: Any
    alignment: int


@cache
def fields(table: str) -> tuple[Field, ...]:
    """The fields of a table, in the order of their slots, without those that are no longer used."""
    found = []
    for position, text in enumerate(TABLES[table].split()):
        name, _, stated = text.partition(":")
        if stated:
            found.append(_field(table, name, 4 + 2 * position, *stated.partition("=")[::2]))
    return tuple(found)


def _field(table: str, name: str, slot: int, type_: str, default: str) -> Field:
    item = type_.strip("[]")
    code = SCALARS.get(item)
    if item != type_:
        alignment = _ALIGNED.get((table, name), Struct(f"<{code}").size if code else 4)
        return Field(name, slot, "vector" if code else "tables", item, None, alignment)
    if code is None:
        return Field(name, slot, "string" if type_ == "string" else "union" if type_ in UNIONS else "table", type_, None, 0)
    value = float(default or 0) if code in "fd" else bool(int(default or 0)) if code == "?" else int(default or 0)
    return Field(name, slot, "scalar", type_, value, 0)


@cache
def members(union: str) -> dict[int, str]:
    """The tables of a union, by the number of the type."""
    return dict(enumerate(UNIONS[union].split(), 1))


# views


class Table:
    """A table in a file; its class has a property for each field.

    An absent scalar has its default, an absent vector of tables is empty, and all else that is absent is None. Strings are bytes, and a
    vector of scalars is an array on the file's own bytes. A union of a type that the schema does not know is None.
    """

    __slots__ = ("_data", "_position", "_vtable", "_vtable_end")
    #: The table's name in the schema.
    kind = ""

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
        """Where lies what a field refers to; 0 if it is absent."""
        place = self.place(slot)
        return place and place + int(_U32(self._data, place)[0])


def root(data: mmap.mmap | bytes) -> Any:
    """The Model of a file that verify() has accepted."""
    return _view("Model")(data, _U32(data, 0)[0])


@cache
def _view(table: str) -> type[Table]:
    getters = {field.name: property(_GETTERS[field.kind](field)) for field in fields(table)}
    return type(table, (Table,), {"__slots__": (), "kind": table, **getters})


def _scalar(field: Field) -> Callable[[Table], Any]:
    slot, default, unpack = field.slot, field.default, Struct(f"<{SCALARS[field.detail]}").unpack_from

    def get(table: Table) -> Any:
        place = table.place(slot)
        return unpack(table._data, place)[0] if place else default

    return get


def _string(field: Field) -> Callable[[Table], Any]:
    def get(table: Table) -> bytes | None:
        target = table.target(field.slot)
        return bytes(table._data[target + 4 : target + 4 + _U32(table._data, target)[0]]) if target else None

    return get


def _vector(field: Field) -> Callable[[Table], Any]:
    slot, dtype = field.slot, np.dtype(f"<{SCALARS[field.detail]}")

    def get(table: Table) -> Any:
        target = table.target(slot)
        return np.frombuffer(table._data, dtype, _U32(table._data, target)[0], target + 4) if target else None

    return get


def _table(field: Field) -> Callable[[Table], Any]:
    def get(table: Table) -> Table | None:
        target = table.target(field.slot)
        return _view(field.detail)(table._data, target) if target else None

    return get


def _tables(field: Field) -> Callable[[Table], Any]:
    def get(table: Table) -> list[Table]:
        target, data = table.target(field.slot), table._data
        if not target:
            return []
        view, count = _view(field.detail), _U32(data, target)[0]
        offsets = Struct(f"<{count}I").unpack_from(data, target + 4)
        return [view(data, place + offset) for place, offset in zip(range(target + 4, target + 4 + 4 * count, 4), offsets, strict=True)]

    return get


def _union(field: Field) -> Callable[[Table], Any]:
    def get(table: Table) -> Table | None:
        target, type_ = table.target(field.slot), table.place(field.slot - 2)
        member = members(field.detail).get(table._data[type_]) if target and type_ else None
        return _view(member)(table._data, target) if member else None

    return get


_GETTERS: dict[str, Callable[[Field], Callable[[Table], Any]]] = {
    "scalar": _scalar, "string": _string, "vector": _vector, "table": _table, "tables": _tables, "union": _union,
}  # fmt: skip


# objects


class TableObject:
    """A table that is written; its class has a default for each field. None stands for what is not written."""

    #: The table's name in the schema.
    kind = ""


def unpacked(view: Any) -> Any:
    """The object of a view and of all that hangs on it, to be changed and written."""
    if isinstance(view, list):
        return [unpacked(item) for item in view]
    if not isinstance(view, Table):
        return view
    found = _object(view.kind)()
    for field in fields(view.kind):
        value = unpacked(getattr(view, field.name))
        setattr(found, field.name, None if field.kind == "tables" and not view.place(field.slot) else value)
    return found


@cache
def _object(table: str) -> type[TableObject]:
    defaults = {field.name: field.default for field in fields(table)}
    return type(f"{table}T", (TableObject,), {"kind": table, **defaults})


def __getattr__(name: str) -> Any:
    """ModelT, TensorT … are the classes of objects, BuiltinOptions … and BuiltinOperator the numbers of a name."""
    if name.endswith("T") and name[:-1] in TABLES:
        return _object(name[:-1])
    if name == "BuiltinOperator":
        return _numbers(BUILTIN_OPERATOR_NAMES)
    if name in UNIONS:
        return _numbers(("NONE", *UNIONS[name].split()))
    raise AttributeError(f"the TFLite schema has no {name}")


@cache
def _numbers(names: tuple[str, ...]) -> SimpleNamespace:
    return SimpleNamespace(**{name: number for number, name in enumerate(names)})
