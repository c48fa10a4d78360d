"""The accumulators of quantized operators: sums of products of integers, with the range that they can have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic import is_accumulator_scale
from qconvert.graph import Array, Graph, Op, Tensor, drop_keys, integer_range
from qconvert.kernels.products import along_channels
from qconvert.operators import KINDS, kind_of, output_axis
from qconvert.operators.call import activated_limits

_BYTES = ("int8", "uint8")
#: Result types of a Requantize: it has one accumulator for each integer that it reads.
_CONVERTED = (*_BYTES, "int16", "uint16", "int32")
#: Results times channels that are compared, one by one.
_MOST_COMPARED = 2**23
#: Types whose integers a byte holds, and the type of that byte.
_AS_BYTES = {"int2": "int8", "int4": "int8", "int8": "int8", "uint2": "uint8", "uint4": "uint8", "uint8": "uint8"}
#: What kernels without 32-bit sums add of two neighbours before they saturate, for one sign; see the pass guard_saturation.
_LARGEST_PAIR = 128


class UnfitError(Exception):
    """The reason why an operator with an integer result has no exact accumulator of int32."""


class TooLargeError(UnfitError):
    """The accumulator of an operator may leave int32, so that its kernel wraps around."""

    def __init__(self) -> None:
        super().__init__("its accumulator may leave int32")


class Accumulator(NamedTuple):
    """The integers of an operator before they are requantized to its result, and the integer operator that computes them.

    Attributes:
        kind: ConvInteger, MatMulInteger, Mul (of differences) or Sub (a difference).
        scale: the float value of 1: float64, one, or one for each output.
        low, high: the range, with the bias: int64, likewise.
        limits: the stored integers that the activation leaves of the result's quantization.
        zero_points: of each factor, with the type in which it is written.
        weights: constant factors as ConvInteger and MatMulInteger take them; None for those that are computed, and of other kinds.
        bias: integers, one for each output; None if there is none.
        attributes: of the operator of that kind.
        shape: in which values for each output broadcast against the result.
        narrow: the part of the multiplier that TFLite's own kernels compute in float32: "product" of the scales, "all", or "" for nothing.
    """

    kind: str
    scale: Array
    low: Array
    high: Array
    limits: tuple[int, int]
    zero_points: tuple[tuple[Array, str], ...]
    weights: Array | None = None
    bias: Array | None = None
    attributes: Mapping[str, Any] = MappingProxyType({})
    shape: tuple[int, ...] = (-1,)
    narrow: str = ""

    @property
    def sums_products(self) -> bool:
        """Whether the operator of that kind sums products, and takes zero points."""
        return bool(KINDS[self.kind].float_kind)

    def multiplier(self, output: float, as_tflite: bool) -> Array:
        """Return the scales divided by that of the result, float64; with the roundings of TFLite's kernels, or exact.

        Sources: GetQuantizedConvolutionMultipler (kernel_util.cc) for uint8, PopulateConvolutionQuantizationParams for int8, mul.cc.
        """
        if not as_tflite or not self.narrow:
            return self.scale / output
        product = self.scale.astype(np.float32)  # once, as the product of two numbers of float32 is exact in float64
        return (product / np.float32(output)).astype(np.float64) if self.narrow == "all" else product.astype(np.float64) / output

    def along(self, values: Array) -> Array:
        """Return values, one or one for each output, in a shape that broadcasts against the result."""
        values = np.asarray(values)
        return values.reshape(()) if values.size == 1 else values.reshape(self.shape)


def accumulator_of(graph: Graph, op: Op, *, of_some_weights: bool = False) -> Accumulator | None:
    """Return the accumulator of a Conv, Gemm, MatMul or Mul with a result of 8 bits, or of a Requantize; None for other operators.

    Args:
        graph, op: the operator.
        of_some_weights: whether it may be a ConvTranspose, whose sums have some of the weights of a channel: only scale, bias and range are
            its own.

    Raises:
        UnfitError: it is one of these, with integers on all sides, but int32 may not hold its accumulator.
    """
    kind = kind_of(op)
    sides = [graph[name] for name in (*op.inputs[:2], *op.outputs) if name]
    requantizes, multiplies = kind.requantizes, kind.commutes and not kind.sum_sign
    sums_products = kind.sums_products if of_some_weights else kind.sums_all_weights
    if not (requantizes or multiplies or sums_products) or any(tensor.quantization is None for tensor in sides):
        return None
    if sides[-1].dtype not in (_CONVERTED if requantizes else _BYTES):
        return None
    if not sides[-1].require_quantization().is_per_tensor:
        return None
    if op.attributes.get("arithmetic"):
        raise UnfitError(f"it has the arithmetic of {op['arithmetic']}")
    sums = _weights_accumulator if kind.has_weights else _matmul_accumulator
    make = _difference_accumulator if requantizes else _product_accumulator if multiplies else sums
    found = make(graph, op, sides[-1])
    if max(abs(int(found.low.min())), abs(int(found.high.max()))) > 2**31 - 1 and not requantizes:
        raise TooLargeError
    if min(found.limits[1] - found.limits[0], int((found.high - found.low).max())) * found.scale.size > _MOST_COMPARED:
        raise UnfitError("it has too many results to compare all of them")
    return found


def may_wrap(graph: Graph, op: Op) -> bool:
    """Return whether the accumulator of an operator of 8 bits may leave int32, whichever kernel's arithmetic it has."""
    try:
        accumulator_of(graph, replace(op, attributes=drop_keys(op.attributes, "arithmetic")), of_some_weights=True)
    except TooLargeError:
        return True
    except UnfitError:
        return False
    return False


