"""What QONNX nodes state of quantizations: ranges of integers, scales by broadcasting, and the types that hold them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qconvert.formats.onnx.reading import NotCoveredError, Reading
from qconvert.graph import Array, Quantization, Shape, integer_range

_MOST_BITS = 32
#: Integer types that integers are stored in, by whether they are signed: the first that has room.
_STORAGE = {True: ("int8", "uint8", "int16", "uint16"), False: ("uint8", "int8", "int16", "uint16")}


class Range(NamedTuple):
    """A range.

    Attributes:
        bits, signed, narrow: as Quant has them.
        offset: what is added to stored integers, and to zero points, so that they lie in it.
    """

    bits: int
    signed: bool
    narrow: bool
    offset: int


def limits_of(bits: int, signed: bool, narrow: bool) -> tuple[int, int]:
    """The integers of so many bits: a narrow range leaves out the lowest signed, or the highest unsigned one."""
    if signed:
        return -(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1
    return 0, 2**bits - 1 - narrow


def storage(limits: tuple[int, int], signed: bool, zero_points: Array, *, wide: bool = False) -> str | None:
    """The integer type that a tensor with such integers and zero points is stored in; None if no type has room.

    Args:
        limits: the smallest and the largest integer.
        signed: whether the node says that they are signed.
        zero_points: whole numbers.
        wide: whether int32 will do too.
    """
    low, high = min(limits[0], int(zero_points.min())), max(limits[1], int(zero_points.max()))
    types = (*_STORAGE[signed], "int32") if wide else _STORAGE[signed]
    return next((name for name in types if integer_range(name)[0] <= low and high <= integer_range(name)[1]), None)


def range_of(limits: tuple[int, int], quantization: Quantization) -> Range | None:
    """The range that holds just these integers, shifted if need be; None if they are not as many as any has.

    Of several, one in which the zero points are 0, as nothing is added before the rounding then; else one without a shift.
    """
    found = list(_ranges(limits))
    symmetric = [item for item in found if not (quantization.zero_point + item.offset).any()]
    unshifted = [item for item in found if not item.offset]
    return next(iter((*symmetric, *unshifted, *found)), None)


def _ranges(limits: tuple[int, int]) -> Iterator[Range]:
    for bits in range(1, _MOST_BITS + 1):
        for signed in (True, False):
            for narrow in (False, True):
                low, high = limits_of(bits, signed, narrow)
                if low < high and high - low == limits[1] - limits[0] and not (signed and bits == 1):
                    yield Range(bits, signed, narrow, low - limits[0])


@dataclass(frozen=True, slots=True)
class Stated:
    """What a node states of its quantization.

    Attributes:
        scale, zero_point: float32, as they broadcast with the data.
        limits: the smallest and the largest integer.
        signed: whether the node says that they are signed.
        is_bipolar: whether they are -1 and 1 alone.
    """

    scale: Array
    zero_point: Array
    limits: tuple[int, int]
    signed: bool
    is_bipolar: bool = False

    def quantization(self, shape: Shape | None, *, constant: bool) -> tuple[str, Quantization] | None:
        """Type and quantization that hold the integers of data of a shape; None where no quantization does.

        That is so where scales are negative, or run along two axes, or zero points have fractions, or the integers are too wide.
        """
        points = self.zero_point
        if not (is_positive(self.scale) and np.isfinite(points).all() and (points == np.rint(points)).all()):
            return None
        axes = _axes(np.broadcast_shapes(self.scale.shape, points.shape), shape)
        if axes is None or len(axes) > 1:
            return None
        scales, zeros = (np.array(array.reshape(-1)) for array in np.broadcast_arrays(self.scale, points))
        dtype = storage(self.limits, self.signed, zeros, wide=constant and not zeros.any())
        if dtype is None:
            return None
        return dtype, Quantization(scales.astype(np.float32), zeros.astype(np.int64), next(iter(axes), None))


def read_stated(r: Reading, bits: int) -> Stated:
    """The quantization of a node with the inputs scale and zero point and the attributes signed and narrow."""
    signed, narrow = bool(r.attribute("signed", 1)), bool(r.attribute("narrow", 0))
    is_bipolar = signed and bits == 1
    limits = (-1, 1) if is_bipolar else limits_of(bits, signed, narrow)
    if limits[0] >= limits[1]:
        raise r.invalid(f"{bits} bits with a narrow range hold only one integer, {limits[0]}", rule="invalid-bit-width")
    scale, zero_point = require_broadcast(r, numbers(r, 1, "scale"), numbers(r, 2, "zero point"))
    return Stated(scale, zero_point, limits, signed, is_bipolar)


def require_broadcast(r: Reading, *given: Array) -> tuple[Array, ...]:
    """`given`, the scales and zero points of input 0, unless they do not broadcast with each other and with it.

    Together they have no more elements than the data or, with data of unknown sizes, than the largest of them: (n, 1) next to (1, n)
    would have n**2.

    Raises:
        InvalidModelError: they do not, or would.
    """
    shape = r.tensor(0).static_shape
    sizes = [array.shape for array in given] + ([] if shape is None else [shape])
    try:
        together = math.prod(np.broadcast_shapes(*sizes))
    except ValueError:
        together = -1
    if not 0 <= together <= (max(map(math.prod, sizes)) if shape is None else math.prod(shape)):
        listed = ", ".join(str(array.shape) for array in given)
        raise r.invalid(f"scales and zero points of shapes {listed} do not fit data of shape {r.tensor(0).shape}", rule="shape-mismatch")
    return given


def bits_of(r: Reading, index: int) -> int:
    """The bit width that input `index` states.

    Raises:
        NotCoveredError: it is computed at run time, has a fraction, or is above 32.
        InvalidModelError: it is not one positive number.
    """
    value = numbers(r, index, "bit width")
    if value.size != 1 or not float(value.reshape(())) >= 1:
        raise r.invalid(f"the bit width is {value.reshape(-1)[:3].tolist()}; it must be one positive number", rule="invalid-bit-width")
    bits = float(value.reshape(()))
    if bits != int(min(bits, _MOST_BITS)):
        raise NotCoveredError(f"{bits:g} bits")
    return int(bits)


def is_positive(scale: Array) -> bool:
    """Whether scales are positive and finite."""
    return bool((np.isfinite(scale) & (scale > 0)).all())


def numbers(r: Reading, index: int, what: str) -> Array:
    """The real numbers of input `index`; raises NotCoveredError if they are computed at run time."""
    data = r.constant(index)
    if data is None:
        raise NotCoveredError(f"a {what} that is computed at run time")
    if data.dtype.kind not in "fiu" or not data.size:
        raise r.invalid(f"the {what} {r.inputs[index]!r} is {data.dtype} of shape {data.shape}, not float", rule="parameter-types")
    return np.asarray(data, np.float32)


def _axes(scales: tuple[int, ...], shape: Shape | None) -> list[int] | None:
    """The axes of data that scales of a shape run along: none for one scale. None where they do not fit the data."""
    along = [position - len(scales) for position, size in enumerate(scales) if size != 1]
    if along and (shape is None or any(-axis > len(shape) or shape[axis] != scales[axis] for axis in along)):
        return None
    return [len(shape or ()) + axis for axis in along]
