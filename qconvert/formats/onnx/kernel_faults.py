"""Where onnxruntime's integer kernels are wrong, so that an operator needs a form that is not fused to them (docs/measured/kernels.md).

Found by running every kernel at its edge sizes (tests/targets/test_edges_onnxruntime.py), with onnxruntime 1.31.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # targets are listed without numpy
    from qconvert.graph import Graph, Op

__all__ = ["KERNEL_FAULTS", "covers_all", "kernel_fault"]

_BYTES = ("int8", "uint8")
_FLOAT32 = (2 - 2.0**-23) * 2.0**127


def kernel_fault(graph: Graph, op: Op) -> str:
    """What onnxruntime's integer kernel would do wrong with an operator; "" if nothing."""
    return KERNEL_FAULTS[op.kind](graph, op) if op.kind in KERNEL_FAULTS else ""


def _softmax(graph: Graph, op: Op) -> str:
    """qlinear_softmax.cc: its table ends at e^-5 * (largest float32) / size, which is then multiplied by floor(1 / scale)."""
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    if data.dtype not in _BYTES or result.dtype != data.dtype or result.quantization is None or not result.quantization.is_per_tensor:
        return ""
    if data.shape is None or 0 in data.shape:
        return "QLinearSoftmax gives no result without elements" if data.shape else ""
    size = data.shape[op["axis"]]
    if not isinstance(size, int):
        return ""
    largest = math.exp(max(0.0, math.log(_FLOAT32 / size) - 5))
    if largest * math.floor(1 / float(result.quantization.scale[0])) < _FLOAT32 * (1 - 1e-6):
        return ""
    return f"QLinearSoftmax overflows float32 over an axis of {size} with results of so small a scale"


def _matmul(graph: Graph, op: Op) -> str:
    """qlinear_matmul.cc leaves its result as it is where there is nothing to add."""
    data, other, result = (graph[name] for name in (*op.inputs[:2], op.outputs[0]))
    if not data.is_quantized or not result.is_quantized or data.shape is None or other.shape is None:
        return ""
    depth = data.shape[-2 if op["trans_a"] else -1]
    return "QLinearMatMul gives no zeros for sums without products" if depth == 0 else ""


def _global_average_pool(graph: Graph, op: Op) -> str:
    """qgavgpool.cpp of MLAS: data scale / (result scale * positions) has to lie in 2^-32 to 2^8."""
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    if data.dtype not in _BYTES or result.dtype != data.dtype or data.quantization is None or result.quantization is None:
        return ""
    if data.shape is None or len(data.shape) < 3:
        return ""
    sizes = [size for size in data.shape[2:] if isinstance(size, int)]  # those known only at run time are 1 at least
    factor = float(data.quantization.scale[0]) / float(result.quantization.scale[0]) / max(1, math.prod(sizes))
    if 2.0**-32 <= factor < 2.0**8:
        return ""
    return f"QLinearGlobalAveragePool refuses to multiply by {factor:.3g}"


def _average_pool(graph: Graph, op: Op) -> str:
    """qlinear_pool.cc hands an average of all positions to the kernel of GlobalAveragePool, and divides by whole windows where padding
    counts, also by what of them hangs over the end (ceil_mode), which ONNX does not count."""
    if covers_all(graph, op):
        return _global_average_pool(graph, op)
    narrow = graph[op.inputs[0]].dtype in _BYTES and graph[op.outputs[0]].dtype in _BYTES
    return "QLinearAveragePool counts what hangs over the end" if narrow and op["ceil_mode"] and op["count_include_pad"] else ""


def covers_all(graph: Graph, op: Op) -> bool:
    """Whether a pool has one window, of all positions."""
    shape = graph[op.inputs[0]].shape
    return shape is not None and tuple(op["kernel_shape"]) == tuple(shape[2:]) and op["auto_pad"] == "NOTSET" and not any(op["pads"])


KERNEL_FAULTS: dict[str, Callable[[Graph, Op], str]] = {
    "Softmax": _softmax, "MatMul": _matmul, "GlobalAveragePool": _global_average_pool, "AveragePool": _average_pool,
}  # fmt: skip
