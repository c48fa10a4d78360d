"""The nodes of QONNX, Quant, BipolarQuant and Trunc: their rounding modes, and what they state of quantizations, ranges of integers and
scales by broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic.kernels import dequantize_float32
from qconvert.arithmetic.rounding import round_half_away, round_half_even
from qconvert.formats.onnx.reading import NotCoveredError, Reading
from qconvert.formats.reading.quantizations import label_key
from qconvert.graph import Array, Quantization, Shape, integer_range, numpy_dtype

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


class Stated(NamedTuple):
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


EVEN = "HALF_EVEN"
_OTHER_NAMES = {"ROUND": EVEN}


def _half_down(values: Array) -> Any:
    return np.sign(values) * np.ceil(np.abs(values) - values.dtype.type(0.5))


#: Rounding mode -> what it makes of values; the operator that does so, and what is added to magnitudes before it where it rounds these.
_ROUNDINGS: Mapping[str, tuple[Callable[[Array], Any], str, float | None]] = {
    EVEN: (round_half_even, "Round", None),
    "CEIL": (np.ceil, "Ceil", None),
    "FLOOR": (np.floor, "Floor", None),
    "UP": (lambda values: np.copysign(np.ceil(np.abs(values)), values), "Ceil", 0.0),
    "DOWN": (np.trunc, "Floor", 0.0),
    "HALF_UP": (round_half_away, "Floor", 0.5),
    "HALF_DOWN": (_half_down, "Ceil", -0.5),
}


def mode_of(r: Reading, default: str) -> str:
    """The rounding mode that a node states; raises NotCoveredError for one that qonnx does not have."""
    stated = str(r.attribute("rounding_mode", default)).upper()
    mode = _OTHER_NAMES.get(stated, stated)
    if mode not in _ROUNDINGS:
        raise NotCoveredError(f"the rounding mode {stated}")
    return mode


def rounding_of(mode: str) -> tuple[str, float | None]:
    """Return the operator that rounds in a mode, and what is added to magnitudes before it; None where it rounds the values themselves."""
    _, kind, offset = _ROUNDINGS[_OTHER_NAMES.get(mode, mode)]
    return kind, offset


def emit_rounding(r: Reading, value: str, mode: str) -> str:
    """Appends the operators that round the float value `value`; returns the result's name."""
    kind, offset = rounding_of(mode)
    if offset is None:
        return apply(r, kind, "rounded", value)
    magnitude = apply(r, "Abs", "magnitude", value)
    if offset:
        magnitude = apply(r, "Add", "offset", magnitude, r.const(np.float32(offset), "half"))
    return apply(r, "Mul", "rounded", apply(r, kind, "whole", magnitude), apply(r, "Sign", "sign", value))


def apply(r: Reading, kind: str, hint: str, *inputs: str) -> str:
    """Appends an operator in float; returns its result's name, which ends in `hint`."""
    return r.emit_inner(kind, inputs, hint, "float32")


def read_quant(r: Reading) -> None:
    """Quant(x, scale, zero_point, bit_width); attributes signed, narrow, rounding_mode."""
    found, mode, data = read_stated(r, bits_of(r, 3)), mode_of(r, "ROUND"), r.constant(0)
    if data is not None:
        _declare(r, found, _integers(data, found, mode))
    elif found.is_bipolar:
        _emit_signs(r, found, _steps(r, found))
    else:
        _emit(r, found, mode)


def read_bipolar_quant(r: Reading) -> None:
    """BipolarQuant(x, scale): the scale where x is 0 or more, else minus the scale."""
    found, data = Stated(require_broadcast(r, numbers(r, 1, "scale"))[0], np.zeros((), np.float32), (-1, 1), True, True), r.constant(0)
    if data is not None:
        _declare(r, found, np.where(np.asarray(data, np.float32) >= 0, np.float32(1), np.float32(-1)))
    else:
        _emit_signs(r, found, r.input(0))


