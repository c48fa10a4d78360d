"""A GRU or RNN of integer weights that rounds its data and hidden values when it runs, decomposed step by step: ONNX has neither."""

from __future__ import annotations

from qconvert.formats.onnx.builder import Builder
from qconvert.formats.onnx.ops.decomposed_recurrence import BIAS, FLOAT32, HIDDEN, LENGTHS, Recurrence, require_plain
from qconvert.formats.onnx.ops.rescaling import Emitter
from qconvert.formats.onnx.ops.scan_body import ScanBody, zero_states
from qconvert.graph import Op
from qconvert.operators.recurrent import activation_names
from qconvert.operators.recurrent_cells import GATES

__all__ = ["write_decomposed_gates"]

_CURVES = ("Sigmoid", "Tanh", "Relu")


def write_decomposed_gates(op: Op, b: Builder) -> None:
    """A Scan over the steps."""
    require_plain(op, b, "data that it rounds when it runs")
    if op["direction"] == "bidirectional" or not set(activation_names(op)) <= set(_CURVES):
        raise b.unsupported_error(
            op,
            f"dynamically quantized data, and both directions or activations {', '.join(activation_names(op))}",
            rule="dynamic-quantization",
        )
    if op.kind == "GRU" and not op["linear_before_reset"]:
        raise b.unsupported_error(op, "dynamically quantized data, and a reset before the product", rule="dynamic-quantization")
    if op.has(LENGTHS):
        raise b.unsupported_error(op, "dynamically quantized data, and lengths of sequences", rule="dynamic-quantization")
    _Gates(op, b).write()


class _Gates(Recurrence):
    def write(self) -> None:
        op, b = self._op, self._b
        data = b.real(op.inputs[0])
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
            return b.node("Squeeze", [b.real(op.inputs[HIDDEN]), self._sizes([0])], hint=f"{self._hint}/first")[0]
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
        flat = to.node("Squeeze", [self._b.real(self._op.inputs[BIAS]), self._sizes([0])], hint="bias")
        half = GATES[self._op.kind] * self._cells
        both = to.node("Split", [*flat, self._sizes([half, half])], 2, hint="bias")
        return to.node("Add", [value, both[which]], hint="biased")[0]

    def _step(self, to: Emitter, part: str, hidden: str) -> str:
        """One step: the next hidden values."""
        own = self._with_bias(to, self._product(to, hidden, 2, "own"), 1)
        names = activation_names(self._op)
        if self._op.kind == "RNN":
            return to.node(names[0], to.node("Add", [own, part], hint="sum"), hint="hidden")[0]
        sizes = self._sizes([self._cells] * 3)
        mine, theirs = (to.node("Split", [value, sizes], 3, hint="gate", axis=1) for value in (own, part))
        update, reset = (
            to.node(names[0], to.node("Add", pair, hint="sum"), hint=hint)[0]
            for pair, hint in (([mine[0], theirs[0]], "update"), ([mine[1], theirs[1]], "reset"))
        )
        inner = to.node("Add", [theirs[2], *to.node("Mul", [mine[2], reset], hint="kept")], hint="inner")
        new = to.node(names[1], inner, hint="new")[0]
        moved = to.node("Mul", [*to.node("Sub", [hidden, new], hint="apart"), update], hint="moved")
        return to.node("Add", [*moved, new], hint="hidden")[0]
