"""Differences between tensors of one name in two graphs: integers and float values of constants, scales and zero points; and what a
conversion declares of the tensors that it changes: a digest for each, next to its result."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.arithmetic.storage import REALS, Array, Quantization, integer_range
from qconvert.graph.metadata import CHANGED, read_entries
from qconvert.graph.schema import Graph, Op, Tensor
from qconvert.operators import Kind, kind_of
from qconvert.operators.sizes import spread_weights, window_extent

INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32)} | {"int64"}
#: What real numbers may differ by, as a share of the larger, where one side holds them as integers with a scale: a rounding to float32.
_ROUNDING = 2.0**-22
#: Values that are compared at once.
_AT_ONCE = 2**14
#: Axes whose orders are tried.
_MOST_AXES = 4


def changed_values(graph: Graph, other: Graph, declared: Collection[str] = ()) -> dict[str, str]:
    """What differs in each constant and in the quantization of each quantized tensor, by the tensor's name, in words.

    Tensors are paired by name, and constants of which only one side has the name by the operator that reads them. How a constant is
    stored does not count: integers are compared less their zero points, and a zero point less the lowest integer of its type, so that
    int8 may have become uint8; axes may have been transposed. Plain integers (sizes, axes, indices) are left out, since a layout changes
    them.

    Args:
        graph: before.
        other: after.
        declared: names in `other` that are left out.
    """
    return {own: text for own, name, text in _differences(graph, other) if name not in declared}


def changed_names(graph: Graph, other: Graph) -> set[str]:
    """The names in `other` of the tensors that changed_values() names."""
    return {name for _, name, _ in _differences(graph, other)}


def _differences(graph: Graph, other: Graph) -> Iterator[tuple[str, str, str]]:
    """The name in each graph, and what differs.

    A scale that nothing in `graph` computes with is left out if `other` computes with its own.
    """
    idle = _unread_labels(graph) - _unread_labels(other)
    bounds, others = _bounds(graph), _bounds(other)
    for op, tensor, pair in _pair_tensors(graph, other):
        if pair is tensor or tensor.is_constant != pair.is_constant or (tensor.name in idle and not tensor.is_constant):
            continue
        if tensor.data is None:
            text = _activation_difference(tensor, pair)
        else:
            rounded = bounds.get(tensor.name, {})
            rounded = rounded if op is None else {key: rounded[key] for key in op.outputs if key in rounded}
            text = _bound_difference(tensor, pair, rounded, others.get(pair.name, {}))
        if text:
            yield tensor.name, pair.name, text


def _bound_difference(a: Tensor, b: Tensor, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> str:
    """What differs in a constant, for each Clip that reads it in both graphs (by the result: the bound as it rounds it); else for any, or
    as it stands: one graph may choose among float values and round what was chosen."""
    if not before and not after:
        return constant_difference(a, b)
    if shared := before.keys() & after.keys():
        return next((text for key in shared if (text := constant_difference(before[key], after[key]))), "")
    texts = [constant_difference(left, right) for left in before.values() or [a] for right in after.values() or [b]]
    return "" if "" in texts or not constant_difference(a, b) else texts[0]


def _unread_labels(graph: Graph) -> set[str]:
    """The tensors with scales that nothing rounds to and nothing reads: their integers are given, moved and then relabelled."""
    readers = graph.consumers()
    given = {name for name, tensor in graph.tensors.items() if tensor.is_quantized} - {name for op in graph.ops for name in op.outputs}
    for op in graph.ops:
        rule = kind_of(op).rule
        if rule == "relabel" or (rule == "move" and given.issuperset(kind_of(op).moved_inputs(op))):
            given.update(op.outputs)
    found: set[str] = set()
    for name in [name for op in reversed(graph.ops) for name in reversed(op.outputs)] + list(graph.inputs):
        following = readers.get(name, [])
        rules = ((kind_of(op).rule, op.outputs) for op in following)
        relabelled = all(rule == "relabel" or (rule == "move" and found.issuperset(outputs)) for rule, outputs in rules)
        if name in given and following and relabelled and name not in graph.outputs:
            found.add(name)
    return found


def _bounds(graph: Graph) -> dict[str, dict[str, Tensor]]:
    """The real bounds of each Clip to a quantization as it has them, by the Clip's result: the nearest value of the quantization, its last
    one for what is beyond; likewise what Max, Min and Where choose from, since to round and to choose are the same in either order.
    Operators onto several quantizations may share a constant."""
    found: dict[str, dict[str, Tensor]] = {}
    for op in graph.ops:
        chosen = op.inputs[1:] if kind_of(op).clips else op.inputs if kind_of(op).chooses else ()
        result = graph[op.outputs[0]] if chosen else None
        if result is None or result.quantization is None or not result.quantization.is_per_tensor:
            continue
        for name in filter(None, chosen):
            tensor = graph[name]
            if tensor.data is not None and tensor.dtype == "float32":
                stored = quantize(tensor.data, result.quantization, result.dtype)
                rounded = np.asarray(dequantize(stored, result.quantization), np.float32)
                found.setdefault(name, {})[result.name] = replace(tensor, data=rounded)
    return found


def paired_tensors(graph: Graph, other: Graph) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors that changed_values() compares."""
    return ((a, b) for _, a, b in _pair_tensors(graph, other))


