"""Seeds and alterations of the formats of models that are written too: .tflite, .onnx and .qgraph."""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.altering import Rng, altered_json, altered_list, altered_tables, altered_tree, altered_value, one

TESTS = Path(__file__).parent.parent
FIXTURES = TESTS.parent / "fixtures"


# seeds


@cache
def tflite_seeds() -> dict[str, bytes]:
    """Files of one operator each, of custom ones, and those with states, functions and loops."""
    sys.path.append(str(TESTS / "targets"))
    from custom_models import custom_model
    from one_operator import CASES, model_of

    found = {"custom": custom_model(), "custom uint8": custom_model("FlexErf", dtype="uint8")}
    found |= {"seanet": (FIXTURES / "tflm_seanet_conv_int16x8.tflite").read_bytes()}
    for name in CASES:
        for dtype in ("int8", "float32"):
            made = next(filter(None, (model_of(name, dtype, rank) for rank in (4, 3, 2))), None)
            if made is not None:
                found[f"{name} {dtype}"] = made[0]
    return found | _recurrent_seeds()


@cache
def _recurrent_seeds() -> dict[str, bytes]:
    """Files of TFLite with variables, kept tensors, functions, loops and signatures."""
    from float_recurrent_files import Cells, integer_basic_lstm_file, lstm_file, rnn_file
    from lstm_files import Lstm, real_lstm_file, svdf_file

    small = [*(FIXTURES / "recurrent").glob("*.tflite"), *(FIXTURES / "keras").glob("*.tflite")]
    found = {path.name: path.read_bytes() for path in sorted(small) if path.stat().st_size < 18_000}
    for name, layer in {
        "plain": Lstm(),
        "peephole": Lstm(peephole=True, projection=True, outputs=4),
        "norm": Lstm(norm=True, rows=2),
    }.items():
        found[f"lstm {name}"] = layer.file()
    found |= {
        "lstm both ways": lstm_file(Cells(ways=2, aux=3, steps=2, outputs=4, peephole=True)),
        "lstm norm real": lstm_file(Cells(norm=True, steps=2, has_input_gate=False)),
        "lstm basic": integer_basic_lstm_file()[0],
        "rnn both ways": rnn_file(Cells(ways=2, aux=5, steps=2, merge=True)),
        "rnn": rnn_file(Cells(rows=2), single=True),
    }
    found |= {"lstm real": real_lstm_file(), "lstm hybrid": real_lstm_file(weights="int8", cell_clip=1.0), "svdf": svdf_file()[0]}
    return found | {"variables": _with_variables()}


def _with_variables() -> bytes:
    """y = x + s; s = y, with a first value."""
    from tflite_models import OpSpec, TensorSpec, model

    handles = [OpSpec("VAR_HANDLE", [], [name], {"sharedName": "s", "container": ""}) for name in "hv"]
    first = TensorSpec("c", (2,), "float32", data=np.float32([5, -1]))
    once = [handles[1], OpSpec("ASSIGN_VARIABLE", ["v", "c"], [])], [TensorSpec("v", (), "resource"), first], [], []
    ops = [
        OpSpec("CALL_ONCE", [], [], {"initSubgraphIndex": 1}), handles[0], OpSpec("READ_VARIABLE", ["h"], ["old"]),
        OpSpec("ADD", ["x", "old"], ["y"]), OpSpec("ASSIGN_VARIABLE", ["h", "y"], []),
    ]  # fmt: skip
    tensors = [TensorSpec("h", (), "resource"), *(TensorSpec(name, (2,), "float32") for name in ("x", "old", "y"))]
    return model(ops, tensors, ["x"], ["y"], further=[once])


def onnx_seeds() -> dict[str, bytes]:
    """Exporters' small files, networks of all opsets, functions, and what the seeds of TFLite become."""
    from custom_models import foreign_model
    from onnx_networks import NETWORKS, build

    small = [path for path in sorted((FIXTURES / "onnx").glob("*.onnx")) if path.stat().st_size < 25_000]
    found = {path.name: path.read_bytes() for path in small}
    found |= {name: build(name, network).SerializeToString() for name, network in NETWORKS.items()}
    found |= {"functions and subgraphs": _with_functions()}
    found |= {"foreign": foreign_model(alpha=0.5, names=["a", "b"], ints=[1, 2]).SerializeToString()}
    for form in ("qdq", "qoperator"):
        found |= {f"{name} {form}": data for name, data in _converted("onnx", form=form).items()}
    return found


def qgraph_seeds() -> dict[str, bytes]:
    """What the seeds of TFLite become."""
    return _converted("qgraph")


