"""Definitions of onnxruntime's embeddings: EmbedLayerNormalization, its quantized form, GatherBlockQuantized, RotaryEmbedding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.arithmetic.storage import unpack_bits
from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definition, NoDefinitionError
from qconvert.graph import Array
from qconvert.operators.sizes import reshape_sizes


def _embed_layer_norm(s: Decomposition) -> None:
    """EmbedLayerNormalization(words, segments, three tables, gamma, beta, mask, places)."""
    _normalize_embeddings(s, lambda value, index: value, 8)


def _quantized_embed_layer_norm(s: Decomposition) -> None:
    """QEmbedLayerNormalization: tables, gamma and beta are integers with a scale (inputs 8 to 12) and a zero point (13 to 17) each."""
    _normalize_embeddings(s, lambda value, index: s("DequantizeLinear", value, s.input(index + 6), s.input(index + 11)), 18)


def _normalize_embeddings(s: Decomposition, real: Callable[[str, int], str], places: int) -> None:
    """LayerNormalization of the sum of a word's, a place's and a segment's row.

    Args:
        s: the node.
        real: the float values of what comes from input `index`.
        places: index of the input with the places of the words; without it they are counted.
    """
    length = (s.tensor(0).shape or (None, None))[1]
    total = real(s("Gather", s.input(2), s.x, axis=0), 2)
    if s.input(places):
        rows = s("Gather", s.input(3), s.input(places), axis=0)
    else:
        end = s.ints(length) if isinstance(length, int) else s("Slice", s("Shape", s.x), s.ints(1), s.ints(2))
        rows = s("Slice", s.input(3), s.ints(0), end, s.ints(0))
    total = s("Add", total, real(rows, 3))
    if s.input(1) and s.input(4):
        total = s("Add", total, real(s("Gather", s.input(4), s.input(1), axis=0), 4))
    factors = [real(s.input(index), index) for index in (5, 6)]
    result = s("LayerNormalization", total, *factors, axis=-1, epsilon=float(s.attribute("epsilon", 1e-12)))
    outputs = [*s.op.outputs, "", ""]
    if outputs[1]:
        counted = bool(s.input(7)) and bool(s.attribute("mask_index_type", 1))
        data = s.input(7) if counted else s("Mul", s.x, s.const(np.int32(0)))
        s.end(s("ReduceSum", data, s.ints(1), keepdims=0), 1)
    if outputs[2]:
        s.end(total, 2)
    s.end(result)


def _gather_blocks(s: Decomposition) -> None:
    """GatherBlockQuantized(data, indices, scales, zero points): rows of integers of 4 or 8 bits with scales in blocks.

    The integers are gathered as they are, and multiplied by what is gathered of their scales: the table stays integers.
    """
    data, points, scales = s.known(0), s.constant(3), s.known(2)
    axis, along, block = (int(s.attribute(*item)) for item in (("gather_axis", 0), ("quantize_axis", 1), ("block_size", 128)))
    if points is None and s.input(3):
        raise NoDefinitionError("zero points that are computed")
    rank = data.ndim
    if not (-rank <= axis < rank and -rank <= along < rank and scales.ndim == rank) or block < 1:
        raise NoDefinitionError("axes that do not exist")
    axis, along = axis % rank, along % rank
    block = min(block, max(1, data.shape[along] * 2))  # of bytes with two numbers each
    dtype = s.tensor(0).dtype
    middle = {"uint4": 8, "uint8": 128}.get(dtype, 0)
    absent = 0 if dtype == "uint4" else middle  # the zero point where none is given, as the kernel has it
    if dtype == "uint8" and int(s.attribute("bits", 4)) == 4:
        data, points, middle = unpack_bits(data, 4), None if points is None else unpack_bits(points, 4)[..., : scales.shape[-1]], 8
        absent = 8
    blocks = -(-data.shape[along] // block)
    sizes = [*data.shape[:along], blocks, *data.shape[along + 1 :]]
    if list(scales.shape) != sizes or (points is not None and list(points.shape) != sizes):
        raise NoDefinitionError("scales that do not fit")
    stored = (data.astype(np.int16) - middle).astype(np.int8)
    zero = ((np.full(sizes, absent) if points is None else points.astype(np.int16)) - middle).astype(scales.dtype)
    if axis == along:
        real = (stored.astype(scales.dtype) - _repeat_blocks(zero, block, along, data.shape)) * _repeat_blocks(
            scales, block, along, data.shape
        )
        s.end(s("Gather", s.const(real), s.input(1), axis=axis))
        return
    _gather_scaled_blocks(s, stored, zero, scales, (axis, along, block))


def _gather_scaled_blocks(s: Decomposition, stored: Array, zero: Array, scales: Array, places: tuple[int, int, int]) -> None:
    """(integers - zero points) * scales of the rows at the indices, the axis of blocks being two: blocks and elements."""
    axis, along, block = places
    blocks, length = scales.shape[along], stored.shape[along]
    padding = [(0, 0)] * stored.ndim
    padding[along] = (0, blocks * block - length)
    rows = np.pad(stored, padding)
    rows = rows.reshape(*rows.shape[:along], blocks, block, *rows.shape[along + 1 :])
    at = axis + (axis > along)
    value = s("Cast", s("Gather", s.const(rows), s.input(1), axis=at), to=s.element(2))
    if zero.any():
        value = s("Sub", value, s("Gather", s.const(np.expand_dims(zero, along + 1)), s.input(1), axis=at))
    value = s("Mul", value, s("Gather", s.const(np.expand_dims(scales, along + 1)), s.input(1), axis=at))
    indices = s.tensor(1).shape
    if indices is None:
        raise NoDefinitionError("indices of unknown rank")
    found = [*stored.shape[:axis], *indices, *stored.shape[axis + 1 :]]
    where = along if along < axis else along + len(indices) - 1
    following = reshape_sizes(found[where + 1 :])
    if following.count(-1) > 1:
        raise NoDefinitionError("several unknown sizes")
    value = s("Reshape", value, s.ints(*([0] * where), blocks * block, *following))
    if blocks * block != length:
        value = s("Slice", value, s.ints(0), s.ints(length), s.ints(where))
    s.end(value)


def _repeat_blocks(values: Array, block: int, axis: int, shape: tuple[int, ...]) -> Array:
    return np.take(np.repeat(values, block, axis), np.arange(shape[axis]), axis)


def _rotary(s: Decomposition) -> None:
    """onnxruntime's RotaryEmbedding(x, places, cosines, sines): ONNX's, with other places of the inputs."""
    if s.rank(1) != 2 or s.attribute("is_packed_batching", 0) or float(s.attribute("scale", 1.0)) != 1:
        raise NoDefinitionError("one first place, or packed batches")
    heads = int(s.attribute("num_heads", 0))
    width = s.shape_of(0, -1)
    if not heads and s.rank() == 3:
        heads = width // (2 * s.shape_of(2, -1))
    given = s.attributes("interleaved", "rotary_embedding_dim")
    s.end(s("RotaryEmbedding", s.x, s.input(2), s.input(3), s.input(1), num_heads=heads, **given))


DEFINITIONS: dict[str, Definition] = {
    "com.microsoft.EmbedLayerNormalization": _embed_layer_norm,
    "com.microsoft.QEmbedLayerNormalization": _quantized_embed_layer_norm,
    "com.microsoft.GatherBlockQuantized": _gather_blocks,
    "com.microsoft.RotaryEmbedding": _rotary,
}
