"""Data movement: on stored integers, which it never changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.initializers import ELEMENT_TYPES
from qconvert.formats.onnx.model import carried_node
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.values import axes, place_of
from qconvert.graph import Graph, Op, Quantization

#: Integer types for which onnxruntime's CPU provider lacks a kernel of a data movement operator (1.31).
_NO_KERNEL = {"Pad": ("int16", "uint16"), "Tile": ("int16", "uint16"), "Slice": (), "Expand": ("int16", "uint16")}


def write_data_movement(op: Op, b: Builder, parameters: list[str], **attributes: Any) -> None:
    """Data movement of the stored values of input 0; of float or int32 values where onnxruntime has no kernel for the type."""
    tensor = b.operand(op)
    if tensor.dtype not in _NO_KERNEL.get(op.kind, ()):
        b.node(op.kind, [b.stored_value(tensor.name), *parameters], op.outputs, **attributes)
    elif tensor.quantization is not None:
        b.compute(op, [b.float_value(tensor.name), *parameters], **attributes)
    else:
        wide = b.cast(b.stored_value(tensor.name), "int32")
        result = b.node(op.kind, [wide, *parameters], hint=f"{op.outputs[0]}/int32", **attributes)
        b.cast(result[0], tensor.dtype, op.outputs[0])


def read_same_form(r: Reading) -> None:
    """An operator with the same inputs here: Tile, Expand."""
    r.emit(r.op_type, [r.input(0), r.fold_input(1)])


def read_reshape(r: Reading) -> None:
    """Reshape; 0 copies a size."""
    sizes = r.fold_input(1)
    known = r.lookup(sizes).data
    if known is None and (found := r.constant_sizes(r.input(0), sizes)) is not None:
        r.emit("Reshape", [r.input(0), r.list64(found, "shape")])
        return
    allowzero = r.attribute("allowzero", 0) if known is None or 0 in known else 0
    extra: dict[str, Any] = {"allowzero": 1} if allowzero else {}
    r.emit("Reshape", [r.input(0), sizes], **extra)


def read_flatten(r: Reading) -> None:
    """Flatten as a Reshape to two dimensions."""
    axis, shape = r.attribute("axis", 1), r.tensor(0).shape
    if axis == 1 or (axis == 0 and shape is not None):
        sizes = [0, -1] if axis else [1, -1]
    elif shape is None:
        raise NotCoveredError("data of unknown rank")
    else:
        front = shape[: axis % len(shape) if axis < 0 else axis]
        if any(isinstance(size, str) for size in front) or 0 in shape:
            raise NotCoveredError(f"axis {axis} of shape {shape}")
        sizes = [int(np.prod([int(size) for size in front], dtype=np.int64)), -1]
    r.emit("Reshape", [r.input(0), r.list64(sizes, "shape")])


def read_squeeze(r: Reading) -> None:
    """Squeeze: axes are an attribute before opset 13; without any, all axes of size 1."""
    axes = r.attribute("axes") if r.version < 13 else r.ints(1) if r.has(1) else None
    if axes is None:
        shape = r.tensor(0).static_shape
        if shape is None:
            raise NotCoveredError(f"no axes for data of shape {r.tensor(0).shape}")
        axes = [axis for axis, size in enumerate(shape) if size == 1]
    elif r.has(1):
        r.emit("Squeeze", [r.input(0), r.fold_input(1)])
        return
    r.emit("Squeeze", [r.input(0), r.list64(axes, "axes")])


def read_unsqueeze(r: Reading) -> None:
    """Unsqueeze: axes are an attribute before opset 13."""
    axes = r.list64(r.attribute("axes", ()), "axes") if r.version < 13 else r.fold_input(1)
    if r.lookup(axes).data is None:
        raise NotCoveredError("axes that are computed at run time")
    r.emit("Unsqueeze", [r.input(0), axes])


def write_same_form(op: Op, b: Builder) -> None:
    """An operator with the same inputs in ONNX: Reshape, Squeeze, Unsqueeze, Tile, Expand, Slice."""
    write_data_movement(op, b, [b.stored_value(name) for name in op.inputs[1:]])


def read_transpose(r: Reading) -> None:
    """Transpose; without perm the axes are reversed."""
    perm = r.attribute("perm")
    r.emit("Transpose", perm=tuple(range(r.rank()))[::-1] if perm is None else perm)


def write_reshape(op: Op, b: Builder) -> None:
    """Reshape; sizes of 0 that are meant so need opset 14."""
    if op["allowzero"] and b.opset < 14:
        raise b.unsupported_error(op, f"sizes of 0 in opset {b.opset}", rule="opset-too-old")
    write_data_movement(op, b, [b.stored_value(op.inputs[1])], allowzero=op["allowzero"] or None)


def write_concat(op: Op, b: Builder) -> None:
    """Concat: of integers where all share one quantization, else of float values."""
    result = b.result(op)
    equal = all(b.tensor(name).shares_quantization(result) for name in op.inputs)
    (b.compute_stored if equal and not op["activation"] else b.compute)(op)


def write_pack(op: Op, b: Builder) -> None:
    """Pack: each tensor gets the new axis, then they are joined."""
    at = place_of(op, b)
    parts = [at.stored(name).then("Unsqueeze", axes(op["axis"])) for name in op.inputs]
    at.node("Concat", *parts, axis=op["axis"]).finish(op.outputs[0])


def write_unpack(op: Op, b: Builder) -> None:
    """Unpack: parts of size 1, each without the axis."""
    along = b.const(axes(op["axis"]), f"{op.outputs[0]}/axes")
    sizes = b.const(np.ones(len(op.outputs), np.int64), f"{op.outputs[0]}/sizes")
    parts = [b.name(f"{name}/part") for name in op.outputs]
    _split_stored(op, b, sizes, parts)
    for part, output in zip(parts, op.outputs, strict=True):
        b.node("Squeeze", [part, along], [output])


def read_split(r: Reading) -> None:
    """Split: sizes are an attribute before opset 13, and equal ones where none are given."""
    axis = r.attribute("axis", 0)
    if r.version >= 13 and r.has(1):
        r.emit("Split", [r.input(0), r.fold_input(1)], axis=axis)
        return
    sizes = r.attribute("split") if r.version < 13 else None
    if sizes is None:
        shape, count = r.tensor(0).shape, len(r.outputs)
        size = None if shape is None else shape[r.axis(axis, len(shape))]
        if not isinstance(size, int):
            raise NotCoveredError(f"equal parts of a size of {size}")
        part = -(-size // count)  # the last part may be smaller (opset 18)
        sizes = [max(min(part, size - i * part), 0) for i in range(count)]
    r.emit("Split", [r.input(0), r.list64(sizes, "split")], axis=axis)


def read_sequence_at(r: Reading) -> None:
    """SequenceAt of the parts that SplitToSequence makes of a tensor, as torch.onnx exports chunk(): a Slice of that tensor."""
    before, place = r.producer(r.inputs[0], "Opaque"), r.constant(1)
    node = None if before is None else carried_node(before)
    is_split = before is not None and before["op_type"] == "SplitToSequence" and before.has(1)
    if before is None or node is None or not is_split or place is None or place.size != 1 or place.item() < 0:
        raise NotCoveredError("a sequence of other tensors")
    stated = {item.name: item.i for item in node.attribute}
    data, split = r.lookup(before.inputs[0]), r.lookup(r.draft.fold_constant(before.inputs[1])).data
    if split is None or data.shape is None:
        raise NotCoveredError("parts of unknown sizes")
    axis, index = r.axis(stated.get("axis", 0), len(data.shape)), int(place.item())
    size = data.shape[axis]
    sizes = [int(part) for part in split[: index + 1]] if split.ndim else [int(split)] * 2
    start = sum(sizes[:index]) if split.ndim else index * sizes[0]
    if not isinstance(size, int) or (split.ndim and index >= len(split)) or min(sizes, default=0) < 0 or start >= size:
        raise NotCoveredError("a part that the tensor does not have")
    bounds = [r.list64([bound], "bound") for bound in (start, min(start + sizes[-1], size))]
    r.emit("Slice", [data.name, *bounds, r.list64([axis], "axes")])


def write_split(op: Op, b: Builder) -> None:
    """Split."""
    _split_stored(op, b, b.stored_value(op.inputs[1]), list(op.outputs))


def _split_stored(op: Op, b: Builder, sizes: str, outputs: list[str]) -> None:
    """A Split of stored values: onnxruntime has it for 8-bit types from 1.13, for int16 not at all (see write_data_movement())."""
    tensor, axis = b.operand(op), op["axis"]
    if tensor.dtype not in ("int16", "uint16"):
        b.node("Split", [b.stored_value(tensor.name), sizes], outputs, axis=axis)
        return
    is_real = tensor.quantization is not None
    value = b.float_value(tensor.name)
    if not is_real:
        value = b.cast(value, "int32", hint=f"{tensor.name}/int32")
    parts = b.node("Split", [value, sizes], len(outputs), hint=f"{tensor.name}/part", axis=axis)
    for part, output in zip(parts, outputs, strict=True):
        if is_real:
            b.quantize(part, replace(tensor, name=output), output)
        else:
            b.cast(part, tensor.dtype, output)


def read_slice(r: Reading) -> None:
    """Slice: starts, ends and axes are attributes before opset 10; axes default to the first ones."""
    if r.version < 10:
        starts, ends = r.attribute("starts"), r.attribute("ends")
        axes = r.attribute("axes", tuple(range(len(starts))))
        bounds = [r.list64(v, word) for word, v in (("starts", starts), ("ends", ends), ("axes", axes))]
        r.emit("Slice", [r.input(0), *bounds])
        return
    count = r.tensor(1).static_shape
    if not r.has(3) and count is None:
        raise NotCoveredError("starts of unknown length")
    axes = r.fold_input(3) if r.has(3) else r.const(np.arange(count[0] if count else 0, dtype=np.int64), "axes")
    r.emit("Slice", [r.input(0), r.fold_input(1), r.fold_input(2), axes, *([r.fold_input(4)] if r.has(4) else [])])


def read_pad(r: Reading) -> None:
    """Pad: amounts and value are attributes before opset 11; the amounts of some axes alone (opset 18) are given for all."""
    mode, data = r.attribute("mode", "constant"), r.tensor(0)
    if r.version < 11:
        amounts = r.list64(r.attribute("pads"), "pads")
        value = float(r.attribute("value", 0.0))
        filler = r.const(np.array(value, np.float32), "padding") if value else ""
    else:
        amounts, filler = _amounts(r), r.input(2) if r.has(2) else ""
    if mode != "constant":
        r.emit("Pad", [data.name, amounts], mode=mode)
        return
    if data.quantization is not None and data.quantization.axis is None:
        filler = _stored_filler(r, filler, data.dtype, data.quantization)
    r.emit("Pad", [data.name, amounts, *([filler] if filler else [])], mode=mode)


def _amounts(r: Reading) -> str:
    if not r.has(3):
        return r.fold_input(1)
    pads, axes, rank = r.ints(1), r.ints(3), r.rank(0)
    if len(pads) != 2 * len(axes):
        raise r.invalid(f"{len(pads)} amounts of padding for {len(axes)} axes", rule="counts-differ")
    full = np.zeros((2, rank), np.int64)
    full[:, [r.axis(axis, rank) for axis in axes]] = np.array(pads).reshape(2, -1)
    return r.const(full.reshape(-1), "pads")


def _stored_filler(r: Reading, filler: str, dtype: str, quantization: Quantization) -> str:
    """The padding of stored integers, with their label; "" for 0.0. ONNX's default is the integer 0, which seldom means 0.0."""
    value = np.array(0) if not filler else r.constant(2)
    if value is None or value.size != 1:
        raise NotCoveredError("a padding value that is computed at run time")
    if int(value.reshape(())) == quantization.zero_point[0]:
        return ""
    return r.const(value.reshape(()).astype(dtype), "padding", quantization)


