"""TFLite files that are read, written and read again: the same graph, the same operators, the same bits in LiteRT."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats import test_detection as detection_cases
from formats import test_linear as linear
from formats.test_operators import CASES, Case, random_value
from formats.tflite.written import codes, opened, random_stored, require_same_outputs, rewritten
from loaded import tflite_graph
from refusals import refused
from tflite_models import TensorSpec, model, run_litert, single_op

from qconvert import diff, load, save
from qconvert.errors import QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.flatbuffers import pack_model, unpack_view
from qconvert.formats.tflite.probe import accepted_copy, with_outputs, without_operators
from qconvert.formats.tflite.schema import root
from qconvert.formats.tflite.writer import build, write
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.operators import KINDS
from qconvert.plugins import operators

FIXTURES = Path(__file__).parents[3] / "fixtures"
REAL = sorted(path for path in FIXTURES.glob("*.tflite") if not any(word in path.name for word in ("lstm", "svdf", "streaming")))

#: Two operators that are one to the canonical graph; the second is written.
SAME_MEANING = {("SELECT", "SELECT_V2"), ("SPLIT_V", "SPLIT")}

#: LiteRT's reference kernels do not register the versions that op_version.cc gives these.
NOT_REGISTERED = {"TILE int8", "DEPTH_TO_SPACE int8", "STRIDED_SLICE new axis", "STRIDED_SLICE ellipsis"}


@pytest.mark.litert
@pytest.mark.parametrize("case", CASES, ids=[f"{case.builtin} {case.note}".strip() for case in CASES])
def test_operator(case: Case) -> None:
    source = single_op(case.builtin, case.options, case.inputs, case.outputs, custom=case.custom)
    result = rewritten(source)
    (before,), (after,) = codes(source), codes(result)
    assert before[0] == after[0] or (before[0], after[0]) in SAME_MEANING
    rng = np.random.default_rng(7)
    inputs = [random_value(tensor, rng) for tensor in case.inputs if tensor is not None and tensor.data is None]
    if case.builtin in ("LOG", "SQRT", "RSQRT", "POW"):
        inputs = [np.abs(value) for value in inputs]
    refused = f"{case.builtin} {case.note}" in NOT_REGISTERED
    require_same_outputs(source, result, inputs, {"reference": f"'{case.builtin}' version '{after[1]}'"} if refused else None)


def linear_models() -> Iterator[tuple[str, linear.Model]]:
    """Every model of test_linear.py."""
    for dtype in ("int8", "uint8"):
        for act in range(4):
            for window in linear.CONV_WINDOWS:
                if window[-1] == 1 or dtype == "int8":
                    yield f"conv {dtype} {act} {window}", linear.conv_2d(dtype, act, *window)
        for depthwise in linear.DEPTHWISE_WINDOWS:
            yield f"depthwise {dtype} {depthwise}", linear.depthwise_conv_2d(dtype, *depthwise)
    for shape in linear.FULLY_CONNECTED_SHAPES:
        for with_bias in (True, False):
            yield f"fully connected {shape} bias {with_bias}", linear.fully_connected(*shape, with_bias)
    for transposed in linear.TRANSPOSE_WINDOWS:
        yield f"transpose {transposed}", linear.transpose_conv(*transposed)
    for adj_x in (False, True):
        for adj_y in (False, True):
            yield f"batch_matmul {adj_x} {adj_y}", linear.batch_matmul(adj_x, adj_y)
    yield "dynamic range", linear.dynamic_range_conv(linear.weights(4, 3, 3, 3))
    yield "float16 weights", linear.float16_weights()
    yield "int16", linear.int16_conv()


LINEAR = dict(linear_models())


@pytest.mark.litert
@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str) -> None:
    source, tensors = LINEAR[name]
    result = rewritten(source)
    assert [code for code, _ in codes(source)] == [code for code, _ in codes(result)]
    rng = np.random.default_rng(1)
    for _ in range(2):
        require_same_outputs(source, result, [random_value(tensor, rng) for tensor in tensors])


@pytest.mark.litert
@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize("per_box", [1, 2])
@pytest.mark.parametrize("threshold", [0.0, 0.4, 0.97])
def test_detection_postprocess(regular: bool, per_box: int, threshold: float) -> None:
    rng = np.random.default_rng(5)
    source, tensors = detection_cases.detection(regular, per_box, threshold, rng)
    result = rewritten(source)
    assert codes(result) == codes(source) == [("TFLite_Detection_PostProcess", 1)]
    from tflite_models import run_litert

    values = [rng.integers(0, 256, tensor.shape).astype(np.uint8) for tensor in tensors]
    before, after = run_litert(source, values), run_litert(result, values)
    kept = int(before[3][0]) * (1 if regular else per_box)
    assert before[3] == after[3]
    for a, b in zip(before[:3], after[:3], strict=True):  # LiteRT leaves what lies behind the last detection unset
        assert np.array_equal(a[:, :kept], b[:, :kept])


@pytest.fixture(scope="module", params=REAL, ids=lambda path: path.stem)
def real(request: pytest.FixtureRequest) -> tuple[Path, bytes, bytes]:
    """A real model: its path, its bytes and those of the file written from it."""
    source = request.param.read_bytes()
    return request.param, source, rewritten(source)


Real = tuple[Path, bytes, bytes]


@pytest.mark.formats
def test_real_model_is_no_larger(real: Real) -> None:
    _, source, result = real
    assert len(result) <= 1.02 * len(source)


#: Versions of the source below or above what its types need: an int8 convolution needs 3; one of int16 has had its kernel from the start.
VERSIONS = {"tflm_person_detect_int8": {"CONV_2D": (2, 3)}, "tflm_seanet_conv_int16x8": {"CONV_2D": (3, 1)}}


@pytest.mark.litert
def test_real_model_keeps_operators_and_versions(real: Real) -> None:
    path, source, result = real
    odd = VERSIONS.get(path.stem, {})
    expected = [(name, odd[name][1] if (version == odd.get(name, (0, 0))[0]) else version) for name, version in codes(source)]
    assert Counter(codes(result)) == Counter(expected)


@pytest.mark.litert
def test_real_model_gives_the_same_bits(real: Real) -> None:
    path, source, result = real
    graph, rng = tflite_graph(source, "model"), np.random.default_rng(3)
    inputs = [random_stored(graph[name], rng) for name in graph.inputs]
    if path.stem == "tflm_person_detect_int8":  # LiteRT refuses the source, whose biases name an axis that they do not have
        source = accepted_copy(source)
    require_same_outputs(source, result, inputs)


@pytest.mark.litert
def test_real_model_has_aligned_and_different_buffers(real: Real) -> None:
    _, _, result = real
    from ai_edge_litert import schema_py_generated as schema

    found = schema.Model.GetRootAs(result, 0)
    seen = set()
    for number in range(1, found.BuffersLength()):
        data = found.Buffers(number).DataAsNumpy()
        content = data.tobytes()
        assert content not in seen
        seen.add(content)
        assert (data.__array_interface__["data"][0] - np.frombuffer(result, np.uint8).__array_interface__["data"][0]) % 16 == 0


@pytest.mark.litert
def test_real_model_keeps_names_and_description(real: Real) -> None:
    path, source, result = real
    before, after = opened(source), opened(result)
    names = [{tensor.name for tensor in found.subgraphs[0].tensors} for found in (before, after)]
    quantized = {
        tensor.name for tensor in before.subgraphs[0].tensors if tensor.quantization is not None and tensor.quantization.scale is not None
    }
    outputs = {before.subgraphs[0].tensors[index].name for operator in before.subgraphs[0].operators for index in operator.outputs}
    assert quantized | outputs <= names[1]
    assert before.description is None or before.description == after.description
    first, second = load(path), tflite_graph(result, "model")
    assert first.signatures == second.signatures
    for key, text in first.metadata.items():
        assert second.metadata.get(key) == text


@pytest.mark.litert
def test_signatures_and_text_metadata_are_kept() -> None:
    x, y = TensorSpec("x", (3,), "float32"), TensorSpec("y", (3,), "float32")
    from tflite_models import OpSpec

    source = model([OpSpec("TANH", ["x"], ["y"])], [x, y], ["x"], ["y"], signatures={"serve": ({"a": "x"}, {"b": "y"})},
                   metadata={"author": b"someone"}, description="made by hand", subgraph_name="core")  # fmt: skip
    result = opened(build(tflite_graph(source, "model"), {"source": "x.onnx"}))
    (signature,) = result.signatureDefs
    assert (signature.signatureKey, signature.inputs[0].name, signature.outputs[0].name) == (b"serve", b"a", b"b")
    assert (result.description, result.subgraphs[0].name) == (b"made by hand", b"core")
    texts = {entry.name: bytes(result.buffers[entry.buffer].data) for entry in result.metadata}
    assert texts == {b"author": b"someone", b"qconvert": b'{"source": "x.onnx"}'}


@pytest.mark.litert
@pytest.mark.cross_section
def test_label_files_and_binary_metadata_are_kept() -> None:
    source = (FIXTURES / "coco_ssd_mobilenet_v1_uint8.tflite").read_bytes()
    result = rewritten(source)
    with zipfile.ZipFile(io.BytesIO(source)) as before, zipfile.ZipFile(io.BytesIO(result)) as after:
        assert before.namelist() == after.namelist() == ["labelmap.txt"]
        assert before.read("labelmap.txt") == after.read("labelmap.txt")
    contents = [
        {entry.name: bytes(found.buffers[entry.buffer].data) for entry in found.metadata} for found in (opened(source), opened(result))
    ]
    assert contents[0] == contents[1]
    assert len(contents[0][b"TFLITE_METADATA"]) == 1340


@pytest.mark.formats
def test_damaged_archive_behind_the_model_is_ignored() -> None:
    x, y = TensorSpec("x", (3,), "float32"), TensorSpec("y", (3,), "float32")
    source = single_op("TANH", None, [x], [y])
    graph = tflite_graph(source + b"PK\x05\x06" + bytes(range(60)), "model")
    assert not any(key.startswith("source.file") for key in graph.metadata)


@pytest.mark.litert
def test_qgraph_becomes_tflite(tmp_path: Path) -> None:
    source = FIXTURES / "tiny_kws_dscnn_int8.tflite"
    save(load(source), tmp_path / "model.qgraph")
    save(load(tmp_path / "model.qgraph"), tmp_path / "model.tflite")
    assert diff(load(source), load(tmp_path / "model.tflite")) == []
    rng = np.random.default_rng(2)
    value = random_stored(load(source)["input_1"], rng)
    require_same_outputs(source.read_bytes(), (tmp_path / "model.tflite").read_bytes(), [value])


@pytest.mark.litert
def test_equal_constants_share_a_buffer() -> None:
    values = np.arange(40, dtype=np.float32)
    tensors = {
        name: Tensor(name, "float32", (40,), data)
        for name, data in (("x", None), ("a", values), ("b", values.copy()), ("s", None), ("y", None))
    }
    ops = (Op("Add", ("x", "a"), ("s",)), Op("Mul", ("s", "b"), ("y",)))
    found = opened(build(Graph("g", tensors, ops, ("x",), ("y",)), {}))
    places = {tensor.name: tensor.buffer for tensor in found.subgraphs[0].tensors}
    assert places[b"a"] == places[b"b"] != 0
    assert len(found.buffers) == 2


def sum_of(*constants: Array) -> Graph:
    """A graph that adds constants of one shape to its input, one after the other: "c0", "c1" …"""
    shape, count = constants[0].shape, len(constants)
    tensors = [plain(f"v{index}", *shape) for index in range(count + 1)]
    tensors += [plain(f"c{index}", *shape, data=data) for index, data in enumerate(constants)]
    ops = tuple(Op("Add", (f"v{index}", f"c{index}"), (f"v{index + 1}",)) for index in range(count))
    return Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("v0",), (f"v{count}",))


@pytest.mark.litert
def test_constants_that_begin_alike_share_a_buffer_only_if_they_are_equal() -> None:
    values = np.zeros((600, 600), np.float32)  # above 1 MB, so that what is transposed is made as it is written
    other = values.copy()
    other[-1, -1] = 1
    constants = (values, other, values.copy(), np.asfortranarray(other), other.T, np.asfortranarray(values))
    file = build(sum_of(*constants), {})
    found = opened(file)
    places = {tensor.name.decode(): tensor.buffer for tensor in found.subgraphs[0].tensors if tensor.buffer}
    assert [places[f"c{index}"] for index in range(6)] == [1, 2, 1, 2, 2, 1] and len(found.buffers) == 3
    assert bytes(found.buffers[2].data) == other.tobytes()


@pytest.mark.formats
def test_a_transposed_constant_is_not_in_memory_once_more(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=(2500, 2048)).astype(np.float32)
    graph = sum_of(values.T)
    save(graph, tmp_path / "small.tflite")  # so that all is imported
    tracemalloc.start()
    write(graph, tmp_path / "m.tflite", {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.nbytes * 0.6
    assert np.array_equal(load(tmp_path / "m.tflite")["c0"].data, values.T)


@pytest.mark.litert
def test_constants_of_more_than_a_flatbuffer_addresses_lie_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of 500 kB in place of 2 GB: LiteRT, the reader and copies with other outputs see the same constants."""
    graph = load(FIXTURES / "tflm_mobilenet_v2_from_torch_int8.tflite")
    inside = build(graph, {"key": "x" * 2000})
    monkeypatch.setattr("qconvert.formats.flatbuffers.packing.LARGEST", 500_000)
    save(graph, tmp_path / "m.tflite", provenance={"key": "x" * 2000})
    data = (tmp_path / "m.tflite").read_bytes()
    buffers = root(data).buffers
    outside = [buffer for buffer in buffers if buffer.data is None and buffer.size]
    assert len(outside) > 20 and min(buffer.size for buffer in outside) >= 1024
    assert not any(buffer.offset % 64 for buffer in outside)
    assert max(buffer.offset + buffer.size for buffer in outside) == len(data)
    assert diff(tflite_graph(inside, "m"), load(tmp_path / "m.tflite")) == []
    values = [random_stored(graph[name], np.random.default_rng(7)) for name in graph.inputs]
    require_same_outputs(inside, data, values)
    copied, names = with_outputs(data)
    other, _ = with_outputs(inside)
    assert len(names) > 20
    require_same_outputs(other, copied, values)


