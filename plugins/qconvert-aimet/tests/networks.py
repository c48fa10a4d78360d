"""Networks that the tests quantize: made here, so that no file is needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def _constants(seed: int, **shapes: tuple[int, ...]) -> list[onnx.TensorProto]:
    rng = np.random.default_rng(seed)
    values = {name: rng.normal(size=shape) / np.sqrt(np.prod(shape[1:])) for name, shape in shapes.items()}
    return [numpy_helper.from_array(value.astype(np.float32), name.replace("__", ".")) for name, value in values.items()]


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[onnx.TensorProto],
    inputs: dict[str, Sequence[int]],
    outputs: dict[str, Sequence[int]],
    opset: int = 17,
) -> onnx.ModelProto:
    given, wanted = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in each.items()] for each in (inputs, outputs))
    graph = helper.make_graph(list(nodes), "network", given, wanted, list(constants))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(made)
    return made


def convolutions() -> onnx.ModelProto:
    """Conv, Relu, depthwise Conv, an addition, a transposed convolution, an average and a linear layer."""
    nodes = [
        helper.make_node("Conv", ["x", "stem.weight", "stem.bias"], ["stem"], "/stem", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["stem"], ["stem_relu"], "/stem_relu"),
        helper.make_node("Conv", ["stem_relu", "depth.weight", "depth.bias"], ["depth"], "/depth", pads=[1, 1, 1, 1], group=8),
        helper.make_node("Add", ["stem_relu", "depth"], ["sum"], "/sum"),
        helper.make_node("Conv", ["sum", "point.weight"], ["point"], "/point"),
        helper.make_node("ConvTranspose", ["point", "up.weight", "up.bias"], ["up"], "/up", strides=[2, 2]),
        helper.make_node("Relu", ["up"], ["up_relu"], "/up_relu"),
        helper.make_node("GlobalAveragePool", ["up_relu"], ["mean"], "/mean"),
        helper.make_node("Flatten", ["mean"], ["flat"], "/flat"),
        helper.make_node("Gemm", ["flat", "head.weight", "head.bias"], ["y"], "/head", transB=1),
    ]
    constants = _constants(
        7, stem__weight=(8, 3, 3, 3), stem__bias=(8,), depth__weight=(8, 1, 3, 3), depth__bias=(8,), point__weight=(8, 8, 1, 1),
        up__weight=(8, 6, 2, 2), up__bias=(6,), head__weight=(10, 6), head__bias=(10,),
    )  # fmt: skip
    return model(nodes, constants, {"x": [1, 3, 8, 8]}, {"y": [1, 10]})


def dense() -> onnx.ModelProto:
    """Two matrix products, the first with its weights inputs first, and a linear layer with transposed ones."""
    nodes = [
        helper.make_node("MatMul", ["x", "a.weight"], ["a"], "/a"),
        helper.make_node("Relu", ["a"], ["a_relu"], "/a_relu"),
        helper.make_node("Gemm", ["a_relu", "b.weight", "b.bias"], ["b"], "/b", transB=1),
        helper.make_node("Sigmoid", ["b"], ["b_sigmoid"], "/b_sigmoid"),
        helper.make_node("Gemm", ["b_sigmoid", "c.weight", "c.bias"], ["y"], "/c"),
    ]
    constants = _constants(3, a__weight=(64, 32), b__weight=(64, 32), b__bias=(64,), c__weight=(64, 5), c__bias=(5,))
    return model(nodes, constants, {"x": [4, 64]}, {"y": [4, 5]})


def attention() -> onnx.ModelProto:
    """One head of attention with a normalization in front."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "norm.weight", "norm.bias"], ["n"], "/norm"),
        *(helper.make_node("MatMul", ["n", f"{name}.weight"], [name], f"/{name}") for name in "qkv"),
        helper.make_node("Transpose", ["k"], ["kt"], "/kt", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["s"], "/s"),
        helper.make_node("Softmax", ["s"], ["p"], "/p", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"], "/o"),
        helper.make_node("Add", ["o", "x"], ["y"], "/y"),
    ]
    constants = _constants(5, norm__weight=(16,), norm__bias=(16,), q__weight=(16, 16), k__weight=(16, 16), v__weight=(16, 16))
    return model(nodes, constants, {"x": [1, 6, 16]}, {"y": [1, 6, 16]})