def write_pad(op: Op, b: Builder) -> None:
    """Pad of the stored integers: 0.0 is the zero point. ONNX has no symmetric mode: its edges are put on by Concat."""
    tensor = b.result(op)
    if op["mode"] == "symmetric":
        _pad_symmetric(op, b)
        return
    if op["mode"] != "constant":
        write_data_movement(op, b, [b.stored_value(op.inputs[1])], mode=op["mode"])
        return
    wide, value = tensor.dtype in _NO_KERNEL["Pad"], op.inputs[2] if len(op.inputs) > 2 else ""
    filler: list[str] = []
    if value:
        is_real = wide and tensor.quantization is not None
        filler = [b.float_value(value) if is_real else b.stored_value(value)]
        if b.tensor(value).rank != 0:
            filler = b.node("Reshape", [*filler, b.const(axes(), f"{tensor.name}/scalar")])
        if wide and not is_real:
            filler = b.node("Cast", filler, to=ELEMENT_TYPES["int32"])
    elif tensor.quantization is not None and not wide and tensor.quantization.zero_point.any():  # ONNX's own is the integer 0
        filler = [b.const(np.array(tensor.quantization.point, tensor.dtype), f"{tensor.name}/padding")]
    write_data_movement(op, b, [b.stored_value(op.inputs[1]), *filler], mode="constant")


