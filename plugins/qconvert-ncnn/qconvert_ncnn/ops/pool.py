"""Pools, reductions and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.plugin import Op, stated_pads
from qconvert_ncnn.blobs import axis_of, unsupported_error
from qconvert_ncnn.container import Layer
from qconvert_ncnn.ops.products import size_2d
from qconvert_ncnn.reading import Reading
from qconvert_ncnn.writing import ADDED, SUBTRACTED, Step, Writing, blob_params

_MAX, _AVERAGE = 0, 1
#: The size of an adaptive pool that stands for the size of the data.
_KEPT = -233
#: Pooling's pad_mode: ceil mode, explicit padding, and two automatic ones.
_FULL, _VALID = 0, 1
_AUTO = {2: "SAME_UPPER", 3: "SAME_LOWER"}
#: Reduction's operation -> kind.
_REDUCTIONS = {0: "ReduceSum", 1: "ReduceL1", 2: "ReduceSumSquare", 3: "ReduceMean", 4: "ReduceMax", 5: "ReduceMin", 6: "ReduceProd",
               7: "ReduceL1", 8: "ReduceL2", 9: "ReduceLogSum", 10: "ReduceLogSumExp"}  # fmt: skip
_OPERATIONS = {kind: number for number, kind in reversed(_REDUCTIONS.items())}
_NEAREST, _LINEAR = 1, 2
#: Dimensions of a blob of channels, rows and columns.
_PICTURE = 3


def write_pool(op: Op, w: Writing) -> None:
    """Pooling with explicit padding, extended so that every window is whole."""
    kernel = [int(size) for size in op["kernel_shape"]]
    if len(kernel) != 2:
        raise unsupported_error(op, "that is not over two dimensions")
    if op.kind == "MaxPool" and any(size != 1 for size in op["dilations"]):
        raise unsupported_error(op, "with dilations")
    top, left, bottom, right = stated_pads(op, w.sizes(op.inputs[0])[1:], kernel, (1, 1))
    average = op.kind == "AveragePool"
    counts = average and bool(op["count_include_pad"]) and any((top, left, bottom, right))
    if op["ceil_mode"]:
        data, result = w.sizes(op.inputs[0])[1:], w.sizes(op.outputs[0])[1:]
        whole = [(after - 1) * stride + size for after, stride, size in zip(result, op["strides"], kernel, strict=True)]
        more = whole[0] - data[0] - top, whole[1] - data[1] - left
        if counts and (more[0] > bottom or more[1] > right):
            raise unsupported_error(op, "whose last windows hang over padding that counts")
        bottom, right = max(bottom, more[0]), max(right, more[1])
    params: dict[int, Any] = {
        0: _AVERAGE if average else _MAX, 1: kernel[1], 11: kernel[0], 2: int(op["strides"][1]), 12: int(op["strides"][0]),
        3: left, 13: top, 14: right, 15: bottom, 5: _VALID,
    }  # fmt: skip
    if counts:
        params[6] = 1
    w.finish(op, "Pooling", params)


def read_pool(r: Reading) -> None:
    """Pooling; a global one gives a vector."""
    layer = r.layer
    kind, average = layer.integer(0), layer.integer(0) == _AVERAGE
    if kind not in (_MAX, _AVERAGE) or len(r.shape()) != 4:
        raise r.unsupported_error(f"of the kind {kind} over data of the shape {r.shape()}")
    if layer.integer(4):
        value = r.step("GlobalAveragePool" if average else "GlobalMaxPool", [r.value()], data_format="channels_first")
        r.emit("Reshape", [value, r.numbers((1, -1))])
        return
    if layer.integer(7):
        _read_adaptive_pool(r, "AveragePool" if average else "MaxPool")
        return
    mode, extra = layer.integer(5), dict[str, Any]()
    left = layer.integer(3)
    top = layer.integer(13, left)
    pads = (top, left, layer.integer(15, top), layer.integer(14, left))
    if mode in _AUTO:
        if any(pads):
            raise r.unsupported_error("with padding other than that of its size")
        extra = {"auto_pad": _AUTO[mode]}
    elif mode == _FULL:
        # ncnn adds a last window if it begins in the data or its padding, and counts all of its elements if padding counts.
        pads = _full_pads(layer, r.shape(), pads)
    elif mode != _VALID:
        raise r.unsupported_error(f"with the padding {mode}")
    if min(pads) < 0:
        raise layer.invalid(f"the padding is {pads}", rule="padding-out-of-range")
    if average and (layer.integer(6) or mode in _AUTO):  # automatic padding counts in ncnn
        extra["count_include_pad"] = 1
    r.emit("AveragePool" if average else "MaxPool", [r.value()], kernel_shape=size_2d(layer, 1), strides=size_2d(layer, 2), pads=pads,
           data_format="channels_first", **extra)  # fmt: skip


def _read_adaptive_pool(r: Reading, kind: str) -> None:
    """Read a pool to given sizes, which must divide those of the data, so that all windows are equal."""
    width = r.layer.integer(8)
    wanted, before = (r.layer.integer(18, width), width), r.shape()[2:]
    sizes = [old if new == _KEPT else new for old, new in zip(before, wanted, strict=True)]
    if min(sizes) < 1 or any(old % new for old, new in zip(before, sizes, strict=True)):
        raise r.unsupported_error(f"to {sizes[0]} x {sizes[1]} elements of {before[0]} x {before[1]}")
    window = tuple(old // new for old, new in zip(before, sizes, strict=True))
    r.emit(kind, [r.value()], kernel_shape=window, strides=window, pads=(0, 0, 0, 0), data_format="channels_first")


def _full_pads(layer: Layer, shape: tuple[int, ...], pads: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return the padding with which the last windows are whole."""
    found = list(pads)
    for axis, (kernel, stride) in enumerate(zip(size_2d(layer, 1), size_2d(layer, 2), strict=True)):
        tail = (shape[axis + 2] + pads[axis] + pads[axis + 2] - kernel) % stride
        found[axis + 2] += stride - tail if tail else 0
    return found[0], found[1], found[2], found[3]


