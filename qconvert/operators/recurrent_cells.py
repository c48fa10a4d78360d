"""One step of an LSTM, a GRU and an RNN, on values: what evaluation, loops over steps and unrolled forms share.

Formulas: ONNX LSTM-22, GRU-22, RNN-22, and TFLite's LSTM (kernels/lstm_eval.cc), which limits the cell, projects the hidden values, and
normalizes each gate's sum: norm * (sum - mean) / sqrt(variance + 1e-8) + bias, the sum being that of data, hidden values and peephole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.graph.schema import Op
from qconvert.operators.values import Value, apply, clip, reduce, sqrt, square

__all__ = ["ACTIVATIONS", "CELLS", "GATES", "Activation", "Cell", "Parts"]

#: A function of a gate's sum.
Activation = Callable[[Value], Value]
#: The sums of the hidden values with the rows of weights of so many gates from one on: (values, first gate, number of gates).
Product = Callable[[Value, int, int], Value]

#: What TFLite's kernel adds to a variance (MeanStddevNormalization, kernels/internal/reference/portable_tensor_utils.cc).
_EPSILON = 1e-8

#: Activation -> alpha and beta by default, and the function: those of ONNX (operator LSTM, "activations"), then those of TFLite alone.
ACTIVATIONS: Mapping[str, tuple[float, float, Callable[[Value, float, float], Value]]] = {
    "Relu": (0, 0, lambda x, a, b: apply("Relu", x)),
    "Tanh": (0, 0, lambda x, a, b: apply("Tanh", x)),
    "Sigmoid": (0, 0, lambda x, a, b: apply("Sigmoid", x)),
    "Affine": (1, 0, lambda x, a, b: x * a + b),
    "LeakyRelu": (0.01, 0, lambda x, a, b: apply("LeakyRelu", x, alpha=a)),
    "ThresholdedRelu": (1, 0, lambda x, a, b: apply("ThresholdedRelu", x, alpha=a)),
    "ScaledTanh": (1, 1, lambda x, a, b: apply("Tanh", x * b) * a),
    "HardSigmoid": (0.2, 0.5, lambda x, a, b: apply("HardSigmoid", x, alpha=a, beta=b)),
    "Elu": (1, 0, lambda x, a, b: apply("Elu", x, alpha=a)),
    "Softsign": (0, 0, lambda x, a, b: apply("Softsign", x)),
    "Softplus": (0, 0, lambda x, a, b: apply("Softplus", x)),
    "Relu6": (0, 0, lambda x, a, b: clip(x, 0.0, 6.0)),
    "ReluN1To1": (0, 0, lambda x, a, b: clip(x, -1.0, 1.0)),
}


@dataclass(frozen=True, slots=True)
class Parts:
    """What one direction of a recurrence computes with.

    Attributes:
        op: the operator, whose attributes hold.
        activations: of the direction.
        own: what the hidden values are multiplied with.
        peepholes: of an LSTM's gates input, output and forget, or none.
        norms: of an LSTM's four gates: the factor, and what is added after it, or none.
        projected: an LSTM's projection of its hidden values, or None.
    """

    op: Op
    activations: Sequence[Activation]
    own: Product
    peepholes: Sequence[Value] = ()
    norms: Sequence[tuple[Value, Value | None]] = ()
    projected: Activation | None = None


def _rnn(p: Parts, theirs: Value, h: Value) -> tuple[Value, ...]:
    return (p.activations[0](_clip_symmetric(theirs + p.own(h, 0, 1), p.op["clip"])),)


def _gru(p: Parts, theirs: Value, h: Value) -> tuple[Value, ...]:
    """h' = z * h + (1 - z) * g(part of the data + what the reset gate leaves of the hidden part)"""
    f, g = p.activations
    limit, after = p.op["clip"], bool(p.op["linear_before_reset"])
    xz, xr, xh = _split_gates(theirs, 3)
    hz, hr, *hh = _split_gates(p.own(h, 0, 3), 3) if after else _split_gates(p.own(h, 0, 2), 2)
    z, r = f(_clip_symmetric(xz + hz, limit)), f(_clip_symmetric(xr + hr, limit))
    new = g(_clip_symmetric(xh + (r * hh[0] if after else p.own(r * h, 2, 1)), limit))
    return (z * h + (1.0 - z) * new,)


def _lstm(p: Parts, theirs: Value, h: Value, c: Value) -> tuple[Value, ...]:
    """c' = f * c + i * g(cell part), h' = o * last(c'); the order of gates is input, output, forget, cell."""
    f, g, last = p.activations
    gates = _split_gates(theirs + p.own(h, 0, 4), 4)

    def total(gate: int, cell: Value) -> Value:
        found = gates[gate] + p.peepholes[gate] * cell if gate < len(p.peepholes) else gates[gate]
        if p.norms:
            factor, added = p.norms[gate]
            even = found - reduce("ReduceMean", found, [1])
            found = even / sqrt(reduce("ReduceMean", square(even), [1]) + _EPSILON) * factor
            found = found if added is None else found + added
        return _clip_symmetric(found, p.op["clip"])

    enters = f(total(0, c))
    stays = 1.0 - enters if p.op["input_forget"] else f(total(2, c))
    new = _clip_symmetric(stays * c + enters * g(total(3, c)), p.op["cell_clip"])
    hidden = f(total(1, new)) * last(new)
    if p.projected is not None:
        hidden = _clip_symmetric(p.projected(hidden), p.op["projection_clip"])
    return hidden, new


def _split_gates(value: Value, count: int) -> list[Value]:
    """The parts of so many gates, along the last axis."""
    if isinstance(value, np.ndarray):
        return np.split(value, count, axis=1)
    found: list[Value] = apply("Split", value, np.full(count, int(value.shape[-1]) // count), outputs=count, axis=1)
    return found


def _clip_symmetric(value: Value, limit: Any) -> Value:
    return clip(value, -float(limit), float(limit)) if float(limit) > 0 else value


@dataclass(frozen=True, slots=True)
class Cell:
    """A recurrence.

    Attributes:
        gates: how many matrices stand one above the other in the weights: LSTM input, output, forget, cell; GRU update, reset, hidden.
        states: how many values go from step to step: the hidden ones, and of an LSTM the cell.
        activations: of one direction, where an operator names none.
        step: gives the next value of each state: (parts, the sums of the step's data with the weights of all gates and their bias, (rows,
            gates * cells), the hidden values, (rows, values), and of an LSTM the cell).
    """

    gates: int
    states: int
    activations: tuple[str, ...]
    step: Callable[..., tuple[Value, ...]]


CELLS: Mapping[str, Cell] = {
    "LSTM": Cell(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm),
    "GRU": Cell(3, 1, ("Sigmoid", "Tanh"), _gru),
    "RNN": Cell(1, 1, ("Tanh",), _rnn),
}
GATES: Mapping[str, int] = {name: cell.gates for name, cell in CELLS.items()}
