"""Interpolation to other sizes, given as sizes or as factors; where a Resize does not do it, as each axis of space times a matrix.

Source of the formulas: ATen/native/UpSample.h (area_pixel_compute_scale, area_pixel_compute_source_index, get_cubic_upsample_coefficients)
and ATen/native/cpu/UpSampleKernel.cpp (HelperInterpBase, which smooths before it shrinks).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import as_real, scalar, size_of, sizes_tensor
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments
from qconvert.formats.torch.values import Ref
from qconvert.graph import Array

#: The most elements of a matrix that maps all positions at once.
_LARGEST_MAP = 2**22


def multiply_axes(c: Reading, name: str, matrices: Sequence[Array]) -> str:
    """Data of channels and space, each axis of which a matrix (new size, size) maps.

    A quantized tensor keeps its quantization and is rounded once, so all positions are mapped by one matrix; float values axis by axis.
    """
    tensor = c.lookup(name)
    sizes = [matrix.shape[0] for matrix in matrices]
    whole = math.prod(matrix.size for matrix in matrices)
    if tensor.is_quantized and whole > _LARGEST_MAP:
        raise c.unsupported_error(f"positions that {whole} numbers map")
    dtype = np.float64 if tensor.dtype == "float64" else np.float32
    steps = [functools.reduce(np.kron, matrices)] if tensor.is_quantized or whole <= 2**16 else list(matrices)
    if len(steps) == 1:
        flat = c.emit("Reshape", [name, c.list64([0, 0, -1], "positions")], hint="flat")
        result = c.emit("MatMul", [flat, c.const(steps[0].T.astype(dtype), "weights")], hint="mapped")
        return c.emit("Reshape", [result, c.list64([0, 0, *sizes], "shape")])
    result = name
    for axis, matrix in enumerate(steps):
        result = _multiply_axis(c, result, matrix.astype(dtype), axis, len(steps))
    return result


def _multiply_axis(c: Reading, data: str, matrix: Array, axis: int, count: int) -> str:
    """One axis of space times a matrix; the last is a product with rows, another one with columns of the two last axes."""
    hint = "" if axis == count - 1 else f"axis{axis}"
    if axis == count - 1:
        return c.emit("MatMul", [data, c.const(np.ascontiguousarray(matrix.T), f"weights{axis}")], quantization=None, hint=hint)
    order = [*range(count + 2)]
    order[2 + axis], order[-1] = order[-1], order[2 + axis]
    turned = c.emit("Transpose", [data], quantization=None, hint=f"turned{axis}", perm=tuple(order))
    weights = c.const(np.ascontiguousarray(matrix.T), f"weights{axis}")
    result = c.emit("MatMul", [turned, weights], hint=f"mapped{axis}")
    return c.emit("Transpose", [result], hint=hint, perm=tuple(order))


#: The largest size of an axis.
_LARGEST = 2**16
#: The most elements of a matrix that maps an axis.
_LARGEST_MATRIX = 2**24
#: The free number of the cubic curve, and what it is where the data are smoothed.
_CUBIC, _CUBIC_SMOOTH = -0.75, -0.5


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of an interpolation.

    Attributes:
        size: its own.
        wanted: that of the result.
        factor: if one was stated.
        is_multiple: whether the size wanted was made of a whole factor.
    """

    size: Any
    wanted: Any
    factor: float | None
    is_multiple: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the sizes alone say where each element lies in the data; dynamic dimensions do where a whole factor gave the one
        wanted."""
        if self.factor is None or not (isinstance(self.size, int) and isinstance(self.wanted, int)):
            return self.factor is None or self.is_multiple
        return self.wanted == self.size * self.factor

    def step(self, align_corners: bool) -> float:
        """How far apart in the data neighbours of the result lie."""
        if align_corners:
            return (self.size - 1) / (self.wanted - 1) if self.wanted > 1 else 0.0
        return self.size / self.wanted if self.factor is None else 1 / self.factor

    def positions(self, align_corners: bool) -> Array:
        """Where the elements of the result lie in the data."""
        at, step = np.arange(self.wanted, dtype=np.float64), self.step(align_corners)
        return at * step if align_corners else (at + 0.5) * step - 0.5


def _axes(c: Reading, name: str) -> list[_Axis]:
    """The axes of space, with sizes and factors as the call states them."""
    spatial = c.spatial
    sizes = [size_of(c, name, axis) for axis in range(2, 2 + spatial)]
    if "scale_factors" in c:
        stated = c["scale_factors"]
    else:
        stated = [c.get(each) for each in (("scales",) if spatial == 1 else ("scales_d", "scales_h", "scales_w")[-spatial:])]
    factors = [None] * spatial if stated is None else [None if value is None else float(value) for value in stated]
    wanted = c["output_size"]
    listed = list(wanted) if isinstance(wanted, (list, tuple)) else [_multiply_size(c, *pair) for pair in zip(sizes, factors, strict=True)]
    if len(listed) != spatial or len(factors) != spatial:
        raise c.invalid(f"sizes {wanted} and factors {stated} are not of {spatial} axes", rule="counts-differ")
    if any(isinstance(size, int) and not 1 <= size <= _LARGEST for size in (*listed, *sizes)) or any(
        value is not None and value <= 0 for value in factors
    ):
        raise c.invalid(f"sizes {listed} and factors {factors} are not positive, or are too large", rule="too-many-elements")
    multiple = [wanted is None and factor is not None and factor.is_integer() for factor in factors]
    return [_Axis(*item) for item in zip(sizes, listed, factors, multiple, strict=True)]


def _multiply_size(c: Reading, size: Any, factor: float | None) -> Any:
    """A size times a factor, without the fraction."""
    if factor is None or not math.isfinite(factor) or factor <= 0:
        raise c.invalid("the operator has neither sizes nor factors", rule="missing-member")
    if isinstance(size, int):
        return math.floor(size * factor)
    if factor != int(factor):
        raise c.unknown_shape()
    names = [scalar(c, size, "size"), scalar(c, int(factor), "factor")]
    return Ref(c.emit("Mul", names, dtype="int64", hint="wanted"), number=True)


def _is_known(axes: Sequence[_Axis]) -> bool:
    return all(isinstance(axis.size, int) and isinstance(axis.wanted, int) for axis in axes)


def _emit_resize(c: Reading, name: str, axes: Sequence[_Axis], mode: str, transformation: str, nearest: str = "floor") -> str:
    """A Resize. One spatial axis becomes two, the first with one element, since more runtimes have a Resize of two axes."""
    if len(axes) == 1:
        flat = c.list64([2], "flat_axis")
        wide = c.emit("Unsqueeze", [name, flat], hint="wide")
        result = _emit_resize(c, wide, [_Axis(1, 1, None), *axes], mode, transformation, nearest)
        return c.emit("Squeeze", [result, flat])
    sizes = sizes_tensor(c, [axis.wanted for axis in axes], "sizes")
    return c.emit(
        "Resize",
        [name, sizes],
        mode=mode,
        coordinate_transformation_mode=transformation,
        nearest_mode=nearest,
        data_format="channels_first",
    )


def read_nearest(c: Reading) -> str:
    """upsample_nearest, whose position is rounded down, and _upsample_nearest_exact, which takes the middle of an element."""
    name, exact = c.name(), "exact" in c.operator
    axes = _axes(c, name)
    chosen = [_nearest_indices(axis, exact) for axis in axes] if _is_known(axes) else []
    if all(np.array_equal(each, _indices_by_ratio(axis, exact)) for each, axis in zip(chosen, axes, strict=False)):
        return _emit_resize(c, name, axes, "nearest", *(("half_pixel", "round_prefer_ceil") if exact else ("asymmetric",)))
    for axis, each in enumerate(chosen):
        hint = "" if axis == len(chosen) - 1 else f"axis{axis}"
        name = c.emit("Gather", [name, c.list64(each.tolist(), f"positions{axis}")], hint=hint, axis=2 + axis)
    return name


def _nearest_indices(axis: _Axis, exact: bool) -> Array:
    """The indices that PyTorch takes, computed in float32 as in its kernel."""
    at = np.arange(axis.wanted, dtype=np.float32) + np.float32(0.5 if exact else 0)
    return np.asarray(np.minimum(np.floor(at * np.float32(axis.step(False))).astype(np.int64), axis.size - 1))


def _indices_by_ratio(axis: _Axis, exact: bool) -> Array:
    """The indices by the exact ratio of the sizes."""
    at = np.arange(axis.wanted, dtype=np.int64)
    if exact:
        return np.asarray(np.minimum((2 * at + 1) * axis.size // (2 * axis.wanted), axis.size - 1))
    return np.asarray(at * axis.size // axis.wanted)


def read_linear(c: Reading) -> str:
    """upsample_linear1d, bilinear2d, trilinear3d."""
    name, align = as_real(c), bool(c["align_corners"])
    axes = _axes(c, name)
    if align or all(axis.is_plain for axis in axes):
        return _emit_resize(c, name, axes, "linear", "align_corners" if align else "half_pixel")
    return _resize_by_matrices(c, name, axes, lambda axis: _interpolation_matrix(axis, axis.positions(False).clip(0), _triangle, 1))


def read_cubic(c: Reading) -> str:
    """upsample_bicubic2d."""
    name, align = as_real(c), bool(c["align_corners"])
    return _resize_by_matrices(
        c, name, _axes(c, name), lambda axis: _interpolation_matrix(axis, axis.positions(align), lambda x: _cubic(x, _CUBIC), 2)
    )


@with_arguments
def read_smooth(c: Reading, curve: Callable[[Array], Array], reach: float) -> str:
    """_upsample_bilinear2d_aa and bicubic2d_aa: for a smaller result, each element is a weighted mean of all elements that it covers."""
    name, align = as_real(c), bool(c["align_corners"])
    return _resize_by_matrices(c, name, _axes(c, name), lambda axis: _antialias_matrix(axis, axis.step(align), curve, reach))


def _resize_by_matrices(c: Reading, name: str, axes: Sequence[_Axis], matrix: Callable[[_Axis], Array]) -> str:
    if not _is_known(axes):
        raise c.unknown_shape()
    if any(axis.size * axis.wanted > _LARGEST_MATRIX for axis in axes):
        raise c.unsupported_error(f"sizes {[(axis.size, axis.wanted) for axis in axes]}", rule="shape-not-covered")
    return multiply_axes(c, name, [matrix(axis) for axis in axes])


def _interpolation_matrix(axis: _Axis, positions: Array, curve: Callable[[Array], Array], reach: int) -> Array:
    """A matrix (wanted, size) of weights of the elements around each position; outside of the data the edge values continue."""
    matrix = np.zeros((axis.wanted, axis.size), np.float64)
    first = np.floor(positions).astype(np.int64)
    for offset in range(1 - reach, 1 + reach):
        column = np.clip(first + offset, 0, axis.size - 1)
        np.add.at(matrix, (np.arange(axis.wanted), column), curve(np.abs(positions - first - offset)))
    return matrix


def _antialias_matrix(axis: _Axis, step: float, curve: Callable[[Array], Array], reach: float) -> Array:
    """A matrix of weights for downsampling with antialias: the curve is as wide as an element of the result, at least one of the data."""
    width = max(step, 1.0)
    matrix = np.zeros((axis.wanted, axis.size), np.float64)
    for row, index in zip(matrix, range(axis.wanted), strict=True):
        middle = step * (index + 0.5)
        start = max(int(middle - reach * width + 0.5), 0)
        end = min(int(middle + reach * width + 0.5), axis.size)
        row[start:end] = curve(np.abs((np.arange(start, end) - middle + 0.5) / width))
        row /= row.sum() or 1.0
    return matrix


def _triangle(x: Array) -> Array:
    return np.asarray(np.maximum(1 - x, 0))


def _cubic(x: Array, a: float) -> Array:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


_SCALES = {1: "f? scales=None", 2: "f? scales_h=None, f? scales_w=None", 3: "f? scales_d=None, f? scales_h=None, f? scales_w=None"}
_SMOOTH: Mapping[str, ReadFunction] = {
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), read_linear),
    "upsample_bicubic2d": read_cubic,
    "_upsample_bilinear2d_aa": read_smooth(_triangle, 1),
    "_upsample_bicubic2d_aa": read_smooth(lambda x: _cubic(x, _CUBIC_SMOOTH), 2),
}

#: Of each the overload with lists of sizes and factors, and that with sizes and a factor for each axis.
OPERATORS: Mapping[str, ReadFunction] = {
    "aten::upsample_nearest#d|_upsample_nearest_exact#d(T input, l? output_size, r? scale_factors)": read_nearest,
    **{f"aten::{name}(T input, l? output_size, b align_corners, r? scale_factors)": read for name, read in _SMOOTH.items()},
    **{
        f"aten::upsample_nearest{n}d|_upsample_nearest_exact{n}d(T self, l output_size, {scales})": read_nearest
        for n, scales in _SCALES.items()
    },
    **{
        f"aten::{name}(T self, l output_size, b align_corners, {scales})": read
        for n, scales in _SCALES.items()
        for name, read in _SMOOTH.items()
        if f"{n}d" in name
    },
}
