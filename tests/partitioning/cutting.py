"""Targets that take some kinds alone, graphs made by hand, and ways to run what a partition made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import numpy as np

from qconvert import Graph, Op, Partition, Target, Tensor
from qconvert.evaluate import evaluate
from qconvert.graph import Array, equal_data
from qconvert.partitioning.splitting import Staged
from qconvert.plugins import Violation
from qconvert.testing import random_inputs


def fussy(name: str, kinds: Iterable[str], **fields: Any) -> Target:
    """A target that takes operators of some kinds alone, whatever they compute on."""
    taken = frozenset(kinds)

    def rules(graph: Graph) -> Callable[[Op], Iterable[Violation]]:
        return lambda op: () if op.kind in taken else (Violation(op.name, f"{name} has no {op.kind}"),)

    return Target(name, fields.pop("format", "qgraph"), "takes some kinds", own_rules=rules, **fields)


def t(name: str, shape: tuple[int | str, ...] = (2,), dtype: str = "float32", data: Any = None) -> Tensor:
    return Tensor(name, dtype, shape, None if data is None else np.array(data, dtype))


def network(ops: Iterable[Op], tensors: Iterable[Tensor], inputs: Iterable[str], outputs: Iterable[str], **fields: Any) -> Graph:
    """A graph; tensors that no operator names are of float32 with two elements."""
    known = {tensor.name: tensor for tensor in tensors}
    ops = tuple(ops)
    for name in (x for op in ops for x in (*op.inputs, *op.outputs) if x):
        known.setdefault(name, t(name))
    return Graph("g", known, ops, tuple(inputs), tuple(outputs), **fields)


def same_outputs(graph: Graph, other: Graph, seed: int = 0) -> None:
    inputs = random_inputs(graph, seed)
    wanted, found = evaluate(graph, inputs), evaluate(other, inputs)
    assert wanted.keys() == found.keys()
    for name in wanted:
        assert equal_data(wanted[name], found[name]), name


def same_runs(graph: Graph, found: Partition, parts: Staged, runs: int = 4) -> None:
    """The network, its partition, and its parts one after the other give the same in each of several runs."""
    states: dict[str, dict[str, Array]] = {"source": {}, "partition": {}, "parts": {}}
    for seed in range(runs):
        inputs = random_inputs(graph, seed)
        wanted = evaluate(graph, inputs, states["source"])
        for other in (evaluate(found.graph, inputs, states["partition"]), run_staged(parts, found.graph, inputs, states["parts"])):
            for name in graph.outputs:
                assert equal_data(wanted[name], other[name]), (seed, name)


def run_staged(parts: Staged, graph: Graph, inputs: dict[str, Array], states: MutableMapping[str, Array]) -> dict[str, Array]:
    """The parts one after the other, as the manifest has them, in numpy."""
    values = {tensor.name: tensor.data for tensor in graph.constants() if tensor.data is not None} | inputs
    for state in parts.states:
        first = graph.states[state.name].data
        assert first is not None
        values |= dict.fromkeys(state.reads, states.get(f"crossing {state.name}", first))
    for part in parts.parts:
        values |= evaluate(part.graph, {name: values[name] for name in part.graph.inputs}, states)
    for state in parts.states:
        if state.written:
            states[f"crossing {state.name}"] = values[state.written]
    return {name: values[name] for name in graph.outputs}
