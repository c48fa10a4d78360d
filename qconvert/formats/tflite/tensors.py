"""TFLite tensors: types, shapes, quantization and constant data, sparse ones made dense (schema.fbs, SparsityParameters)."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import contiguous_pieces, pack_bits, unpack_bits
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.files import release_pages
from qconvert.formats.flatbuffers import DeferredBytes
from qconvert.formats.reading.draft import Draft
from qconvert.formats.tflite.schema import decode_text, numbers_of
from qconvert.graph import Array, Quantization, Shape, integer_range, numpy_dtype
from qconvert.operators.sizes import UNKNOWN

_DENSE, _CSR = 0, 1
#: The most elements of a dense tensor: for each stored value, and in addition.
_MOST_EACH, _ALLOWANCE = 4096, 2**20


def leaves_of(sparsity: Any, shape: tuple[int, ...], stored: int) -> Array:
    """The place in the dense tensor, flat, of each value that a sparse tensor stores.

    Args:
        sparsity: the SparsityParameters table.
        shape: of the dense tensor.
        stored: how many values its buffer can hold at most.

    Raises:
        InvalidModelError: its tables contradict each other or the shape, or it is dense beyond all proportion to the file.
    """
    count = math.prod(shape)
    if count > _MOST_EACH * stored + _ALLOWANCE:
        raise _invalid(f"{stored} value{'s' * (stored != 1)} for {count:,} elements")
    order, blocks = numbers_of(sparsity.traversalOrder), numbers_of(sparsity.blockMap)
    levels = list(sparsity.dimMetadata)
    rank = len(shape)
    if sorted(order) != list(range(rank + len(blocks))) or len(levels) != len(order):
        raise _invalid(f"the order {order[:8]} and {len(levels)} levels for {rank} dimensions and {len(blocks)} blocks")
    if len(set(blocks)) != len(blocks) or not all(0 <= axis < rank for axis in blocks):
        raise _invalid(f"the blocks {blocks[:8]} of {rank} dimensions")
    sizes = _level_sizes(order, blocks, levels, shape)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(rank)]
    steps = [strides[axis] * math.prod(sizes[rank + k] for k, other in enumerate(blocks) if other == axis) for axis in range(rank)]
    steps += [strides[axis] for axis in blocks]
    places, nodes = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for level, dimension in zip(levels, order, strict=True):
        parents, indices, nodes = _children(level, sizes[dimension], nodes, count)
        places = places[parents] + indices * steps[dimension]
    if places.size != np.unique(places).size:
        raise _invalid("several values for one element")
    return places


def _level_sizes(order: list[int], blocks: list[int], levels: list[Any], shape: tuple[int, ...]) -> list[int]:
    """How many indices each dimension, and after them each block, has."""
    rank = len(shape)
    sizes = [*shape, *(0 for _ in blocks)]
    for level, dimension in zip(levels, order, strict=True):
        if dimension < rank:
            continue
        axis, size = blocks[dimension - rank], int(level.denseSize)
        if level.format != _DENSE or size < 1 or shape[axis] % size:
            raise _invalid(f"blocks of {size} in dimension {axis} of shape {list(shape)}")
        sizes[dimension], sizes[axis] = size, shape[axis] // size
    return sizes


def _children(level: Any, size: int, nodes: Array, most: int) -> tuple[Array, Array, Array]:
    """For each child of the nodes of a level the position of its parent among them, its index, and its number in the level below."""
    if level.format == _DENSE:
        if level.denseSize != size:
            raise _invalid(f"a dense level of {level.denseSize} for a dimension of {size}")
        if nodes.size * size > most:
            raise _invalid(f"more than {most:,} values")
        indices = np.tile(np.arange(size), nodes.size)
        return np.repeat(np.arange(nodes.size), size), indices, np.repeat(nodes, size) * size + indices
    if level.format != _CSR:
        raise _invalid(f"a level of format {level.format}")
    segments, listed = (_vector(table) for table in (level.arraySegments, level.arrayIndices))
    if segments.size < 1 or (nodes.size and segments.size < int(nodes.max()) + 2) or (np.diff(segments) < 0).any() or segments[0] < 0:
        raise _invalid(f"{segments.size} segments for {nodes.size} nodes, or not in order")
    if segments[-1] > listed.size or (listed < 0).any() or (listed >= size).any():
        raise _invalid(f"indices outside a dimension of {size}, or segments beyond {listed.size} of them")
    counts = segments[nodes + 1] - segments[nodes]
    total = int(counts.sum())
    if total > most:
        raise _invalid(f"more than {most:,} values")
    parents = np.repeat(np.arange(nodes.size), counts)
    numbers = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(segments[nodes], counts)
    return parents, listed[numbers], numbers


def _vector(table: Any) -> Array:
    """The numbers of a SparseIndexVector."""
    values = None if table is None else table.values
    return np.zeros(0, np.int64) if values is None else np.asarray(values).astype(np.int64)


def _invalid(what: str) -> InvalidModelError:
    return InvalidModelError(f"its sparsity states {what}", rule="invalid-sparsity")


#: The type of a tensor that stands for a variable. No canonical graph has one.
RESOURCE = "resource"

#: TensorType of the TFLite schema -> canonical dtype.
_DTYPES = {
    0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 5: "string", 6: "bool", 7: "int16", 8: "complex64",
    9: "int8", 10: "float64", 12: "uint64", 13: RESOURCE, 15: "uint32", 16: "uint16", 17: "int4", 18: "bfloat16", 19: "int2",
    20: "uint4",
}  # fmt: skip
#: The type of a list of tensors, which operators of TensorFlow alone take.
_VARIANT = 14
DTYPE_NUMBERS = {name: number for number, name in _DTYPES.items()}
PACKED_BITS = {"int4": 4, "uint4": 4, "int2": 2}
_QUANTIZED = {"int2", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "int64"}
_MAX_RANK = 64
#: A scale that takes what it multiplies, a bias of 40 bits included, far below half a step of any result.
_VANISHING = 2.0**-64
#: QuantizationDetails of the schema.
_BLOCKWISE = 2


def read_tensors(model: Any, data: mmap.mmap | bytes, draft: Draft, part: int = 0) -> list[str]:
    """Adds every tensor of a subgraph to the draft; returns their unique names in order.

    Raises InvalidModelError for a tensor that contradicts itself (shape against data …). Scales that mean nothing (zero, infinite, along an
    axis that is not there …) are noted in draft.unsound, as no operator may need them.
    """
    subgraph, buffers = model.subgraphs[part], model.buffers
    produced = _written_tensors(subgraph)
    inputs = set(numbers_of(subgraph.inputs))
    names: list[str] = []
    for index, tensor in enumerate(subgraph.tensors):
        name = decode_text(tensor.name) or f"tensor_{index}"
        try:
            dtype = dtype_of(tensor)
            shape = _shape(tensor, name, index not in produced or index in inputs)
            unknown = index in produced and index not in inputs and not shape  # an empty shape here often means "not known"
            if dtype == RESOURCE:
                names.append(_handle(draft, name, index in inputs))
                continue
            constant = None if index in produced else _constant(buffers, tensor, dtype, data)
            quantization, fault = _sound_quantization(tensor, dtype, shape)
            if tensor.quantization is not None and tensor.quantization.detailsType not in (0, 1):
                quantization, fault = _of_blocks(model, tensor, dtype, shape, data), ""
        except (InvalidModelError, UnsupportedError) as error:
            error.where = error.where or f"tensor {name!r}"
            raise
        if fault and constant is not None:
            quantization = _quantization_of_zeros(constant, tensor.quantization)
        stated = constant.shape if constant is not None else None if unknown else shape
        if dtype == "complex64":
            constant = None if constant is None else np.ascontiguousarray(constant)[..., None].view(np.float32)
            names.append(draft.add(name, "float32", None if stated is None else (*stated, 2), constant, None))
            draft.complex.add(names[-1])
            continue
        names.append(draft.add(name, dtype, stated, constant, quantization))
        if tensor.isVariable:
            draft.variables.add(names[-1])
        if fault:
            if quantization is None:
                draft.unsound[names[-1]] = fault
            draft.ignored_scales[names[-1]] = _stated_scales(tensor.quantization)
        if constant is not None and tensor.sparsity is not None:
            draft.densified.append(names[-1])
    return names


def _handle(draft: Draft, name: str, is_input: bool) -> str:
    """A tensor that stands for a variable."""
    if is_input:
        raise UnsupportedError("a variable as an input is not covered", rule="variable-operand")
    return draft.add(name, RESOURCE, ())


def _sound_quantization(tensor: Any, dtype: str, shape: Shape) -> tuple[Quantization | None, str]:
    """The quantization; or None and the fault, which matters only if an operator computes with the tensor."""
    try:
        return _quantization(tensor, dtype, shape), ""
    except InvalidModelError as error:
        return None, error.reason


def _quantization_of_zeros(constant: Array, params: Any) -> Quantization | None:
    """The quantization of a constant whose elements on the scale zero are all the zero point, with another scale there; else None.

    TensorFlow's converter gives that scale to real zeros in int16, and to channels of zeros in weights next to int16. A kernel's multiplier
    is zero there (QuantizeMultiplier, quantization_util.cc), whatever integers are multiplied; so is that of a channel's scale of 2^-64.
    """
    scale, points, axis = np.array(params.scale, np.float32), np.array(numbers_of(params.zeroPoint) or [0]), params.quantizedDimension
    is_zero = scale == 0
    if not constant.size or points.size not in (1, scale.size) or not (is_zero | (np.isfinite(scale) & (scale > 0))).all():
        return None
    if scale.size == 1:
        return Quantization.per_tensor(1.0, int(points[0])) if (constant == points[0]).all() else None
    if not 0 <= axis < constant.ndim or constant.shape[axis] != scale.size:
        return None
    points = np.broadcast_to(points, scale.shape)
    if (np.moveaxis(constant, axis, -1)[..., is_zero] != points[is_zero]).any():
        return None
    return Quantization.per_axis(np.where(is_zero, np.float32(_VANISHING), scale), axis, points)


def _stated_scales(params: Any) -> list[tuple[float, int]]:
    """(scale, zero point) for each index, as far as the file has them."""
    scales = numbers_of(params.scale)
    points = numbers_of(params.zeroPoint)
    return [(scale, points[i] if i < len(points) else points[0] if len(points) == 1 else 0) for i, scale in enumerate(scales)]


def _written_tensors(subgraph: Any) -> set[int]:
    """Indices of graph inputs and operator outputs: these are never constants, whatever their buffers hold."""
    vectors = [subgraph.inputs, *(operator.outputs for operator in subgraph.operators)]
    return {index for vector in vectors if vector is not None for index in vector.tolist()}


def dtype_of(tensor: Any) -> str:
    """The canonical type of a Tensor table; raises UnsupportedError for one that is not covered."""
    number = tensor.type
    if number == _VARIANT:
        raise UnsupportedError(
            "is a list of tensors (VARIANT), as TensorFlow's converter writes loops with Flex operators (FlexTensorListReserve …)",
            remedy="Convert the TensorFlow model again: recurrent layers with unroll=True, or loops of a fixed number of steps without "
            "tf.lite.OpsSet.SELECT_TF_OPS (converter._experimental_lower_tensor_list_ops = True).",
            rule="tensor-list",
        )
    if number not in _DTYPES:
        raise UnsupportedError(f"tensor type number {number} is not covered", rule="unknown-type")
    return _DTYPES[number]


def _shape(tensor: Any, name: str, is_input: bool) -> Shape:
    """The shape; -1 in shape_signature is a size dynamic, of inputs named "batch" at axis 0 and after the tensor elsewhere.

    The sizes of other tensors get the names that the operators before them give.
    """
    sizes = numbers_of(tensor.shape)
    signature = numbers_of(tensor.shapeSignature) or sizes
    if len(signature) != len(sizes) or len(sizes) > _MAX_RANK:
        raise InvalidModelError(f"shape {sizes[:8]} does not fit its signature {signature[:8]}", rule="shape-mismatch")
    if any(size < 0 for size in sizes) or any(size < -1 for size in signature):
        raise InvalidModelError(f"negative size in shape {sizes}", rule="negative-size")
    if math.prod(sizes) > 2**40:
        raise InvalidModelError(f"shape {sizes} has more than 2^40 elements", rule="too-many-elements")
    names = ("batch" if axis == 0 else f"{name}_{axis}" for axis in range(len(signature)))
    return tuple(size if size != -1 else symbol if is_input else UNKNOWN for size, symbol in zip(signature, names, strict=True))


def _constant(buffers: list[Any], tensor: Any, dtype: str, data: mmap.mmap | bytes) -> Array | None:
    """The data of a constant as a view on the file, or None for a tensor without data."""
    number = tensor.buffer
    if number >= max(len(buffers), 1):
        raise InvalidModelError(f"names buffer {number} of {len(buffers)}", rule="unknown-buffer")
    if tensor.isVariable:
        return None
    raw = bytes_of_buffer(buffers[number], data) if buffers else None
    sizes = tuple(numbers_of(tensor.shape))
    count = math.prod(sizes)
    if raw is None or (raw.size == 0 and count):
        return np.zeros(sizes, numpy_dtype(dtype)) if not count and number else None
    if dtype == "string":
        raise UnsupportedError("constant strings are not covered", rule="constant-strings")
    if tensor.sparsity is not None:
        return _densify(tensor.sparsity, raw, dtype, sizes)
    needed = byte_count(dtype, count)
    if raw.size != needed and not (dtype in PACKED_BITS and raw.size == count):
        raise InvalidModelError(
            f"shape {list(sizes)} of {dtype} needs {needed} bytes, its buffer holds {raw.size}", rule="buffer-too-short"
        )
    return _values(raw, dtype, count).reshape(sizes)


def byte_count(dtype: str, count: int) -> int:
    """The bytes of so many elements in a file."""
    return -(-count * PACKED_BITS[dtype] // 8) if dtype in PACKED_BITS else count * numpy_dtype(dtype).itemsize


def _values(raw: Array, dtype: str, count: int) -> Array:
    """The first values of a buffer, which has them all; those of 4 or 2 bits are sign extended."""
    if dtype not in PACKED_BITS:
        return raw != 0 if dtype == "bool" else raw.view(numpy_dtype(dtype))
    bits = PACKED_BITS[dtype]
    values = unpack_bits(raw, bits)[:count].astype(np.int8)
    if not dtype.startswith("u"):
        values = np.where(values >= 2 ** (bits - 1), values - 2**bits, values).astype(np.int8)
    unpacked: Array = values.astype(numpy_dtype(dtype))
    return unpacked


def _densify(sparsity: Any, raw: Array, dtype: str, sizes: tuple[int, ...]) -> Array:
    """A sparse constant with all its zeros."""
    item = numpy_dtype(dtype)
    places = leaves_of(sparsity, sizes, raw.size * 8 // PACKED_BITS.get(dtype, 8 * item.itemsize))
    needed = byte_count(dtype, places.size)
    if raw.size != needed:
        raise InvalidModelError(
            f"{places.size} values of {dtype} need {needed} bytes, its buffer holds {raw.size}", rule="buffer-too-short"
        )
    dense = np.zeros(math.prod(sizes), item)
    dense[places] = _values(raw, dtype, places.size)
    return dense.reshape(sizes)


def bytes_of_buffer(buffer: Any, data: mmap.mmap | bytes) -> Array | None:
    """Return the bytes of a buffer, which files above 2 GB have after the FlatBuffer (schema.fbs, Buffer.offset)."""
    return _bytes_at(buffer.data, buffer.offset, buffer.size, data)


def bytes_of_options(operator: Any, data: mmap.mmap | bytes) -> Array | None:
    """Return the options of a custom operator, which may lie after the FlatBuffer too (Operator.largeCustomOptionsOffset)."""
    return _bytes_at(operator.customOptions, operator.largeCustomOptionsOffset, operator.largeCustomOptionsSize, data)


def _bytes_at(inside: Array | None, offset: int, size: int, data: mmap.mmap | bytes) -> Array | None:
    return np.frombuffer(data, np.uint8, size, offset) if inside is None and offset > 1 and size else inside


#: Bytes of a constant from which on they are made as they are written.
_LARGE = 2**20


def constant_bytes(data: Array, dtype: str) -> bytes | memoryview | DeferredBytes:
    """The bytes of a constant in a file, types below 8 bits packed with the first value in the lowest bits."""
    if dtype not in PACKED_BITS and data.flags.c_contiguous:
        return data.reshape(-1).view(np.uint8).data
    found = DeferredBytes(byte_count(dtype, data.size), partial(_constant_pieces, data, dtype))
    return found if len(found) >= _LARGE else b"".join(found.pieces())


def _constant_pieces(data: Array, dtype: str) -> Iterator[bytes | memoryview]:
    bits = PACKED_BITS.get(dtype, 0)
    try:
        for piece in contiguous_pieces(data):
            yield pack_bits(piece.astype(np.int8).view(np.uint8) & (2**bits - 1), bits).tobytes() if bits else piece.view(np.uint8).data
    finally:  # also where only the first piece is asked for, by which equal constants are looked for
        release_pages(data)


def _quantization(tensor: Any, dtype: str, shape: Shape) -> Quantization | None:
    """Scales and zero points, or None. On types that cannot be quantized the file's values are statistics and are ignored."""
    params = tensor.quantization
    if params is None or dtype not in _QUANTIZED:
        return None
    if params.detailsType not in (0, 1):
        return None
    scale, points = params.scale, params.zeroPoint
    if scale is None or not scale.size:
        return None
    scale = np.array(scale, np.float32)
    zero_point = np.zeros(scale.size, np.int64) if points is None else np.array(points, np.int64)
    if dtype in ("int32", "int64") and not scale.any():
        return None  # plain integers that carry an empty entry
    _require_positive(scale)
    if zero_point.size not in (1, scale.size):
        raise InvalidModelError(f"{scale.size} scales and {zero_point.size} zero points", rule="counts-differ")
    _require_in_type(zero_point, dtype)
    if scale.size == 1:
        return Quantization(scale, zero_point[:1])
    # A one-dimensional tensor has one axis to run along; some converters write another number for biases.
    axis = 0 if len(shape) == 1 else params.quantizedDimension
    if not 0 <= axis < len(shape) or shape[axis] != scale.size:
        raise InvalidModelError(f"{scale.size} scales along axis {axis} of shape {list(shape)}", rule="counts-differ")
    return Quantization.per_axis(scale, axis, zero_point)


