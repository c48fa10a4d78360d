"""Recurrences that ONNX lacks, decomposed step by step in the body of a Scan: LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.formats.onnx.ops.dynamic import is_sum_exact, product, rounded_rows
from qconvert.formats.onnx.ops.integer_arithmetic import Emitter, ScanBody, zero_states
from qconvert.graph import Op
from qconvert.operators import is_dynamic
from qconvert.operators.recurrent import CELLS, NORM, ONNX_ACTIVATIONS, PROJECTION, PROJECTION_BIAS, activation_names, resets_before_product

__all__ = [
    "BIAS",
    "FLOAT32",
    "HIDDEN",
    "LENGTHS",
    "Recurrence",
    "require_plain",
    "runs_in_float",
    "write_decomposed_gates",
    "write_decomposed_lstm",
]

FLOAT32 = ELEMENT_TYPES["float32"]
#: Inputs of an LSTM, a GRU or an RNN after its data and weights.
BIAS, LENGTHS, HIDDEN = 3, 4, 5


def require_plain(op: Op, b: Builder, what: str) -> None:
    """Raises UnsupportedError for an attribute that no step here has; `what` says in words what is decomposed."""
    for name, value in {"clip": 0.0, "layout": 0, "activation_alpha": (), "activation_beta": ()}.items():
        if op[name] != value:
            raise b.unsupported_error(op, f"{what}, and {name}", rule="form-not-covered")


class Recurrence:
    """An operator of one direction that becomes a Scan over its steps.

    Args:
        op: the LSTM, GRU or RNN.
        b: the graph that it becomes a part of.
    """

    def __init__(self, op: Op, b: Builder) -> None:
        self._op, self._b = op, b
        self._cell, self._cells = CELLS[op.kind], int(op["hidden_size"])
        self._hint = next(filter(None, op.outputs))

    def _rounded_product(self, to: Emitter, rows: str, index: int, hint: str) -> str:
        """Rows, rounded as the operator says, times the constant integer weights that an input is, which have a row for each column."""
        b, weights = self._b, self._b.tensor(self._op.inputs[index])
        assert weights.data is not None
        flat = to.node("Squeeze", [b.stored_value(weights.name), self._sizes([0])], hint="weights")
        turned = to.node("Transpose", flat, hint="weights", perm=[1, 0])
        steps, scale = rounded_rows(b, to, rows, str(self._op["arithmetic"]), f"{hint}/rows")
        sums = product(b, to, steps, turned[0], hint, exact=is_sum_exact(weights.data))
        return to.node("Mul", [sums, *to.node("Mul", [scale, self._scales(index)], hint=f"{hint}/scale")], hint=hint)[0]

    def _scales(self, index: int) -> str:
        """The scales of integer weights: one for each row, or one for all."""
        tensor = self._b.tensor(self._op.inputs[index])
        quantization = tensor.quantization
        assert quantization is not None
        scale = quantization.scale.reshape(()) if quantization.is_per_tensor else quantization.scale
        return self._b.make_once("scales", tensor.name, lambda: [self._b.const(scale, f"{tensor.name}/scales")])[0]

    def _finish(self, results: Sequence[tuple[str, int]]) -> None:
        """Makes values the outputs of the operator, each with its axis of directions."""
        op, b = self._op, self._b
        for index, (value, axis) in enumerate(results):
            if index < len(op.outputs) and op.outputs[index]:
                b.finish(op, b.node("Unsqueeze", [value, self._sizes([axis])], hint=f"{op.outputs[index]}/value")[0], index)

    def _sizes(self, values: list[int]) -> str:
        key = f"{values} int64"
        return self._b.make_once(key, "list", lambda: [self._b.const(np.array(values, np.int64), "constant/sizes")])[0]


#: Inputs of an LSTM that GRU and RNN lack.
_CELL, _PEEPHOLES = 6, 7
#: The opset from which on axes of a ReduceMean are an input.
_AXES_AS_INPUT = 18


#: The activations of cells; those with limits of their own are a Clip.
_CURVES = {"Tanh": (), "Relu": (), "Relu6": (0.0, 6.0), "ReluN1To1": (-1.0, 1.0)}
_EPSILON = 1e-8


def runs_in_float(op: Op) -> bool:
    """Whether ONNX's LSTM does not say what an LSTM of the graph does."""
    foreign = not {name.lower() for name in activation_names(op)} <= {name.lower() for name in ONNX_ACTIVATIONS}
    return foreign or is_dynamic(op) or bool(op["cell_clip"]) or any(op.has(index) for index in (PROJECTION, NORM))


