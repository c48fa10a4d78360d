"""Results of the source that nothing in the result stands for: a rounding that is left out may cost less than a step."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.arithmetic.storage import Array, integer_range
from qconvert.checking.equal_operators import find_representatives
from qconvert.checking.same_codes import has_same_steps, is_storage, keeps_codes
from qconvert.checking.value_limits import is_redundant_limit
from qconvert.errors import quote_some
from qconvert.evaluate.curves import Lookup, codes_of, curve_float_values, curve_operators, curve_roots, curve_values, find_lookup
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.rewriting import dequantized_source

#: Tensors that a message names; the others are counted.
_NAMED = 4


def find_missing_results(graph: Graph, other: Graph, declared: Collection[str] = ()) -> dict[str, str]:
    """Return quantized tensors of the source that the result has under no name, in words: an operator, or its rounding, is left out.

    Operators that only move, convert or clip integers with one quantization may be missing, since their values are still present. So may
    tensors whose rounding shows in a later tensor of both graphs, and tensors that depend on constants alone. Operators before a table
    lookup of the result are present if the table holds the source's results for every code.

    Args:
        graph, other: the canonical graphs of source and result; tensors of one name are the same.
        declared: names of tensors that have another quantization in the result, as the conversion declared.
    """
    producers, tables = graph.producers(), _find_tables(graph, other, declared)
    tabled = {item for name, root in tables.items() for item in curve_operators(graph, producers, name, root)}
    gone = graph.varying() - other.tensors.keys() - tabled - _find_visible_results(graph, other)
    sources, readers = {op.source for op in other.ops if op.source}, graph.consumers()
    first = find_representatives(graph, other.tensors)
    roots = _find_roots(graph, first)
    rounded = [name for op in other.ops for name in op.outputs if name and other[name].is_quantized]
    found = {}
    for op in graph.ops:
        if op.source in sources or not _is_rounding(graph, op) or _is_clip(graph, op):
            continue
        for name in op.outputs:
            if name not in gone or not graph[name].is_quantized or roots[name] != name or first[name] in other.tensors:
                continue
            if not any(_is_part_of(item, other, graph[name], declared) for item in rounded):
                following = [output for reader in readers.get(name, []) for output in reader.outputs if output in other.tensors]
                named = quote_some(sorted(following), _NAMED)
                without = f", and {named} is computed without it" if following else ""
                found[name] = f"no tensor of the result corresponds to it{without}"
    return found


def _is_part_of(name: str, other: Graph, tensor: Tensor, declared: Collection[str]) -> bool:
    """Whether a tensor of the result is a part of what it writes an operator of the source with, with the same quantization or on a
    declared one."""
    own, its = tensor.quantization, other[name].quantization
    is_same_step = own is not None and its is not None and own.step == its.step
    return name.startswith(f"{tensor.name}/") and (name in declared or is_same_step)


def _find_tables(graph: Graph, other: Graph, declared: Collection[str]) -> dict[str, str]:
    """Tensors of the source that the result takes from a table -> the tensor whose codes index the table."""
    writers, producers, roots = other.producers(), graph.producers(), curve_roots(graph)
    found: dict[str, str] = {}
    for name, possible in roots.items():
        lookup = find_lookup(other, writers, writers[name]) if name in writers else None
        if lookup is None or lookup.root not in possible:
            continue
        root, expected = lookup.root, curve_values(graph, producers, name, lookup.root)
        if all(has_same_steps(graph[item], other[item]) for item in (root, name)):
            lowest = [integer_range(side[name].dtype)[0] for side in (graph, other)]
            holds = np.array_equal(lookup.values.astype(np.int64) - lowest[1], expected.astype(np.int64) - lowest[0])
        else:
            holds = not {root, name}.isdisjoint(declared) and _is_near_table(graph, other, lookup, name, expected)
        if holds:
            found[name] = root
    return found


def _is_near_table(graph: Graph, other: Graph, lookup: Lookup, name: str, expected: Array) -> bool:
    """Whether a table over other codes holds what the source computes, rounded to other quantizations.

    The float value of each entry must lie between the source's results for its own codes next to the entry's code. Allowed on either side
    are half a step of the entry's quantization, and twice the largest cost of the source's intermediate roundings: intermediate
    quantizations may differ too.
    """
    (own, old), (before, after) = ([side[item] for side in (graph, other)] for item in (lookup.root, name))
    if own.quantization is None or old.quantization is None or before.quantization is None or after.quantization is None:
        return False
    given, places = (
        dequantize(codes_of(tensor.dtype), quantization) for tensor, quantization in ((own, own.quantization), (old, old.quantization))
    )
    stored = dequantize(expected, before.quantization)
    cost = float(np.abs(stored - curve_float_values(graph, graph.producers(), name, lookup.root)).max())
    inside = np.flatnonzero((places >= given[0]) & (places <= given[-1]))
    around = own.quantization.step * (1 + 1e-6)
    first = np.searchsorted(given, places[inside] - around)
    last = np.searchsorted(given, places[inside] + around, "right") - 1
    near = np.stack([stored[np.minimum(first + step, last)] for step in range(3)])
    ends = dequantize(np.array(after.quantization.limits(after.dtype)), after.quantization)
    low, high = (np.clip(values, *ends) for values in (near.min(axis=0), near.max(axis=0)))
    allowed = 2 * cost + after.quantization.step / 2 * (1 + 1e-6)
    found = dequantize(lookup.values, after.quantization)[inside]
    return bool(((found >= low - allowed) & (found <= high + allowed)).all())


def _is_clip(graph: Graph, op: Op) -> bool:
    """Whether an operator clips integers with one quantization, which another that writes or reads them may do."""
    return kind_of(op).clips and graph[op.inputs[0]].quantization == graph[op.outputs[0]].quantization


def _is_rounding(graph: Graph, op: Op) -> bool:
    """Whether an operator with a quantized result rounds to it; a Quantize of a graph's input may be done by the program around."""
    return kind_of(op).rounds and not (kind_of(op).rule == "convert" and op.inputs[0] in graph.inputs)


