"""Parts of tensors, and tensors joined or padded: slices, splits, windows of one axis, concatenations, pads.

PyTorch lists pads from the last axis on: before and after it, before and after the one before it …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import cast_operand, common_type, emit_reshape, scalar, size_of, sizes_tensor
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization

#: What PyTorch writes for "to the end".
END = 2**63 - 1
_MOST_DIFFERENCES = 16


def emit_slice(c: Reading, name: str, axis: int, start: Any, end: Any, step: int = 1, hint: str = "") -> str:
    """The elements of one axis from `start` to before `end`, which may be numbers, from the end if negative, or Refs of numbers."""
    shape = c.lookup(name).shape
    size = None if shape is None else shape[axis]
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int) and step > 0:
        start, end = (min(max(value + size if value < 0 else value, 0), size) for value in (start, end))
        end = max(start, end)
        if start == 0 and end == size and step == 1:
            return name
    elif isinstance(start, int) and start == 0 and isinstance(end, int) and end >= END and step == 1:
        return name
    mark = f"{hint}_" if hint else ""
    bounds = [sizes_tensor(c, [value], f"{mark}{what}") for value, what in ((start, "start"), (end, "end"))]
    inputs = [name, *bounds, c.list64([axis], f"{mark}axis")]
    return c.emit("Slice", [*inputs, c.list64([step], f"{mark}step")] if step != 1 else inputs, hint=hint)


def read_slice(c: Reading) -> str:
    """aten::slice(x, dim, start, end, step)."""
    step = c.integer("step")
    if step < 1:
        raise c.invalid(f"the step of the slice is {step}", rule="step-out-of-range")
    start, end = (default if c[name] is None else c[name] for name, default in (("start", 0), ("end", END)))
    return emit_slice(c, c.name(), c.axis_of(), start, end, step)


def read_select(c: Reading) -> str:
    """aten::select(x, dim, index): one index of an axis, which goes."""
    axis = c.axis_of()
    index, size = c["index"], c.size(axis)
    if isinstance(index, int) and isinstance(size, int):
        index = c.axis(index, size)
    return c.emit("Gather", [c.name(), scalar(c, index, "index")], axis=axis)


def read_narrow(c: Reading) -> str:
    """aten::narrow(x, dim, start, length)."""
    name, axis, start, length = c.name(), c.axis_of(), c["start"], c["length"]
    if isinstance(start, Ref) and not start.number:
        start = Ref(emit_reshape(c, start.name, [], hint="start_number"), number=True)
    if isinstance(start, int) and isinstance(length, int):
        end: Any = start + length if start >= 0 or start + length < 0 else END
    else:
        end = Ref(c.emit("Add", [scalar(c, start, "from"), scalar(c, length, "length")], dtype="int64", hint="to"), number=True)
    return emit_slice(c, name, axis, start, end)


def _emit_split(c: Reading, axis: int, sizes: Sequence[int]) -> list[str]:
    """Parts of these sizes along an axis, one after the other."""
    name, size = c.name(), c.size(axis)
    if isinstance(size, int) and (sum(sizes) != size or min(sizes, default=0) < 0):
        raise c.invalid(f"the sizes {list(sizes)[:20]} do not add up to the {size} elements of the axis", rule="sizes-do-not-fit")
    if len(sizes) == 1:
        return [name]
    if not sizes:
        raise c.invalid("the list of sizes is empty", rule="sizes-do-not-fit")
    return c.emit_several("Split", [name, c.list64(sizes, "sizes")], len(sizes), axis=axis)


def read_chunk(c: Reading) -> list[str]:
    """aten::chunk(x, chunks, dim): parts of one size, of which the last may be smaller."""
    axis, chunks = c.axis_of(), c.integer("chunks")
    size = c.static_size(axis)
    if chunks < 1 or min(chunks, size) > 10_000:
        raise c.invalid(f"an axis of {size} cannot be split into {chunks} chunks", rule="too-many-elements")
    return _emit_split(c, axis, _chunk_sizes(size, max(-(-size // chunks), 1)))


def _chunk_sizes(size: int, part: int) -> list[int]:
    return [min(part, size - start) for start in range(0, max(size, 1), part)]


def read_split(c: Reading) -> list[str]:
    """aten::split(x, split_size, dim): parts of one size, or of those in a list."""
    axis, argument = c.axis_of(), c.arguments[1]
    if isinstance(c[argument], (list, tuple)):
        return _emit_split(c, axis, c.integers(argument))
    part, size = c.integer(argument), c.static_size(axis)
    if part < 1 or size // part > 10_000:
        raise c.invalid(f"an axis of {size} cannot be split into parts of {part}", rule="sizes-do-not-fit")
    return _emit_split(c, axis, _chunk_sizes(size, part))


def read_tensor_split(c: Reading) -> list[str]:
    """aten::tensor_split(x, sections or indices, dim): the first parts may be larger by one, or parts begin at indices."""
    axis = c.axis_of()
    size = c.static_size(axis)
    if "sections" in c:
        count = c.integer("sections")
        if not 0 < count <= 10_000:
            raise c.invalid(f"the number of sections is {count}", rule="sizes-do-not-fit")
        return _emit_split(c, axis, [size // count + (index < size % count) for index in range(count)])
    edges = [min(max(edge + size if edge < 0 else edge, 0), size) for edge in c.integers("indices")]
    return [emit_slice(c, c.name(), axis, start, end, hint=f"part{i}") for i, (start, end) in enumerate(pairwise([0, *edges, size]))]


def read_unbind(c: Reading) -> list[str]:
    """aten::unbind(x, dim): one tensor for each index of an axis."""
    axis = c.axis_of()
    count = c.static_size(axis)
    if not 0 < count <= 10_000:
        raise c.unsupported_error(f"an axis of {count}", rule="shape-not-covered")
    if count == 1:
        return [c.emit("Squeeze", [c.name(), c.list64([axis], "axes")])]
    return c.emit_several("Unpack", [c.name()], count, axis=axis)


def _names_to_concat(c: Reading, *arguments: str) -> list[str]:
    """The tensors that are joined in one type, without those of shape (0,), which torch.cat has always ignored."""
    names = [name for argument in arguments or ("tensors",) for name in c.names(argument)]
    kept = [name for name in names if c.lookup(name).shape != (0,)] or names[:1]
    if not kept:
        raise c.invalid("the list of tensors to concatenate is empty", rule="input-missing")
    if any(c.lookup(name).is_quantized for name in kept):
        return kept
    dtype = common_type(c, kept)
    return [cast_operand(c, name, dtype, f"part{index}") for index, name in enumerate(kept)]


def _emit_concat(c: Reading, names: Sequence[str], axis: int, quantization: Quantization | None = None) -> str:
    """Tensors one after the other, with the quantization of the first if no other is stated."""
    if len(names) == 1 and quantization is None and not c.activation:
        return names[0]
    label = c.lookup(names[0]).quantization if quantization is None else quantization
    if not c.activation:
        return c.emit("Concat", names, quantization=label, axis=axis)
    joined = c.emit("Concat", names, quantization=label, axis=axis, hint="joined")  # TFLite has no kernel for both
    return c.emit("Relu", [joined], quantization=label)


def read_cat(c: Reading) -> str:
    """aten::cat(tensors, dim): of quantized tensors, the first one's quantization is the result's."""
    names = _names_to_concat(c)
    rank = next((rank for name in names if (rank := c.lookup(name).rank) is not None), None)
    if rank is None:
        raise c.unknown_shape_of(names[0], "tensors")
    return _emit_concat(c, names, c.axis(c.integer("dim"), rank))


def read_quantized_cat(c: Reading) -> str:
    """quantized::cat(tensors, dim, scale, zero_point): each is rounded to the stated quantization, or the first one's."""
    names = c.names("qx")
    if not names:
        raise c.invalid("the list of tensors to concatenate is empty", rule="input-missing")
    first, axis = c.lookup(names[0]), c.axis(c.integer("dim"), len(c.shape_of(names[0])))
    quantization = first.quantization if c["scale"] is None else c.quantization(dtype=first.dtype)
    return _emit_concat(c, names, axis, quantization)


