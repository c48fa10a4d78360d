"""Joining, splitting and padding."""

from __future__ import annotations

import numpy as np

from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Array, Op
from qconvert.operators.sizes import UNKNOWN

#: The most elements along an axis that a padding repeats, each with its own index.
_MOST_PLACES = 2**20


def read_concatenation(r: Reading) -> None:
    """CONCATENATION. The int16 kernel copies, whatever the scales; the uint8 one brings all to the result's; of int8 they are equal.

    A fused activation is not looked at: LiteRT's default kernels do nothing of the kind, and its reference kernels refuse it (measured).
    """
    emit = r.emit_stored if r.tensor().dtype == "int16" else r.emit
    emit("Concat", axis=r.axis(r.option("axis"), r.rank()))


def read_pack(r: Reading) -> None:
    """PACK: stacks tensors along a new axis."""
    r.emit("Pack", axis=r.axis(r.option("axis"), r.rank() + 1))


def read_unpack(r: Reading) -> None:
    """UNPACK: takes an axis apart."""
    r.emit("Unpack", axis=r.axis(r.option("axis"), r.rank()))


def read_split(r: Reading) -> None:
    """SPLIT: (axis, data) into equal parts."""
    if len(r.outputs) == 1:
        r.emit("Identity", [r.input(1)])
        return
    axis = r.axis(r.integer(0), r.rank(1))
    size = (r.tensor(1).shape or ())[axis]
    if not isinstance(size, int) or size % len(r.outputs):
        raise r.unsupported_error(f"axis {axis} of size {size} in {len(r.outputs)} parts", rule="uneven-split")
    sizes = r.list64([size // len(r.outputs)] * len(r.outputs), "sizes")
    r.emit("Split", [r.input(1), sizes], axis=axis)


def read_split_v(r: Reading) -> None:
    """SPLIT_V: (data, sizes, axis); one size may be -1."""
    axis, sizes = r.axis(r.integer(2), r.rank()), r.ints(1)
    if sizes.count(-1) == 1:
        whole = (r.tensor().shape or ())[axis]
        if not isinstance(whole, int):
            raise r.unsupported_error("a size of -1 along a dynamic axis", rule="dynamic-dimension")
        sizes[sizes.index(-1)] = whole - sum(size for size in sizes if size != -1)
    if len(sizes) != len(r.outputs) or min(sizes) < 0:
        raise r.invalid(f"sizes {sizes} for {len(r.outputs)} outputs", rule="counts-differ")
    r.emit("Split", [r.input(0), r.list64(sizes, "sizes")], axis=axis)


def _pads(r: Reading) -> str:
    """Return rows of (before, after) for each axis as ONNX's (all before, all after)."""
    rows = r.known_ints(1)
    if rows is not None and (len(rows) != 2 * r.rank() or min(rows, default=0) < 0):
        raise r.invalid(f"padding {rows} for rank {r.rank()}", rule="counts-differ")
    return r.columns(1, "pads")


def read_pad(r: Reading) -> None:
    """PAD with the zero point of the result (pad.cc), which is real zero under its label."""
    r.emit_stored("Pad", [r.input(0), _pads(r)], quantization=r.result().quantization)


def read_padv2(r: Reading) -> None:
    """PADV2 with the value in input 2, which has the data's quantization."""
    r.emit("Pad", [r.input(0), _pads(r), r.input(2)])


def read_mirror_pad(r: Reading) -> None:
    """MIRROR_PAD: REFLECT (0) without the edge, SYMMETRIC (1) with it."""
    r.emit("Pad", [r.input(0), _pads(r)], mode="symmetric" if r.option("mode") == 1 else "reflect")


READERS: Readers = {
    "CONCATENATION": read_concatenation,
    "PACK": read_pack,
    "UNPACK": read_unpack,
    "SPLIT": read_split,
    "SPLIT_V": read_split_v,
    "PAD": read_pad,
    "PADV2": read_padv2,
    "MIRROR_PAD": read_mirror_pad,
}


def write_concat(op: Op, w: Writing) -> None:
    """CONCATENATION. Its uint8 kernel alone brings other scales to the result's."""
    if w.result(op).dtype != "uint8":
        w.require_one_quantization(op)
    axis = w.axis(op, op["axis"], op.outputs[0])
    w.emit("CONCATENATION", op.inputs, op.outputs, axis=axis, fusedActivationFunction=w.activation(op))


def write_pack(op: Op, w: Writing) -> None:
    """PACK."""
    w.emit("PACK", op.inputs, op.outputs, axis=w.axis(op, op["axis"], op.outputs[0]), valuesCount=len(op.inputs))


def write_unpack(op: Op, w: Writing) -> None:
    """UNPACK."""
    w.emit("UNPACK", op.inputs, op.outputs, axis=w.axis(op, op["axis"]), num=len(op.outputs))


def write_split(op: Op, w: Writing) -> None:
    """Split as SPLIT into equal parts of an axis whose size is known, else as SPLIT_V."""
    along = w.axis(op, op["axis"])
    axis = w.ints(along, f"{op.outputs[0]}/axis")
    if len(set(w.integers(op, 1))) == 1 and isinstance((w.operand(op).shape or ("",))[along], int):
        w.emit("SPLIT", [axis, op.inputs[0]], op.outputs, numSplits=len(op.outputs))
    else:
        w.emit("SPLIT_V", [op.inputs[0], w.index(op, 1), axis], op.outputs, numSplits=len(op.outputs))


def write_pad(op: Op, w: Writing) -> None:
    """Pad as PAD with real zero, PADV2 with a value, MIRROR_PAD, or GATHER; negative paddings as a STRIDED_SLICE before it."""
    data, pads = op.inputs[0], w.operand(op, 1).data
    crops = pads is not None and bool((pads < 0).any())
    if pads is not None and (op["mode"] in ("edge", "wrap") or (crops and op["mode"] != "constant")):
        _write_places(op, w, pads)
        return
    if pads is not None and crops:
        data, rows = _crop_negative_pads(op, w, pads)
    else:
        rows = w.rows(op, 1)
    if op["mode"] in ("reflect", "symmetric"):
        w.emit("MIRROR_PAD", [data, rows], op.outputs, mode=int(op["mode"] == "symmetric"))
    elif op["mode"] != "constant":
        raise w.unsupported_error(op, f"mode {op['mode']!r}", rule="attribute-not-covered")
    elif op.has(2):
        w.emit("PADV2", [data, rows, op.inputs[2]], op.outputs)
    else:
        w.emit("PAD", [data, rows], op.outputs)


def _write_places(op: Op, w: Writing, pads: Array) -> None:
    """Pad as a GATHER for each axis: of the places along it that are repeated, or left out where paddings are negative."""
    rank, shape = pads.size // 2, w.operand(op).shape or ()
    rows = pads.reshape(2, -1).T.tolist()
    padded = [axis for axis, row in enumerate(rows) if any(row)]
    if len(shape) != rank or not padded:
        raise w.unsupported_error(
            op, f"padding {pads.tolist()} of mode {op['mode']!r} for data of shape {shape}", rule="padding-not-covered"
        )
    data, sizes = op.inputs[0], list(shape)
    for axis in padded:
        size, (before, after) = shape[axis], rows[axis]
        kept = np.arange(size)[max(-before, 0) : size + min(after, 0)] if isinstance(size, int) else np.arange(0)
        if not kept.size:
            raise w.unsupported_error(op, f"padding of mode {op['mode']!r} along an axis of size {size}", rule="padding-not-covered")
        widths = (max(before, 0), max(after, 0))
        if kept.size + sum(widths) > _MOST_PLACES:
            raise w.unsupported_error(op, f"padding {pads.tolist()} of mode {op['mode']!r}", rule="padding-not-covered")
        places = np.pad(kept, widths, mode=op["mode"])
        sizes[axis] = places.size
        result = op.outputs[0] if axis == padded[-1] else w.like(f"{op.outputs[0]}/padded", op.inputs[0], tuple(sizes))
        w.emit("GATHER", [data, w.ints(places.tolist(), f"{op.outputs[0]}/places")], [result], axis=axis)
        data = result


def _crop_negative_pads(op: Op, w: Writing, pads: Array) -> tuple[str, str]:
    """Return the data without what negative paddings cut off, and the rows of the others."""
    before, after = pads.reshape(2, -1).tolist()
    shape = w.operand(op).shape or ()
    if len(shape) != len(before):
        raise w.unsupported_error(op, f"negative padding {pads.tolist()} of data of shape {shape}", rule="padding-not-covered")
    hint, rank = f"{op.outputs[0]}/crop", len(before)
    sizes = tuple(
        size + min(low, 0) + min(high, 0) if isinstance(size, int) else size if min(low, high) >= 0 else UNKNOWN
        for size, low, high in zip(shape, before, after, strict=True)
    )
    cropped = w.like(hint, op.inputs[0], sizes)
    bounds = [[max(-low, 0) for low in before], [min(high, 0) for high in after], [1] * rank]
    ends = sum(1 << axis for axis, high in enumerate(after) if high >= 0)
    w.slice_steps(op.inputs[0], bounds, cropped, endMask=ends)
    kept = [[max(low, 0), max(high, 0)] for low, high in zip(before, after, strict=True)]
    return cropped, w.ints(kept, f"{op.outputs[0]}/pads")


WRITERS: Writers = {
    "Concat": write_concat,
    "Pack": write_pack,
    "Unpack": write_unpack,
    "Split": write_split,
    "Pad": write_pad,
}
