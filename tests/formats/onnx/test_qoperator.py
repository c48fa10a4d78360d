"""QOperator forms: each operator read and written, in onnxruntime, and QDQ models there and back."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models
import pytest
from loaded import onnx_graph
from onnx import TensorProto, helper, numpy_helper
from passes.graphs import CONV, constant, make, q
from refusals import refused

from qconvert import Op, Tensor, convert, diff, load
from qconvert.errors import InvalidModelError, OptionError, RuntimeRefusedError
from qconvert.formats.onnx.qoperator import READERS
from qconvert.formats.onnx.writer import build
from qconvert.graph import Graph
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.onnxruntime

Array = np.ndarray[Any, np.dtype[Any]]
FIXTURES = Path(__file__).parents[3] / "fixtures"
TYPES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT, "bool": TensorProto.BOOL}
CONTRIB = "com.microsoft"


class OneNode:
    """A model of one node with random constants; `x` holds the node's inputs so far.

    int8 tensors have zero points around 0, uint8 ones around 128.
    """

    def __init__(self, dtype: str, seed: int = 0) -> None:
        self.dtype = dtype
        self.x: list[str] = []
        self._random = np.random.default_rng(seed)
        self._inputs: list[Any] = []
        self._constants: list[Any] = []

    def const(self, data: Any) -> OneNode:
        """A constant input."""
        name = f"c{len(self.x)}"
        self._constants.append(numpy_helper.from_array(np.asarray(data), name))
        self.x.append(name)
        return self

    def absent(self) -> OneNode:
        self.x.append("")
        return self

    def data(self, shape: Sequence[int], dtype: str = "") -> OneNode:
        """An input of the graph."""
        name = f"x{len(self.x)}"
        self._inputs.append(helper.make_tensor_value_info(name, TYPES[dtype or self.dtype], list(shape)))
        self.x.append(name)
        return self

    def quantization(self, scale: Any, zero_point: Any = 3, dtype: str = "") -> OneNode:
        """A scale and a zero point; that of unsigned types is 128 more."""
        dtype = dtype or self.dtype
        offset = 128 if dtype == "uint8" else 0
        self.const(np.asarray(scale, np.float32))
        return self.const((np.broadcast_to(np.asarray(zero_point), np.shape(scale)) + offset).astype(dtype))

    def operand(self, shape: Sequence[int], scale: float = 0.05, zero_point: int = 3) -> OneNode:
        return self.data(shape).quantization(scale, zero_point)

    def weights(self, shape: Sequence[int], dtype: str = "int8", scale: Any = 0.02, zero_point: Any = 0) -> OneNode:
        low = 0 if dtype == "uint8" else -128
        return self.const(self._random.integers(low, low + 256, shape).astype(dtype)).quantization(scale, zero_point, dtype)

    def bias(self, size: int) -> OneNode:
        return self.const(self._random.integers(-2000, 2000, size).astype(np.int32))

    def model(
        self, op_type: str, shape: Sequence[int], domain: str = CONTRIB, dtype: str = "", version: int = 17, **attributes: Any
    ) -> bytes:
        """The model, whose result has `shape` and, if not another is named, the type of the data."""
        node = helper.make_node(op_type, self.x, ["y"], name="node", domain=domain, **attributes)
        result = helper.make_tensor_value_info("y", TYPES[dtype or self.dtype], list(shape))
        graph = helper.make_graph([node], "one", self._inputs, [result], self._constants)
        imports = [helper.make_opsetid("", version), helper.make_opsetid(CONTRIB, 1)]
        data: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
        return data


IMAGE = (2, 4, 6, 6)
PER_AXIS = np.linspace(0.01, 0.03, 4)


def cases(dtype: str) -> dict[str, bytes]:
    """A model for each QOperator form that onnxruntime runs, with activations of one type; the form's name begins the key."""

    def new() -> OneNode:
        return OneNode(dtype)

    def conv(scale: Any, domain: str = "", weights: str = "int8", zero_point: Any = 0, **attributes: Any) -> bytes:
        node = new().operand(IMAGE).weights((4, 4, 3, 3), weights, scale, zero_point).quantization(0.4, -5)
        return node.bias(4).model("QLinearConv", IMAGE, domain, pads=[1, 1, 1, 1], **attributes)

    def matmul(scale: Any) -> bytes:
        node = new().operand((2, 3, 8)).weights((8, 4), "int8", scale).quantization(0.1)
        return node.model("QLinearMatMul", (2, 3, 4), "")

    def pair(op_type: str, other: Sequence[int]) -> bytes:
        return new().operand(IMAGE).operand(other, 0.03, -7).quantization(0.07).model(op_type, IMAGE)

    def gemm(transposed: int, scale: Any, real: bool, bias: bool = True, alpha: float = 1.0) -> bytes:
        node = new().operand((3, 8)).weights((4, 8) if transposed else (8, 4), "int8", scale)
        node = node.bias(4) if bias else node.absent()
        node = node if real else node.quantization(0.1)
        return node.model("QGemm", (3, 4), dtype="float32" if real else "", transB=transposed, alpha=alpha)

    def to_float(scale: Any) -> bytes:
        node = new().data((3, 8)).const(np.arange(32, dtype=np.int8).reshape(8, 4)).const(np.float32(0.05))
        node = node.const(np.asarray(scale, np.float32)).const(np.array(5, dtype)).const(np.full(np.shape(scale), 2, np.int8))
        return node.model("MatMulIntegerToFloat", (3, 4), dtype="float32")

    def one(op_type: str, scale: float, zero_point: int, **attributes: Any) -> bytes:
        return new().operand((2, 4, 8)).quantization(scale, zero_point).model(op_type, (2, 4, 8), **attributes)

    window = {"kernel_shape": [3, 3], "strides": [2, 2]}
    concat = new().quantization(0.05).operand((2, 3, 4), 0.02).operand((2, 5, 4), 0.04, -9).operand((2, 1, 4), 0.05)
    where = new().data((4, 1), "bool").operand((2, 4, 5)).operand((4, 5), 0.03, -2).quantization(0.06)
    found = {
        "QLinearConv": conv(0.02),
        "QLinearConv per axis": conv(PER_AXIS),
        "QLinearConv com.microsoft": conv(PER_AXIS, CONTRIB, channels_last=0),
        "QLinearConv strides": new().operand(IMAGE).weights((6, 2, 3, 3), "int8", 0.02).quantization(0.4)
        .model("QLinearConv", (2, 6, 2, 2), "", group=2, strides=[2, 2]),
        "QLinearConv auto_pad": new().operand(IMAGE).weights((4, 4, 3, 3)).quantization(0.4)
        .model("QLinearConv", IMAGE, "", auto_pad="SAME_UPPER"),
        "QLinearMatMul": matmul(0.02),
        "QLinearMatMul per axis": matmul(PER_AXIS),
        "QLinearMatMul of activations": new().operand((2, 3, 8)).operand((2, 8, 4), 0.03).quantization(0.1)
        .model("QLinearMatMul", (2, 3, 4), ""),
        "QLinearAdd": pair("QLinearAdd", IMAGE),
        "QLinearAdd broadcast": pair("QLinearAdd", (4, 1, 1)),
        "QLinearMul": pair("QLinearMul", IMAGE),
        "QLinearMul broadcast": pair("QLinearMul", (6,)),
        "QLinearAveragePool": new().operand(IMAGE).quantization(0.04).model("QLinearAveragePool", (2, 4, 2, 2), **window),
        "QLinearAveragePool padded": new().operand(IMAGE).quantization(0.04)
        .model("QLinearAveragePool", (2, 4, 3, 3), pads=[1, 1, 1, 1], count_include_pad=1, channels_last=0, **window),
        "QLinearGlobalAveragePool": new().operand(IMAGE).quantization(0.02)
        .model("QLinearGlobalAveragePool", (2, 4, 1, 1), channels_last=0),
        "QLinearConcat": concat.model("QLinearConcat", (2, 9, 4), axis=1),
        "QLinearLeakyRelu": one("QLinearLeakyRelu", 0.05, 0, alpha=0.25),
        "QLinearSigmoid": one("QLinearSigmoid", 1 / 256, -128),
        "QLinearSoftmax": one("QLinearSoftmax", 1 / 256, -128, axis=-1, opset=13),
        "QLinearSoftmax inner axis": one("QLinearSoftmax", 1 / 256, -128, axis=1, opset=13),
        "QLinearSoftmax before opset 13": one("QLinearSoftmax", 1 / 256, -128, axis=2, opset=12),
        "QLinearWhere": where.model("QLinearWhere", (2, 4, 5)),
        "QGemm": gemm(1, 0.02, real=False),
        "QGemm per axis": gemm(1, PER_AXIS, real=False),
        "QGemm columns": gemm(0, PER_AXIS, real=False),
        "QGemm without bias": gemm(1, 0.02, real=False, bias=False),
        "QGemm real": gemm(1, PER_AXIS, real=True),
        "QGemm real without bias": gemm(0, 0.02, real=True, bias=False),
        "QGemm factor": gemm(1, PER_AXIS, real=False, alpha=0.75),
        "QGemm factor real": gemm(0, 0.02, real=True, alpha=2.5),
        "MatMulIntegerToFloat": to_float(0.02),
        "MatMulIntegerToFloat per axis": to_float(PER_AXIS),
    }  # fmt: skip
    if dtype == "uint8":
        found["QLinearConv uint8 weights"] = conv(PER_AXIS, weights="uint8", zero_point=[1, 0, 2, 3])
    return found


