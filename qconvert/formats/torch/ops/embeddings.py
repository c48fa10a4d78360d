"""Tables of rows with a scale and a real zero point each: quantized::embedding_byte and its kin, whose results are real.

row = q * scale - zero_point * scale, with four bits a value in the 4-bit form, the lower ones first.
Source: aten/src/ATen/native/quantized/cpu/qembeddingbag.cpp and qembeddingbag_prepack.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.ops.gathering import indices_of
from qconvert.formats.torch.ops.slice_concat import emit_slice
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.stored_values import StoredTensor
from qconvert.formats.torch.values import Ref, Uncomputed
from qconvert.graph import Array

__all__ = ["OPERATORS"]

_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax")
#: Bags of different sizes beyond which a model is not decomposed.
_MOST_BAGS = 256


def _table(c: Call, weight: StoredTensor, bits: int) -> Array:
    """The integers of a table, one a byte."""
    if len(weight.shape) != 2 or weight.scales is None or weight.scales.shape != weight.shape[:1]:
        raise c.invalid(f"a table of shape {weight.shape} requires one scale for each row", rule="counts-differ")
    if bits == 8:
        return np.ascontiguousarray(weight.data)
    rows, columns = weight.shape
    flat = np.stack([weight.data & 15, weight.data >> 4], axis=-1).reshape(-1)
    stride = (columns + 1) // 2 * 2
    if flat.size < rows * stride:
        raise c.invalid(f"{weight.data.size} bytes do not fit a table of shape {weight.shape}", rule="counts-differ")
    return flat[: rows * stride].reshape(rows, stride)[:, :columns].copy()


def _rows(c: Call, bits: int, hint: str = "") -> Ref:
    """The rows that the argument `indices` names, as float values."""
    packed = c.packed_parameters("weight")
    weight = packed.weight
    if weight.scales is None or weight.zero_points is None:
        raise c.invalid("the table has no scales", rule="not-quantized")
    scales, points = weight.scales.astype(np.float32), weight.zero_points.astype(np.float32)
    with np.errstate(all="ignore"):
        offsets = -points * scales
        if bits == 4:  # what packing keeps next to the integers is in float16 then
            scales, offsets = (values.astype(np.float16).astype(np.float32) for values in (scales, offsets))
    if not (np.isfinite(scales).all() and np.isfinite(offsets).all()):
        raise c.invalid("a scale or zero point is not finite", rule="scale-not-finite")
    indices = indices_of(c, c.name("indices"), weight.shape[0])
    made = {"weight": lambda: _table(c, weight, bits), "scale": lambda: scales[:, None], "offset": lambda: offsets[:, None]}
    tables = {name: c.session.draft.variant_of(packed.name, name, make) for name, make in made.items()}
    chosen = [c.emit("Gather", [table, indices], hint=f"{name}_rows", axis=0).name for name, table in tables.items()]
    real = c.emit("Cast", [chosen[0]], dtype="float32", quantization=None, hint="integers", to="float32")
    scaled = c.emit("Mul", [real.name, chosen[1]], hint="scaled")
    return c.emit("Add", [scaled.name, chosen[2]], hint=hint)


def read_rows(bits: int) -> Operator:
    """quantized::embedding_byte, embedding_4bit."""
    return Operator("o weight, T indices, b pruned_weights=False", lambda c: _rows(c, bits))


def _reduce_bags(c: Call, rows: Ref) -> Ref:
    """The sum, mean or largest of the rows of each bag: those of one row of indices, or from one offset to the next."""
    mode = c.integer("mode")
    if c.get("per_sample_weights") is not None or not 0 <= mode < len(_REDUCTIONS):
        raise c.unsupported_error(f"weights for each sample, or mode {mode},", rule="form-not-covered")
    kind, rank = _REDUCTIONS[mode], c.rank("indices")
    if rank == 2:
        return c.emit(kind, [rows.name, c.list64([1], "axes")], keepdims=0)
    offsets, count = c.constant("offsets"), (c.operand("indices").shape or (None,))[0]
    if offsets is None or not isinstance(count, int):
        raise c.unsupported_error("offsets or indices whose number is known only at run time", rule="not-constant")
    edges = [int(edge) for edge in offsets.reshape(-1)]
    edges += [] if c["include_last_offset"] else [count]
    sizes = np.diff(edges)
    if not edges or edges[0] != 0 or edges[-1] != count or (sizes < 0).any():
        raise c.invalid(f"the offsets {edges[:20]} do not divide {count} indices", rule="index-out-of-range")
    width = (c.lookup(rows.name).shape or (0, 0))[1]
    if sizes.size and (sizes == sizes[0]).all() and sizes[0]:
        bags = c.emit("Reshape", [rows.name, c.list64([len(sizes), int(sizes[0]), int(width)], "bags_shape")], hint="bags")
        return c.emit(kind, [bags.name, c.list64([1], "axes")], keepdims=0)
    if len(sizes) > _MOST_BAGS or (sizes == 0).any():
        raise c.unsupported_error(f"{len(sizes)} bags of different sizes, or empty ones,", rule="form-not-covered")
    parts = []
    for index, (start, size) in enumerate(zip(edges, sizes, strict=False)):
        part = emit_slice(c, rows.name, 0, start, start + int(size), hint=f"bag{index}")
        parts.append(c.emit(kind, [part.name, c.list64([0], f"axes{index}")], hint=f"total{index}", keepdims=1).name)
    return c.emit("Concat", parts, axis=0)


def read_bags(bits: int) -> Operator:
    """quantized::embedding_bag_byte, embedding_bag_4bit, without maps of pruned rows."""

    def read(c: Call) -> Ref:
        if c.get("compressed_indices_mapping") is not None and c["pruned_weights"]:
            raise c.unsupported_error("pruned rows", rule="form-not-covered")
        return _reduce_bags(c, _rows(c, bits, "rows"))

    rest = "b pruned_weights=False, T? per_sample_weights=None, T? compressed_indices_mapping=None, b include_last_offset=False"
    return Operator(f"o weight, T indices, T? offsets=None, b scale_grad_by_freq=False, i mode=0, {rest}", read)


def read_float_bags(c: Call) -> tuple[Any, ...]:
    """aten::embedding_bag: of a table of float values."""
    rows = c.emit("Gather", [c.name("weight"), indices_of(c, c.name("indices"), None)], hint="rows", axis=0)
    return (_reduce_bags(c, rows), *(Uncomputed("what embedding_bag keeps for its gradient") for _ in range(3)))


_FLOAT = (
    "T weight, T indices, T offsets, b scale_grad_by_freq=False, i mode=0, b sparse=False, T? per_sample_weights=None, "
    "b include_last_offset=False, i? padding_idx=None"
)

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "quantized::embedding_byte": read_rows(8),
    "quantized::embedding_4bit": read_rows(4),
    "quantized::embedding_bag_byte": read_bags(8),
    "quantized::embedding_bag_4bit": read_bags(4),
    **{f"aten::{name}": Operator(_FLOAT, read_float_bags) for name in ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")},
}
