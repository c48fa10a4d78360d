"""Blocks of 32 weights: Q4_0, Q4_1 and Q8_0, as integers, scales and minima, and as bytes. Formulas: ggml-quants.c, ggml-common.h.

Q4_0 is float16 d and 16 bytes: value i of the first 16 is the low half of byte i, of the others the high half; each is d * (q - 8).
Q4_1 has a float16 m after d: d * q + m. Q8_0 is d and 32 int8: d * q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qconvert.plugin import Array, Quantization, Tensor, numpy_dtype

__all__ = ["BLOCK", "TYPES", "Blocks", "exact_points", "packed", "unpacked"]

BLOCK = 32
_MIDDLE = 8
_MOST_POINT = 15
TYPES = ("Q4_0", "Q4_1", "Q8_0")


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Weights in blocks along their last axis.

    Attributes:
        type: ggml's name.
        stored: the integers as the file has them: uint8 of 0 to 15 for 4 bits, int8 for Q8_0; of the tensor's shape.
        scale: float16, of that shape, the last axis counting blocks.
        minimum: of Q4_1, float16 like `scale`; else None.
    """

    type: str
    stored: Array
    scale: Array
    minimum: Array | None = None

    @property
    def values(self) -> Array:
        """The float values, float32, as ggml computes them."""
        scale = np.repeat(self.scale.astype(np.float32), BLOCK, axis=-1)
        steps = self.stored.astype(np.float32) - np.float32(_MIDDLE if self.type == "Q4_0" else 0)
        product = scale * steps
        return product if self.minimum is None else product + np.repeat(self.minimum.astype(np.float32), BLOCK, axis=-1)

    def on_quantization(self, name: str) -> Tensor | None:
        """The weights as a quantized constant; None where no integer zero point of 4 bits stands for each minimum."""
        points = np.full(self.scale.shape, _MIDDLE if self.type == "Q4_0" else 0, np.int64)
        if self.minimum is not None:
            found = exact_points(self.scale, self.minimum)
            if found is None:
                return None
            points = found
        dtype = "int8" if self.type == "Q8_0" else "uint4"
        quantization = Quantization(self.scale.astype(np.float32), points, self.stored.ndim - 1, BLOCK)
        return Tensor(name, dtype, self.stored.shape, self.stored.astype(numpy_dtype(dtype)), quantization)


def exact_points(scale: Array, minimum: Array) -> Array | None:
    """Zero points z of 0 to 15 with minimum == -z * scale in every block, int64; None if there are none."""
    wide, low = scale.astype(np.float64), minimum.astype(np.float64)
    points = np.rint(np.divide(-low, wide, out=np.zeros_like(wide), where=wide != 0))
    is_exact = (points >= 0) & (points <= _MOST_POINT) & (-points * wide == low)
    return points.astype(np.int64) if is_exact.all() else None


def unpacked(data: Array, type: str, shape: tuple[int, ...]) -> Blocks:
    """The blocks in a tensor's bytes.

    Args:
        data: uint8, all bytes of the tensor.
        type: one of TYPES.
        shape: of the tensor.
    """
    blocks = data.reshape(*shape[:-1], shape[-1] // BLOCK, -1)
    head = 4 if type == "Q4_1" else 2
    numbers = np.ascontiguousarray(blocks[..., :head]).view("<f2")
    body = blocks[..., head:]
    if type == "Q8_0":
        return Blocks(type, np.ascontiguousarray(body).view(np.int8).reshape(shape), numbers[..., 0])
    stored = np.concatenate([body & 15, body >> 4], axis=-1).reshape(shape)
    return Blocks(type, stored, numbers[..., 0], numbers[..., 1] if type == "Q4_1" else None)


def packed(blocks: Blocks) -> Array:
    """The bytes of blocks, uint8: as many axes as the tensor has, the last one of bytes; the mirror of unpacked()."""
    lead = blocks.stored.shape[:-1]
    stored = blocks.stored.reshape(*lead, -1, BLOCK)
    numbers = [blocks.scale] if blocks.minimum is None else [blocks.scale, blocks.minimum]
    head = np.stack([item.astype("<f2") for item in numbers], axis=-1).view(np.uint8)
    half = stored.astype(np.int8).view(np.uint8)
    body: Array = half if blocks.type == "Q8_0" else half[..., : BLOCK // 2] | half[..., BLOCK // 2 :] << 4
    return np.ascontiguousarray(np.concatenate([head, body], axis=-1)).reshape(*lead, -1)
