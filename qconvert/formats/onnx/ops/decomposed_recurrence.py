"""Recurrences that ONNX lacks, decomposed step by step in the body of a Scan: LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.ops.dynamic import is_sum_exact, product, rounded_rows
from qconvert.formats.onnx.values import Place, ScanBody, Value, axes, place_of, zero_states
from qconvert.graph import Array, Op
from qconvert.operators import is_dynamic
from qconvert.operators.recurrent import (
    NORM,
    ONNX_ACTIVATIONS,
    PROJECTION,
    PROJECTION_BIAS,
    Parts,
    activation_names,
    activations_of,
    cell_of,
    resets_before_product,
)

#: Inputs after the data and the weights; GRU and RNN lack the last two.
_BIAS, _LENGTHS, _HIDDEN, _CELL, _PEEPHOLES = range(3, 8)


class _Recurrence:
    """An operator of one direction that becomes a Scan over its steps.

    Args:
        op: the LSTM, GRU or RNN.
        b: the graph that it becomes a part of.
    """

    def __init__(self, op: Op, b: Builder) -> None:
        self._op, self._b, self._cells = op, b, int(op["hidden_size"])
        self._at = place_of(op, b)

    def _scan(self, step: Callable[..., Sequence[Value]], states: Mapping[str, Value], parts: Value) -> list[Value]:
        """The last value of each state, and the first state after each step; `step` is called with a part and the states."""
        body = ScanBody(self._b, f"{self._at.hint}/body", dict.fromkeys((*states, "part"), "float32"))
        after = step(body.inputs[-1], *body.inputs[:-1])
        backwards = bool(self._op["direction"] == "reverse")
        return body.scan(self._at, [*states.values(), parts], after, after[0].then("Identity"), backwards)

    def _flat(self, at: Place, index: int) -> Value:
        """The float values of an input without its axis of directions."""
        return at.floats(self._op.inputs[index]).then("Squeeze", axes(0))

    def _rounded_product(self, rows: Value, index: int) -> Value:
        """Rows, rounded as the operator says, times the integer weights that an input is, which have a row for each column."""
        weights = self._b.operand(self._op, index)
        if weights.data is None or weights.quantization is None or weights.dtype != "int8" or not weights.quantization.is_symmetric:
            reason = "weights that are not an int8 constant with zero point 0"
            raise self._b.unsupported_error(self._op, reason, rule="weight-quantization")
        turned = rows.at.stored(weights.name).then("Squeeze", axes(0)).transpose(1, 0)
        steps, scale = rounded_rows(rows, str(self._op["arithmetic"]))
        return product(steps, turned, exact=is_sum_exact(weights.data)) * (scale * self._scales(index))

    def _scales(self, index: int) -> Array:
        """The scales of integer weights: one for each row, or one for all."""
        quantization = self._b.operand(self._op, index).quantization
        assert quantization is not None
        return quantization.scale.reshape(()) if quantization.is_per_tensor else quantization.scale

    def _finish(self, *results: tuple[Value, int]) -> None:
        """Makes values the outputs of the operator, each with its axis of directions."""
        for index, (value, axis) in enumerate(results):
            if index < len(self._op.outputs) and self._op.outputs[index]:
                self._b.finish(self._op, value.then("Unsqueeze", axes(axis)).name, index)


def _refusal(op: Op) -> str:
    """What no step here has, in words; "" if there is nothing."""
    if op["direction"] == "bidirectional":
        return "both directions"
    return "lengths of sequences" if op.has(_LENGTHS) else "a batch as the first axis" if op["layout"] else ""


def unknown_activation(names: Sequence[str]) -> str:
    """The first activation that ONNX does not have, or ""."""
    known = {name.lower() for name in ONNX_ACTIVATIONS}
    return next((name for name in names if name.lower() not in known), "")


def runs_in_float(op: Op) -> bool:
    """Whether ONNX's LSTM does not say what an LSTM of the graph does."""
    return (
        bool(unknown_activation(activation_names(op)))
        or is_dynamic(op)
        or bool(op["cell_clip"])
        or any(op.has(index) for index in (PROJECTION, NORM))
    )


def write_decomposed_lstm(op: Op, b: Builder) -> None:
    """A Scan over the steps, or the one step itself."""
    if reason := _refusal(op):
        what = "a limited cell, a projection, a normalization, rounded data or an activation of TFLite"
        raise b.unsupported_error(op, f"{what}, and {reason}", rule="form-not-covered")
    _Lstm(op, b).write()


