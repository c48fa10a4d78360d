"""Elements chosen by indices or by truth values, and rows of quantized tables: quantized::embedding_byte and its kin.

Each row of a table has a scale and a real zero point; results are real.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import unpack_bits
from qconvert.formats.torch.operands import cast_operand, common_type, emit_broadcast, emit_transpose, scalar
from qconvert.formats.torch.ops.slice_concat import emit_slice
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments, with_unused
from qconvert.formats.torch.stored_values import StoredTensor
from qconvert.formats.torch.values import Ref, Uncomputed
from qconvert.graph import Array

_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax")
#: Bags of different sizes beyond which a model is not decomposed.
_MOST_BAGS = 256


def _bits(c: Reading) -> int:
    """How many bits a table's integers have, as the operator's name says."""
    return 4 if "4bit" in c.operator else 8


def _table(c: Reading, weight: StoredTensor) -> Array:
    """The integers of a table, one a byte."""
    if len(weight.shape) != 2 or weight.scales is None or weight.scales.shape != weight.shape[:1]:
        raise c.invalid(f"a table of shape {weight.shape} requires one scale for each row", rule="counts-differ")
    if _bits(c) == 8:
        return np.ascontiguousarray(weight.data)
    rows, columns = weight.shape
    flat = unpack_bits(weight.data, 4).reshape(-1)
    stride = (columns + 1) // 2 * 2
    if flat.size < rows * stride:
        raise c.invalid(f"{weight.data.size} bytes do not fit a table of shape {weight.shape}", rule="counts-differ")
    return flat[: rows * stride].reshape(rows, stride)[:, :columns].copy()


def _rows(c: Reading, hint: str = "") -> str:
    """The rows that the argument `indices` names, as float values."""
    packed = c.packed_parameters("weight")
    weight = packed.weight
    if weight.scales is None or weight.zero_points is None:
        raise c.invalid("the table has no scales", rule="not-quantized")
    scales, points = weight.scales.astype(np.float32), weight.zero_points.astype(np.float32)
    with np.errstate(all="ignore"):
        offsets = -points * scales
        if _bits(c) == 4:  # what packing keeps next to the integers is in float16 then
            scales, offsets = (values.astype(np.float16).astype(np.float32) for values in (scales, offsets))
    if not (np.isfinite(scales).all() and np.isfinite(offsets).all()):
        raise c.invalid("a scale or zero point is not finite", rule="scale-not-finite")
    indices = indices_of(c, c.name("indices"), weight.shape[0])
    made = {"weight": lambda: _table(c, weight), "scale": lambda: scales[:, None], "offset": lambda: offsets[:, None]}
    tables = {name: c.draft.variant_of(packed.name, name, make) for name, make in made.items()}
    chosen = [c.emit("Gather", [table, indices], hint=f"{name}_rows", axis=0) for name, table in tables.items()]
    real = c.emit("Cast", [chosen[0]], hint="integers", to="float32")
    scaled = c.emit("Mul", [real, chosen[1]], hint="scaled")
    return c.emit("Add", [scaled, chosen[2]], hint=hint)


def _reduce_bags(c: Reading, rows: str) -> str:
    """The sum, mean or largest of the rows of each bag: those of one row of indices, or from one offset to the next."""
    mode = c.integer("mode")
    if c.get("per_sample_weights") is not None or not 0 <= mode < len(_REDUCTIONS):
        raise c.unsupported_error(f"weights for each sample, or mode {mode},")
    kind, rank = _REDUCTIONS[mode], c.rank("indices")
    if rank == 2:
        return c.emit(kind, [rows, c.list64([1], "axes")], keepdims=0)
    offsets, count = c.constant("offsets"), (c.operand("indices").shape or (None,))[0]
    if offsets is None or not isinstance(count, int):
        raise c.unsupported_error("offsets or indices whose number is known only at run time", rule="not-constant")
    edges = [int(edge) for edge in offsets.reshape(-1)]
    edges += [] if c["include_last_offset"] else [count]
    sizes = np.diff(edges)
    if not edges or edges[0] != 0 or edges[-1] != count or (sizes < 0).any():
        raise c.invalid(f"the offsets {edges[:20]} do not divide {count} indices", rule="index-out-of-range")
    width = (c.lookup(rows).shape or (0, 0))[1]
    if sizes.size and (sizes == sizes[0]).all() and sizes[0]:
        bags = c.emit("Reshape", [rows, c.list64([len(sizes), int(sizes[0]), int(width)], "bags_shape")], hint="bags")
        return c.emit(kind, [bags, c.list64([1], "axes")], keepdims=0)
    if len(sizes) > _MOST_BAGS:
        raise c.unsupported_error(f"{len(sizes)} bags of different sizes")
    parts = []
    for index, (start, size) in enumerate(zip(edges, sizes, strict=False)):
        if not size:  # in any mode
            parts.append(c.const(np.zeros((1, int(width)), np.float32), f"empty{index}"))
            continue
        part = emit_slice(c, rows, 0, start, start + int(size), hint=f"bag{index}")
        parts.append(c.emit(kind, [part, c.list64([0], f"axes{index}")], hint=f"total{index}", keepdims=1))
    return c.emit("Concat", parts, axis=0)


def read_bags(c: Reading) -> str:
    """quantized::embedding_bag_byte, embedding_bag_4bit, without maps of pruned rows."""
    if c.get("compressed_indices_mapping") is not None and c["pruned_weights"]:
        raise c.unsupported_error("pruned rows")
    return _reduce_bags(c, _rows(c, "rows"))


_BAGS = (
    "o weight, T indices, T? offsets=None, b scale_grad_by_freq=False, i mode=0, b pruned_weights=False, T? per_sample_weights=None, "
    "T? compressed_indices_mapping=None, b include_last_offset=False"
)
_FOR_GRADIENT = Uncomputed("what embedding_bag keeps for its gradient")
_FLOAT = (
    "T weight, T indices, T offsets, b scale_grad_by_freq=False, i mode=0, b sparse=False, T? per_sample_weights=None, "
    "b include_last_offset=False, i? padding_idx=None"
)


def indices_of(c: Reading, name: str, size: int | str | None) -> str:
    """Indices as the graph takes them: constants are counted from 0 on, truth values that are known become positions."""
    tensor, known = c.lookup(name), c.known(name)
    if tensor.dtype == "bool":
        if known is None or known.ndim != 1:
            raise c.unsupported_error("truth values as indices, whose count is known only at run time,", rule="not-constant")
        return c.const(np.flatnonzero(known).astype(np.int64), "positions")
    if tensor.dtype not in ("int64", "int32"):
        name = cast_operand(c, name, "int64", "indices")
    if known is None or not (known.astype(np.int64) < 0).any():
        return name
    if not isinstance(size, int):
        return name
    return c.const(np.where(known < 0, known.astype(np.int64) + size, known.astype(np.int64)), "indices")


def read_index_select(c: Reading) -> str:
    """aten::index_select(x, dim, index): the elements of an axis in the order of a list."""
    axis = c.axis_of()
    return c.emit("Gather", [c.name(), indices_of(c, c.name("index"), c.size(axis))], axis=axis)


def read_gather(c: Reading) -> str:
    """aten::gather(x, dim, index): for each index its element of the axis, at the index's own place otherwise."""
    name, rank = c.name(), c.rank()
    axis = c.axis_of()
    wanted, shape = c.operand("index").shape, c.operand().shape or ()
    if wanted is None or len(wanted) != rank:
        raise c.invalid(f"indices of shape {wanted} do not fit data of rank {rank}", rule="shape-mismatch")
    for each, (size, have) in enumerate(zip(wanted, shape, strict=True)):
        if each != axis and isinstance(size, int) and size != have:
            name = emit_slice(c, name, each, 0, size, hint=f"first{each}")
    return c.emit("GatherElements", [name, indices_of(c, c.name("index"), shape[axis])], axis=axis)