def _pair_tensors(graph: Graph, other: Graph) -> Iterator[tuple[Op | None, Tensor, Tensor]]:
    """Tensors of one name, and constants of other names with the operator of the first graph that reads them."""
    yield from ((None, tensor, other[name]) for name, tensor in graph.tensors.items() if name in other.tensors)
    yield from ((op, a, b) for op, a, b in paired_inputs(graph, other) if a.is_constant and b.is_constant)


def paired_inputs(graph: Graph, other: Graph) -> Iterator[tuple[Op, Tensor, Tensor]]:
    """Inputs of other names, by the operators that compute what has one name in both graphs."""
    writers, readers = other.producers(), graph.consumers()
    for op in graph.ops:
        pair = writers.get(_find_name_in(other, op.outputs[0], readers)) if op.outputs else None
        while pair is not None and _may_follow(pair) and kind_of(pair) is not kind_of(op):
            # What computes another tensor of the source stands for another operator.
            pair = None if pair.inputs[0] in graph.tensors else writers.get(pair.inputs[0])
        if pair is None or not _is_alike(kind_of(op), kind_of(pair)):
            continue
        for position, (own, name) in enumerate(zip(op.inputs, pair.inputs, strict=False)):
            if own and name and own != name and (own not in other.tensors or name not in graph.tensors):
                a, b = graph[own], other[name]
                yield op, _densify_weights(op, a, b) if position == 1 else a, b


def _find_name_in(other: Graph, name: str, readers: Mapping[str, Sequence[Op]]) -> str:
    """A tensor's name, or that of what is made of it without other values and has its name in the other graph, as after a Transpose."""
    found = name
    while found not in other.tensors and len(readers.get(found, ())) == 1 and kind_of(readers[found][0]).keeps_values:
        found = readers[found][0].outputs[0]
    return found if found in other.tensors else name


def _is_alike(kind: Kind, other: Kind) -> bool:
    """Whether operators of two kinds stand for each other in two graphs, with the same operands."""
    return kind is other or (kind.is_matrix_product and other.is_matrix_product)


def _may_follow(op: Op) -> bool:
    """Whether a conversion may put such an operator after another one: to change quantization, layout or shape, or as its limits."""
    kind = kind_of(op)
    return kind.keeps_values or kind.clips or bool(kind.picks)


def _densify_weights(op: Op, weights: Tensor, other: Tensor) -> Tensor:
    """Weights as the other graph may have them: with zeros for groups and holes (passes/convolutions.py)."""
    data, found, shape = weights.data, other.data, weights.shape or ()
    if not kind_of(op).has_weights or data is None or found is None or data.size == found.size or data.ndim < 3:
        return weights
    group = int(op["group"])
    for holes in ((1,) * (data.ndim - 2), tuple(int(step) for step in op["dilations"])):
        spans = map(window_extent, data.shape[2:], holes)
        if data.shape == shape and shape[0] % group == 0 and found.size == math.prod([shape[0], shape[1] * group, *spans]):
            dense = spread_weights(weights, group, holes)
            return replace(weights, shape=dense.shape, data=dense)
    return weights


def _activation_difference(a: Tensor, b: Tensor) -> str:
    """A zero point or scale of an activation that is not the source's."""
    if a.quantization is None or b.quantization is None or not {a.dtype, b.dtype} <= INTEGERS:
        return ""
    old, new = (zero_points(item, from_lowest=a.dtype != b.dtype) for item in (a, b))
    if old.size in (1, new.size) and not np.array_equal(np.broadcast_to(old, new.shape), new):
        place = int(np.flatnonzero(np.broadcast_to(old, new.shape) != new)[0])
        return f"the zero point of {a.name!r} is {new[place]} instead of {np.broadcast_to(old, new.shape)[place]}"
    return _scale_difference(a.name, a.quantization, b.quantization.scale)


def zero_points(tensor: Tensor, *, from_lowest: bool) -> Array:
    """The zero points of a quantized tensor, as they are or less the lowest integer of its type."""
    assert tensor.quantization is not None
    return tensor.quantization.zero_point.reshape(-1) - (integer_range(tensor.dtype)[0] if from_lowest else 0)