def _range(tensor: Tensor) -> tuple[int, int]:
    """The lowest and highest integer less the zero point that a tensor with one scale can have."""
    low, high = integer_range(tensor.dtype)
    if tensor.data is not None and tensor.data.size:
        low, high = int(tensor.data.min()), int(tensor.data.max())
    point = int(tensor.require_quantization().zero_point[0])
    return min(0, low - point), max(0, high - point)


def _require_one_scale(tensor: Tensor) -> None:
    if not tensor.require_quantization().is_per_tensor:
        raise UnfitError("a factor has several scales")


def _weights_accumulator(graph: Graph, op: Op, result: Tensor) -> Accumulator:
    """Conv and Gemm: constant weights, outputs first."""
    data, weights = graph[op.inputs[0]], graph[op.inputs[1]]
    if data.dtype not in _BYTES or weights.data is None:
        raise UnfitError("its weights are computed, or its data do not have 8 bits")
    stored, point = _byte_weights(op, data, weights)
    steps = stored.astype(np.int64) - point
    bias, scale = _bias(graph, op, data, weights, len(steps))
    low, high = _sums(steps.reshape(len(steps), -1), _range(data))
    low, high = _add_bias_to_range(low, high, bias, scale)
    narrow = "product" if data.dtype == "uint8" else ""
    if kind_of(op).is_matrix_product:
        return Accumulator("MatMulInteger", scale, low, high, activated_limits(op, result), _points(data, stored, point),
                           np.ascontiguousarray(stored.T), bias, narrow=narrow)  # fmt: skip
    kept = drop_keys(op.attributes, "activation", "arithmetic")
    shape = along_channels(op, stored.ndim)
    return Accumulator("ConvInteger", scale, low, high, activated_limits(op, result), _points(data, stored, point), stored, bias,
                       kept, shape, narrow)  # fmt: skip


