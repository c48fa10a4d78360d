"""Definitions of onnxruntime's attention: Attention, MultiHeadAttention and QAttention, on values of shape (batch, heads, length, size).

What a mask, a past and a causal form are is that of docs/ContribOperators.md; that masked scores get -10000, and what lies ahead of a
causal row the lowest number, is onnxruntime's kernel (contrib_ops/cpu/bert/attention_cpu_base.h).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definitions, NoDefinitionError
from qconvert.graph import Array

_HEADS = [0, 2, 1, 3]

#: The input that is added to queries, keys and values.
_BIAS = 2


def _attention(s: Decomposition) -> None:
    """Attention(x, weights, bias, mask, past, scores to add): queries, keys and values are one product by the weights."""
    _split_and_attend(s, s("MatMul", s.x, s.input(1)), mask=3, past=4, added=5, sizes=s.shape(1)[1])


def _quantized_attention(s: Decomposition) -> None:
    """QAttention(x, weights, bias, both scales, mask, both zero points, past): Attention of quantized operands."""
    width = s.shape(1)[1]
    data = s("DequantizeLinear", s.x, s.input(3), s.input(6))
    weights = s("DequantizeLinear", s.input(1), s.input(4), s.input(7), axis=1)
    _split_and_attend(s, s("MatMul", data, weights), mask=5, past=8, added=9, sizes=width)


def _split_and_attend(s: Decomposition, product: str, *, mask: int, past: int, added: int, sizes: int) -> None:
    """Add what follows the product of data and weights, whose columns are those of the queries, keys and values."""
    if s.attribute("do_rotary", 0) or s.attribute("past_present_share_buffer", 0):
        raise NoDefinitionError("turned queries, or a shared buffer")
    heads = int(s.attribute("num_heads", 0))
    widths = [int(size) for size in s.attribute("qkv_hidden_sizes", None) or [sizes // 3] * 3]
    if len(widths) != 3 or sum(widths) != sizes or heads < 1 or any(width < 1 or width % heads for width in widths):
        raise NoDefinitionError("sizes that do not fit")
    if s.input(_BIAS):
        product = s("Add", product, s.input(_BIAS))
    ends = np.cumsum([0, *widths])
    parts = [s("Slice", product, [int(ends[i])], [int(ends[i + 1])], [2]) for i in range(3)]
    query, key, value = (_heads(s, part, heads) for part in parts)
    if s.input(past):
        key, value = (
            s("Concat", s("Gather", s.input(past), np.int64(side), axis=0), item, axis=2) for side, item in enumerate((key, value))
        )
    if len(s.op.outputs) > 1 and s.op.outputs[1]:
        s.end(s("Concat", s("Unsqueeze", key, [0]), s("Unsqueeze", value, [0]), axis=0), 1)
    real = s.real_type(_BIAS if s.input(_BIAS) else 0)
    before = s.shape(past)[3] if s.input(past) else 0
    _attend(s, (query, key, value), real, before, [*_mask(s, mask, key, real, before), *([s.input(added)] if s.input(added) else [])],
            widths[0] // heads, widths[2])  # fmt: skip


def _multi_head(s: Decomposition) -> None:
    """MultiHeadAttention(query, key, value, bias, mask, scores to add, past key, past value), each but the query perhaps by heads."""
    heads, width = int(s.attribute("num_heads", 0)), s.tensor().shape
    if any(s.input(index) for index in (8, 9)) or width is None or len(width) != 3 or not s.input(2) or s.rank(1) not in (3, 4):
        raise NoDefinitionError("packed or cached operands")
    size = width[2]
    if not isinstance(size, int) or heads < 1 or size % heads or s.rank(2) != s.rank(1) or (s.rank(1) == 4 and s.input(3)):
        raise NoDefinitionError("sizes that do not fit")
    operands = [s.input(index) for index in range(3)]
    last = s.shape_of(2, -1) * (heads if s.rank(2) == 4 else 1)
    if s.input(3):
        ends = [0, size, 2 * size, 2 * size + last]
        bias = s.input(3)
        operands = [s("Add", item, s("Slice", bias, [ends[i]], [ends[i + 1]])) for i, item in enumerate(operands)]
    query, key, value = (item if i and s.rank(1) == 4 else _heads(s, item, heads) for i, item in enumerate(operands))
    for index in (6, 7):
        if s.input(index):
            joined = s("Concat", s.input(index), key if index == 6 else value, axis=2)
            key, value = (joined, value) if index == 6 else (key, joined)
    for index, item in ((1, key), (2, value)):
        if len(s.op.outputs) > index and s.op.outputs[index]:
            s.end(s("Identity", item), index)
    if len(s.op.outputs) > 3 and s.op.outputs[3]:
        raise NoDefinitionError("scores as an output")
    before = s.shape(6)[2] if s.input(6) else 0
    real = s.real_type(0)
    biases = [*_mask(s, 4, key, real, before, source=1), *([s.input(5)] if s.input(5) else [])]
    _attend(s, (query, key, value), real, before, biases, size // heads, last)


def _heads(s: Decomposition, value: str, heads: int) -> str:
    """Return (batch, length, heads * size) as (batch, heads, length, size)."""
    return s("Transpose", s("Reshape", value, [0, 0, heads, -1]), perm=_HEADS)


def _attend(
    s: Decomposition, parts: tuple[str, str, str], real: type[np.floating[Any]], before: int, biases: Sequence[str], size: int, width: int
) -> None:
    """softmax(query @ key' * scale + biases) @ value, the heads side by side again, as output 0."""
    query, key, value = parts
    scale = float(s.attribute("scale", 0.0)) or 1 / math.sqrt(size)
    scores = s("Mul", s("MatMul", query, s("Transpose", key, perm=[0, 1, 3, 2])), real(scale))
    for bias in biases:
        scores = s("Add", scores, bias)
    if s.attribute("unidirectional", 0):
        rows, columns = _positions(s, query, before, 0), _positions(s, key, before, 1)
        ahead = s("Greater", s("Unsqueeze", columns, [0]), s("Unsqueeze", rows, [1]))
        scores = s("Add", scores, s("Where", ahead, real(np.finfo(real).min), real(0)))
    found = s("MatMul", s("Softmax", scores, axis=-1), value)
    s.end(s("Reshape", s("Transpose", found, perm=_HEADS), [0, 0, width]))


def _positions(s: Decomposition, parts: str, before: int, side: int) -> str:
    """Return the places of the queries (side 0) or keys (1) in the whole text, which has `before` elements before the queries."""
    length = (s.tensor(0).shape or (None, None))[1]
    same = s.input(1) == "" or s.op["op_type"] != "MultiHeadAttention" or (s.tensor(1).shape or ())[1:2] == (length,)
    if isinstance(length, int) and same:
        s.require_small(length + before)
        return s.const(np.arange(0 if side else before, length + before, dtype=np.int64))
    count = s("Squeeze", s("Slice", s("Shape", parts), [2], [3]), [0])
    places = s("Range", np.int64(0), count, np.int64(1))
    return places if side or not before else s("Add", places, np.int64(before))


def _mask(s: Decomposition, index: int, key: str, real: type[np.floating[Any]], before: int, source: int = 0) -> list[str]:
    """Return what a mask of whole numbers adds to the scores: nothing, or one tensor that fits (batch, heads, queries, keys)."""
    if not s.input(index):
        return []
    rank, shape = s.rank(index), s.tensor(index).shape or ()
    low, none = s.const(real(s.attribute("mask_filter_value", -10000.0))), s.const(real(0))
    zero: Array = np.zeros((), np.int32)
    if rank == 1:
        if shape != (s.tensor(0).shape or (None,))[:1]:
            raise NoDefinitionError("a mask of starts and ends")
        places = s("Cast", s("Reshape", _positions(s, key, before, 1), [1, 1, 1, -1]), to=6)
        ends = s("Reshape", s.input(index), [-1, 1, 1, 1])
        return [s("Where", s("Less", places, ends), none, low)]
    if rank > 3:
        raise NoDefinitionError("a mask of rank 4")
    length = (s.tensor(source).shape or (None, None))[1]
    if rank == 2 and shape[1] == 1 and length != 1:
        return []  # a mask that masks nothing
    seen = s("Greater", s.input(index), zero)
    return [s("Where", s("Unsqueeze", seen, [1, 2] if rank == 2 else [1]), none, low)]


DEFINITIONS: Definitions = {
    "com.microsoft.Attention": _attention,
    "com.microsoft.QAttention": _quantized_attention,
    "com.microsoft.MultiHeadAttention": _multi_head,
}
