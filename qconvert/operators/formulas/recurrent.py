"""Recurrences as formulas: each step stands in the graph by itself, for formats and runtimes that lack the operator or what it states.

Formats that have loops make loops over steps, also for sequences whose length is known only at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qconvert.graph.schema import Op
from qconvert.operators.formulas.formula import Formula, lowers
from qconvert.operators.recurrent import CELLS, Cell, Parts, activations_of
from qconvert.operators.values import Value, apply, constant_of, reduce, reshape, shape_of, slice_along, static_shape_of, transpose

#: So many steps stand one after the other; longer sequences are left to loops.
MOST_STEPS = 64
#: Inputs that an LSTM alone has after the states: peepholes, projection, its bias and normalizations.
_OF_LSTM = 4


def _steps_first(kind: str) -> Formula:
    """The recurrence of data whose steps come first, the layout of runtimes."""

    def steps_first(x: Value, w: Value, r: Value, bias: Value = None, lengths: Value = None, *more: Value, **stated: Any) -> Any:
        if not stated["layout"]:
            return None
        states, others = more[: CELLS[kind].states], more[CELLS[kind].states :]
        first = [None if item is None else transpose(item, (1, 0, 2)) for item in states]
        inputs = (transpose(x, (1, 0, 2)), w, r, bias, lengths, *first, *others)
        found = apply(kind, *inputs, outputs=1 + CELLS[kind].states, **{**stated, "layout": 0})
        return (transpose(found[0], (2, 0, 1, 3)), *(transpose(item, (1, 0, 2)) for item in found[1:]))

    return Formula(kind, steps_first)


lstm_steps_first, gru_steps_first, rnn_steps_first = map(_steps_first, CELLS)


def _unroll_steps(kind: str) -> Formula:
    """The recurrence with its steps one after the other, where all sequences have one length."""
    states = CELLS[kind].states

    def unroll(x: Value, w: Value, r: Value, bias: Value = None, lengths: Value = None, *more: Value, **stated: Any) -> Any:
        if lengths is not None:
            return None
        inputs = (*more, *[None] * (states + _OF_LSTM - len(more)))
        return _unroll_recurrence(kind, stated, (x, w, r, bias), inputs[:states], inputs[states:])

    return Formula(kind, unroll)


unrolled_lstm, unrolled_gru, unrolled_rnn = map(_unroll_steps, CELLS)


def _unroll_recurrence(kind: str, stated: Mapping[str, Any], inputs: Sequence[Value], first: Sequence[Value], more: Sequence[Value]) -> Any:
    """All results of a recurrence, step by step; None if the number of steps is open or larger than MOST_STEPS, or data are rounded.

    Args:
        kind: LSTM, GRU or RNN.
        stated: the operator's attributes.
        inputs: the data, (steps, rows, values) or with the rows first, weights of data and of hidden values, and the bias or None.
        first: the states before the first step, or None.
        more: peepholes, projection, its bias and normalizations of an LSTM, or None.
    """
    op, cell = Op(kind, (), (), stated), CELLS[kind]
    x, (w, r, bias) = inputs[0], inputs[1:]
    x = transpose(x, (1, 0, 2)) if op["layout"] else x
    steps, rows, values = shape_of(x) or ("", "", "")
    sizes = (shape_of(r) or ("",))[-1], op["hidden_size"]
    known = all(isinstance(size, int) for size in (steps, values, sizes[0]))
    if op["arithmetic"] or not known or not 0 < int(steps) <= MOST_STEPS:
        return None
    if not isinstance(rows, int) and any(item is None for item in first):
        return None
    shown: list[Value] = []
    last: list[list[Value]] = [[] for _ in first]
    for direction, activations in enumerate(activations_of(op, cell)):
        weights = [_part(item, direction) for item in (w, r, bias, *more)]
        parts, (matrix, added) = _parts(cell, op, activations, weights)
        sums = apply("Gemm", reshape(x, [-1, int(values)]), *([matrix] if added is None else [matrix, added]))
        step_sums = _unstack(reshape(sums, [int(steps), -1, cell.gates * op["hidden_size"]]), int(steps))
        states = [
            np.zeros((int(rows), int(size)), np.float32) if item is None else _part(item, direction, int(op["layout"]))
            for item, size in zip(first, sizes, strict=False)
        ]
        backwards = op["direction"] == "reverse" or direction == 1
        found = []
        for part in reversed(step_sums) if backwards else step_sums:
            states = list(cell.step(parts, part, *states))
            found.append(states[0])
        shown.append(_stack(found[::-1] if backwards else found, 0))
        for state, item in zip(last, states, strict=True):
            state.append(item)
    results = [_stack(shown, 1), *(_stack(state, 0) for state in last)]
    if op["layout"]:
        results = [transpose(results[0], (2, 0, 1, 3)), *(transpose(item, (1, 0, 2)) for item in results[1:])]
    return tuple(results)


def _parts(cell: Cell, op: Op, activations: Any, weights: Sequence[Value]) -> tuple[Parts, tuple[Value, Value]]:
    """What a direction computes with; and the weights of the data, and what is added to their products."""
    w, r, bias, peepholes, projection, projection_bias, norm = weights
    size, gates = op["hidden_size"], cell.gates

    def rows(value: Value, first: int, count: int = 1) -> Value:
        return None if value is None else _rows(value, first * size, (first + count) * size)

    both = [rows(bias, first, gates) for first in (0, gates)]
    more: dict[str, Any] = {}
    if peepholes is not None:
        more["peepholes"] = [rows(peepholes, gate) for gate in range(3)]
    if norm is not None:
        added = None if bias is None else both[0] + both[1]
        more["norms"] = [(rows(norm, gate), rows(added, gate)) for gate in range(gates)]
        both = [None, None]
    if projection is not None:
        more["projected"] = partial(_gemm, projection, projection_bias)

    def product(values: Value, first: int, count: int) -> Value:
        return _gemm(rows(r, first, count), rows(both[1], first, count), values)

    return Parts(op, activations, product, **more), (w, both[0])


def _gemm(weights: Value, bias: Value, values: Value) -> Value:
    return apply("Gemm", values, weights, *([] if bias is None else [bias]))


def _part(value: Value, index: int, axis: int = 0) -> Value:
    """One element along an axis, without the axis."""
    if value is None:
        return None
    known = constant_of(value)
    return apply("Gather", value, np.array(index), axis=axis) if known is None else known.take(index, axis)


def _rows(value: Value, start: int, end: int) -> Value:
    known = constant_of(value)
    if known is not None:
        return known[start:end]
    if (start, end) == (0, (shape_of(value) or ("",))[0]):
        return value
    return slice_along(value, start, end, 0)


def _unstack(value: Value, count: int) -> list[Value]:
    found = apply("Unpack", value, outputs=count, axis=0)
    return list(found) if count > 1 else [found]


def _stack(values: Sequence[Value], axis: int) -> Value:
    return apply("Pack", *values, axis=axis)


@lowers("SVDF")
def filter_memory(x: Value, memory: Value, feature: Value, time: Value, bias: Value = None, *, rank: int, arithmetic: str) -> Any:
    """The newest products go to the end of a memory whose first ones leave it; each unit adds up what its filters make of their places."""
    shape = static_shape_of(time)
    if arithmetic or shape is None:
        return None
    filters, places = shape
    older = slice_along(reshape(memory, [-1, filters, places]), 1, None, 2)
    kept = apply("Concat", older, reshape(x @ transpose(feature, (1, 0)), [-1, filters, 1]), axis=2)
    total = reduce("ReduceSum", reshape(kept * time, [-1, filters // rank, rank * places]), [2], keepdims=False)
    return total if bias is None else total + bias, reshape(kept, [-1, filters * places])