@pytest.mark.litert
def test_options_and_metadata_after_the_flatbuffer_are_read_and_copied() -> None:
    """They were read as empty, and a copy of the model had other bytes at their place."""
    data, inputs = detection_cases.detection(True, 1, 0.3, np.random.default_rng(0))
    whole = unpack_view(root(data))
    (operator,) = whole.subgraphs[0].operators
    options, operator.customOptions = operator.customOptions.tobytes(), None
    whole.buffers.append(whole.schema.object("Buffer")())
    whole.metadata = [whole.schema.object("Metadata")()]
    (entry,), note = whole.metadata, whole.buffers[-1]
    entry.name, entry.buffer = "license", len(whole.buffers) - 1
    operator.largeCustomOptionsSize, note.size = len(options), 3
    operator.largeCustomOptionsOffset = note.offset = 2**40
    operator.largeCustomOptionsOffset = size = len(pack_model(whole))
    note.offset = size + len(options)
    moved = pack_model(whole) + options + b"MIT"
    rng = np.random.default_rng(7)
    values = [random_value(tensor, rng) for tensor in inputs]
    require_same_outputs(data, moved, values)
    assert diff(tflite_graph(data, "m"), graph := tflite_graph(moved, "m")) == []
    assert graph.metadata["source.metadata.license"] == "MIT"
    copied, _ = with_outputs(moved)
    require_same_outputs(with_outputs(data)[0], copied, values)


