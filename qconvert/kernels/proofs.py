"""Results of kernels for all codes of one or two operands of 8 bits: two kernels with equal results are proved equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import Difference, compare_requantizations
from qconvert.evaluate import evaluate_op
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op
from qconvert.kernels.accumulators import UnfitError, accumulator_of
from qconvert.kernels.kernel import Kernel, activated_range
from qconvert.kernels.products import Requantizer
from qconvert.operators import kind_of
from qconvert.operators.properties import ELEMENTWISE

__all__ = ["all_codes", "compare_products", "integers_for_all", "tried_tolerance"]

_BYTES = ("int8", "uint8")
_WITH_16_BITS = (*_BYTES, "int16", "uint16")


def all_codes(graph: Graph, op: Op, types: tuple[str, ...] = _BYTES) -> list[Array] | None:
    """Return the codes of one or two operands, shaped to broadcast to all pairs; None unless elementwise, with one scale for each tensor.

    Args:
        graph, op: the operator.
        types: of operands and result; those of two operands are bytes.
    """
    tensors = [graph[name] for name in (*op.inputs, *op.outputs) if name]
    if kind_of(op).layout is not ELEMENTWISE or len(op.outputs) != 1 or not 2 <= len(tensors) <= 3:
        return None
    types = types if len(tensors) == 2 else _BYTES
    if any(tensor.dtype not in types or tensor.quantization is None or not tensor.quantization.is_per_tensor for tensor in tensors):
        return None
    codes = [codes_of(tensor.dtype) for tensor in tensors[:-1]]
    return [codes[0].reshape(-1, 1), codes[1]] if len(codes) > 1 else codes


def integers_for_all(graph: Graph, op: Op, kernel: Kernel | None) -> Array | None:
    """Compute a kernel's integers for all_codes(): by its reference, or without one the exact value rounded once; None if unknown."""
    codes = all_codes(graph, op)
    if codes is None:
        return None
    if kernel is None or kernel.reference is None:
        return evaluate_op(graph, op, list(codes))[0].stored
    found = kernel.compute_integers(graph, op, codes)
    return found.ways[0] if found is not None and len(found.ways) == 1 else None


def compare_products(graph: Graph, op: Op, first: Requantizer, second: Requantizer) -> Difference | None:
    """Compare two kernels of sums of products over every accumulator that the operator's weights allow, by the thresholds of each channel;
    None if the range of the accumulator is unknown."""
    try:
        found = accumulator_of(graph, replace(op, attributes={k: v for k, v in op.attributes.items() if k != "arithmetic"}))
    except UnfitError:
        return None
    result = graph[op.outputs[0]].quantization
    if found is None or result is None:
        return None
    multipliers = [kernel.multiplier(graph, op).reshape(-1, 1) for kernel in (first, second)]
    point = int(result.zero_point[0])

    def steps(kernel: Requantizer, multiplier: Array) -> Callable[[Array], Array]:
        return lambda acc: kernel.steps(np.asarray(acc, np.int64), multiplier) + point

    functions = [steps(kernel, multiplier) for kernel, multiplier in zip((first, second), multipliers, strict=True)]
    return compare_requantizations(functions[0], functions[1], activated_range(graph, op), found.low, found.high, multipliers[0])


def tried_tolerance(graph: Graph, op: Op, kernel: Kernel) -> float | None:
    """Return how far the integers of a kernel's reference are from the exact values on any input, in steps beyond a rounding.

    None without a reference or all_codes(), or if the reference overflows on some input.
    """
    codes, quantization = all_codes(graph, op, _WITH_16_BITS), graph[op.outputs[0]].quantization
    found = kernel.compute_integers(graph, op, codes) if codes is not None else None
    if codes is None or found is None or found.fault or quantization is None:
        return None
    real = evaluate_op(graph, op, list(codes))[0].real
    if real is None:
        return None
    position = np.clip(
        real / float(quantization.scale[0]) + int(quantization.zero_point[0]), *quantization.limits(graph[op.outputs[0]].dtype)
    )
    return max(0.0, *(float(np.abs(way - position).max() - 0.5) for way in found.ways))
