"""Activations with other quantizations, and what follows from it; and what float values a tensor takes at all: the part of its quantization
that an activation, the operators before it, or constants leave.

Intervals go through the graph from its inputs on; each kind of operator says its bounds (operators/properties.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from qconvert.arithmetic import affine_range, dequantize, quantize
from qconvert.errors import format_count
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.activations import activation_bounds, interval_of
from qconvert.operators import kind_of
from qconvert.operators.properties import ANY, Interval, hull
from qconvert.passes.absorb_quantization import fuse_clips
from qconvert.passes.linear import with_biases
from qconvert.passes.quantizations.scales_and_costs import activation_cost, tensor_cost
from qconvert.passes.stored_types import changed_edges, find_weights, needs_storage, replace_quantizations, separate_roles
from qconvert.plugins import Change, Cost, describe_worst
from qconvert.rewriting import Rewriter
from qconvert.rewriting.requantize import requantize_tensor

#: A tensor -> the type and the quantization that it shall have, or None if it stays. Tensors that move the same integers must get the same.
Choice = Callable[[Tensor], "tuple[str, Quantization] | None"]
#: The same for functions of the type and the quantization alone.
TypeChoice = Callable[[str, Quantization], "tuple[str, Quantization] | None"]


@dataclass(frozen=True, slots=True)
class Requantized:
    """A graph whose activations have other quantizations.

    Attributes:
        graph: the graph.
        pairs: each tensor before and after: activations, and constants that are data.
        count: how many activations.
        clips: how many results are clipped to the range that they had.
        edges: words on graph inputs and outputs that changed; "" if none did.
        intervals: the range of float values of tensors, by name, if only values within it count as lost.
    """

    graph: Graph
    pairs: tuple[tuple[Tensor, Tensor], ...]
    count: int
    clips: int
    edges: str
    intervals: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def clip_note(self) -> str:
        """Words on the clips; "" if there are none."""
        return f", {self.clips} of them clipped to their previous range" if self.clips else ""

    @property
    def growth(self) -> tuple[float, float]:
        """By how much steps grow, on average and at most."""
        found = [float((new.require_quantization().scale / old.require_quantization().scale).max()) for old, new in self.pairs]
        return float(np.mean(found)), max(found)

    def describe_change(self, words: str) -> Change:
        """Return what was done, in words, and what it costs."""
        costs = self.costs()
        said = f"{format_count(self.count, 'activation', words)}{self.edges}{self.clip_note}"
        text = f"{said}; steps are {self.growth[0]:.3g} times as large on average"
        return Change(f"{text}, {describe_worst(costs)}" if costs else f"{text}, without loss", costs=costs)

    def _used_quantization(self, old: Tensor) -> Quantization:
        """Return the quantization of a tensor, without the codes that it never takes."""
        q = old.require_quantization()
        if old.name not in self.intervals or not q.is_per_tensor:
            return q
        low, high = quantize(np.array(self.intervals[old.name]), q, old.dtype)
        return replace(q, quant_min=int(low), quant_max=int(high))

    def costs(self) -> tuple[Cost, ...]:
        """Of each tensor that loses something: of a constant by value, of an activation over its codes."""
        found = (
            tensor_cost(old, new)
            if old.is_constant
            else activation_cost(old.name, self._used_quantization(old), old.dtype, new.require_quantization(), new.dtype)
            for old, new in self.pairs
        )
        return tuple(cost for cost in found if cost is not None)


def cache_by_quantization(choose: TypeChoice) -> Choice:
    """Return a choice that is made once for each type and quantization."""
    known: dict[Hashable, tuple[str, Quantization] | None] = {}

    def choose_once(tensor: Tensor) -> tuple[str, Quantization] | None:
        quantization = tensor.require_quantization()
        key = (tensor.dtype, quantization.key)
        if key not in known:
            known[key] = choose(tensor.dtype, quantization)
        return known[key]

    return choose_once


def requantize_activations(
    graph: Graph,
    choose: Choice,
    *,
    dtypes: Collection[str],
    suffix: str,
    keep_io: bool,
    strictly: bool = False,
    wide_biases: bool = True,
) -> Requantized | None:
    """Give activations the quantizations that `choose` says; None if nothing changes.

    Biases move to the new scale of the products. What saturated at an end of the old range still does: by an activation, or a Clip where
    none says it. A Requantize stands where somebody needs the old quantization.

    Args:
        graph: what is changed.
        choose: the quantization of each.
        dtypes: of the tensors that are asked about.
        suffix: of the name of a tensor that stands next to its old form.
        keep_io: whether graph inputs and outputs stay as they are.
        strictly: whether a range may not even be a step longer than it was.
        wide_biases: whether biases of 32 bits next to 16-bit data may get 64.
    """
    graph = separate_roles(graph, dtypes)
    weights = find_weights(graph)
    idle = _find_only_converted(graph, keep_io)
    old: dict[str, Tensor] = {}
    changed: dict[str, Tensor] = {}
    for tensor in graph.tensors.values():
        if tensor.dtype not in dtypes or tensor.quantization is None or tensor.name in idle:
            continue
        chosen = None if tensor.is_constant and tensor.name in weights else choose(tensor)
        if chosen is not None and chosen != (tensor.dtype, tensor.quantization):
            old[tensor.name], changed[tensor.name] = tensor, requantize_tensor(tensor, *chosen[::-1])
    if not changed:
        return None
    states = _requantize_states(graph, changed)
    pairs = tuple((old[name], tensor) for name, tensor in changed.items())

    def is_kept(graph: Graph, op: Op) -> bool:
        return str(op["state"]) not in states if kind_of(op).rule == "state" else keeps_integers(graph, op)

    result, count = replace_quantizations(graph, changed, lambda tensor: suffix, keeps=is_kept, keep_io=keep_io, states=states)
    if result.ops == graph.ops and all(result[name] is tensor for name, tensor in graph.tensors.items()):
        return None
    result = with_biases(result, {*changed, *(result.tensors.keys() - graph.tensors.keys())}, suffix, wide=wide_biases)
    edges = changed_edges(graph, result)
    result, clips = _clip_to_old_ranges(result, {**old, **_twins(result, old, strictly)}, strictly)
    return Requantized(result, pairs, count, clips, edges)


def _requantize_states(graph: Graph, changed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the states that go along, with their first values: all that is read of them, or written to them, gets one quantization.

    Functions may name any of them, so that none goes along where there are some.
    """
    found: dict[str, list[Tensor | None]] = {}
    for op in graph.ops:
        if kind_of(op).rule == "state" and op["state"] in graph.states and not graph.functions:
            found.setdefault(str(op["state"]), []).extend(changed.get(name) for name in op.names)
    quantizations = {
        name: tensors[0]
        for name, tensors in found.items()
        if all(t is not None and tensors[0] is not None and t.shares_quantization(tensors[0]) for t in tensors)
    }
    return {
        name: requantize_tensor(graph.states[name], new.require_quantization(), new.dtype)
        for name, new in quantizations.items()
        if new is not None
    }


