"""One step of an LSTM, a GRU or an RNN as operators, as TensorFlow's converter spells it (formulas: ONNX LSTM-22, GRU-22, RNN-22)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qconvert.graph import Array, Op, Tensor
from qconvert.operators.sizes import Size
from qconvert.rewriting.inlining import Inlining

__all__ = ["Cell", "Parameters"]

#: Activations that are operators of one tensor, and which of alpha and beta are attributes of them.
_PLAIN = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "Softsign": (), "Softplus": (), "LeakyRelu": ("alpha",), "ThresholdedRelu": ("alpha",),
    "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
}  # fmt: skip
_BOUNDS = {"Relu6": (0.0, 6.0), "ReluN1To1": (-1.0, 1.0)}


@dataclass(frozen=True, slots=True)
class Parameters:
    """The tensors of one direction, as the body names them; none where the operator has none.

    Attributes:
        w, r: rows of weights, in parts.
        w_bias, r_bias: the biases of these parts.
        peepholes: of an LSTM: input, output, forget.
        projection: of an LSTM's hidden values: weights, and their bias.
    """

    w: tuple[str, ...]
    r: tuple[str, ...]
    w_bias: tuple[str, ...] = ()
    r_bias: tuple[str, ...] = ()
    peepholes: tuple[str, ...] = ()
    projection: tuple[str, ...] = ()


class Cell:
    """The operators of one step.

    Args:
        op: the LSTM, GRU or RNN.
        body: that the operators join.
        rows: how many sequences run side by side.
        activations: of the direction: name, alpha, beta.
        parameters: of the direction.
    """

    def __init__(self, op: Op, body: Inlining, rows: Size, activations: Sequence[tuple[str, float, float]], parameters: Parameters) -> None:
        self._op, self._body, self._rows, self._activations, self._p = op, body, rows, activations, parameters
        self._cells = int(op["hidden_size"])

    def step(self, x: str, states: Sequence[str]) -> list[str]:
        """The next value of each state, of the element `x`."""
        if self._op.kind == "LSTM":
            return self._lstm(x, *states)
        return [self._gru(x, *states) if self._op.kind == "GRU" else self._rnn(x, *states)]

    def _rnn(self, x: str, h: str) -> str:
        return self._active(0, self._limited(self._two("Add", self._product(x, 0), self._product(h, 0, own=True))))

    def _gru(self, x: str, h: str) -> str:
        """h' = z * h + (1 - z) * g(x part + what the reset gate leaves of the hidden part)"""
        xz, xr, xh = self._split(self._product(x, 0), 3)
        if self._op["linear_before_reset"]:
            hz, hr, hh = self._split(self._product(h, 0, own=True), 3)
        else:
            hz, hr = self._split(self._product(h, 0, own=True), 2)
        z, r = (self._active(0, self._limited(self._two("Add", *parts))) for parts in ((xz, hz), (xr, hr)))
        if self._op["linear_before_reset"]:
            inner = self._two("Mul", r, hh)
        else:
            inner = self._product(self._two("Mul", r, h), 1, own=True)
        new = self._active(1, self._limited(self._two("Add", xh, inner)))
        rest = self._two("Sub", self._number(1.0), z)
        return self._two("Add", self._two("Mul", z, h), self._two("Mul", rest, new))

    def _lstm(self, x: str, h: str, c: str) -> list[str]:
        """c' = f * c + i * g(cell part), h' = o * last(c'); the order of rows is input, output, forget, cell."""
        sums = self._new("Add", (self._product(x, 0), self._product(h, 0, own=True)), 4 * self._cells)
        i, o, f, g = self._split(sums, 4)
        enters = self._active(0, self._limited(self._seen(i, 0, c)))
        if self._op["input_forget"]:
            stays = self._two("Sub", self._number(1.0), enters)
        else:
            stays = self._active(0, self._limited(self._seen(f, 2, c)))
        new = self._two("Add", self._two("Mul", stays, c), self._two("Mul", enters, self._active(1, self._limited(g))))
        if limit := float(self._op["cell_clip"]):
            new = self._clip(new, limit)
        opens = self._active(0, self._limited(self._seen(o, 1, new)))
        hidden = self._two("Mul", opens, self._active(2, new))
        if self._p.projection:
            hidden = self._new("Gemm", (hidden, *self._p.projection), (self._body.tensors[self._p.projection[0]].shape or (0,))[0])
            if limit := float(self._op["projection_clip"]):
                hidden = self._clip(hidden, limit)
        return [hidden, new]

    def _seen(self, gate: str, index: int, cell: str) -> str:
        """A gate that sees the cell through its peephole."""
        return self._two("Add", gate, self._two("Mul", self._p.peepholes[index], cell)) if self._p.peepholes else gate

    def _product(self, value: str, part: int, *, own: bool = False) -> str:
        """Rows of weights times an element, or the hidden values."""
        weights, bias = (self._p.r, self._p.r_bias) if own else (self._p.w, self._p.w_bias)
        inputs = (value, weights[part], bias[part]) if bias else (value, weights[part])
        return self._new("Gemm", inputs, (self._body.tensors[weights[part]].shape or (0,))[0], "product")

    def _split(self, value: str, count: int) -> list[str]:
        sizes = self._body.integers([self._cells] * count, "sizes")
        parts = [self._body.add(Tensor("", "float32", (self._rows, self._cells)), "gate") for _ in range(count)]
        self._body.ops.append(Op("Split", (value, sizes), tuple(parts), {"axis": 1}))
        return parts

    def _limited(self, value: str) -> str:
        limit = float(self._op["clip"])
        return self._clip(value, limit) if limit > 0 else value

    def _clip(self, value: str, limit: float) -> str:
        return self._bounded(value, -limit, limit)

    def _bounded(self, value: str, low: float, high: float) -> str:
        columns = (self._body.tensors[value].shape or (0,))[-1]
        return self._new("Clip", (value, self._number(low), self._number(high)), columns)

    def _active(self, index: int, value: str) -> str:
        name, alpha, beta = self._activations[index]
        if name in _PLAIN:
            stated = {"alpha": alpha, "beta": beta}
            return self._new(name, (value,), None, name, **{key: stated[key] for key in _PLAIN[name]})
        if name in _BOUNDS:
            return self._bounded(value, *_BOUNDS[name])
        if name == "ScaledTanh":
            return self._two("Mul", self._new("Tanh", (self._two("Mul", value, self._number(beta)),)), self._number(alpha))
        return self._two("Add", self._two("Mul", value, self._number(alpha)), self._number(beta))  # Affine

    def _number(self, value: float) -> str:
        data: Array = np.array(value, np.float32)
        return self._body.add(Tensor("", "float32", (), data), "number")

    def _two(self, kind: str, one: str, other: str) -> str:
        return self._new(kind, (one, other))

    def _new(self, kind: str, inputs: tuple[str, ...], columns: Size | None = None, hint: str = "", **attributes: float) -> str:
        shape = (self._rows, self._cells if columns is None else columns)
        name = self._body.add(Tensor("", "float32", shape), hint or kind)
        self._body.ops.append(Op(kind, inputs, (name,), attributes))
        return name
