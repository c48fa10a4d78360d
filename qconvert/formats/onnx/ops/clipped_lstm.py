"""An LSTM whose cell is limited after each step, as TFLite has it: ONNX's own limits what goes into activations, so it is spelled out."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder
from qconvert.formats.onnx.ops.rescaling import Emitter
from qconvert.formats.onnx.ops.scan_body import ScanBody
from qconvert.graph import Op

__all__ = ["write_clipped_lstm"]

_FLOAT32 = ELEMENT_TYPES["float32"]
#: Inputs of an LSTM behind its data and weights.
_BIAS, _LENGTHS, _HIDDEN, _CELL, _PEEPHOLES = 3, 4, 5, 6, 7


def write_clipped_lstm(op: Op, b: Builder) -> None:
    """A Scan over the steps, or the one step itself."""
    wrong = {"direction": "forward", "activations": (), "clip": 0.0, "layout": 0, "input_forget": 0}
    for name, value in wrong.items():
        if op[name] != value:
            raise b.unsupported(op, f"a limited cell and {name}")
    if _has(op, _LENGTHS):
        raise b.unsupported(op, "a limited cell and lengths of sequences")
    _Lstm(op, b).write()


def _has(op: Op, index: int) -> bool:
    return index < len(op.inputs) and bool(op.inputs[index])


class _Lstm:
    def __init__(self, op: Op, b: Builder) -> None:
        self._op, self._b = op, b
        self._cells = int(op["hidden_size"])
        self._hint = next(filter(None, op.outputs))

    def write(self) -> None:
        op, b = self._op, self._b
        b.domains.setdefault("", b.opset)
        batch = b.tensor(op.inputs[0]).shape
        states = [self._first(index, batch) for index in (_HIDDEN, _CELL)]
        parts = self._data_parts()
        if batch is not None and batch[0] == 1:
            step = b.node("Squeeze", [parts, self._axis(0)], hint=f"{self._hint}/step")[0]
            hidden, cell = self._step(b, step, *states)
            whole = b.node("Unsqueeze", [hidden, self._axis(0)], hint=f"{self._hint}/steps")[0]
        else:
            body = ScanBody(b, f"{self._hint}/body", dict.fromkeys(("hidden", "cell", "part"), _FLOAT32))
            after = self._step(body, body.inputs[2], *body.inputs[:2])
            shown = body.node("Identity", [after[0]], hint="shown")[0]
            hidden, cell, whole = body.scan([*states, parts], list(after), shown, _FLOAT32, f"{self._hint}/scan")
        for index, (value, axis) in enumerate(((whole, 1), (hidden, 0), (cell, 0))):
            if index < len(op.outputs) and op.outputs[index]:
                b.finish(op, b.node("Unsqueeze", [value, self._axis(axis)], hint=f"{op.outputs[index]}/value")[0], index)

    def _first(self, index: int, shape: tuple[int | str, ...] | None) -> str:
        """A state at first, of shape (rows, cells)."""
        b = self._b
        if _has(self._op, index):
            return b.node("Squeeze", [b.real(self._op.inputs[index]), self._axis(0)], hint=f"{self._hint}/first")[0]
        if shape is None or not isinstance(shape[1], int):
            raise b.unsupported(self._op, "a limited cell, rows whose number is known only at run time, and no first values")
        return b.const(np.zeros((shape[1], self._cells), np.float32), f"{self._hint}/first")

    def _data_parts(self) -> str:
        """What the data give to each gate, with all biases, for all steps."""
        b, op = self._b, self._op
        sums = b.node("MatMul", [b.real(op.inputs[0]), self._turned(b, 1)], hint=f"{self._hint}/sums")[0]
        if not _has(op, _BIAS):
            return sums
        bias = b.node("Squeeze", [b.real(op.inputs[_BIAS]), self._axis(0)], hint=f"{self._hint}/bias")[0]
        both = b.node("Split", [bias, self._sizes([4 * self._cells] * 2)], 2, hint=f"{self._hint}/bias")
        return b.node("Add", [sums, *b.node("Add", both, hint=f"{self._hint}/bias")], hint=f"{self._hint}/sums")[0]

    def _turned(self, to: Emitter, index: int) -> str:
        """Weights with a column for each row of the gates."""
        flat = to.node("Squeeze", [self._b.real(self._op.inputs[index]), self._axis(0)], hint="weights")
        return to.node("Transpose", flat, hint="weights", perm=[1, 0])[0]

    def _step(self, to: Emitter, part: str, hidden: str, cell: str) -> tuple[str, str]:
        """One step: the next hidden values and the next cell. The order of gates is input, output, forget, cell."""
        own = to.node("MatMul", [hidden, self._turned(to, 2)], hint="own")
        sums = to.node("Add", [part, *own], hint="sums")[0]
        enters, opens, stays, new = to.node("Split", [sums, self._sizes([self._cells] * 4)], 4, hint="gate", axis=1)
        peepholes = self._peepholes(to)
        if peepholes:
            enters, stays = self._seen(to, enters, peepholes[0], cell), self._seen(to, stays, peepholes[2], cell)
        kept = to.node("Mul", [*to.node("Sigmoid", [stays]), cell], hint="kept")
        added = to.node("Mul", [*to.node("Sigmoid", [enters]), *to.node("Tanh", [new])], hint="added")
        limits = [self._limit(sign) for sign in (-1, 1)]
        cell = to.node("Clip", [*to.node("Add", [*kept, *added], hint="sum"), *limits], hint="cell")[0]
        if peepholes:
            opens = self._seen(to, opens, peepholes[1], cell)
        return to.node("Mul", [*to.node("Sigmoid", [opens]), *to.node("Tanh", [cell])], hint="hidden")[0], cell

    def _peepholes(self, to: Emitter) -> list[str]:
        if not _has(self._op, _PEEPHOLES):
            return []
        flat = to.node("Squeeze", [self._b.real(self._op.inputs[_PEEPHOLES]), self._axis(0)], hint="peepholes")[0]
        return to.node("Split", [flat, self._sizes([self._cells] * 3)], 3, hint="peephole")

    @staticmethod
    def _seen(to: Emitter, gate: str, peephole: str, cell: str) -> str:
        return to.node("Add", [gate, *to.node("Mul", [peephole, cell], hint="seen")], hint="seen")[0]

    def _limit(self, sign: int) -> str:
        value = sign * float(self._op["cell_clip"])
        return self._b.once(f"{value!r} float32", "scalar", lambda: [self._b.const(np.array(value, np.float32), "constant/cell_clip")])[0]

    def _axis(self, value: int) -> str:
        return self._sizes([value])

    def _sizes(self, values: list[int]) -> str:
        key = f"{values} int64"
        return self._b.once(key, "list", lambda: [self._b.const(np.array(values, np.int64), "constant/sizes")])[0]
