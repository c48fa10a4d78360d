"""TFLite's LSTM of uint8 data, the basic kernel, written in float64 arithmetic on integers: equal to it in every bit."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import BASIC_GATES, BasicLstm
from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.integer_arithmetic import AWAY, Rescale
from qconvert.formats.onnx.ops.integer_lstm import int16_curve
from qconvert.graph import Array, Op
from qconvert.operators.basic_lstm import BASIC_INPUTS, basic_lstm
from qconvert.operators.integer_recurrent import name_tensors

__all__ = ["WRITERS"]

_INT16 = (-(2**15), 2**15 - 1)


def write_basic_lstm(op: Op, b: Builder) -> None:
    tensors = name_tensors(op, BASIC_INPUTS, b.tensor)
    weights, bias = (tensors[name].data for name in ("weights", "bias"))
    if weights is None or bias is None:
        raise b.unsupported_error(op, "weights that are computed at run time", rule="weights-not-constant")
    _Layer(op, b, basic_lstm(tensors, weights, bias)).write()


class _Layer:
    def __init__(self, op: Op, b: Builder, layer: BasicLstm) -> None:
        self._op, self._b, self._layer = op, b, layer
        self._names = dict(zip(BASIC_INPUTS, op.inputs, strict=True))
        self._hint = op.outputs[0]

    def write(self) -> None:
        op, b = self._op, self._b
        steps = self._clip_to_range(self._rescale().emit_up(b, b, self._sums(), f"{self._hint}/gates"), *_INT16)
        sizes = b.const(np.full(len(BASIC_GATES), len(self._layer.bias) // len(BASIC_GATES)), f"{self._hint}/sizes")
        enters, update, stays, opens = b.node("Split", [steps, sizes], len(BASIC_GATES), hint=f"{self._hint}/gate", axis=1)
        added = self._shift_right(self._product(self._curve("logistic", enters), self._curve("tanh", update)), 4)
        kept = self._product(self._curve("logistic", stays), self._wide("cell"))
        cell = self._clip_to_range(self._node("Add", added, kept), *_INT16)
        seen = self._curve("tanh", self._clip_to_range(self._node("Mul", cell, self._scalar(2.0)), *_INT16))
        shown = self._clip_to_range(self._shift_right(self._product(self._curve("logistic", opens), seen), 8), -128, 127)
        stored = self._node("Add", shown, self._scalar(128.0))
        for index, (value, dtype) in enumerate(((stored, "uint8"), (stored, "uint8"), (cell, "int16"))):
            if op.outputs[index]:
                b.cast(value, dtype, op.outputs[index])

    def _sums(self) -> str:
        """Data and hidden values side by side, less 128, times the weights less their zero point, and the bias."""
        b = self._b
        joined = b.node("Concat", [self._wide("data"), self._wide("hidden")], hint=f"{self._hint}/joined", axis=1)[0]
        weights = self._node("Sub", self._wide("weights"), self._scalar(float(self._layer.zero_point)))
        turned = b.node("Transpose", [weights], hint=f"{self._hint}/weights", perm=[1, 0])[0]
        return self._node("Add", self._node("MatMul", self._node("Sub", joined, self._scalar(128.0)), turned), self._wide("bias"))

    def _rescale(self) -> Rescale:
        weights = self._layer.weights.astype(np.int64) - self._layer.zero_point
        bound: Array = np.abs(weights).sum(axis=1) * 128 + np.abs(self._layer.bias.astype(np.int64))
        found = Rescale.of(np.full(len(bound), self._layer.factor), bound)
        if found is None:
            raise self._b.unsupported_error(self._op, "sums that may overflow in its kernel", rule="may-overflow")
        return found

    def _node(self, kind: str, *inputs: str) -> str:
        return self._b.node(kind, inputs, hint=f"{self._hint}/{kind}")[0]

    def _wide(self, name: str) -> str:
        return self._b.cast(self._b.stored_value(self._names[name]), "float64", hint=f"{self._hint}/{name}")

    def _scalar(self, value: float) -> str:
        return self._b.make_once(f"{value!r} float64", "scalar", lambda: [self._b.const(np.float64(value), "constant/number")])[0]

    def _clip_to_range(self, value: str, low: int, high: int) -> str:
        return self._node("Clip", value, self._scalar(float(low)), self._scalar(float(high)))

    def _curve(self, function: str, value: str) -> str:
        return int16_curve(self._b, self._b, value, function, 3, self._scalar(2.0**15))

    def _product(self, first: str, second: str) -> str:
        """In steps of 2**-15, ties up."""
        scaled = self._node("Mul", self._node("Mul", first, second), self._scalar(2.0**-15))
        return self._node("Floor", self._node("Add", scaled, self._scalar(0.5)))

    def _shift_right(self, value: str, by: int) -> str:
        """value / 2**by, ties away from zero."""
        return self._node("Round", self._node("Mul", value, self._scalar(2.0**-by * AWAY)))


WRITERS: dict[str, WriteFunction] = {"BasicLSTM": write_basic_lstm}
