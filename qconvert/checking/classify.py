"""Explains the differences of one operator, element by element, from the exact value that both sides round.

With the same inputs, source and result approximate one real number r, in steps of the output's scale. A kernel whose arithmetic is
off by at most e gives an integer within 1/2 + e of r. So a difference is explained exactly if both integers lie within their
kernels' reach of r; then r is near a tie, or the kernels are coarse. The share of elements whose r lies that near to a tie is the
predicted rate: an upper bound for the share that differs. Whatever lies outside is unexplained, and is a fault.

The reach of each kernel comes from its source (see docs/fidelity.md for the measurements): XNNPACK and onnxruntime multiply by a
float32 (24 bits); TFLite's reference kernels round twice, which moves a tie by 2^-(shift + 1); XNNPACK's add has 20-bit, its
requantize and leaky_relu 8-bit multipliers; resizing has 10- and 11-bit weights; int16 has 16-bit multipliers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qconvert.graph import Array, Graph, Op, integer_range

__all__ = ["CLASSES", "Finding", "classify", "kernel_reach"]

CLASSES = ("equal", "one rounding", "approximate", "unexplained")

_FLOAT32 = 2.0**-21  # a few roundings of 24 bits, as a share of the value
_LEAST = 1e-4
_TIE = 1e-6
#: Steps that a bias rounded to int32 may add are below this, those of an operator's result that is rounded twice above.
_MUCH = 0.1
#: Kinds that sum up products, or are one.
_SUMS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Mul", "Add", "Sub", "ReduceMean", "ReduceSum", "GlobalAveragePool")


@dataclass(frozen=True, slots=True)
class Finding:
    """What is true of one operator output.

    Attributes:
        verdict: one of CLASSES.
        reason: rounding tie, order of requantization, coarse arithmetic, saturation …
        equal: share of equal elements.
        largest: largest difference, in steps of the output's scale (of the range for float outputs).
        predicted_rate: the share that may differ at most.
        unexplained: how many elements are unexplained.
    """

    verdict: str
    reason: str
    equal: float
    largest: float
    predicted_rate: float
    unexplained: int


def kernel_reach(graph: Graph, op: Op, exact: Array, kernels: str) -> tuple[Array, bool]:
    """How far from r one side's arithmetic may be before it rounds.

    Args:
        graph, op: the operator.
        exact: r, in steps from the zero point, float64.
        kernels: LiteRT's "default" (XNNPACK) or "reference", or "onnxruntime".

    Returns: an array like `exact`, and whether the arithmetic is so coarse that the operator counts as approximate.
    """
    size = np.abs(exact)
    fine = np.maximum(_LEAST, size * _FLOAT32)
    wide = graph[op.outputs[0]].dtype == "int16"
    if kernels == "onnxruntime":
        return _onnxruntime_reach(graph, op, size, fine, wide)
    if wide:  # 16-bit multipliers
        return np.maximum(0.02, size * 2.0**-15), True
    if op.kind in _SUMS:
        if kernels == "reference" and op.kind in ("ReduceMean", "ReduceSum", "GlobalAveragePool"):
            return np.full(exact.shape, 0.51), True  # rounds the rescaled sum, then the quotient
        # XNNPACK takes neither 4-bit weights nor a second operand that is computed; TFLite's own kernels do.
        without = op.kind == "MatMul" or (len(op.inputs) > 1 and "int4" in graph[op.inputs[1]].dtype)
        if kernels == "reference" or without:
            return fine + _double_rounding(graph, op), False
        return np.maximum(fine, 4e-4 if op.kind in ("Add", "Sub") else 0), False
    if op.kind in ("Requantize", "LeakyRelu"):
        # 8 fractional bits of a multiplier up to 1 and more, applied to up to 255 steps of the input.
        return np.maximum(_double_rounding(graph, op), size * 2.0**-8 + 2.0**-9), True
    if op.kind == "Resize" and op["mode"] == "linear":
        sizes = graph[op.outputs[0]].static_shape or (1024,)
        coordinate = max(sizes) * 2.0**-10 if kernels == "reference" else 2.0**-10
        return np.full(exact.shape, 0.02 + 255 * coordinate), True
    if op.kind == "AveragePool":
        rescaled = graph[op.inputs[0]].quantization != graph[op.outputs[0]].quantization
        return fine + (_double_rounding(graph, op) if rescaled and kernels == "reference" else 0), False
    return np.full(exact.shape, 0.03), False  # tables of 256 floats and 16-bit chains


def _onnxruntime_reach(graph: Graph, op: Op, size: Array, fine: Array, wide: bool) -> tuple[Array, bool]:
    """The reach of onnxruntime's kernels; see kernel_reach()."""
    if wide:  # float32 sums
        return np.maximum(0.02, size * 2.0**-20), False
    if op.kind in (*_SUMS, "Requantize", "LeakyRelu", "AveragePool") or (op.kind == "Resize" and op["mode"] == "linear"):
        return 10 * fine, False
    if op.kind == "Softmax":  # it multiplies by the whole part of 1 / scale (qlinear_softmax.cc)
        result = graph[op.outputs[0]].quantization
        lost = 0.0 if result is None else 1 - np.floor(1 / float(result.scale[0])) * float(result.scale[0])
        reach = 0.01 + size * lost
        return reach, bool((reach > 0.1).any())
    return np.full(size.shape, 0.01), False


