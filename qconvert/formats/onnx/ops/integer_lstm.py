"""TFLite's int8 LSTM with an int16 cell, written in float64 arithmetic on integers: equal to its kernel in every bit.

The data's part of all steps is one product in front; what depends on the step before is the body of a Scan, or stands in the graph itself
where there is one step. Sigmoid and tanh are tables of all 65,536 integers. What would not be exact is refused by name.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from qconvert.arithmetic import GATES, IntegerGate, IntegerLstm
from qconvert.arithmetic.fixed_point_functions import gemmlowp_logistic, gemmlowp_tanh
from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder, WriteFunction
from qconvert.formats.onnx.ops.integer_arithmetic import AWAY, Emitter, Rescale, ScanBody, normalize_gates
from qconvert.graph import Array, Op
from qconvert.operators.integer_recurrent import LSTM_INPUTS, integer_lstm, name_tensors

__all__ = ["WRITERS", "int16_curve"]

_FLOAT32, _FLOAT64, _INT8, _INT64 = (ELEMENT_TYPES[name] for name in ("float32", "float64", "int8", "int64"))
#: Whole numbers up to which float32 holds all.
_EXACT32 = 2**24
_LOW, _HIGH = -(2.0**15), 2.0**15 - 1


def write_integer_lstm(op: Op, b: Builder) -> None:
    """A Scan over the steps, or the one step itself."""
    tensors = name_tensors(op, LSTM_INPUTS, b.tensor)
    values = {role: tensor.data for role, tensor in tensors.items() if tensor.data is not None}
    names = dict(zip(LSTM_INPUTS, op.inputs, strict=False))
    computed = [role for role, name in names.items() if name and role not in ("data", "hidden", "cell") and role not in values]
    if computed:
        raise b.unsupported_error(op, f"{names[computed[0]]!r} that is computed at run time", rule="not-constant")
    layer = integer_lstm(op, tensors, values)
    _Lstm(op, b, layer, {role: name for role, name in names.items() if name}).write()


def int16_curve(b: Builder, to: Emitter, value: str, function: str, bits: int, offset: str) -> str:
    """gemmlowp's logistic or tanh of whole numbers in float64, by a table of all int16.

    Args:
        b: the graph, which has each table once.
        to: where nodes go.
        value: in the range of int16.
        function, bits: which, and its integer bits.
        offset: the constant 2**15.
    """
    every = np.arange(-(2**15), 2**15).astype(np.int16)
    made = gemmlowp_logistic(every) if function == "logistic" else gemmlowp_tanh(every, bits)
    table = b.make_once(f"{function}_{bits}", "int16", lambda: [b.const(made, f"table/{function}_{bits}")])[0]
    place = to.node("Add", [value, offset], hint=f"{function}/place")
    found = to.node("Gather", [table, *to.node("Cast", place, hint=f"{function}/place", to=_INT64)], hint=function)
    return to.node("Cast", found, hint=function, to=_FLOAT64)[0]


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
        self._hint = op.outputs[0]

    def write(self) -> None:
        b, layer = self._b, self._layer
        hidden = self._steps(b, self._names["hidden"], layer.state[1], self._product_type("recurrent"))
        cell = b.cast(b.stored_value(self._names["cell"]), "float64", hint=f"{self._hint}/cell")
        parts = self._data_parts()
        steps = b.tensor(self._names["data"]).shape
        if steps is not None and steps[0 if layer.time_major else 1] == 1:
            axis = self._axes([0], "first")
            first = b.node("Squeeze", [parts, axis], hint=f"{self._hint}/step")[0]
            shown, hidden, cell = self._step(b, first, hidden, cell)
            whole = b.node("Unsqueeze", [shown, axis], hint=f"{self._hint}/steps")[0]
        else:
            hidden, cell, whole = self._scan(parts, hidden, cell)
        result = whole if layer.time_major else b.node("Transpose", [whole], hint=f"{self._hint}/rows", perm=[1, 0, 2])[0]
        self._finish(result, 0)
        if self._op.outputs[1]:
            back = b.node("Add", [hidden, self._scalar(layer.state[1], self._product_type("recurrent"), "zero_point")])[0]
            self._finish(b.cast(back, "int8", hint=f"{self._hint}/stored"), 1)
        if self._op.outputs[2]:
            self._finish(b.cast(cell, "int16", hint=f"{self._hint}/stored"), 2)

    def _finish(self, value: str, index: int) -> None:
        if self._op.outputs[index]:
            self._b.rename(value, self._op.outputs[index])

    def _scan(self, parts: str, hidden: str, cell: str) -> tuple[str, str, str]:
        types = {"hidden": ELEMENT_TYPES[self._product_type("recurrent")], "cell": _FLOAT64, "part": _FLOAT64}
        body = ScanBody(self._b, f"{self._hint}/body", types)
        shown, *states = self._step(body, body.inputs[2], body.inputs[0], body.inputs[1])
        found = body.scan([hidden, cell, parts], states, shown, _INT8, f"{self._hint}/scan")
        return found[0], found[1], found[2]

    def _data_parts(self) -> str:
        """The part of each gate that the data give, for all steps: float64 of shape (steps, rows, columns), limited to int16."""
        b, layer = self._b, self._layer
        dtype = self._product_type("weights")
        data = self._steps(b, self._names["data"], layer.data[1], dtype)
        if not layer.time_major:
            data = b.node("Transpose", [data], hint=f"{self._hint}/time", perm=[1, 0, 2])[0]
        sums = self._product(b, data, "weights", dtype)
        if not self._is_normed and any(gate.bias is not None for gate in layer.gates.values()):
            listed = [self._bias(gate) for gate in self._gates]
            joined = b.node("Concat", listed, hint=f"{self._hint}/bias", axis=0)[0]
            sums = b.node("Add", [sums, b.cast(joined, "float64", hint=f"{self._hint}/bias")])[0]
        scaled = self._rescale("weights").emit(b, b, sums, f"{self._hint}/data")
        return self._clip_to_int16(b, scaled)

    def _bias(self, gate: str) -> str:
        name = self._names.get(f"{gate}_bias")
        return self._b.stored_value(name) if name else self._b.const(np.zeros(self._cells, np.int32), f"{self._hint}/{gate}_bias")

    def _steps(self, to: Emitter, name: str, zero_point: int, dtype: str) -> str:
        """Stored integers less their zero point, in a real type."""
        wide = to.node("Cast", [self._b.stored_value(name)], hint=f"{name}/{dtype}", to=ELEMENT_TYPES[dtype])
        return to.node("Sub", [*wide, self._scalar(zero_point, dtype, "zero_point")], hint=f"{name}/steps")[0]

    def _product(self, to: Emitter, value: str, what: str, dtype: str) -> str:
        """Sums of products with the weights of all gates, float64. The file has each gate's weights under their own name, as they are;
        runtimes join them once, when they load a model."""
        listed = [self._b.stored_value(self._names[f"{gate}_{what}"]) for gate in self._gates]
        joined = to.node("Concat", listed, hint=f"{self._hint}/{what}", axis=0)
        turned = to.node("Transpose", joined, hint=f"{self._hint}/{what}", perm=[1, 0])
        wide = to.node("Cast", turned, hint=f"{self._hint}/{what}", to=ELEMENT_TYPES[dtype])[0]
        sums = to.node("MatMul", [value, wide], hint=f"{self._hint}/sums")
        return sums[0] if dtype == "float64" else to.node("Cast", sums, hint=f"{self._hint}/sums", to=_FLOAT64)[0]

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
        return "float32" if self._bounds[what].max(initial=0) < _EXACT32 else "float64"

    def _rescale(self, what: str) -> Rescale:
        layer = self._layer

        def factor(gate: IntegerGate) -> float:
            own, quantization = (gate.weights[1], layer.data[0]) if what == "weights" else (gate.recurrent[1], layer.state[0])
            return float(np.float32(np.float32(own) * np.float32(quantization)) / np.float32(gate.scale))

        columns = np.repeat([factor(layer.gates[name]) for name in self._gates], self._cells)
        return self._require_rescale(Rescale.of(columns, self._bounds[what]), "sums of gates")

    def _require_rescale(self, found: Rescale | None, what: str) -> Rescale:
        if found is None:
            raise self._b.unsupported_error(self._op, f"{what} that may overflow in its kernel", rule="may-overflow")
        return found

    def _step(self, to: Emitter, part: str, hidden: str, cell: str) -> tuple[str, str, str]:
        """One step: the stored outputs, the next hidden values less their zero point, and the next cell."""
        b, layer = self._b, self._layer
        own = self._product(to, hidden, "recurrent", self._product_type("recurrent"))
        scaled = self._rescale("recurrent").emit(b, to, own, f"{self._hint}/own")
        sums = self._clip_to_int16(to, to.node("Add", [part, scaled], hint=f"{self._hint}/gates")[0])
        gates = dict(zip(self._gates, to.node("Split", [sums, self._sizes()], len(self._gates), hint="gate", axis=1), strict=True))
        early = [gate for gate in self._gates if gate != "output" or layer.gates[gate].peephole is None]
        gates |= self._complete_gates(to, {gate: gates[gate] for gate in early}, cell)
        kept = self._curve(to, gates["forget"], "logistic", 3)
        update = self._curve(to, gates["cell"], "tanh", 3)
        if "input" in gates:
            new = self._curve(to, gates["input"], "logistic", 3)
        else:
            new = to.node("Sub", [self._scalar(_HIGH, "float64", "one"), kept], hint="input")[0]
        old = self._shift_right(to, to.node("Mul", [kept, cell], hint="kept")[0], 15)
        added = self._shift_right(to, to.node("Mul", [new, update], hint="new")[0], 30 + layer.cell_power)
        cell = self._clip_to_int16(to, to.node("Add", [old, added], hint="cell")[0])
        if layer.stored_cell_clip:
            limits = [self._scalar(sign * layer.stored_cell_clip, "float64", "cell_clip") for sign in (-1, 1)]
            cell = to.node("Clip", [cell, *limits], hint="cell")[0]
        if "output" not in early:  # its peephole sees the new cell
            gates |= self._complete_gates(to, {"output": gates["output"]}, cell)
        opened = self._curve(to, gates["output"], "logistic", 3)
        shown = to.node("Mul", [opened, self._curve(to, cell, "tanh", 15 + layer.cell_power)], hint="shown")[0]
        stored = self._quantize_hidden(to, shown)
        dtype = self._product_type("recurrent")
        if dtype != "float64":
            stored = to.node("Cast", [stored], hint="stored", to=_FLOAT32)[0]
        hidden = to.node("Sub", [stored, self._scalar(layer.state[1], dtype, "zero_point")], hint="hidden")[0]
        return to.node("Cast", [stored], hint="output", to=_INT8)[0], hidden, cell

    def _complete_gates(self, to: Emitter, gates: dict[str, str], cell: str) -> dict[str, str]:
        """Gates as they go into sigmoid and tanh: with what they see of the cell, and normalized."""
        seen = {gate: self._add_peephole(to, value, gate, cell) for gate, value in gates.items()}
        return normalize_gates(self._b, to, self._op, self._layer, self._names, seen) if self._is_normed else seen

    def _add_peephole(self, to: Emitter, value: str, gate: str, cell: str) -> str:
        """A gate with what it sees of the cell."""
        peephole, b = self._layer.gates[gate].peephole, self._b
        if peephole is None:
            return value
        factor = float(np.float32(2.0**self._layer.cell_power * peephole[1] / self._layer.gates[gate].scale))
        if factor >= 1:
            raise b.unsupported_error(self._op, "peepholes that may overflow in its kernel", rule="may-overflow")
        hint = f"{self._hint}/{gate}_peephole"
        weights = to.node("Cast", [b.stored_value(self._names[f"{gate}_peephole"])], hint=hint, to=_FLOAT64)[0]
        if self._layer.projection is not None:
            weights = self._seen_cells(to, weights, hint)
        seen = Rescale.of_pair(factor).emit(b, to, to.node("Mul", [weights, cell], hint="peephole")[0], f"{self._hint}/peephole")
        return self._clip_to_int16(to, to.node("Add", [value, seen], hint=gate)[0])

    def _seen_cells(self, to: Emitter, weights: str, hint: str) -> str:
        """Peepholes next to a projection: their kernel takes as many cells as there are outputs, of each row, or of all rows one after the
        other where time comes first, and none of the cells after these."""
        b, layer, width = self._b, self._layer, len(self._layer.projection.weights[0])  # type: ignore[union-attr]
        rows = (b.tensor(self._names["cell"]).static_shape or (None,))[0] if layer.time_major else 1
        if rows is None:
            raise b.unsupported_error(self._op, "peepholes and a projection with a dynamic number of rows,", rule="dynamic-dimension")
        places = np.arange(rows * self._cells).reshape(rows, self._cells)
        chosen = to.node("Gather", [weights, b.const(places % width, f"{hint}/places")], hint=hint)
        return to.node("Mul", [*chosen, b.const((places < rows * width).astype(np.float64), f"{hint}/seen")], hint=hint)[0]

    def _curve(self, to: Emitter, value: str, function: str, bits: int) -> str:
        """The table's entry for each int16."""
        return int16_curve(self._b, to, value, function, bits, self._scalar(-_LOW, "float64", "offset"))

    def _shift_right(self, to: Emitter, value: str, by: int) -> str:
        """value / 2**by, ties away from zero."""
        return to.node("Round", to.node("Mul", [value, self._scalar(2.0**-by * AWAY, "float64", f"shift_{by}")]), hint="shifted")[0]

    def _quantize_hidden(self, to: Emitter, shown: str) -> str:
        """Stored outputs, float64, of sigmoid times tanh."""
        b, layer = self._b, self._layer
        scale, zero_point = layer.hidden
        factor = float(np.float32(2.0**-15 / scale * 2.0**-15))
        steps = Rescale.of_pair(factor).emit(b, to, shown, f"{self._hint}/hidden")
        if layer.projection is None:
            return self._clip_to_int8(to, to.node("Add", [steps, self._scalar(zero_point, "float64", "hidden_zero")])[0])
        stored = self._clip_to_int8(to, to.node("Sub", [steps, self._scalar(zero_point, "float64", "hidden_zero")])[0])
        weights, own = layer.projection.weights
        wide = weights.astype(np.int64)
        own_sums, bias = zero_point * wide.sum(axis=1), layer.projection.bias
        bound = np.abs(wide).sum(axis=1) * 128 + np.abs(own_sums) + (0 if bias is None else np.abs(bias.astype(np.int64)))
        hint = f"{self._hint}/projection"
        turned = to.node("Transpose", [b.stored_value(self._names["projection_weights"])], hint=hint, perm=[1, 0])
        sums = to.node("MatMul", [stored, *to.node("Cast", turned, hint=hint, to=_FLOAT64)], hint="projected")[0]
        sums = to.node("Add", [sums, b.const(own_sums.astype(np.float64), f"{hint}_sums")], hint="projected")[0]
        if bias is not None:
            given = to.node("Cast", [b.stored_value(self._names["projection_bias"])], hint=hint, to=_FLOAT64)
            sums = to.node("Add", [sums, *given], hint="projected")[0]
        total = float(np.float32(np.float32(own) * np.float32(scale)) / np.float32(layer.state[0]))
        scaled = self._require_rescale(Rescale.of(np.full(len(wide), total), bound), "a projection").emit(b, to, sums, hint)
        found = self._clip_to_int8(to, to.node("Add", [scaled, self._scalar(layer.state[1], "float64", "state_zero")])[0])
        limit = layer.stored_projection_clip
        if limit <= 0:
            return found
        return to.node("Clip", [found, *(self._scalar(sign * limit, "float64", "clip") for sign in (-1, 1))], hint="clipped")[0]

    def _clip_to_int8(self, to: Emitter, value: str) -> str:
        return to.node("Clip", [value, self._scalar(-128, "float64", "low8"), self._scalar(127, "float64", "high8")], hint="byte")[0]

    def _clip_to_int16(self, to: Emitter, value: str) -> str:
        return to.node("Clip", [value, self._scalar(_LOW, "float64", "low16"), self._scalar(_HIGH, "float64", "high16")], hint="limited")[0]

    def _scalar(self, value: float, dtype: str, hint: str) -> str:
        key = f"{float(value)!r} {dtype}"
        return self._b.make_once(key, "scalar", lambda: [self._b.const(np.array(value, dtype), f"constant/{hint}")])[0]

    def _sizes(self) -> str:
        return self._axes([self._cells] * len(self._gates), "sizes")

    def _axes(self, values: list[int], hint: str) -> str:
        return self._b.const(np.array(values, np.int64), f"{self._hint}/{hint}")


WRITERS: dict[str, WriteFunction] = {"IntegerLSTM": write_integer_lstm}