CASES = {f"{name}, {dtype}": data for dtype in ("int8", "uint8") for name, data in cases(dtype).items()}


def nbits(depth: int, columns: int, block: int, points: bool, bias: bool, seed: int = 0, **attributes: Any) -> bytes:
    """A MatMulNBits with random weights."""
    random = np.random.default_rng(seed)
    blocks = -(-depth // block)
    node = OneNode("float32").data((3, depth)).const(random.integers(0, 256, (columns, blocks, block // 2)).astype(np.uint8))
    node.const(random.uniform(0.01, 0.1, columns * blocks).astype(np.float32))
    if points:
        node.const(random.integers(0, 256, columns * -(-blocks // 2)).astype(np.uint8))
    if bias:
        while len(node.x) < 5:
            node.absent()
        node.const(random.normal(size=columns).astype(np.float32))
    sizes = {"K": depth, "N": columns, "bits": 4, "block_size": block, **attributes}
    return node.model("MatMulNBits", (3, columns), version=21, **sizes)


def written(graph: Graph, form: str) -> tuple[bytes, Counter[tuple[str, str]]]:
    kept: Counter[tuple[str, str]] = Counter()
    model = build(graph, 0, {}, form=form, kept=kept)
    if all(graph[name].shape is not None for name in graph.outputs):
        onnx.checker.check_model(model)
    return model.SerializeToString(), kept


def outputs(data: bytes, feeds: dict[str, Array]) -> list[Array]:
    return list(OnnxRuntime(data, optimize=False).run(feeds).values())


def one_step(wanted: Array, found: Array) -> bool:
    """Whether stored integers differ by one at most, or real numbers by a few roundings."""
    if wanted.dtype.kind == "f":
        return bool(np.allclose(wanted, found, rtol=1e-5, atol=1e-5))
    return int(np.abs(wanted.astype(int) - found.astype(int)).max()) <= 1


def test_every_form_has_a_case() -> None:
    elsewhere = {"DynamicQuantizeMatMul", "GatherBlockQuantized", "MatMulNBits", "QLinearReduceMean"}
    tested = {name.split(",")[0].split(" ")[0] for name in CASES} | elsewhere
    assert tested == {name.removeprefix(f"{CONTRIB}.") for name in READERS}


@pytest.mark.parametrize("name", CASES)
def test_one_operator_there_and_back(name: str) -> None:
    """The same node is written again, with equal outputs; its QDQ form is within one step, and both are read as the same graph."""
    data = CASES[name]
    graph = onnx_graph(data, "one")
    assert all(op.kind != "Opaque" for op in graph.ops)
    again, kept = written(graph, "qoperator")
    assert not kept
    assert onnx_models.operators(again) == [item.replace(f"{CONTRIB}.QLinearConv", "QLinearConv") for item in onnx_models.operators(data)]
    feeds = onnx_models.random_inputs(data, 1)
    wanted = outputs(data, feeds)
    assert all(len(np.unique(item)) > 3 for item in wanted)
    np.testing.assert_array_equal(wanted[0], outputs(again, feeds)[0])
    assert diff(graph, onnx_graph(again, "one")) == []
    qdq, _ = written(graph, "qdq")
    assert not any("QLinear" in item or "QGemm" in item for item in onnx_models.operators(qdq))
    assert one_step(wanted[0], outputs(qdq, feeds)[0])
    assert diff(graph, onnx_graph(qdq, "one")) == []


@pytest.mark.cross_section
@pytest.mark.parametrize(("depth", "columns", "block", "points", "bias"), [
    (32, 8, 16, False, False), (64, 8, 32, True, False), (48, 3, 16, True, True), (40, 5, 32, True, False), (40, 4, 16, False, True),
])  # fmt: skip
def test_matmul_nbits(depth: int, columns: int, block: int, points: bool, bias: bool) -> None:
    """Blocks along K, the last of which may be incomplete; odd numbers of blocks share bytes of zero points."""
    data = nbits(depth, columns, block, points, bias)
    graph = onnx_graph(data, "one")
    (weights,) = (tensor for tensor in graph.constants() if tensor.is_quantized)
    assert (weights.dtype, weights.shape) == ("uint4", (depth, columns))
    assert weights.quantization is not None
    assert (weights.quantization.axis, weights.quantization.block_size) == (0, block)
    again, kept = written(graph, "qoperator")
    assert not kept
    assert onnx_models.operators(again) == ["Add"] * bias + [f"{CONTRIB}.MatMulNBits"]
    feeds = onnx_models.random_inputs(data, 1)
    if bias:  # MatMulNBits adds it before it rounds the sum
        np.testing.assert_allclose(outputs(data, feeds)[0], outputs(again, feeds)[0], rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(outputs(data, feeds)[0], outputs(again, feeds)[0])
    qdq, _ = written(graph, "qdq")
    assert onnx_models.operators(qdq) == ["Add"] * bias + ["DequantizeLinear", "MatMul"]
    for result in (again, qdq):
        assert diff(graph, onnx_graph(result, "one")) == []
    np.testing.assert_allclose(outputs(data, feeds)[0], outputs(qdq, feeds)[0], rtol=1e-4, atol=1e-4)


def test_matmul_nbits_damaged() -> None:
    model = onnx.load_from_string(nbits(64, 8, 32, True, False))
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones(15, np.float32), "c2"))
    with refused(InvalidModelError, "block-scales", holds=(15, 8, 64, 32)):
        onnx_graph(model.SerializeToString(), "one")


def test_reduce_mean_is_read() -> None:
    """onnxruntime has no kernel of QLinearReduceMean, so that it is written between DequantizeLinear and QuantizeLinear."""
    data = OneNode("int8").operand(IMAGE, 0.05, 3).quantization(0.05).model("QLinearReduceMean", (2, 4), axes=[2, 3], keepdims=0)
    with refused(RuntimeRefusedError, "model-refused", holds=("QLinearReduceMean",)):
        OnnxRuntime(data)
    graph = onnx_graph(data, "one")
    found, kept = written(graph, "qoperator")
    assert kept == {("ReduceMean", "onnxruntime has no kernel of QLinearReduceMean"): 1}
    values = np.arange(-144, 144).clip(-128, 127).astype(np.int8).reshape(IMAGE)
    wanted = np.rint(values.astype(np.float64).mean((2, 3)))
    assert np.abs(outputs(found, {"x0": values})[0] - wanted).max() <= 1
    assert diff(graph, onnx_graph(found, "one")) == []


def test_absent_zero_points_are_0() -> None:
    node = OneNode("int8").data(IMAGE).const(np.float32(0.1)).absent().data(IMAGE).const(np.float32(0.2)).absent().const(np.float32(0.3))
    graph = onnx_graph(node.model("QLinearAdd", IMAGE), "one")
    quantizations = [graph[name].quantization for name in (*graph.ops[0].inputs, *graph.ops[0].outputs)]
    assert [(q.step, q.point) for q in quantizations if q] == [(np.float32(v), 0) for v in (0.1, 0.2, 0.3)]
    assert graph["y"].dtype == "int8"


def carried() -> dict[str, bytes]:
    """Models of operators that stay opaque, or of a form of one that is not covered."""
    last = (2, 6, 6, 4)
    conv = OneNode("uint8").operand(last).weights((4, 4, 1, 1)).quantization(0.4)
    return {
        "QLinearGlobalAveragePool": OneNode("uint8").operand(last).quantization(0.02)
        .model("QLinearGlobalAveragePool", (2, 1, 1, 4), channels_last=1),
        "QLinearConv": conv.model("QLinearConv", last, CONTRIB, channels_last=1),
        "QGemm": OneNode("uint8").operand((3, 8)).weights((8, 4)).absent().quantization(0.2).model("QGemm", (3, 4), alpha=-0.5),
        "MatMulNBits": nbits(64, 8, 32, True, False, accuracy_level=4),
        "QLinearSoftmax": OneNode("uint8").operand((2, 4, 8)).quantization(1 / 256, -128)
        .model("QLinearSoftmax", (2, 4, 8), axis=1, opset=11),
        "QAttention": onnx_models.dynamic("attention"),
        "QEmbedLayerNormalization": onnx_models.dynamic("embed_layer_norm"),
    }  # fmt: skip


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("scale", [0.1, PER_AXIS], ids=["one scale", "scales of columns"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rounded", ["inside", "before", "weights computed"])
def test_products_that_round_their_data_when_they_run(rounded: str, bias: bool, scale: Any, points: bool) -> None:
    """DynamicQuantizeMatMul, and MatMulIntegerToFloat after DynamicQuantizeLinear, as onnxruntime's optimizer leaves them in a file."""
    random = np.random.default_rng(0)
    node = OneNode("float32").data((2, 3, 8))
    if rounded == "before":
        node.x = ["stored"]
    weights = random.integers(-90, 90, (8, 4)).astype(np.int8)
    node = node.data((8, 4), "int8") if rounded == "weights computed" else node.const(weights)
    if rounded == "before":
        node.x.append("scale")
    node = node.const(np.asarray(scale, np.float32))
    if rounded == "before":
        node.x.append("point")
    node = node.const(np.full(np.shape(scale), 2, np.int8)) if points else node.absent()
    node = node.const(random.normal(size=4).astype(np.float32)) if bias else node
    data = node.model("MatMulIntegerToFloat" if rounded == "before" else "DynamicQuantizeMatMul", (2, 3, 4))
    if rounded == "before":
        model = onnx.load_from_string(data)
        model.graph.node.insert(0, helper.make_node("DynamicQuantizeLinear", ["x0"], ["stored", "scale", "point"]))
        data = model.SerializeToString()
    graph = onnx_graph(data, "one")
    kinds = ["DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul"] if rounded == "weights computed" else ["MatMul"]
    assert sorted(op.kind for op in graph.ops) == sorted([*kinds, *["Add"] * bias])
    feeds = onnx_models.random_inputs(data, 1)
    wanted = outputs(data, feeds)[0]
    assert len(np.unique(wanted)) > 20
    for form in ("qdq", "qoperator"):
        found, _ = written(graph, form)
        np.testing.assert_allclose(outputs(found, feeds)[0], wanted, rtol=1e-6, atol=1e-6)


def test_a_factor_and_transposed_data_of_qgemm() -> None:
    node = OneNode("uint8").operand((8, 3)).weights((8, 4), "int8", PER_AXIS).bias(4).quantization(0.1)
    data = node.model("QGemm", (3, 4), transA=1, alpha=0.3)
    graph = onnx_graph(data, "one")
    assert [op.kind for op in graph.ops] == ["Transpose", "Gemm"]
    feeds = onnx_models.random_inputs(data, 1)
    np.testing.assert_array_equal(outputs(data, feeds)[0], outputs(written(graph, "qoperator")[0], feeds)[0])


@pytest.mark.parametrize("op_type", carried())
def test_carried_through_unchanged(op_type: str) -> None:
    data = carried()[op_type]
    graph = onnx_graph(data, "one")
    assert op_type in [op["op_type"] for op in graph.ops if op.kind == "Opaque"]
    feeds = onnx_models.random_inputs(data, 1)
    for form in ("qdq", "qoperator"):
        found, _ = written(graph, form)
        assert onnx_models.operators(found) == onnx_models.operators(data)
        for wanted, value in zip(outputs(data, feeds), outputs(found, feeds), strict=True):
            np.testing.assert_array_equal(wanted, value)
        assert diff(graph, onnx_graph(found, "one")) == []


@pytest.mark.parametrize("activation", ["relu", "relu6", "relu_n1_to_1"])
def test_a_fused_activation_is_a_clip_of_integers(activation: str) -> None:
    weights = constant("w", np.arange(-8, 8, dtype=np.int8).reshape(4, 4, 1, 1), q(0.05))
    tensors = [Tensor("x", "int8", (1, 4, 3, 3), None, q(0.05, 1)), weights, Tensor("y", "int8", None, None, q(0.05, -20))]
    attributes = {**CONV, "pads": (0, 0, 0, 0), "activation": activation}
    graph = make([Op("Conv", ("x", "w"), ("y",), attributes)], tensors, "x", "y")
    found, kept = written(graph, "qoperator")
    assert not kept
    assert onnx_models.operators(found) == ["Clip", "QLinearConv"]
    feeds = onnx_models.random_inputs(found, 1)
    feeds["x"][0, :, 0, :2] = (-128, 127)  # sums beyond both ends of the quantization
    wanted = outputs(written(graph, "qdq")[0], feeds)[0]
    assert (wanted.min(), wanted.max()) == {"relu": (-20, 127), "relu6": (-20, 100), "relu_n1_to_1": (-40, 0)}[activation]
    assert one_step(wanted, outputs(found, feeds)[0])
    assert diff(graph, onnx_graph(found, "test")) == []


POOL = {"strides": (1, 1), "pads": (0, 0, 0, 0), "kernel_shape": (2, 2), "arithmetic": "ties_up", "data_format": "channels_first"}

REASONS: dict[str, tuple[list[Op], list[Tensor]]] = {
    "QLinearAdd takes int8 and uint8, not int16": (
        [Op("Add", ("a", "b"), ("y",))],
        [Tensor(name, "int16", (2, 3), None, q(0.1)) for name in "aby"],
    ),
    "QLinearAdd takes one type, not int8 and uint8": (
        [Op("Add", ("a", "b"), ("y",))],
        [Tensor("a", "int8", (2, 3), None, q(0.1)), Tensor("b", "uint8", (2, 3), None, q(0.1)), Tensor("y", "uint8", None, None, q(0.1))],
    ),
    "QLinearMul takes quantized operands and results alone": (
        [Op("Mul", ("a", "b"), ("y",))],
        [Tensor("a", "int8", (2, 3), None, q(0.1)), Tensor("b", "float32", (2, 3)), Tensor("y", "int8", None, None, q(0.1))],
    ),
    "QOperator has no xnnpack arithmetic": (
        [Op("Add", ("a", "b"), ("y",), {"arithmetic": "xnnpack"})],
        [Tensor(name, "int8", (2, 3), None, q(scale)) for name, scale in (("a", 0.1), ("b", 0.0917), ("y", 0.021))],
    ),
    "QOperator has no Tanh": ([Op("Tanh", ("a",), ("y",))], [Tensor(name, "int8", (2, 3), None, q(0.1)) for name in "ay"]),
    "QLinearMatMul takes int8 data with int8 weights alone": (
        [Op("MatMul", ("a", "w"), ("y",))],
        [Tensor("a", "int8", (2, 3), None, q(0.1)), constant("w", np.ones((3, 4), np.uint8), q(0.1)),
         Tensor("y", "int8", None, None, q(1))],
    ),
    "QLinearMatMul gives uint8 for uint8 data, not int8": (
        [Op("MatMul", ("a", "w"), ("y",))],
        [Tensor("a", "uint8", (2, 3), None, q(0.1)), constant("w", np.ones((3, 4), np.int8), q(0.1)),
         Tensor("y", "int8", None, None, q(1))],
    ),
    "QGemm takes an int32 bias, not float32": (
        [Op("Gemm", ("a", "w", "c"), ("y",))],
        [Tensor("a", "int8", (2, 3), None, q(0.1)), constant("w", np.ones((4, 3), np.int8), q(0.1)),
         constant("c", np.ones(4, np.float32)), Tensor("y", "int8", None, None, q(1))],
    ),
    "Softmax has no beta": (
        [Op("Softmax", ("a",), ("y",), {"beta": 2.0})],
        [Tensor("a", "int8", (2, 3), None, q(0.1)), Tensor("y", "int8", None, None, q(1 / 256, -128))],
    ),
    "QLinearAveragePool rounds ties to even, not up": (
        [Op("AveragePool", ("a",), ("y",), POOL)],
        [Tensor(name, "int8", (1, 2, 4, 4) if name == "a" else None, None, q(0.1)) for name in "ay"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_what_stays_between_dequantize_and_quantize(reason: str) -> None:
    """The reason is counted, the result is the QDQ form's, and onnxruntime runs it."""
    ops, tensors = REASONS[reason]
    names = " ".join(tensor.name for tensor in tensors if tensor.name in "ab")
    graph = make(ops, tensors, names, "y")
    assert reason in {text for _, text in written(graph, "qoperator")[1]}
    found, _ = written(graph, "qoperator")
    assert found == written(graph, "qdq")[0]
    if "int16" not in reason:
        OnnxRuntime(found)


NETWORKS = [name for name in onnx_models.STATIC if name.startswith(("conv", "mobile", "encoder", "concat", "where", "average_pool-"))]


@pytest.mark.parametrize("name", [name for name in NETWORKS if name.endswith("-qdq")])
def test_qdq_to_qoperator_and_back(name: str) -> None:
    """The same graph, and outputs within a few steps of the QDQ model's."""
    data = onnx_models.CASES[name]()
    graph = onnx_graph(data, "network")
    found, kept = written(graph, "qoperator")
    assert {kind for kind, _ in kept} <= {"ConvTranspose", "LayerNormalization", "Gelu", "HardSigmoid"}
    assert diff(graph, onnx_graph(found, "network")) == []
    back, _ = written(onnx_graph(found, "network"), "qdq")
    assert diff(graph, onnx_graph(back, "network")) == []
    feeds = onnx_models.random_inputs(data, 1)
    np.testing.assert_array_equal(outputs(data, feeds)[0], outputs(back, feeds)[0])


@pytest.mark.parametrize("name", [name for name in NETWORKS if name.endswith("-qoperator")])
def test_qoperator_models_are_written_with_equal_outputs(name: str) -> None:
    data = onnx_models.CASES[name]()
    graph = onnx_graph(data, "network")
    found, _ = written(graph, "qoperator")
    feeds = onnx_models.random_inputs(data, 1)
    np.testing.assert_array_equal(outputs(data, feeds)[0], outputs(found, feeds)[0])
    assert diff(graph, onnx_graph(found, "network")) == []


def test_convert_takes_a_form(tmp_path: Path) -> None:
    source = tmp_path / "source.onnx"
    source.write_bytes(onnx_models.CASES["mobile-S8S8-pc-qdq"]())
    report = convert(source, tmp_path / "qoperator.onnx", form="qoperator")
    assert report.target == "generic"
    assert "QLinearConv" in onnx_models.operators((tmp_path / "qoperator.onnx").read_bytes())
    convert(tmp_path / "qoperator.onnx", tmp_path / "qdq.onnx", form="qdq")
    assert "QLinearConv" not in onnx_models.operators((tmp_path / "qdq.onnx").read_bytes())
    assert diff(load(source), load(tmp_path / "qdq.onnx")) == []
    with refused(OptionError, "unknown-value", holds=("'qlinear'", "qdq", "qoperator")):
        convert(source, tmp_path / "other.onnx", form="qlinear")
    assert not (tmp_path / "other.onnx").exists()


def test_what_stays_is_in_the_report(tmp_path: Path) -> None:
    source = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    report = convert(source, tmp_path / "x.onnx", form="qoperator")
    assert [change.text for change in report.changes if change.by == "onnx"] == [
        "3 Add stay in QDQ form: QOperator has no xnnpack arithmetic",
        "1 AveragePool stays in QDQ form: QLinearAveragePool rounds ties to even, not away",
        "1 Softmax stays in QDQ form: QOperator has no tflite_softmax arithmetic",
    ]
    report = convert(source, tmp_path / "y.onnx", form="qdq")
    assert not [change.text for change in report.changes if change.by == "onnx"]


#: Models with operators that no reader covers.
NOT_COVERED = ("coral_lstm_mnist_int8", "mww_okay_nabu_streaming_int8", "tflm_keyword_svdf_int8")
TFLITE = sorted(path.stem for path in FIXTURES.glob("*.tflite") if path.stem not in NOT_COVERED)


@pytest.mark.parametrize("name", TFLITE)
def test_tflite_to_qdq_to_qoperator_to_qdq(name: str, tmp_path: Path) -> None:
    """The graph of the first ONNX model is that of the last, and their outputs are equal."""
    first, second, third = (tmp_path / f"{number}.onnx" for number in range(3))
    convert(FIXTURES / f"{name}.tflite", first)
    convert(first, second, form="qoperator")
    convert(second, third, form="qdq")
    assert diff(load(first), load(third)) == []
    feeds = onnx_models.random_inputs(first.read_bytes(), 1)
    for wanted, found in zip(outputs(first.read_bytes(), feeds), outputs(third.read_bytes(), feeds), strict=True):
        np.testing.assert_array_equal(wanted, found)


@pytest.mark.parametrize("opset", [13, 15, 19, 21, 23])
def test_every_opset_has_the_forms(opset: int) -> None:
    graph = onnx_graph(onnx_models.CASES["mobile-S8S8-pc-qdq"](), "network")
    wanted, _ = written(graph, "qoperator")
    found = build(graph, opset, {}, form="qoperator").SerializeToString()
    assert onnx.load_from_string(found).opset_import[0].version == opset
    assert onnx_models.operators(found) == onnx_models.operators(wanted)
    feeds = onnx_models.random_inputs(wanted, 1)
    np.testing.assert_array_equal(outputs(wanted, feeds)[0], outputs(found, feeds)[0])


@pytest.mark.end_to_end
def test_onnx2onnx_on_the_command_line(tmp_path: Path) -> None:
    source, result = tmp_path / "source.onnx", tmp_path / "result.onnx"
    source.write_bytes(onnx_models.CASES["div_sub_tanh-S8S8-qdq"]())
    command = [sys.executable, "-m", "qconvert", "onnx2onnx", str(source), str(result), "--form", "qoperator"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "QLinearConv" in onnx_models.operators(result.read_bytes())
    done = subprocess.run([*command[:-1], "nonsense", "--force"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "'nonsense'" in done.stderr and "qoperator" in done.stderr
