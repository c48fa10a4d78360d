"""The integers of kernels that sum: products, in an exact accumulator that is requantized to the result, or the data that they reduce, as
functions of the sum of stored integers, which is exact in any order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic import (
    REQUANTIZERS,
    accumulator_quantization,
    effective_scale,
    is_accumulator_scale,
    saturate,
    scale_and_zero_point,
)
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, drop_keys, integer_range
from qconvert.kernels.kernel import Integers, quantizations_of
from qconvert.operators import kind_of, output_axis, reduced_count
from qconvert.operators.call import spatial_axes
from qconvert.operators.sizes import SAME

_BYTES = ("int8", "uint8")
#: Bits of the data -> types of data and result, of the other factor, and of a bias, and from where on the kernel has no accumulator.
_TYPES = {8: (_BYTES, _BYTES, "int32", 2.0**31), 16: (("int16",), ("int8", "int16"), "int64", 2.0**47)}
_STEPS = 2.0**31


@dataclass(frozen=True, slots=True)
class Requantizer:
    """The reference of a Conv, ConvTranspose, Gemm, MatMul or Mul.

    The sum of the products of integers less their zero points, with the bias, is exact in int32, or in int64 for data of 16 bits;
    the kernel multiplies it by first scale * second scale / result scale and rounds to int32.

    Attributes:
        rounding: a name of arithmetic.REQUANTIZERS.
        precision: in which the kernel computes the multiplier; see arithmetic.effective_scale().
        bits: of data and result, 8 or 16.
    """

    rounding: str
    precision: str = "float64"
    bits: int = 8

    def __call__(self, graph: Graph, op: Op, stored: Sequence[Array | None]) -> Integers | None:
        """Compute the integers for stored inputs; None if data are missing or float, or the accumulator is too large."""
        if any(value is None for value in stored[:2]) or not self.takes(graph, op):
            return None
        total = accumulate_products(graph, op, stored)
        if float(np.abs(total).max(initial=0)) >= _TYPES[self.bits][3]:
            return None
        multiplier = self.multiplier(graph, op)
        multiplier = multiplier.reshape(along_channels(op, total.ndim) if multiplier.size > 1 else ())
        if float(np.abs(total * multiplier).max(initial=0)) >= _STEPS:
            return None
        steps = self.steps(total.astype(np.int64), multiplier)
        return Integers.clip_to_limits(graph, op, steps + graph[op.name].require_quantization().point)

    def takes(self, graph: Graph, op: Op) -> bool:
        """Whether an operator multiplies data of these bits, with one scale for the first factor and the result, and its bias, if any, has
        the quantization of the accumulator."""
        first, second, result = (graph[name] for name in (*op.inputs[:2], op.name))
        quantizations = quantizations_of(graph, op, 2, of_any_axis=True)
        types, factors, bias_type, _ = _TYPES[self.bits]
        if not quantizations or any(quantization.block_size for quantization in quantizations):
            return False
        if first.dtype not in types or result.dtype not in types or second.dtype not in factors:
            return False
        data, weights, output = quantizations
        along = output_axis(op, second.rank or 0) if kind_of(op).sums_products else None
        if not (data.is_per_tensor and output.is_per_tensor) or (not weights.is_per_tensor and weights.axis != along):
            return False
        if not op.has(2):
            return True
        bias = graph[op.inputs[2]]
        if bias.dtype != bias_type or bias.quantization is None or bias.quantization.zero_point.any():
            return False
        stated, products = bias.quantization.scale, data.scale * weights.scale
        return stated.size in (1, products.size) and bool(is_accumulator_scale(stated, products))

    def multiplier(self, graph: Graph, op: Op) -> Array:
        """The multiplier of the accumulator, float64: one, or one for each output channel."""
        first, second, result = quantizations_of(graph, op, 2, of_any_axis=True)
        return np.atleast_1d(effective_scale(first.scale, second.scale, result.scale, self.precision))

    def steps(self, total: Array, multiplier: Array) -> Array:
        """Steps of the result, without its zero point, of accumulators in int64."""
        return REQUANTIZERS[self.rounding](total, multiplier)

    def steps_of_channels(self, graph: Graph, op: Op, bias: Array) -> Callable[[Array], Array]:
        """What gives the steps of accumulators, a row for each channel, that have the integers of a bias, a column."""
        multiplier = self.multiplier(graph, op).reshape(-1, 1)
        return lambda total: self.steps(total, multiplier)


@dataclass(frozen=True, slots=True)
class ExactProducts(Requantizer):
    """The reference of a product of constant weights that is exact in float64, and whose bias is added as it is, be it float or integer.

    The scales of data and weights multiply the sum of integers, the bias is added, and the scale of the result divides: each is rounded to
    float64, the last to the even integer.
    """

    rounding: str = "exact"

    def __call__(self, graph: Graph, op: Op, stored: Sequence[Array | None]) -> Integers | None:
        """Compute the integers for stored inputs; None if data are missing, or of other types."""
        if stored[0] is None or not self.takes(graph, op):
            return None
        weights = graph[op.inputs[1]].data if stored[1] is None else stored[1]
        total = accumulate_products(graph, replace(op, inputs=op.inputs[:2]), [stored[0], weights])
        channels = np.moveaxis(total, channel_axis(op, total.ndim), 0)
        rows = channels.reshape(channels.shape[0], -1)
        steps = self.steps_of_channels(graph, op, np.zeros((1, 1)))(rows).reshape(channels.shape)
        point = graph[op.name].require_quantization().point
        return Integers.clip_to_limits(graph, op, np.moveaxis(steps, 0, channel_axis(op, total.ndim)) + point)

    def takes(self, graph: Graph, op: Op) -> bool:
        """Whether an operator has data and result of 8 bits with one scale, and constant weights with one, or one for each output."""
        first, second, result = (graph[name] for name in (*op.inputs[:2], op.name))
        bias = graph[op.inputs[2]] if op.has(2) else None
        quantizations = quantizations_of(graph, op, 2, of_any_axis=True)
        if not quantizations or any(quantization.block_size for quantization in quantizations) or op.attributes.get("arithmetic"):
            return False
        data, weights, output = quantizations
        of_bytes = {first.dtype, second.dtype, result.dtype} <= {*_BYTES}
        if not of_bytes or second.data is None or not (data.is_per_tensor and output.is_per_tensor) or weights.axis not in (None, 0):
            return False
        if not kind_of(op).has_weights or (bias is None):
            return bias is None
        return bias.data is not None and bias.data.ndim == 1 and bias.data.size == second.data.shape[0]

    def steps_of_channels(self, graph: Graph, op: Op, bias: Array) -> Callable[[Array], Array]:
        """See Requantizer. The operator's own bias takes the place of those integers."""
        data, weights, output = quantizations_of(graph, op, 2, of_any_axis=True)
        factor = (data.scale.astype(np.float64) * weights.scale.astype(np.float64)).reshape(-1, 1)
        own = graph[op.inputs[2]].float_values().astype(np.float64).reshape(-1, 1) if op.has(2) else np.zeros((1, 1))
        divisor = float(output.scale[0])
        return lambda total: np.rint(((total - bias) * factor + own) / divisor).astype(np.int64)


