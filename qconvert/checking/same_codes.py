"""Whether stored integers of two tensors stand for the same float values: the integers themselves, or moved by one number where one type is
signed and the other is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.operators import kind_of

#: Types of one width: one side's integers are the other's, moved.
SAME_CODES = ({"int8", "uint8"}, {"int16", "uint16"}, {"int4", "uint4"}, {"int2", "uint2"})


def shift_codes(value: Array, have: str, want: str) -> Array:
    """Signed integers as unsigned ones of their width, or the reverse."""
    offset = integer_range(want)[0] - integer_range(have)[0] if {have, want} in SAME_CODES else 0
    return (value.astype(np.int32) + offset).astype(numpy_dtype(want)) if offset else value


def has_byte_codes(tensor: Tensor) -> bool:
    """Whether a tensor stores 8-bit integers with one scale and zero point."""
    return tensor.dtype in SAME_CODES[0] and tensor.per_tensor is not None


def stored_offset(before: Tensor, after: Tensor, perm: Sequence[int] | None = None) -> int | None:
    """What is added to stored integers of one tensor to give the other, of the same float values; None if the quantizations differ
    otherwise.

    Args:
        before, after: the tensors.
        perm: the transposition of the first that gives the second; None if their axes are in one order.
    """
    a, b = before.quantization, after.quantization
    if a is None or b is None:
        return 0 if a is b and before.dtype == after.dtype else None
    if not has_scales_along(a, b, perm) or not np.array_equal(a.scale, b.scale):
        return None
    if before.dtype != after.dtype and {before.dtype, after.dtype} not in SAME_CODES:
        return None
    offset = integer_range(after.dtype)[0] - integer_range(before.dtype)[0] if before.dtype != after.dtype else 0
    return offset if bool((b.zero_point - a.zero_point == offset).all()) else None


def has_scales_along(a: Quantization, b: Quantization, perm: Sequence[int] | None) -> bool:
    """Whether two quantizations have their scales along the same axis, of data of which the second's are a transposition; see
    stored_offset()."""
    is_turned = perm is not None and tuple(perm) != tuple(range(len(perm)))
    if perm is None or not is_turned or a.axis is None:
        return (a.axis, a.block_size) == (b.axis, b.block_size)
    return not a.block_size and not b.block_size and a.axis < len(perm) and perm.index(a.axis) == b.axis


def has_same_steps(a: Tensor, b: Tensor) -> bool:
    """Whether the quantizations of two tensors have the same steps, stored in types of one width: one scale, and zero points as far above
    the lowest integer."""
    return a.per_tensor is not None and b.per_tensor is not None and stored_offset(a, b) is not None


def is_storage(graph: Graph, op: Op) -> bool:
    """Whether a Requantize only stores the same steps in another integer type, and clips none."""
    if not kind_of(op).requantizes or not has_same_steps(graph[op.inputs[0]], graph[op.outputs[0]]):
        return False
    own, given = (limit_steps(graph[name]) for name in (op.inputs[0], op.outputs[0]))
    return given[0] <= own[0] and own[1] <= given[1]


def limit_steps(tensor: Tensor) -> tuple[int, int]:
    """The lowest and the highest integer that the quantization of a tensor leaves, from the lowest of its type."""
    assert tensor.quantization is not None
    low, high = tensor.quantization.limits(tensor.dtype)
    lowest = integer_range(tensor.dtype)[0]
    return low - lowest, high - lowest


def keeps_codes(graph: Graph, op: Op) -> bool:
    """Whether an operator gives codes of its data as they are: data movement, or storage in another integer type."""
    return kind_of(op).rule == "move" or is_storage(graph, op)
