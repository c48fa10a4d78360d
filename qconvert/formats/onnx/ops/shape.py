"""Data movement: on stored integers, which it never changes."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder, WriteFunction
from qconvert.graph import Op

__all__ = ["WRITERS", "moved"]

#: Integer types for which onnxruntime's CPU provider lacks a kernel of an operator that moves data (1.31).
_NO_KERNEL = {"Pad": ("int16", "uint16"), "Tile": ("int16", "uint16"), "Slice": (), "Expand": ("int16", "uint16")}


def moved(op: Op, b: Builder, kind: str, parameters: list[str], **attributes: Any) -> None:
    """A node that moves the stored values of input 0, through int32 where onnxruntime has no kernel for the type."""
    tensor = b.tensor(op.inputs[0])
    if tensor.dtype not in _NO_KERNEL.get(kind, ()):
        b.node(kind, [b.stored(tensor.name), *parameters], op.outputs, **attributes)
        return
    wide = b.node("Cast", [b.stored(tensor.name)], hint=f"{tensor.name}/int32", to=ELEMENT_TYPES["int32"])[0]
    result = b.node(kind, [wide, *parameters], hint=f"{op.outputs[0]}/int32", **attributes)
    b.node("Cast", result, op.outputs, to=ELEMENT_TYPES[tensor.dtype])


def write_same_form(op: Op, b: Builder) -> None:
    """An operator with the same inputs in ONNX: Reshape, Squeeze, Unsqueeze, Tile, Expand, Slice."""
    moved(op, b, op.kind, [b.stored(name) for name in op.inputs[1:]])


def write_transpose(op: Op, b: Builder) -> None:
    """Transpose."""
    b.node("Transpose", [b.stored(op.inputs[0])], op.outputs, perm=list(op["perm"]))


def write_concat(op: Op, b: Builder) -> None:
    """Concat: of integers where all share one quantization, else of real values."""
    result = b.tensor(op.outputs[0])
    equal = all(b.tensor(name).quantization == result.quantization for name in op.inputs)
    if equal and not op["activation"]:
        b.node("Concat", [b.stored(name) for name in op.inputs], op.outputs, axis=int(op["axis"]))
    else:
        b.finish(op, b.node("Concat", b.reals(op), hint=f"{result.name}/real_result", axis=int(op["axis"]))[0])


def write_pack(op: Op, b: Builder) -> None:
    """Pack: each tensor gets the new axis, then they are joined."""
    axes = b.const(np.array([op["axis"]], np.int64), f"{op.outputs[0]}/axes")
    parts = [b.node("Unsqueeze", [b.stored(name), axes], hint=f"{name}/unsqueezed")[0] for name in op.inputs]
    b.node("Concat", parts, op.outputs, axis=int(op["axis"]))


def write_unpack(op: Op, b: Builder) -> None:
    """Unpack: parts of size 1, each without the axis."""
    axes = b.const(np.array([op["axis"]], np.int64), f"{op.outputs[0]}/axes")
    sizes = b.const(np.ones(len(op.outputs), np.int64), f"{op.outputs[0]}/sizes")
    for part, output in zip(_split(op, b, sizes), op.outputs, strict=True):
        b.node("Squeeze", [part, axes], [output])


def write_split(op: Op, b: Builder) -> None:
    """Split."""
    _split(op, b, b.stored(op.inputs[1]), op.outputs)


def _split(op: Op, b: Builder, sizes: str, outputs: tuple[str, ...] | None = None) -> list[str]:
    """A Split of stored values: onnxruntime has it for 8-bit types from 1.13, for int16 not at all."""
    tensor = b.tensor(op.inputs[0])
    count: tuple[str, ...] | int = outputs if outputs is not None else len(op.outputs)
    if tensor.dtype not in ("int16", "uint16"):
        return b.node("Split", [b.stored(tensor.name), sizes], count, hint=f"{tensor.name}/part", axis=int(op["axis"]))
    wide = b.node("Cast", [b.stored(tensor.name)], hint=f"{tensor.name}/int32", to=ELEMENT_TYPES["int32"])[0]
    parts = b.node("Split", [wide, sizes], len(op.outputs), hint=f"{tensor.name}/part", axis=int(op["axis"]))
    names: list[str | None] = list(outputs) if outputs is not None else [None] * len(parts)
    casts = (b.node("Cast", [p], 1 if n is None else [n], to=ELEMENT_TYPES[tensor.dtype]) for p, n in zip(parts, names, strict=True))
    return [found[0] for found in casts]


def write_pad(op: Op, b: Builder) -> None:
    """Pad of the stored integers: real zero is the zero point. ONNX has no symmetric mode: its edges are put on by Concat."""
    tensor = b.tensor(op.outputs[0])
    if op["mode"] == "symmetric":
        _pad_symmetric(op, b)
        return
    if op["mode"] != "constant":
        moved(op, b, "Pad", [b.stored(op.inputs[1])], mode=op["mode"])
        return
    wide = tensor.dtype in _NO_KERNEL["Pad"]
    value = op.inputs[2] if len(op.inputs) > 2 else ""
    if value:
        filler = b.node("Reshape", [b.stored(value), b.const(np.array([], np.int64), f"{tensor.name}/scalar")])[0]
        filler = b.node("Cast", [filler], to=ELEMENT_TYPES["int32"])[0] if wide else filler
    else:
        zero = int(tensor.quantization.zero_point[0]) if tensor.quantization is not None else 0
        filler = b.const(np.array(zero, "int32" if wide else tensor.dtype), f"{tensor.name}/padding")
    moved(op, b, "Pad", [b.stored(op.inputs[1]), filler], mode="constant")


def _pad_symmetric(op: Op, b: Builder) -> None:
    """The reversed border, edge included, on each side of each axis."""
    pads, name = b.ints(op, 1), op.outputs[0]
    rank, current = len(pads) // 2, b.stored(op.inputs[0])
    for axis in range(rank):
        before, after = pads[axis], pads[rank + axis]
        parts = [current]
        for amount, place in ((before, 0), (after, 1)):
            if amount:
                start, end = (amount - 1, -(2**62)) if place == 0 else (-1, -amount - 1)
                bounds = [b.const(np.array([v], np.int64), f"{name}/bound") for v in (start, end, axis, -1)]
                border = b.node("Slice", [current, *bounds], hint=f"{name}/border")[0]
                parts = [border, *parts] if place == 0 else [*parts, border]
        if len(parts) > 1:
            current = b.node("Concat", parts, hint=f"{name}/padded", axis=axis)[0]
    b.rename(current, name)


def write_shape(op: Op, b: Builder) -> None:
    """Shape."""
    b.node("Shape", [b.stored(op.inputs[0])], op.outputs)


def write_range(op: Op, b: Builder) -> None:
    """Range of three scalars, which TFLite may give the shape [1]."""
    scalar = b.const(np.array([], np.int64), f"{op.outputs[0]}/scalar")
    bounds = [b.stored(n) if b.tensor(n).rank == 0 else b.node("Reshape", [b.stored(n), scalar])[0] for n in op.inputs]
    b.node("Range", bounds, op.outputs)


WRITERS: dict[str, WriteFunction] = {
    **dict.fromkeys(["Reshape", "Squeeze", "Unsqueeze", "Tile", "Expand", "Slice"], write_same_form),
    "Transpose": write_transpose,
    "Concat": write_concat,
    "Pack": write_pack,
    "Unpack": write_unpack,
    "Split": write_split,
    "Pad": write_pad,
    "Shape": write_shape,
    "Range": write_range,
}
