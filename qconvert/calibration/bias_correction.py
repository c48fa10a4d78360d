"""Bias correction: what rounding weights adds to the mean of each output channel is taken off its bias.

M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (arXiv 1906.04721, section 4.2): a layer with
rounded weights W + e gives E[(W + e) x] = E[W x] + e E[x], so its outputs are off by e E[x] on average. The empirical way measures this as
the difference of means of both networks on data (their appendix D); the analytic one takes E[x] from the batch normalization before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import numpy as np

from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.operators import kind_of

__all__ = ["ChannelMeans", "analytic_shifts", "clipped_normal_means", "correct_biases", "expected_shifts", "normalized_means"]


class ChannelMeans:
    """The mean of each channel of a tensor over runs: what empirical correction compares. merge() is exact up to rounding in float64.

    Args:
        axis: that of the channels.
    """

    def __init__(self, axis: int = 1) -> None:
        self.axis, self.count = axis, 0
        self._sums = np.zeros(0)

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


def expected_shifts(weights: Array, rounded: Array, means: Array, groups: int = 1) -> Array:
    """The analytic correction of a layer: (W - rounded W) E[x] of each output channel, to be added to its bias.

    Padding is not taken into account: at borders fewer weights meet data.

    Args:
        weights: real ones, (outputs, inputs of a group, space).
        rounded: the same after rounding, as float values.
        means: E[x] of each input channel.
        groups: of a convolution.
    """
    error = (weights.astype(np.float64) - rounded).reshape(groups, -1, weights.shape[1], math.prod(weights.shape[2:])).sum(axis=3)
    return np.asarray(np.einsum("goi,gi->go", error, np.asarray(means, np.float64).reshape(groups, -1)).reshape(-1))


def analytic_shifts(graph: Graph, rounded: Mapping[str, Array], means: Mapping[str, Array]) -> dict[str, Array]:
    """expected_shifts() of every layer that reads data with known means, by the name of what it computes: for correct_biases().

    Args:
        graph: a float network.
        rounded: name of weights -> what rounding makes of them, as float values.
        means: name of a tensor -> E[x] of each of its channels, as of normalized_means() or ChannelMeans.
    """
    found = {}
    for op in graph.ops:
        if kind_of(op).has_weights and op.inputs[0] in means and op.inputs[1] in rounded:
            weights = graph.constant(op.inputs[1])
            if weights is not None:
                groups = 1 if op.kind == "Gemm" else int(op["group"])
                found[op.outputs[0]] = expected_shifts(weights, rounded[op.inputs[1]], means[op.inputs[0]], groups)
    return found


def clipped_normal_means(means: Array, deviations: Array, lowest: float = 0.0, highest: float = math.inf) -> Array:
    """E[x] of normal values after a Relu, or a Clip to [lowest, highest] (ibid., appendix C).

    Args:
        means: of the normal values, such as the B of a batch normalization.
        deviations: such as its scale.
        lowest: -infinity for none.
        highest: infinity for none.
    """
    means, deviations = np.asarray(means, np.float64), np.abs(np.asarray(deviations, np.float64))
    safe = np.where(deviations > 0, deviations, 1.0)
    low, high = (lowest - means) / safe, (highest - means) / safe
    below, above = _normal_cdf(low), 1 - _normal_cdf(high)
    inside = means * (1 - below - above) + safe * (_density(low) - _density(high))
    ends = (lowest * below if lowest > -math.inf else 0.0) + (highest * above if highest < math.inf else 0.0)
    return np.asarray(np.where(deviations > 0, inside + ends, np.clip(means, lowest, highest)))


def _normal_cdf(values: Array) -> Array:
    return np.asarray([(1 + math.erf(value / math.sqrt(2))) / 2 for value in values.reshape(-1)]).reshape(values.shape)


def _density(values: Array) -> Array:
    return np.asarray(np.exp(-np.square(values) / 2) / math.sqrt(2 * math.pi))


def normalized_means(graph: Graph) -> dict[str, Array]:
    """E[x] of each channel of the tensors after batch normalizations, and after a Relu or Clip there: for expected_shifts().

    Folding (fold_batch_norm) has to come later: it takes the statistics away. Names of tensors stay.
    """
    found: dict[str, Array] = {}
    normal: dict[str, tuple[Array, Array]] = {}
    for op in graph.ops:
        if op.kind == "BatchNormalization":
            scale, mean = (graph.constant(name) for name in op.inputs[1:3])
            if scale is not None and mean is not None:
                normal[op.outputs[0]] = mean, scale
                found[op.outputs[0]] = mean.astype(np.float64)
        elif kind_of(op).clips and op.inputs[0] in normal:
            bounds = _bounds(graph, op)
            if bounds is not None:
                found[op.outputs[0]] = clipped_normal_means(*normal[op.inputs[0]], *bounds)
    return found


def _bounds(graph: Graph, op: Op) -> tuple[float, float] | None:
    """What an operator clips to; None if that is known only when it runs."""
    if op.kind == "Relu":
        return 0.0, math.inf
    low, high = (graph.constant(name) if name else None for name in (*op.inputs[1:], "", "")[:2])
    if any(name and graph.constant(name) is None for name in op.inputs[1:]):
        return None
    return (-math.inf if low is None else float(low.item())), (math.inf if high is None else float(high.item()))


def correct_biases(graph: Graph, shifts: Mapping[str, Array]) -> tuple[Graph, tuple[str, ...]]:
    """Adds to the biases of layers in float, before they are quantized.

    Args:
        graph: a float network.
        shifts: name of what a layer computes, before any activation -> what to add to each output channel: the mean of the float network
            less that of the quantized one, or expected_shifts().

    Returns:
        The graph, and what was changed in words; layers that have no constant bias to add to are named.
    """
    made: dict[str, Tensor] = {}
    ops, names, readers, notes = list(graph.ops), graph.names(made), graph.consumers(), list[str]()
    count = 0
    for number, op in enumerate(graph.ops):
        shift = shifts.get(op.outputs[0]) if op.outputs else None
        if shift is None:
            continue
        reason = _obstacle(graph, op)
        if reason:
            notes.append(f"the bias of {op} stays: {reason}")
            continue
        old = op.inputs[2] if len(op.inputs) > 2 else ""
        bias = np.zeros(1) if not old else np.asarray(graph.constant(old), np.float64).reshape(-1)
        data = (bias + np.asarray(shift, np.float64).reshape(-1)).astype(np.float32)
        shared = not old or len(readers[old]) > 1 or old in graph.public
        name = names.fresh(f"{old or op.outputs[0]}/{'corrected' if old else 'bias'}") if shared else old
        made[name] = Tensor(name, "float32", data.shape, data)
        ops[number] = replace(op, inputs=(*op.inputs[:2], name, *op.inputs[3:]))
        count += 1
    return graph.evolve(tensors=made.values(), ops=ops), (f"{count} biases are corrected", *notes)


def _obstacle(graph: Graph, op: Op) -> str:
    """Why nothing can be added to the bias of an operator; "" if it can."""
    if not kind_of(op).has_weights:
        return "it is not a layer with a bias"
    bias = op.inputs[2] if len(op.inputs) > 2 else ""
    if bias and (graph.constant(bias) is None or graph[bias].dtype != "float32" or graph[bias].is_quantized):
        return "it is not a float32 constant"
    return "an activation is fused into the operator, after the bias" if op["activation"] else ""
