"""The reach of LiteRT's kernels.

XNNPACK multiplies by a float32 (24 bits); TFLite's reference kernels round twice, which moves a tie by 2^-(shift + 1); XNNPACK's add has
20-bit, its requantize and leaky_relu 8-bit multipliers; resizing has 10- and 11-bit weights; int16 has 16-bit multipliers.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from qconvert.graph import Array, Graph, Op
from qconvert.runtimes.reach import UNKNOWN, Reach, Rule, fine, is_linear, smallest_shift

__all__ = ["reach"]


def reach(graph: Graph, op: Op, exact: Array, kernels: str) -> Reach:
    """See plugins.Runtime; the kernels are "default" (XNNPACK), or "reference" and "micro", which round alike."""
    if graph[op.outputs[0]].dtype == "int16":  # 16-bit multipliers
        return np.maximum(0.02, np.abs(exact) * 2.0**-15), True
    rules = _XNNPACK if kernels == "default" else _REFERENCE
    return rules.get(op.kind, _table)(graph, op, exact)


def _second_rounding(graph: Graph, op: Op, elements: float = 1.0) -> float:
    """2^-(e + 1), e the right shift of the smallest multiplier in use (facts of TFLite's MultiplyByQuantizedMultiplier)."""
    shift = smallest_shift(graph, op, elements)
    return UNKNOWN if shift is None else float(2.0 ** -(shift + 1))


def _fixed_rounding(graph: Graph, op: Op, size: float) -> float:
    """A second rounding by a multiplier that does not come from the scales alone."""
    return UNKNOWN if smallest_shift(graph, op) is None else size


def _rounded_twice(graph: Graph, op: Op, exact: Array) -> Reach:
    return fine(exact) + _second_rounding(graph, op), False


def _added_twice(graph: Graph, op: Op, exact: Array) -> Reach:
    return fine(exact) + _fixed_rounding(graph, op, 2e-3), False


def _rounded_once(graph: Graph, op: Op, exact: Array) -> Reach:
    """XNNPACK's sums of products; 4-bit weights are left to TFLite's own kernels."""
    if len(op.inputs) > 1 and op.inputs[1] and "int4" in graph[op.inputs[1]].dtype:
        return _rounded_twice(graph, op, exact)
    return fine(exact), False


def _added_once(graph: Graph, op: Op, exact: Array) -> Reach:
    return np.maximum(fine(exact), 4e-4), False


def _mean_of_sum(graph: Graph, op: Op, exact: Array) -> Reach:
    """The reference kernel rounds the rescaled sum, then the quotient."""
    return np.full(exact.shape, 0.51), True


def _eight_bits(graph: Graph, op: Op, exact: Array) -> Reach:
    """8 fractional bits of a multiplier up to 1 and more, applied to up to 255 steps of the input; one of 1/4 to 1/2 has a shift of 1."""
    return np.maximum(_fixed_rounding(graph, op, 0.26), np.abs(exact) * 2.0**-8 + 2.0**-9), True


def _interpolated(graph: Graph, op: Op, exact: Array, fraction_of_size: bool) -> Reach:
    if not is_linear(op):
        return _table(graph, op, exact)
    sizes = graph[op.outputs[0]].static_shape or (1024,)
    coordinate = (max(sizes) if fraction_of_size else 1) * 2.0**-10
    return np.full(exact.shape, 0.02 + 255 * coordinate), True


def _averaged(graph: Graph, op: Op, exact: Array, twice: bool) -> Reach:
    """On one grid an average is rounded once; else it is a convolution by 1 / elements of the window."""
    rescaled = graph[op.inputs[0]].quantization != graph[op.outputs[0]].quantization
    window = float(np.prod(op["kernel_shape"]))
    return fine(exact) + (_second_rounding(graph, op, window) if rescaled and twice else 0), False


def _table(graph: Graph, op: Op, exact: Array) -> Reach:
    """Tables of 256 floats and 16-bit chains."""
    return np.full(exact.shape, 0.03), False


_BOTH: dict[str, Rule] = {"Requantize": _eight_bits, "LeakyRelu": _eight_bits, "MatMul": _rounded_twice}
_XNNPACK: dict[str, Rule] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "Mul", "ReduceMean", "ReduceSum", "GlobalAveragePool"), _rounded_once),
    **dict.fromkeys(("Add", "Sub"), _added_once),
    **_BOTH,  # XNNPACK takes no second operand of a MatMul that is computed; TFLite's own kernel does
    "Resize": partial(_interpolated, fraction_of_size=False),
    "AveragePool": partial(_averaged, twice=False),
}
_REFERENCE: dict[str, Rule] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "Mul"), _rounded_twice),
    **dict.fromkeys(("Add", "Sub"), _added_twice),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "GlobalAveragePool"), _mean_of_sum),
    **_BOTH,
    "Resize": partial(_interpolated, fraction_of_size=True),
    "AveragePool": partial(_averaged, twice=True),
}
