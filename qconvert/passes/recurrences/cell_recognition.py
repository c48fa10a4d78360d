"""The body of a Scan that is a cell of an LSTM, a GRU or an RNN, as frameworks write it: products, sums, gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qconvert.graph import Array, Graph, Op

__all__ = ["Cell", "cell_of"]

#: Kinds that are activations of a recurrence, and their names there.
_ACTIVATIONS = {"Sigmoid": "Sigmoid", "Tanh": "Tanh", "Relu": "Relu"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell as ONNX has it.

    Attributes:
        kind: LSTM, GRU or RNN.
        weights: W, R and B, without the axis of directions.
        activations: of one direction.
        hidden: the position of the hidden state among the body's; the cell state is the other one.
        linear_before_reset: of a GRU.
    """

    kind: str
    weights: tuple[Array, Array, Array]
    activations: tuple[str, ...]
    hidden: int = 0
    linear_before_reset: int = 0


@dataclass(slots=True)
class _Linear:
    """A sum of products: rows of matrices by the element and by the hidden state, constants, and what is neither."""

    w: Array | None = None
    r: Array | None = None
    w_bias: Array | float = 0.0
    r_bias: Array | float = 0.0
    others: tuple[str, ...] = ()

    def plus(self, other: _Linear) -> _Linear | None:
        if (self.w is not None and other.w is not None) or (self.r is not None and other.r is not None):
            return None
        w, r = self.w if other.w is None else other.w, self.r if other.r is None else other.r
        return _Linear(w, r, self.w_bias + other.w_bias, self.r_bias + other.r_bias, (*self.others, *other.others))


def cell_of(body: Graph, states: int) -> Cell | None:
    """The cell that a body is, with so many states and one element of a sequence after them; None if it is none."""
    if states not in (1, 2) or len(body.inputs) != states + 1:
        return None
    found = [_Cells(body, hidden, states) for hidden in range(states)]
    makers = [cells.lstm() if states == 2 else cells.gru() or cells.rnn() for cells in found]
    return next((cell for cell in makers if cell is not None), None)


