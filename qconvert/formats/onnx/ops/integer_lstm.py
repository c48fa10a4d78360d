"""TFLite's LSTMs on integers, written in float64 arithmetic: equal to their kernels in every bit.

Of the int8 LSTM with an int16 cell the data's part of all steps is one product in front; what depends on the step before is the body of a
Scan, or stands in the graph itself where there is one step. Sigmoid and tanh are tables of all 65,536 integers. What would not be exact is
refused by name. The basic kernel, of uint8 data, is one step.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from qconvert.arithmetic import BASIC_GATES, GATES, IntegerGate, IntegerLstm
from qconvert.arithmetic.fixed_point_functions import gemmlowp_logistic, gemmlowp_tanh
from qconvert.arithmetic.storage import EXACT_IN_FLOAT32
from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.ops.integer_arithmetic import AWAY, Rescale, normalize_gates
from qconvert.formats.onnx.values import Place, ScanBody, Value, axes, place_of
from qconvert.graph import Array, Op
from qconvert.operators.integer_recurrent import BASIC_INPUTS, LSTM_INPUTS, basic_lstm, integer_lstm, name_tensors

_LOW, _HIGH = -(2.0**15), 2.0**15 - 1


def write_integer_lstm(op: Op, b: Builder) -> None:
    """A Scan over the steps, or the one step itself."""
    tensors = name_tensors(op, LSTM_INPUTS, b.tensor)
    values = {role: tensor.data for role, tensor in tensors.items() if tensor.data is not None}
    names = {role: name for role, name in zip(LSTM_INPUTS, op.inputs, strict=False) if name}
    computed = [role for role in names if role not in ("data", "hidden", "cell") and role not in values]
    if computed:
        raise b.unsupported_error(op, f"{names[computed[0]]!r} that is computed at run time", rule="not-constant")
    _Lstm(op, b, integer_lstm(op, tensors, values), names).write()


def int16_curve(value: Value, function: str, bits: int) -> Value:
    """gemmlowp's logistic or tanh of whole numbers in float64, by a table of all int16, which the graph has once.

    Args:
        value: in the range of int16.
        function, bits: which, and its integer bits.
    """
    b, every = value.at.b, np.arange(-(2**15), 2**15).astype(np.int16)
    made = gemmlowp_logistic(every) if function == "logistic" else gemmlowp_tanh(every, bits)
    table = b.make_once(f"{function}_{bits}", "int16", lambda: [b.const(made, f"table/{function}_{bits}")])[0]
    return value.at.value(table, "int16").then("Gather", (value + 2**15).cast("int64")).cast("float64")


class _Lstm:
    """One layer on its way into a file.

    Args:
        op: the operator.
        b: where it is written.
        layer: its arithmetic.
        names: its inputs by what they are.
    """

    def __init__(self, op: Op, b: Builder, layer: IntegerLstm, names: dict[str, str]) -> None:
        self._op, self._b, self._layer, self._names = op, b, layer, names
        self._gates = [gate for gate in GATES if gate in layer.gates]  # the columns of every product, in this order
        self._cells = len(layer.gates["forget"].weights[0])
        self._is_normed = layer.gates["forget"].norm is not None

    def write(self) -> None:
        b, layer, names = self._b, self._layer, self._names
        at, dtype = place_of(self._op, b), self._product_type("recurrent")
        hidden = at.stored(names["hidden"], dtype) - layer.state[1]
        cell, parts = at.stored(names["cell"], "float64"), self._data_parts(at)
        steps = b.tensor(names["data"]).shape
        if steps is not None and steps[0 if layer.time_major else 1] == 1:
            shown, hidden, cell = self._step(at, parts.then("Squeeze", axes(0)), hidden, cell)
            whole = shown.then("Unsqueeze", axes(0))
        else:
            body = ScanBody(b, f"{at.hint}/body", {"hidden": dtype, "cell": "float64", "part": "float64"})
            inner = body.inputs[0].at
            shown, *states = self._step(inner, body.inputs[2], body.inputs[0], body.inputs[1])
            hidden, cell, whole = body.scan(at, [hidden, cell, parts], states, shown)
        result = whole if layer.time_major else whole.transpose(1, 0, 2)
        result.finish(self._op.outputs[0])
        (hidden + layer.state[1]).finish(self._op.outputs[1])
        cell.finish(self._op.outputs[2])

    def _data_parts(self, at: Place) -> Value:
        """The part of each gate that the data give, for all steps: float64 of shape (steps, rows, columns), limited to int16."""
        layer = self._layer
        data = at.stored(self._names["data"], self._product_type("weights")) - layer.data[1]
        sums = self._product(data if layer.time_major else data.transpose(1, 0, 2), "weights")
        if not self._is_normed and any(gate.bias is not None for gate in layer.gates.values()):
            sums = sums + at.node("Concat", *(self._bias(at, gate) for gate in self._gates), axis=0).cast("float64")
        return _clip_to_int16(self._rescale("weights").emit(sums))

    def _bias(self, at: Place, gate: str) -> Value:
        name = self._names.get(f"{gate}_bias")
        return at.stored(name, "int32") if name else at.constant(np.zeros(self._cells, np.int32))

    def _product(self, value: Value, what: str) -> Value:
        """Sums of products with the weights of all gates, float64. The file has each gate's weights under their own name, as they are;
        runtimes join them once, when they load a model."""
        listed = [value.at.stored(self._names[f"{gate}_{what}"], "int8") for gate in self._gates]
        weights = value.at.node("Concat", *listed, axis=0).transpose(1, 0).cast(value.dtype)
        return (value @ weights).cast("float64")

    @cached_property
    def _bounds(self) -> dict[str, Array]:
        return {what: self._bound(what) for what in ("weights", "recurrent")}

    def _bound(self, what: str) -> Array:
        """The largest magnitude of a sum of products, for each column."""
        bounds = []
        for name in self._gates:
            gate = self._layer.gates[name]
            weights = gate.weights[0] if what == "weights" else gate.recurrent[0]
            zero = self._layer.data[1] if what == "weights" else self._layer.state[1]
            total = np.abs(weights.astype(np.int64)).sum(axis=1) * max(127 - zero, 128 + zero)
            has_bias = gate.bias is not None and what == "weights" and not self._is_normed
            bounds.append(total + (np.abs(gate.bias.astype(np.int64)) if has_bias and gate.bias is not None else 0))
        return np.concatenate(bounds)

    def _product_type(self, what: str) -> str:
        return "float32" if self._bounds[what].max(initial=0) < EXACT_IN_FLOAT32 else "float64"

    def _rescale(self, what: str) -> Rescale:
        layer = self._layer

        def factor(gate: IntegerGate) -> float:
            own, quantization = (gate.weights[1], layer.data[0]) if what == "weights" else (gate.recurrent[1], layer.state[0])
            return float(np.float32(np.float32(own) * np.float32(quantization)) / np.float32(gate.scale))

        columns = np.repeat([factor(layer.gates[name]) for name in self._gates], self._cells)
        return Rescale.of(columns, self._bounds[what], self._op, self._b, "sums of gates")

    def _step(self, at: Place, part: Value, hidden: Value, cell: Value) -> tuple[Value, Value, Value]:
        """One step: the stored outputs, the next hidden values less their zero point, and the next cell."""
        layer = self._layer
        own = self._rescale("recurrent").emit(self._product(hidden, "recurrent"))
        sums = _clip_to_int16(part + own)
        gates = dict(zip(self._gates, at.split(sums, [self._cells] * len(self._gates), axis=1), strict=True))
        early = [gate for gate in self._gates if gate != "output" or layer.gates[gate].peephole is None]
        gates |= self._complete_gates(at, {gate: gates[gate] for gate in early}, cell)
        kept = int16_curve(gates["forget"], "logistic", 3)
        update = int16_curve(gates["cell"], "tanh", 3)
        new = int16_curve(gates["input"], "logistic", 3) if "input" in gates else _HIGH - kept
        cell = _clip_to_int16(_shift_right(kept * cell, 15) + _shift_right(new * update, 30 + layer.cell_power))
        if layer.stored_cell_clip:
            cell = cell.clip(-layer.stored_cell_clip, layer.stored_cell_clip)
        if "output" not in early:  # its peephole sees the new cell
            gates |= self._complete_gates(at, {"output": gates["output"]}, cell)
        opened = int16_curve(gates["output"], "logistic", 3)
        stored = self._quantize_hidden(opened * int16_curve(cell, "tanh", 15 + layer.cell_power)).cast(hidden.dtype)
        return stored.cast("int8"), stored - layer.state[1], cell

    def _complete_gates(self, at: Place, gates: dict[str, Value], cell: Value) -> dict[str, Value]:
        """Gates as they go into sigmoid and tanh: with what they see of the cell, and normalized."""
        seen = {gate: self._add_peephole(value, gate, cell) for gate, value in gates.items()}
        return normalize_gates(at, self._op, self._layer, self._names, seen) if self._is_normed else seen

    def _add_peephole(self, value: Value, gate: str, cell: Value) -> Value:
        """A gate with what it sees of the cell."""
        peephole = self._layer.gates[gate].peephole
        if peephole is None:
            return value
        factor = float(np.float32(2.0**self._layer.cell_power * peephole[1] / self._layer.gates[gate].scale))
        if factor >= 1:
            raise self._b.unsupported_error(self._op, "peepholes that may overflow in its kernel", rule="may-overflow")
        weights = value.at.stored(self._names[f"{gate}_peephole"], "float64")
        if self._layer.projection is not None:
            weights = self._seen_cells(weights, len(self._layer.projection.weights[0]))
        return _clip_to_int16(value + Rescale.of_pair(factor).emit(weights * cell))

    def _seen_cells(self, weights: Value, width: int) -> Value:
        """Peepholes next to a projection: their kernel takes as many cells as there are outputs, of each row, or of all rows one after the
        other where time comes first, and none of the cells after these."""
        rows = (self._b.tensor(self._names["cell"]).static_shape or (None,))[0] if self._layer.time_major else 1
        if rows is None:
            raise self._b.unsupported_error(self._op, "peepholes and a projection with a dynamic number of rows,", rule="dynamic-dimension")
        places = np.arange(rows * self._cells).reshape(rows, self._cells)
        return weights.then("Gather", places % width) * (places < rows * width).astype(np.float64)

    def _quantize_hidden(self, shown: Value) -> Value:
        """Stored outputs, float64, of sigmoid times tanh."""
        layer, at = self._layer, shown.at
        scale, zero_point = layer.hidden
        steps = Rescale.of_pair(float(np.float32(2.0**-15 / scale * 2.0**-15))).emit(shown)
        if layer.projection is None:
            return (steps + zero_point).clip(-128, 127)
        weights, own = layer.projection.weights
        wide = weights.astype(np.int64)
        own_sums, bias = zero_point * wide.sum(axis=1), layer.projection.bias
        bound = np.abs(wide).sum(axis=1) * 128 + np.abs(own_sums) + (0 if bias is None else np.abs(bias.astype(np.int64)))
        turned = at.stored(self._names["projection_weights"], "int8").transpose(1, 0).cast("float64")
        sums = (steps - zero_point).clip(-128, 127) @ turned + own_sums.astype(np.float64)
        if bias is not None:
            sums = sums + at.stored(self._names["projection_bias"], "float64")
        total = float(np.float32(np.float32(own) * np.float32(scale)) / np.float32(layer.state[0]))
        scaled = Rescale.of(np.full(len(wide), total), bound, self._op, self._b, "a projection").emit(sums)
        found, limit = (scaled + layer.state[1]).clip(-128, 127), layer.stored_projection_clip
        return found.clip(-limit, limit) if limit > 0 else found


def _shift_right(value: Value, by: int) -> Value:
    """value / 2**by, ties away from zero."""
    return (value * (2.0**-by * AWAY)).round()


def _clip_to_int16(value: Value) -> Value:
    return value.clip(_LOW, _HIGH)


def write_basic_lstm(op: Op, b: Builder) -> None:
    """The basic kernel's step."""
    tensors = name_tensors(op, BASIC_INPUTS, b.tensor)
    weights, bias = (tensors[name].data for name in ("weights", "bias"))
    if weights is None or bias is None:
        raise b.unsupported_error(op, "weights that are computed at run time", rule="weights-not-constant")
    layer = basic_lstm(tensors, weights, bias)
    bound = np.abs(layer.weights.astype(np.int64) - layer.zero_point).sum(axis=1) * 128 + np.abs(layer.bias.astype(np.int64))
    rescale, at = Rescale.of(np.full(len(bound), layer.factor), bound, op, b), place_of(op, b)
    given = {role: at.stored(name, "float64") for role, name in zip(BASIC_INPUTS, op.inputs, strict=True)}
    # Data and hidden values side by side, less 128, times the weights less their zero point, and the bias.
    joined = given["data"].then("Concat", given["hidden"], axis=1) - 128
    sums = joined @ (given["weights"] - layer.zero_point).transpose(1, 0) + given["bias"]
    gates = _clip_to_int16(rescale.emit_up(sums))
    enters, update, stays, opens = at.split(gates, [len(layer.bias) // len(BASIC_GATES)] * len(BASIC_GATES), axis=1)
    added = _shift_right(_product(_logistic(enters), _tanh(update)), 4)
    cell = _clip_to_int16(added + _product(_logistic(stays), given["cell"]))
    seen = _tanh(_clip_to_int16(cell * 2))
    stored = _shift_right(_product(_logistic(opens), seen), 8).clip(-128, 127) + 128
    for name, value in zip(op.outputs, (stored, stored, cell), strict=True):
        value.finish(name)


def _logistic(value: Value) -> Value:
    return int16_curve(value, "logistic", 3)


def _tanh(value: Value) -> Value:
    return int16_curve(value, "tanh", 3)


def _product(first: Value, second: Value) -> Value:
    """In steps of 2**-15, ties up."""
    return (first * second * 2.0**-15).round_up()


WRITERS: Writers = {
    "IntegerLSTM": write_integer_lstm,
    "BasicLSTM": write_basic_lstm,
}
