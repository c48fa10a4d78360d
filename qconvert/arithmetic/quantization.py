"""Scale and zero point: how stored integers map to float values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array, integer_range, read_only

__all__ = ["Quantization"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Quantization:
    """real = scale * (stored - zero_point), as in the TFLite and ONNX specifications.

    Attributes:
        scale: float32, one value, or one for each index along `axis`, or in blocks: of the tensor's rank, and of its shape but for
            `axis`, which has one for each block.
        zero_point: int64, of the shape of `scale`.
        axis: the dimension that the scales run along; None means one scale for the whole tensor.
        block_size: elements along `axis` that share a scale; 0 means no blocks.
        quant_min: the smallest stored value in use (weights without -128, reduced ranges); None where it is the type's.
        quant_max: the largest, likewise.
    """

    scale: Array
    zero_point: Array
    axis: int | None = None
    block_size: int = 0
    quant_min: int | None = None
    quant_max: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", read_only(self.scale))
        object.__setattr__(self, "zero_point", read_only(self.zero_point))

    def __reduce__(self) -> tuple[Any, ...]:
        """How pickle and copy make it: by its class, so that the copy's arrays are read-only too."""
        return type(self), (self.scale, self.zero_point, self.axis, self.block_size, self.quant_min, self.quant_max)

    def __repr__(self) -> str:
        """`Quantization(scale=0.5, zero_point=3)`; of many scales the range, how many, and the axis."""
        if not self.scale.size:
            return f"Quantization(no scale, axis={self.axis})"
        parts = [f"scale={_range(self.scale)}", f"zero_point={_range(self.zero_point)}"]
        parts += [f"axis={self.axis}"] if self.axis is not None else []
        parts += [f"block_size={self.block_size}"] if self.block_size else []
        return f"Quantization({', '.join(parts)})"

    def __str__(self) -> str:
        """Scale and zero point; a range and the axis where there are many: "0.5 +3", "0.01..0.2 along 0"."""
        points = "" if not self.zero_point.any() else f" {int(self.zero_point.min()):+}"
        if self.scale.size == 1:
            return f"{float(self.scale.reshape(-1)[0]):.6g}{points}"
        if not self.scale.size:
            return f"no scale along {self.axis}"
        several = f"{float(self.scale.min()):.3g}..{float(self.scale.max()):.3g}{points} along {self.axis}"
        return f"{several} in blocks of {self.block_size}" if self.block_size else several

    @classmethod
    def per_tensor(cls, scale: float, zero_point: int = 0) -> Quantization:
        """One scale and zero point for the whole tensor."""
        return cls(np.array([scale], np.float32), np.array([zero_point], np.int64))

    @classmethod
    def per_axis(cls, scale: Any, axis: int, zero_point: Any = 0) -> Quantization:
        """One scale for each index along `axis`; `zero_point` is one value for all or one each."""
        scale = np.asarray(scale, np.float32)
        return cls(scale, np.broadcast_to(np.asarray(zero_point, np.int64), scale.shape).copy(), axis)

    @property
    def is_per_tensor(self) -> bool:
        return self.axis is None

    @property
    def is_symmetric(self) -> bool:
        return not self.zero_point.any()

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Equal for equal quantizations, to look them up by: arrays cannot be hashed."""
        arrays = self.scale.shape, self.scale.tobytes(), self.zero_point.tobytes()
        return (*arrays, self.axis, self.block_size, self.quant_min, self.quant_max)

    def limits(self, dtype: str) -> tuple[int, int]:
        """The smallest and largest stored value that is used of an integer dtype."""
        low, high = integer_range(dtype)
        return low if self.quant_min is None else self.quant_min, high if self.quant_max is None else self.quant_max

    def shift_zero_point(self, offset: int) -> Quantization:
        """The quantization of the same float values when `offset` is added to every stored integer."""
        limits = (None if limit is None else limit + offset for limit in (self.quant_min, self.quant_max))
        return Quantization(self.scale, self.zero_point + offset, self.axis, self.block_size, *limits)

    def with_axis(self, axis: int | None) -> Quantization:
        """The same scales along another dimension, after a transposition."""
        return replace(self, axis=axis)

    def transpose(self, perm: Sequence[int]) -> Quantization:
        """The quantization of the tensor's transpose, whose axis i is the tensor's axis perm[i]."""
        if self.axis is None:
            return self
        axis = list(perm).index(self.axis)
        if self.scale.ndim == 1:
            return replace(self, axis=axis)
        return replace(self, axis=axis, scale=self.scale.transpose(perm), zero_point=self.zero_point.transpose(perm))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantization):
            return NotImplemented
        return (
            (self.axis, self.block_size, self.quant_min, self.quant_max) == (other.axis, other.block_size, other.quant_min, other.quant_max)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    __hash__ = None  # type: ignore[assignment]


def _range(values: Array) -> str:
    """One number where all are equal, else the smallest and the largest."""
    low, high = values.min(), values.max()
    return f"{low:.6g}" if low == high else f"{low:.3g}..{high:.3g}"
