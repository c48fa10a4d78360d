"""Operators that are several of the graph's: distances, diagonals, products over axes, what replaces values that are no numbers, and
attention: softmax(scale * q @ k.T + mask) @ v of given heads, and the layers that PyTorch runs as one operator in evaluation.

nn.MultiheadAttention and nn.TransformerEncoderLayer take the operators of whole layers where no gradient is wanted ("fast path"), so that
traces hold them. Their arithmetic is that of ATen/native/transformers/attention.cpp and transformer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import Part, cast_operand, emit_reshape, emit_transpose, float_parts, operands, scalar, size_of
from qconvert.formats.torch.ops.matrix import emit_gemm
from qconvert.formats.torch.ops.reduce_norm import emit_reduction, read_norm
from qconvert.formats.torch.reading import ReadFunction, Reading, with_unused
from qconvert.formats.torch.values import Uncomputed
from qconvert.graph import Array, numpy_dtype
from qconvert.operators.values import Value, absolute, apply, clip, exp, log, maximum, sqrt, square, where


def read_without_nan(c: Reading) -> Value:
    """aten::nan_to_num(x, nan, posinf, neginf)."""
    name = c.name()
    if not c.is_real(name) or c.operand().is_quantized:
        return name
    x, largest = Part(c, name), float(np.finfo(numpy_dtype(c.lookup(name).dtype)).max)
    found = where(apply("IsNaN", x), c.get("nan", 0.0), x)
    found = where(apply("Equal", found, math.inf), c.get("posinf", largest), found)
    return where(apply("Equal", found, -math.inf), c.get("neginf", -largest), found, hint="")


def read_log_sum(c: Reading) -> Value:
    """aten::logaddexp: the larger, and log(1 + exp(-|a - b|))."""
    a, b = float_parts(c, "self", "other")
    return apply("Add", maximum(a, b), log(exp(-absolute(a - b)) + 1.0), hint="")


def read_hypotenuse(c: Reading) -> Value:
    """aten::hypot: the root of both squares."""
    a, b = float_parts(c, "self", "other")
    return sqrt(square(a) + square(b), hint="")


def read_logit(c: Reading) -> Value:
    """aten::logit(x, eps): log(x / (1 - x)), of x that is eps away from 0 and 1 at least."""
    (x,) = float_parts(c, "self")
    if c["eps"] is not None:
        x = clip(x, c.number("eps"), 1 - c.number("eps"))
    return log(x / (1.0 - x), hint="")


def read_distances(c: Reading) -> Value:
    """aten::cdist(x1, x2, p): the distance of each row of one to each of the other."""
    power, sides = c.number("p"), float_parts(c, "x1", "x2")
    if power not in (1.0, 2.0):
        raise c.unsupported_error(f"p = {power}")
    axes = c.rank("x1") - 1, c.rank("x2") - 2
    rows, columns = (apply("Unsqueeze", side, [axis]) for side, axis in zip(sides, axes, strict=True))
    return apply("ReduceL1" if power == 1 else "ReduceL2", rows - columns, [-1], keepdims=0, hint="")


@dataclass(frozen=True, slots=True)
class _Diagonal:
    """A diagonal of two axes: the data with both as one at the end, and where its elements stand there."""

    flat: str
    order: tuple[int, ...]
    sizes: tuple[int, int]
    rest: list[Any]
    places: Array


def _diagonal(c: Reading) -> _Diagonal:
    rank, offset = c.rank(), c.integer("offset")
    first, second = c.axis(c.integer("dim1"), rank), c.axis(c.integer("dim2"), rank)
    rows, columns = c.size(first), c.size(second)
    if not isinstance(rows, int) or not isinstance(columns, int) or first == second:
        raise c.unknown_shape()
    order = (*(axis for axis in range(rank) if axis not in (first, second)), first, second)
    rest = [size_of(c, c.name(), axis) for axis in order[:-2]]
    name = emit_transpose(c, c.name(), order, "last")
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    c.take(8 * count)
    places = (np.arange(count, dtype=np.int64) + max(-offset, 0)) * columns + np.arange(count) + max(offset, 0)
    return _Diagonal(emit_reshape(c, name, [*rest, rows * columns], hint="flat_"), order, (rows, columns), rest, places)


def read_diagonal(c: Reading) -> str:
    """aten::diagonal(x, offset, dim1, dim2): both axes come last, as one, of which each element of the diagonal is taken."""
    found = _diagonal(c)
    return c.emit("Gather", [found.flat, c.const(found.places, "places")], axis=len(found.rest))


def read_diagonal_scatter(c: Reading) -> str:
    """aten::diagonal_scatter(x, src, offset, dim1, dim2): the diagonal replaced."""
    found = _diagonal(c)
    size = found.sizes[0] * found.sizes[1]
    c.take(8 * size)
    places = np.arange(size, dtype=np.int64)
    places[found.places] = size + np.arange(len(found.places))
    source = cast_operand(c, c["src"], c.operand().dtype, "source")
    both = c.emit("Concat", [found.flat, source], hint="both", axis=len(found.rest))
    whole = c.emit("Gather", [both, c.const(places, "places")], axis=len(found.rest), hint="whole")
    back = np.argsort(found.order).tolist()
    result = emit_reshape(c, whole, [*found.rest, *found.sizes], hint="" if back == sorted(back) else "matrix_")
    return emit_transpose(c, result, back)


def read_trace(c: Reading) -> Value:
    """aten::trace: the sum of the diagonal of a matrix."""
    c.require_plain(c.name())
    shape = c.static_shape()
    if len(shape) != 2:
        raise c.invalid(f"the shape is {shape}; the operator requires a matrix", rule="wrong-rank")
    name = c.name() if c.is_real(c.name()) else cast_operand(c, c.name(), "int64", "whole")
    c.take(8 * shape[0] * shape[1])
    eye = np.eye(*shape, dtype=numpy_dtype(c.lookup(name).dtype))
    return apply("ReduceSum", Part(c, name) * eye, [0, 1], keepdims=0, hint="")


def read_count(c: Reading) -> str:
    """aten::count_nonzero(x, dim): how many elements are not 0."""
    c.require_plain(c.name())
    yes = cast_operand(c, c.name(), "bool", "is_there")
    return emit_reduction(c, "ReduceSum", cast_operand(c, yes, "int64", "ones"))


def read_tensor_product(c: Reading) -> str:
    """aten::tensordot(a, b, dims_self, dims_other): sums of products over these axes, all at once, as one product of matrices."""
    (first, second), _ = operands(c, "self", "other")
    sides = []
    for name, key in ((first, "dims_self"), (second, "dims_other")):
        rank = c.lookup(name).rank or 0
        axes = [c.axis(axis, rank) for axis in c.integers(key)]
        rest = [axis for axis in range(rank) if axis not in axes]
        sides.append((name, axes, rest, [size_of(c, name, axis) for axis in rest]))
    (left, summed, kept, rows), (right, others, following, columns) = sides
    a = c.emit("Transpose", [left], perm=(*kept, *summed), hint="left")
    b = c.emit("Transpose", [right], perm=(*others, *following), hint="right")
    count = math.prod(c.whole(size_of(c, left, axis), "dims_self") for axis in summed)
    product = c.emit("MatMul", [emit_reshape(c, a, [-1, count], hint="a_"), emit_reshape(c, b, [count, -1], hint="b_")], hint="product")
    return emit_reshape(c, product, [*rows, *columns])


def read_meshgrid(c: Reading) -> list[str]:
    """aten::meshgrid(tensors, indexing): each list along an axis of its own, repeated along the others."""
    names = c.names("tensors")
    swapped = c.get("indexing", "ij") == "xy" and len(names) > 1
    sizes: list[Any] = [size_of(c, name, 0) if c.lookup(name).rank else 1 for name in names]
    places = list(range(len(names)))
    if swapped:
        places[:2] = [1, 0]
    whole = [sizes[place] for place in places]
    found = []
    for index, name in enumerate(names):
        shape = [sizes[index] if place == index else 1 for place in places]
        upright = emit_reshape(c, name, shape, hint=f"upright{index}_")
        found.append(c.emit("Expand", [upright, c.list64([c.whole(size, "tensors") for size in whole], f"shape{index}")], hint=f"{index}"))
    return found


def read_linear_norm(c: Reading) -> Value:
    """aten::linalg_norm(x, ord, dim, keepdim): of vectors; of matrices the root of all squares."""
    dim, order = c.get("dim"), c.get("ord")
    axes = len(dim) if isinstance(dim, (list, tuple)) else 1 if dim is not None else c.rank() if order is not None else 1
    if order is not None and axes != 1:
        raise c.unsupported_error(f"the order {order} of a matrix")
    return read_norm(c)


#: The most elements of a causal mask that is a constant.
_LARGEST_MASK = 2**22

#: Heads of attention, each an entry of an order.
_MOST_HEADS = 2**16

#: What mask_type says a mask is (ATen/native/transformers/attention.cpp): (queries, keys), (batch, keys), or for each head.
_ATTENTION_MASK, _PADDING_MASK = 0, 1


def read_attention(c: Reading) -> Value:
    """aten::scaled_dot_product_attention. Its forms for one kind of device give the logarithms of sums next to the result."""
    query, key, value = (c.name(name) for name in ("query", "key", "value"))
    if c.get("dropout_p"):
        raise c.unsupported_error("dropout; export the model after eval(),", rule="training-mode")
    if c.get("enable_gqa"):
        key, value = (_repeat_heads(c, name, query, hint) for name, hint in ((key, "keys"), (value, "values")))
    depth = size_of(c, query, c.rank("query") - 1) if c["scale"] is None else 1
    if not isinstance(depth, int):
        raise c.unknown_shape("query")
    scale = 1 / math.sqrt(depth) if c["scale"] is None else c.number("scale")
    scores = apply("MatMul", Part(c, query), Part(c, key), trans_b=1) * scale
    if c["is_causal"]:
        scores = where(Part(c, _make_causal_mask(c, query, key)), scores, -math.inf)
    mask = c.get("attn_mask")
    if mask is not None and c.lookup(mask.name).dtype == "bool":
        scores = where(Part(c, mask.name), scores, -math.inf)
    elif mask is not None:
        scores = scores + Part(c, cast_operand(c, mask, c.lookup(query).dtype, "mask"))
    return apply("MatMul", apply("Softmax", scores, axis=-1), Part(c, value), hint="")


def _make_causal_mask(c: Reading, query: str, key: str) -> str:
    """Which positions each position sees: those up to its own."""
    rank = c.rank("query")
    rows, columns = size_of(c, query, rank - 2), size_of(c, key, rank - 2)
    if isinstance(rows, int) and isinstance(columns, int) and rows * columns <= _LARGEST_MASK:
        return c.const(np.tri(rows, columns, dtype=np.bool_), "causal_mask")
    zero, one = scalar(c, 0, "zero"), scalar(c, 1, "one")
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
        Part(c, c.emit("Gather", [turned, scalar(c, index, hint)], hint=f"{hint}_heads", axis=0))
        for index, hint in enumerate(("query", "key", "value"))
    )
    scores = _hide(c, apply("MatMul", query * (1 / math.sqrt(features // heads)), key, trans_b=1))
    weights = apply("Softmax", scores, axis=-1)
    joined = emit_transpose(c, apply("MatMul", weights, value).name, (0, 2, 1, 3), hint="joined")
    rows = emit_reshape(c, joined, [batch, positions, features], hint="joined_heads")
    return emit_gemm(c, rows, [c.name("proj_weight"), c.name("proj_bias")], None, hint="projected_back"), weights.name


def _hide(c: Reading, scores: Value) -> Value:
    """Scores of which a mask hides some: where it is true, or a number other than 0 (masked_softmax in attention.cpp)."""
    if c["mask"] is None:
        return scores
    mask = cast_operand(c, c["mask"], "bool", "mask")
    if c["mask_type"] == _PADDING_MASK:
        mask = c.emit("Unsqueeze", [mask, c.list64([1, 2], "mask_axes")], hint="padding")
    elif c["mask_type"] != _ATTENTION_MASK and c.lookup(mask).rank != 4:
        raise c.unsupported_error(f"a mask of type {c['mask_type']} and shape {c.lookup(mask).shape}")
    return where(Part(c, mask), -math.inf, scores)


_STATE = Uncomputed("a state of attention")
_HEADS, _DROPOUT = "T query, T key, T value", "f dropout_p=0.0, b is_causal=False"
_MASKED = f"{_HEADS}, T? attn_mask=None, {_DROPOUT}"
_PROJECTIONS = "T qkv_weight, T qkv_bias, T proj_weight, T proj_bias"
_NORMS = ", ".join(f"T norm_weight_{number}, T norm_bias_{number}" for number in (1, 2))
_LAYERS = ", ".join(f"T ffn_weight_{number}, T ffn_bias_{number}" for number in (1, 2))

OPERATORS: Mapping[str, ReadFunction] = {
    "aten::nan_to_num(T self, f? nan=None, f? posinf=None, f? neginf=None)": read_without_nan,
    "aten::logaddexp(T self, T other)": read_log_sum,
    "aten::hypot(T self, T other)": read_hypotenuse,
    "aten::logit|special_logit(T self, f? eps=None)": read_logit,
    "aten::cdist(T x1, T x2, f p=2., i? compute_mode=None)": read_distances,
    "aten::_cdist_forward(T x1, T x2, f p, i? compute_mode)": read_distances,
    "aten::diagonal(T self, i offset=0, i dim1=0, i dim2=1)": read_diagonal,
    "aten::diagonal_scatter(T self, T src, i offset=0, i dim1=0, i dim2=1)": read_diagonal_scatter,
    "aten::trace(T self)": read_trace,
    "aten::count_nonzero(T self, i? dim=None)": read_count,
    "aten::count_nonzero(T self, l dim)": read_count,
    "aten::tensordot(T self, T other, l dims_self, l dims_other)": read_tensor_product,
    "aten::meshgrid(t tensors, *, s indexing='ij')": read_meshgrid,
    "aten::linalg_norm(T self, f? ord=None, l? dim=None, b keepdim=False, *, i? dtype=None)": read_linear_norm,
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
