"""Weights as MNN stores them: codes with a scale for each output channel, and the int8 operators of MNN 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.graph import Array

#: IDSTQuan.type.
_CODES, _SPARSE, _HALF, _BYTES = 1, 2, 3, 4
#: Below it MNN takes a scale for 0, in older files those of its "weightInt8".
_SMALLEST = 1e-6
_SCALES_OF_HALVES = 1


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """The weights of a layer: real = scale * q + offset.

    Attributes:
        integers: int8, of the shape (outputs, inputs of a group, height, width).
        bits: of a weight.
        scales: float32, (outputs,), or (outputs, blocks) where a channel is divided along its inputs.
        offsets: float32, of the shape of `scales`; None where weights are symmetric.
        is_full: whether all integers of `bits` bits may occur, not only those that do.
    """

    integers: Array
    bits: int
    scales: Array
    offsets: Array | None
    is_full: bool

    @property
    def values(self) -> Array:
        """The real weights, in float32 as MNN computes them."""
        flat = self.integers.reshape(*self.scales.shape, -1).astype(np.float32) * self.scales[..., None]
        return (flat if self.offsets is None else flat + self.offsets[..., None]).reshape(self.integers.shape)


def layer_weights(stated: Any, kernel: tuple[int, int], outputs: int) -> LayerWeights | None:
    """The weights of a layer; None where they are real: in float16, or sparse.

    Args:
        stated: an IDSTQuan.
        kernel: height and width.
        outputs: how many channels the layer computes; 0 where the file does not say it.

    Raises:
        InvalidModelError: the bytes are not what they claim.
        UnsupportedError: they are stored in another way.
    """
    if stated.type == _HALF or stated.index is not None:
        return None
    if stated.type not in (_CODES, _BYTES):
        raise UnsupportedError(
            f"the weights are stored as IDSTQuan.type {stated.type}{' (sparse)' if stated.type == _SPARSE else ''}, which is not covered",
            rule="form-not-covered",
        )
    if stated.buffer is None:
        raise InvalidModelError("the weights have no bytes", rule="damaged-weights")
    data = stated.buffer.view(np.uint8)
    if stated.type == _CODES:
        rows, integers, bits, is_full = _decode_weights(data, 4 if stated.shapeInt32 else 2)
    else:
        rows, integers, bits, is_full = outputs, data.view(np.int8), 8, True
    channels = outputs or rows
    if not integers.size or min(channels, *kernel) < 1 or rows % channels or integers.size % (channels * math.prod(kernel)):
        raise InvalidModelError(
            f"{integers.size} weights in {rows} rows do not fit {outputs} outputs and a kernel of {kernel}", rule="counts-differ"
        )
    scales, offsets = _scales(stated, channels, integers.size // (channels * math.prod(kernel)))
    return LayerWeights(integers.reshape(channels, -1, *kernel), bits, scales, offsets, is_full)


def concatenate_groups(parts: Sequence[LayerWeights], where: str) -> LayerWeights:
    """The weights of a convolution in groups, of which MNN makes one layer each.

    Raises:
        InvalidModelError: the groups differ in more than their numbers.
    """
    first = parts[0]
    forms = {(part.integers.shape[1:], part.bits, part.scales.shape[1:], part.offsets is None) for part in parts}
    if len(forms) > 1:
        raise InvalidModelError("the weights of the groups differ in type or form", where=where, rule="contradicting-forms")
    offsets = None if first.offsets is None else np.concatenate([part.offsets for part in parts if part.offsets is not None])
    integers, scales = (np.concatenate([getattr(part, name) for part in parts]) for name in ("integers", "scales"))
    return LayerWeights(integers, first.bits, scales, offsets, all(part.is_full for part in parts))


def _decode_weights(data: Array, width: int) -> tuple[int, Array, int, bool]:
    """(rows, weights, bits, whether the codes are all integers of that many bits) of a buffer of type 1."""
    dimensions = int(data[0]) if data.size else 0
    start = 1 + dimensions * width
    if dimensions != 2 or data.size <= start:
        raise InvalidModelError(
            f"the weights have {dimensions} dimensions in {data.size} bytes; MNN requires 2, for channels and for the weights of each",
            rule="damaged-weights",
        )
    rows, columns = (int(size) for size in data[1:start].view(f"<u{width}"))
    count = int(data[start]) or 256
    codes = np.sort(data[start + 1 : start + 1 + count].view(np.int8))
    bits = max(1, (count - 1).bit_length())
    size = -(-rows * columns * bits // 8)
    following = data[start + 1 + count :]
    if codes.size != count or following.size < size:
        raise InvalidModelError(
            f"{data.size} bytes are too few for {rows} × {columns} weights of {bits} bits and {count} codes", rule="damaged-weights"
        )
    places = _unpack_bits(following[:size], bits, rows * columns)
    if places.size and int(places.max()) >= count:
        raise InvalidModelError(f"a weight is code {int(places.max())} of {count}", rule="damaged-weights")
    is_full = count == 2**bits and bool((codes == np.arange(count) - count // 2).all())
    return rows, codes[places], bits, is_full


def _unpack_bits(data: Array, bits: int, count: int) -> Array:
    """Numbers of `bits` bits each, the highest bit first."""
    each = 8 // bits
    if bits * each == 8:
        whole = np.empty(data.size * each, np.uint8)
        for place in range(each):
            whole[place::each] = (data >> (8 - bits * (place + 1))) & (2**bits - 1)
        return whole[:count]
    flags = np.unpackbits(data, count=count * bits).reshape(count, bits)
    return np.packbits(flags, axis=1)[:, 0] >> np.uint8(8 - bits)


def _scales(stated: Any, rows: int, inputs: int) -> tuple[Array, Array | None]:
    """(scales, offsets) of channels, or of blocks of the inputs of each."""
    if stated.alphaFp16 is not None and stated.alpha is None:
        if stated.scaleStorage != _SCALES_OF_HALVES:
            raise UnsupportedError(
                f"the scales are stored as type {stated.scaleStorage}; float32 and float16 are covered", rule="form-not-covered"
            )
        alpha = stated.alphaFp16.view("<f2").astype(np.float32)
    else:
        alpha = stated.alpha if stated.alpha is not None else np.zeros(0, np.float32)
    old = stated.type == _BYTES and stated.aMin == 0 and abs(stated.quantScale) < _SMALLEST
    pairs = stated.readType != 0 or old
    blocks = alpha.size // (rows * (2 if pairs else 1))
    if not blocks or alpha.size != rows * blocks * (2 if pairs else 1) or inputs % blocks:
        raise InvalidModelError(f"{alpha.size} scales do not fit {rows} channels of {inputs} inputs", rule="counts-differ")
    factor = np.float32(1 if old or stated.has_scaleInt else stated.quantScale)
    shape = (rows, blocks) if blocks > 1 else (rows,)
    with np.errstate(all="ignore"):
        if not pairs:
            found = alpha * factor
            offsets = None
        else:
            lowest = np.float32(stated.aMin or -128)
            first, scale = alpha[0::2], alpha[1::2]
            offsets = first - lowest * scale if lowest < 0 else first
            found, offsets = scale * factor, (offsets * factor).reshape(shape)
    if not np.isfinite(found).all() or (found < 0).any() or (offsets is not None and not np.isfinite(offsets).all()):
        raise InvalidModelError("a scale of the weights is negative or not finite", rule="scale-not-positive")
    return found.reshape(shape), offsets


#: What converts between a float tensor and an int8 tensor of the same values.
CONVERSIONS = ("FloatToInt8", "Int8ToFloat")
#: Operators of MNN 1, and what MNN 2 calls them.
CONVOLUTIONS = {"ConvInt8": "Convolution", "DepthwiseConvInt8": "ConvolutionDepthwise"}
#: MNN 3.6.1 has no kernel for EltwiseInt8, and no longer knows PoolInt8: nothing runs here that a reading could be compared with.
_REFUSED = ("EltwiseInt8", "PoolInt8")
_REMEDY = "Convert the file with MNNConvert of version 2 or later from its float model."
#: How far the product of a convolution's scales may be from the one that the file states: float32 rounds each of two operations.
_TOLERANCE = 1e-5


class Conversion(NamedTuple):
    """A conversion between float and int8.

    Attributes:
        dropped, kept: the tensors that it connects, of which one has the name of a float model's tensor.
        scale, zero, lowest, highest: the quantization parameters of both.
    """

    dropped: int
    kept: int
    scale: float
    zero: int
    lowest: int
    highest: int


def require_readable(operators: Iterable[tuple[str, str]]) -> None:
    """Check the (type, name) of all operators.

    Raises:
        UnsupportedError: one is an int8 operator of MNN 1 that is not read.
    """
    for kind, name in operators:
        if kind in _REFUSED:
            raise UnsupportedError(
                f"is {kind}, an int8 operator of MNN before version 2, which is not covered",
                where=name,
                remedy=_REMEDY,
                rule="version-not-covered",
            )


def read_conversion(kind: str, name: str, view: Any, names: tuple[str, ...]) -> Conversion:
    """Read a FloatToInt8 or Int8ToFloat.

    Args:
        kind: the type of the operator.
        name: of the operator. Its inserted tensor has the same one.
        view: the operator in the file, with one input and one output.
        names: of the file's tensors.

    Raises:
        InvalidModelError: it lacks its scale, or an input or output.
        UnsupportedError: it has a scale for each channel.
    """
    stated, places = view.main, (view.inputIndexes, view.outputIndexes)
    scales = stated.tensorScale if stated is not None and view.mainType == 74 else None
    if stated is None or scales is None or not len(scales) or any(found is None or len(found) != 1 for found in places):
        raise InvalidModelError(f"is {kind}, which requires a scale, one input and one output", where=name, rule="malformed-operator")
    if not np.array_equal(scales, np.full_like(scales, scales[0]), equal_nan=True):
        raise UnsupportedError(
            f"is {kind} of MNN before version 2 with a scale for each channel; one scale for the tensor is covered",
            where=name,
            remedy=_REMEDY,
            rule="not-per-tensor",
        )
    with np.errstate(all="ignore"):
        scale = np.float32(1) / scales[0] if kind == "FloatToInt8" else scales[0]
    source, target = (int(found[0]) for found in places)
    dropped, kept = (source, target) if names[source] == name else (target, source)
    return Conversion(dropped, kept, float(scale), stated.zeroPoint, stated.clampMin, stated.clampMax)


def kept_tensors(conversions: Iterable[Conversion]) -> dict[int, int]:
    """Return, for each dropped tensor, the tensor of the same values that has a name of its own.

    Raises:
        InvalidModelError: conversions form a cycle, or two give one tensor.
    """
    direct: dict[int, int] = {}
    for conversion in conversions:
        if direct.setdefault(conversion.dropped, conversion.kept) != conversion.kept:
            raise InvalidModelError(
                f"tensor {conversion.dropped} is the result of two conversions between float and int8", rule="duplicate-name"
            )
    return {start: _follow_conversions(start, direct) for start in direct}


def _follow_conversions(start: int, direct: Mapping[int, int]) -> int:
    place = start
    for _ in range(len(direct)):
        place = direct[place]
        if place not in direct:
            return place
    raise InvalidModelError("conversions between float and int8 form a cycle", rule="cycle")


def read_old_weights(view: Any, kernel: tuple[int, int], outputs: int, data: float | None, result: float | None) -> LayerWeights:
    """Read the weights of a ConvInt8 or DepthwiseConvInt8.

    Args:
        view: its Convolution2D, with integers in symmetricQuan.
        kernel: height and width.
        outputs: the number of channels.
        data, result: the scales of the input and the output; None where the file states none.

    Raises:
        InvalidModelError: sizes contradict each other, or a scale is no positive number.
        UnsupportedError: the file does not state the scales of the weights.
    """
    stated, quantized = view.symmetricQuan, view.quanParameter
    size = outputs * math.prod(kernel)
    if min(outputs, *kernel) < 1 or not stated.weight.size or stated.weight.size % size:
        raise InvalidModelError(f"{stated.weight.size} weights do not fit {outputs} outputs and a kernel of {kernel}", rule="counts-differ")
    alpha = quantized.alpha if quantized is not None else None
    if alpha is None and (data is None or result is None):
        missing = "input" if data is None else "output"
        raise UnsupportedError(
            f"is an int8 layer of MNN before version 2, and the file does not have the scale of its {missing}",
            remedy=_REMEDY,
            rule="scale-missing",
        )
    products = stated.scale
    if products is not None and data is not None and result is not None:
        if len(products) != outputs:
            raise InvalidModelError(f"{len(products)} scales do not fit {outputs} channels", rule="counts-differ")
        with np.errstate(all="ignore"):
            computed = (products.astype(np.float64) * result / np.float64(data)).astype(np.float32)
        if alpha is None:
            alpha = computed
        elif len(alpha) != outputs or not np.allclose(alpha, computed, rtol=_TOLERANCE, atol=0):
            raise UnsupportedError(
                "the scales of the weights differ from those that MNN computes with", remedy=_REMEDY, rule="contradicting-scales"
            )
    if alpha is None or len(alpha) != outputs or not (np.isfinite(alpha) & (alpha >= 0)).all():
        raise InvalidModelError(f"{outputs} channels require as many scales that are finite and not negative", rule="scale-not-positive")
    return LayerWeights(stated.weight.reshape(outputs, -1, *kernel), 8, np.asarray(alpha, np.float32), None, True)