def write_global_pool(op: Op, w: Writing) -> None:
    """Global Pooling and a Reshape of its vector; a Reduction for blobs of other than three dimensions."""
    sizes = w.sizes(op.inputs[0])
    if len(sizes) == _PICTURE:
        pool = Step("Pooling", {0: _AVERAGE if op.kind == "GlobalAveragePool" else _MAX, 4: 1}, inputs=(w.value(op.inputs[0]),))
        w.steps(op, [pool, Step("Reshape", blob_params(w.sizes(op.outputs[0])), suffix="real")])
        return
    kind = "ReduceMean" if op.kind == "GlobalAveragePool" else "ReduceMax"
    w.finish(op, "Reduction", {0: _OPERATIONS[kind], 1: 0, 3: tuple(range(1, len(sizes))), 4: 1, 5: 1})


def write_reduction(op: Op, w: Writing) -> None:
    """Reduction over axes; no axes at all mean all of them."""
    rank = len(w.sizes(op.inputs[0])) + 1
    axes = sorted({axis_of(w.graph, op, axis) for axis in (w.integers(op, 1, "axes") or range(1, rank))})
    if not op["keepdims"] and len(axes) == rank - 1:
        raise unsupported_error(op, "to a single number")
    params = {1: 0, 3: tuple(axes), 4: 1, 5: 1}
    if op.kind != "ReduceLogSumExp":
        w.finish(op, "Reduction", {**params, 0: _OPERATIONS[op.kind], 4: int(op["keepdims"])})
        return
    largest, value = w.blobs.fresh(f"{op.outputs[0]}/largest"), w.value(op.inputs[0])  # Exp of numbers <= 0
    w.add("Reduction", largest, [value], [largest], {**params, 0: _OPERATIONS["ReduceMax"]})
    w.steps(op, [
        Step("BinaryOp", {0: SUBTRACTED}, inputs=(value, largest), suffix="below"),
        Step("Reduction", {**params, 0: _OPERATIONS[op.kind]}, suffix="sum"),
        Step("BinaryOp", {0: ADDED}, inputs=(largest,), suffix="whole"),
        *([] if op["keepdims"] else [Step("Reshape", blob_params(w.sizes(op.outputs[0])), suffix="real")]),
    ])  # fmt: skip


