"""Constants: operators on them are replaced by their results, and copies by the first of their kind.

fold_constants: operators on constants are replaced by their results. Exact: only where every runtime gives the same bits.

What can be folded, and up to which size, is in folding.py. Integers made of sizes with names are folded where these do not count
(evaluate/known_values.py): a size that a Resize takes from a Concat of an open batch and two numbers.

Numbers that a Dequantize of constants gives stay computed at run time: that is how weights are stored in few bits, and folding it would
store them as floats.

compute_constants: what is computed of constants alone is computed once, in the conversion, each operator being rounded once.

Position embeddings that are resized, tables of relative positions after a small network: an exporter leaves them in the graph, and a
quantizer puts quantizations between their parts. The target's kernels would compute them again at each run, and round them as they do; here
they become what the source means. Weights that are only unpacked or moved stay as they are (fold_constants). Sources of the target's own
format are left alone: their constants are what their kernels make of them.

deduplicate_constants: constants of equal type, shape, bits and quantization become one. Exact.

Large models have many weights of one shape. Only constants that agree in type, shape, quantization and a sample of their first
elements are read through, so that a file of gigabytes is not hashed to find a few equal scalars.

remove_dead_code: operators whose outputs nobody needs disappear, and so do the tensors that only they used. Exact.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np

from qconvert.errors import QConvertError, format_count, format_counts, format_verb
from qconvert.evaluate import evaluate_op
from qconvert.evaluate.folding import GROWTH, LARGEST, evaluate_constant
from qconvert.evaluate.known_values import KnownSizes
from qconvert.graph import Array, Graph, Op, Tensor, count_kinds, numpy_dtype
from qconvert.operators import kind_of
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def fold_constants(graph: Graph, target: Target | None) -> PassResult:
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
    return rewriter.finish(), (
        f"{format_count(len(gone), 'operator')} on constants {format_verb(len(gone), 'are')} replaced by their results ({listed})",
    )


def _evaluate_sizes(op: Op, sizes: KnownSizes) -> list[Array] | None:
    """Return the results of an operator on sizes, if each of their elements is one number in every run."""
    found = [sizes.numbers(name) if name else None for name in op.outputs]
    known = [value for value in found if value is not None]
    return known if known and len(known) == len(found) else None


#: Bytes that a file may grow by however small its constants are: the kernel of a resampler, made of a few numbers, has 300,000. Kernels
#: of TFLite would compute it at each run, with functions of their own.
_SMALL = 2**22
#: Products that one operator may take.
_MOST_WORK = 2**28
#: How much larger than all constants may be what fold_float_constants() makes of them: float32 of 8-bit integers.
_UNPACKED = 4


def compute_constants(graph: Graph, target: Target | None) -> PassResult:
    """Replace every computed tensor without inputs after it that something with inputs reads."""
    if target is None or graph.is_from(target.format):
        return graph, ()
    fixed, computed = _find_constant_tensors(graph)
    read = {name for op in graph.ops if op.outputs[:1] and op.name not in fixed for name in op.inputs}
    wanted = [name for name in computed if name in read and name not in graph.public]
    values = _evaluate_constants(graph, fixed, wanted) if wanted else {}
    found, budget = {}, min(LARGEST, max(_SMALL, GROWTH * count_constant_bytes(graph)))
    for name in wanted:
        if name in values and values[name].nbytes <= budget:
            found[name] = values[name]
            budget -= values[name].nbytes
    if not found:
        return graph, ()
    note = f"{format_count(len(found), 'tensor', 'depend on constants alone')}: computed, each operator rounded once"
    return _with_constants(graph, found), (note,)


def fold_float_constants(graph: Graph, wanted: Collection[str] | None = None) -> Graph:
    """Return the graph with real numbers that constants alone say as constants, also where these are only unpacked or moved.

    Args:
        graph: in float.
        wanted: names of tensors; those that need more than constants are left alone. None for all that are read next to other data.
    """
    fixed, _ = _find_constant_tensors(graph)
    if not fixed:
        return graph
    read = {name for op in graph.ops if not fixed.keys() & {*op.outputs} for name in op.inputs} if wanted is None else wanted
    makers = [op for op in graph.ops if not fixed.keys().isdisjoint(op.outputs) and not {*read}.isdisjoint(op.outputs)]
    names = [name for op in makers if graph.public.isdisjoint(op.outputs) for name in op.outputs if name]
    names = [name for name in names if graph[name].dtype == "float32" and not graph[name].is_quantized]
    values = _evaluate_constants(graph, fixed, names, LARGEST + _UNPACKED * count_constant_bytes(graph))
    found = {name: values[name] for name in names if name in values}
    return _with_constants(graph, found) if found else graph


def count_constant_bytes(graph: Graph) -> int:
    """Return how many bytes the constants of a graph have."""
    return sum(tensor.data.nbytes for tensor in graph.constants() if tensor.data is not None)


def _with_constants(graph: Graph, found: Mapping[str, Array]) -> Graph:
    rewriter = Rewriter(graph)
    for name, value in found.items():
        rewriter.define(replace(graph[name], data=value, shape=value.shape))
        rewriter.remove(rewriter.producers[name])
    return rewriter.finish(prune=True)


def _find_constant_tensors(graph: Graph) -> tuple[dict[str, Op], list[str]]:
    """Return the tensors that depend on constants alone, with their operators, and those of them that are computed, not only moved."""
    fixed: dict[str, Op] = {}
    computed: dict[str, None] = {}
    for op in graph.ops:
        kind = kind_of(op)
        given = all(not name or name in fixed or graph[name].is_constant for name in op.inputs)
        if not op.inputs or not given or not all(op.outputs) or kind.evaluate is None or kind.is_structural:
            continue
        if not _is_small(graph, op):
            continue
        fixed.update(dict.fromkeys(op.outputs, op))
        if kind.rule == "real" or not computed.keys().isdisjoint(op.inputs):
            computed.update(dict.fromkeys(op.outputs))
    return fixed, list(computed)


def _is_small(graph: Graph, op: Op) -> bool:
    """Whether its results are, by themselves or next to what they are made of."""
    given, made = (_count_bytes(graph, names) for names in (op.inputs, op.outputs))
    if made is None:
        return False
    terms = math.prod(graph[op.inputs[1]].static_shape or (1,)) if kind_of(op).sums_products else 1
    size = made // numpy_dtype(graph[op.name].dtype).itemsize
    return made <= max(LARGEST, _UNPACKED * (given or 0)) and size * terms <= _MOST_WORK


def _count_bytes(graph: Graph, names: Collection[str]) -> int | None:
    """Return what tensors take in memory; None if that is open."""
    shapes = [(graph[name].static_shape, numpy_dtype(graph[name].dtype).itemsize) for name in names if name]
    return None if any(shape is None for shape, _ in shapes) else sum(math.prod(shape or ()) * size for shape, size in shapes)


def _evaluate_constants(graph: Graph, fixed: Mapping[str, Op], wanted: list[str], most: int = 2**63) -> dict[str, Array]:
    """Return the stored values of the wanted tensors and of their inputs, without those that fail or exceed `most` bytes."""
    needed, pending = set[str](), list(wanted)
    while pending:
        name = pending.pop()
        if name in fixed and name not in needed:
            needed.update(fixed[name].outputs)
            pending += [item for item in fixed[name].inputs if item]
    values: dict[str, Array] = {}
    for op in {id(op): op for op in fixed.values()}.values():
        most -= (_count_bytes(graph, op.outputs) or 0) if needed.issuperset(op.outputs) else 0
        if most < 0 or not needed.issuperset(op.outputs) or any(item in fixed and item not in values for item in op.inputs):
            continue
        inputs = [None if not item else values[item] if item in values else graph.constant(item) for item in op.inputs]
        try:
            values.update(zip(op.outputs, (result.stored for result in evaluate_op(graph, op, inputs)), strict=True))
        except (QConvertError, MemoryError):
            continue
    return values


_SAMPLED_ELEMENTS = 256


def deduplicate_constants(graph: Graph, target: Target | None) -> PassResult:
    """Let readers of a copy read the first of its kind instead. Constants that are graph outputs keep their own."""
    groups = _split_groups(
        [[tensor for tensor in graph.constants() if tensor.name not in graph.public]],
        lambda tensor: (tensor.dtype, tensor.shape, tensor.quantization and tensor.quantization.key),
    )
    groups = _split_groups(_split_groups(groups, _sample), _digest)
    rewriter = Rewriter(graph)
    count = saved = 0
    for first, *copies in groups:
        for copy in copies:
            rewriter.forward(copy.name, first.name)
            count += 1
            saved += 0 if copy.data is None else copy.data.nbytes
    return rewriter.finish_with(
        lambda number: f"{format_count(number, 'constant')} ({saved:,} bytes) {format_verb(number, 'share')} the data of equal ones", count
    )


def _split_groups(groups: Iterable[list[Tensor]], key: Callable[[Tensor], Hashable]) -> list[list[Tensor]]:
    """Return the groups taken apart by `key`, without those of one member."""
    found: list[list[Tensor]] = []
    for group in groups:
        parts: dict[Hashable, list[Tensor]] = defaultdict(list)
        for tensor in group:
            parts[key(tensor)].append(tensor)
        found += [part for part in parts.values() if len(part) > 1]
    return found


def _sample(tensor: Tensor) -> bytes:
    assert tensor.data is not None
    places = islice(np.ndindex(tensor.data.shape), _SAMPLED_ELEMENTS)  # a view that is not contiguous is not copied as a whole
    return _bits(np.asarray([tensor.data[place] for place in places], tensor.data.dtype))


def _digest(tensor: Tensor) -> bytes:
    assert tensor.data is not None
    return hashlib.sha256(_bits(tensor.data)).digest()


def _bits(data: Array) -> bytes:
    """Return what makes two constants equal; of types below 8 bits the unused high bits of a byte mean nothing."""
    if data.dtype == object:
        return repr(data.tolist()).encode()
    if data.dtype.name in ("int2", "uint2", "int4", "uint4"):
        return data.astype(np.int8).tobytes()
    return np.ascontiguousarray(data).tobytes()


def remove_dead_code(graph: Graph, target: Target | None) -> PassResult:
    """Keep what the graph's outputs, and those of its signatures, depend on. Graph inputs stay, read or not."""
    changed = Rewriter(graph).finish(prune=True)
    ops, tensors = len(graph.ops) - len(changed.ops), len(graph.tensors) - len(changed.tensors)
    if not ops and not tensors:
        return graph, ()
    gone = count_kinds(graph) - count_kinds(changed)
    listed = f" ({format_counts(gone)})" if gone else ""
    return changed, (f"{format_count(ops, 'operator')}{listed} and {format_count(tensors, 'tensor')} that no output needs are removed",)