def _converted(format: str, **options: Any) -> dict[str, bytes]:
    """The quantized seeds of TFLite in another format."""
    from qconvert import QConvertError, convert

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "m.tflite"), Path(folder, f"m.{format}")
        for name, data in tflite_seeds().items():
            if name.endswith("float32"):
                continue
            source.write_bytes(data)
            try:
                convert(source, result, force=True, **options)
            except QConvertError:  # an operator that the format lacks
                continue
            found[name] = result.read_bytes()
    return found


def _with_functions() -> bytes:
    from onnx import parser

    text = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]> g (float[4] x, bool c) => (float[4] y) {
        a = local.f <alpha = 0.5> (x)
        y = If (c) <then_branch = t () => (float[4] u) { u = local.f <alpha = 0.2> (a) },
                    else_branch = e () => (float[4] v) { v = Abs (x) }> }
        <domain: "local", opset_import: ["" : 17]> f <alpha> (p) => (r) { q = LeakyRelu <alpha: float = @alpha> (p) r = Neg (q) }
        <domain: "local", opset_import: ["" : 17]> unused (p) => (r) { r = Neg (p) }"""
    data: bytes = parser.parse_model(text).SerializeToString()
    return data


# alterations


def altered_tflite(data: bytes, rng: Rng) -> bytes:
    """Fields of the file's tables changed, and packed again."""
    from qconvert.formats.flatbuffers import pack_model, unpack_view
    from qconvert.formats.tflite import schema

    return pack_model(altered_tables(unpack_view(schema.root(data)), rng))


def altered_qgraph(data: bytes, rng: Rng) -> bytes:
    """Values of the header or of the graph document changed, and the length before them set right."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    document = json.loads(header["__metadata__"]["qgraph"])
    if rng.random() < 0.15:
        altered_tree(header, rng)
    else:
        altered_tree(document, rng)
        header["__metadata__"]["qgraph"] = json.dumps(document)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def altered_onnx(data: bytes, rng: Rng) -> bytes:
    """Fields of the protobuf's messages changed."""
    from onnx import ModelProto

    model = ModelProto.FromString(data)
    messages = list(_messages(model))
    pool = [name for message in messages for name in _names(message)]
    notes = [item for item in model.metadata_props if item.value[:1] in ("[", "{")]
    if notes and rng.random() < 0.3:
        note = one(rng, notes)
        note.value = altered_json(note.value.encode(), rng).decode()
        return bytes(model.SerializeToString())
    for _ in range(rng.integers(1, 4)):
        message = one(rng, messages)
        fields = list(message.DESCRIPTOR.fields)
        present = [field for field, _ in message.ListFields()]
        field = fields[rng.integers(len(fields))] if rng.random() < 0.2 or not present else present[rng.integers(len(present))]
        _alter_field(message, field, rng, pool, messages)
    found: bytes = model.SerializeToString()
    return found


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                yield from _messages(item)


def _names(message: Any) -> list[str]:
    if message.DESCRIPTOR.name == "NodeProto":
        return [*message.input, *message.output, message.op_type]
    return [message.name] if message.DESCRIPTOR.name in ("TensorProto", "ValueInfoProto", "AttributeProto") else []


def _alter_field(message: Any, field: Any, rng: Rng, pool: list[str], messages: list[Any]) -> None:
    is_message = field.message_type is not None
    if rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.is_repeated:
        values = getattr(message, field.name)
        items = [copy.deepcopy(item) for item in values] if is_message else list(values)
        if items and not is_message and rng.random() < 0.6:
            place = rng.integers(len(items))
            items[place] = altered_value(items[place], rng, pool)
        else:
            items = altered_list(items, rng) if items else [_fresh(field, rng, pool, messages)]
        del values[:]
        values.extend(item for item in items if item is not None)
    elif is_message:
        other = _fresh(field, rng, pool, messages)
        if other is not None:
            getattr(message, field.name).CopyFrom(other)
    else:
        value = getattr(message, field.name)
        setattr(message, field.name, int(rng.integers(0, 20)) if field.enum_type else altered_value(value, rng, pool))


def _fresh(field: Any, rng: Rng, pool: list[str], messages: list[Any]) -> Any:
    """A value for a field: a copy of another message of its kind, or a number or a text."""
    if field.message_type is not None:
        same = [item for item in messages if item.DESCRIPTOR.name == field.message_type.name]
        return copy.deepcopy(same[rng.integers(len(same))]) if same else None
    if field.enum_type is not None:
        return int(rng.integers(0, 20))
    return altered_value({"string": "", "bytes": b"x", "float": 0.0, "double": 0.0}.get(_sort(field), 0), rng, pool)


def _sort(field: Any) -> str:
    return {field.TYPE_STRING: "string", field.TYPE_BYTES: "bytes", field.TYPE_FLOAT: "float", field.TYPE_DOUBLE: "double"}.get(
        field.type, ""
    )
