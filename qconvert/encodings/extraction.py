"""The graph without quantization that encodings belong to, and these encodings: the reverse of the pass apply_encodings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.encodings.types import Encoding, Encodings, Place, QParams
from qconvert.errors import UnsupportedError
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of

__all__ = ["extract_encodings"]


def extract_encodings(graph: Graph) -> tuple[Graph, Encodings]:
    """A graph in float, and the quantizations of all its tensors, with the integers of constants.

    Every tensor keeps its name. Inputs and outputs are real. Quantize, Dequantize and Requantize are gone, or an Identity where both
    sides are seen.

    Raises:
        UnsupportedError: the graph has functions, states, or operators that are nothing in float.
    """
    if graph.functions or graph.states:
        raise UnsupportedError("quantization can be removed from graphs without functions and states only", rule="subgraphs-not-covered")
    for op in graph.ops:
        quantized = any(graph[name].is_quantized for name in (*op.inputs, *op.outputs) if name)
        if kind_of(op).rule in ("relabel", "opaque", "stored") and quantized:
            raise UnsupportedError(
                f"{op.kind} takes integers as they are stored, so its quantization cannot be removed",
                where=str(op),
                rule="integers-required",
            )
    entries = {Place(name): _encoding(tensor) for name, tensor in graph.tensors.items() if tensor.is_quantized}
    tensors = [_dequantize_tensor(tensor) for tensor in graph.tensors.values() if tensor.is_quantized]
    ops = [replace(op, kind="Identity") if kind_of(op).rule == "convert" else _drop_arithmetic(op) for op in graph.ops]
    real = graph.evolve(tensors=tensors, ops=ops)
    origin = f"the model {graph.name!r}" if graph.name else "a quantized model"
    return _without_identities(real, entries), Encodings(entries, origin)


def _encoding(tensor: Tensor) -> Encoding:
    assert tensor.quantization is not None
    return Encoding(QParams(tensor.dtype, tensor.quantization), integers=tensor.data)


def _dequantize_tensor(tensor: Tensor) -> Tensor:
    assert tensor.quantization is not None
    data = None if tensor.data is None else dequantize(tensor.data, tensor.quantization).astype(np.float32)
    return Tensor(tensor.name, "float32", tensor.shape, data)


def _drop_arithmetic(op: Op) -> Op:
    """The operator without what it says of integers alone."""
    if "arithmetic" not in op.attributes:
        return op
    return replace(op, attributes={name: value for name, value in op.attributes.items() if name != "arithmetic"})


def _without_identities(graph: Graph, entries: dict[Place, Encoding]) -> Graph:
    """Conversions are nothing in float: both sides are one tensor, where one of them has no quantization.

    It has the name that is seen outside, or that of the value before, and the quantization. An Identity between two quantizations, or two
    names that are seen, stays; between quantizations it is a Requantize again once they are applied.
    """
    producers, readers = graph.producers(), graph.consumers()
    names: dict[str, str] = {}
    kept = []
    for op in graph.ops:
        if op.kind != "Identity":
            kept.append(op)
            continue
        source, result = _final_name(op.inputs[0], names), op.outputs[0]
        quantizations = [entries.get(Place(source)), entries.get(Place(result))]
        seen = source in graph.public or source not in producers
        rounds = quantizations[1] is not None and (quantizations[0] is not None or source in graph.public or len(readers[op.inputs[0]]) > 1)
        if rounds or graph[source].is_constant or (seen and result in graph.public):
            kept.append(op)
            continue
        old, new = (source, result) if result in graph.public else (result, source)
        names[old] = new
        encoding = quantizations[0] or quantizations[1]
        entries.pop(Place(old), None)
        if encoding is not None:
            entries[Place(new)] = encoding
    ops = [replace(op, inputs=_rename_tensors(op.inputs, names), outputs=_rename_tensors(op.outputs, names)) for op in kept]
    return graph.evolve(ops=ops)


def _rename_tensors(listed: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(_final_name(name, names) for name in listed)


def _final_name(name: str, names: Mapping[str, str]) -> str:
    """The name at the end of a chain of new names."""
    while name in names:
        name = names[name]
    return name
