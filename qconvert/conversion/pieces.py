"""Pieces of a file whose runtime does not cut it: its canonical graph is cut, written in the file's format and run.

The writer is the reader's mirror, so that the graph, written, has the file's own operators. That it has is not taken on trust: see
checking/file_values.py, and partitioning/running.py for parts of a network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.conversion.saving import save
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import states_by_reader
from qconvert.plugins import Format, ModelFile, Pieces, Runtime
from qconvert.plugins.options import fill_defaults
from qconvert.rewriting.parts import computable_ops, cut


def computed_names(graph: Graph, names: set[str]) -> list[str]:
    """Those of `names` that a graph cut at them computes, in order."""
    return [name for op in computable_ops(graph, names) for name in op.outputs if name in names]


def canonical_pieces(
    graph: Graph, names: Collection[str], wanted: frozenset[str], file: ModelFile, format: Format, runtime: Runtime
) -> Pieces:
    """A file's graph cut at the tensors called `names`, with the operators that compute those `wanted` among them.

    Args:
        graph: canonical.
        names: of the tensors.
        wanted: among them.
        file: the file that the graph is of.
        format: of the file, in which the pieces are written.
        runtime: that runs them, with the file's kernels.

    Raises:
        InvalidModelError: no operator is left.
        QConvertError: the format cannot be written, or the runtime refuses the pieces.
    """
    graph = _cut_at_other_shapes(graph, names)
    part = cut(graph, names, wanted)
    written, kept = _with_states(graph, runtime, part.graph)
    with temporary_folder() as folder:
        suffix = file.path.suffix.lower()  # which may say the form
        path = Path(folder, f"pieces{suffix if suffix in format.suffixes else format.suffixes[0]}")
        save(written, path, format.name)
        model: Any = runtime.open(ModelFile(path, file.kernels, fill_defaults({}, format.read_options)))

    def run(values: Sequence[Array]) -> Iterable[Array]:
        given = dict(zip(part.graph.inputs, values, strict=True))
        if kept:
            model.begin({state: given.pop(name) for name, state in kept.items()})
        return dict(model.run(given)).values()

    return Pieces.of_cut(graph, part, run)


def _with_states(graph: Graph, runtime: Runtime, part: Graph) -> tuple[Graph, dict[str, str]]:
    """A piece with states instead of inputs for operators that keep their states themselves: they cannot take them as inputs.

    Returns:
        The piece, and for each input that is gone the state.
    """
    keeps, reads, producers = runtime.keeps, states_by_reader(graph), graph.producers()
    given = {name: reads[name] for name in part.inputs if name in reads}
    if keeps is None or not given:
        return part, {}

    def restore_states(kept: dict[str, str]) -> Graph:
        writers = (op for op in graph.ops if kind_of(op).has_effect)
        writes = [op for op in writers if op["state"] in kept.values() and op.inputs[0] in part.tensors]
        states = {state: graph.states[state] for state in kept.values()}
        inputs = tuple(name for name in part.inputs if name not in kept)
        return part.evolve(ops=[*(producers[name] for name in kept), *part.ops, *writes], inputs=inputs, states=states)

    inner = keeps(restore_states(given))
    kept = {name: state for name, state in given.items() if state in inner}
    return (restore_states(kept), kept) if kept else (part, {})


def _cut_at_other_shapes(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with the operand of each Reshape to one of `names` replaced by a Reshape of that result, for all other readers."""
    tensors: list[Tensor] = []
    reshapes: list[Op] = []
    instead: dict[str, str] = {}
    taken = graph.names()
    turned = [op for op in graph.of_kind("Reshape") if op.name in names]
    for op in turned:
        before = op.inputs[0]
        shape = graph[before].static_shape if before not in names and before not in instead else None
        if shape is None or graph[before].is_constant:
            continue
        instead[before] = taken.fresh(f"{before}/of the cut")
        sizes = Tensor(taken.fresh(f"{before}/shape of the cut"), "int64", (len(shape),), np.array(shape, np.int64))
        tensors += [replace(graph[before], name=instead[before]), sizes]
        reshapes.append(op.derive("Reshape", (op.name, sizes.name), (instead[before],)))
    if not reshapes:
        return graph

    def read(op: Op) -> Op:
        if any(op is item for item in turned):
            return op
        return replace(op, inputs=tuple(instead.get(name, name) for name in op.inputs))

    return graph.evolve(tensors=tensors, ops=[*reshapes, *map(read, graph.ops)])
