"""Models with custom operators, of TFLite and of a domain of ONNX that belongs to nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from tflite_models import OpSpec, TensorSpec, model

OPTIONS: dict[str, Any] = {"alpha": 0.3, "n": 5, "name": "hé", "list": [1, 2, 3], "on": True, "deep": {"x": [[1.5]]}, "op_type": "x"}
CONV = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}


def custom_model(code: str | bytes = "My-Op.2", options: dict[str, Any] | bytes = OPTIONS, dtype: str = "int8") -> bytes:
    """A custom operator between two convolutions, with an absent input and a constant."""
    rng = np.random.default_rng(0)
    point = 0 if dtype == "int8" else 128
    w = TensorSpec("w", (4, 3, 3, 4), "int8", 0.02, 0, data=rng.integers(-127, 127, (4, 3, 3, 4)).astype("int8"))
    if dtype == "uint8":
        w = TensorSpec("w", (4, 3, 3, 4), "uint8", 0.02, 128, data=rng.integers(1, 255, (4, 3, 3, 4)).astype("uint8"))
    x, a, d = (TensorSpec(name, (1, 8, 8, 4), dtype, scale, point + 3) for name, scale in (("x", 0.5), ("a", 0.7), ("d", 0.7)))
    c = TensorSpec("c", (1, 8, 8, 4), dtype, 0.25, point + 7)
    scales = (np.float32(0.5) * np.float32(0.02), np.float32(0.25) * np.float32(0.02))
    biases = [TensorSpec(f"b{i}", (4,), "int32", scale, 0, data=np.arange(4, dtype="int32")) for i, scale in enumerate(scales)]
    k = TensorSpec("k", (2,), "float32", data=np.array([1.5, 2.5], "float32"))
    ops = [
        OpSpec("CONV_2D", ["x", "w", "b0"], ["a"], CONV),
        OpSpec("CODE", ["a", None, "k"], ["c"], options if isinstance(options, dict) else {}, custom=True, version=3),
        OpSpec("CONV_2D", ["c", "w", "b1"], ["d"], CONV),
    ]
    return altered(model(ops, [x, w, *biases, a, c, d, k], ["x"], ["d"]), code, options if isinstance(options, bytes) else None)


def altered(data: bytes, code: str | bytes | None, options: bytes | None = None) -> bytes:
    """The model with another code, and other bytes as options, of its custom operators."""
    from qconvert.formats.flatbuffers import pack_model, unpack_view
    from qconvert.formats.tflite.schema import root

    found = unpack_view(root(data))
    for item in found.operatorCodes:
        if item.customCode is not None:
            item.customCode = code
    for op in found.subgraphs[0].operators:
        if op.customOptions is not None and options is not None:
            op.customOptions = np.frombuffer(options, np.uint8)
    return pack_model(found)


def foreign_model(**attributes: Any) -> onnx.ModelProto:
    """A node of a foreign domain between two convolutions in float."""
    w = np.random.default_rng(0).normal(size=(3, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Twist", ["a", "", "k"], ["b"], domain="my.domain", name="twisted", **attributes),
        helper.make_node("Conv", ["b", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    x, b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 6, 6]) for name in "xby")
    constants = [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(np.array([3], np.int64), "k")]
    graph = helper.make_graph(nodes, "g", [x], [y], constants, value_info=[b])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 4)], ir_version=10)
