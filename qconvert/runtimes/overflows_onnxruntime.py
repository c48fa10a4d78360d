"""What onnxruntime's integer kernels give where their arithmetic overflows."""

from __future__ import annotations

from qconvert.arithmetic import onnxruntime_softmax
from qconvert.graph import Array, Graph, Op

__all__ = ["overflows"]


def overflows(graph: Graph, op: Op, inputs: list[Array | None], kernels: str) -> tuple[Array, ...] | None:
    """See plugins.Runtime. Softmax alone is known to overflow, over an axis of one element or at scales below that of any softmax."""
    values = inputs[0] if op.kind == "Softmax" and inputs else None
    if values is None or not values.size:
        return None
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    given, grid = data.quantization, result.quantization
    if given is None or grid is None or not (given.is_per_tensor and grid.is_per_tensor):
        return None
    if data.dtype != result.dtype or data.dtype not in ("int8", "uint8") or float(op["beta"]) != 1:
        return None
    found, overflowed = onnxruntime_softmax(values, float(given.scale[0]), grid, result.dtype, int(op["axis"]))
    return (found,) if overflowed else None