def constant_difference(a: Tensor, b: Tensor) -> str:
    """What differs in two constants of one shape, in words; see changed_values()."""
    assert a.data is not None and b.data is not None
    if _is_decomposed(a, b) or _is_decomposed(b, a):
        return ""
    quantizations = a.quantization, b.quantization
    if quantizations[0] is not None and quantizations[1] is not None and {a.dtype, b.dtype} <= INTEGERS:
        if quantizations[0].block_size or quantizations[1].block_size:
            return _real_difference(a, b)
        return integer_difference(a, b.steps(), b.quantization)
    if any(quantizations) or {a.dtype, b.dtype}.issubset(REALS):
        return _real_difference(a, b)
    return ""


def _is_decomposed(a: Tensor, b: Tensor) -> bool:
    """Whether b holds a's stored integers as plain numbers: an operator that is decomposed has the scale and zero point elsewhere. A
    Dequantize of weights in blocks may have them on the scale 1."""
    if a.data is None or b.data is None or a.quantization is None or not {a.dtype, b.dtype} <= INTEGERS:
        return False
    q = b.per_tensor
    if b.quantization is not None and (not a.quantization.block_size or q is None or (q.step, q.point) != (1.0, 0)):
        return False
    low = integer_range(a.dtype)[0] - integer_range(b.dtype)[0] if b.quantization is None else 0
    return _count_differing(a.data.astype(np.int64) - low, b.data.astype(np.int64)) == 0


def integer_difference(tensor: Tensor, integers: Array, quantization: Quantization | None) -> str:
    """What differs between a quantized constant and integers less their zero points with a quantization, in words; "" if nothing does."""
    wanted = tensor.steps()
    wrong = _count_differing(wanted, integers)
    if wrong:
        return f"{wrong} of {wanted.size} integers of {tensor.name!r} are not the source's"
    if not wanted.any():
        return ""  # zero is zero on every quantization
    if quantization is None or tensor.quantization is None:
        return ""
    return _scale_difference(tensor.name, tensor.quantization, quantization.scale)


def _count_differing(wanted: Array, found: Array) -> int:
    """How many elements differ, in whichever order of the axes fits best."""
    if wanted.size != found.size:
        one = wanted.reshape(-1)[:1] if wanted.size == 1 else found.reshape(-1)[:1] if found.size == 1 else None
        return int(one is None or bool((wanted != one).any() or (found != one).any())) and max(wanted.size, found.size)
    if wanted.shape == found.shape and np.array_equal(wanted, found):
        return 0
    return min(int((form != found.reshape(form.shape)).sum()) for form in _axis_orders(wanted, found))


def _axis_orders(wanted: Array, found: Array) -> Iterator[Array]:
    """`wanted` with its axes in every order in which `found` may have it, but for axes of one element."""
    yield wanted
    single = tuple(axis for axis, size in enumerate(wanted.shape) if size == 1)
    yield from (wanted.transpose(*single, *order) for order in list_axis_orders(wanted.shape, found.shape) if order[1:])