def read_indices(c: Reading) -> tuple[list[int], list[str]]:
    """The axes that the argument `indices` has a tensor for, and these tensors."""
    items = c.items("indices")
    chosen = [axis for axis, item in enumerate(items) if item is not None]
    if len(items) > c.rank() or not chosen:
        raise c.invalid(f"there are {len(items)} indices for {c.rank()} axes", rule="counts-differ")
    return chosen, c.names("indices")


def read_index(c: Reading) -> str:
    """aten::index(x, indices), x[a, :, b]: one tensor of indices for each axis or None; tensors of several axes go together."""
    chosen, names = read_indices(c)
    first = names[0]
    if chosen == [0] and c.lookup(first).dtype == "bool" and c.known(first) is None:
        return c.emit("GatherND", [c.name(), emit_places(c, first, "rows")])
    names = [indices_of(c, name, c.size(axis)) for axis, name in zip(chosen, names, strict=True)]
    if len(chosen) == 1:
        return c.emit("Gather", [c.name(), names[0]], axis=chosen[0])
    return _gather_axes(c, chosen, names, c.rank())


def combine_indices(c: Reading, names: list[str]) -> tuple[str, list[Any]]:
    """Indices of several axes as one tensor of places, and the sizes of their common shape."""
    wide, sizes = emit_broadcast(c, [cast_operand(c, name, "int64", f"index{i}") for i, name in enumerate(names)])
    return c.emit("Pack", wide, hint="indices", axis=len(sizes)), sizes


