"""Opening .onnx files: what a sound one gives, and one clear error for each way in which one can be bad."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qconvert.errors import InvalidModelError, QConvertError
from qconvert.formats.onnx import wire
from qconvert.formats.onnx.container import external_files, open_model, parse_model

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[3] / "fixtures" / "onnx"
SOUND = [path.read_bytes() for path in sorted(FIXTURES.glob("*.onnx"))[:4]]


def model(*nodes: Any, constants: tuple[Any, ...] = (), outputs: tuple[str, ...] = ("y",), opset: int = 17, **more: Any) -> Any:
    """A ModelProto with the input x and float outputs."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", inputs, results, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **more)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def constant(name: str = "c", dims: tuple[int, ...] = (4,), kind: int = TensorProto.FLOAT, **fields: Any) -> Any:
    return TensorProto(name=name, dims=dims, data_type=kind, **fields)


def external(dims: tuple[int, ...] = (4,), kind: int = TensorProto.FLOAT, **entries: Any) -> Any:
    """A constant in an external file; entries are location, offset and length."""
    tensor = constant("c", dims, kind, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def adding(tensor: Any) -> Any:
    """y = x + c."""
    return model(node("Add", "x c", "y"), constants=(tensor,))


def nested(depth: int) -> Any:
    """If in If in If …; put together by hand, since onnx's helpers copy at every level."""
    graph = helper.make_graph([], "innermost", [], []).SerializeToString()
    for _ in range(depth):
        branch = b"\x0a\x01b\x32" + length(graph) + graph + b"\xa0\x01\x05"  # AttributeProto: name, g, type
        inner = b"\x0a\x01x\x22\x02If\x2a" + length(branch) + branch  # NodeProto: input, op_type, attribute
        graph = b"\x0a" + length(inner) + inner
    return b"\x08\x08\x3a" + length(graph) + graph + b"\x42\x02\x10\x11"  # ModelProto: ir_version, graph, opset_import


def length(data: bytes) -> bytes:
    digits, value = bytearray(), len(data)
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def function(name: str, *nodes: Any) -> Any:
    return helper.make_function("local", name, ["a"], ["b"], list(nodes), [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)])


def calling(functions: list[Any]) -> Any:
    found = model(node("f0", "x", "y", domain="local"), functions=functions)
    found.opset_import.append(helper.make_opsetid("local", 1))
    return found


def doubling(levels: int) -> Any:
    """A function that calls another twice, which calls another twice …"""
    calls = [
        function(f"f{n}", node(f"f{n + 1}", "a", "m", domain="local"), node(f"f{n + 1}", "m", "b", domain="local")) for n in range(levels)
    ]
    return calling([*calls, function(f"f{levels}", node("Relu", "a", "b"))])


def twice_imported() -> Any:
    found = model(node("Relu", "x", "y"))
    found.opset_import.append(helper.make_opsetid("", 16))
    return found


def without_opset() -> Any:
    found = model(node("Relu", "x", "y"))
    del found.opset_import[:]
    return found


def bad_type() -> Any:
    found = model(node("Relu", "x", "y"))
    found.graph.input[0].type.tensor_type.elem_type = 77
    return found


def with_two_alphas() -> Any:
    found = model(node("LeakyRelu", "x", "y", alpha=1.0))
    found.graph.node[0].attribute.append(helper.make_attribute("alpha", 2.0))
    return found


def sparse() -> Any:
    found = model(node("Relu", "x", "y"))
    found.graph.sparse_initializer.add().values.name = "s"
    return found


