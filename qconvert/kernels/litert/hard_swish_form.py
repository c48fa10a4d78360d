"""A bounded search for the scales and slopes of a HardSwish in float32 with the integers of TFLite's kernel for all codes.

The ties of a curve cannot be shifted by a factor, as those of a line can (forms.py). But the form has a few parameters, and changes of less
than a hundredth matter only where a result is near a tie.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic import tflite_hard_swish
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op, Quantization, integer_range

__all__ = ["HardSwishForm", "hard_swish_form"]

#: How many forms are tried at once, and how often; a form that is found at all is found after 320 on average.
_TRIED, _TIMES = 128, 12
#: Numbers are moved by shares of these powers of two.
_LEAST, _MOST = -15.0, -7.0


class HardSwishForm(NamedTuple):
    """x * clip(alpha * x + beta, 0, 1), with the scale by which stored integers become x; all float32."""

    scale: float
    alpha: float
    beta: float


def hard_swish_form(graph: Graph, op: Op) -> HardSwishForm | None:
    """Return the form in float32 with the integers of TFLite's HARD_SWISH for each of 256 codes; None if none is found, or sides have
    several scales."""
    given, result = graph[op.inputs[0]], graph[op.outputs[0]]
    quantizations = given.quantization, result.quantization
    if {given.dtype, result.dtype} - {"int8", "uint8"} or quantizations[0] is None or quantizations[1] is None:
        return None
    if not (quantizations[0].is_per_tensor and quantizations[1].is_per_tensor) or given.dtype != result.dtype:
        return None
    sides = [(float(quantization.scale[0]), int(quantization.zero_point[0])) for quantization in quantizations if quantization is not None]
    return _search_form(sides[0], sides[1], given.dtype)


@lru_cache(maxsize=1024)
def _search_form(given: tuple[float, int], result: tuple[float, int], dtype: str) -> HardSwishForm | None:
    own, output = (Quantization.per_tensor(*side) for side in (given, result))
    codes = codes_of(dtype)
    wanted = tflite_hard_swish(codes, own, output, dtype)
    steps = (codes.astype(np.int64) - given[1]).astype(np.float32)
    rng, best, middle = np.random.default_rng(0), codes.size + 1, np.ones(3)
    for _ in range(_TIMES):
        shares = middle * (1 + rng.normal(0, 1, (_TRIED, 3)) * 2.0 ** rng.uniform(_LEAST, _MOST, (_TRIED, 1)))
        shares[0] = middle
        numbers = (shares * (given[0], 1 / 6, 0.5)).astype(np.float32)
        off = _count_differences(steps, numbers, output, wanted)
        place = int(off.argmin())
        if off[place] < best:
            best, middle = int(off[place]), shares[place]
        if not best:
            return HardSwishForm(*(float(number) for number in numbers[place]))
    return None


def _count_differences(steps: Array, numbers: Array, output: Quantization, wanted: Array) -> Array:
    """Count for each form the codes with other integers, whether or not the runtime rounds alpha * x before it adds beta."""
    scale, alpha, beta = (numbers[:, place : place + 1] for place in range(3))
    real = steps * scale
    low, high = integer_range(wanted.dtype.name)
    counts = []
    for curve in (real * alpha + beta, (real.astype(np.float64) * alpha + beta).astype(np.float32)):
        product = real * np.clip(curve, np.float32(0), np.float32(1))
        stored = np.clip(np.rint(product / output.scale[0]) + output.zero_point[0], low, high)
        counts.append((stored != wanted).sum(axis=1))
    return np.asarray(np.maximum(counts[0], counts[1]))