def read_reduction(r: Reading) -> None:
    """Reduction over some axes, or all."""
    layer, rank = r.layer, len(r.shape())
    kind = _REDUCTIONS.get(layer.integer(0))
    if kind is None or layer.number(2, 1.0) != 1 or not layer.integer(5):
        raise r.unsupported_error("of an older form, or with a factor", rule="form-not-covered")
    axes, every = [int(axis) for axis in layer.numbers(3)], bool(layer.integer(1, 1))
    if not every and not axes:
        raise r.unsupported_error("over no axes")
    if any(not 1 - rank <= axis < rank - 1 for axis in axes):
        raise layer.invalid(f"the axes are {axes} of {rank - 1}", rule="axis-out-of-range")
    found = sorted({*range(1, rank)} if every else {axis % (rank - 1) + 1 for axis in axes})
    if layer.integer(4) or len(found) < rank - 1:
        r.emit(kind, [r.value(), r.numbers(found)], keepdims=int(layer.integer(4) != 0))
        return
    r.emit("Reshape", [r.step(kind, [r.value(), r.numbers(found)], keepdims=1), r.numbers((1, 1))])


def write_resize(op: Op, w: Writing) -> None:
    """Interp to given sizes: nearest (asymmetric, floor), or linear."""
    mode, coordinates = op["mode"], op["coordinate_transformation_mode"]
    sizes = w.sizes(op.outputs[0])
    known = {("nearest", "asymmetric"): _NEAREST, ("linear", "half_pixel"): _LINEAR, ("linear", "pytorch_half_pixel"): _LINEAR,
             ("linear", "align_corners"): _LINEAR}.get((mode, coordinates))  # fmt: skip
    is_flat = len(sizes) == 3
    if mode == "nearest" and is_flat and _has_whole_factors(op, w.sizes(op.inputs[0])[1:], sizes[1:]):
        known = _NEAREST
    elif known is None or not is_flat or (known == _NEAREST and op["nearest_mode"] != "floor"):
        raise unsupported_error(op, f"with mode {mode!r} and {coordinates!r}")
    if coordinates == "pytorch_half_pixel" and any(new == 1 < old for old, new in zip(w.sizes(op.inputs[0])[1:], sizes[1:], strict=True)):
        raise unsupported_error(op, "to one row or column")
    params = {0: known, 3: sizes[1], 4: sizes[2]}
    w.finish(op, "Interp", {**params, 6: 1} if coordinates == "align_corners" else params)


def _has_whole_factors(op: Op, before: Sequence[int], after: Sequence[int]) -> bool:
    """Return whether a nearest Resize with half-pixel centres copies each element a whole number of times."""
    middle = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
    rounds = op["coordinate_transformation_mode"] in middle and op["nearest_mode"] in ("round_prefer_floor", "round_prefer_ceil")
    return rounds and all(new % old == 0 for old, new in zip(before, after, strict=True))


def read_resize(r: Reading) -> None:
    """Interp of the nearest, or linear."""
    layer, shape = r.layer, r.shape()
    kind = layer.integer(0)
    if kind not in (_NEAREST, _LINEAR) or layer.integer(5) or len(shape) != 4 or len(layer.inputs) > 1:
        raise r.unsupported_error(f"of the kind {kind} over data of the shape {shape}")
    height, width = layer.integer(3), layer.integer(4)
    if not height or not width:
        sizes = shape[2] * layer.number(1, 1.0), shape[3] * layer.number(2, 1.0)
        height, width = (int(size) for size in sizes)
        if (height, width) != sizes:  # ncnn then uses the factors, not the sizes
            raise r.unsupported_error(f"to {sizes[0]} x {sizes[1]} elements")
    if not 0 < height < 2**16 or not 0 < width < 2**16:
        raise layer.invalid(f"the size of the result is {height} x {width}", rule="empty-result")
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if kind == _LINEAR:
        attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners" if layer.integer(6) else "half_pixel"}
    r.emit("Resize", [r.value(), r.numbers((height, width))], data_format="channels_first", **attributes)


READERS = {"Pooling": read_pool, "Reduction": read_reduction, "Interp": read_resize}
WRITERS = {
    **dict.fromkeys(("MaxPool", "AveragePool"), write_pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), write_global_pool),
    **dict.fromkeys(_OPERATIONS, write_reduction),
    "Resize": write_resize,
}
