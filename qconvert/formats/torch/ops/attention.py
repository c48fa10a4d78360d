"""Scaled dot-product attention, decomposed: softmax(scale * q @ k.T + mask) @ v."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from qconvert.formats.torch.promotion import cast_operand
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.sizing import scalar, size_of
from qconvert.formats.torch.values import Ref, Uncomputed

__all__ = ["OPERATORS"]

#: The most elements of a causal mask that is a constant.
_LARGEST_MASK = 2**22

#: Heads of attention, each an entry of an order.
_MOST_HEADS = 2**16


def _attention(c: Call) -> Ref:
    query, key, value = (c.name(name) for name in ("query", "key", "value"))
    if c.get("dropout_p"):
        raise c.unsupported_error("dropout; export the model after eval(),", rule="training-mode")
    if c.get("enable_gqa"):
        key, value = (_repeat_heads(c, name, query, hint) for name, hint in ((key, "keys"), (value, "values")))
    scores = c.emit("MatMul", [query, key], quantization=None, hint="products", trans_b=1)
    depth = size_of(c, query, c.rank("query") - 1) if c["scale"] is None else 1
    if not isinstance(depth, int):
        raise c.unknown_shape("query")
    scale = 1 / math.sqrt(depth) if c["scale"] is None else c.number("scale")
    scores = c.emit("Mul", [scores.name, c.real_constant(scale, query, "scale")], quantization=None, hint="scores")
    if c["is_causal"]:
        scores = _mask_scores(c, scores, _make_causal_mask(c, query, key), "causal_scores")
    mask = c.get("attn_mask")
    if mask is not None and c.lookup(mask.name).dtype == "bool":
        scores = _mask_scores(c, scores, mask.name, "masked_scores")
    elif mask is not None:
        added = cast_operand(c, mask, c.lookup(query).dtype, "mask")
        scores = c.emit("Add", [scores.name, added], quantization=None, hint="masked_scores")
    weights = c.emit("Softmax", [scores.name], quantization=None, hint="weights", axis=-1)
    return c.emit("MatMul", [weights.name, value], quantization=None)


def _mask_scores(c: Call, scores: Ref, mask: str, hint: str) -> Ref:
    """Scores where a mask is true, minus infinity elsewhere."""
    lowest = c.real_constant(-math.inf, scores.name, f"{hint}/hidden")
    return c.emit("Where", [mask, scores.name, lowest], dtype=c.lookup(scores.name).dtype, quantization=None, hint=hint)


def _make_causal_mask(c: Call, query: str, key: str) -> str:
    """Which positions each position sees: those up to its own."""
    rank = c.rank("query")
    rows, columns = size_of(c, query, rank - 2), size_of(c, key, rank - 2)
    if isinstance(rows, int) and isinstance(columns, int) and rows * columns <= _LARGEST_MASK:
        return c.const(np.tri(rows, columns, dtype=np.bool_), "causal_mask")
    zero, one = c.const(np.array(0, np.int64), "zero"), c.const(np.array(1, np.int64), "one")
    lines = [c.emit("Range", [zero, scalar(c, size, hint), one], dtype="int64", quantization=None, hint=f"{hint}/positions").name
             for size, hint in ((rows, "rows"), (columns, "columns"))]  # fmt: skip
    upright = c.emit("Unsqueeze", [lines[0], c.list64([1], "row_axis")], hint="rows/upright").name
    return c.emit("GreaterOrEqual", [upright, lines[1]], dtype="bool", quantization=None, hint="causal_mask").name


def _repeat_heads(c: Call, name: str, query: str, hint: str) -> str:
    """Keys or values with each head as often as queries share it."""
    rank = c.rank("query")
    heads, wanted = (size_of(c, each, rank - 3) for each in (name, query))
    if not isinstance(heads, int) or not isinstance(wanted, int) or heads < 1 or wanted % heads or wanted > _MOST_HEADS:
        raise c.unsupported_error(f"{heads} heads of keys and {wanted} of queries", rule="form-not-covered")
    order = np.repeat(np.arange(heads), wanted // heads)
    return name if heads == wanted else c.emit("Gather", [name, c.const(order, f"{hint}/order")], hint=hint, axis=rank - 3).name


def read_attention(c: Call) -> Ref:
    """aten::scaled_dot_product_attention."""
    return _attention(c)


def read_fused(c: Call) -> tuple[Ref | Uncomputed, ...]:
    """Its forms for one kind of device, which give the logarithms of sums next to the result."""
    return _attention(c), *(Uncomputed("a state of attention") for _ in range(8))


_HEAD = "T query, T key, T value"
_SCALE = "*, f? scale=None"

OPERATORS: Mapping[str, Operator] = {
    "aten::scaled_dot_product_attention": Operator(
        f"{_HEAD}, T? attn_mask=None, f dropout_p=0.0, b is_causal=False, {_SCALE}, b enable_gqa=False", read_attention
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu": Operator(
        f"{_HEAD}, f dropout_p=0.0, b is_causal=False, *, T? attn_mask=None, f? scale=None", read_fused
    ),
    "aten::_scaled_dot_product_attention_math": Operator(
        f"{_HEAD}, T? attn_mask=None, f dropout_p=0.0, b is_causal=False, T? dropout_mask=None, {_SCALE}, b enable_gqa=False", read_fused
    ),
}
