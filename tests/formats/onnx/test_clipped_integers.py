"""A Clip between QuantizeLinear and DequantizeLinear (QCDQ, as Brevitas writes it), and Clips of integers elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loaded import onnx_graph
from onnx_nodes import equal, session

from qconvert.formats.onnx.writer import build
from qconvert.graph import Graph

pytestmark = pytest.mark.onnxruntime

RNG = np.random.default_rng(4)
DATA = RNG.normal(0, 2, (1, 3, 8, 8)).astype(np.float32)
WEIGHTS = RNG.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)
BODY = """{
    xq = QuantizeLinear(x, sx, zx)
    xc = Clip(xq, low, high)
    xd = DequantizeLinear(xc, sx, zx)
    wq = QuantizeLinear<axis=0>(w, sw, zw)
    wc = Clip(wq, lowest_weight, highest_weight)
    wd = DequantizeLinear<axis=0>(wc, sw, zw)
    c = Conv(xd, wd)
    cq = QuantizeLinear(c, so, zo)
    cc = Clip(cq, low, high)
    y = DequantizeLinear(cc, so, zo)
}"""


def network(body: str, dtype: str, zero_point: int, bounds: tuple[int, int], scales: Any) -> Any:
    from onnx import numpy_helper, parser

    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,8,8] x) => (float y) {body}')
    constants = {
        "sx": np.float32(0.031), "zx": np.array(zero_point, dtype), "so": np.float32(0.043), "zo": np.array(zero_point, dtype),
        "low": np.array(bounds[0], dtype), "high": np.array(bounds[1], dtype), "w": WEIGHTS, "sw": scales,
        "zw": np.zeros(np.shape(scales), np.int8), "lowest_weight": np.int8(-7), "highest_weight": np.int8(7),
    }  # fmt: skip
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def through(model: Any) -> tuple[Graph, Any]:
    """The graph and the written model, whose outputs are the source's."""
    graph = onnx_graph(model.SerializeToString(), "g")
    written = build(graph, 0, {})
    before, after = (session(m.SerializeToString()).run(None, {"x": DATA}) for m in (model, written))
    assert equal(before, after)
    return graph, written


def integer_clips(model: Any) -> set[tuple[int, ...]]:
    from onnx import numpy_helper

    values = {value.name: numpy_helper.to_array(value) for value in model.graph.initializer}
    found = [tuple(values[name] for name in node.input[1:]) for node in model.graph.node if node.op_type == "Clip"]
    assert all(bound.dtype.kind in "iu" for bounds in found for bound in bounds)
    return {tuple(int(bound) for bound in bounds) for bounds in found}


@pytest.mark.parametrize("scales", [np.float32(0.05), np.array([0.05, 0.02, 0.1, 0.3], np.float32)], ids=["tensor", "axis"])
@pytest.mark.parametrize(
    ("dtype", "zero_point", "bounds"),
    [("int8", 0, (-127, 127)), ("int8", 0, (-8, 7)), ("int8", 5, (-100, 99)), ("uint8", 128, (1, 255)), ("uint8", 3, (0, 15))],
)
def test_bounds_come_back_as_the_same_integers(dtype: str, zero_point: int, bounds: tuple[int, int], scales: Any) -> None:
    body = BODY if np.ndim(scales) else BODY.replace("<axis=0>", "")
    graph, written = through(network(body, dtype, zero_point, bounds, scales))
    assert integer_clips(written) == {bounds}
    (conv,) = (op for op in graph.ops if op.kind == "Conv")
    weights = graph[conv.inputs[1]]
    assert weights.data is not None and weights.dtype == "int8"
    assert (weights.data.min(), weights.data.max()) == (-7, 7)
    assert graph[conv.outputs[0]].is_quantized


def test_bounds_of_the_whole_type_are_nothing() -> None:
    graph, written = through(network(BODY, "int8", 0, (-128, 127), np.array([0.05, 0.02, 0.1, 0.3], np.float32)))
    assert [op.kind for op in graph.ops] == ["Quantize", "Conv", "Dequantize"]
    assert not integer_clips(written)


def test_clipped_integers_with_two_labels_keep_their_integers() -> None:
    body = """{
        xq = QuantizeLinear(x, sx, zx)
        xc = Clip(xq, low, high)
        a = DequantizeLinear(xc, sx, zx)
        b = DequantizeLinear(xc, so, zo)
        y = Add(a, b)
    }"""
    _, written = through(network(body, "int8", 2, (-50, 60), np.float32(1)))
    assert integer_clips(written) == {(-50, 60)}


@pytest.mark.cross_section
@pytest.mark.parametrize(("op_type", "approximate"), [("Gelu", "none"), ("FastGelu", "tanh")])
def test_onnxruntimes_own_gelu_stays_exact(op_type: str, approximate: str) -> None:
    from onnx import parser

    header = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[1,3,8,8] x) => (float[1,3,8,8] y)'
    graph, written = through(parser.parse_model(f"{header} {{ y = com.microsoft.{op_type}(x) }}"))
    assert [(op.kind, op["approximate"]) for op in graph.ops] == [("Gelu", approximate)]
    newer = build(graph, 20, {})
    assert [node.op_type for node in newer.graph.node] == ["Gelu"]
    before, after = (session(m.SerializeToString()).run(None, {"x": DATA}) for m in (written, newer))
    assert equal(before, after)
