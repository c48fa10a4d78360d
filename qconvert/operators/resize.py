"""Resize: (X, sizes) with one size for each spatial dimension."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from qconvert.arithmetic import saturate
from qconvert.arithmetic.storage import Array
from qconvert.errors import UnsupportedError
from qconvert.graph.schema import Op
from qconvert.operators.attributes import (
    DATA_FORMAT,
    choice,
    has,
)
from qconvert.operators.call import (
    Call,
    ExactResult,
    Result,
    spatial_axes,
)
from qconvert.operators.kind import Kind
from qconvert.operators.properties import Layout, Suits, any_value
from qconvert.operators.sizes import (
    ShapeContext,
    Shapes,
    axes_of_space,
    channel_count,
    failure,
    with_spatial,
)


def _resize_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.shape(0)
    if data is None:
        return [None]
    count = len(axes_of_space(op, data))
    sizes = s.sizes(1, count)
    if len(sizes) != count or any(isinstance(size, int) and size < 1 for size in sizes):
        raise failure(op, f"sizes {sizes} are not {count} positive numbers", rule="invalid-sizes")
    return [with_spatial(op, data[0], sizes, channel_count(op, data))]


def resize(call: Call) -> Result:
    """Resize of ONNX to given sizes, linear or nearest, one spatial dimension after the other.

    With an `arithmetic` ties are those of stored integers.
    """
    steps, scale = call.factor(0)
    whole = Fraction(1)
    for axis, size in zip(spatial_axes(call, steps.ndim), call.ints(1), strict=True):
        numerators, denominator = positions(call["coordinate_transformation_mode"], steps.shape[axis], size)
        if call["mode"] == "nearest":
            chosen = nearest(call["nearest_mode"], numerators, denominator)
            steps = steps.take(np.clip(chosen, 0, steps.shape[axis] - 1), axis)
        elif call["mode"] == "linear":
            steps = _interpolate(steps, axis, numerators, denominator)
            whole *= denominator
        else:
            raise UnsupportedError(f"the resize mode {call['mode']!r} is not evaluated", where=str(call.op), rule="not-evaluated")
    real, quantization, result = np.asarray(steps / float(whole) * scale), call.quantization(), call.results[0]
    if not call["arithmetic"] or quantization is None or not quantization.is_per_tensor or result.quantization != quantization:
        return real
    stored = steps / float(whole) + quantization.point
    return ExactResult(real, saturate(np.floor(stored + 0.5) if call["arithmetic"] == "ties_up" else np.rint(stored), result.dtype))


def positions(mode: str, size: int, wanted: int) -> tuple[Array, int]:
    """Where each output position lies in the input: whole numerators over one denominator, so that ties are exact."""
    at = np.arange(wanted, dtype=np.int64)
    if mode == "asymmetric":
        return at * size, wanted
    if mode in ("half_pixel", "half_pixel_symmetric") or (mode == "pytorch_half_pixel" and wanted > 1):
        return (2 * at + 1) * size - wanted, 2 * wanted
    if mode == "tf_half_pixel_for_nn":
        return (2 * at + 1) * size, 2 * wanted
    if mode in ("align_corners", "pytorch_half_pixel"):
        return (at * (size - 1), wanted - 1) if wanted > 1 else (at, 1)
    raise UnsupportedError(f"the coordinate transformation {mode!r} is not evaluated", rule="not-evaluated")


def nearest(mode: str, numerators: Array, denominator: int) -> Array:
    """Positions rounded to whole ones, by ONNX's nearest_mode."""
    rounded = {
        "floor": (numerators, denominator),
        "ceil": (numerators + denominator - 1, denominator),
        "round_prefer_ceil": (2 * numerators + denominator, 2 * denominator),
        "round_prefer_floor": (2 * numerators + denominator - 1, 2 * denominator),
    }
    above, below = rounded[mode]
    return np.asarray(above // below)


def _interpolate(values: Array, axis: int, numerators: Array, denominator: int) -> Array:
    """Linear interpolation along an axis, times the denominator; outside the input its edge continues."""
    lower = numerators // denominator
    shape = [-1 if i == axis else 1 for i in range(values.ndim)]
    weight = (numerators - lower * denominator).reshape(shape).astype(np.float64)
    last = values.shape[axis] - 1
    below, above = (values.take(np.clip(index, 0, last), axis) for index in (lower, lower + 1))
    return np.asarray(below * (denominator - weight) + above * weight)


_TRANSFORMATIONS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

KINDS = (
    Kind(
        "Resize",
        "data index",
        bounds=any_value,
        keeps_range=True,
        shape=_resize_shape,
        evaluate=resize,
        layout=Layout(Suits.DECIDES, sized=True),
        attributes=has(
            DATA_FORMAT,
            mode=choice(("nearest", "linear", "cubic")),
            coordinate_transformation_mode=choice(_TRANSFORMATIONS),
            nearest_mode=choice(_NEAREST, "floor"),
            arithmetic=choice(("", "torch", "ties_up"), ""),
        ),
    ),
)
