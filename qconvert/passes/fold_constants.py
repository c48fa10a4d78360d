"""fold_constants: operators on constants are replaced by their results. Exact: only where every runtime gives the same bits.

What can be folded, and up to which size, is in folding.py. Integers made of sizes with names are folded where these do not count
(evaluate/known_sizes.py): a size that a Resize takes from a Concat of an open batch and two numbers.

Numbers that a Dequantize of constants gives stay computed at run time: that is how weights are stored in few bits, and folding it would
store them as floats.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from qconvert.evaluate.folding import LARGEST, evaluate_constant
from qconvert.evaluate.known_sizes import KnownSizes
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.plugins import Target

__all__ = ["run"]


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Folds in the order of the graph, so that chains disappear whole. Operators that write graph outputs stay.

    All results together may have LARGEST bytes, or twice the size of the model's constants: many small operators make much, too.
    """
    values: dict[str, Array] = {tensor.name: tensor.data for tensor in graph.constants() if tensor.data is not None}
    unpacked: set[str] = set()  # real numbers that a Dequantize of constants gives
    folded: set[int] = set()
    budget = max(LARGEST, 2 * sum(data.nbytes for data in values.values()))
    tensors = dict(graph.tensors)
    sizes = KnownSizes(tensors, graph.producers())
    for op in graph.ops:
        found = None if not graph.public.isdisjoint(op.outputs) else _evaluated(graph, op, values) or _whatever_the_sizes(op, sizes)
        size = sum(array.nbytes for array in found or ())
        if found is None or size > budget:
            continue
        budget -= size
        values.update({name: value for name, value in zip(op.outputs, found, strict=True) if name})
        tensors.update({name: _constant(graph[name], values[name]) for name in op.outputs if name})
        folded.add(id(op))
        if op.kind == "Dequantize" or (op.kind != "Quantize" and unpacked.intersection(op.inputs)):
            unpacked.update(op.outputs)
    kept = _kept(graph, folded, unpacked)
    results = [name for op in graph.ops if id(op) in folded and not unpacked.intersection(op.outputs) for name in op.outputs if name]
    if len(kept) == len(graph.ops):
        return graph, ()
    changed = graph.evolve(tensors=[tensors[name] for name in results], ops=kept)
    gone = Counter(op.kind for op in graph.ops) - Counter(op.kind for op in kept)
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(gone.items()))
    return changed, (f"{sum(gone.values())} operators on constants are replaced by their results ({listed})",)


def _evaluated(graph: Graph, op: Op, values: dict[str, Array]) -> list[Array] | None:
    if op.kind != "Shape" and (not op.inputs or any(name and name not in values for name in op.inputs)):
        return None
    return evaluate_constant(op, graph.tensors, [values.get(name) for name in op.inputs])


def _whatever_the_sizes(op: Op, sizes: KnownSizes) -> list[Array] | None:
    """The results of an operator on sizes, if each of their elements is one number in every run."""
    found = [sizes.numbers(name) if name else None for name in op.outputs]
    known = [value for value in found if value is not None]
    return known if known and len(known) == len(found) else None


def _kept(graph: Graph, folded: set[int], unpacked: set[str]) -> list[Op]:
    """Operators that are not folded, and those that unpack what one of them reads."""
    wanted: set[str] = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if id(op) not in folded or (unpacked.intersection(op.outputs) and wanted.intersection(op.outputs)):
            kept.append(op)
            wanted.update(op.inputs)
    return kept[::-1]


def _constant(tensor: Tensor, data: Array) -> Tensor:
    return replace(tensor, data=data, shape=data.shape)
