"""Pieces of a file whose runtime does not cut it: its canonical graph is cut, written in the file's format and run.

The writer is the reader's mirror, so that the graph, written, has the file's own operators. That it has is not taken on trust: see
reading_errors.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from qconvert.checking.checked_file import Side, model_file
from qconvert.checking.further_roundings import computable
from qconvert.conversion import save
from qconvert.errors import InvalidModelError
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.plugins import Pieces

__all__ = ["canonical_pieces", "computed_names"]

#: What is appended to the name of a tensor at which the graph is cut for its second name, that of what the piece computes.
_COMPUTED = "/computed by the result"


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
    ops = computable(graph, names, wanted)
    written = {name for op in ops for name in op.outputs if name in names}
    read = {name for op in ops for name in op.inputs if name in names}
    computed = {name: name + _COMPUTED for name in graph.tensors if name in written}
    if not computed:
        raise InvalidModelError("source and result have no tensor names in common", where="check by operators")
    fed = tuple(name for name in graph.tensors if name in read)
    part = graph.evolve(
        tensors=[replace(graph[name], name=new) for name, new in computed.items()],
        ops=[replace(op, outputs=tuple(computed.get(name, name) for name in op.outputs)) for op in ops],
        inputs=fed,
        outputs=tuple(computed.values()),
        signatures=(),
        metadata={},
    )
    with tempfile.TemporaryDirectory(prefix="qconvert-") as folder:
        path = Path(folder, f"pieces{side.format.suffixes[0]}")
        save(part, path, side.format.name)
        model = side.runtime.open(model_file(path, side.format, side.kernels))

    def run(values: Mapping[str, Array]) -> dict[str, Array]:
        found = model.run({name: values[name] for name in fed})
        return {name: found[new] for name, new in computed.items()}

    kept = {*fed, *computed}
    return Pieces(fed, frozenset(computed), {name: graph[name].dtype for name in kept}, {name: _sizes(graph[name]) for name in kept}, run)


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


def _sizes(tensor: Tensor) -> tuple[int | None, ...] | None:
    return None if tensor.shape is None else tuple(size if isinstance(size, int) else None for size in tensor.shape)