def bias_quantization(data: Quantization, weights: Quantization, shape: tuple[int, ...]) -> Quantization | None:
    """Input scale * weight scale, a float32 product, for an integer bias of `shape`; None if it has no such quantization.

    Args:
        data: of the input, per tensor.
        weights: per tensor, or one scale for each output channel.
        shape: of the bias; channels run along its last axis.
    """
    if data.axis is not None or weights.block_size:
        return None
    quantization = accumulator_quantization(data, weights, len(shape) - 1)
    if not (np.isfinite(quantization.scale) & (quantization.scale > 0)).all():
        return None
    fits = quantization.is_per_tensor or (shape and shape[-1] == quantization.scale.size and all(size == 1 for size in shape[:-1]))
    return quantization if fits else None


def rounded_bias(graph: Graph, op: Op, precision: type[np.floating[Any]] = np.float32) -> Tensor | None:
    """The constant float bias of a product as int32 at data scale * weight scale, rounded half to even; None if it does not fit.

    Args:
        graph, op: the operator, whose data and weights are quantized.
        precision: in which bias and scale are divided: float32 in onnxruntime (weight_bias_quantization.cc: Div, Round, Cast).
    """
    data, weights, bias = (graph[name] for name in op.inputs[:3])
    if data.quantization is None or weights.quantization is None:
        return None
    return round_bias(bias, data.quantization, weights.quantization, precision)


def round_bias(bias: Tensor, data: Quantization, weights: Quantization, precision: type[np.floating[Any]] = np.float32) -> Tensor | None:
    """Return a float bias as int32 at data scale * weight scale, rounded half to even; None if it is no constant or does not fit."""
    if bias.data is None or not np.isfinite(bias.data).all():
        return None
    quantization = bias_quantization(data, weights, bias.data.shape)
    if quantization is None:
        return None
    scale, _ = scale_and_zero_point(quantization, bias.data.shape)
    with np.errstate(over="ignore"):
        steps = np.rint(bias.data.astype(precision) / scale.astype(precision))
    low, high = integer_range("int32")
    if steps.size and not (low <= steps.min() and steps.max() <= high):
        return None
    return replace(bias, dtype="int32", data=saturate(steps, "int32"), quantization=quantization)


