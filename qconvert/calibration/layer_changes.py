"""Layers changed for the sake of their quantization (M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction", arXiv 1906.04721): cross-layer equalization before rounding, and bias correction after it, from means that were measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from qconvert.errors import format_count, format_verb
from qconvert.graph import Array, Arrays, Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.products import count_groups, is_dynamic
from qconvert.rewriting import Rewriter


class ChannelMeans:
    """The mean of each channel of a tensor over runs. Shown to observe() like an Observer; merge() is exact up to rounding in float64.

    Args:
        axis: that of the channels.
    """

    passes = 1

    def __init__(self, axis: int = 1) -> None:
        self.axis, self.count = axis, 0
        self._sums = np.zeros(0)

    def next_pass(self) -> None:
        """Means are known after one pass."""

    def update(self, values: Array) -> None:
        """Takes the values of one run."""
        others = tuple(i for i in range(values.ndim) if i != self.axis % values.ndim)
        sums = values.sum(axis=others, dtype=np.float64)
        self._sums = self._sums + sums if self.count else sums
        self.count += values.size // max(sums.size, 1)

    def merge(self, other: Self) -> None:
        """Takes in what another one saw."""
        self._sums = self._sums + other._sums if self.count and other.count else other._sums if other.count else self._sums
        self.count += other.count

    def means(self) -> Array:
        """float64, of each channel."""
        return np.asarray(self._sums / max(self.count, 1))


def correct_biases(graph: Graph, shifts: Arrays) -> tuple[Graph, tuple[str, ...]]:
    """Adds to the biases of layers in float, before they are quantized.

    Args:
        graph: a float network.
        shifts: name of what a layer computes, before any activation -> what to add to each output channel: the mean of the float network
            less that of the quantized one.

    Returns:
        The graph, and what was changed in words; layers that have no constant bias to add to are named.
    """
    rewriter, notes = Rewriter(graph), list[str]()
    for op in rewriter:
        shift = shifts.get(op.name) if op.outputs else None
        if shift is None:
            continue
        reason = _obstacle(graph, op)
        if reason:
            notes.append(f"the bias of {op} stays: {reason}")
            continue
        old = op.input(2)
        bias = np.zeros(1) if not old else np.asarray(graph.constant(old), np.float64).reshape(-1)
        data = (bias + np.asarray(shift, np.float64).reshape(-1)).astype(np.float32)
        wanted = f"{old}/corrected" if old else f"{op.name}/bias"
        name = rewriter.replace_constant(old, Tensor("", "float32", data.shape, data), wanted)
        rewriter.replace(op, op.with_input(2, name))
    return rewriter.finish(), (f"{format_count(rewriter.replaced, 'bias', 'are')} corrected", *notes)


def _obstacle(graph: Graph, op: Op) -> str:
    """Why nothing can be added to the bias of an operator; "" if it can."""
    if not kind_of(op).has_weights:
        return "it is not a layer with a bias"
    bias = op.input(2)
    if bias and (graph.constant(bias) is None or graph[bias].dtype != "float32" or graph[bias].is_quantized):
        return "it is not a float32 constant"
    return "an activation is fused into the operator, after the bias" if op["activation"] else ""


#: Layers in a row are equalized again and again until no factor is farther from 1 than this, or so often.
_NEAR, _ROUNDS = 1e-3, 50


def equalize(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Equalizes all pairs of layers in float, one after the other, until all factors are close to 1.

    Args:
        graph: a float network; layers whose weights are not float32 constants of their own stay as they are.

    Returns:
        The graph, and what was changed in words.
    """
    pairs = list(_pairs(graph))
    if not pairs:
        return graph, ("no two layers have only Relus and pools between them: nothing is equalized",)
    layers = {number: _Layer.of(graph, graph.ops[number]) for pair in pairs for number in pair}
    before = max(_range_ratio(layers[first].outgoing()) for first, _ in pairs)
    for _ in range(_ROUNDS):
        if max(_equalize_pair(layers[first], layers[second]) for first, second in pairs) <= 1 + _NEAR:
            break
    after = max(_range_ratio(layers[first].outgoing()) for first, _ in pairs)
    ranges = f"ranges of output channels differ by a factor of {after:.3g} at most, before by {before:.3g}"
    return _with_layers(graph, layers), (
        f"{format_count(len(pairs), 'pair')} of layers {format_verb(len(pairs), 'are')} equalized: {ranges}",
    )


def _with_layers(graph: Graph, layers: Mapping[int, _Layer]) -> Graph:
    """The graph with these parameters of its operators; a bias that something else reads too stays next to."""
    rewriter = Rewriter(graph)
    for number, layer in layers.items():
        op = graph.ops[number]
        rewriter.define(replace(graph[op.inputs[1]], data=layer.weights.astype(np.float32)))
        if layer.bias is not None:
            bias = replace(graph[op.inputs[2]], shape=layer.bias.shape, data=layer.bias.astype(np.float32))
            rewriter.replace(op, op.with_input(2, rewriter.replace_constant(bias.name, bias, f"{bias.name}/equalized")))
    return rewriter.finish()


