"""The reach of onnxruntime's kernels, which multiply by a float32 (24 bits)."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.kernel_faults import covers_all, kernel_fault
from qconvert.graph import Array, Graph, Op
from qconvert.operators import kind_of, reduced_count
from qconvert.runtimes.reach import Reach, Rule, fine, is_linear

__all__ = ["reach"]


def reach(graph: Graph, op: Op, exact: Array, kernels: str) -> Reach:
    """See plugins.Runtime."""
    if graph[op.outputs[0]].dtype in ("int16", "uint16"):
        summed = _summed_means(graph, op)
        return np.maximum(np.maximum(0.02, np.abs(exact) * 2.0**-20), max(_partial_sums(graph, op, exact), summed)), summed > 0.1
    return _RULES.get(op.kind, _float)(graph, op, exact)


def _partial_sums(graph: Graph, op: Op, exact: Array) -> float:
    """Sums of n products in float32, whose parts may be as large as the largest result; their errors add up as sqrt(n) of them do (Higham,
    Accuracy and Stability of Numerical Algorithms, section 2.8)."""
    sizes = graph[op.inputs[1]].static_shape if kind_of(op).sums_products else None
    count = 1.0 if not sizes else float(np.prod(sizes[1:])) if kind_of(op).has_weights else float(sizes[max(len(sizes) - 2, 0)])
    return float(np.sqrt(count) * 2.0**-23 * np.abs(exact).max(initial=0))


def _summed_means(graph: Graph, op: Op) -> float:
    """Likewise of means of float values, whose scale may be far below that of the data: the parts are as large as these may be."""
    given, result = (graph[name].quantization for name in (op.inputs[0], op.outputs[0]))
    if op.kind != "ReduceMean" or given is None or result is None:
        return 0.0
    largest = 2.0**15 * float(given.scale.max()) / float(result.scale.min())
    return float(np.sqrt(reduced_count(graph, op) or 1) * 2.0**-23 * largest)


def _sum(graph: Graph, op: Op, exact: Array) -> Reach:
    return 10 * fine(exact), False


def _product(graph: Graph, op: Op, exact: Array) -> Reach:
    """A real bias is rounded to input scale * weight scale (weight_bias_quantization.cc), which few bits leave coarse."""
    data, weights, result = (graph[name] for name in (*op.inputs[:2], op.outputs[0]))
    found = 10 * fine(exact)
    bias = graph[op.inputs[2]] if op.has(2) else None
    grids = data.quantization, weights.quantization, result.quantization
    if bias is None or bias.is_quantized or any(grid is None for grid in grids):
        return found, False
    steps = [float(grid.scale.max()) for grid in grids if grid is not None]
    lost = steps[0] * steps[1] / steps[2] / 2
    return found + lost, lost > 0.1


def _averaged(graph: Graph, op: Op, exact: Array) -> Reach:
    """Where it divides by more elements than ONNX counts, averages come nearer to zero."""
    if not kernel_fault(graph, op) or covers_all(graph, op):
        return _sum(graph, op, exact)
    return 10 * fine(exact) + np.abs(exact), True


def _resize(graph: Graph, op: Op, exact: Array) -> Reach:
    return (_sum if is_linear(op) else _float)(graph, op, exact)


def _softmax(graph: Graph, op: Op, exact: Array) -> Reach:
    """It multiplies by the whole part of 1 / scale (qlinear_softmax.cc); where that overflows, see overflows_onnxruntime.py."""
    result = graph[op.outputs[0]].quantization
    if result is None:
        return np.full(exact.shape, 0.01), False
    steps = np.floor(1 / float(result.scale[0]))
    found = 0.01 + np.abs(exact) * (1 - steps * float(result.scale[0]))
    return found, bool((found > 0.1).any())


def _float(graph: Graph, op: Op, exact: Array) -> Reach:
    return np.full(exact.shape, 0.01), False


_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("MatMul", "Mul", "Add", "Sub", "ReduceMean", "ReduceSum", "GlobalAveragePool", "Requantize",
         "LeakyRelu"), _sum,
    ),
    "AveragePool": _averaged,
    "Conv": _product,
    "ConvTranspose": _product,
    "Gemm": _product,
    "Resize": _resize,
    "Softmax": _softmax,
}  # fmt: skip