def list_axis_orders(sizes: Sequence[int], wanted: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the orders of the axes of more than one element that give the `wanted` sizes, axes of one element left out; none for many."""
    kept = [axis for axis, size in enumerate(sizes) if size != 1]
    target = [size for size in wanted if size != 1]
    for order in permutations(kept) if len(kept) <= _MOST_AXES else ():
        if [sizes[axis] for axis in order] == target:
            yield order


def _real_difference(a: Tensor, b: Tensor) -> str:
    """Float values that are not the source's, one side at least holding no integers of a single quantization."""
    left, right = (float_values(item) for item in (a, b))
    if a.quantization is None and b.quantization is None and a.dtype == b.dtype:
        wrong = _count_differing(left, right) if not np.isnan(left).any() else 0
    elif left.size != right.size:
        return ""
    else:
        wrong = min(_count_differing_floats(form, right.reshape(form.shape)) for form in _axis_orders(left, right))
    return f"{wrong} of {left.size} values of {a.name!r} are not the source's" if wrong else ""


def _count_differing_floats(values: Array, others: Array) -> int:
    """How many values differ by more than a rounding to float32, NaN being equal to NaN alone.

    It goes by some rows at a time, so that nothing of the size of large values is made.
    """
    values, others = np.atleast_1d(values), np.atleast_1d(others)
    step = max(1, _AT_ONCE * len(values) // max(1, values.size))
    parts = (slice(start, start + step) for start in range(0, len(values), step))
    return sum(int(np.count_nonzero(~np.isclose(others[part], values[part], _ROUNDING, 0, equal_nan=True))) for part in parts)


def float_values(tensor: Tensor) -> Array:
    """The float64 values of a constant."""
    assert tensor.data is not None
    if tensor.quantization is None:
        with np.errstate(invalid="ignore"):  # NaNs that signal
            return np.asarray(tensor.data.astype(np.float64))
    return tensor.float_values()


def _scale_difference(name: str, quantization: Quantization, scale: Array) -> str:
    """A scale that is not the source's, in words."""
    own, scale = quantization.scale.reshape(-1).astype(np.float64), scale.reshape(-1).astype(np.float64)
    if scale.size not in (1, own.size) and own.size != 1:
        return f"{name!r} has {scale.size} scales instead of {own.size}"
    with np.errstate(all="ignore"):
        share = np.where(scale == own, 0.0, np.abs(scale / own - 1))
    largest = float(np.nan_to_num(share, nan=np.inf).max(initial=0))
    return f"a scale of {name!r} is off by {100 * largest:.3g}%" if largest else ""


def digest(tensor: Tensor) -> str:
    """A short name of a tensor's quantization and, of a constant, its values, however they are stored; of one in blocks, which few formats
    have, its float values alone."""
    quantization = tensor.quantization
    if quantization is not None and quantization.block_size and tensor.data is not None:
        return digest(Tensor("", "float32", tensor.shape, float_values(tensor).astype(np.float32)))
    parts: list[Array] = []
    if quantization is not None:
        scale = quantization.scale.reshape(-1)
        parts.append(scale[:1] if (scale == scale[:1]).all() else scale)
    if tensor.data is not None:
        parts.append(
            tensor.steps()
            if quantization is not None and tensor.dtype in INTEGERS and not quantization.block_size
            else float_values(tensor)
        )
    elif quantization is not None:
        parts.append(zero_points(tensor, from_lowest=True))
    found = hashlib.sha256()
    for part in parts:
        found.update(np.ascontiguousarray(part.astype(np.float64 if part.dtype.kind == "f" else np.int64)).tobytes())
    return found.hexdigest()[:16]


def narrowed_names(graph: Graph, other: Graph) -> set[str]:
    """The activations that saturate at other integers of the same quantization in `other`, which changed_values() leaves out."""
    pairs = ((tensor, other[name]) for name, tensor in graph.tensors.items() if name in other.tensors and tensor.data is None)
    return {a.name for a, b in pairs if a.dtype == b.dtype and _limits(a) != _limits(b) and digest(a) == digest(b)}


def _limits(tensor: Tensor) -> tuple[int, int] | None:
    return None if tensor.quantization is None else tensor.quantization.limits(tensor.dtype)


def _names_with_limits(found: Mapping[str, object]) -> set[str]:
    """The tensors whose declared digests include limits."""
    return {name for name, wanted in found.items() if " " in str(wanted)}


def declared_changes(graph: Graph, names: Iterable[str], narrowed: Collection[str] = ()) -> dict[str, str]:
    """The digest of each tensor whose values or quantization a pass changed, as a conversion writes it next to its result. For tensors in
    `narrowed`, of which only the limits changed, the digest includes these."""
    found = {name: digest(graph[name]) for name in sorted(names) if name in graph.tensors}
    return {name: f"{text} {_limits(graph[name])}" if name in narrowed else text for name, text in found.items()}


def declared_names(graph: Graph, source: Graph | None = None) -> frozenset[str]:
    """The tensors of a result that are what its conversion declared of them.

    Args:
        graph: the result.
        source: what it is compared with: tensors that have its values and quantization are left out. An earlier conversion may have
            declared them, of which the source is the result.
    """
    found = read_entries(graph.metadata, CHANGED)
    names = [name for name, wanted in found.items() if name in graph.tensors and _has_digest(graph[name], wanted)]
    if source is None:
        return frozenset(names)
    own = declared_changes(source, names, _names_with_limits(found))
    return frozenset(name for name in names if name not in own or not _has_digest(graph[name], own[name]))


def redeclare_changes(before: Graph, after: Graph) -> Graph:
    """`after`, an equivalent form of `before`, with those declared changes of `before` that still hold there."""
    found = read_entries(before.metadata, CHANGED)
    names = [
        name for name, wanted in found.items() if name in before.tensors and name in after.tensors and _has_digest(before[name], wanted)
    ]
    if not names:
        return after
    text = json.dumps({**found, **declared_changes(after, names, _names_with_limits(found))})
    return replace(after, metadata={**after.metadata, CHANGED: text})


def _has_digest(tensor: Tensor, wanted: object) -> bool:
    """Whether a tensor has a digest, as it stands or, a matrix, transposed."""
    found = digest(tensor)
    if wanted in (found, f"{found} {_limits(tensor)}"):
        return True
    if tensor.data is None or tensor.data.ndim != 2 or (tensor.quantization is not None and tensor.quantization.block_size):
        return False
    quantization = tensor.quantization
    turned = quantization if quantization is None or quantization.axis is None else quantization.with_axis(1 - quantization.axis)
    return digest(Tensor(tensor.name, tensor.dtype, tensor.data.T.shape, tensor.data.T, turned)) == wanted