FLOATS = np.ones(4, np.float32).tobytes()
BAD: dict[str, tuple[Any, str, tuple[object, ...]]] = {
    "text": (b"This is a text, and no model at all.", "not-this-format", ()),
    "zeros": (bytes(1000), "not-this-format", ()),
    "no graph": (onnx.ModelProto(ir_version=8), "graph-missing", ()),
    "opset too new": (model(node("Relu", "x", "y"), opset=1000), "unknown-version", (1000, 1, onnx.defs.onnx_opset_version())),
    "opset too old": (model(node("Relu", "x", "y"), opset=0), "unknown-version", (0, 1)),
    "no opset": (without_opset(), "no-opset", ()),
    "two opsets": (twice_imported(), "two-opset-versions", ("'ai.onnx'",)),
    "nested 40 deep": (nested(40), "nested-too-deeply", ()),
    "nested 5000 deep": (nested(5000), "nested-too-deeply", ()),
    "raw data too short": (adding(constant(raw_data=FLOATS[:-1])), "wrong-length", ("'c'", "[4]", 15, 16, "raw_data")),
    "large raw data too short": (adding(constant(dims=(1024,), raw_data=bytes(4095))), "wrong-length", ("'c'", 4095, "raw_data")),
    "raw data too long": (adding(constant(raw_data=FLOATS * 2)), "wrong-length", (32, "raw_data")),
    "too few floats": (adding(constant(float_data=[1, 2])), "wrong-length", ("[4]", 2, 4, "float_data")),
    "no data": (adding(constant()), "wrong-length", (0, "float_data")),
    "wrong field": (adding(constant(int32_data=[1, 2, 3, 4])), "wrong-value-field", ("int32_data", "float_data")),
    "two fields": (adding(constant(raw_data=FLOATS, float_data=[1, 2, 3, 4])), "two-value-fields", ("raw_data", "float_data")),
    "unpacked int4": (adding(constant(kind=TensorProto.INT4, int32_data=[1, 2, 3, 4])), "wrong-length", ("[4]", 4, 2)),
    "negative size": (adding(constant(dims=(-4,), raw_data=FLOATS)), "negative-size", ("-4",)),
    "huge dims": (adding(constant(dims=(2**31, 2**31), raw_data=FLOATS)), "too-many-elements", ("1,099,511,627,776",)),
    "billions of elements": (adding(constant(dims=(4_000_000_000,), raw_data=FLOATS)), "wrong-length", (16000000000,)),
    "huge next to zero": (adding(constant(dims=(0, 2**40, 2**40), raw_data=b"")), "too-many-elements", ()),
    "65 dimensions": (adding(constant(dims=(1,) * 65, raw_data=FLOATS[:4])), "rank-too-large", (65,)),
    "unknown type of constant": (adding(constant(kind=99, raw_data=FLOATS)), "unknown-type", (99,)),
    "unknown type of input": (bad_type(), "unknown-type", ("'x'", 77)),
    "raw strings": (adding(constant(kind=TensorProto.STRING, raw_data=b"abcd")), "string-storage", ()),
    "sparse": (sparse(), "sparse-constants", ("dense tensor",)),
    "constant twice": (
        model(node("Add", "x c", "y"), constants=(constant(raw_data=FLOATS), constant(raw_data=FLOATS))),
        "duplicate-name", ("'c'",),
    ),
    "value twice": (
        model(node("Relu", "x", "y"), node("Neg", "x", "y", name="second")),
        "duplicate-name", ("'y'", "'second'"),
    ),
    "node writes input": (model(node("Relu", "x", "x"), outputs=("x",)), "duplicate-name", ("'x'",)),
    "unknown input": (model(node("Add", "x nothing", "y", name="sum")), "unknown-value", ("'sum'", "'nothing'")),
    "unwritten output": (model(node("Relu", "x", "z")), "not-computed", ("'y'",)),
    "cycle": (model(node("Add", "x b", "a"), node("Relu", "a", "b"), node("Neg", "b", "y")), "cycle", ()),
    "node reads itself": (model(node("Add", "x y", "y", name="loop")), "cycle", ("'loop'",)),
    "attribute twice": (with_two_alphas(), "duplicate-attribute", ("'alpha'",)),
    "function calls itself": (calling([function("f0", node("f0", "a", "b", domain="local"))]), "recursive-function", ("'f0'",)),
    "functions in a ring": (
        calling([function("f0", node("f1", "a", "b", domain="local")), function("f1", node("f0", "a", "b", domain="local"))]),
        "recursive-function", (),
    ),
    "function bomb": (doubling(40), "too-many-nodes", ()),
    "function twice": (calling([function("f0", node("Relu", "a", "b"))] * 2), "duplicate-function", ()),
    "constant in an attribute": (
        model(node("Constant", "", "y", value=constant(raw_data=FLOATS[:3]))), "wrong-length", ("'value'", 3, "raw_data")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_model(case: str, tmp_path: Path) -> None:
    proto, rule, holds = BAD[case]
    path = written(proto, tmp_path)
    with refused(QConvertError, rule, holds=holds) as caught:
        open_model(path)
    assert "\n" not in caught.value.reason


def written(proto: Any, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    return path


PLACES: dict[str, tuple[dict[str, Any], str, tuple[object, ...]]] = {
    "absolute": ({"location": "/etc/passwd"}, "external-data-outside", ()),
    "climbing": ({"location": "../secret"}, "external-data-outside", ()),
    "climbing inside": ({"location": "folder/../../secret"}, "external-data-outside", ()),
    "backslashes": ({"location": "..\\secret"}, "external-data-outside", ()),
    "drive": ({"location": "C:secret"}, "external-data-outside", ()),
    "empty": ({"location": ""}, "invalid-external-data", ()),
    "none": ({}, "invalid-external-data", ()),
    "absent": ({"location": "absent.data"}, "external-data-missing", ("'absent.data'",)),
    "NUL": ({"location": "a\0b"}, "external-data-outside", ()),
    "too long": ({"location": "a" * 5000}, "external-data-missing", ()),
    "link": ({"location": "link"}, "external-data-not-regular", ("'link'",)),
    "linked folder": ({"location": "linked/weights"}, "external-data-not-regular", ()),
    "folder": ({"location": "folder"}, "external-data-not-regular", ()),
    "folder itself": ({"location": "."}, "external-data-not-regular", ()),
    "pipe": ({"location": "pipe"}, "external-data-not-regular", ()),
    "negative offset": ({"location": "weights", "offset": "-16"}, "invalid-external-data", ("'-16'",)),
    "no number": ({"location": "weights", "offset": "0x10"}, "invalid-external-data", ()),
    "other digits": ({"location": "weights", "offset": "١"}, "invalid-external-data", ()),
    "huge number": ({"location": "weights", "offset": "9" * 400}, "invalid-external-data", ()),
    "negative length": ({"location": "weights", "length": "-1"}, "invalid-external-data", ()),
    "offset past the end": ({"location": "weights", "offset": "1000000"}, "external-data-too-short", ("'weights'", 1000000, 1000016, 64)),
    "end past the end": ({"location": "weights", "offset": "49"}, "external-data-too-short", (49, 65, 64)),
    "length past the end": ({"location": "weights", "length": "1000"}, "wrong-length", ("[4]", 1000, 16)),
    "length too short": ({"location": "weights", "length": "8"}, "wrong-length", (8,)),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
@pytest.mark.parametrize("place", ["constant", "attribute"])
def test_bad_external_data(case: str, place: str, tmp_path: Path) -> None:
    import os

    folder = tmp_path / "models"
    (folder / "folder").mkdir(parents=True)
    for path in (tmp_path / "secret", folder / "weights", tmp_path / "elsewhere"):
        path.write_bytes(bytes(64))
    (folder / "link").symlink_to(folder / "weights")
    (folder / "linked").symlink_to(folder / "folder")
    (folder / "folder" / "weights").write_bytes(bytes(64))
    os.mkfifo(folder / "pipe")

    entries, rule, holds = PLACES[case]
    tensor = external(**entries)
    proto = adding(tensor) if place == "constant" else model(node("Constant", "", "y", value=tensor))
    with refused(InvalidModelError, rule, holds=holds) as caught:
        open_model(written(proto, folder))
    assert ("'c'" if place == "constant" else "Constant 'y'") in caught.value.where


def test_external_string_and_doubled_entries(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(64))
    with refused(InvalidModelError, "string-storage"):
        open_model(written(adding(external(kind=TensorProto.STRING, location="weights")), tmp_path))
    tensor = external(location="weights")
    tensor.external_data.add(key="location", value="/etc/passwd")
    with refused(InvalidModelError, "duplicate-entry", holds=("location",)):
        open_model(written(adding(tensor), tmp_path))
    tensor = external(location="weights", offset="0")
    tensor.raw_data = FLOATS
    with refused(InvalidModelError, "two-value-fields"):
        open_model(written(adding(tensor), tmp_path))


def test_file_above_2_gb(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**31)
    with refused(InvalidModelError, "file-too-large", holds=(2,)):
        open_model(path)


@pytest.mark.parametrize(
    ("what", "piece"),
    {"nodes": b"\x0a\x00", "constants": b"\x2a\x00", "values": b"\x6a\x00", "attributes": b"\x0a\x82\x01" + b"\x2a\x00" * 65}.items(),
)
def test_many_repeated_messages(what: str, piece: bytes) -> None:
    graph = piece * (800_000 // len(piece))
    data = b"\x08\x08\x3a" + length(graph) + graph
    tracemalloc.start()
    try:
        with refused(InvalidModelError, "too-many-nodes"):
            wire.without_large_constants(data, max_messages=100_000)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
    assert wire.without_large_constants(data) == data


def test_eight_megabytes_of_empty_nodes(tmp_path: Path) -> None:
    graph = b"\x0a\x00" * 4_100_000
    with refused(InvalidModelError, "too-many-nodes"):
        open_model(written(b"\x08\x08\x3a" + length(graph) + graph, tmp_path))


def test_more_than_a_million_nodes(tmp_path: Path) -> None:
    graph = b"\x0a\x00" * 1_000_001
    with refused(InvalidModelError, "too-many-nodes", holds=("1,000,000",)):
        open_model(written(b"\x08\x08\x3a" + length(graph) + graph + b"\x42\x02\x10\x11", tmp_path))


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    data = adding(constant(dims=(512,), raw_data=bytes(2048))).SerializeToString()
    assert list(parse_model(data).graph.constants) == ["c"]
    for size in range(1, len(data), 7):
        with pytest.raises(QConvertError):
            parse_model(data[:size])


@pytest.mark.property
@settings(max_examples=150)
@given(st.sampled_from(SOUND), st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 255)), min_size=1, max_size=8))
def test_mutated_models_open_or_are_refused(data: bytes, changes: list[tuple[int, int]]) -> None:
    mutated = bytearray(data)
    for place, byte in changes:
        mutated[place % len(mutated)] = byte
    try:
        opened = parse_model(bytes(mutated))
    except QConvertError as error:
        assert error.reason
    else:
        for found in opened.graph.constants.values():
            assert opened.files.numpy(found).shape == tuple(found.dims)


@pytest.mark.property
@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(QConvertError):
        parse_model(b"\x08\x08" + data)


# Sound models


def test_external_constant_is_a_view(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "weights").write_bytes(values.tobytes())
    path = written(adding(external(location="folder/weights", offset="16", length="16")), tmp_path)
    found = opened_constant(open_model(path))
    assert found.tolist() == [4, 5, 6, 7]
    assert not found.flags.owndata
    assert not found.flags.writeable
    assert external_files(path) == (tmp_path / "folder" / "weights",)


def opened_constant(opened: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = opened.files.numpy(opened.graph.constants["c"])
    return found


@pytest.mark.parametrize("count", [255, 256, 300, 40_000])
def test_inline_constants_keep_their_values(count: int, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=count).astype(np.float32)
    path = written(adding(numpy_helper.from_array(values, "c")), tmp_path)
    found = opened_constant(open_model(path))
    assert np.array_equal(found, values)
    assert found.dtype == np.float32
    assert external_files(path) == ()


def test_large_constants_are_not_parsed() -> None:
    data = adding(constant(dims=(2**20,), raw_data=bytes(2**22))).SerializeToString()
    rest = wire.without_large_constants(data)
    assert len(rest) < 300
    assert onnx.ModelProto.FromString(rest).graph.initializer[0].external_data[0].value == wire.OWN_FILE


@pytest.mark.parametrize(
    ("kind", "per_byte"), [(TensorProto.INT4, 2), (TensorProto.UINT4, 2), (TensorProto.INT2, 4), (TensorProto.UINT2, 4)]
)
def test_packed_external_constants(kind: int, per_byte: int, tmp_path: Path) -> None:
    signed = kind in (TensorProto.INT4, TensorProto.INT2)
    levels = 2 ** (8 // per_byte)
    values = np.random.default_rng(1).integers(-levels // 2 if signed else 0, levels // 2 if signed else levels, 2051)
    tensor = helper.make_tensor("c", kind, values.shape, values.tolist())
    packed = numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
    assert len(packed) == -(-2051 // per_byte)
    (tmp_path / "weights").write_bytes(b"\xff" + packed)
    proto = model(node("Cast", "c", "y", to=1), constants=(external((2051,), kind, location="weights", offset="1"),), opset=25)
    assert np.array_equal(opened_constant(open_model(written(proto, tmp_path))).astype(int), values)


def test_functions_are_inlined_and_nodes_sorted(tmp_path: Path) -> None:
    swapped = function("f0", node("Neg", "m", "b"), node("Relu", "a", "m"))
    opened = open_model(written(calling([swapped]), tmp_path))
    assert [item.op_type for item in opened.proto.graph.node] == ["Relu", "Neg"]
    assert not opened.proto.functions
    unsorted = model(node("Neg", "m", "y"), node("Relu", "x", "m"))
    opened = open_model(written(unsorted, tmp_path))
    assert [item.op_type for item in opened.proto.graph.node] == ["Relu", "Neg"]
    assert [opened.graph.values[item.output[0]][1] for item in opened.proto.graph.node] == [(4,), (4,)]


def test_constant_listed_as_input_is_a_constant(tmp_path: Path) -> None:
    proto = adding(constant(raw_data=FLOATS))
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [4]))
    proto.ir_version = 3
    opened = open_model(written(proto, tmp_path))
    assert opened.graph.inputs == ["x"]
    assert opened_constant(opened).tolist() == [1, 1, 1, 1]


def test_subgraphs_have_their_own_scope(tmp_path: Path) -> None:
    def branch(kind: str) -> Any:
        return helper.make_graph([node(kind, "x", "inner")], kind, [], [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [4])])

    chosen = node("If", "c", "y", then_branch=branch("Relu"), else_branch=branch("Neg"))
    opened = open_model(written(model(chosen, constants=(constant(dims=(), kind=TensorProto.BOOL, raw_data=b"\x01"),)), tmp_path))
    assert [item.op_type for item in opened.proto.graph.node] == ["If"]


@pytest.mark.end_to_end
@pytest.mark.parametrize("command", ["convert", "inspect"])
@pytest.mark.parametrize("case", ["cycle", "raw data too short", "nested 5000 deep", "unknown type of constant", "function bomb", "text"])
def test_command_line(case: str, command: str, tmp_path: Path) -> None:
    proto, _, holds = BAD[case]
    path = written(proto, tmp_path)
    arguments = [str(path), str(tmp_path / "out.onnx")][: 2 if command == "convert" else 1]
    done = subprocess.run([sys.executable, "-m", "qconvert", command, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: {path}")
    assert all(str(item) in done.stderr for item in holds)
    assert "Traceback" not in done.stderr
    assert [item.name for item in tmp_path.iterdir()] == ["model.onnx"]