def _matmul_accumulator(graph: Graph, op: Op, result: Tensor) -> Accumulator:
    """MatMul, of constant weights or of two tensors that are computed."""
    data, factor = graph[op.inputs[0]], graph[op.inputs[1]]
    if data.dtype not in _BYTES or factor.dtype not in _AS_BYTES or op["trans_a"]:
        raise UnfitError("a factor is transposed, or does not have 8 bits")
    _require_one_scale(data)
    if factor.data is None:
        depth = (data.shape or (0,))[-1]
        if op["trans_b"] or not isinstance(depth, int) or depth < 1 or factor.dtype not in _BYTES:
            raise UnfitError("a factor is transposed, or its depth is unknown")
        return _computed_factors("MatMulInteger", op, (data, factor), result, depth)
    stored, point = _byte_weights(op, data, factor)
    if op["trans_b"]:
        stored = np.ascontiguousarray(stored.swapaxes(-1, -2))
    quantization = factor.require_quantization()
    if quantization.axis not in (None, output_axis(op, stored.ndim)):
        raise UnfitError("its weights have scales along another axis than the output channels")
    steps = stored.astype(np.int64) - point
    rows = np.moveaxis(steps, -2, -1).reshape(-1, steps.shape[-2])  # a row for each sum
    low, high = (end.reshape(-1, steps.shape[-1]) for end in _sums(rows, _range(data)))
    scale = np.atleast_1d(float(data.require_quantization().scale[0]) * quantization.scale.astype(np.float64))
    low, high = _add_bias_to_range(low.min(0), high.max(0), np.zeros(1, np.int64), scale)
    return Accumulator("MatMulInteger", scale, low, high, activated_limits(op, result), _points(data, stored, point), stored)


def _add_bias_to_range(low: Array, high: Array, bias: Array, scale: Array) -> tuple[Array, Array]:
    """Return the range with the bias: one for one scale, else one for each output.

    Raises:
        TooLargeError: the sums without the bias may leave int32.
    """
    if max(-int(low.min()), int(high.max())) > 2**31 - 1:
        raise TooLargeError
    low, high = low + bias, high + bias
    return (low, high) if scale.size > 1 else (np.atleast_1d(low.min()), np.atleast_1d(high.max()))


def _product_accumulator(graph: Graph, op: Op, result: Tensor) -> Accumulator:
    """Mul: the product of both factors' integers less their zero points."""
    first, second = (graph[name] for name in op.inputs)
    return _computed_factors("Mul", op, (first, second), result, narrow="all")


def _computed_factors(kind: str, op: Op, factors: tuple[Tensor, Tensor], result: Tensor, depth: int = 1, narrow: str = "") -> Accumulator:
    """Return the accumulator of `depth` products of two tensors with one scale each."""
    for tensor in factors:
        _require_one_scale(tensor)
    ends = [a * b * depth for a in _range(factors[0]) for b in _range(factors[1])]
    scale = np.array([math.prod(float(tensor.require_quantization().scale[0]) for tensor in factors)])
    points = tuple((tensor.require_quantization().zero_point.reshape(()), tensor.dtype) for tensor in factors)
    return Accumulator(kind, scale, np.array([min(ends)]), np.array([max(ends)]), activated_limits(op, result), points, narrow=narrow)


def _difference_accumulator(graph: Graph, op: Op, result: Tensor) -> Accumulator:
    """Requantize: the integers less their zero points."""
    data = graph[op.inputs[0]]
    quantization, (low, high) = data.require_quantization(), integer_range(data.dtype)
    if "float" in data.dtype or quantization.block_size or data.shape is None:
        raise UnfitError("its data have per-block scales, or are not integers")
    if data.dtype in ("int64", "uint64", "uint32"):
        raise TooLargeError
    points = quantization.zero_point.reshape(-1)
    if data.dtype == "int32" and points.any():
        raise TooLargeError
    shape = (-1,) if quantization.axis is None else (-1, *[1] * (len(data.shape) - 1 - quantization.axis))
    scale = quantization.scale.reshape(-1).astype(np.float64)
    spread = points.reshape(shape) if points.size > 1 else points.reshape(())
    return Accumulator("Sub", scale, low - points, high - points, activated_limits(op, result), ((spread, data.dtype),), shape=shape)


