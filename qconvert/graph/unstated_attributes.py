"""Attributes and limits that a file cannot state: a writer notes them in the metadata (STATED_ATTRIBUTES, STATED_LIMITS)."""

from __future__ import annotations

from collections.abc import Callable

from qconvert.graph.activations import ACTIVATIONS, simplest_activation
from qconvert.graph.schema import Graph, Op

__all__ = ["find_unstated_attributes", "narrow_constants"]


def find_unstated_attributes(graph: Graph, is_decomposed: Callable[[Op], bool] = lambda op: False) -> dict[str, dict[str, str]]:
    """Activations that their quantization implies or simplifies, and the ties of plain averages, by the operator's result.

    Args:
        graph: that is written.
        is_decomposed: whether an AveragePool is written in a form that says how it rounds.
    """
    found: dict[str, dict[str, str]] = {}
    for op in graph.ops:
        result = graph[op.outputs[0]] if op.outputs and op.outputs[0] else None
        if result is None or result.quantization is None or not result.quantization.is_per_tensor or "float" in result.dtype:
            continue
        name = str(op.attributes.get("activation", ""))
        if name and simplest_activation(result, ACTIVATIONS[name]) != name:
            found.setdefault(result.name, {})["activation"] = name
        if op.kind == "AveragePool" and op["arithmetic"] in ("ties_up", "ties_away") and not is_decomposed(op):
            found.setdefault(result.name, {})["arithmetic"] = str(op["arithmetic"])
    return found


def narrow_constants(graph: Graph) -> dict[str, tuple[int | None, int | None]]:
    """The smallest and largest stored value of constants that use a part of their range (weights without -128), None for the type's."""
    quantizations = ((tensor.name, tensor.quantization) for tensor in graph.constants())
    return {
        name: (quantization.quant_min, quantization.quant_max)
        for name, quantization in quantizations
        if quantization is not None and (quantization.quant_min is not None or quantization.quant_max is not None)
    }
