"""Fused activations: the real ranges that they leave, and the stored integers; and which activations, roundings and limits a file cannot
state, so that a writer notes them in the metadata (STATED_ATTRIBUTES, STATED_LIMITS).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from qconvert.arithmetic import round_half_away, round_half_even
from qconvert.arithmetic.storage import integer_range
from qconvert.graph.schema import Graph, Op, Tensor

#: Lower and upper bound of real values, None where there is none.
Bounds = tuple[float | None, float | None]
#: The real range that each fused activation leaves.
ACTIVATIONS: Mapping[str, Bounds] = {
    "": (None, None),
    "relu": (0.0, None),
    "relu6": (0.0, 6.0),
    "relu_n1_to_1": (-1.0, 1.0),
}


def activation_bounds(op: Op) -> Bounds:
    """The real range that the fused activation of an operator leaves; see ACTIVATIONS."""
    return ACTIVATIONS[str(op.attributes.get("activation", ""))]


def interval_of(bounds: Bounds) -> tuple[float, float]:
    """Bounds as numbers, infinite where there is none."""
    lower, upper = bounds
    return (-math.inf if lower is None else lower), (math.inf if upper is None else upper)


def clip_range(tensor: Tensor, bounds: Bounds) -> tuple[int, int]:
    """The stored integers that a fused activation leaves: [quantize(lower bound), quantize(upper bound)], within the quantization's limits.

    TFLite computes the same limits (CalculateActivationRangeQuantized, kernel_util.cc): zero_point + round(bound / scale).
    """
    assert tensor.quantization is not None
    low, high = tensor.quantization.limits(tensor.dtype)
    scale, zero_point = tensor.quantization.step, tensor.quantization.point

    def quantize_bound(bound: float) -> int:
        if not bound:
            return zero_point
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # validation names a scale that is no positive number
            quotient = float(np.float32(bound) / np.float32(scale))
        quotient = 0.0 if math.isnan(quotient) else min(max(quotient, -(2.0**40)), 2.0**40)
        return zero_point + int(np.float32(quotient) + np.float32(math.copysign(0.5, quotient)))  # int() truncates

    lower, upper = bounds
    lowest = low if lower is None else min(max(low, quantize_bound(lower)), high)
    highest = high if upper is None else max(min(high, quantize_bound(upper)), low)
    return lowest, highest


def simplest_activation(tensor: Tensor, limits: tuple[int, int]) -> str | None:
    """The first of ACTIVATIONS that leaves just these stored integers: "" if they are the whole quantization; None if none does."""
    return next((name for name, bounds in ACTIVATIONS.items() if clip_range(tensor, bounds) == limits), None)


def is_exact(bounds: Bounds, quantization: Tensor) -> bool:
    """Whether a bound rounds to one stored integer however ties are rounded, so that clipping integers is clipping float values."""
    assert quantization.quantization is not None
    if quantization.dtype not in ("int8", "uint8", "int16", "uint16", "int4", "uint4"):
        return False
    low, high = integer_range(quantization.dtype)
    for bound in bounds:
        if not bound or not math.isfinite(bound):
            continue
        with np.errstate(over="ignore"):
            steps = np.float32(bound) / quantization.quantization.scale[0]
        if np.isfinite(steps) and abs(steps) % 1 != 0.5:
            continue  # no tie
        even, away = (
            int(np.clip(f(steps) + quantization.quantization.zero_point[0], low, high)) for f in (round_half_even, round_half_away)
        )
        if even != away:
            return False
    return True


def find_unstated_attributes(graph: Graph, is_decomposed: Callable[[Op], bool] = lambda op: False) -> dict[str, dict[str, str]]:
    """Activations that their quantization implies or simplifies, and the ties of plain averages, by the operator's result.

    Args:
        graph: that is written.
        is_decomposed: whether an AveragePool is written in a form that says how it rounds.
    """
    found: dict[str, dict[str, str]] = {}
    for op in graph.ops:
        result = graph[op.outputs[0]] if op.outputs and op.outputs[0] else None
        if result is None or result.quantization is None or not result.quantization.is_per_tensor or "float" in result.dtype:
            continue
        name = str(op.attributes.get("activation", ""))
        if name and simplest_activation(result, clip_range(result, ACTIVATIONS[name])) != name:
            found.setdefault(result.name, {})["activation"] = name
        if op.kind == "AveragePool" and op["arithmetic"] in ("ties_up", "ties_away") and not is_decomposed(op):
            found.setdefault(result.name, {})["arithmetic"] = str(op["arithmetic"])
    return found


def narrow_constants(graph: Graph) -> dict[str, tuple[int | None, int | None]]:
    """The smallest and largest stored value of constants that use a part of their range (weights without -128), None for the type's."""
    quantizations = ((tensor.name, tensor.quantization) for tensor in graph.constants())
    return {
        name: (quantization.quant_min, quantization.quant_max)
        for name, quantization in quantizations
        if quantization is not None and (quantization.quant_min is not None or quantization.quant_max is not None)
    }
