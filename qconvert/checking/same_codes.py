"""Whether stored integers of two tensors stand for the same float values: the integers themselves, or moved by one number where one type is
signed and the other is not.
"""

from __future__ import annotations

import numpy as np

from qconvert.graph import Array, Graph, Op, Tensor, integer_range
from qconvert.operators import kind_of

#: Types of one width: one side's integers are the other's, moved.
SAME_CODES = ({"int8", "uint8"}, {"int16", "uint16"})


def shift_codes(value: Array, have: str, want: str) -> Array:
    """Signed integers as unsigned ones of their width, or the reverse."""
    offset = integer_range(want)[0] - integer_range(have)[0] if {have, want} in SAME_CODES else 0
    return (value.astype(np.int32) + offset).astype(want) if offset else value


def has_byte_codes(tensor: Tensor) -> bool:
    """Whether a tensor stores 8-bit integers with one scale and zero point."""
    return tensor.dtype in SAME_CODES[0] and tensor.per_tensor is not None


def stored_offset(before: Tensor, after: Tensor) -> int | None:
    """What is added to stored integers of one tensor to give the other, of the same float values; None if the quantizations differ
    otherwise."""
    a, b = before.quantization, after.quantization
    if a is None or b is None:
        return 0 if a is b and before.dtype == after.dtype else None
    if a.axis != b.axis or a.block_size != b.block_size or not np.array_equal(a.scale, b.scale):
        return None
    if before.dtype.removeprefix("u") != after.dtype.removeprefix("u"):
        return None
    offset = integer_range(after.dtype)[0] - integer_range(before.dtype)[0] if before.dtype != after.dtype else 0
    return offset if bool((b.zero_point - a.zero_point == offset).all()) else None


def has_same_steps(a: Tensor, b: Tensor) -> bool:
    """Whether the quantizations of two tensors have the same steps, stored in types of one width: one scale, and zero points as far above
    the lowest integer."""
    return a.per_tensor is not None and b.per_tensor is not None and stored_offset(a, b) is not None


def is_storage(graph: Graph, op: Op) -> bool:
    """Whether a Requantize only stores the same steps in another integer type."""
    return kind_of(op).requantizes and has_same_steps(graph[op.inputs[0]], graph[op.outputs[0]])


def keeps_codes(graph: Graph, op: Op) -> bool:
    """Whether an operator gives codes of its data as they are: data movement, or storage in another integer type."""
    return kind_of(op).rule == "move" or is_storage(graph, op)