@pytest.mark.formats
def test_a_model_that_is_too_large_without_its_constants_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qconvert.formats.flatbuffers.packing.LARGEST", 1000)
    values = np.arange(3000, dtype=np.float32)
    assert len(build(sum_of(values), {})) > values.nbytes
    with refused(QConvertError, "file-too-large", holds=(2,)):
        build(sum_of(values), {"key": "x" * 2000})


@pytest.mark.formats
def test_every_kind_that_the_reader_gives_has_a_writer() -> None:
    written = operators("tflite", "write")
    graphs = [tflite_graph(single_op(case.builtin, case.options, case.inputs, case.outputs, custom=case.custom), "model") for case in CASES]
    assert {op.kind for graph in graphs for op in graph.ops} <= set(written)
    assert set(written) <= set(KINDS)


def one_op(kind: str, inputs: dict[str, Tensor], result: Tensor, **attributes: Any) -> Graph:
    """A graph of one operator; constants are no inputs."""
    op = Op(kind, tuple(inputs), (result.name,), attributes)
    free = tuple(name for name, tensor in inputs.items() if not tensor.is_constant)
    return Graph("g", {**inputs, result.name: result}, (op,), free, (result.name,))


def plain(name: str, *shape: int | str, dtype: str = "float32", data: Array | None = None) -> Tensor:
    return Tensor(name, dtype, shape, data)


