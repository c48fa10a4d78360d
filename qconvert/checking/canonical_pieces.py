"""Pieces of a file whose runtime does not cut it: its canonical graph is cut, written in the file's format and run.

The writer is the reader's mirror, so that the graph, written, has the file's own operators. That it has is not taken on trust: see
reading_errors.py.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from qconvert.checking.checked_file import Side, model_file
from qconvert.conversion import save
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.cutting import computable, cut
from qconvert.plugins import Pieces

__all__ = ["canonical_pieces", "computed_names"]


def computed_names(graph: Graph, names: set[str]) -> list[str]:
    """Those of `names` that a graph cut at them computes, in order."""
    return [name for op in computable(graph, names) for name in op.outputs if name in names]


def canonical_pieces(side: Side, names: set[str], wanted: frozenset[str]) -> Pieces:
    """The side's graph cut at the tensors called `names`, with the operators that compute those `wanted` among them.

    Raises:
        InvalidModelError: no operator is left.
        QConvertError: the format cannot be written, or the runtime refuses the pieces.
    """
    graph = _cut_at_other_shapes(side.graph, names)
    part = cut(graph, names, wanted)
    with tempfile.TemporaryDirectory(prefix="qconvert-") as folder:
        path = Path(folder, f"pieces{side.format.suffixes[0]}")
        save(part.graph, path, side.format.name)
        model = side.runtime.open(model_file(path, side.format, side.kernels))
    return Pieces.of_cut(graph, part, lambda values: model.run(dict(zip(part.graph.inputs, values, strict=True))).values())


def _cut_at_other_shapes(graph: Graph, names: set[str]) -> Graph:
    """The graph with what reads a tensor whose values another of `names` has in another shape made to read them of that one."""
    tensors: list[Tensor] = []
    reshapes: list[Op] = []
    instead: dict[str, str] = {}
    taken = graph.names()
    for op in graph.ops:
        before = op.inputs[0] if op.kind == "Reshape" and op.outputs[0] in names else ""
        shape = graph[before].static_shape if before and before not in names and before not in instead else None
        if shape is None or graph[before].is_constant:
            continue
        instead[before] = taken.fresh(f"{before}/of the cut")
        sizes = Tensor(taken.fresh(f"{before}/shape of the cut"), "int64", (len(shape),), np.array(shape, np.int64))
        tensors += [replace(graph[before], name=instead[before]), sizes]
        reshapes.append(Op("Reshape", (op.outputs[0], sizes.name), (instead[before],), {}, op.source))
    if not reshapes:
        return graph

    def read(op: Op) -> Op:
        if op.kind == "Reshape" and op.outputs[0] in names:
            return op
        return replace(op, inputs=tuple(instead.get(name, name) for name in op.inputs))

    return graph.evolve(tensors=tensors, ops=[*reshapes, *map(read, graph.ops)])
