"""Operators of the result that are none of the source's one by one, and that together compute a tensor of its name."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from qconvert.checking.proof.candidates import compare_axes
from qconvert.checking.proof.elements import Followed
from qconvert.checking.same_codes import has_byte_codes
from qconvert.graph import Graph, Op, integer_range
from qconvert.operators import kind_of


@dataclass(frozen=True, slots=True)
class Group:
    """What computes a tensor on both sides.

    Attributes:
        name: the tensor's, on both sides.
        source, result: the operators of each side, from what both read to the tensor.
        inputs: the tensors that they read, of source and result; constants are none.
        is_aligned: whether each of these and the tensor have their elements in the same order of axes, with integers that mean the same.
        is_rewritten: whether the result has other kinds of operators than the source, as a formula of the source's operator does, the same
            in float, or dequantizes constants that the source's operator takes as they are stored.
    """

    name: str
    source: tuple[Op, ...]
    result: tuple[Op, ...]
    inputs: tuple[tuple[str, str], ...]
    is_aligned: bool
    is_rewritten: bool


def collect_operators(
    writers: Mapping[str, Op], graph: Graph, name: str, known: Container[str]
) -> tuple[tuple[Op, ...], tuple[str, ...]] | None:
    """Return the operators that compute a tensor of known ones, in the graph's order, and those that they read; None if what they read is
    not known.

    Args:
        writers: what computes each tensor of the graph.
        graph, name: of the tensor.
        known: the names of tensors that are known; constants need not be.
    """
    found, read, wanted = set[int](), dict[str, None](), [name]
    while wanted:
        op = writers.get(wanted.pop())
        if op is None:
            return None
        found.add(id(op))
        given = [item for item in op.inputs if item and graph[item].data is None]
        read.update((item, None) for item in given if item in known)
        wanted += [item for item in given if item not in known and not (item in writers and id(writers[item]) in found)]
    return tuple(op for op in graph.ops if id(op) in found), tuple(read)


def find_group(source: Followed, result: Followed, name: str, perm: tuple[int, ...], doubtful: Container[str]) -> Group | None:
    """The operators of both sides that compute a tensor of what is traced; None where these do not read the same tensors.

    Args:
        source, result: both sides, as far as they are followed.
        name: the tensor's.
        perm: the transposition of the source's that gives the result's.
        doubtful: roots whose codes may be other ones in the result.
    """
    found = collect_operators(result.writers, result.graph, name, result.elements)
    if found is None or not found[1]:
        return None
    roots = {result.elements[given].root: given for given in found[1]}
    known = [key for key, elements in source.elements.items() if elements.root in roots]
    own = collect_operators(source.writers, source.graph, name, known)
    if own is None or {source.elements[given].root for given in own[1]} != set(roots):
        return None
    inputs = tuple((given, roots[source.elements[given].root]) for given in own[1])
    is_aligned = len(own[1]) == len(found[1]) == len(roots) and not compare_axes(own[0][-1], found[0][-1], perm)
    is_aligned = is_aligned and all(
        source.elements[pair[0]].root not in doubtful and _is_aligned(source, result, *pair, perm) for pair in inputs
    )
    kinds = [
        {(kind_of(op), side.graph.is_quantized(op.outputs[0])) for op in ops if kind_of(op).rule != "convert"}
        for ops, side in ((own[0], source), (found[0], result))
    ]
    unpacks = [op for op in found[0] if kind_of(op).dequantizes and result.graph[op.inputs[0]].data is not None]
    is_rewritten = kinds[0].isdisjoint(kinds[1]) or len(found[0]) - len(unpacks) == len(own[0]) == 1 <= len(unpacks)
    return Group(name, own[0], found[0], inputs, is_aligned, is_rewritten)


def _is_aligned(source: Followed, result: Followed, before: str, after: str, perm: tuple[int, ...]) -> bool:
    """Whether a tensor of the result has the bytes of the source's, whatever their scale, with the axes in an order."""
    own, given, tensors = source.elements[before], result.elements[after], (source.graph[before], result.graph[after])
    rank = tensors[0].rank or 0
    if not all(map(has_byte_codes, tensors)):
        return False
    if rank != len(perm) and perm != tuple(range(len(perm))):
        return False  # it is broadcast along axes that are in another order
    lowest = [integer_range(tensor.dtype)[0] for tensor in tensors]
    if given.offset - own.offset != lowest[1] - lowest[0]:
        return False
    is_turned = own.is_transposed(given, perm if len(perm) == rank else range(rank))
    return is_turned and not source.describe_other_codes(own, given)