@pytest.mark.formats
@pytest.mark.parametrize(
    ("graph", "rule", "holds"),
    [
        (one_op("Resize", {"x": plain("x", 1, 3, 4, 5), "s": plain("s", 2, dtype="int64", data=np.array([5, 7]))}, plain("y", 1, 5, 7, 5),
                mode="cubic", coordinate_transformation_mode="half_pixel", data_format="channels_last"),
                "attribute-not-covered", ("'cubic'",)),
        (one_op("Equal", {"x": plain("x", 2, dtype="string"), "c": plain("c", 2, dtype="string", data=np.array(["a", "b"], object))},
                plain("y", 2, dtype="bool")), "constant-strings", ("'c'",)),
        (one_op("MaxPool", {"x": plain("x", 1, 4, 4, 2, dtype="bool")}, plain("y", 1, 2, 2, 2, dtype="bool"), kernel_shape=(2, 2),
                strides=(2, 2), pads=(0, 0, 0, 0), data_format="channels_last"), "operand-types", ("MaxPool", "bool")),
        (one_op("Relu", {"x": plain("x", 2**33)}, plain("y", 2**33)), "integers-too-large", ("[8589934592]", "int32")),
        (one_op("Slice", {"x": plain("x", "n"), **{n: plain(n, 1, dtype="int64", data=np.array([v])) for n, v in
                          (("s", 1), ("e", 2), ("a", 0), ("t", 2**40))}}, plain("y", "m")),
         "integers-too-large", ("[1099511627776]", "int32")),
        (one_op("TopK", {"x": plain("x", "n"), "k": plain("k", 1, dtype="int64", data=np.array([2**33]))}, plain("y", 2**33)),
         "integers-too-large", (8589934592, "int32")),
    ],
)  # fmt: skip
def test_what_has_no_form_is_named(graph: Graph, rule: str, holds: tuple[object, ...]) -> None:
    with refused(UnsupportedError, rule, holds=holds) as caught:
        build(graph, {})
    assert any(f"'{name}" in str(caught.value) for name in graph.tensors)


