"""ONNX models, of one node too, and onnxruntime without optimizations, for tests of reading and writing.

model = node_model("Clip", 13, [data, lowest, highest], constants=(1, 2))
outputs = session(model.SerializeToString()).run(None, {"i0": data})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def session(data: bytes) -> Any:
    """An onnxruntime session that runs every node as it stands, on one thread."""
    from qconvert.runtimes.onnxruntime import OnnxRuntime

    return OnnxRuntime(data, optimize=False).session


def model_of(graph: Any, opset: int = 17) -> Any:
    """The ModelProto of a GraphProto with operators of ai.onnx, in a version that the runtimes of the tests load."""
    from onnx import helper

    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10 if opset >= 21 else 9)


def node_model(
    op_type: str,
    opset: int,
    inputs: Sequence[Any],
    constants: Sequence[int] = (),
    outputs: int = 1,
    *,
    free: bool = False,
    **attributes: Any,
) -> Any:
    """A ModelProto of one node with the inputs i0, i1 … and the outputs o0, o1 ….

    Args:
        op_type: of ai.onnx.
        opset: the version of ai.onnx.
        inputs: arrays whose types and shapes the inputs have; None for one that is absent.
        constants: the positions of inputs that are initializers.
        outputs: how many there are.
        free: whether the sizes of inputs are left open.
        attributes: of the node.
    """
    from onnx import TensorProto, ValueInfoProto, helper, numpy_helper, shape_inference

    names = ["" if value is None else f"i{index}" for index, value in enumerate(inputs)]
    values, initializers = [], []
    for index, value in enumerate(inputs):
        if value is None:
            continue
        if index in constants:
            initializers.append(numpy_helper.from_array(np.asarray(value), names[index]))
            continue
        shape = [None] * value.ndim if free else list(value.shape)
        values.append(helper.make_tensor_value_info(names[index], helper.np_dtype_to_tensor_dtype(value.dtype), shape))
    results = [f"o{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, **attributes)
    graph = helper.make_graph([node], "node", values, [ValueInfoProto(name=name) for name in results], initializers)
    model = shape_inference.infer_shapes(model_of(graph, opset))
    for value in model.graph.output:
        if not value.type.tensor_type.elem_type:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def feeds(inputs: Sequence[Any], constants: Sequence[int] = ()) -> dict[str, Any]:
    """What a session of node_model() takes."""
    return {f"i{index}": value for index, value in enumerate(inputs) if value is not None and index not in constants}


def equal(a: Any, b: Any) -> bool:
    """Whether two outputs hold the same bits; NaN equals NaN."""
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(equal, a, b))
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(a.tolist() == b.tolist())
    known = ~np.isnan(a)
    return bool((known == ~np.isnan(b)).all()) and a[known].tobytes() == b[known].tobytes()
