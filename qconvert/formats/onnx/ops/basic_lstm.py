"""TFLite's LSTM of uint8 data, the basic kernel, written in float64 arithmetic on integers: equal to it in every bit."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import BASIC_GATES, BasicLstm
from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.integer_arithmetic import AWAY, Rescale
from qconvert.formats.onnx.ops.integer_lstm import int16_curve
from qconvert.formats.onnx.values import Value, place_of
from qconvert.graph import Array, Op
from qconvert.operators.integer_recurrent import BASIC_INPUTS, basic_lstm, name_tensors

_INT16 = (-(2**15), 2**15 - 1)


def write_basic_lstm(op: Op, b: Builder) -> None:
    tensors = name_tensors(op, BASIC_INPUTS, b.tensor)
    weights, bias = (tensors[name].data for name in ("weights", "bias"))
    if weights is None or bias is None:
        raise b.unsupported_error(op, "weights that are computed at run time", rule="weights-not-constant")
    layer = basic_lstm(tensors, weights, bias)
    rescale = _gates_rescale(layer)
    if rescale is None:
        raise b.unsupported_error(op, "sums that may overflow in its kernel", rule="may-overflow")
    at = place_of(op, b)
    given = {role: at.stored(name, "float64") for role, name in zip(BASIC_INPUTS, op.inputs, strict=True)}
    # Data and hidden values side by side, less 128, times the weights less their zero point, and the bias.
    joined = given["data"].then("Concat", given["hidden"], axis=1) - 128
    sums = joined @ (given["weights"] - layer.zero_point).transpose(1, 0) + given["bias"]
    gates = rescale.emit_up(sums).clip(*_INT16)
    enters, update, stays, opens = at.split(gates, [len(layer.bias) // len(BASIC_GATES)] * len(BASIC_GATES), axis=1)
    added = _shift_right(_product(_logistic(enters), _tanh(update)), 4)
    cell = (added + _product(_logistic(stays), given["cell"])).clip(*_INT16)
    seen = _tanh((cell * 2).clip(*_INT16))
    stored = _shift_right(_product(_logistic(opens), seen), 8).clip(-128, 127) + 128
    for name, value in zip(op.outputs, (stored, stored, cell), strict=True):
        value.finish(name)


def _gates_rescale(layer: BasicLstm) -> Rescale | None:
    weights = layer.weights.astype(np.int64) - layer.zero_point
    bound: Array = np.abs(weights).sum(axis=1) * 128 + np.abs(layer.bias.astype(np.int64))
    return Rescale.of(np.full(len(bound), layer.factor), bound)


def _logistic(value: Value) -> Value:
    return int16_curve(value, "logistic", 3)


def _tanh(value: Value) -> Value:
    return int16_curve(value, "tanh", 3)


def _product(first: Value, second: Value) -> Value:
    """In steps of 2**-15, ties up."""
    return (first * second * 2.0**-15).round_up()


def _shift_right(value: Value, by: int) -> Value:
    """value / 2**by, ties away from zero."""
    return (value * (2.0**-by * AWAY)).round()


WRITERS: dict[str, WriteFunction] = {"BasicLSTM": write_basic_lstm}
