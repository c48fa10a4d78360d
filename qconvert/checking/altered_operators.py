"""Operators of a file that the conversion it says it comes from did not put there, and whether they compute other values.

Both graphs are compared as they were read, before any normal form. What is not the same in both stands between tensors that both have, and
is evaluated there with values over the whole range of each: an optimizer that folds constants or leaves out an Identity changes none of
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from qconvert.checking.known_tensors import complete_values
from qconvert.checking.value_ranges import limits_of
from qconvert.data import extreme_inputs, random_inputs
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op, Tensor, equal_data
from qconvert.operators import kind_of
from qconvert.rewriting.cutting import Cut, computable_ops, cut
from qconvert.rules.differences import attribute_differences

__all__ = ["find_altered_operators"]

#: By what share of the largest value floats may differ that are summed in another order.
_ROUNDED = 1e-6
#: Numbers for sizes that are known only when the model runs; see data/sizes.py.
_SIZE = 7


def find_altered_operators(again: Graph, graph: Graph) -> dict[str, str] | None:
    """What the operators of a graph that are not those of the conversion compute otherwise, in words, by the tensor; None where that cannot
    be evaluated.

    Args:
        again: what the conversion gives, as it is read.
        graph: the file's, likewise.
    """
    others, own = ({_op_key(op): op for op in side.ops} for side in (again, graph))
    gone = [op for key, op in others.items() if key not in own or not _is_same_op(again, op, graph, own[key])]
    new = [op for key, op in own.items() if key not in others or not _is_same_op(again, others[key], graph, op)]
    if not gone and not new:
        return {}
    shared = {name for name, tensor in again.tensors.items() if name in graph.tensors and _has_same_type(tensor, graph[name])}
    shared = {name for name in shared if not again[name].is_constant and not graph[name].is_constant}
    read = again.consumers().keys() | graph.consumers().keys()
    shared -= (_find_dequantized(again) | _find_dequantized(graph)) - (set(graph.outputs) - read)
    wanted = _find_boundary(again, gone, shared) | _find_boundary(graph, new, shared)
    try:
        parts = [cut(side, shared, frozenset(wanted)) for side in (again, graph)]
        if any(set(part.computed) != wanted for part in parts):
            return None
        found: dict[str, str] = {}
        for values in _make_values(again, parts):
            results = [evaluate(part.graph, {name: values[name] for name in part.graph.inputs}) for part in parts]
            for name in sorted(wanted - found.keys()):
                a, b = (result[part.computed[name]] for result, part in zip(results, parts, strict=True))
                if text := _difference(a, b):
                    found[name] = f"{_describe_altered(again, graph, new, gone, shared, name)}: {text}"
        return found
    except QConvertError:
        return None


def _op_key(op: Op) -> tuple[object, ...]:
    return op.outputs or (op.kind, *sorted(op.attributes.items()))


def _is_same_op(a: Graph, op: Op, b: Graph, other: Op) -> bool:
    """Whether two operators with the same outputs are one: of one kind, with the same attributes, that read the same."""
    if op.kind != other.kind or len(op.inputs) != len(other.inputs) or any(attribute_differences(op, other)):
        return False
    if not all(_has_same_type(a[name], b[name]) for name in op.outputs if name):
        return False
    return all(_is_same_input(a, name, b, its) for name, its in zip(op.inputs, other.inputs, strict=True))


def _is_same_input(a: Graph, name: str, b: Graph, other: str) -> bool:
    if not name or not other:
        return name == other
    own, its = a[name], b[other]
    if own.is_constant or its.is_constant:
        return own.is_constant and its.is_constant and _has_same_type(own, its) and equal_data(own.data, its.data)
    return name == other


def _find_dequantized(graph: Graph) -> set[str]:
    """Return dequantized float tensors, also after data movement: quantizing these again does not change them."""
    return {
        name
        for op in graph.ops
        if op.kind in ("Dequantize", "Identity") or kind_of(op).rule in ("move", "relabel")
        for name in op.outputs
        if name and "float" in graph[name].dtype
    }


def _has_same_type(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold values of one sort; integers that nothing labels with a scale are compared as they are stored."""
    quantizations = {tensor.quantization.key for tensor in (a, b) if tensor.quantization is not None}
    return a.dtype == b.dtype and len(quantizations) <= 1 and (a.rank == b.rank or None in (a.rank, b.rank))


