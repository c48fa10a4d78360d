"""What sums of products share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qconvert.arithmetic import DYNAMIC_ROUNDINGS, OF_ROWS, OF_WHOLE_TENSORS, dynamic_steps, is_accumulator_scale
from qconvert.arithmetic.dtypes import Array
from qconvert.graph.schema import Op
from qconvert.operators.attributes import AttributeSpec, choice
from qconvert.operators.call import Call

__all__ = ["DYNAMIC", "DYNAMIC_ROWS", "integer_weights", "is_dynamic", "output_axis", "range_axes", "rounded_data", "rounded_rows",
           "rounded_steps", "with_bias", "zero_point"]  # fmt: skip

#: Of operators with integer weights beside real data; without it the weights count as the real values that they stand for.
DYNAMIC: Mapping[str, AttributeSpec] = {"arithmetic": choice(("", *(name for name in DYNAMIC_ROUNDINGS if name != "dynamic_rows")), "")}
#: Of TFLite's recurrent operators, whose kernels have rows alone, and another rounding of them.
DYNAMIC_ROWS: Mapping[str, AttributeSpec] = {"arithmetic": choice(("", *OF_ROWS), "")}
#: The inputs that may be integer weights, of the kinds of which it is not input 1 alone.
_WEIGHTS = {"LSTM": (1, 2, 7, 8), "GRU": (1, 2), "RNN": (1, 2), "SVDF": (2, 3)}


def is_dynamic(op: Op) -> bool:
    """Whether an operator has integer weights with float data, which it rounds to integers when it runs (dynamic range)."""
    return str(op.attributes.get("arithmetic", "")).startswith("dynamic")


def integer_weights(op: Op) -> tuple[int, ...]:
    """The inputs of an operator of dynamic range that are integer weights, those alone that it has."""
    return tuple(index for index in _WEIGHTS.get(op.kind, (1,)) if op.has(index))


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
    if op.kind in _WEIGHTS:
        return [rank - 1]
    if op.kind in ("Gemm", "MatMul"):
        return [rank - (2 if op.attributes.get("trans_a") else 1)]
    alone = op.kind == "Conv" and {1} == {*kernel, *op["strides"], int(op["group"])} and not any(op["pads"])
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
    """(total + bias) * scale; the bias joins the sum as an integer where it is on the same grid, as in every integer kernel."""
    if call.has(2):
        steps, bias_scale = call.factor(2, 0)
        if call.quantization(2) is not None and is_accumulator_scale(bias_scale, scale):
            return np.asarray((total + steps) * scale)
        return np.asarray(total * scale + steps * bias_scale)
    return np.asarray(total * scale)


def zero_point(call: Call, index: int) -> Array:
    """The zero point that input `index` of an integer product holds; 0 if it is absent."""
    return call.raw(index).astype(np.int64) if call.has(index) else np.zeros((), np.int64)
