"""fold_constants: operators on constants are replaced by their results. Exact: only where every runtime gives the same bits.

What can be folded, and up to which size, is in folding.py. Integers made of sizes with names are folded where these do not count
(evaluate/known_sizes.py): a size that a Resize takes from a Concat of an open batch and two numbers.

Numbers that a Dequantize of constants gives stay computed at run time: that is how weights are stored in few bits, and folding it would
store them as floats.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.errors import format_counts
from qconvert.evaluate.folding import LARGEST, evaluate_constant
from qconvert.evaluate.known_sizes import KnownSizes
from qconvert.graph import Array, Graph, Op, count_kinds
from qconvert.operators import kind_of
from qconvert.passes.compute_constants import count_constant_bytes
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Fold in the order of the graph, so that chains disappear whole. Operators that write graph outputs stay.

    All results together may have LARGEST bytes, or twice the size of the model's constants: many small operators make much, too.
    """
    rewriter = Rewriter(graph)
    tensors = dict(graph.tensors)
    unpacked: set[str] = set()  # real numbers that a Dequantize of constants gives
    folded: set[int] = set()
    budget = max(LARGEST, 2 * count_constant_bytes(graph))
    sizes = KnownSizes(tensors, rewriter.producers)
    for op in rewriter:
        if not graph.public.isdisjoint(op.outputs):
            continue
        values = [tensors[name].data if name else None for name in op.inputs]
        found = evaluate_constant(op, graph.tensors, values) or _evaluate_sizes(op, sizes)
        size = sum(array.nbytes for array in found or ())
        if found is None or size > budget:
            continue
        budget -= size
        tensors |= {name: replace(tensors[name], data=data, shape=data.shape) for name, data in zip(op.outputs, found, strict=True) if name}
        folded.add(id(op))
        if kind_of(op).dequantizes or (not kind_of(op).quantizes and unpacked.intersection(op.inputs)):
            unpacked.update(op.outputs)
    wanted = set(graph.outputs)
    gone: list[Op] = []
    for op in reversed(graph.ops):
        is_unpacked = not unpacked.isdisjoint(op.outputs)
        if id(op) not in folded or (is_unpacked and not wanted.isdisjoint(op.outputs)):
            wanted.update(op.inputs)
            continue
        rewriter.remove(op)
        gone.append(op)
        for name in op.outputs:
            if name and not is_unpacked:
                rewriter.define(tensors[name])
    if not gone:
        return graph, ()
    listed = format_counts(count_kinds(gone))
    return rewriter.finish(), (f"{len(gone)} operators on constants are replaced by their results ({listed})",)


def _evaluate_sizes(op: Op, sizes: KnownSizes) -> list[Array] | None:
    """Return the results of an operator on sizes, if each of their elements is one number in every run."""
    found = [sizes.numbers(name) if name else None for name in op.outputs]
    known = [value for value in found if value is not None]
    return known if known and len(known) == len(found) else None