def _byte_weights(op: Op, data: Tensor, weights: Tensor) -> tuple[Array, int]:
    """Return constant weights in bytes, and their one zero point; as uint8 if sums of pairs could saturate."""
    _require_one_scale(data)
    points = weights.require_quantization().zero_point
    if (
        weights.data is None
        or weights.dtype not in _AS_BYTES
        or weights.require_quantization().block_size
        or (points != points.flat[0]).any()
    ):
        raise UnfitError("its weights have several zero points, or do not have 8 bits")
    stored, point = np.ascontiguousarray(weights.data.astype(_AS_BYTES[weights.dtype])), int(points.flat[0])
    if data.dtype == "uint8" and stored.dtype == np.int8 and largest_pair_sum(op, stored) > _LARGEST_PAIR:
        return (stored.astype(np.int16) + 128).astype(np.uint8), point + 128
    return stored, point


def _points(data: Tensor, stored: Array, point: int) -> tuple[tuple[Array, str], ...]:
    return (data.require_quantization().zero_point.reshape(()), data.dtype), (np.array(point), stored.dtype.name)


def _bias(graph: Graph, op: Op, data: Tensor, weights: Tensor, count: int) -> tuple[Array, Array]:
    """Integers for each output, zeros without a bias, and the float value of 1."""
    scale = np.atleast_1d(float(data.require_quantization().scale[0]) * weights.require_quantization().scale.astype(np.float64))
    if weights.require_quantization().axis not in (None, 0):
        raise UnfitError("its weights have scales along another axis than the output channels")
    if not op.has(2):
        return np.zeros(count, np.int64), scale
    bias = graph[op.inputs[2]]
    if bias.data is None or bias.dtype != "int32" or bias.quantization is None or bias.data.size not in (1, count):
        raise UnfitError("its bias is float; float_bias_to_int32 quantizes it")
    stated = bias.quantization.scale.reshape(-1)
    if bias.quantization.zero_point.any() or not is_accumulator_scale(stated, scale if stated.size in (1, scale.size) else np.nan):
        raise UnfitError("its bias has another scale")
    return np.broadcast_to(bias.data.reshape(-1).astype(np.int64), (count,)), scale


def _sums(rows: Array, data: tuple[int, int]) -> tuple[Array, Array]:
    """Return the lowest and the highest sum of products of each row with data in an interval around 0."""
    products = rows * data[0], rows * data[1]
    return np.minimum(*products).sum(axis=1), np.maximum(*products).sum(axis=1)


#: Weights of which pairs are added at a time.
_PIECE = 2**20


def largest_pair_sum(op: Op, weights: Array) -> int:
    """The largest magnitude of w[2i] + w[2i+1] along K, both of one sign; 0 for depthwise kernels, which add in 32 bits.

    Those kernels run where each group has one input and one output channel (qlinearconv.cc, is_depthwise_conv); a grey image's
    first convolution and a depth multiplier above 1 are multiplied as matrices.

    Args:
        op: the Conv, Gemm or MatMul.
        weights: int8, as stored by the operator (O,I,spatial, or O,I, or ...,I,O).
    """
    if kind_of(op).has_windows:
        if weights.shape[1] == 1 and len(weights) == op["group"]:
            return 0
        rows = np.moveaxis(weights, 1, -1)
        return max(row_pairs(rows.reshape(len(rows), -1)), row_pairs(rows.reshape(-1, rows.shape[-1])))
    rows = weights if kind_of(op).has_weights or op["trans_b"] else weights.swapaxes(-1, -2)
    return row_pairs(rows.reshape(-1, rows.shape[-1]))


def row_pairs(rows: Array) -> int:
    """Unequal signs cannot exceed the range of one weight, so the magnitude of the sum alone decides."""
    even, largest = rows.shape[1] // 2 * 2, 0
    step = max(1, _PIECE // max(1, even))
    for start in range(0, len(rows), step):  # whose sums stay in a cache
        part = rows[start : start + step]
        sums = np.add(part[:, 0:even:2], part[:, 1:even:2], dtype=np.int16)
        largest = max(largest, int(sums.max(initial=0)), -int(sums.min(initial=0)))
    return largest