def keeps_integers(graph: Graph, op: Op) -> bool:
    """Whether the stored integers themselves matter to an operator.

    How an average rounds ties has no meaning with another quantization; what a state keeps has one quantization for all; a bias of 64
    bits, which only 16-bit data can have, follows.
    """
    unbiased = replace(op, inputs=op.inputs[:2]) if kind_of(op).has_weights else op
    return kind_of(op).rule in ("relabel", "state") or (not kind_of(op).averages and needs_storage(graph, unbiased))


def _find_only_converted(graph: Graph, keep_io: bool) -> set[str]:
    """Return tensors that have to stay, and that nothing else touches but conversions: these read and write any quantization."""
    held, free = ({*graph.inputs, *graph.outputs} if keep_io else set[str]()), set(graph.tensors)
    for op in graph.ops:
        if keeps_integers(graph, op):
            held.update(op.inputs, op.outputs)
        elif kind_of(op).rule != "convert":
            free.difference_update(op.inputs, op.outputs)
    return held & free


def _twins(graph: Graph, old: Mapping[str, Tensor], always: bool) -> dict[str, Tensor]:
    """Return the old forms of new tensors that stand before old ones, where something else reads the new ones, or always."""
    found: dict[str, Tensor] = {}
    readers = graph.consumers()
    for op in graph.ops:
        if kind_of(op).requantizes and op.inputs[0] not in old and op.name in old and (always or len(readers[op.inputs[0]]) > 1):
            found[op.inputs[0]] = old[op.name]
    return found


