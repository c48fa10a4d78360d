"""torchao's operators: affine quantization with a scale for each block of elements, and tensors that keep others inside."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qconvert.formats.torch.ops.quantize import exact_scales
from qconvert.formats.torch.quantizing import (
    ROUNDED,
    decomposed_dequantize,
    decomposed_quantize,
    emit_dequantize,
    emit_quantize,
    float32,
    integer_zero_points,
    quantization_of_blocks,
    set_limits,
    stated_limits,
    verify_quantization,
)
from qconvert.formats.torch.reading import ReadFunction, Reading
from qconvert.formats.torch.stored_values import StoredTensor, WrappedTensor
from qconvert.graph import Array, Quantization
from qconvert.operators.values import Value


def read_inner(c: Reading) -> Any:
    """export::access_subclass_inner_tensor(x, attr): a part of a tensor that keeps others inside."""
    outer, name = c["src_subclass_tensor"], c["attr"]
    found = outer.parts.get(name) if isinstance(outer, WrappedTensor) else None
    if not isinstance(found, (StoredTensor, WrappedTensor)):
        raise c.invalid(f"the tensor subclass has no tensor {name!r}", rule="tensor-missing")
    return found


def _counts(c: Reading, shape: Sequence[int | str]) -> list[int | str]:
    """How many blocks there are along each axis."""
    sizes = c.integers("block_size")
    if len(sizes) != len(shape):
        raise c.invalid(f"blocks of shape {sizes} do not fit a tensor of shape {tuple(shape)}", rule="blocks-do-not-fit")
    found: list[int | str] = []
    for size, block in zip(shape, sizes, strict=True):
        if block < 1 or (isinstance(size, int) and size % block):
            raise c.invalid(f"blocks of shape {sizes} do not fit a tensor of shape {tuple(shape)}", rule="blocks-do-not-fit")
        if isinstance(size, str) and block != 1:
            raise c.unsupported_error(f"blocks of {block} along a size that is known only at run time", rule="not-constant")
        found.append(size if isinstance(size, str) else size // block)
    return found


def _quantization(c: Reading, dtype: str) -> tuple[Quantization, Array]:
    """The quantization of constant scales, one for each block, and the scales as the file has them."""
    shape = c.static_shape()
    counts = [int(count) for count in _counts(c, shape)]
    blocks = c.integers("block_size")
    scales, points = exact_scales(c)
    count = math.prod(counts)
    if scales.size != count or (points is not None and points.size not in (0, count)):
        raise c.invalid(f"the number of scales is {scales.size}, the number of blocks of shape {blocks} is {count}", rule="counts-differ")
    if count > 1 and math.prod(shape) > 2**31:
        raise c.invalid(f"the shape of the tensor is {shape}, which has no quantized form", rule="wrong-rank")
    zeros = integer_zero_points(c, points, scales.shape).reshape(counts)
    found = quantization_of_blocks(scales.reshape(counts), zeros, blocks)
    return verify_quantization(c, replace(found, scale=float32(found.scale)), dtype), found.scale


def _has_known_scales(c: Reading, counts: Sequence[int | str]) -> bool:
    """Whether scales are constants, of a constant or for the whole tensor."""
    return c.constant("scale") is not None and (c.constant("input") is not None or all(count == 1 for count in counts))


_SMALL = re.compile("(u?int)[1-7]")


def _per_block(c: Reading, name: str, counts: Sequence[int | str]) -> str:
    """Scales or zero points so that they broadcast with data of one block a row: of rank of the data, 1 where a block fills an axis."""
    rank = c.lookup(name).rank
    if rank in (0, len(counts)):
        return name
    axes = [axis for axis, count in enumerate(counts) if count == 1 and c.integers("block_size")[axis] != 1]
    if rank is None or rank + len(axes) != len(counts):
        raise c.unsupported_error(f"scales of rank {rank} for {len(counts)} axes")
    return c.emit("Unsqueeze", [name, c.list64(axes, "axes")], hint="blocks")


def _computed_scales(c: Reading, counts: Sequence[int | str]) -> tuple[str, str]:
    """Scales, and zero points or "", that are computed: for blocks that fill an axis, or have one element of it."""
    for count, block in zip(counts, c.integers("block_size"), strict=True):
        if count != 1 and block != 1:
            raise c.unsupported_error(
                f"blocks of shape {c.integers('block_size')} whose scales are computed at run time", rule="not-constant"
            )
    point = _per_block(c, c.name("zero_point"), counts) if c["zero_point"] is not None else ""
    return _per_block(c, c.name("scale"), counts), point


def read_quantize(c: Reading) -> Value:
    """torchao::quantize_affine(x, block_size, scale, zero_point, output_dtype, quant_min, quant_max)."""
    dtype = c.dtype("output_dtype") or "int8"
    if match := _SMALL.fullmatch(dtype):  # fewer bits than 8 are stored as 8 bits
        dtype = f"{match[1]}8"
    limits = stated_limits(c, dtype)
    counts = _counts(c, c.operand().shape or ())
    if _has_known_scales(c, counts):
        quantization, exact = _quantization(c, dtype)
        return emit_quantize(c, c.name(), dtype, set_limits(c, quantization, dtype), ROUNDED, exact)
    return decomposed_quantize(c, c.name(), *_computed_scales(c, counts), limits, dtype)


def read_dequantize(c: Reading) -> Value:
    """torchao::dequantize_affine(q, block_size, scale, zero_point, input_dtype, quant_min, quant_max, output_dtype)."""
    tensor = c.operand()
    counts = _counts(c, tensor.shape or ())
    if _has_known_scales(c, counts):
        quantization, _ = _quantization(c, tensor.dtype)
        if c.constant("input") is not None:
            quantization = set_limits(c, quantization, tensor.dtype)
        return emit_dequantize(c, c.label_tensor(tensor, quantization))
    return decomposed_dequantize(c, tensor.name, *_computed_scales(c, counts))


_BLOCKS = "T input, l block_size, T scale, T? zero_point"
_LIMITS = "f? quant_min=None, f? quant_max=None"

OPERATORS: Mapping[str, ReadFunction] = {
    "export::access_subclass_inner_tensor(o src_subclass_tensor, s attr)": read_inner,
    f"torchao::quantize_affine({_BLOCKS}, i output_dtype, {_LIMITS})": read_quantize,
    f"torchao::dequantize_affine({_BLOCKS}, i input_dtype, {_LIMITS}, i? output_dtype=None)": read_dequantize,
}