def write_decomposed_lstm(op: Op, b: Builder) -> None:
    """A Scan over the steps, or the one step itself."""
    what = "a limited cell, a projection, a normalization, rounded data or an activation of TFLite"
    require_plain(op, b, what)
    names = activation_names(op)
    if op["direction"] == "bidirectional" or names[0] != "Sigmoid" or names[1] not in _CURVES or names[2] not in _CURVES:
        raise b.unsupported_error(op, f"{what}, and both directions or activations {', '.join(names)}", rule="form-not-covered")
    if op.has(LENGTHS):
        raise b.unsupported_error(op, f"{what}, and lengths of sequences", rule="form-not-covered")
    _Lstm(op, b).write()


class _Lstm(Recurrence):
    def write(self) -> None:
        op, b = self._op, self._b
        batch = b.tensor(op.inputs[0]).shape
        states = [self._first(index, batch) for index in (HIDDEN, _CELL)]
        parts = self._data_parts()
        if batch is not None and batch[0] == 1:
            step = b.node("Squeeze", [parts, self._axis(0)], hint=f"{self._hint}/step")[0]
            hidden, cell = self._step(b, step, *states)
            whole = b.node("Unsqueeze", [hidden, self._axis(0)], hint=f"{self._hint}/steps")[0]
        else:
            body = ScanBody(b, f"{self._hint}/body", dict.fromkeys(("hidden", "cell", "part"), FLOAT32))
            after = self._step(body, body.inputs[2], *body.inputs[:2])
            shown = body.node("Identity", [after[0]], hint="shown")[0]
            backwards = bool(op["direction"] == "reverse")
            hidden, cell, whole = body.scan([*states, parts], list(after), shown, FLOAT32, f"{self._hint}/scan", backwards)
        self._finish(((whole, 1), (hidden, 0), (cell, 0)))

    def _first(self, index: int, shape: tuple[int | str, ...] | None) -> str:
        """A state at first, of shape (rows, cells)."""
        b = self._b
        if self._op.has(index):
            return b.node("Squeeze", [b.float_value(self._op.inputs[index]), self._axis(0)], hint=f"{self._hint}/first")[0]
        recurrent = b.tensor(self._op.inputs[2]).static_shape
        size = self._cells if index == _CELL or recurrent is None else recurrent[2]
        if shape is None or not isinstance(shape[1], int):
            return zero_states(b, b.float_value(self._op.inputs[0]), size, f"{self._hint}/first")
        return b.const(np.zeros((shape[1], size), np.float32), f"{self._hint}/first")

    def _data_parts(self) -> str:
        """What the data give to each gate for all steps, with all biases, unless these stand after normalizations."""
        b, op = self._b, self._op
        sums = self._product(b, b.float_value(op.inputs[0]), 1, f"{self._hint}/sums")
        if not op.has(BIAS) or op.has(NORM):
            return sums
        return b.node("Add", [sums, self._bias(b)], hint=f"{self._hint}/sums")[0]

    def _bias(self, to: Emitter) -> str:
        """The biases for data and hidden values together."""
        both = to.node("Split", [self._flat(to, BIAS), self._sizes([4 * self._cells] * 2)], 2, hint=f"{self._hint}/bias")
        return to.node("Add", both, hint=f"{self._hint}/bias")[0]

    def _flat(self, to: Emitter, index: int) -> str:
        """An input without its axis of directions. Integers become real here: what is made real outside a reader takes for a constant."""
        if index == _PEEPHOLES and is_dynamic(self._op) and self._b.tensor(self._op.inputs[index]).is_quantized:
            whole = to.node("Squeeze", [self._b.stored_value(self._op.inputs[index]), self._axis(0)], hint="flat")
            return to.node("Mul", [*to.node("Cast", whole, hint="flat", to=FLOAT32), self._scales(index)], hint="flat")[0]
        return to.node("Squeeze", [self._b.float_value(self._op.inputs[index]), self._axis(0)], hint=f"{self._hint}/flat")[0]

    def _product(self, to: Emitter, rows: str, index: int, hint: str) -> str:
        """Real rows times the weights that an input is, which have a row for each column; rounded first, where the operator does that."""
        b, weights = self._b, self._b.tensor(self._op.inputs[index])
        if not is_dynamic(self._op):
            turned = to.node("Transpose", [self._flat(to, index)], hint="weights", perm=[1, 0])
            return to.node("MatMul", [rows, *turned], hint=hint)[0]
        if weights.data is None or weights.quantization is None or weights.dtype != "int8" or not weights.quantization.is_symmetric:
            raise b.unsupported_error(self._op, "weights that are not an int8 constant with zero point 0", rule="weight-quantization")
        return self._rounded_product(to, rows, index, hint)

    def _step(self, to: Emitter, part: str, hidden: str, cell: str) -> tuple[str, str]:
        """One step: the next hidden values and the next cell. The order of gates is input, output, forget, cell."""
        sums = to.node("Add", [part, self._product(to, hidden, 2, "own")], hint="sums")[0]
        enters, opens, stays, new = to.node("Split", [sums, self._sizes([self._cells] * 4)], 4, hint="gate", axis=1)
        seen, norms = self._split_gates(to, _PEEPHOLES, 3), self._norms(to)
        entering = to.node("Sigmoid", [self._total(to, enters, seen[:1], norms[:1], cell)])
        if self._op["input_forget"]:
            staying = to.node("Sub", [self._scalar(1.0), *entering], hint="stays")
        else:
            staying = to.node("Sigmoid", [self._total(to, stays, seen[2:], norms[2:3], cell)])
        _, inner, last = activation_names(self._op)
        kept = to.node("Mul", [*staying, cell], hint="kept")
        added = to.node("Mul", [*entering, self._curve(to, inner, self._total(to, new, [], norms[3:], cell))], hint="added")
        cell = self._clip_by_attribute(to, to.node("Add", [*kept, *added], hint="sum")[0], "cell_clip")
        opened = to.node("Sigmoid", [self._total(to, opens, seen[1:2], norms[1:2], cell)])
        result = to.node("Mul", [*opened, self._curve(to, last, cell)], hint="hidden")[0]
        return self._project(to, result), cell

    def _split_gates(self, to: Emitter, index: int, count: int) -> list[str]:
        """An optional input, cut into the parts of so many gates."""
        if not self._op.has(index):
            return []
        return to.node("Split", [self._flat(to, index), self._sizes([self._cells] * count)], count, hint="part")

    def _norms(self, to: Emitter) -> list[tuple[str, str]]:
        """The factor of each gate's normalization, and what is added after it."""
        factors = self._split_gates(to, NORM, 4)
        if not factors or not self._op.has(BIAS):
            return [(factor, "") for factor in factors]
        added = to.node("Split", [self._bias(to), self._sizes([self._cells] * 4)], 4, hint="bias")
        return list(zip(factors, added, strict=True))

    def _total(self, to: Emitter, gate: str, peephole: list[str], norm: list[tuple[str, str]], cell: str) -> str:
        """What goes into a gate's activation."""
        for weights in peephole:
            gate = to.node("Add", [gate, *to.node("Mul", [weights, cell], hint="seen")], hint="seen")[0]
        for factor, added in norm:
            even = to.node("Sub", [gate, self._mean(to, gate)], hint="even")
            spread = to.node("Add", [self._mean(to, *to.node("Mul", even * 2, hint="square")), self._scalar(_EPSILON)], hint="spread")
            gate = to.node("Mul", [*to.node("Div", [*even, *to.node("Sqrt", spread)], hint="norm"), factor], hint="norm")[0]
            gate = to.node("Add", [gate, added], hint="norm")[0] if added else gate
        return gate

    def _mean(self, to: Emitter, value: str) -> str:
        if self._b.opset < _AXES_AS_INPUT:
            return to.node("ReduceMean", [value], hint="mean", axes=[1])[0]
        return to.node("ReduceMean", [value, self._axis(1)], hint="mean")[0]

    def _curve(self, to: Emitter, name: str, value: str) -> str:
        limits = [self._scalar(limit) for limit in _CURVES[name]]
        return to.node("Clip" if limits else name, [value, *limits], hint="curve")[0]

    def _project(self, to: Emitter, value: str) -> str:
        if not self._op.has(PROJECTION):
            return value
        value = self._product(to, value, PROJECTION, "projected")
        if self._op.has(PROJECTION_BIAS):
            value = to.node("Add", [value, self._flat(to, PROJECTION_BIAS)], hint="projected")[0]
        return self._clip_by_attribute(to, value, "projection_clip")

    def _clip_by_attribute(self, to: Emitter, value: str, attribute: str) -> str:
        limit = float(self._op[attribute])
        return to.node("Clip", [value, self._scalar(-limit), self._scalar(limit)], hint="limited")[0] if limit else value

    def _scalar(self, value: float) -> str:
        return self._b.make_once(f"{value!r} float32", "scalar", lambda: [self._b.const(np.array(value, np.float32), "constant/limit")])[0]

    def _axis(self, value: int) -> str:
        return self._sizes([value])


