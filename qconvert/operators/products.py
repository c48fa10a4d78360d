"""What sums of products share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qconvert.arithmetic import DYNAMIC_ROUNDINGS, OF_ROWS, OF_WHOLE_TENSORS, dynamic_steps, is_accumulator_scale
from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Graph, Op, Tensor
from qconvert.operators.attributes import AttributeSpec, choice
from qconvert.operators.call import Call
from qconvert.operators.properties import ANY, Interval, Operands, hull

#: Of operators with integer weights next to real data; without it the weights count as the float values that they stand for.
DYNAMIC: Mapping[str, AttributeSpec] = {"arithmetic": choice(("", *(name for name in DYNAMIC_ROUNDINGS if name != "dynamic_rows")), "")}
#: Of TFLite's recurrent operators, whose kernels have rows alone, and another rounding of them.
DYNAMIC_ROWS: Mapping[str, AttributeSpec] = {"arithmetic": choice(("", *OF_ROWS), "")}


def is_dynamic(op: Op) -> bool:
    """Whether an operator has integer weights with float data, which it rounds to integers when it runs (dynamic range)."""
    return str(op.attributes.get("arithmetic", "")).startswith("dynamic")


def is_depthwise(op: Op, weights: Tensor) -> bool:
    """Whether an operator is a convolution of several groups that have one input channel each."""
    from qconvert.operators import kind_of

    return kind_of(op).convolves and int(op["group"]) > 1 and weights.shape is not None and weights.shape[1] == 1


def count_groups(op: Op) -> int:
    """Return how many groups the channels of a layer have."""
    return int(op["group"]) if "group" in op.attributes else 1


def output_axis(op: Op, rank: int) -> int:
    """The axis of the weights that the output channels run along."""
    if op.kind != "MatMul":
        return 0
    return rank - 2 if op["trans_b"] else rank - 1


def range_axes(op: Op, rank: int, kernel: Sequence[int]) -> Sequence[int]:
    """The axes of the data over which an operator of dynamic range takes one range.

    That is a row of a matrix product, an image of a convolution, and a pixel of one that is a matrix product; or all of them.

    Args:
        op: the operator.
        rank: of its data.
        kernel: the spatial sizes of its weights.
    """
    if op["arithmetic"] in OF_WHOLE_TENSORS:
        return range(rank)
    if "strides" not in op.attributes:  # a product of matrices, or a recurrence
        return [rank - (2 if op.attributes.get("trans_a") else 1)]
    from qconvert.operators import kind_of

    alone = kind_of(op).convolves and {1} == {*kernel, *op["strides"], int(op["group"])} and not any(op["pads"])
    if alone and op["arithmetic"] == "dynamic":
        return [rank - 1 if op["data_format"] == "channels_last" else 1]
    return range(1, rank)


def rounded_steps(call: Call) -> tuple[Array, Array | float]:
    """The data of a sum of products as Call.factor() gives them, rounded to integers where the operator does so when it runs; their
    scale is then of the data's rank, and of size 1 along the axes of a range."""
    rounding, data = str(call["arithmetic"]), call.raw(0)
    if not is_dynamic(call.op):
        return call.factor(0)
    return dynamic_steps(data, range_axes(call.op, data.ndim, call.raw(1).shape[2:]), rounding)[:2]


def rounded_data(call: Call) -> tuple[Array, Array | float]:
    """Likewise, multiplied by the scale where it is one of when the operator runs, which differs from row to row."""
    steps, scale = rounded_steps(call)
    return (np.asarray(steps * scale), 1.0) if is_dynamic(call.op) else (steps, scale)


def rounded_rows(op: Op, values: Array) -> Array:
    """Float values as a recurrent operator multiplies them: rounded to integers where it does so when it runs.

    Args:
        op: the operator.
        values: its data, of a sequence all of them, or the hidden values of one step; a row along the last axis.
    """
    if not is_dynamic(op):
        return values
    rounding = str(op["arithmetic"])
    axes = range(values.ndim) if rounding in OF_WHOLE_TENSORS else [values.ndim - 1]
    steps, scale, _ = dynamic_steps(values, axes, rounding)
    return np.asarray(steps * scale)


def with_bias(call: Call, total: Array, scale: Array | float) -> Array:
    """(total + bias) * scale; the bias joins the sum as an integer where it has the same quantization, as in every integer kernel."""
    if call.has(2):
        steps, bias_scale = call.factor(2, 0)
        if call.quantization(2) is not None and is_accumulator_scale(bias_scale, scale):
            return np.asarray((total + steps) * scale)
        return np.asarray(total * scale + steps * bias_scale)
    return np.asarray(total * scale)


def zero_point(call: Call, index: int) -> Array:
    """The zero point that input `index` of an integer product holds; 0 if it is absent."""
    return call.raw(index).astype(np.int64) if call.has(index) else np.zeros((), np.int64)


def sum_of_products(operands: Operands) -> Interval:
    """Between which values a sum of products with constant integer weights lies; padding gives zeros."""
    weights, (low, high), bias = operands.tensor(1), hull([*operands.data[:1], (0.0, 0.0)]), operands.tensor(2)
    if weights is None or weights.data is None or not math.isfinite(low) or not math.isfinite(high) or "float" in weights.dtype:
        return ANY
    if weights.quantization is None or weights.quantization.block_size or not weights.data.size or (bias is not None and bias.data is None):
        return ANY
    real, added = operands.float_values(1), operands.float_values(2)
    assert real is not None
    rows = real.reshape(len(real), -1)
    positive, negative = np.maximum(rows, 0).sum(1), np.minimum(rows, 0).sum(1)
    offset = 0.0 if added is None else added.reshape(-1)
    least, most = positive * low + negative * high + offset, positive * high + negative * low + offset
    return float(least.min()), float(most.max())


def products_of_windows(op: Op, inputs: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> int:
    """A convolution uses each weight at each place of its result."""
    return _at_places(op, result, inputs[1])


def products_of_transposed(op: Op, inputs: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> int:
    """A transposed convolution uses each weight at each place of its data."""
    return _at_places(op, inputs[0], inputs[1])


def _at_places(op: Op, places: tuple[int, ...], weights: tuple[int, ...]) -> int:
    channels = places[-1 if op["data_format"] == "channels_last" else 1] if len(places) > 1 else 1
    return math.prod(places) // max(channels, 1) * math.prod(weights)


def products_of_rows(*weights: int) -> Callable[[Op, Sequence[tuple[int, ...]], tuple[int, ...]], int]:
    """Each row of the data is multiplied by all of the weights, which are these inputs."""

    def products(op: Op, inputs: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> int:
        return math.prod(inputs[0][:-1]) * sum(math.prod(inputs[index]) for index in weights if op.has(index))

    return products


def is_product_of_activations(graph: Graph, op: Op) -> bool:
    """Whether an operator is a MatMul of two activations of 8 signed bits whose zero points can be decomposed next to it: matrices with one
    quantization each, as deep as is known."""
    if op.kind != "MatMul" or op.attributes.get("activation"):
        return False
    sides = [graph[name] for name in op.inputs[:2]]
    if any(side.is_constant or side.dtype != "int8" or side.per_tensor is None for side in sides):
        return False
    if any(side.shape is None or len(side.shape) < 2 for side in sides) or not graph[op.name].shape:
        return False
    shape = sides[0].shape or ()
    return isinstance(shape[-2 if op.attributes.get("trans_a") else -1], int)