def channel_axis(op: Op, rank: int) -> int:
    """The axis of the result along which output channels run."""
    return 1 if op.attributes.get("data_format") == "channels_first" else rank - 1


def along_channels(op: Op, rank: int) -> tuple[int, ...]:
    """The shape in which one value for each output channel broadcasts against a result of a rank."""
    return (-1, *[1] * (rank - 1 - channel_axis(op, rank)))


def accumulate_products(graph: Graph, op: Op, stored: Sequence[Array | None]) -> Array:
    """Return the accumulators, whole numbers in float64: the operator's exact value with all scales 1."""
    tensors = {}
    for name in filter(None, op.names):
        quantization = graph[name].quantization
        whole = None if quantization is None else Quantization(np.ones_like(quantization.scale), quantization.zero_point, quantization.axis)
        tensors[name] = replace(graph[name], quantization=whole)
    plain = replace(op, attributes=drop_keys(op.attributes, "activation", "arithmetic"))
    real = evaluate_op(replace(graph, tensors=tensors), plain, list(stored))[0].real
    assert real is not None
    return np.rint(real)


class Sums(NamedTuple):
    """What a reduction adds: sums of stored integers, how many each is of, and the quantizations of data and result."""

    sums: Array
    size: int
    given: Quantization
    output: Quantization


def count_summed(graph: Graph, op: Op) -> int | None:
    """Return of how many elements each result of an average or a sum is; None if not all are of as many, or sizes are not known."""
    if kind_of(op).has_windows:
        return None if any(op["pads"]) or op["ceil_mode"] or op["auto_pad"] in SAME else math.prod(op["kernel_shape"])
    if "keepdims" in kind_of(op).attributes:
        return reduced_count(graph, op) or None
    shape = graph[op.inputs[0]].shape or ()
    sizes = [size for axis in spatial_axes(op, len(shape)) if isinstance(size := shape[axis], int)]
    return math.prod(sizes) or None if shape and len(sizes) == len(shape) - 2 else None


def count_ones(graph: Graph, op: Op) -> int | None:
    """Return of how many elements of one channel each result of a convolution with weights of ones is the sum; None of others, and where
    not all are of as many."""
    weights = graph[op.inputs[1]] if kind_of(op).has_weights and kind_of(op).has_windows else None
    bias = graph.constant(op.inputs[2]) if op.has(2) else np.zeros(1)
    if weights is None or weights.data is None or bias is None or bias.any() or any(op["pads"]) or op["auto_pad"] in SAME:
        return None
    quantization, data = weights.per_tensor, weights.data
    if quantization is None or data.shape[1] != 1 or int(op["group"]) != data.shape[0] or not np.all(data == quantization.point + 1):
        return None
    return int(data[0].size)


def addition_error(graph: Graph, op: Op, count: int) -> float:
    """Return how far an average of `count` bytes may be from the exact one, in steps of the result, if it is computed in float32.

    In whatever order it adds, each addition may be off by half a last bit of its sum, on average half of the largest sum.
    """
    quantizations, (low, high) = quantizations_of(graph, op), integer_range(graph[op.inputs[0]].dtype)
    if not quantizations:
        return 0.0
    given, output = quantizations
    largest = max(high - given.point, given.point - low) * given.step / output.step
    # Further roundings: of each value, of the division by their number and by the scale, and of what is added to the zero point.
    return ((count / 2 + 4) * largest + high - low + 1) * 2.0**-24


@dataclass(frozen=True, slots=True)
class SumReference:
    """The reference of a reduction, or an average over all positions, whose integers follow from the sums of stored integers alone.

    Attributes:
        integers: computes these of (graph, operator, sums); with the file of the runtime as source in its docstring.
    """

    integers: Callable[[Graph, Op, Sums], Integers | None]

    def __call__(self, graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
        """Compute the integers for stored inputs; None if the sums are not known."""
        data, result = graph[op.inputs[0]], graph[op.name]
        quantizations = quantizations_of(graph, op)
        if not quantizations or stored[0] is None or not stored[0].size or data.dtype != result.dtype:
            return None
        if "keepdims" not in kind_of(op).attributes:
            axes, keepdims = tuple(spatial_axes(op, stored[0].ndim)), True
        else:
            listed = stored[1] if len(stored) > 1 else None
            axes, keepdims = () if listed is None else tuple(int(axis) for axis in np.asarray(listed).reshape(-1)), bool(op["keepdims"])
        sums = np.asarray(np.asarray(stored[0], np.int64).sum(axis=axes or None, keepdims=keepdims))
        return self.integers(graph, op, Sums(sums, stored[0].size // max(sums.size, 1), *quantizations))