def _find_boundary(graph: Graph, ops: Collection[Op], shared: Collection[str]) -> set[str]:
    """Return the first shared tensors that are computed from results of some operators."""
    inner = {name for op in ops for name in op.outputs if name and name not in shared}
    found = {name for op in ops for name in op.outputs if name in shared}
    for op in graph.ops:
        if inner.intersection(op.inputs):
            inner.update(name for name in op.outputs if name not in shared)
            found.update(name for name in op.outputs if name in shared)
    return found


def _make_values(again: Graph, parts: Collection[Cut]) -> Iterator[Mapping[str, Array]]:
    """Values of all tensors that the parts read, at random and over their ranges."""
    names = list(dict.fromkeys(name for part in parts for name in part.graph.inputs))
    sizes = {size: _SIZE for name in names for size in again[name].shape or () if isinstance(size, str)}
    shapeless = [again[name] for name in names if again[name].shape is None]
    known = complete_values(again, random_inputs(again, 1, 0)[0]) if shapeless else {}
    again = again.evolve(tensors=[replace(tensor, shape=known[tensor.name].shape) for tensor in shapeless if tensor.name in known])
    writers = again.producers()
    within = {name: limits_of(again, writers, name) for name in names}
    like: dict[str, Array] = {}
    for part in parts:  # each may read what the other does not, and round it onto a range of its own
        whole = part.graph.evolve(tensors=[again[name] for name in names], inputs=tuple(names))
        like = like or random_inputs(whole, 1, 0, sizes=sizes)[0]
        yield like
        yield from extreme_inputs(whole, like, 0, within)


def _difference(a: Array, b: Array) -> str:
    """What differs between values of both graphs; "" if nothing does but the last bits of floats."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{b.dtype} {b.shape} instead of {a.dtype} {a.shape}"
    if a.dtype.kind not in "f":
        wrong = a != b
    else:
        finite = np.abs(a[np.isfinite(a)]).astype(np.float64)
        allowed = _ROUNDED * float(finite.max(initial=0))
        with np.errstate(invalid="ignore"):
            wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a.astype(np.float64) - b) <= allowed))
    count = int(wrong.sum())
    return f"{count} of {a.size} elements differ for values over the whole range" if count else ""


def _describe_altered(again: Graph, graph: Graph, new: Collection[Op], gone: Collection[Op], shared: Collection[str], name: str) -> str:
    """In words, the altered operators that lead to a tensor, and constants of theirs that are others."""
    leading = [op for op in computable_ops(graph, shared, frozenset([name])) if op in new]
    others = {_op_key(op): op for op in gone}
    constants = [
        repr(own)
        for op in leading
        for own, its in zip(op.inputs, others[_op_key(op)].inputs if _op_key(op) in others else (), strict=False)
        if own and graph[own].is_constant and not _is_same_input(again, its, graph, own)
    ]
    added = [f"{op.kind} {op.outputs[0]!r}" for op in leading if op.outputs[0] not in shared]
    changed = [f"{op.kind} {op.outputs[0]!r}" for op in leading if op.outputs[0] in shared]
    left = [f"{op.kind} {op.outputs[0]!r}" for op in gone if op.outputs and op.outputs[0] not in graph.tensors]
    named = (("added", added), ("altered", changed), ("altered constant", constants), ("left out", left))
    return "; ".join(f"{what} {', '.join(items[:3])}" for what, items in named if items)
