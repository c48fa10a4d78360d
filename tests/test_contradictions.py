"""What a file says of one operator contradicts itself: one clear error, no fault of qconvert's, and nothing that no runtime takes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lstm_files import real_lstm_file
from onnx import parser
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model, single_op

from qconvert import Graph, Op, Tensor, convert, load, save
from qconvert.errors import InvalidGraphError, InvalidModelError, UnsupportedError
from qconvert.formats.tflite.reader import read_bytes
from qconvert.rules.changed_values import constant_difference
from qconvert.rules.validation import validate

pytestmark = pytest.mark.formats

ONNX = {
    "a result of another size": (
        "float[4,16] x, float[16] w) => (float[255] y) { y = MatMul (x, w) }",
        InvalidModelError, "shape-mismatch", ("'y'", "(4,)", "(255,)"),
    ),
    "a result of another rank": (
        "float[4,16] x, float[16] w) => (float[1,N] y) { y = MatMul (x, w) }",
        InvalidModelError, "shape-mismatch", ("'y'",),
    ),
    "a scale of float16": (
        "int8[1,4,4] x, float16 s, int8 p) => (float y) { y = com.microsoft.QLinearGlobalAveragePool (x, s, p, s, p) }",
        UnsupportedError, "target-rules", ("QLinearGlobalAveragePool",),
    ),
    "a zero point of float64": (
        "int8[1,1] x, int8[1,1] w, double p) => (int32[1,1] y) { y = MatMulInteger (x, w, p) }",
        InvalidModelError, "operand-types", ("float64",),
    ),
    "zero points that fit nothing": (
        "int8[1,1] x, int8[1,1] w, int8[4,4] p) => (int32 y) { y = MatMulInteger (x, w, p) }",
        InvalidModelError, "shape-mismatch", ("(4, 4)", "(1, 1)"),
    ),
    "vectors for matrices": (
        "int8[4] x, float s, int8 p, uint8[4] w) => (float y) { y = com.microsoft.QGemm (x, s, p, w, s, p) }",
        UnsupportedError, "target-rules", ("QGemm",),
    ),
    "fewer ends than starts": (
        "uint8 x, int64[N] e) => (uint8 y) { z = Identity (x) y = Slice <starts: ints = [0], ends: ints = []> (z) }",
        InvalidModelError, "counts-differ", ("starts [0]", "ends []"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONNX)
def test_a_node_of_onnx(name: str, tmp_path: Path) -> None:
    text, kind, rule, named = ONNX[name]
    opset = 9 if "Slice" in text else 17
    head = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> g ('
    (tmp_path / "bad.onnx").write_bytes(parser.parse_model(head + text).SerializeToString())
    with refused(kind, rule, holds=named):
        convert(tmp_path / "bad.onnx", tmp_path / "out.tflite")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.onnx"]


def test_a_mean_of_data_without_a_known_shape_is_written(tmp_path: Path) -> None:
    axes = Tensor("a", "int64", (1,), np.array([1]))
    ends = [Tensor("x", "float32", None), Tensor("y", "float32", None)]
    graph = Graph(name="g", tensors={t.name: t for t in (*ends, axes)}, ops=(Op("ReduceMean", ("x", "a"), ("y",), {"keepdims": 0}),),
                  inputs=("x",), outputs=("y",))  # fmt: skip
    validate(graph)
    save(graph, tmp_path / "out.onnx")
    assert load(tmp_path / "out.onnx").ops[0].kind == "ReduceMean"


def fake_quant(**options: Any) -> bytes:
    ends = [TensorSpec(name, (4,), "float32") for name in "xy"]
    return single_op("FAKE_QUANT", {"min": -1.0, "max": 1.0, "numBits": 8, **options}, [ends[0]], [ends[1]])


@pytest.mark.litert
@pytest.mark.parametrize(("bits", "fits"), [(2, True), (16, True), (1, False), (0, False), (17, False), (2**31 - 1, False), (-3, False)])
def test_bits_of_fake_quant(bits: int, fits: bool) -> None:
    """2 to the power of 2147483647 alone takes minutes."""
    if fits:
        validate(read_bytes(fake_quant(numBits=bits), "test"))
        return
    with refused(InvalidGraphError, "attribute-out-of-range", where="FAKE_QUANT #0 FakeQuant 'y'"):
        validate(read_bytes(fake_quant(numBits=bits), "test"))


@pytest.mark.litert
def test_a_range_of_fake_quant_beyond_float32() -> None:
    with refused(InvalidGraphError, "attribute-out-of-range", where="FAKE_QUANT #0 FakeQuant 'y'"):
        validate(read_bytes(fake_quant(min=-3e38, max=3e38), "test"))


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize(("height", "fits"), [(5, True), (6, True), (4, False), (7, False)])
def test_same_padding_of_transpose_conv_leads_back_to_the_data(height: int, fits: bool) -> None:
    """LiteRT's kernels refuse the others when they prepare the operator."""
    from qconvert.errors import RuntimeRefusedError
    from qconvert.runtimes.litert import LiteRT

    w = TensorSpec("w", (2, 3, 3, 1), "float32", data=np.ones((2, 3, 3, 1), np.float32))
    size = TensorSpec("s", (4,), "int32", data=np.int32([1, height, 6, 2]))
    x, y = TensorSpec("x", (1, 3, 3, 1), "float32"), TensorSpec("y", (1, height, 6, 2), "float32")
    ops = [OpSpec("TRANSPOSE_CONV", ["s", "w", "x"], ["y"], {"padding": 0, "strideH": 2, "strideW": 2})]
    data = model(ops, [size, w, x, y], ["x"], ["y"])
    if fits:
        LiteRT(data)
        assert read_bytes(data, "test").ops[0].kind == "ConvTranspose"
        return
    with refused(RuntimeRefusedError, "model-refused"):
        LiteRT(data)
    with refused(InvalidModelError, "padding-mismatch", where="TRANSPOSE_CONV #0 ('y')", holds=("SAME",)):
        read_bytes(data, "test")


