"""The codes that a tensor of the source can have, and those that source and result map to different codes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.checking.proof.constants import has_byte_codes
from qconvert.checking.proof.elements import Elements
from qconvert.checking.value_ranges import limits_of
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op
from qconvert.operators import kind_of

__all__ = ["describe_other_codes", "is_clipped_sum"]

#: What a bound may be off the middle between two codes by rounding alone, in steps.
_CLOSE = 1e-3


def describe_other_codes(graph: Graph, writers: Mapping[str, Op], own: Elements, given: Elements) -> str:
    """In words, which codes of their root make other ones in the result, of those that it can have; "" if none does.

    Args:
        graph, writers: the source, and what computes each of its tensors.
        own, given: elements of one root, of source and result.
    """
    if own.codes is None and given.codes is None:
        return ""
    tensor = graph[own.root]
    codes = codes_of(tensor.dtype).astype(np.int64)
    a, b = (codes if side.codes is None else side.codes for side in (own, given))
    differ = np.flatnonzero((a != b) & _find_possible_codes(graph, writers, own.root, codes))
    if not differ.size:
        return ""
    code = codes[differ[0]]
    at = f"code {code} of {own.root!r}" if differ.size == 1 else f"{differ.size} codes of {own.root!r}, such as {code}"
    by = ", ".join(f"{op.kind} {op.outputs[0]!r}" for side in (own, given) for op in side.by[-1:])
    return f"{at}: {a[differ[0]]} in the source, {b[differ[0]]} in the result{f' ({by})' if by else ''}"


def _find_possible_codes(graph: Graph, writers: Mapping[str, Op], name: str, codes: Array) -> Array:
    """Which codes a tensor of the source can have before an activation."""
    writer, quantization = writers.get(name), graph[name].quantization
    assert quantization is not None
    if writer is not None and is_clipped_sum(writer, graph):
        return np.ones(codes.size, bool)
    low, high = limits_of(graph, writers, name)
    steps = [(end / float(quantization.scale[0])) + int(quantization.zero_point[0]) for end in (low, high)]
    return (codes > steps[0] - 0.5 - _CLOSE) & (codes < steps[1] + 0.5 + _CLOSE)


def is_clipped_sum(op: Op, graph: Graph) -> bool:
    """Whether an operator sums products to bytes, which its activation may clip."""
    is_activated = bool(kind_of(op).sums_products) and "activation" in kind_of(op).attributes
    return is_activated and bool(op.outputs[0]) and has_byte_codes(graph[op.outputs[0]])