def _pad_symmetric(op: Op, b: Builder) -> None:
    """The reversed border, edge included, on each side of each axis."""
    pads, at = b.integers(op, 1), place_of(op, b)
    rank, current = len(pads) // 2, at.stored(op.inputs[0])
    for axis in range(rank):
        before, after = pads[axis], pads[rank + axis]
        parts = [current]
        for amount, place in ((before, 0), (after, 1)):
            if amount:
                start, end = (amount - 1, -(2**62)) if place == 0 else (-1, -amount - 1)
                border = current.then("Slice", axes(start), axes(end), axes(axis), axes(-1))
                parts = [border, *parts] if place == 0 else [*parts, border]
        if len(parts) > 1:
            current = at.node("Concat", *parts, axis=axis)
    current.finish(op.outputs[0])


def read_shape(r: Reading) -> None:
    """Shape, with a Slice after it where only some sizes are asked for (opset 15)."""
    start, end = r.attribute("start", 0), r.attribute("end")
    if start == 0 and end is None:
        r.emit("Shape", integers=True)
        return
    whole = r.emit_inner("Shape", r.inputs, "whole", "int64", integers=True)
    bounds = [start, 2**31 - 1 if end is None else end, 0]
    r.emit("Slice", [whole, *(r.list64([v], "bound") for v in bounds)], dtype="int64")


