"""A graph as plain data for a page: operators and tensors by number, so that no name of a model is ever a key or a piece of code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.functions import all_graphs
from qconvert.reports.histograms import Bars, bars_of
from qconvert.reports.tensor_texts import format_quantization, format_shape
from qconvert.tables import format_text

__all__ = ["classify_execution", "graph_document"]

Bins = Mapping[str, Bars]


def graph_document(title: str, graph: Graph, marks: Mapping[str, str], bars: Bins) -> dict[str, Any]:
    """A network and its functions.

    Args:
        title: what it is, such as "source".
        graph: the network.
        marks: what was found of operators, one of findings.CLASSES, by the tensor that they compute.
        bars: histograms of activations, by the tensor.

    Returns:
        {"title", "name", "parts": one for the network and each function, {"name", "inputs", "outputs", "ops", "tensors"}}
    """
    parts = [_part(name, part, marks, bars) for name, part in all_graphs(graph)]
    return {"title": title, "name": format_text(graph.name), "parts": parts}


def _part(name: str, graph: Graph, marks: Mapping[str, str], bars: Bins) -> dict[str, Any]:
    order = {tensor: index for index, tensor in enumerate(graph.tensors)}
    return {
        "name": format_text(name),
        "inputs": [order[item] for item in graph.inputs],
        "outputs": [order[item] for item in graph.outputs],
        "ops": [_op(op, graph, order, marks) for op in graph.ops],
        "tensors": [_tensor(tensor, bars) for tensor in graph.tensors.values()],
    }


def _op(op: Op, graph: Graph, order: Mapping[str, int], marks: Mapping[str, str]) -> dict[str, Any]:
    return {
        "kind": format_text(op.kind),
        "source": format_text(op.source),
        "in": [order[item] if item else -1 for item in op.inputs],
        "out": [order[item] for item in op.outputs if item],
        "attributes": {format_text(key): format_text(value) for key, value in op.attributes.items()},
        "runs": classify_execution(graph, op),
        "mark": next((marks[item] for item in op.outputs if item in marks), ""),
    }


def classify_execution(graph: Graph, op: Op) -> str:
    """ "integer" where data and results have quantizations, "converts", "moves", or "float"."""
    if op.kind in ("Quantize", "Dequantize", "Requantize"):
        return "converts"
    if kind_of(op).rule in ("move", "relabel", "state", "control"):
        return "moves"
    results: Sequence[str] = [item for item in op.outputs if item]
    return "integer" if results and all(graph[item].is_quantized or "float" not in graph[item].dtype for item in results) else "float"


def _tensor(tensor: Tensor, bars: Bins) -> dict[str, Any]:
    scale, zero_point = format_quantization(tensor)
    counted = bars.get(tensor.name) if tensor.data is None else bars_of(tensor, tensor.data)
    found: dict[str, Any] = {"name": format_text(tensor.name), "type": tensor.dtype, "shape": format_shape(tensor.shape)}
    if tensor.is_constant:
        found["constant"] = True
    if scale:
        found |= {"scale": scale, "zero_point": zero_point}
    if counted is not None:
        found["bars"] = {key: value for key, value in asdict(counted).items() if value not in ((), False, 0) or key in ("low", "high")}
    return found
