"""A canonical graph as the JSON document of a .qgraph file (docs/qgraph.schema.json), which `qconvert inspect --json` prints too.

Numbers survive: a float is printed with the digits that identify it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from qconvert.graph import Graph, Op, Quantization, Tensor

__all__ = ["STORED_AS", "VERSION", "stored_arrays", "to_document"]

VERSION = 1

#: Types that safetensors lacks -> the one-byte type that stores them, one element a byte; a float4e2m1 as its four bits.
STORED_AS = {"int2": "int8", "uint2": "uint8", "int4": "int8", "uint4": "uint8", "float4e2m1": "uint8"}


def stored_arrays(graph: Graph) -> dict[str, Tensor]:
    """The constants that are stored as arrays, by their keys in the safetensors file: their names, if these are free."""
    found: dict[str, Tensor] = {}
    for tensor in _constants(graph):
        if tensor.dtype == "string":
            continue
        # "__metadata__" is safetensors' own key; functions and states may have tensors of the same names.
        key, number = "__metadata___data" if tensor.name == "__metadata__" else tensor.name, 1
        while key in found or (key != tensor.name and key in graph.tensors):
            key, number = f"{tensor.name}_{number}", number + 1
        found[key] = tensor
    return found


def _constants(graph: Graph) -> Iterator[Tensor]:
    yield from graph.constants()
    yield from graph.states.values()
    for inner in graph.functions.values():
        yield from inner.constants()


def to_document(graph: Graph) -> dict[str, Any]:
    """The graph as JSON values, with keys in place of the constants' data; strings stand in the document."""
    keys = {id(tensor): key for key, tensor in stored_arrays(graph).items()}
    document = {"qgraph": VERSION, **_graph_document(graph, keys)}
    if graph.functions:
        document["functions"] = {name: _graph_document(inner, keys) for name, inner in graph.functions.items()}
    if graph.states:
        document["states"] = [_tensor_document(state, keys) for state in graph.states.values()]
    return document


def _graph_document(graph: Graph, keys: Mapping[int, str]) -> dict[str, Any]:
    return {
        "name": graph.name,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "signatures": [
            {"key": s.key, "inputs": dict(s.inputs), "outputs": dict(s.outputs), **({"function": s.function} if s.function else {})}
            for s in graph.signatures
        ],
        "metadata": dict(graph.metadata),
        "ops": [_op_document(op) for op in graph.ops],
        "tensors": [_tensor_document(tensor, keys) for tensor in graph.tensors.values()],
    }


def _op_document(op: Op) -> dict[str, Any]:
    attributes = {
        name: [_value_document(item) for item in value] if isinstance(value, tuple) else _value_document(value)
        for name, value in op.attributes.items()
    }
    return {
        "kind": op.kind,
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
        "attributes": attributes,
        "source": op.source,
    }


def _value_document(value: Any) -> Any:
    """JSON has no infinity and no NaN: these become {"float": "inf"} and the like."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    return value


def _tensor_document(tensor: Tensor, keys: Mapping[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": None if tensor.shape is None else list(tensor.shape),
    }
    if tensor.quantization is not None:
        found["quantization"] = _quantization_document(tensor.quantization)
    if id(tensor) in keys:
        found["data"] = keys[id(tensor)]
    elif tensor.data is not None:
        found["strings"] = [str(value) for value in tensor.data.reshape(-1)]
    return found


def _quantization_document(q: Quantization) -> dict[str, Any]:
    limits = {"quant_min": q.quant_min, "quant_max": q.quant_max}
    return {
        "scale": [_value_document(float(value)) for value in q.scale.reshape(-1)],
        "zero_point": [int(value) for value in q.zero_point.reshape(-1)],
        "axis": q.axis,
        "block_size": q.block_size,
        **{name: limit for name, limit in limits.items() if limit is not None},
    }