class _Cells:
    def __init__(self, body: Graph, hidden: int, states: int) -> None:
        self._body, self._makers = body, body.producers()
        self._x, self._h = body.inputs[states], body.inputs[hidden]
        self._hidden = hidden
        self._new = body.outputs[:states]
        self._c = next((name for name in body.inputs[:states] if name != self._h), "")

    def rnn(self) -> Cell | None:
        """h' = f(W x + R h + b)"""
        op = self._producer_of_kind(self._new[0], *_ACTIVATIONS)
        total = self._linear(op.inputs[0]) if op is not None else None
        return None if op is None or total is None else self._cell("RNN", [total], (_ACTIVATIONS[op.kind],))

    def gru(self) -> Cell | None:
        """h' = z * h + (1 - z) * g(x part + reset)"""
        sides = self._operands(self._new[0], "Add")
        for old, new in (sides, sides[::-1]) if sides else ():
            kept, fresh = self._operands(old, "Mul"), self._operands(new, "Mul")
            if self._h not in kept or not fresh:
                continue
            z = kept[kept.index(self._h) - 1]
            rest = next((one for one in fresh if self._is_one_minus(one, z)), "")
            gate = self._producer_of_kind(z, *_ACTIVATIONS)
            if not rest or gate is None:
                continue
            g = self._producer_of_kind(fresh[fresh.index(rest) - 1], *_ACTIVATIONS)
            update = self._linear(gate.inputs[0])
            if g is not None and update is not None:
                return self._reset(gate.kind, g, update)
        return None

    def _reset(self, gate: str, g: Op, update: _Linear) -> Cell | None:
        """The part of a GRU's hidden gate that the reset gate takes: r * (R h + b), or R (r * h)."""
        total = self._linear(g.inputs[0])
        if total is None or total.r is not None or len(total.others) != 1 or total.w is None:
            return None
        other = self._makers.get(total.others[0])
        inner = self._matrix(other) if other is not None and other.kind == "Gemm" else None
        factors = self._operands(other.inputs[0] if inner is not None and other is not None else total.others[0], "Mul")
        for r, h in (factors, factors[::-1]) if factors else ():
            reset = self._producer_of_kind(r, gate)
            part = self._linear(reset.inputs[0]) if reset is not None else None
            if part is None:
                continue
            if inner is not None:
                if h == self._h:
                    hidden = _Linear(total.w, inner[0], total.w_bias + inner[1], total.r_bias)
                    return self._cell("GRU", [update, part, hidden], (gate, g.kind), before=0)
                continue
            product = self._linear(h)
            if product is not None and product.r is not None and product.w is None and not product.others:
                hidden = _Linear(total.w, product.r, total.w_bias + total.r_bias, product.r_bias + product.w_bias)
                return self._cell("GRU", [update, part, hidden], (gate, g.kind), before=1)
        return None

    def lstm(self) -> Cell | None:
        """c' = f * c + i * g(cell part), h' = o * last(c')"""
        c_new = self._new[1 - self._hidden]
        out, sum_ = self._operands(self._new[self._hidden], "Mul"), self._operands(c_new, "Add")
        last = next((op for name in out if (op := self._producer_of_kind(name, *_ACTIVATIONS)) is not None and op.inputs[0] == c_new), None)
        if last is None or not sum_:
            return None
        o = self._producer_of_kind(out[out.index(last.outputs[0]) - 1], *_ACTIVATIONS)
        for old, new in (sum_, sum_[::-1]):
            kept, fresh = self._operands(old, "Mul"), self._operands(new, "Mul")
            if o is None or self._c not in kept or not fresh:
                continue
            forget = self._producer_of_kind(kept[kept.index(self._c) - 1], o.kind)
            for i, g in (fresh, fresh[::-1]):
                enters, cell = self._producer_of_kind(i, o.kind), self._producer_of_kind(g, *_ACTIVATIONS)
                if forget is None or enters is None or cell is None:
                    continue
                gates = [self._linear(op.inputs[0]) for op in (enters, o, forget, cell)]
                if all(gate is not None for gate in gates):
                    return self._cell("LSTM", [gate for gate in gates if gate is not None], (o.kind, cell.kind, last.kind))
        return None

    def _cell(self, kind: str, gates: Sequence[_Linear], activations: tuple[str, ...], before: int = 0) -> Cell | None:
        w, r, b = [], [], []
        for gate in gates:
            if gate.w is None or gate.r is None or gate.others:
                return None
            w.append(gate.w)
            r.append(gate.r)
            b.append((np.broadcast_to(np.asarray(gate.w_bias, np.float32), len(gate.w)),
                      np.broadcast_to(np.asarray(gate.r_bias, np.float32), len(gate.w))))  # fmt: skip
        cells = r[0].shape[1]
        if any(item.shape != (cells, cells) for item in r) or any(len(item) != cells for item in w):
            return None
        bias = np.concatenate([*(one for one, _ in b), *(other for _, other in b)]).astype(np.float32)
        names = tuple(_ACTIVATIONS[name] for name in activations)
        return Cell(kind, (np.concatenate(w), np.concatenate(r), bias), names, self._hidden, before)

    def _producer_of_kind(self, name: str, *kinds: str) -> Op | None:
        op = self._makers.get(name)
        return op if op is not None and op.kind in kinds and not op.attributes.get("activation") else None

    def _operands(self, name: str, kind: str) -> tuple[str, ...]:
        op = self._producer_of_kind(name, kind)
        return () if op is None else op.inputs

    def _is_one_minus(self, name: str, other: str) -> bool:
        op = self._producer_of_kind(name, "Sub")
        one = self._body.constant(op.inputs[0]) if op is not None else None
        return op is not None and one is not None and bool((one == 1).all()) and op.inputs[1] == other

    def _matrix(self, op: Op) -> tuple[Array, Array | float] | None:
        """The real weights and bias of a Gemm."""
        if op.attributes.get("activation") or self._body[op.outputs[0]].is_quantized:
            return None
        weights, bias = self._body[op.inputs[1]], self._body.constant(op.inputs[2]) if len(op.inputs) > 2 else None
        absent = len(op.inputs) < 3 or not op.inputs[2]
        if weights.data is None or weights.dtype != "float32" or (bias is None and not absent):
            return None
        return weights.data, 0.0 if bias is None else bias.reshape(-1)

    def _linear(self, name: str, low: int = 0, high: int | None = None) -> _Linear | None:
        """What a value is as a sum, its columns from `low` to `high`."""
        op, part = self._makers.get(name), slice(low, high)
        constant = self._body.constant(name)
        if constant is not None:
            return _Linear(w_bias=constant.reshape(-1)[part] if constant.size > 1 else constant.reshape(-1))
        if op is not None and op.kind == "Add" and not op.attributes.get("activation"):
            one, other = (self._linear(item, low, high) for item in op.inputs)
            return None if one is None or other is None else one.plus(other)
        if op is not None and op.kind == "Split" and op["axis"] == 1 and low == 0 and high is None:
            return self._column(op, name)
        found = self._matrix(op) if op is not None and op.kind == "Gemm" else None
        if op is None or found is None or op.inputs[0] not in (self._x, self._h):
            return _Linear(others=(name,)) if low == 0 and high is None else None
        weights, bias = found
        bias = bias[part] if isinstance(bias, np.ndarray) else bias
        if op.inputs[0] == self._x:
            return _Linear(w=weights[part], w_bias=bias)
        return _Linear(r=weights[part], r_bias=bias)

    def _column(self, op: Op, name: str) -> _Linear | None:
        sizes = self._body.constant(op.inputs[1])
        if sizes is None:
            return None
        ends = np.cumsum(sizes.reshape(-1))
        index = op.outputs.index(name)
        return self._linear(op.inputs[0], int(ends[index] - sizes.reshape(-1)[index]), int(ends[index]))