def _find_visible_results(graph: Graph, other: Graph) -> set[str]:
    """Return the source's tensors whose integers show in a later tensor that the result computes too.

    Either one reader keeps all integers, in another type or layout. Or all readers clip or move the integers with the same quantization,
    or dequantize them."""
    readers, own, writers = graph.consumers(), graph.producers(), other.producers()
    found, whole = set[str](), set[str]()
    for name in reversed([name for op in graph.ops for name in op.outputs if name]):
        carriers = {op.outputs[0]: op for op in readers.get(name, []) if _is_carrier(graph, op, name)}
        known = {item for item in carriers if _is_computed(graph, other, writers, item)}
        if any(kind_of(op).keeps_values and (item in known or item in whole) for item, op in carriers.items()):
            whole.add(name)
        known |= {item for item in carriers if item in found or _is_same_quantize(graph, own, own[name], writers.get(item))}
        real = [op for op in readers.get(name, []) if kind_of(op).dequantizes and dequantized_source(writers, op.outputs[0]) in carriers]
        if name in whole or (carriers and len(carriers) + len(real) == len(readers[name]) and known == carriers.keys()):
            found.add(name)
    return found


def _is_same_quantize(graph: Graph, own: Mapping[str, Op], op: Op, pair: Op | None) -> bool:
    """Whether the source's operator and the result's round the same float values, which may be stored in another type of as many codes."""
    if pair is None or kind_of(op) is not kind_of(pair) or not (kind_of(op).quantizes or kind_of(op).requantizes):
        return False
    before: Op | None = op
    while before is not None and before.inputs[0] != pair.inputs[0]:
        before = own.get(before.inputs[0])
        if before is None or not kind_of(before).requantizes or not _is_carrier(graph, before, before.inputs[0]):
            return False
    return True


def _is_computed(graph: Graph, other: Graph, writers: Mapping[str, Op], name: str) -> bool:
    """Whether the result has a tensor, and computes it: it does not only clip, move or store another that the source has too."""
    if name not in other.tensors:
        return False
    op = writers.get(name)
    while op is not None and (_is_clip(other, op) or kind_of(op).rule in ("move", "convert")):
        if op.inputs[0] in graph.tensors:
            return False
        op = writers.get(op.inputs[0])
    return op is not None


def _is_carrier(graph: Graph, op: Op, name: str) -> bool:
    """Return whether an operator applies a clip, data movement or another storage type to `name`, with its float values kept."""
    if op.inputs[0] != name or not op.outputs:
        return False
    return _is_clip(graph, op) or keeps_codes(graph, op)


def _find_roots(graph: Graph, first: Mapping[str, str]) -> dict[str, str]:
    """Each tensor with the first one that holds the same values. An operator that the source has twice, with the same operands, gives the
    same values."""
    found: dict[str, str] = {}
    writers = graph.producers()
    for op in graph.ops:
        for name in op.names:
            if name and name not in found:
                writer = writers.get(name)
                root = name if writer is None or not writer.inputs else found.get(writer.inputs[0], name)
                twin = found.get(first.get(name, name), name)
                found[name] = root if writer is not None and writer.inputs and _has_same_values(graph, writer, root) else twin
    return found


def _has_same_values(graph: Graph, op: Op, root: str) -> bool:
    """Return whether an operator returns the values of `root`: as floats, in another shape or layout, under another name, within limits
    outside its quantized range, or requantized to its quantization."""
    a, b = graph[root], graph[op.outputs[0]]
    if kind_of(op).dequantizes or kind_of(op).copies:
        return True
    limits = is_redundant_limit(graph, op, root)
    if limits and not b.is_quantized:
        return True
    same = is_storage(graph, op) if kind_of(op).requantizes else has_same_steps(a, b)  # a Requantize may clip what it stores
    return (kind_of(op).keeps_values or limits) and (same or a.shares_quantization(b))
