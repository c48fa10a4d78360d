""".qgraph files: exact round trips, memory-mapped reading, the published schema, damaged files."""

from __future__ import annotations

import base64
import json
import math
import mmap
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused
from safetensors import safe_open

import qconvert
from qconvert.errors import FileAccessError, InvalidModelError, OptionError, QConvertError, UnsupportedError
from qconvert.formats.qgraph.document import from_document, read, to_document, write
from qconvert.graph import DTYPES, Graph, Op, Quantization, Signature, Tensor, integer_range, numpy_dtype
from qconvert.operators import KINDS
from qconvert.rules.differences import diff
from qconvert.rules.validation import validate

pytestmark = pytest.mark.formats

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs" / "qgraph.schema.json").read_text())
MODEL = ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite"

texts = st.text(max_size=8)
names = st.text(min_size=1, max_size=8) | st.just("__metadata__")
scales = st.floats(2.0**-126, 2.0**60, width=32)


@st.composite
def constants(draw: st.DrawFn, name: str) -> Tensor:
    """A constant of any type, with any bits, quantized per tensor, per axis or in blocks if its type allows it."""
    dtype = draw(st.sampled_from([dtype for dtype in DTYPES if dtype != "unknown"]))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = math.prod(shape)
    if dtype == "string":
        values = draw(st.lists(texts, min_size=count, max_size=count))
        return Tensor(name, dtype, shape, np.array([*values, None], object)[:-1].reshape(shape))
    if dtype == "float4e2m1":
        bits = draw(st.lists(st.integers(0, 15), min_size=count, max_size=count))
        data = np.array(bits, np.uint8).view(numpy_dtype(dtype)).reshape(shape)
    elif dtype in ("int2", "uint2", "int4", "uint4", "bool"):
        low, high = (0, 1) if dtype == "bool" else integer_range(dtype)
        listed = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
        data = np.array(listed, np.int64).astype(numpy_dtype(dtype)).reshape(shape)
    else:
        size = count * numpy_dtype(dtype).itemsize
        data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), numpy_dtype(dtype)).reshape(shape)
    may_be_quantized = "int" in dtype or dtype.startswith(("float4", "float8"))
    quantization = draw(quantizations(dtype, shape)) if may_be_quantized and draw(st.booleans()) else None
    return Tensor(name, dtype, shape, data, quantization)


