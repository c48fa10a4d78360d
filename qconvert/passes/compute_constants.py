"""compute_constants: what is computed of constants alone is computed once, in the conversion, each operator being rounded once.

Position embeddings that are resized, tables of relative positions behind a small network: an exporter leaves them in the graph, and a
quantizer puts grids between their parts. The target's kernels would compute them anew at each run, and round them as they do; here they
become what the source means. Weights that are only unpacked or moved stay as they are (fold_constants). Sources of the target's own format
are left alone: their constants are what their kernels make of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate_op
from qconvert.evaluate.folding import GROWTH, LARGEST
from qconvert.graph import Array, Graph, Op, numpy_dtype
from qconvert.graph.kinds import KINDS
from qconvert.passes import remove_dead_code
from qconvert.plugins import Target

__all__ = ["run"]

#: Bytes that a file may grow by however small its constants are: the kernel of a resampler, made of a few numbers, has 300,000. Kernels
#: of TFLite would compute it at each run, with functions of their own.
_SMALL = 2**22
#: Products that one operator may take.
_MOST_WORK = 2**28


def run(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Replaces every computed tensor without inputs behind it that something with inputs reads."""
    if target is None or graph.is_from(target.format):
        return graph, ()
    fixed, computed = _fixed(graph)
    read = {name for op in graph.ops if op.outputs[:1] and op.outputs[0] not in fixed for name in op.inputs}
    wanted = [name for name in computed if name in read and name not in graph.public]
    values = _evaluated(graph, fixed, wanted) if wanted else {}
    sizes = sum(tensor.data.nbytes for tensor in graph.constants() if tensor.data is not None)
    found, budget = {}, min(LARGEST, max(_SMALL, GROWTH * sizes))
    for name in wanted:
        if name in values and values[name].nbytes <= budget:
            found[name] = values[name]
            budget -= values[name].nbytes
    if not found:
        return graph, ()
    tensors = [replace(graph[name], data=value, shape=value.shape) for name, value in found.items()]
    ops = [op for op in graph.ops if op.outputs[0] not in found]
    changed, _ = remove_dead_code.run(graph.evolve(tensors=tensors, ops=ops), target)
    return changed, (f"{len(found)} tensors that are computed of constants alone are constants, each operator rounded once",)


def _fixed(graph: Graph) -> tuple[dict[str, Op], list[str]]:
    """The tensors that constants alone say, with what writes them, and those on whose way something is computed, not only moved."""
    fixed: dict[str, Op] = {}
    computed: dict[str, None] = {}
    for op in graph.ops:
        kind = KINDS[op.kind]
        given = all(not name or name in fixed or graph[name].is_constant for name in op.inputs)
        if not op.inputs or not given or len(op.outputs) != 1 or kind.evaluate is None or kind.rule in ("opaque", "state"):
            continue
        if not _is_small(graph, op):
            continue
        fixed[op.outputs[0]] = op
        if kind.rule == "real" or not computed.keys().isdisjoint(op.inputs):
            computed[op.outputs[0]] = None
    return fixed, list(computed)


def _is_small(graph: Graph, op: Op) -> bool:
    shape = graph[op.outputs[0]].static_shape
    if shape is None:
        return False
    size = math.prod(shape)
    terms = math.prod(graph[op.inputs[1]].static_shape or (1,)) if KINDS[op.kind].sums_products else 1
    return size * numpy_dtype(graph[op.outputs[0]].dtype).itemsize <= LARGEST and size * terms <= _MOST_WORK


def _evaluated(graph: Graph, fixed: Mapping[str, Op], wanted: list[str]) -> dict[str, Array]:
    """The stored values of what is wanted and of what that is made of; what cannot be evaluated is absent."""
    needed, pending = set[str](), list(wanted)
    while pending:
        name = pending.pop()
        if name in fixed and name not in needed:
            needed.add(name)
            pending += [item for item in fixed[name].inputs if item]
    values: dict[str, Array] = {}
    for name, op in fixed.items():
        if name not in needed or any(item in fixed and item not in values for item in op.inputs):
            continue
        inputs = [None if not item else values[item] if item in values else graph.constant(item) for item in op.inputs]
        try:
            (result,) = evaluate_op(graph, op, inputs)
        except (QConvertError, MemoryError):
            continue
        values[name] = result.stored
    return values
