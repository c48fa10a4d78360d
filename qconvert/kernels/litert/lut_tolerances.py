"""Tolerances of TFLite's int16 lookup tables: lines between 513 points over the whole range of the input.

Each point is shifted by half the error of the line in the middle, and rounded (LUTPopulate, tensorflow/lite/kernels/internal/common.h and
reference/integer_ops/lut.h). The error of the lines is known for each of the 65,536 inputs; an exact value determines the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qconvert.graph import Array, Graph, Op

__all__ = ["line_tolerance"]

#: A point is rounded and moved by a rounded amount, of which two roundings are part.
_ROUNDED = 1.5
_STEPS, _EACH = 512, 128


def _gelu(values: Array) -> Array:
    from math import erf

    return np.array([0.5 * value * (1 + erf(value / 2**0.5)) for value in values.reshape(-1).tolist()]).reshape(values.shape)


def _gelu_by_tanh(values: Array) -> Array:
    return np.asarray(0.5 * values * (1 + np.tanh((2 / np.pi) ** 0.5 * (values + 0.044715 * values**3))))


_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {"Exp": np.exp, "Log": np.log, "Rsqrt": lambda values: 1 / np.sqrt(values)}
#: What stands for values outside of a function's domain: the lowest or the highest integer.
_OUTSIDE = {"Log": -32768.0, "Rsqrt": 32767.0}


def line_tolerance(graph: Graph, op: Op, exact: Array) -> Array | None:
    """Return how far such a kernel's integers may be from the exact values before the last rounding; None if scales are unknown.

    Args:
        graph, op: the operator.
        exact: in steps of the result.
    """
    quantizations = [graph[name].quantization for name in (op.inputs[0], op.outputs[0])]
    if quantizations[0] is None or quantizations[1] is None:
        return None
    given, result = (float(quantization.scale[0]) for quantization in quantizations if quantization is not None)
    function = _FUNCTIONS.get(op.kind) or (_gelu_by_tanh if op["approximate"] == "tanh" else _gelu)

    def steps(codes: Array) -> Array:
        with np.errstate(all="ignore"):
            values = function(codes * given) / result
        inside = (codes > 0) | (op.kind not in _OUTSIDE)
        return np.asarray(np.clip(np.where(inside, values, _OUTSIDE.get(op.kind, 0.0)), -(2.0**31), 2.0**31))

    codes = np.arange(-32768, 32768, dtype=np.float64)
    points = -32768 + np.arange(_STEPS + 1) * 65535 / _STEPS
    stored = steps(points) * (65536 / 65535)
    middle = steps((points[:-1] + points[1:]) / 2) * (65536 / 65535)
    stored[:-1] -= ((stored[:-1] + stored[1:]) / 2 - middle) / 2
    stored = np.clip(stored, -32768, 32767)
    share = np.tile(np.arange(_EACH) / _EACH, _STEPS)
    lines = np.repeat(stored[:-1], _EACH) * (1 - share) + np.repeat(stored[1:], _EACH) * share
    wanted = steps(codes)
    off = np.abs(lines - np.clip(wanted, -32768, 32767)) + _ROUNDED
    if op.kind not in _FUNCTIONS:  # falls and rises: an exact value has two inputs
        return np.full(exact.shape, off.max())
    order = np.argsort(wanted, kind="stable")
    places = np.searchsorted(wanted[order], exact)
    near = np.maximum(off[order], np.maximum(np.roll(off[order], 1), np.roll(off[order], -1)))  # the last bit of the exact value
    return np.asarray(near[np.clip(places, 0, codes.size - 1)])