def _clip_to_old_ranges(graph: Graph, old: Mapping[str, Tensor], strictly: bool) -> tuple[Graph, int]:
    """Clip what operators round to the new quantizations to the ranges of the old ones; return the number of clipped tensors too."""
    rewriter, intervals = Rewriter(graph), infer_intervals(graph)
    clips = 0
    for op in rewriter:
        name = op.name if len(op.outputs) == 1 else ""
        bounds = _lost_bounds(old[name], graph[name], intervals[name], strictly) if name in old and kind_of(op).rounds else (None, None)
        if bounds == (None, None):
            continue
        whole = rewriter.add(f"{name}/whole", graph[name])
        limited = rewriter.clip(whole, [None if bound is None else float(bound) for bound in bounds], name, op.source)
        rewriter.replace(op, replace(op, outputs=(whole,)), limited)
        clips += 1
    return (fuse_clips(rewriter.finish()), clips) if clips else (graph, 0)


def _lost_bounds(old: Tensor, new: Tensor, interval: Interval, strictly: bool) -> tuple[np.float32 | None, np.float32 | None]:
    """Return the ends of the old range that values with the new quantization go beyond by more than a step of the coarser one, as values of
    the new quantization."""
    before, after = old.quantization, new.per_tensor
    if before is None or after is None or old.shares_quantization(new):
        return None, None
    ends = quantize(dequantize(np.array(before.limits(old.dtype)), before), after, new.dtype).astype(np.int64)
    values = quantize(np.array(interval), after, new.dtype).astype(np.int64)
    step = 0.0 if strictly else max(1.0, before.step / after.step)
    beyond = ends[0] - values[0] > step, values[1] - ends[1] > step
    low, high = (np.float32(int(end) - after.point) * after.scale[0] for end in ends)
    return low if beyond[0] else None, high if beyond[1] else None


def infer_intervals(graph: Graph) -> dict[str, Interval]:
    """Return the interval of each tensor's float values; with a quantization of several scales, or none that is known, any value."""
    found = {tensor.name: _tensor_interval(tensor) for tensor in graph.tensors.values()}
    for op in graph.ops:
        for name in kind_of(op).results_of(op):
            if name:
                found[name] = _round_interval(_clip_to_activation(op, kind_of(op).interval(graph, op, found)), graph[name])
    return found


def group_tied_tensors(graph: Graph) -> dict[str, str]:
    """Return a name that all tensors share which have to have one quantization, since operators move integers between them; for each
    quantized tensor."""
    above: dict[str, str] = {}

    def top(name: str) -> str:
        while above.get(name, name) != name:
            name = above[name]
        return name

    for op in graph.ops:
        if kind_of(op).rule == "move":
            names = [name for name in (*kind_of(op).moved_inputs(op), *kind_of(op).results_of(op)) if graph.is_quantized(name)]
            above.update({top(name): top(names[0]) for name in names})
    return {tensor.name: top(tensor.name) for tensor in graph.tensors.values() if tensor.is_quantized}


def infer_joint_intervals(graph: Graph) -> dict[str, Interval]:
    """Return the interval of each quantized tensor, with those that are tied to it."""
    found, top = infer_intervals(graph), group_tied_tensors(graph)
    groups: dict[str, Interval] = {}
    for name, head in top.items():
        groups[head] = hull([groups.get(head, found[name]), found[name]])
    return {name: groups[head] for name, head in top.items()}


def _tensor_interval(tensor: Tensor) -> Interval:
    """Of a constant its values, of what nothing computes its quantization."""
    q = tensor.quantization
    if q is not None and "float" in tensor.dtype:
        return ANY
    if tensor.data is not None and tensor.data.size and tensor.data.dtype.kind in "fiu":
        real = dequantize(tensor.data, q) if q is not None else tensor.data.astype(np.float64)
        return (float(real.min()), float(real.max())) if np.isfinite(real).all() else ANY
    if q is None:
        return ANY
    low, high = affine_range(q, tensor.dtype)
    return float(low.min()), float(high.max())


def _clip_to_activation(op: Op, interval: Interval) -> Interval:
    low, high = interval_of(activation_bounds(op))
    return min(max(interval[0], low), high), min(max(interval[1], low), high)


def _round_interval(interval: Interval, tensor: Tensor) -> Interval:
    """Return the values of a quantization that float values of an interval are rounded to."""
    q = tensor.quantization
    if q is None or "float" in tensor.dtype:
        return interval if q is None else ANY
    if not q.is_per_tensor:
        return _tensor_interval(tensor)
    low, high = dequantize(quantize(np.array(interval), q, tensor.dtype), q)
    return float(low), float(high)