def read_stack(c: Reading) -> str:
    """aten::stack(tensors, dim): a new axis; tensors with several quantizations go onto the first one's."""
    names = _names_to_concat(c)
    axis = c.axis(c.integer("dim"), len(c.shape_of(names[0])) + 1)
    quantizations = [c.lookup(name).quantization for name in names]
    if all(quantization == quantizations[0] for quantization in quantizations):
        return c.emit("Pack", names, axis=axis)
    axes = c.list64([axis], "axes")
    return _emit_concat(c, [c.emit("Unsqueeze", [name, axes], hint=f"part{i}") for i, name in enumerate(names)], axis)


@with_arguments
def read_stack_along(c: Reading, fewest: int, axis: int) -> str:
    """aten::hstack, vstack, dstack: along an axis that tensors of lower rank get."""
    names, made = _names_to_concat(c), []
    for index, name in enumerate(names):
        rank = len(c.shape_of(name))
        sizes: list[Any] = [size_of(c, name, each) for each in range(rank)]
        if rank < fewest:
            front = [1] if fewest > 1 and rank < 2 else []
            sizes = [*front, *sizes] if rank else [1]
            sizes += [1] * (fewest - len(sizes))
            name = emit_reshape(c, name, sizes, hint=f"part{index}")
        made.append(name)
    return _emit_concat(c, made, min(axis, len(c.lookup(made[0]).shape or (0,)) - 1))


def read_differences(c: Reading) -> str:
    """aten::diff(x, n, dim, prepend, append): of neighbours along an axis, n times; of truth values whether they differ."""
    axis, times = c.axis_of(), c.integer("n")
    if not 0 <= times <= _MOST_DIFFERENCES:
        raise c.unsupported_error(f"n = {times}")
    names = _names_to_concat(c, "prepend", "self", "append") if times else [c.name()]
    c.require_plain(*names)
    name = names[0] if len(names) == 1 else c.emit("Concat", names, axis=axis, hint="joined")
    kind = "Xor" if c.lookup(name).dtype == "bool" else "Sub"
    for index in range(times):
        ends = [
            emit_slice(c, name, axis, start, end, hint=f"{hint}{index}") for start, end, hint in ((1, END, "next"), (0, -1, "previous"))
        ]
        name = c.emit(kind, ends, hint="" if index + 1 == times else f"differences{index}")
    return name