def _gather_axes(c: Reading, chosen: list[int], names: list[str], rank: int) -> str:
    """Several axes at once: they come to the front, one GatherND takes them, and their place is the first's if they are neighbours."""
    index, sizes = combine_indices(c, names)
    rest = [axis for axis in range(rank) if axis not in chosen]
    data = emit_transpose(c, c.name(), (*chosen, *rest), "front")
    neighbours = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
    first = chosen[0] if neighbours else 0
    found = c.emit("GatherND", [data, index], hint="found" if first else "")
    if not first:
        return found
    count = len(sizes)
    order = (*range(count, count + first), *range(count), *range(count + first, count + len(rest)))
    return c.emit("Transpose", [found], perm=order)


def read_masked_fill(c: Reading) -> str:
    """aten::masked_fill(x, mask, value): the value where the mask is true, with the quantization of quantized data."""
    name = c.name()
    tensor, mask = c.lookup(name), cast_operand(c, c.name("mask"), "bool", "mask")
    value = c["value"]
    known = c.constant("value") if isinstance(value, Ref) else np.asarray(value)
    if known is not None and known.size == 1:
        filler = c.filler(float(known.reshape(())), name, "value")
    elif tensor.is_quantized:
        raise c.unsupported_error("a value that is computed at run time, of quantized data,", rule="not-constant")
    else:
        filler = cast_operand(c, value, tensor.dtype, "value")
    return c.emit("Where", [mask, filler, name], dtype=tensor.dtype, quantization=tensor.quantization)


def read_where(c: Reading) -> str:
    """aten::where(condition, a, b): elements of a where it is true, else of b, in the type of both together."""
    condition = cast_operand(c, c.name("condition"), "bool", "condition")
    values = [c["self"], c["other"]]
    dtype = common_type(c, values)
    names = [cast_operand(c, value, dtype, hint) for value, hint in zip(values, ("yes", "no"), strict=True)]
    tensors = [c.lookup(name) for name in names]
    quantization = next((tensor.quantization for tensor in tensors if tensor.is_quantized), None)
    if quantization is not None and any(tensor.quantization != quantization for tensor in tensors):
        raise c.unsupported_error("data with per-channel scales", rule="quantized-data")
    return c.emit("Where", [condition, *names], quantization=quantization)


def emit_places(c: Reading, name: str, hint: str = "") -> str:
    """The places of what is not 0, one in each row."""
    return c.emit("Transpose", [c.emit("NonZero", [name], hint="places")], perm=(1, 0), hint=hint)


def emit_embedding(c: Reading, hint: str = "") -> str:
    """Rows of the table `weight`."""
    return c.emit("Gather", [c.name("weight"), indices_of(c, c.name("indices"), None)], hint=hint, axis=0)


def read_one_hot(c: Reading) -> str:
    """aten::one_hot(x, num_classes): 1 at the place that a number says."""
    count = c.integer("num_classes")
    if count < 1:
        raise c.unsupported_error("a number of classes that is counted at run time", rule="not-constant")
    return c.emit("OneHot", [c.name(), scalar(c, count, "depth"), c.list64([0, 1], "values")], dtype="int64")


@with_arguments
def read_triangle(c: Reading, upper: bool) -> str:
    """aten::tril, triu: 0 above or below a diagonal."""
    c.require_plain(c.name())
    return c.emit("Trilu", [c.name(), scalar(c, c.integer("diagonal"), "diagonal")], upper=int(upper))


OPERATORS: Mapping[str, ReadFunction] = {
    "quantized::embedding_byte|embedding_4bit(o weight, T indices, b pruned_weights=False)": _rows,
    f"quantized::embedding_bag_byte|embedding_bag_4bit({_BAGS})": read_bags,
    f"aten::embedding_bag|_embedding_bag|_embedding_bag_forward_only({_FLOAT})": with_unused(
        lambda c: _reduce_bags(c, emit_embedding(c, "rows")), _FOR_GRADIENT, 3
    ),
    "aten::index_select(T self, i dim, T index)": read_index_select,
    "aten::gather(T self, i dim, T index, b sparse_grad=False)": read_gather,
    "aten::index|_unsafe_index(T self, t indices)": read_index,
    "aten::masked_fill(T self, T mask, x value)": read_masked_fill,
    "aten::where(T condition, x self, x other)": read_where,
    "aten::nonzero(T self)": lambda c: emit_places(c, c.name()),
    "aten::embedding(T weight, T indices, i padding_idx=-1, b scale_grad_by_freq=False, b sparse=False)": emit_embedding,
    "aten::one_hot(T self, i num_classes=-1)": read_one_hot,
    "aten::tril(T self, i diagonal=0)": read_triangle(upper=False),
    "aten::triu(T self, i diagonal=0)": read_triangle(upper=True),
}
