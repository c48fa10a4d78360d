"""Attention: softmax(scale * q @ k.T + mask) @ v of given heads, and the layers that PyTorch runs as one operator in evaluation.

nn.MultiheadAttention and nn.TransformerEncoderLayer take the operators of whole layers where no gradient is wanted ("fast path"), so that
traces hold them. Their arithmetic is that of ATen/native/transformers/attention.cpp and transformer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from qconvert.formats.torch.operands import cast_operand, emit_reshape, emit_transpose, scalar, size_of
from qconvert.formats.torch.ops.matrix import emit_gemm
from qconvert.formats.torch.reading import ReadFunction, Reading, with_unused
from qconvert.formats.torch.values import Uncomputed

#: The most elements of a causal mask that is a constant.
_LARGEST_MASK = 2**22

#: Heads of attention, each an entry of an order.
_MOST_HEADS = 2**16

#: What mask_type says a mask is (ATen/native/transformers/attention.cpp): (queries, keys), (batch, keys), or for each head.
_ATTENTION_MASK, _PADDING_MASK = 0, 1


def read_attention(c: Reading) -> str:
    """aten::scaled_dot_product_attention. Its forms for one kind of device give the logarithms of sums next to the result."""
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
    scores = c.emit("Mul", [scores, c.real_constant(scale, query, "scale")], quantization=None, hint="scores")
    if c["is_causal"]:
        scores = _mask_scores(c, scores, _make_causal_mask(c, query, key), "causal_scores")
    mask = c.get("attn_mask")
    if mask is not None and c.lookup(mask.name).dtype == "bool":
        scores = _mask_scores(c, scores, mask.name, "masked_scores")
    elif mask is not None:
        added = cast_operand(c, mask, c.lookup(query).dtype, "mask")
        scores = c.emit("Add", [scores, added], quantization=None, hint="masked_scores")
    weights = c.emit("Softmax", [scores], quantization=None, hint="weights", axis=-1)
    return c.emit("MatMul", [weights, value])


def _mask_scores(c: Reading, scores: str, mask: str, hint: str) -> str:
    """Scores where a mask is true, minus infinity elsewhere."""
    lowest = c.real_constant(-math.inf, scores, f"{hint}/hidden")
    return c.emit("Where", [mask, scores, lowest], quantization=None, hint=hint)


def _make_causal_mask(c: Reading, query: str, key: str) -> str:
    """Which positions each position sees: those up to its own."""
    rank = c.rank("query")
    rows, columns = size_of(c, query, rank - 2), size_of(c, key, rank - 2)
    if isinstance(rows, int) and isinstance(columns, int) and rows * columns <= _LARGEST_MASK:
        return c.const(np.tri(rows, columns, dtype=np.bool_), "causal_mask")
    zero, one = c.const(np.array(0, np.int64), "zero"), c.const(np.array(1, np.int64), "one")
    lines = [c.emit("Range", [zero, scalar(c, size, hint), one], hint=f"{hint}/positions")
             for size, hint in ((rows, "rows"), (columns, "columns"))]  # fmt: skip
    upright = c.emit("Unsqueeze", [lines[0], c.list64([1], "row_axis")], hint="rows/upright")
    return c.emit("GreaterOrEqual", [upright, lines[1]], hint="causal_mask")


def _repeat_heads(c: Reading, name: str, query: str, hint: str) -> str:
    """Keys or values with each head as often as queries share it."""
    rank = c.rank("query")
    heads, wanted = (size_of(c, each, rank - 3) for each in (name, query))
    if not isinstance(heads, int) or not isinstance(wanted, int) or heads < 1 or wanted % heads or wanted > _MOST_HEADS:
        raise c.unsupported_error(f"{heads} heads of keys and {wanted} of queries")
    order = np.repeat(np.arange(heads), wanted // heads)
    return name if heads == wanted else c.emit("Gather", [name, c.const(order, f"{hint}/order")], hint=hint, axis=rank - 3)


def read_self_attention(c: Reading) -> tuple[str, str | None]:
    """aten::_native_multi_head_attention of one tensor as query, key and value: the result, and the weights if they are wanted."""
    data = c.name("query")
    if not data == c.name("key") == c.name("value"):
        raise c.unsupported_error("queries, keys and values that differ")
    result, weights = _attend(c, data, c.integer("num_head"))
    if not c["need_weights"]:
        return result, None
    return result, c.emit("ReduceMean", [weights, c.list64([1], "heads")], keepdims=0) if c["average_attn_weights"] else weights


def read_encoder_layer(c: Reading) -> str:
    """aten::_transformer_encoder_layer_fwd: attention and two linear layers, each added to its data, normalized before or after."""
    data, norms_first = c.name("src"), bool(c["norm_first"])
    inner = _normalize(c, data, 1) if norms_first else data
    total = c.emit("Add", [_attend(c, inner, c.integer("num_heads"))[0], data], hint="attended_sum")
    total = total if norms_first else _normalize(c, total, 1)
    inner = _normalize(c, total, 2) if norms_first else total
    hidden = emit_gemm(c, inner, [c.name("ffn_weight_1"), c.name("ffn_bias_1")], None, hint="hidden")
    active = c.emit("Gelu", [hidden], hint="active") if c["use_gelu"] else c.emit("Relu", [hidden], hint="active")
    given = emit_gemm(c, active, [c.name("ffn_weight_2"), c.name("ffn_bias_2")], None, hint="given")
    whole = c.emit("Add", [given, total], hint="" if norms_first else "sum")
    return whole if norms_first else _normalize(c, whole, 2, hint="")


def _normalize(c: Reading, data: str, number: int, hint: str | None = None) -> str:
    """The layer normalization 1 or 2 of an encoder layer."""
    factors = [c.name(f"norm_{role}_{number}") for role in ("weight", "bias")]
    hint = f"normalized{number}" if hint is None else hint
    return c.emit("LayerNormalization", [data, *factors], quantization=None, hint=hint, axis=-1, epsilon=c.number("eps"))


def _attend(c: Reading, data: str, heads: int) -> tuple[str, str]:
    """Self-attention with its projections, of data (batch, positions, features): the result, and the weights of each head."""
    c.require_plain(data)
    if c.lookup(data).rank != 3:
        raise c.unsupported_error(f"data of shape {c.lookup(data).shape}", rule="wrong-rank")
    batch, positions = (size_of(c, data, axis) for axis in (0, 1))
    features = c.integer("embed_dim")
    if heads < 1 or features % heads:
        raise c.invalid(f"{heads} heads do not divide {features} features", rule="counts-differ")
    projected = emit_gemm(c, data, [c.name("qkv_weight"), c.name("qkv_bias")], None, hint="projected")
    split = emit_reshape(c, projected, [batch, positions, 3, heads, features // heads], hint="split")
    turned = emit_transpose(c, split, (2, 0, 3, 1, 4), hint="turned")
    query, key, value = (
        c.emit("Gather", [turned, c.const(np.array(index, np.int64), hint)], hint=f"{hint}_heads", axis=0)
        for index, hint in enumerate(("query", "key", "value"))
    )
    scale = c.real_constant(1 / math.sqrt(features // heads), query, "scale")
    scores = c.emit("MatMul", [c.emit("Mul", [query, scale], hint="scaled"), key], hint="scores", trans_b=1)
    weights = c.emit("Softmax", [_hide(c, scores)], hint="weights", axis=-1)
    joined = emit_transpose(c, c.emit("MatMul", [weights, value], hint="attended"), (0, 2, 1, 3), hint="joined")
    rows = emit_reshape(c, joined, [batch, positions, features], hint="joined_heads")
    return emit_gemm(c, rows, [c.name("proj_weight"), c.name("proj_bias")], None, hint="projected_back"), weights


def _hide(c: Reading, scores: str) -> str:
    """Scores of which a mask hides some: where it is true, or a number other than 0 (masked_softmax in attention.cpp)."""
    if c["mask"] is None:
        return scores
    mask = cast_operand(c, c["mask"], "bool", "mask")
    if c["mask_type"] == _PADDING_MASK:
        mask = c.emit("Unsqueeze", [mask, c.list64([1, 2], "mask_axes")], hint="padding")
    elif c["mask_type"] != _ATTENTION_MASK and c.lookup(mask).rank != 4:
        raise c.unsupported_error(f"a mask of type {c['mask_type']} and shape {c.lookup(mask).shape}")
    return c.emit("Where", [mask, c.real_constant(-math.inf, scores, "hidden"), scores], quantization=None, hint="masked_scores")


_STATE = Uncomputed("a state of attention")
_HEADS, _DROPOUT = "T query, T key, T value", "f dropout_p=0.0, b is_causal=False"
_MASKED = f"{_HEADS}, T? attn_mask=None, {_DROPOUT}"
_PROJECTIONS = "T qkv_weight, T qkv_bias, T proj_weight, T proj_bias"
_NORMS = ", ".join(f"T norm_weight_{number}, T norm_bias_{number}" for number in (1, 2))
_LAYERS = ", ".join(f"T ffn_weight_{number}, T ffn_bias_{number}" for number in (1, 2))

OPERATORS: Mapping[str, ReadFunction] = {
    f"aten::scaled_dot_product_attention({_MASKED}, *, f? scale=None, b enable_gqa=False)": read_attention,
    f"aten::_scaled_dot_product_flash_attention_for_cpu({_HEADS}, {_DROPOUT}, *, T? attn_mask=None, f? scale=None)": with_unused(
        read_attention, _STATE, 8
    ),
    f"aten::_scaled_dot_product_attention_math({_MASKED}, T? dropout_mask=None, *, f? scale=None, b enable_gqa=False)": with_unused(
        read_attention, _STATE, 8
    ),
    f"aten::_native_multi_head_attention({_HEADS}, i embed_dim, i num_head, {_PROJECTIONS}, T? mask=None, b need_weights=True, "
    "b average_attn_weights=True, i? mask_type=None)": read_self_attention,
    f"aten::_transformer_encoder_layer_fwd(T src, i embed_dim, i num_heads, {_PROJECTIONS}, b use_gelu, b norm_first, f eps, {_NORMS}, "
    f"{_LAYERS}, T? mask=None, i? mask_type=None)": read_encoder_layer,
}
