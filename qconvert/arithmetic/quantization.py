"""Scale and zero point: how stored integers map to real values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array

__all__ = ["Quantization"]


@dataclass(frozen=True, slots=True, eq=False)
class Quantization:
    """real = scale * (stored - zero_point), as in the TFLite and ONNX specifications.

    Attributes:
        scale: float32, one value, or one for each index along `axis`, or in blocks: of the tensor's rank, and of its shape but for
            `axis`, which has one for each block.
        zero_point: int64, of the shape of `scale`.
        axis: the dimension that the scales run along; None means one scale for the whole tensor.
        block_size: elements along `axis` that share a scale; 0 means no blocks.
    """

    scale: Array
    zero_point: Array
    axis: int | None = None
    block_size: int = 0

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

    def shifted(self, offset: int) -> Quantization:
        """The quantization of the same real values when `offset` is added to every stored integer."""
        return replace(self, zero_point=self.zero_point + offset)

    def with_axis(self, axis: int | None) -> Quantization:
        """The same scales along another dimension, after a transposition."""
        return replace(self, axis=axis)

    def transposed(self, perm: Sequence[int]) -> Quantization:
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
            (self.axis, self.block_size) == (other.axis, other.block_size)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    __hash__ = None  # type: ignore[assignment]