@pytest.mark.litert
def test_what_reads_a_state_has_its_shape() -> None:
    graph = read_bytes(real_lstm_file(), "test")
    validate(graph)
    name = next(op.outputs[0] for op in graph.ops if op.kind == "ReadState")
    shape = (graph[name].shape or ())[:-1]
    with refused(InvalidGraphError, "state-mismatch", where="UNIDIRECTIONAL_SEQUENCE_LSTM #0 ReadState 'state'"):
        validate(graph.evolve(tensors=[replace(graph[name], shape=(*shape, "N"))]))


def test_nans_that_signal_are_compared_without_a_warning() -> None:
    data = np.array([0x7F800001, 0x3F800000], np.uint32).view(np.float32)
    a, b = Tensor("a", "float32", (2,), data), Tensor("b", "float64", (2,), np.array([np.nan, 2.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "values of 'a'" in constant_difference(a, b)


@pytest.mark.parametrize("kind", ["SpaceToBatch", "BatchToSpace"])
def test_blocks_that_are_none(kind: str) -> None:
    none = np.zeros(0, np.int64)
    tensors = [Tensor("x", "float32", (4, 2, 2, 1)), Tensor("y", "float32", (4, 2, 2, 1))]
    tensors += [Tensor(name, "int64", (0,), none) for name in ("blocks", "edges")]
    op = Op(kind, ("x", "blocks", "edges"), ("y",), {"data_format": "channels_last"})
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
    with refused(InvalidGraphError, "shape-mismatch"):
        validate(graph)


@pytest.mark.parametrize(("kind", "shape"), [("LSTM", (2, 1, 4)), ("GRU", (2, 1, 4)), ("RNN", (1, 4))])
def test_first_states_are_one_of_each_direction(kind: str, shape: tuple[int, ...]) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    sizes = {"x": (3, 1, 5), "w": (1, 4 * gates, 5), "r": (1, 4 * gates, 4), "h": shape, "y": (3, 1, 1, 4)}
    tensors = {name: Tensor(name, "float32", size) for name, size in sizes.items()}
    op = Op(kind, ("x", "w", "r", "", "", "h"), ("y",), {"hidden_size": 4})
    with refused(InvalidGraphError, "shape-mismatch", where=f"{kind} 'y'", holds=(shape,)):
        validate(Graph("g", tensors, (op,), ("x", "w", "r", "h"), ("y",)))