def _integers(data: Array, found: Stated, mode: str) -> Array:
    """The whole numbers that a constant is rounded to, in float32 as qonnx computes them."""
    with np.errstate(all="ignore"):
        steps = np.asarray(data, np.float32) / found.scale + found.zero_point
        if found.is_bipolar:
            return np.where(steps >= 0, np.float32(1), np.float32(-1))
        low, high = (np.float32(limit) for limit in found.limits)
        return np.asarray(_ROUNDINGS[mode][0](np.where(np.isnan(steps), found.zero_point, np.clip(steps, low, high))))


def _declare(r: Reading, found: Stated, whole: Array) -> None:
    """A constant as integers with a Dequantize after them; as float values where no quantization holds them."""
    label = found.quantization(whole.shape, constant=True) if whole.shape == (r.tensor(0).shape or ()) else None
    if label is None:
        with np.errstate(all="ignore"):
            r.declare_constant((whole - found.zero_point) * found.scale)
        return
    dtype, quantization = label[0], label[1].with_limits(label[0], *found.limits)
    top = np.float32(integer_range(dtype)[1])  # float32 has no 2**31 - 1
    stored = np.where(whole >= top, integer_range(dtype)[1], whole.astype(np.int64)).astype(numpy_dtype(dtype))
    key = f"{dtype}_{found.limits[1]}_{label_key(quantization)}"
    r.emit("Dequantize", [r.variant(0, key, stored, quantization)], r.outputs[:1], dtype="float32")


def _emit(r: Reading, found: Stated, mode: str) -> None:
    quantization = found.quantization(r.tensor(0).shape, constant=False)
    if quantization is None:
        low, high = (r.const(np.float32(limit), hint) for limit, hint in zip(found.limits, ("lowest", "highest"), strict=True))
        _scale_back(r, found, emit_rounding(r, apply(r, "Clip", "within", _steps(r, found), low, high), mode), r.outputs[0])
        return
    value = r.input(0)
    if mode != EVEN:
        value = r.intermediate("on_quantization", "float32")
        _scale_back(r, found, emit_rounding(r, _steps(r, found), mode), value)
    emit_on_quantization(r, value, *quantization, found.limits)


def emit_on_quantization(r: Reading, value: str, dtype: str, quantization: Quantization, limits: tuple[int, int]) -> None:
    """Appends Quantize, Clip and Dequantize of a float value, onto the integers within `limits` of a quantization; the last writes output
    0."""
    low, high = integer_range(dtype)
    if quantization.axis is not None and limits != (low, high):
        value = _clip_per_channel(r, value, quantization, limits)
        limits = low, high
    stored = r.emit_inner("Quantize", [value], dtype, dtype, quantization=quantization)
    if limits != (low, high):
        bounds = zip(limits, ("lowest", "highest"), strict=True)
        ends = [r.const(dequantize_float32(limit, quantization), hint) for limit, hint in bounds]
        stored = r.emit_inner("Clip", [stored, *ends], "clipped", quantization=quantization, integers=True)
    r.emit("Dequantize", [stored], r.outputs[:1], dtype="float32")


def _clip_per_channel(r: Reading, value: str, quantization: Quantization, limits: tuple[int, int]) -> str:
    """Float values between bounds for each index of an axis, which have the quantization: rounding is monotone."""
    rank, axis = r.rank(0), quantization.axis
    for kind, limit in zip(("Max", "Min"), limits, strict=True):
        bounds = (limit - quantization.zero_point).astype(np.float32) * quantization.scale
        shaped = bounds.reshape([-1 if index == axis else 1 for index in range(rank)])
        value = apply(r, kind, kind.lower(), value, r.const(shaped, f"{kind.lower()}_bounds"))
    return value


def _steps(r: Reading, found: Stated) -> str:
    """x / scale + zero_point, decomposed."""
    steps = apply(r, "Div", "steps", r.input(0), r.const(found.scale, "scale"))
    return apply(r, "Add", "shifted", steps, r.const(found.zero_point, "zero_point")) if found.zero_point.any() else steps


