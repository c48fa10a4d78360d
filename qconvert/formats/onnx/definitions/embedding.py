"""Definitions of onnxruntime's operators on tables: EmbedLayerNormalization, its quantized form, GatherBlockQuantized, RotaryEmbedding, and
MatMulNBits where its weights are more than a quantization in blocks: an order of groups, zero points that are real numbers, or a coarser
product that the node allows (accuracy_level)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.arithmetic.storage import unpack_bits
from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definitions, NoDefinitionError
from qconvert.formats.onnx.model import carried_node
from qconvert.formats.onnx.qoperator.matrix import count_blocks
from qconvert.graph import Array, Graph, Op
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
        end = s.ints(length) if isinstance(length, int) else s("Slice", s("Shape", s.x), [1], [2])
        rows = s("Slice", s.input(3), [0], end, [0])
    total = s("Add", total, real(rows, 3))
    if s.input(1) and s.input(4):
        total = s("Add", total, real(s("Gather", s.input(4), s.input(1), axis=0), 4))
    factors = [real(s.input(index), index) for index in (5, 6)]
    result = s("LayerNormalization", total, *factors, axis=-1, epsilon=float(s.attribute("epsilon", 1e-12)))
    outputs = [*s.op.outputs, "", ""]
    if outputs[1]:
        counted = bool(s.input(7)) and bool(s.attribute("mask_index_type", 1))
        data = s.input(7) if counted else s("Mul", s.x, np.int32(0))
        s.end(s("ReduceSum", data, [1], keepdims=0), 1)
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
        s.end(s("Gather", real, s.input(1), axis=axis))
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
    value = s("Cast", s("Gather", rows, s.input(1), axis=at), to=s.element(2))
    if zero.any():
        value = s("Sub", value, s("Gather", np.expand_dims(zero, along + 1), s.input(1), axis=at))
    value = s("Mul", value, s("Gather", np.expand_dims(scales, along + 1), s.input(1), axis=at))
    indices = s.tensor(1).shape
    if indices is None:
        raise NoDefinitionError("indices of unknown rank")
    found = [*stored.shape[:axis], *indices, *stored.shape[axis + 1 :]]
    where = along if along < axis else along + len(indices) - 1
    following = reshape_sizes(found[where + 1 :])
    if following.count(-1) > 1:
        raise NoDefinitionError("several unknown sizes")
    value = s("Reshape", value, [*([0] * where), blocks * block, *following])
    if blocks * block != length:
        value = s("Slice", value, [0], [length], [where])
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


#: The accuracy_level at which onnxruntime's kernels round the data to int8, with a scale for each block of them.
_ROUNDS = 4


def _matmul_nbits(s: Decomposition) -> None:
    """x @ ((integers - zero points) * scales) + bias, in real numbers: accuracy_level names the least that a kernel may do.

    Without an order of groups and with packed zero points it is MatMulNBits of the highest accuracy, whose weights stay integers.
    """
    bits = int(s.attribute("bits", 4))
    points = s.input(3)
    if bits not in (2, 4, 8) or s.rank() < 2:
        raise NoDefinitionError("other bits than 2, 4 and 8, or a vector")
    sizes = {name: int(s.attribute(name, 0)) for name in ("K", "N", "block_size")}
    if s.attribute("weight_prepacked", 0):
        raise NoDefinitionError("weights packed for one device")
    if not s.input(4) and (not points or s.tensor(3).dtype == "uint8"):
        if not s.attribute("accuracy_level", 0):
            raise NoDefinitionError("a form that is read as it is")
        inputs = [s.input(index) for index in range(len(s.op.inputs))]
        s.end(s("MatMulNBits", *inputs, domain="com.microsoft", bits=bits, **sizes))
        return
    if s.input(4) and (bits != 4 or (points and s.tensor(3).dtype == "uint8")):
        raise NoDefinitionError("groups with packed zero points, for which onnxruntime ignores them, or with another number of bits than 4")
    weights = _weights(s, bits, sizes["K"], sizes["N"], sizes["block_size"])
    product = s("MatMul", s.x, weights)
    s.end(s("Add", product, s.input(5)) if s.input(5) else product)


def _weights(s: Decomposition, bits: int, depth: int, columns: int, block: int) -> Array:
    """The real weights (K,N)."""
    packed, scales = s.known(1), s.known(2)
    blocks, each = count_blocks(packed, scales, (columns, depth, block), bits), 8 // bits
    if not blocks:
        raise NoDefinitionError("sizes that do not fit")
    stored = unpack_bits(packed.reshape(columns, -1), bits)[:, :depth]
    if not s.input(3):
        zeros = np.full((columns, blocks), 2 ** (bits - 1), np.float32)
    elif s.tensor(3).dtype == "uint8":
        zeros = unpack_bits(_require_size(s.known(3), columns * -(-blocks // each)).reshape(columns, -1), bits)[:, :blocks].astype(
            np.float32
        )
    else:
        zeros = _require_size(s.known(3), columns * blocks).reshape(columns, blocks).astype(np.float32)
    groups = _require_size(s.known(4), depth, blocks * block)[:depth].astype(np.int64) if s.input(4) else np.arange(depth) // block
    if groups.min() < 0 or groups.max() >= blocks:
        raise NoDefinitionError("groups that do not exist")
    steps = scales.reshape(columns, blocks).astype(np.float32)
    real = (stored.astype(np.float32) - zeros[:, groups]) * steps[:, groups]
    return np.ascontiguousarray(real.T).astype(scales.dtype)


def coarse_product(graph: Graph, op: Op, data: Array) -> tuple[Array, Array, Array] | None:
    """Compute a MatMulNBits with accuracy_level 4, whose kernels may round the data, and bounds of a kernel's errors.

    Returns:
        the product in float64; the error bound of a kernel with each block of the data rounded to 127 steps of its largest magnitude; the
        error bound of a kernel in float32. None for any other node.
    """
    node = carried_node(op)
    if node is None:
        return None
    try:
        s = Decomposition(graph, op, node)
        bits, block = int(s.attribute("bits", 4)), int(s.attribute("block_size", 0))
        depth = int(s.attribute("K", 0))
        if int(s.attribute("accuracy_level", 0)) != _ROUNDS or bits not in (2, 4, 8) or block < 1 or data.shape[-1:] != (depth,):
            return None
        weights = _weights(s, bits, depth, int(s.attribute("N", 0)), block).astype(np.float64)
        bias = s.known(5).astype(np.float64) if s.input(5) else np.zeros(1)
    except (NoDefinitionError, ArithmeticError, LookupError, TypeError, ValueError):
        return None
    real = data.astype(np.float64)
    starts = np.arange(0, depth, block)
    steps = np.repeat(np.maximum.reduceat(np.abs(real), starts, axis=-1) / 127, block, axis=-1)[..., :depth]
    fine = (np.abs(real) @ np.abs(weights) + np.abs(bias)) * 2.0**-20
    return real @ weights + bias, steps / 2 @ np.abs(weights) + fine, fine


def _require_size(data: Array, *sizes: int) -> Array:
    """Flat data of one of the sizes."""
    if data.size not in sizes:
        raise NoDefinitionError("sizes that do not fit")
    return data.reshape(-1)


DEFINITIONS: Definitions = {
    "com.microsoft.EmbedLayerNormalization": _embed_layer_norm,
    "com.microsoft.QEmbedLayerNormalization": _quantized_embed_layer_norm,
    "com.microsoft.GatherBlockQuantized": _gather_blocks,
    "com.microsoft.RotaryEmbedding": _rotary,
    "com.microsoft.MatMulNBits": _matmul_nbits,
}