_CONSTANT_TYPES: dict[str, Any] = {
    "value": None, "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
    "value_string": object, "value_strings": object,
}  # fmt: skip


def read_constant(r: Reading) -> None:
    """Constant, in whichever of its attributes the value is."""
    given = [name for name in _CONSTANT_TYPES if r.attribute(name) is not None]
    if len(given) != 1:
        raise r.invalid(f"has {len(given)} values, not one", rule="not-a-scalar")
    r.declare_constant(np.asarray(r.attribute(given[0]), _CONSTANT_TYPES[given[0]]))


def read_constant_of_shape(r: Reading) -> None:
    """ConstantOfShape as the Expand of one element."""
    value = r.attribute("value", np.zeros(1, np.float32))
    if np.size(value) != 1:
        raise r.invalid(f"its value has {np.size(value)} elements, not one", rule="not-a-scalar")
    filler = r.const(np.asarray(value).reshape(()), "value")
    r.emit("Expand", [filler, r.fold_input(0)], dtype=r.lookup(filler).dtype)


def read_range(r: Reading) -> None:
    """Range."""
    r.emit("Range", [r.fold_input(index) for index in range(3)])


def write_range(op: Op, b: Builder) -> None:
    """Range of three scalars, which TFLite may give the shape [1]."""
    scalar = b.const(axes(), f"{op.outputs[0]}/scalar")
    bounds = [b.stored_value(n) if b.tensor(n).rank == 0 else b.node("Reshape", [b.stored_value(n), scalar])[0] for n in op.inputs]
    b.node("Range", bounds, op.outputs)


WRITERS: Writers = {
    **dict.fromkeys(["Squeeze", "Unsqueeze", "Tile", "Expand", "Slice"], write_same_form),
    "Reshape": write_reshape,
    "Concat": write_concat,
    "Pack": write_pack,
    "Unpack": write_unpack,
    "Split": write_split,
    "Pad": write_pad,
    "Range": write_range,
}

READERS: Readers = {
    **dict.fromkeys(["Tile", "Expand"], read_same_form),
    "Reshape": read_reshape,
    "Flatten": read_flatten,
    "Squeeze": read_squeeze,
    "Unsqueeze": read_unsqueeze,
    "Slice": read_slice,
    "Transpose": read_transpose,
    "Split": read_split,
    "SequenceAt": read_sequence_at,
    "Pad": read_pad,
    "Shape": read_shape,
    "Constant": read_constant,
    "ConstantOfShape": read_constant_of_shape,
    "Range": read_range,
}

OPSETS: dict[str, Callable[[Graph, Op], int]] = {"Trilu": lambda graph, op: 14}