_GATE_CURVES = ("Sigmoid", "Tanh", "Relu")


def write_decomposed_gates(op: Op, b: Builder) -> None:
    """A Scan over the steps."""
    require_plain(op, b, "data that it rounds when it runs")
    if op["direction"] == "bidirectional" or not set(activation_names(op)) <= set(_GATE_CURVES):
        raise b.unsupported_error(
            op,
            f"dynamically quantized data, and both directions or activations {', '.join(activation_names(op))}",
            rule="dynamic-quantization",
        )
    if resets_before_product(op):
        raise b.unsupported_error(op, "dynamically quantized data, and a reset before the product", rule="dynamic-quantization")
    if op.has(LENGTHS):
        raise b.unsupported_error(op, "dynamically quantized data, and lengths of sequences", rule="dynamic-quantization")
    _Gates(op, b).write()


class _Gates(Recurrence):
    def write(self) -> None:
        op, b = self._op, self._b
        data = b.float_value(op.inputs[0])
        sums = self._with_bias(b, self._product(b, data, 1, f"{self._hint}/sums"), 0)
        body = ScanBody(b, f"{self._hint}/body", dict.fromkeys(("hidden", "part"), FLOAT32))
        after = self._step(body, body.inputs[1], body.inputs[0])
        shown = body.node("Identity", [after], hint="shown")[0]
        backwards = bool(op["direction"] == "reverse")
        hidden, whole = body.scan([self._first(data), sums], [after], shown, FLOAT32, f"{self._hint}/scan", backwards)
        self._finish(((whole, 1), (hidden, 0)))

    def _first(self, data: str) -> str:
        """The hidden values at first, of shape (rows, cells)."""
        b, op = self._b, self._op
        if op.has(HIDDEN):
            return b.node("Squeeze", [b.float_value(op.inputs[HIDDEN]), self._sizes([0])], hint=f"{self._hint}/first")[0]
        return zero_states(b, data, self._cells, f"{self._hint}/first")

    def _product(self, to: Emitter, values: str, index: int, hint: str) -> str:
        """Rounded values times the integer weights that an input is."""
        b, weights = self._b, self._b.tensor(self._op.inputs[index])
        quantization = weights.quantization
        if (
            weights.data is None
            or quantization is None
            or weights.dtype != "int8"
            or not quantization.is_symmetric
            or quantization.axis not in (None, 1)
        ):
            raise b.unsupported_error(
                self._op,
                "weights that are not an int8 constant with zero point 0 and one scale, or one for each row,",
                rule="weight-quantization",
            )
        return self._rounded_product(to, values, index, hint)

    def _with_bias(self, to: Emitter, value: str, which: int) -> str:
        """With the biases of the data (0) or of the hidden values (1)."""
        if not self._op.has(BIAS):
            return value
        flat = to.node("Squeeze", [self._b.float_value(self._op.inputs[BIAS]), self._sizes([0])], hint="bias")
        half = self._cell.gates * self._cells
        both = to.node("Split", [*flat, self._sizes([half, half])], 2, hint="bias")
        return to.node("Add", [value, both[which]], hint="biased")[0]

    def _step(self, to: Emitter, part: str, hidden: str) -> str:
        """One step: the next hidden values."""
        own = self._with_bias(to, self._product(to, hidden, 2, "own"), 1)
        names = activation_names(self._op)
        if self._cell.gates == 1:
            return to.node(names[0], to.node("Add", [own, part], hint="sum"), hint="hidden")[0]
        sizes = self._sizes([self._cells] * 3)
        hidden_parts, data_parts = (to.node("Split", [value, sizes], 3, hint="gate", axis=1) for value in (own, part))
        update, reset = (
            to.node(names[0], to.node("Add", pair, hint="sum"), hint=hint)[0]
            for pair, hint in (([hidden_parts[0], data_parts[0]], "update"), ([hidden_parts[1], data_parts[1]], "reset"))
        )
        inner = to.node("Add", [data_parts[2], *to.node("Mul", [hidden_parts[2], reset], hint="kept")], hint="inner")
        new = to.node(names[1], inner, hint="new")[0]
        moved = to.node("Mul", [*to.node("Sub", [hidden, new], hint="apart"), update], hint="moved")
        return to.node("Add", [*moved, new], hint="hidden")[0]
