"""A GRU or RNN of integer weights that rounds its data and hidden values when it runs, spelled out step by step: ONNX has neither."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.formats.onnx.ops.rescaling import Emitter
from qconvert.formats.onnx.ops.rounded_rows import product, rounded_rows, summed_exactly
from qconvert.formats.onnx.ops.scan_body import ScanBody, zero_states
from qconvert.graph import Op
from qconvert.graph.kinds.recurrent import GATES, activation_names

__all__ = ["write_spelled_gates"]

_FLOAT32 = ELEMENT_TYPES["float32"]
_BIAS, _LENGTHS, _HIDDEN = 3, 4, 5
_CURVES = ("Sigmoid", "Tanh", "Relu")


def write_spelled_gates(op: Op, b: Builder) -> None:
    """A Scan over the steps."""
    for name, value in {"clip": 0.0, "layout": 0, "activation_alpha": (), "activation_beta": ()}.items():
        if op[name] != value:
            raise b.unsupported(op, f"data that it rounds when it runs, and {name}")
    if op["direction"] == "bidirectional" or not set(activation_names(op)) <= set(_CURVES):
        raise b.unsupported(op, f"data that it rounds when it runs, and both directions or activations {', '.join(activation_names(op))}")
    if op.kind == "GRU" and not op["linear_before_reset"]:
        raise b.unsupported(op, "data that it rounds when it runs, and a reset in front of the product")
    if len(op.inputs) > _LENGTHS and op.inputs[_LENGTHS]:
        raise b.unsupported(op, "data that it rounds when it runs, and lengths of sequences")
    _Gates(op, b).write()


class _Gates:
    def __init__(self, op: Op, b: Builder) -> None:
        self._op, self._b = op, b
        self._cells = int(op["hidden_size"])
        self._hint = next(filter(None, op.outputs))

    def write(self) -> None:
        op, b = self._op, self._b
        b.domains.setdefault("", b.opset)
        data = b.real(op.inputs[0])
        sums = self._with_bias(b, self._product(b, data, 1, f"{self._hint}/sums"), 0)
        body = ScanBody(b, f"{self._hint}/body", dict.fromkeys(("hidden", "part"), _FLOAT32))
        after = self._step(body, body.inputs[1], body.inputs[0])
        shown = body.node("Identity", [after], hint="shown")[0]
        backwards = bool(op["direction"] == "reverse")
        hidden, whole = body.scan([self._first(data), sums], [after], shown, _FLOAT32, f"{self._hint}/scan", backwards)
        for index, (value, axis) in enumerate(((whole, 1), (hidden, 0))):
            if index < len(op.outputs) and op.outputs[index]:
                b.finish(op, b.node("Unsqueeze", [value, self._sizes([axis])], hint=f"{op.outputs[index]}/value")[0], index)

    def _first(self, data: str) -> str:
        """The hidden values at first, of shape (rows, cells)."""
        b, op = self._b, self._op
        if len(op.inputs) > _HIDDEN and op.inputs[_HIDDEN]:
            return b.node("Squeeze", [b.real(op.inputs[_HIDDEN]), self._sizes([0])], hint=f"{self._hint}/first")[0]
        return zero_states(b, data, self._cells, f"{self._hint}/first")

    def _product(self, to: Emitter, values: str, index: int, hint: str) -> str:
        """Rounded values times the integer weights that an input is."""
        b, weights = self._b, self._b.tensor(self._op.inputs[index])
        grid = weights.quantization
        if weights.data is None or grid is None or weights.dtype != "int8" or not grid.is_symmetric or grid.axis not in (None, 1):
            raise b.unsupported(self._op, "weights that are no constant of int8 with zero point 0, and one scale or one for each row,")
        flat = to.node("Squeeze", [b.stored(weights.name), self._sizes([0])], hint="weights")
        turned = to.node("Transpose", flat, hint="weights", perm=[1, 0])
        steps, scale = rounded_rows(b, to, values, str(self._op["arithmetic"]), f"{hint}/rounded")
        sums = product(b, to, steps, turned[0], hint, exact=summed_exactly(weights.data))
        own = grid.scale if grid.axis is not None else grid.scale.reshape(())
        scales = b.once("scales", weights.name, lambda: [b.const(own, f"{weights.name}/scales")])
        return to.node("Mul", [sums, *to.node("Mul", [scale, *scales], hint=f"{hint}/scale")], hint=hint)[0]

    def _with_bias(self, to: Emitter, value: str, which: int) -> str:
        """With the biases of the data (0) or of the hidden values (1)."""
        if len(self._op.inputs) <= _BIAS or not self._op.inputs[_BIAS]:
            return value
        flat = to.node("Squeeze", [self._b.real(self._op.inputs[_BIAS]), self._sizes([0])], hint="bias")
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

    def _sizes(self, values: list[int]) -> str:
        key = f"{values} int64"
        return self._b.once(key, "list", lambda: [self._b.const(np.array(values, np.int64), "constant/sizes")])[0]
