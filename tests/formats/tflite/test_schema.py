"""The schema's tables, views and objects next to the module that flatc made of schema.fbs, in LiteRT."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest

from qconvert.formats.flatbuffers import SCALARS, Field, Schema, TableObject, TooLargeError, pack_model, packing, unpack_view
from qconvert.formats.tflite import schema
from qconvert.formats.tflite.schema import BUILTIN_OPERATOR_NAMES, TFLITE, root
from qconvert.formats.tflite.schema_table import TABLES, UNIONS

generated = pytest.importorskip("ai_edge_litert.schema_py_generated")
FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
MODELS = sorted(FIXTURES.rglob("*.tflite"))


def test_tables_agree_with_the_writing_functions_of_the_module() -> None:
    """The table is made from the accessors; the functions that write a table say independently what each slot holds."""
    slots: dict[str, dict[int, tuple[str, str]]] = {name: {} for name in TABLES}
    source = Path(generated.__file__).read_text()
    pattern = r"^def (\w+)\(builder, \w+\):\n +builder\.Prepend(\w+)Slot\((\d+), .*?, ([-\w.]+)\)$"
    for function, kind, slot, default in re.findall(pattern, source, re.M):
        table = max((name for name in TABLES if function.startswith(f"{name}Add")), key=len)
        slots[table][4 + 2 * int(slot)] = (kind, default)
    assert {name: {field.slot: _written(field) for field in TFLITE.fields(name)} for name in TABLES} == slots
    assert set(TABLES) == {name for name, value in vars(generated).items() if hasattr(value, "GetRootAs")}


def _written(field: Field) -> tuple[str, str]:
    """How the generated functions write a field, and its default there."""
    if field.base_type != "scalar":
        return "UOffsetTRelative", "0"
    dtype = np.dtype(SCALARS[field.detail])
    name = dtype.name.removesuffix("ean").capitalize()
    return name, str(float(field.default)) if dtype.kind == "f" else str(int(field.default))


def test_names_and_defaults_are_those_of_the_module() -> None:
    for name in TABLES:
        theirs = vars(getattr(generated, f"{name}T")())
        ours = getattr(schema, f"{name}T")()
        assert {field.name: getattr(ours, field.name) for field in TFLITE.fields(name)} == theirs


def test_unions_and_operators_are_those_of_the_module() -> None:
    for name in UNIONS:
        numbers = {v: k for k, v in vars(getattr(generated, name)).items() if isinstance(v, int) and v}
        assert TFLITE.members(name) == numbers
        assert set(numbers.values()) <= set(TABLES)
        assert vars(getattr(schema, name)) == {"NONE": 0, **{member: number for number, member in numbers.items()}}
    operators = {k: v for k, v in vars(generated.BuiltinOperator).items() if isinstance(v, int)}
    assert {name: number for number, name in enumerate(BUILTIN_OPERATOR_NAMES)} == operators == vars(schema.BuiltinOperator)


def plain(item: Any) -> Any:
    """An object of either library as dicts, lists and numbers."""
    if isinstance(item, np.ndarray):
        return item.tolist()
    if isinstance(item, list):
        return [plain(entry) for entry in item]
    kind = type(item).__name__
    if kind.endswith("T") and kind[:-1] in TABLES:
        return kind, {field.name: plain(getattr(item, field.name)) for field in TFLITE.fields(kind[:-1])}
    return item


@pytest.mark.formats
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_views_and_objects_hold_what_the_module_reads(path: Path) -> None:
    data = path.read_bytes()
    theirs = generated.ModelT.InitFromObj(generated.Model.GetRootAs(data, 0))
    assert plain(unpack_view(root(data))) == plain(theirs)


def random_table(name: str, choose: random.Random, depth: int = 0) -> Any:
    """An object of ours with random fields, among them empty vectors, defaults that are stated, and unions."""
    found = getattr(schema, f"{name}T")()
    for field in TFLITE.fields(name):
        if choose.random() < 0.4:
            continue
        count = choose.randrange(4)
        if field.base_type == "union":
            number = choose.choice(sorted(TFLITE.members(field.detail)))
            setattr(found, f"{field.name}Type", number)
            setattr(found, field.name, random_table(TFLITE.members(field.detail)[number], choose, depth + 1))
        elif field.base_type == "tables":
            setattr(found, field.name, [random_table(field.detail, choose, depth + 1) for _ in range(count if depth < 3 else 1)])
        elif field.base_type == "table":
            setattr(found, field.name, random_table(field.detail, choose, depth + 1))
        elif field.base_type == "string":
            setattr(found, field.name, "näme"[:count])
        elif field.base_type == "vector":
            values = [_number(field.detail, choose) for _ in range(count)]
            setattr(found, field.name, np.array(values, SCALARS[field.detail]) if choose.random() < 0.5 else values)
        elif not field.name.endswith("Type"):
            setattr(found, field.name, _number(field.detail, choose))
    return found


def _number(kind: str, choose: random.Random) -> Any:
    dtype = np.dtype(SCALARS[kind])
    if dtype.kind == "b":
        return choose.random() < 0.5
    if dtype.kind == "f":
        return float(np.float32(choose.uniform(-9, 9)))
    limits = np.iinfo(dtype)
    return choose.choice([0, 1, -1 if dtype.kind == "i" else 3, int(limits.min), int(limits.max)])


def as_generated(item: Any) -> Any:
    """Our object as one of the module."""
    if isinstance(item, list):
        return [as_generated(entry) for entry in item]
    if not isinstance(item, TableObject):
        return item
    values = {field.name: as_generated(getattr(item, field.name)) for field in TFLITE.fields(item.table)}
    return getattr(generated, f"{item.table}T")(**values)


@pytest.mark.parametrize("number", range(40))
def test_packed_bytes_are_those_of_the_flatbuffers_library(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the alignment of Buffer.data, which the generated functions do not see to."""
    plan = packing._plan.__wrapped__

    def unaligned(tables: Schema, table: str) -> Any:
        slots, found = plan(tables, table)
        return slots, tuple((f._replace(alignment=1) if (table, f.name) == ("Buffer", "data") else f, *rest) for f, *rest in found)

    monkeypatch.setattr(packing, "_plan", unaligned)
    model = random_table("Model", random.Random(number))
    builder = flatbuffers.Builder(16)
    builder.Finish(as_generated(model).Pack(builder), b"TFL3")
    assert pack_model(model) == bytes(builder.Output())


