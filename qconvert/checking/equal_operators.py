"""Operators that a graph has twice: of one kind, with the same attributes, on the same operands."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from qconvert.graph import Graph, Op, Tensor, integer_range
from qconvert.operators import kind_of


def find_representatives(graph: Graph, preferred: Collection[str] = ()) -> dict[str, str]:
    """Each computed tensor with the first `preferred` one, else the first, that an operator of the same kind computes from the same
    operands onto the same steps."""
    equals: dict[Hashable, str] = {}
    found: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for op in graph.ops:
        what = _describe(op, found)
        for index, name in enumerate(op.outputs):
            if name and not kind_of(op).is_structural:
                first = found[name] = equals.setdefault((what, index, _values_key(graph[name])), name)
                if name in preferred:
                    chosen.setdefault(first, name)
    return {name: chosen.get(first, first) for name, first in found.items()}


def _describe(op: Op, first: Mapping[str, str]) -> Hashable:
    """Kind, inputs and attributes of an operator: equal for two operators that compute the same."""
    return op.kind, tuple(first.get(name, name) for name in op.inputs), repr(sorted(op.attributes.items()))


def _values_key(tensor: Tensor) -> Hashable:
    """What says which values a tensor can hold: int8 and uint8 may have the same."""
    quantization = tensor.quantization
    if quantization is None or not quantization.is_per_tensor or tensor.dtype not in ("int8", "uint8", "int16", "uint16"):
        return tensor.dtype, quantization and quantization.key
    low, high = integer_range(tensor.dtype)
    return high - low, quantization.step, quantization.point - low, quantization.quant_min, quantization.quant_max