@st.composite
def quantizations(draw: st.DrawFn, dtype: str, shape: tuple[int, ...]) -> Quantization:
    """Sound parameters for a tensor of a type and shape."""
    axes = [axis for axis, length in enumerate(shape) if length]
    axis = draw(st.sampled_from(axes)) if axes and draw(st.booleans()) else None
    wanted, block_size = (1,) if axis is None else (shape[axis],), 0
    if axis is not None and all(shape) and draw(st.booleans()):
        block_size = draw(st.integers(1, 4))
        wanted = tuple(-(-size // block_size) if i == axis else size for i, size in enumerate(shape))
    number = math.prod(wanted)
    low, high = integer_range(dtype) if "int" in dtype else (0, 0)
    points = draw(st.lists(st.integers(low, min(high, 2**63 - 1)), min_size=number, max_size=number))
    scale = draw(st.lists(scales, min_size=number, max_size=number))
    return Quantization(np.array(scale, np.float32).reshape(wanted), np.array(points, np.int64).reshape(wanted), axis, block_size)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Constants that are graph outputs, and a chain of operators with attributes of every sort on a symbolic input."""
    listed = draw(st.lists(names, min_size=4, max_size=8, unique=True))
    tensors = [Tensor(name, "float32", ("batch", 3)) for name in listed[:3]]
    tensors.append(Tensor(listed[3], draw(st.sampled_from(DTYPES)), None))
    tensors += [draw(constants(name)) for name in listed[4:]]
    payload = base64.b64encode(draw(st.binary(max_size=9))).decode()
    opaque: dict[str, Any] = {"format": "onnx", "domain": draw(texts), "op_type": draw(texts), "version": draw(st.integers(0, 99))}
    opaque |= {"payload": payload, "captures": tuple(draw(st.lists(texts, max_size=2)))}
    alpha = draw(st.floats(allow_nan=False, allow_infinity=False))
    ops = (
        Op("LeakyRelu", (listed[0],), (listed[1],), {"alpha": alpha}, draw(texts)),
        Op("Transpose", (listed[1],), (listed[2],), {"perm": (0, 1)}),
        Op("Opaque", (listed[2], "", listed[0]), ("", listed[3]), opaque),
    )
    return Graph(
        name=draw(texts),
        tensors={tensor.name: tensor for tensor in tensors},
        ops=ops,
        inputs=(listed[0],),
        outputs=tuple(listed[2:]),
        signatures=(Signature(draw(texts), {draw(texts): listed[0]}, {draw(texts): listed[2]}),),
        metadata=draw(st.dictionaries(texts, texts, max_size=3)),
    )


@pytest.mark.property
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=graphs())
def test_round_trip_is_exact(graph: Graph, tmp_path: Path) -> None:
    validate(graph)
    jsonschema.validate(json.loads(json.dumps(to_document(graph))), SCHEMA)
    write(graph, tmp_path / "g.qgraph", {})
    found = read(tmp_path / "g.qgraph", {})
    assert (found.name, found.inputs, found.outputs) == (graph.name, graph.inputs, graph.outputs)
    assert (found.ops, found.signatures, found.metadata) == (graph.ops, graph.signatures, graph.metadata)
    assert list(found.tensors) == list(graph.tensors)
    assert found.tensors == graph.tensors
    assert diff(graph, found, exact=True) == []


def test_a_real_model_round_trips(tmp_path: Path) -> None:
    graph = qconvert.load(MODEL)
    qconvert.save(graph, tmp_path / "m.qgraph")
    assert diff(graph, qconvert.load(tmp_path / "m.qgraph"), exact=True) == []
    jsonschema.validate(to_document(graph), SCHEMA)


def sample() -> Graph:
    """A constant of a megabyte and small ones, so that a mutation can hit every part of the file."""
    tensors = [
        Tensor("x", "int8", ("n", 1024), None, Quantization.per_tensor(0.1, -3)),
        Tensor("w", "int8", (1024, 1024), np.full((1024, 1024), 7, np.int8), Quantization.per_tensor(0.25)),
        Tensor("y", "int8", ("n", 1024), None, Quantization.per_tensor(0.5, 1)),
        Tensor("flag", "bool", (2,), np.array([True, False])),
        Tensor("nibbles", "int4", (3,), np.array([-8, 0, 7]).astype(numpy_dtype("int4"))),
    ]
    return Graph("g", {t.name: t for t in tensors}, (Op("Gemm", ("x", "w"), ("y",)),), ("x",), ("y", "flag", "nibbles"))


def root(array: Any) -> Any:
    """What an array's memory belongs to in the end."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array


def test_constants_are_read_only_views_on_the_mapped_file(tmp_path: Path) -> None:
    write(sample(), tmp_path / "g.qgraph", {})
    tracemalloc.start()
    graph = read(tmp_path / "g.qgraph", {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**19  # half of the one constant
    for tensor in graph.constants():
        assert tensor.data is not None
        assert isinstance(root(tensor.data), mmap.mmap)
        assert not tensor.data.flags.writeable


def test_other_programs_can_read_the_file(tmp_path: Path) -> None:
    write(sample(), tmp_path / "g.qgraph", {"provenance": {"qconvert.version": "1"}})
    with safe_open(tmp_path / "g.qgraph", "np") as stream:
        document = json.loads(stream.metadata()["qgraph"])
        assert stream.get_tensor("nibbles").tolist() == [-8, 0, 7]
        assert stream.get_tensor("nibbles").dtype == np.int8
    assert document["metadata"] == {"qconvert.version": "1"}
    assert np.float32(document["tensors"][0]["quantization"]["scale"][0]) == np.float32(0.1)


def test_infinities_and_written_integers(tmp_path: Path) -> None:
    op = Op("LeakyRelu", ("x",), ("y",), {"alpha": -math.inf})
    graph = Graph("g", {n: Tensor(n, "float32", ()) for n in "xy"}, (op,), ("x",), ("y",))
    document = json.loads(json.dumps(to_document(graph), allow_nan=False))
    assert document["ops"][0]["attributes"] == {"alpha": {"float": "-inf"}}
    assert from_document(document, {}).ops[0].attributes["alpha"] == -math.inf
    document["ops"][0]["attributes"]["alpha"] = 1
    assert isinstance(from_document(document, {}).ops[0].attributes["alpha"], float)


def test_text_in_a_list_of_numbers_is_named() -> None:
    op = {"kind": "RNN", "inputs": [], "outputs": [], "attributes": {"activation_alpha": ["a"]}}
    graph = from_document({"qgraph": 1, "name": "g", "inputs": [], "outputs": [], "tensors": [], "ops": [op]}, {})
    assert graph.ops[0].attributes["activation_alpha"] == ("a",)
    assert "attribute-value" in [rule for rule, _ in KINDS["RNN"].problems(graph.ops[0])]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    with refused(OptionError, "unknown-option", holds=("opset",)):
        qconvert.save(sample(), tmp_path / "g.qgraph", opset=17)
    odd = Graph("g", {"k": Tensor("k", "string", (1,), np.array([b"x"], object))}, (), (), ("k",))
    with refused(UnsupportedError, "text-not-storable"):
        write(odd, tmp_path / "g.qgraph", {})
    unknown = Graph("g", {"k": Tensor("k", "unknown", (1,), np.array([None], object))}, (), (), ("k",))
    with refused(UnsupportedError, "type-not-storable"):
        write(unknown, tmp_path / "g.qgraph", {})
    with refused(FileAccessError, "file-not-written"):
        write(sample(), tmp_path / "absent" / "g.qgraph", {})


def parts(graph: Graph, path: Path) -> tuple[dict[str, Any], bytes]:
    write(graph, path, {})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def assembled(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["nibbles"].update(changes)


HEADERS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda h: h.pop("__metadata__"), ("not-this-format",)),
    (lambda h: h["__metadata__"].update(qgraph=1), ("wrong-type",)),
    (lambda h: h["__metadata__"].update(qgraph="{"), ("not-json",)),
    (lambda h: h["__metadata__"].update(qgraph="[" * 10**5), ("not-json",)),
    (lambda h: h["__metadata__"].update(qgraph='{"a": 1, "a": 2}'), ("not-json",)),
    (entry(dtype=[]), ("damaged-header",)),
    (entry(shape=[-3]), ("damaged-header",)),
    (entry(shape=[3.0]), ("damaged-header",)),
    (entry(shape=None), ("damaged-header",)),
    (entry(shape=[2**62, 2**62]), ("damaged-header",)),
    (entry(shape=[4]), ("damaged-header",)),
    (entry(data_offsets=[5, 8, 9]), ("damaged-header",)),
    (entry(data_offsets=[1, 4]), ("damaged-header",)),
    (lambda h: h.update(more={"dtype": "U8", "shape": [1], "data_offsets": [2**40, 2**40 + 1]}), ("damaged-header",)),
    (lambda h: h.pop("w"), ("damaged-header",)),
]  # fmt: skip


@pytest.mark.parametrize(("change", "broken"), HEADERS)
def test_damaged_header(change: Callable[[dict[str, Any]], Any], broken: tuple[Any, ...], tmp_path: Path) -> None:
    header, data = parts(sample(), tmp_path / "g.qgraph")
    change(header)
    (tmp_path / "bad.qgraph").write_bytes(assembled(header, data))
    with refused(InvalidModelError, broken[0], holds=broken[1:]):
        read(tmp_path / "bad.qgraph", {})


def test_a_type_that_is_not_covered(tmp_path: Path) -> None:
    header, data = parts(sample(), tmp_path / "g.qgraph")
    entry(dtype="F4")(header)
    (tmp_path / "bad.qgraph").write_bytes(assembled(header, data))
    with refused(UnsupportedError, "dtype-not-covered", holds=("F4",)):
        read(tmp_path / "bad.qgraph", {})


def test_damaged_containers(tmp_path: Path) -> None:
    path = tmp_path / "bad.qgraph"
    header, data = parts(sample(), path)
    bodies = {
        b"\1\2\3": "damaged-header",
        b"\xff" * 16: "damaged-header",
        assembled(b"[]", b""): "damaged-header",
        assembled(b"\xff\xfe", b""): "not-json",
        assembled(header, data[:-1]): "damaged-header",
        assembled(header, data + b"\0"): "damaged-header",
        b"": "empty-file",
    }
    for body, rule in bodies.items():
        path.write_bytes(body)
        with refused(InvalidModelError, rule):
            read(path, {})


def values_at(header: dict[str, Any], data: bytes, key: str, values: bytes) -> bytes:
    first, last = header[key]["data_offsets"]
    return assembled(header, data[:first] + values + data[last:])


def test_values_outside_their_type(tmp_path: Path) -> None:
    path = tmp_path / "bad.qgraph"
    header, data = parts(sample(), path)
    for key, values, named in (("nibbles", b"\x08\0\0", "int4"), ("flag", b"\2\0", "flag")):
        path.write_bytes(values_at(header, data, key, values))
        with refused(InvalidModelError, "value-outside-type", holds=(named,)):
            read(path, {})


def at(*place: Any) -> Callable[[Any, Any], None]:
    """Sets the value at a place of the document."""

    def change(document: Any, value: Any) -> None:
        for step in place[:-1]:
            document = document[step]
        document[place[-1]] = value

    return change


DOCUMENTS: list[tuple[Callable[[Any, Any], None], Any, str, str]] = [
    (at("qgraph"), 2, "qgraph", "version-not-covered"),
    (at("name"), 1, "name", "wrong-type"),
    (at("inputs"), "x", "inputs", "wrong-type"),
    (at("inputs", 0), None, "inputs[0]", "wrong-type"),
    (at("extra"), 1, "graph", "unknown-member"),
    (at("metadata"), {"a": 1}, "metadata['a']", "wrong-type"),
    (at("ops", 0, "kind"), [], "ops[0].kind", "wrong-type"),
    (at("ops", 0), {"kind": "Relu", "inputs": []}, "ops[0]", "missing-member"),
    (at("ops", 0, "attributes"), {"a": {}}, "ops[0].attributes.a", "wrong-type"),
    (at("ops", 0, "attributes"), {"a": True}, "ops[0].attributes.a", "wrong-type"),
    (at("ops", 0, "attributes"), {"a": [1, "b"]}, "ops[0].attributes.a", "mixed-list"),
    (at("tensors", 0, "dtype"), "int5", "tensors[0].dtype", "unknown-type"),
    (at("tensors", 0, "shape"), [-1], "tensors[0].shape[0]", "number-out-of-range"),
    (at("tensors", 0, "shape"), [1.5], "tensors[0].shape[0]", "wrong-type"),
    (at("tensors", 0, "shape"), [2**40, 3], "tensors[0].shape", "too-many-elements"),
    (at("tensors", 0, "name"), "w", "tensors", "duplicate-name"),
    (at("tensors", 0, "name"), "\ud800", "tensors[0].name", "not-utf8"),
    (at("tensors", 0, "data"), "no", "tensors[0].data", "array-missing"),
    (at("tensors", 0, "strings"), ["a"], "tensors[0].strings", "array-does-not-fit"),
    (at("tensors", 1, "dtype"), "uint8", "tensors[1].data", "array-does-not-fit"),
    (at("tensors", 1, "shape"), [1024], "tensors[1].data", "array-does-not-fit"),
    (at("tensors", 0, "quantization", "scale"), 0.5, "tensors[0].quantization.scale", "wrong-type"),
    (at("tensors", 0, "quantization", "scale"), ["1"], "tensors[0].quantization.scale[0]", "wrong-type"),
    (at("tensors", 0, "quantization", "zero_point"), [2**63], "tensors[0].quantization.zero_point[0]", "number-out-of-range"),
    (at("tensors", 0, "quantization", "axis"), -1, "tensors[0].quantization.axis", "number-out-of-range"),
    (at("tensors", 1, "quantization"), {"scale": [1] * 3, "zero_point": [0] * 3, "axis": 0, "block_size": 512},
     "tensors[1].quantization", "counts-differ"),
    (at("tensors", 1, "quantization"), {"scale": [1] * 3, "zero_point": [0] * 3, "axis": 2, "block_size": 512},
     "tensors[1].quantization", "blocks-do-not-fit"),
    (at("tensors", 0, "quantization"), {"scale": [1] * 3, "zero_point": [0] * 3, "axis": 1, "block_size": 512},
     "tensors[0].quantization", "blocks-do-not-fit"),
    (at("tensors", 4, "dtype"), "unknown", "tensors[4].data", "array-does-not-fit"),
    (at("tensors", 4, "dtype"), "float4e2m1", "tensors[4].data", "array-does-not-fit"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "value", "where", "rule"), DOCUMENTS)
def test_damaged_document(change: Callable[[Any, Any], None], value: Any, where: str, rule: str) -> None:
    document = to_document(sample())
    stored = {t.name: t.data.astype(np.int8) if t.dtype == "int4" else t.data for t in sample().constants()}
    from_document(document, stored)
    change(document, value)
    with refused(InvalidModelError, rule, where=f"graph document, {where}"):
        from_document(document, stored)


def test_a_broken_invariant_is_a_damaged_file(tmp_path: Path) -> None:
    graph = sample()
    write(replace(graph, tensors={**graph.tensors, "y": replace(graph["y"], shape=("n", 5))}), tmp_path / "g.qgraph", {})
    with refused(InvalidModelError, "shape-mismatch", where="Gemm 'y'"):
        qconvert.load(tmp_path / "g.qgraph")


@pytest.mark.property
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4), cut=st.none() | st.floats(0, 1))
def test_mutated_files_give_one_clear_error(edits: list[tuple[float, int]], cut: float | None, tmp_path: Path) -> None:
    source = tmp_path / "source.qgraph"
    if not source.exists():
        write(qconvert.load(MODEL), source, {})
    raw = bytearray(source.read_bytes())
    header = int.from_bytes(raw[:8], "little") + 8
    for place, value in edits:
        raw[min(int(place * header), len(raw) - 1)] = value
    path = tmp_path / "mutated.qgraph"
    path.write_bytes(raw[: len(raw) if cut is None else int(cut * len(raw))])
    try:
        qconvert.load(path)
    except QConvertError as error:
        assert isinstance(error, InvalidModelError)
        assert str(error).count("\n") <= 1


def test_a_file_may_be_read_by_whom_other_files_may(tmp_path: Path) -> None:
    """safetensors makes files for their owner alone."""
    qconvert.save(qconvert.load(MODEL), tmp_path / "model.qgraph")
    (tmp_path / "other").touch()
    assert (tmp_path / "model.qgraph").stat().st_mode == (tmp_path / "other").stat().st_mode
