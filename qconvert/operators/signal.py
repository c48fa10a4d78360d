"""Fourier transforms and complex numbers, whose parts stand along a last axis of 2, as in ONNX's DFT; sorting into ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op
from qconvert.operators.attributes import DATA_FORMAT, flag, has, integer, number, same_shape
from qconvert.operators.call import Call
from qconvert.operators.kind import Kind
from qconvert.operators.properties import DECIDES, ELEMENTWISE, FIRST, WHEREVER, Samples, any_value, before_last
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, Size, failure, stated_axis


def _rfft2d_shape(op: Op, s: ShapeContext) -> Shapes:
    shape, lengths = s.shape(0), s.ints(1)
    if shape is not None and len(shape) < 2:
        raise failure(op, f"data of shape {shape} have no rows and columns", rule="wrong-rank")
    if lengths is not None and (len(lengths) != 2 or min(lengths) < 1):
        raise failure(op, f"{lengths} must be two lengths", rule="counts-differ")
    sizes = (UNKNOWN, UNKNOWN) if lengths is None else (lengths[0], lengths[1] // 2 + 1)
    return [None if shape is None else (*shape[:-2], *sizes, 2)]


def rfft2d(call: Call) -> Array:
    """The transform of the last two axes, cut or filled with zeros to two lengths; of the last axis the first half, as data are real."""
    return _parts(np.fft.rfft2(call.values(), call.ints(1)))


def _dft_shape(op: Op, s: ShapeContext) -> Shapes:
    shape = s.known_shape(0)
    if len(shape) < 2 or shape[-1] not in (1, 2, UNKNOWN):
        raise failure(op, f"data of shape {shape} have no real and imaginary parts", rule="wrong-rank")
    axis = stated_axis(op, len(shape))
    if axis == len(shape) - 1:
        raise failure(op, "goes along the real and imaginary parts", rule="axis-out-of-range")
    size = int(op["length"]) or shape[axis]
    bins = size // 2 + 1 if op["onesided"] and isinstance(size, int) else UNKNOWN if op["onesided"] else size
    return [(*shape[:axis], bins, *shape[axis + 1 : -1], 2)]


def dft(call: Call) -> Array:
    """DFT of ONNX: along the axis, cut or filled with zeros to `length`; real data have a last axis of 1."""
    data, axis = call.values(), int(call["axis"]) % call.values().ndim
    return _fourier_transform(call, data, int(call["length"]) or data.shape[axis], axis, np.fft.ifft if call["inverse"] else np.fft.fft)


def _fourier_transform(call: Call, data: Array, length: int, axis: int, transform: Callable[..., Any] = np.fft.fft) -> Array:
    numbers = data[..., 0] + 1j * data[..., 1] if data.shape[-1] == 2 else data[..., 0]
    found = transform(numbers, length, axis)
    return _parts(found.take(range(length // 2 + 1), axis) if call["onesided"] else found)


def _parts(numbers: Any) -> Array:
    """Complex numbers as real ones and imaginary ones along a last axis."""
    return np.stack([numbers.real, numbers.imag], -1)


def _stft_shape(op: Op, s: ShapeContext) -> Shapes:
    length, step = int(op["length"]), int(op["step"])
    if length < 1 or step < 1:
        raise failure(op, f"has frames of {length} at steps of {step}", rule="not-positive")
    shape = s.known_shape(0)
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 2, UNKNOWN)):
        raise failure(op, f"data of shape {shape} are no signals", rule="wrong-rank")
    frames: Size = UNKNOWN
    if isinstance(shape[1], int):
        if shape[1] < length:
            raise failure(op, f"has frames of {length} of {shape[1]} elements", rule="shape-mismatch")
        frames = (shape[1] - length) // step + 1
    return [(shape[0], frames, length // 2 + 1 if op["onesided"] else length, 2)]


def stft(call: Call) -> Array:
    """STFT of ONNX: the transform of each frame, times the window."""
    data, length = call.values(), int(call["length"])
    data = data[..., None] if data.ndim == 2 else data
    starts = np.arange(0, data.shape[1] - length + 1, int(call["step"]))
    frames = data[:, starts[:, None] + np.arange(length)]
    if call.has(1):
        frames = frames * call.values(1)[:, None]
    return _fourier_transform(call, frames, length, 2)


def _parts_shape(op: Op, s: ShapeContext) -> Shapes:
    shape = s.shape(0)
    if shape is not None and (not shape or shape[-1] not in (2, UNKNOWN)):
        raise failure(op, f"data of shape {shape} have no real and imaginary parts", rule="wrong-rank")
    return [None if shape is None else shape[:-1]]


#: Of FakeQuant (TensorFlow's quantization of that name).
_FEWEST_BITS, _MOST_BITS = 2, 16


def _part(name: str, function: Callable[[Array, Array], Array]) -> Kind:
    return Kind(name, shape=_parts_shape, rule="plain", samples=WHEREVER, types="T -> T",
                evaluate=lambda call: function(call.values()[..., 0], call.values()[..., 1]))  # fmt: skip


def bucketize(call: Call) -> Array:
    """(data, boundaries): how many of the rising boundaries are not above each element."""
    data = call.raw(0) if call.quantization(0) is None else call.values(0)
    return np.searchsorted(call.raw(1), data, side="right")


def local_response_normalization(call: Call) -> Array:
    """LRN of ONNX: x / (bias + alpha / size * sum of squares of `size` neighbouring channels) ** beta."""
    x = call.values()
    axis = x.ndim - 1 if call["data_format"] == "channels_last" else 1
    before, count = (call["size"] - 1) // 2, x.shape[axis]
    squares = np.moveaxis(np.square(x), axis, -1)
    sums = [squares[..., max(c - before, 0) : c + call["size"] - before].sum(-1) for c in range(count)]
    total = np.moveaxis(np.stack(sums, -1), -1, axis) if sums else x
    return np.asarray(x / (call["bias"] + call["alpha"] / call["size"] * total) ** call["beta"])


def _fake_quant_shape(op: Op, s: ShapeContext) -> Shapes:
    if not _FEWEST_BITS <= int(op["num_bits"]) <= _MOST_BITS:
        raise failure(op, f"num_bits is {op['num_bits']}; it must be from {_FEWEST_BITS} to {_MOST_BITS}", rule="attribute-out-of-range")
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(op["max"]) - np.float32(op["min"])):
            raise failure(
                op, f"the range from {op['min']:g} to {op['max']:g} is not representable in float32", rule="attribute-out-of-range"
            )
    return same_shape(op, s)


def fake_quant(call: Call) -> Array:
    """Float values rounded to a quantization of 2**num_bits steps (less one with narrow_range) from min to max, moved so that 0 is on
    it."""
    low, high, scale = fake_quant_quantization(call["min"], call["max"], call["num_bits"], bool(call["narrow_range"]))
    return np.asarray(np.floor((np.clip(call.values(), low, high) - low) / scale + 0.5) * scale + low)


def fake_quant_quantization(lowest: float, highest: float, bits: int, narrow: bool) -> tuple[float, float, float]:
    """The first and the last value of the quantization of FakeQuant, and its step (fake_quant.cc: nudged so that 0 is a step)."""
    first, last = int(narrow), 2**bits - 1
    scale = np.float32((np.float32(highest) - np.float32(lowest)) / np.float32(last - first))
    if not scale > 0:
        return 0.0, 0.0, 1.0
    zero = first - float(np.float32(lowest) / scale)
    point = first if zero < first else last if zero > last else int(np.floor(zero + 0.5))
    return float(np.float32(first - point) * scale), float(np.float32(last - point) * scale), float(scale)


KINDS = (
    Kind("DFT", shape=_dft_shape, evaluate=dft, bounds=any_value,
         samples=Samples(lambda op, index, axis, rank: axis not in (op["axis"] % rank, rank - 1)),
         attributes=has(axis=integer(), length=integer(0), inverse=flag(0), onesided=flag(0))),
    # signals, window; `length` elements of a signal are a frame
    Kind("STFT", "data parameter?", shape=_stft_shape, evaluate=stft, bounds=any_value, samples=FIRST,
         attributes=has(length=integer(), step=integer(), onesided=flag(1))),
    Kind("Rfft2d", "data index", samples=before_last(2), shape=_rfft2d_shape, rule="plain", evaluate=rfft2d, types="T any -> T"),
    _part("Real", lambda real, imaginary: real),
    _part("Imag", lambda real, imaginary: imaginary),
    _part("ComplexAbs", np.hypot),
    Kind("Bucketize", "data parameter", samples=WHEREVER, shape=same_shape, rule="index", evaluate=bucketize, types="any any -> int32"),
    Kind("LRN", bounds=any_value, shape=same_shape, evaluate=local_response_normalization, layout=DECIDES,
         attributes=has(DATA_FORMAT, size=integer(), alpha=number(1e-4), beta=number(0.75), bias=number(1.0))),
    Kind("FakeQuant", shape=_fake_quant_shape, rule="plain", evaluate=fake_quant, layout=ELEMENTWISE, types="T -> T",
         attributes=has(min=number(), max=number(), num_bits=integer(8), narrow_range=flag(0))),
)  # fmt: skip