#: The most elements of windows of one axis.
_MOST_IN_WINDOWS = 2**20
#: PyTorch's modes -> ours.
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def emit_pad(c: Reading, pads: Sequence[Any], mode: str, value: float | None) -> str:
    """The argument `self` with pads from the last axis on. A value is rounded to the quantization of quantized data."""
    name, rank = c.name(), c.rank()
    if len(pads) % 2 or len(pads) > 2 * rank:
        raise c.invalid(f"there are {len(pads)} pads for {rank} axes", rule="counts-differ")
    if all(isinstance(pad, int) and pad == 0 for pad in pads):
        return name
    before = [0] * (rank - len(pads) // 2) + list(pads[::2])[::-1]
    following = [0] * (rank - len(pads) // 2) + list(pads[1::2])[::-1]
    inputs = [name, sizes_tensor(c, [*before, *following], "pads")]
    filler = c.filler(value, name, "padding") if mode == "constant" and value else ""  # without one it is real zero
    inputs += [filler] if filler else []
    return c.emit("Pad", inputs) if mode == "constant" else c.emit("Pad", inputs, mode=mode)


def read_pad(c: Reading) -> str:
    """aten::pad(x, pads, mode, value)."""
    if c["mode"] not in _MODES:
        raise c.invalid(f"the mode is {c['mode']!r}, not one of {', '.join(_MODES)}", rule="unknown-word")
    return emit_pad(c, c["pad"], _MODES[c["mode"]], None if c["value"] is None else c.number("value"))


def read_mode(c: Reading) -> str:
    """aten::reflection_pad2d, replication_pad1d and their kin."""
    pads = c["padding"]
    if len(pads) != 2 * c.spatial:
        raise c.invalid(f"there are {len(pads)} pads for {c.spatial} axes", rule="counts-differ")
    return emit_pad(c, pads, "reflect" if "reflection" in c.operator else "edge", None)


def read_windows(c: Reading) -> str:
    """aten::unfold(x, dimension, size, step): windows of one axis, whose elements get an axis at the end."""
    rank, size, step = c.rank(), c.integer("size"), c.integer("step")
    axis = c.axis_of("dimension")
    whole = c.static_size(axis)
    count = (whole - size) // step + 1 if step > 0 and 0 < size <= whole else 0
    if not 0 < count * size <= _MOST_IN_WINDOWS:
        raise c.invalid(f"windows of {size} in steps of {step} do not fit an axis of {whole}", rule="sizes-do-not-fit")
    places = c.const(np.arange(count)[:, None] * step + np.arange(size, dtype=np.int64), "places")
    if axis == rank - 1:
        return c.emit("Gather", [c.name(), places], axis=axis)
    found = c.emit("Gather", [c.name(), places], axis=axis, hint="windows")
    order = [other for other in range(rank + 1) if other != axis + 1]
    return c.emit("Transpose", [found], perm=(*order, axis + 1))


OPERATORS: Mapping[str, ReadFunction] = {
    "aten::pad(T self, l pad, s mode='constant', f? value=None)": read_pad,
    "aten::constant_pad_nd(T self, l pad, f value=0)": lambda c: emit_pad(c, c["pad"], "constant", c.number("value")),
    "aten::reflection_pad#d|replication_pad#d(T self, l padding)": read_mode,
    "aten::unfold(T self, i dimension, i size, i step)": read_windows,
    "aten::slice|slice_copy(T self, i dim=0, i? start=None, i? end=None, i step=1)": read_slice,
    "aten::select|select_copy(T self, i dim, i index)": read_select,
    **{f"aten::narrow(T self, i dim, {kind} start, i length)": read_narrow for kind in "iT"},
    "aten::chunk|unsafe_chunk(T self, i chunks, i dim=0)": read_chunk,
    "aten::split|unsafe_split|split_copy(T self, l split_size, i dim=0)": read_split,
    "aten::split_with_sizes|unsafe_split_with_sizes|split_with_sizes_copy(T self, l split_sizes, i dim=0)": read_split,
    "aten::tensor_split(T self, i sections, i dim=0)": read_tensor_split,
    "aten::tensor_split(T self, l indices, i dim=0)": read_tensor_split,
    "aten::unbind|unbind_copy(T self, i dim=0)": read_unbind,
    "aten::cat|concat|concatenate(t tensors, i dim=0)": read_cat,
    "quantized::cat|cat_relu(t qx, i dim, f? scale, i? zero_point)": read_quantized_cat,
    "aten::diff(T self, i n=1, i dim=-1, T? prepend=None, T? append=None)": read_differences,
    "aten::stack(t tensors, i dim=0)": read_stack,
    "aten::hstack(t tensors)": read_stack_along(1, 1),
    "aten::vstack(t tensors)": read_stack_along(2, 0),
    "aten::dstack(t tensors)": read_stack_along(3, 2),
}  # fmt: skip