def test_data_of_buffers_are_aligned() -> None:
    model = schema.ModelT()
    model.buffers = []
    for size in (1, 5, 16, 33):
        model.buffers.append(schema.BufferT())
        model.buffers[-1].data = bytes(range(size))
    data = pack_model(model)
    for buffer, size in zip(root(data).buffers, (1, 5, 16, 33), strict=True):
        assert buffer.data.tobytes() == bytes(range(size))
        assert (buffer.data.ctypes.data - np.frombuffer(data, np.uint8).ctypes.data) % 16 == 0


def test_a_union_of_an_unknown_type_is_passed_over() -> None:
    operator = schema.OperatorT()
    operator.builtinOptionsType, operator.builtinOptions = 255, schema.AddOptionsT()
    subgraph, model = schema.SubGraphT(), schema.ModelT()
    subgraph.operators, model.subgraphs = [operator], [subgraph]
    assert root(pack_model(model)).subgraphs[0].operators[0].builtinOptions is None


def test_two_gigabytes_are_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LARGEST", 1000)
    model = schema.ModelT()
    model.description = "x" * 950
    assert root(pack_model(model)).description == b"x" * 950
    model.description = "x" * 1000
    with pytest.raises(TooLargeError):
        pack_model(model)


def test_names_that_the_schema_lacks() -> None:
    with pytest.raises(AttributeError, match="the TFLite schema has no ConvT"):
        _ = schema.ConvT
