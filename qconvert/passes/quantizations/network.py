"""A whole network with other quantizations: its weights, then its activations of 4, 8 and 16 bits, and biases with both."""

from __future__ import annotations

from collections.abc import Callable

from qconvert.graph import Graph, Tensor
from qconvert.passes.linear import WeightUse
from qconvert.passes.quantizations.activations import Choice, cache_by_quantization, requantize_activations
from qconvert.passes.quantizations.weights import Rescaled, describe_weights, requantize_weights
from qconvert.passes.stored_types import SIGNED, UNSIGNED
from qconvert.plugins import Change

__all__ = ["requantize_network"]


def requantize_network(
    graph: Graph,
    weights: Callable[[WeightUse, Tensor], Rescaled | None],
    activation: Choice,
    *,
    suffix: str,
    words: tuple[str, str],
    edges: str,
) -> tuple[Graph, tuple[Change | str, ...]]:
    """The graph, and what was changed.

    Args:
        graph: what is changed.
        weights: those for each use by a linear operator; None if they stay.
        activation: the quantization of each activation, by its type and quantization; None if it stays.
        suffix: of the names of what stands next to its old form.
        words: what is true of the weights, and of the activations, then.
        edges: "keep" leaves graph inputs and outputs as they are.
    """
    graph, found = requantize_weights(graph, weights, suffix)
    notes: list[Change | str] = [*describe_weights(found, words[0])]
    requantized = requantize_activations(
        graph, cache_by_quantization(activation), dtypes=(*UNSIGNED, *SIGNED), suffix=suffix, keep_io=edges == "keep"
    )
    if requantized is None:
        return graph, tuple(notes)
    return requantized.graph, (*notes, requantized.describe_change(words[1]))
