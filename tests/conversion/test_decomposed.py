"""Functions that exporters decompose, with QuantizeLinear and DequantizeLinear between all of their parts, as quantize_static leaves them:
each part has its own rounding, so that each converts, and is equal or explained, by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of

from qconvert import check, convert

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

Array = np.ndarray[Any, np.dtype[Any]]
SHAPE = (2, 5, 8)
_LAST = {"axes": [-1], "keepdims": 1}
#: Operators as (kind, inputs, output, attributes); numbers are constants, "x" is the data and the last output the result.
FUNCTIONS: dict[str, list[tuple[str, list[Any], str, dict[str, Any]]]] = {
    "SiLU": [("Sigmoid", ["x"], "s", {}), ("Mul", ["x", "s"], "y", {})],
    "HardSwish by Clip": [("Add", ["x", 3], "a", {}), ("Clip", ["a", 0, 6], "c", {}), ("Mul", ["x", "c"], "m", {}),
                          ("Div", ["m", 6], "y", {})],
    "HardSwish by HardSigmoid": [("HardSigmoid", ["x"], "s", {"alpha": 1 / 6}), ("Mul", ["x", "s"], "y", {})],
    "Gelu by Tanh": [("Pow", ["x", 3], "p", {}), ("Mul", ["p", 0.044715], "q", {}), ("Add", ["x", "q"], "r", {}),
                     ("Mul", ["r", 0.7978846], "s", {}), ("Tanh", ["s"], "t", {}), ("Add", ["t", 1], "u", {}),
                     ("Mul", ["x", "u"], "v", {}), ("Mul", ["v", 0.5], "y", {})],
    "LayerNormalization": [("ReduceMean", ["x"], "m", _LAST), ("Sub", ["x", "m"], "d", {}), ("Pow", ["d", 2], "p", {}),
                           ("ReduceMean", ["p"], "v", _LAST), ("Add", ["v", 0.001], "e", {}), ("Sqrt", ["e"], "s", {}),
                           ("Div", ["d", "s"], "n", {}), ("Mul", ["n", 1.2], "g", {}), ("Add", ["g", 0.3], "y", {})],
    "Softmax": [("ReduceMax", ["x"], "m", _LAST), ("Sub", ["x", "m"], "d", {}), ("Exp", ["d"], "e", {}),
                ("ReduceMean", ["e"], "s", _LAST), ("Div", ["e", "s"], "y", {})],
    "Mish": [("Softplus", ["x"], "s", {}), ("Tanh", ["s"], "t", {}), ("Mul", ["x", "t"], "y", {})],
    "Abs, Sqrt, Reciprocal": [("Abs", ["x"], "a", {}), ("Sqrt", ["a"], "s", {}), ("Add", ["s", 1], "t", {}),
                              ("Reciprocal", ["t"], "y", {})],
}  # fmt: skip


def real_model(name: str, outputs: list[str], extra: list[Any] | None = None, constants: dict[str, Array] | None = None) -> Any:
    """The function in float, or with other nodes."""
    nodes, found = [], dict(constants or {})
    for kind, inputs, output, attributes in FUNCTIONS[name]:
        names = [item if isinstance(item, str) else f"{output}_{index}" for index, item in enumerate(inputs)]
        found.update((key, np.float32(item)) for key, item in zip(names, inputs, strict=True) if not isinstance(item, str))
        nodes.append(helper.make_node(kind, names, [output], **attributes))
    graph = helper.make_graph(
        extra or nodes,
        "spelled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(item, TensorProto.FLOAT, None) for item in outputs],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in found.items()],
    )
    return model_of(graph)


def with_pairs(name: str, dtype: str) -> Any:
    """The function with a pair after the data and each of its parts, constants included, by the ranges that a run gives."""
    plain = real_model(name, [output for _, _, output, _ in FUNCTIONS[name]])
    x = np.random.default_rng(0).normal(0, 1.5, SHAPE).astype(np.float32)
    names = [value.name for value in plain.graph.output]
    values = {"x": x, **dict(zip(names, onnxruntime.InferenceSession(plain.SerializeToString()).run(names, {"x": x}), strict=True))}
    constants: dict[str, Array] = {}
    nodes: list[Any] = []

    def pair(tensor: str, low: float, high: float) -> str:
        scale, lowest = max(max(high, 0) - min(low, 0), 1e-6) / 255, -128 if dtype == "int8" else 0
        constants[f"{tensor}_scale"] = np.float32(scale)
        constants[f"{tensor}_zero"] = np.asarray(np.rint(lowest - min(low, 0) / scale), dtype)
        quantization = [f"{tensor}_scale", f"{tensor}_zero"]
        nodes.append(helper.make_node("QuantizeLinear", [tensor, *quantization], [f"{tensor}_stored"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{tensor}_stored", *quantization], [f"{tensor}_real"]))
        return f"{tensor}_real"

    pair("x", float(x.min()), float(x.max()))
    for kind, inputs, output, attributes in FUNCTIONS[name]:
        given = []
        for index, item in enumerate(inputs):
            if isinstance(item, str):
                given.append(f"{item}_real")
            elif kind in ("Clip", "Pow"):  # bounds and exponents stay real
                given.append(f"{output}_{index}")
            else:
                given.append(pair(f"{output}_{index}", item, item))
        nodes.append(helper.make_node(kind, given, [output], **attributes))
        pair(output, float(values[output].min()), float(values[output].max()))
    nodes.append(helper.make_node("Identity", [f"{FUNCTIONS[name][-1][2]}_real"], ["result"]))
    return real_model(name, ["result"], nodes, constants)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_part_is_equal_or_explained_in_tflite(name: str, dtype: str, tmp_path: Path) -> None:
    onnx.save(with_pairs(name, dtype), tmp_path / "source.onnx")
    convert(tmp_path / "source.onnx", tmp_path / "result.tflite")
    report = check(tmp_path / "source.onnx", tmp_path / "result.tflite", samples=2, per_op=True)
    assert report.passed, report.problems