@dataclass(slots=True)
class _Layer:
    """The parameters of a layer, in float64.

    Attributes:
        weights: (outputs, inputs of a group, space).
        groups: how many groups of channels there are.
        bias: one value for each output, or None.
    """

    weights: Array
    groups: int
    bias: Array | None

    @classmethod
    def of(cls, graph: Graph, op: Op) -> _Layer:
        weights, bias = graph.constant(op.inputs[1]), graph.constant(op.inputs[2]) if op.has(2) else None
        assert weights is not None
        wide = None if bias is None else np.broadcast_to(bias.reshape(-1), weights.shape[:1]).astype(np.float64)
        return cls(weights.astype(np.float64), count_groups(op), wide)

    def outgoing(self) -> Array:
        """The largest magnitude among the weights of each output."""
        return np.asarray(np.abs(self.weights).reshape(self.weights.shape[0], -1).max(axis=1, initial=0))

    def incoming(self) -> Array:
        """That of each input, among all weights that read it."""
        grouped = np.abs(self._grouped_weights())
        return np.asarray(grouped.max(axis=(1, *range(3, grouped.ndim)), initial=0).reshape(-1))

    def _grouped_weights(self) -> Array:
        """(groups, outputs of a group, inputs of a group, space)"""
        return self.weights.reshape(self.groups, -1, *self.weights.shape[1:])

    def divide(self, factors: Array) -> None:
        """The outputs."""
        self.weights = self.weights / factors.reshape(-1, *[1] * (self.weights.ndim - 1))
        self.bias = None if self.bias is None else self.bias / factors

    def multiply(self, factors: Array) -> None:
        """What is made of the inputs."""
        grouped = self._grouped_weights()
        shaped = factors.reshape(self.groups, 1, -1, *[1] * (grouped.ndim - 3))
        self.weights = (grouped * shaped).reshape(self.weights.shape)


def _equalize_pair(first: _Layer, second: _Layer) -> float:
    """Equalizes two layers; gives the factor that is farthest from 1."""
    outgoing, incoming = first.outgoing(), second.incoming()
    known = (outgoing > 0) & (incoming > 0)  # a channel without weights on one side stays
    factors = np.sqrt(np.where(known, outgoing, 1) / np.where(known, incoming, 1))
    first.divide(factors)
    second.multiply(factors)
    return float(np.maximum(factors, 1 / factors).max(initial=1.0))


def _range_ratio(ranges: Array) -> float:
    """By what factor the ranges of channels differ."""
    ranges = ranges[ranges > 0]
    return float(ranges.max() / ranges.min()) if ranges.size else 1.0


def _pairs(graph: Graph) -> Iterator[tuple[int, int]]:
    """The numbers of layers that can be equalized, in order."""
    readers = graph.consumers()
    numbers = {id(op): number for number, op in enumerate(graph.ops)}
    for number, op in enumerate(graph.ops):
        following = _layer_after(graph, op, readers) if _is_layer(graph, op, readers) else None
        if following is not None:
            yield number, numbers[id(following)]


def _layer_after(graph: Graph, first: Op, readers: Mapping[str, list[Op]]) -> Op | None:
    """The only layer that reads another's result, through operators that keep channels separate."""
    op = first
    while op.attributes.get("activation", "") in ("", "relu") and len(op.outputs) == 1:
        name = op.name
        if name in graph.public or len(readers.get(name, ())) != 1 or readers[name][0].inputs[0] != name:
            return None
        op = readers[name][0]
        if _is_layer(graph, op, readers):
            weights, own = graph[op.inputs[1]].static_shape, graph[first.inputs[1]].static_shape
            assert weights is not None and own is not None
            return op if weights[1] * count_groups(op) == own[0] else None
        if not kind_of(op).scales_channels:
            return None
    return None


def _is_layer(graph: Graph, op: Op, readers: Mapping[str, list[Op]]) -> bool:
    """Whether an operator has float32 weights that nothing else reads, and a constant float32 bias if any."""
    if not kind_of(op).has_weights or is_dynamic(op):
        return False
    bias = op.input(2)
    parameters = [graph[name] for name in (op.inputs[1], bias) if name]
    is_plain = all(tensor.is_constant and tensor.dtype == "float32" and not tensor.is_quantized for tensor in parameters)
    own = len(readers[op.inputs[1]]) == 1 and op.inputs[1] not in graph.public
    return is_plain and own and not graph[op.inputs[0]].is_quantized and not graph[op.name].is_quantized
