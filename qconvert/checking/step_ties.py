"""Error bounds of an LSTM that rounds its hidden values at each step, where kernels differ in the last bits of these.

A hidden value that near to a tie is rounded to either side, and all later steps depend on it. The bounds come from runs of the operator
with hidden values that are off by as little; they are zero where no value is near a tie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.operators import Call, is_dynamic, kind_of

__all__ = ["bound_step_ties"]

#: By what share of the largest hidden value these are off: some roundings of sigmoid, tanh and sums in float32.
_SHARE = 1e-6
#: How often the operator runs; a value next to a tie falls to each side in half of them.
_RUNS = 16
#: Of distances between runs: several ties may fall together as in none of them.
_MARGIN = 2.0
#: Inputs of an LSTM.
_LENGTHS, _HIDDEN, _CELL = 4, 5, 6


def bound_step_ties(graph: Graph, op: Op, index: int, rounder: Op, values: Mapping[str, Array], writers: Mapping[str, Op]) -> Array | None:
    """Bound the error of output `index` of `op`, which is `rounder` or data movement after it; None if `rounder` is no such LSTM.

    Args:
        graph: of both operators.
        op, rounder: the operators.
        index: of the output.
        values: stored values by name.
        writers: the operator that computes each tensor.
    """
    runs = _run_perturbed(graph, rounder, values) if rounder.kind == "LSTM" and is_dynamic(rounder) else None
    if runs is None:
        return None
    try:
        found = [_follow_movement(graph, op.outputs[index], run, writers) for run in runs]
    except (QConvertError, KeyError):
        return None
    return np.asarray(_MARGIN * np.max([np.abs(value - found[0]) for value in found], axis=0))


def _follow_movement(graph: Graph, name: str, run: Mapping[str, Array], writers: Mapping[str, Op]) -> Array:
    """What operators that move them make of the outputs of a run."""
    data = run.get(name, graph.constant(name))
    if data is not None:
        return data
    op = writers[name]
    inputs = [_follow_movement(graph, item, run, writers) if item else None for item in op.inputs]
    return np.asarray(evaluate_op(graph, op, inputs)[op.outputs.index(name)].stored)


def _run_perturbed(graph: Graph, op: Op, values: Mapping[str, Array]) -> list[dict[str, Array]] | None:
    """The outputs of the operator by name: as it is, and with hidden values that are off."""
    given = [None if not name else graph.constant(name) if graph[name].is_constant else values.get(name) for name in op.inputs]
    missing = any(name and value is None for name, value in zip(op.inputs, given, strict=True))
    plain = op["layout"] == 0 and op["direction"] != "bidirectional" and len(given) > _CELL and given[_LENGTHS] is None
    data = given[0]
    if missing or not plain or data is None or given[_HIDDEN] is None or given[_CELL] is None:
        return None
    tensors = [graph[name] if name else None for name in op.inputs]
    call = Call(op, tuple(given), tuple(tensors), tuple(graph[name] for name in op.outputs if name))
    real = [None if value is None else call.values(place) for place, value in enumerate(given)]
    plainly = tuple(None if tensor is None else Tensor(tensor.name, "float64", tensor.shape) for tensor in tensors)
    rng, shown = np.random.default_rng(0), []

    def draw_errors(hidden: Array) -> Array:
        found = rng.uniform(-1, 1, hidden.shape) * _SHARE * np.abs(hidden).max(initial=0)
        found[:, ::_RUNS] = 0  # the first run of each row
        return np.asarray(found)

    states = [np.repeat(np.asarray(real[place]), _RUNS, axis=1) for place in (_HIDDEN, _CELL)]
    states[0] = states[0] + draw_errors(states[0])  # a runtime's own states are what it computed before
    function = kind_of(op).evaluate
    assert function is not None
    order = range(len(data))
    for step in reversed(order) if op["direction"] == "reverse" else order:
        one = [np.repeat(data[step : step + 1].astype(np.float64), _RUNS, axis=1), *real[1:_HIDDEN], *states, *real[_CELL + 1 :]]
        results = function(replace(call, stored=tuple(one), tensors=plainly))
        assert isinstance(results, list)
        moved = draw_errors(results[1])
        states = [results[1] + moved, results[2]]
        shown.append(results[0] + moved[None])
    whole = np.concatenate(shown[::-1] if op["direction"] == "reverse" else shown)
    named = list(zip(op.outputs, (whole, *states), strict=False))
    found = []
    for run in range(_RUNS):
        chosen = [row * _RUNS + run for row in range(data.shape[1])]
        found.append({name: np.take(value, chosen, axis=-2) for name, value in named if name})
    return found