def _scale_back(r: Reading, found: Stated, whole: str, result: str) -> None:
    """(whole - zero_point) * scale, decomposed."""
    if found.zero_point.any():
        whole = apply(r, "Sub", "difference", whole, r.const(found.zero_point, "zero_point"))
    r.emit("Mul", [whole, r.const(found.scale, "scale")], [result], dtype="float32")


def _emit_signs(r: Reading, found: Stated, value: str) -> None:
    """1 where the value is 0 or more, else -1; with a quantization where one holds them."""
    is_positive = r.emit_inner("GreaterOrEqual", [value, r.const(np.float32(0), "zero")], "is_positive", "bool")
    label = found.quantization(r.tensor(0).shape, constant=False)
    if label is None or not label[1].is_per_tensor:
        ends = [r.const((np.float32(sign) - found.zero_point) * found.scale, hint) for sign, hint in ((1, "positive"), (-1, "negative"))]
        r.emit("Where", [is_positive, *ends], r.outputs[:1], dtype="float32")
        return
    dtype, quantization = label
    ends = [r.const(np.array(sign, numpy_dtype(dtype)), hint, quantization) for sign, hint in ((1, "positive"), (-1, "negative"))]
    signs = r.emit_inner("Where", [is_positive, *ends], dtype, dtype, quantization=quantization, integers=True)
    r.emit("Dequantize", [signs], r.outputs[:1], dtype="float32")


def read_trunc(r: Reading) -> None:
    """Trunc(x, scale, zero_point, in_bits, out_bits) of version 1, (x, scale, zero_point, in_bits, out_scale, out_bits) of version 2.

    round(x / scale + zero_point) / 2**k, rounded again by the mode. Version 1 has k = in_bits - out_bits and scales back by what it had;
    it limits nothing, so its result stays in float. Version 2 has 2**k = out_scale / scale, limits to out_bits, and its
    result has the quantization of out_scale.
    """
    scale, points = require_broadcast(r, numbers(r, 1, "scale"), numbers(r, 2, "zero point"))
    in_bits, mode = bits_of(r, 3), mode_of(r, "FLOOR")
    if not is_positive(scale):
        raise NotCoveredError("scales that are not positive")
    is_second, signed = r.has(5), bool(r.attribute("signed", 1))
    if is_second:
        out_scale = require_broadcast(r, numbers(r, 4, "scale of the result"), scale, points)[0]
        if not is_positive(out_scale):
            raise NotCoveredError("scales of the result that are not positive")
        divisor = np.asarray(np.float32(2) ** np.rint(np.log2(out_scale / scale)))
        out_points = points / divisor
        limits = limits_of(bits_of(r, 5), signed, bool(r.attribute("narrow", 0)))
    else:
        divisor, out_points, out_scale, limits = np.array(2.0 ** (in_bits - bits_of(r, 4)), np.float32), points, scale, (0, 0)
    whole_steps = apply(r, "Round", "whole_steps", _steps(r, Stated(scale, points, limits, signed)))
    fraction = apply(r, "Div", "divided", whole_steps, r.const(np.asarray(divisor, np.float32), "divisor"))
    if is_second:
        ends = [r.const(np.float32(limit), hint) for limit, hint in zip(limits, ("fewest", "most"), strict=True)]
        fraction = apply(r, "Clip", "within", fraction, *ends)
    whole, found = emit_rounding(r, fraction, mode), Stated(out_scale, np.asarray(out_points, np.float32), limits, signed)
    quantization = found.quantization(r.tensor(0).shape, constant=False) if limits[0] < limits[1] else None
    if quantization is None:
        _scale_back(r, found, whole, r.outputs[0])
        return
    value = r.intermediate("on_quantization", "float32")
    _scale_back(r, found, whole, value)
    emit_on_quantization(r, value, *quantization, limits)
