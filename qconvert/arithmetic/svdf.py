"""TFLite's SVDF of int8 data with an int16 memory, bit for bit (kernels/internal/reference/svdf.h, EvalIntegerSVDF).

A layer of filters, each with weights over the data (rank 1 of a matrix) and weights over the last values of that product. Each run shifts
the memory by one place. The kernel demands a Relu as activation and does not apply it: it limits to int8 alone.

With a memory and weights over it of int8 it is tflite-micro's (kernels/svdf_common.cc), which LiteRT takes for int16, and computes wrongly.
Such a memory may have a zero point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.arithmetic.requantize import multiply_by_quantized_multiplier, quantize_multiplier

__all__ = ["IntegerSvdf"]


@dataclass(frozen=True, eq=False)
class IntegerSvdf:
    """A layer. Quantizations are (scale, zero point).

    Attributes:
        feature: weights over the data, int8, of shape (filters, inputs), and their scale.
        time: weights over the memory, int16 (int8 in tflite-micro), of shape (filters, places), and their scale.
        bias: int32, of shape (units,), in steps of memory scale * time scale; None for zeros.
        data, output: quantizations.
        memory_scale: the scale of the memory; its type is that of the weights over it.
        rank: how many filters make one unit.
        memory_zero_point: 0 for int16.
    """

    feature: tuple[Array, float]
    time: tuple[Array, float]
    bias: Array | None
    data: tuple[float, int]
    output: tuple[float, int]
    memory_scale: float
    rank: int = 1
    memory_zero_point: int = 0

    def run(self, data: Any, memory: Any) -> tuple[Array, Array]:
        """One step.

        Args:
            data: int8, of shape (rows, inputs).
            memory: int16, or int8 as `time`, of shape (rows, filters, places), the newest value last.

        Returns:
            Outputs, int8, of shape (rows, units), and the memory afterwards.
        """
        weights, places = self.feature[0].astype(np.int64), self.time[0].astype(np.int64)
        newest = _rescale((np.asarray(data, np.int64) - self.data[1]) @ weights.T, self.newest_factor) + self.memory_zero_point
        ends = np.iinfo(self.time[0].dtype)
        kept = np.concatenate([np.asarray(memory, np.int64)[..., 1:], np.clip(newest, ends.min, ends.max)[..., None]], axis=-1)
        sums = ((kept - self.memory_zero_point) * places).sum(axis=-1).reshape(len(kept), -1, self.rank).sum(axis=-1)
        total = (sums if self.bias is None else sums + self.bias).astype(np.int32)  # the kernel's sum wraps around too
        steps = _rescale(total, self.result_factor) + self.output[1]
        return np.clip(steps, -128, 127).astype(np.int8), kept.astype(ends.dtype)

    @property
    def newest_factor(self) -> float:
        """Of a product with the data, in steps of the memory."""
        return _factor(self.data[0], self.feature[1], self.memory_scale)

    @property
    def result_factor(self) -> float:
        """Of a sum over the memory, in steps of the result."""
        return _factor(self.memory_scale, self.time[1], self.output[0])


def _factor(first: float, second: float, result: float) -> float:
    """The scales are multiplied and divided in float32."""
    return float(np.float32(np.float32(first) * np.float32(second)) / np.float32(result))


def _rescale(acc: Array, factor: float) -> Array:
    """Rounded twice."""
    return multiply_by_quantized_multiplier(acc, *quantize_multiplier(factor))