def _double_rounding(graph: Graph, op: Op) -> float:
    """2^-(e + 1), e the right shift of the smallest multiplier in use (facts of TFLite's MultiplyByQuantizedMultiplier)."""
    scales = [graph[name].quantization for name in op.inputs[:2] if name]
    result = graph[op.outputs[0]].quantization
    if result is None or any(scale is None for scale in scales):
        return 0.02
    product = float(np.prod([float(np.max(scale.scale)) for scale in scales if scale is not None])) / float(result.scale[0])
    if op.kind in ("Add", "Sub"):
        return 2e-3
    if op.kind in ("Requantize", "LeakyRelu"):
        return 0.26  # a multiplier between 1/4 and 1/2 has a shift of 1
    if op.kind == "AveragePool":  # a convolution by 1 / elements of the window
        product /= float(np.prod(op["kernel_shape"]))
    shift = max(0, -int(np.frexp(product)[1]))
    return float(2.0 ** -(shift + 1))


def classify(
    graph: Graph, op: Op, source: Array, result: Array, exact: Array | None, kernels: tuple[str, str], further: float = 0.0
) -> Finding:
    """The finding for one operator output.

    Args:
        graph, op: the operator in the source's graph.
        source: stored values that the source's kernel gave.
        result: what the result gave for the same inputs, in the source's storage type and layout.
        exact: the real-valued result, or None where integers are only moved or compared.
        kernels: the source's and the result's; see kernel_reach().
        further: what further roundings add to the result's reach, in steps; see _MUCH.
    """
    if source.shape != result.shape:
        return Finding("unexplained", f"shape {result.shape} instead of {source.shape}", 0.0, float("inf"), 0.0, source.size)
    tensor = graph[op.outputs[0]]
    if source.dtype.kind == "f":
        return _classify_float(source, result)
    difference = np.abs(source.astype(np.int64) - result.astype(np.int64))
    differing = difference != 0
    equal = 1.0 - float(differing.mean()) if source.size else 1.0
    largest = float(difference.max(initial=0))
    if exact is None or tensor.quantization is None:
        verdict, reason = ("unexplained", "moved or compared integers differ") if differing.any() else ("equal", "integers are moved")
        return Finding(verdict, reason, equal, largest, 0.0, int(differing.sum()))
    scale, zero_point = float(tensor.quantization.scale[0]), int(tensor.quantization.zero_point[0])
    low, high = integer_range(tensor.dtype)
    steps = exact / scale
    (reach_source, coarse_source), (reach_result, coarse_result) = (kernel_reach(graph, op, steps, side) for side in kernels)
    reach_result = reach_result + further
    position = np.clip(steps + zero_point, low, high)
    missed_source = np.abs(source - position) > 0.5 + reach_source
    missed_result = np.abs(result - position) > 0.5 + reach_result
    near_tie = np.abs(np.abs(steps - np.floor(steps)) - 0.5) <= reach_source + reach_result
    predicted = float(near_tie.mean()) if steps.size else 0.0
    unexplained = int((differing & (missed_source | missed_result)).sum())
    if unexplained:
        side = "the source's kernel is outside its known arithmetic" if not (differing & missed_result).any() else "the result is wrong"
        return Finding("unexplained", side, equal, largest, predicted, unexplained)
    if not differing.any():
        return Finding("equal", "", equal, largest, predicted, 0)
    ties = np.abs(np.abs(steps - np.floor(steps)) - 0.5)[differing] <= _TIE
    coarse = coarse_source or coarse_result or further > _MUCH
    reason = "rounding tie" if ties.all() else "order of requantization"
    if coarse and not ties.all():
        whose = "the source's" if coarse_source else "LiteRT's"
        whose = "onnxruntime's" if kernels[0 if coarse_source else 1] == "onnxruntime" else whose
        reason = f"coarse arithmetic of {whose} kernel"
    if further > _MUCH and not (coarse_source or ties.all()):
        reason = "rounded more than once, by several operators in place of one"
    return Finding("approximate" if coarse else "one rounding", reason, equal, largest, predicted, 0)


def _classify_float(source: Array, result: Array) -> Finding:
    """Float outputs agree within 1e-4 of the range of the source's values."""
    a, b = source.astype(np.float64), result.astype(np.float64)
    span = float(a.max(initial=0) - a.min(initial=0)) or 1.0
    difference = np.abs(a - b) / span
    equal = float((source == result).mean()) if source.size else 1.0
    largest = float(difference.max(initial=0))
    if largest == 0:
        return Finding("equal", "", equal, largest, 0.0, 0)
    if largest <= 1e-4:
        return Finding("approximate", "float arithmetic", equal, largest, 1.0, 0)
    return Finding("unexplained", "float values differ", equal, largest, 0.0, int((difference > 1e-4).sum()))