class _Lstm(_Recurrence):
    def write(self) -> None:
        shape = self._b.operand(self._op).shape
        hidden, cell = self._first(_HIDDEN, shape), self._first(_CELL, shape)
        parts = self._data_parts()
        if shape is not None and shape[0] == 1:
            hidden, cell = self._step(parts.then("Squeeze", axes(0)), hidden, cell)
            whole = hidden.then("Unsqueeze", axes(0))
        else:
            hidden, cell, whole = self._scan(self._step, {"hidden": hidden, "cell": cell}, parts)
        self._finish((whole, 1), (hidden, 0), (cell, 0))

    def _first(self, index: int, shape: tuple[int | str, ...] | None) -> Value:
        """A state at first, of shape (rows, cells)."""
        if self._op.has(index):
            return self._flat(self._at, index)
        recurrent = self._b.operand(self._op, 2).static_shape
        size = self._cells if index == _CELL or recurrent is None else recurrent[2]
        if shape is None or not isinstance(shape[1], int):
            return zero_states(self._at.floats(self._op.inputs[0]), size)
        return self._at.constant(np.zeros((shape[1], size), np.float32))

    def _data_parts(self) -> Value:
        """What the data give to each gate for all steps, with all biases, unless these stand after normalizations."""
        sums = self._product(self._at.floats(self._op.inputs[0]), 1)
        return sums if not self._op.has(_BIAS) or self._op.has(NORM) else sums + self._bias(self._at)

    def _bias(self, at: Place) -> Value:
        """The biases for data and hidden values together."""
        of_data, of_hidden = at.split(self._flat(at, _BIAS), [4 * self._cells] * 2)
        return of_data + of_hidden

    def _flat(self, at: Place, index: int) -> Value:
        """Integers become real here: what is made real outside a reader takes for a constant."""
        if index == _PEEPHOLES and is_dynamic(self._op) and self._b.operand(self._op, index).is_quantized:
            return at.stored(self._op.inputs[index]).then("Squeeze", axes(0)).cast("float32") * self._scales(index)
        return super()._flat(at, index)

    def _product(self, rows: Value, index: int) -> Value:
        """Real rows times the weights that an input is, which have a row for each column; rounded first, where the operator does that."""
        if not is_dynamic(self._op):
            return rows @ self._flat(rows.at, index).transpose(1, 0)
        return self._rounded_product(rows, index)

    def _step(self, part: Value, hidden: Value, cell: Value) -> Sequence[Value]:
        """One step: the next hidden values and the next cell."""
        op, of_op = self._op, cell_of(self._op)
        peepholes, norms = self._split_gates(part.at, _PEEPHOLES, 3), self._norms(part.at)
        projected = self._project if op.has(PROJECTION) else None
        parts = Parts(op, activations_of(op, of_op)[0], lambda values, *_: self._product(values, 2), peepholes, norms, projected)
        return of_op.step(parts, part, hidden, cell)

    def _split_gates(self, at: Place, index: int, count: int) -> list[Value]:
        """An optional input, cut into the parts of so many gates."""
        return at.split(self._flat(at, index), [self._cells] * count) if self._op.has(index) else []

    def _norms(self, at: Place) -> list[tuple[Value, Value | None]]:
        """The factor of each gate's normalization, and what is added after it."""
        factors = self._split_gates(at, NORM, 4)
        added = at.split(self._bias(at), [self._cells] * 4) if factors and self._op.has(_BIAS) else [None] * len(factors)
        return list(zip(factors, added, strict=True))

    def _project(self, value: Value) -> Value:
        value = self._product(value, PROJECTION)
        return value + self._flat(value.at, PROJECTION_BIAS) if self._op.has(PROJECTION_BIAS) else value


_GATE_CURVES = ("Sigmoid", "Tanh", "Relu")


def write_decomposed_gates(op: Op, b: Builder) -> None:
    """A Scan over the steps."""
    reason = "a reset before the product" if resets_before_product(op) else _refusal(op)
    if not set(activation_names(op)) <= set(_GATE_CURVES) or op["clip"]:
        reason = f"activations {', '.join(activation_names(op))}, or a limit"
    if reason:
        raise b.unsupported_error(op, f"dynamically quantized data, and {reason}", rule="dynamic-quantization")
    _Gates(op, b).write()


class _Gates(_Recurrence):
    def write(self) -> None:
        op, at = self._op, self._at
        data = at.floats(op.inputs[0])
        sums = self._with_bias(self._rounded_product(data, 1), 0)
        first = self._flat(at, _HIDDEN) if op.has(_HIDDEN) else zero_states(data, self._cells)
        hidden, whole = self._scan(self._step, {"hidden": first}, sums)
        self._finish((whole, 1), (hidden, 0))

    def _with_bias(self, value: Value, which: int) -> Value:
        """With the biases of the data (0) or of the hidden values (1)."""
        if not self._op.has(_BIAS):
            return value
        half = cell_of(self._op).gates * self._cells
        return value + value.at.split(self._flat(value.at, _BIAS), [half, half])[which]

    def _step(self, part: Value, hidden: Value) -> tuple[Value]:
        """One step: the next hidden values."""
        own, names = self._with_bias(self._rounded_product(hidden, 2), 1), activation_names(self._op)
        if len(names) == 1:
            return ((own + part).then(names[0]),)
        hidden_parts, data_parts = (value.at.split(value, [self._cells] * 3, axis=1) for value in (own, part))
        update, reset = ((hidden_parts[gate] + data_parts[gate]).then(names[0]) for gate in (0, 1))
        new = (data_parts[2] + hidden_parts[2] * reset).then(names[1])
        return ((hidden - new) * update + new,)