def _require_positive(scale: Array) -> None:
    finite = np.isfinite(scale)  # first, as numpy warns of NaN elsewhere
    wrong = scale[~finite] if not finite.all() else scale[scale <= 0]
    if wrong.size:
        # Weights get inf from TFLiteConverter where the scale of their data is 1e-43: it widens them until the bias fits its type.
        raise InvalidModelError(
            f"a scale is zero, negative or not finite: {wrong[:4].tolist()}. Converters write such scales where data were 0 throughout the "
            "calibration: quantize the model again with data that vary there",
            rule="scale-not-positive",
        )


def _require_in_type(zero_point: Array, dtype: str) -> None:
    low, high = integer_range(dtype)
    outside = zero_point[(zero_point < low) | (zero_point > high)]
    if outside.size:
        raise InvalidModelError(f"a zero point is outside {dtype}: {int(outside[0])}", rule="zero-point-outside-type")


def _of_blocks(model: Any, tensor: Any, dtype: str, shape: Shape, data: mmap.mmap | bytes) -> Quantization:
    """Scales in blocks along the last dimension, which lie in tensors of their own (schema.fbs, BlockwiseQuantization)."""
    details = tensor.quantization.details
    if tensor.quantization.detailsType != _BLOCKWISE or details is None:
        raise UnsupportedError("quantization along several axes is not covered", rule="several-axes")
    sizes = [size for size in shape if isinstance(size, int)]
    if dtype not in _QUANTIZED or not sizes or len(sizes) != len(shape):
        raise InvalidModelError(f"blocks of scales for {dtype} of shape {list(shape)}", rule="block-scales")
    block, along = int(details.blockSize), len(sizes) - 1
    shaped = numbers_of(details.blockShape)
    if shaped and (len(shaped) != len(sizes) or any(size != 1 for size in shaped[:-1]) or shaped[-1] != block):
        raise UnsupportedError(
            f"scales in blocks of shape {shaped[:8]} are not covered; blocks along the last dimension are", rule="block-scales"
        )
    if not 0 < block <= max(sizes[along], 1) or sizes[along] % block:
        raise InvalidModelError(f"blocks of {block} elements of {sizes[along]}", rule="block-scales")
    wanted = (*sizes[:along], sizes[along] // block)
    scale = _read_block_numbers(model, details.scales, wanted, ("float16", "float32", "bfloat16"), data).astype(np.float32)
    _require_positive(scale)
    if details.zeroPoints < 0 or details.zeroPoints == details.scales:  # an absent field is 0, which is a tensor too
        points = np.zeros(wanted, np.int64)
    else:
        points = _read_block_numbers(model, details.zeroPoints, wanted, tuple(_QUANTIZED), data).astype(np.int64)
    _require_in_type(points, dtype)
    return Quantization(scale, points, along, block)


def _read_block_numbers(model: Any, index: int, shape: tuple[int, ...], dtypes: tuple[str, ...], data: mmap.mmap | bytes) -> Array:
    """The data of the constant that has the scales or the zero points of blocks."""
    tensors = model.subgraphs[0].tensors
    if not 0 <= index < len(tensors):
        raise InvalidModelError(f"blocks of scales in tensor {index} of {len(tensors)}", rule="block-scales")
    dtype = dtype_of(tensors[index])
    found = _constant(model.buffers, tensors[index], dtype, data) if dtype in dtypes else None
    if found is None or found.shape != shape:
        words = "no constant" if found is None else f"of shape {list(found.shape)}"
        raise InvalidModelError(
            f"the scales of blocks are {words}, {dtype}, not {list(shape)} of {' or '.join(sorted(dtypes)[:3])}", rule="block-scales"
        )
    return found