@pytest.mark.formats
@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge", "constant"])
def test_padding_that_also_cuts(mode: str) -> None:
    pads = Tensor("p", "int64", (4,), np.array([-1, 2, 1, -2]))
    tensors = [Tensor("x", "float32", (3, 5)), pads, Tensor("y", "float32", (3, 5))]
    graph = Graph("pad", {item.name: item for item in tensors}, (Op("Pad", ("x", "p"), ("y",), {"mode": mode}),), ("x",), ("y",))
    data = build(graph, {})
    feed = {"x": np.arange(15, dtype=np.float32).reshape(3, 5)}
    assert np.array_equal(evaluate(tflite_graph(data), feed)["y"], evaluate(graph, feed)["y"])


@pytest.mark.formats
def test_copies_for_checks_of_a_network_without_inputs() -> None:
    """A vector that a file leaves out is None among its objects."""
    tensors = [Tensor("x", "float32", (2,), np.array([-1, 2], np.float32)), Tensor("y", "float32", (2,))]
    graph = Graph("constant", {item.name: item for item in tensors}, (Op("Relu", ("x",), ("y",)),), (), ("y",))
    parsed = unpack_view(root(build(graph, {})))
    parsed.subgraphs[0].inputs = None
    data = pack_model(parsed)
    assert with_outputs(data)[1] == ["y"] and accepted_copy(data) == data
    assert root(without_operators(data, frozenset(["y"]), [], [("x", "x")])).subgraphs[0].operators == []


@pytest.mark.litert
def test_values_of_a_topk_as_indices_count_from_either_end() -> None:
    """Its indices are never negative, its values may be: GATHER reads elsewhere at those."""
    tensors = [
        Tensor("x", "int64", (4,)),
        Tensor("k", "int64", (1,), np.array([2])),
        Tensor("table", "float32", (5,), np.arange(5, dtype=np.float32)),
        Tensor("values", "int64", (2,)),
        Tensor("places", "int64", (2,)),
        *(Tensor(name, "float32", (2,)) for name in ("by_value", "by_place")),
    ]
    ops = (
        Op("TopK", ("x", "k"), ("values", "places"), {"axis": 0}),
        *(Op("Gather", ("table", index), (name,), {"axis": 0}) for index, name in (("values", "by_value"), ("places", "by_place"))),
    )
    data = build(Graph("indices", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("by_value", "by_place")), {})
    assert Counter(code for code, _ in codes(data))["FLOOR_MOD"] == 1
    found = run_litert(data, [np.array([-1, -5, -2, -4])], "default")
    assert [value.tolist() for value in found] == [[4.0, 3.0], [0.0, 2.0]]
