"""Integers of a few bits in words of 32, and the tensor that they become."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.states.entries import Entries
from qconvert.graph import Array, Quantization, Tensor, numpy_dtype

__all__ = ["WORD", "Layer", "layer_in_blocks", "parts_of", "scales_of", "unpack", "words_of"]

WORD = 32
#: Bits that a layer may have -> the types that hold them, unsigned and signed.
_TYPES = {2: ("uint4", "int4"), 3: ("uint4", "int4"), 4: ("uint4", "int4"), 8: ("uint8", "int8")}


@dataclass(frozen=True, slots=True)
class Layer:
    """The weight of a linear layer.

    Attributes:
        weight: [N, K], outputs first.
        order: which input stands at each place of K; None where they are in their order.
        factors: float32 [K], what data are multiplied by first; None for nothing.
    """

    weight: Tensor
    order: Array | None = None
    factors: Array | None = None


def unpack(words: Array, bits: int, count: int) -> Array:
    """Integers of a few bits from a stream of words along the last axis, lowest bits first; they may cross words, as those of 3 bits do.

    Args:
        words: int32, of shape [..., W].
        bits: of an integer, 1 to 8.
        count: how many integers the stream has; what follows is filling.

    Returns:
        uint8, of shape [..., count].
    """
    stream = np.ascontiguousarray(words.astype("<i4", copy=False)).view(np.uint8)
    if bits == 8:
        return stream[..., :count]
    if bits in (2, 4):
        return parts_of(stream, bits)[..., :count]
    each = np.unpackbits(stream, axis=-1, bitorder="little")[..., : count * bits].reshape(*stream.shape[:-1], count, bits)
    return np.asarray((each << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8))


def parts_of(stream: Array, bits: int) -> Array:
    """The integers of 2 or 4 bits in bytes, lowest bits first: uint8 [..., B] -> uint8 [..., B * 8 / bits]."""
    parts = np.stack([(stream >> shift) & (2**bits - 1) for shift in range(0, 8, bits)], axis=-1)
    return parts.reshape(*stream.shape[:-1], -1)


def words_of(entries: Entries, layer: str, name: str) -> Array:
    """A tensor of packed words: int32 with two axes."""
    found = entries.numbers(layer, name)
    if found is None or found.dtype != np.int32 or found.ndim != 2 or not found.size:
        what = "missing" if found is None else f"{found.dtype} of shape {list(found.shape)}"
        raise InvalidModelError(f"{name} is {what}; int32 with 2 axes is required", where=repr(layer), rule="wrong-type")
    return found


def scales_of(entries: Entries, layer: str, name: str) -> Array:
    """Scales with two axes, as float32, which holds those of float16 and bfloat16."""
    found = entries.numbers(layer, name)
    if found is None or found.ndim != 2 or not found.size or found.dtype.kind not in "fV":
        raise InvalidModelError(f"{name} is missing, or no tensor of floats with 2 axes", where=repr(layer), rule="wrong-type")
    scales = found.astype(np.float32)
    if not np.isfinite(scales).all() or not scales.all():
        raise InvalidModelError(f"{name} has a scale that is 0 or not finite", where=repr(layer), rule="scale-not-finite")
    return scales


def layer_in_blocks(
    layer: str, bits: int, integers: Array, scales: Array, points: Array, *, is_signed: bool = False, order: Array | None = None
) -> Layer:
    """The weight of a layer.

    Args:
        layer: its path.
        bits: of an integer.
        integers: [N, K], outputs first.
        scales: float32 [N, G].
        points: zero points, [N, G].
        is_signed: whether integers and zero points may be below 0.
        order: see Layer; the integers are in this order.

    Raises:
        InvalidModelError: the groups do not divide the inputs, or the shapes do not fit each other.
    """
    (outputs, inputs), groups = integers.shape, scales.shape[-1]
    if bits not in _TYPES or scales.shape != points.shape or scales.shape[0] != outputs or inputs % groups:
        raise InvalidModelError(
            f"integers of {bits} bits and shape {[outputs, inputs]} do not fit scales of shape {list(scales.shape)} and zero points of "
            f"shape {list(points.shape)}",
            where=repr(layer),
            rule="blocks-do-not-fit",
        )
    dtype = _TYPES[bits][is_signed]
    data = np.ascontiguousarray(integers).astype(numpy_dtype(dtype))
    zeros = points.astype(np.int64)
    q = Quantization(scales[:, 0], zeros[:, 0], 0) if groups == 1 else Quantization(scales, zeros, 1, inputs // groups)
    return Layer(Tensor(f"{layer}.weight", dtype, data.shape, data, q), order)
