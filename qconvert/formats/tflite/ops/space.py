"""Resizing, and data movement between space, depth and batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from qconvert.formats.tflite.ops.window import require_channels_last, spatial_sizes
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op
from qconvert.operators.space import nearest_indices

_LAYOUT: dict[str, Any] = {"data_format": "channels_last"}


def _coordinates(r: Reading) -> str:
    """How an output position maps to the input, in ONNX's words."""
    if r.option("alignCorners", False):
        return "align_corners"
    return "half_pixel" if r.option("halfPixelCenters", False) else "asymmetric"


def read_resize_bilinear(r: Reading) -> None:
    """RESIZE_BILINEAR to the height and width in input 1."""
    spatial_sizes(r)
    r.emit_stored("Resize", [r.input(0), r.int64(1)], mode="linear", coordinate_transformation_mode=_coordinates(r), **_LAYOUT)


def read_resize_nearest_neighbor(r: Reading) -> None:
    """RESIZE_NEAREST_NEIGHBOR: the kernel floors (x + 0.5) * scale or x * scale, and rounds x * scale up from .5 if corners align."""
    spatial_sizes(r)
    if r.option("alignCorners", False) and r.option("halfPixelCenters", False):
        raise r.unsupported_error("both align_corners and half_pixel_centers, which no operator of ONNX has,", rule="form-not-covered")
    coordinates = _coordinates(r)
    nearest = "floor" if coordinates == "asymmetric" else "round_prefer_ceil"
    modes: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    r.emit_stored("Resize", [r.input(0), r.int64(1)], **modes, **_LAYOUT)


def _read_blocks(kind: str, r: Reading) -> None:
    """SPACE_TO_DEPTH and DEPTH_TO_SPACE."""
    size = r.option("blockSize")
    if size < 1:
        raise r.invalid(f"block size {size}", rule="not-positive")
    spatial_sizes(r)
    r.emit(kind, blocksize=size, **_LAYOUT)


def _read_batches(kind: str, hint: str, r: Reading) -> None:
    """SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND: (data, block shape, pads or crops as rows of before and after)."""
    blocks, rows = r.ints(1), r.known_ints(2)
    count = len(rows) if rows is not None else np.prod(r.tensor(2).static_shape or (0,))
    if count != 2 * len(blocks) or min(blocks, default=0) < 1 or min(rows or (), default=0) < 0:
        raise r.invalid(f"blocks {blocks} with {rows}", rule="counts-differ")
    r.emit(kind, [r.input(0), r.flat64(1), r.columns(2, hint)], **_LAYOUT)


READERS: Readers = {
    "RESIZE_BILINEAR": read_resize_bilinear,
    "RESIZE_NEAREST_NEIGHBOR": read_resize_nearest_neighbor,
    "SPACE_TO_DEPTH": partial(_read_blocks, "SpaceToDepth"),
    "DEPTH_TO_SPACE": partial(_read_blocks, "DepthToSpace"),
    "SPACE_TO_BATCH_ND": partial(_read_batches, "SpaceToBatch", "pads"),
    "BATCH_TO_SPACE_ND": partial(_read_batches, "BatchToSpace", "crops"),
}


#: Coordinates and rounding as ONNX names them -> the fields of the option table that mean the same.
_NEAREST: dict[tuple[str, str], dict[str, Any]] = {
    ("asymmetric", "floor"): {},
    ("half_pixel", "round_prefer_ceil"): {"halfPixelCenters": True},
    ("align_corners", "round_prefer_ceil"): {"alignCorners": True},
}
_LINEAR: dict[str, dict[str, Any]] = {"asymmetric": {}, "half_pixel": {"halfPixelCenters": True}, "align_corners": {"alignCorners": True}}


def write_resize(op: Op, w: Writing) -> None:
    """Resize as RESIZE_BILINEAR or RESIZE_NEAREST_NEIGHBOR, where one of their coordinates gives the same positions.

    The nearest of other than two dimensions are copied along each by itself.
    """
    if w.operand(op).rank not in (None, 4) and op["mode"] == "nearest":
        _resize_by_gather(op, w, (str(op["coordinate_transformation_mode"]), str(op["nearest_mode"])))
        return
    require_channels_last(op, w)
    coordinates, size = str(op["coordinate_transformation_mode"]), w.index(op, 1)
    name, result = op.inputs[0], op.outputs[0]
    if coordinates == "half_pixel_symmetric":  # the sizes are whole, and give the factors
        coordinates = "half_pixel"
    if coordinates == "pytorch_half_pixel" and 1 not in w.shape(result, op, slice(1, 3)):
        coordinates = "half_pixel"
    if op["mode"] == "linear" and coordinates in _LINEAR:
        w.emit("RESIZE_BILINEAR", [name, size], [result], **_LINEAR[coordinates])
        return
    if op["mode"] != "nearest":
        raise w.unsupported_error(op, f"mode {op['mode']!r} and coordinates {coordinates!r}", rule="attribute-not-covered")
    wanted = (coordinates, str(op["nearest_mode"]))
    if wanted not in _NEAREST:
        spans = list(zip(w.shape(name, op, slice(1, 3)), w.shape(result, op, slice(1, 3)), strict=True))
        same = (
            form
            for form in _NEAREST
            if all(np.array_equal(nearest_indices(*span, *form), nearest_indices(*span, *wanted)) for span in spans)
        )
        wanted = next(same, wanted)
    if wanted not in _NEAREST:
        _resize_by_gather(op, w, wanted)
        return
    w.emit("RESIZE_NEAREST_NEIGHBOR", [name, size], [result], **_NEAREST[wanted])


def _resize_by_gather(op: Op, w: Writing, form: tuple[str, str]) -> None:
    """Rows, columns and the like by a GATHER each, where no coordinates of the resizing operators give their positions."""
    name, result, rank = op.inputs[0], op.outputs[0], w.operand(op).rank or 0
    first = 1 if op["data_format"] == "channels_last" else 2
    axes = range(first, first + rank - 2)
    spatial = slice(axes.start, axes.stop)
    for axis, size, count in zip(axes, w.shape(name, op, spatial), w.shape(result, op, spatial), strict=True):
        shape = w.tensor(name).shape or ()
        found = result if axis == axes[-1] else w.like(f"{result}/rows", name, (*shape[:axis], count, *shape[axis + 1 :]))
        indices = w.ints(nearest_indices(size, count, *form).tolist(), f"{found}/positions")
        w.emit("GATHER", [name, indices], [found], axis=axis)
        name = found


def write_depth_to_space(op: Op, w: Writing) -> None:
    """DEPTH_TO_SPACE, whose channels are (row, column, depth); those of mode CRD are brought into that order before."""
    require_channels_last(op, w)
    name, block = op.inputs[0], int(op["blocksize"])
    if op["mode"] == "CRD":
        (channels,) = w.shape(name, op, slice(3, 4))
        order = np.arange(channels).reshape(-1, block**2).T.reshape(-1)
        ordered = w.like(f"{name}/rows_first", name, w.tensor(name).shape)
        w.emit("GATHER", [name, w.ints(order.tolist(), f"{ordered}/channels")], [ordered], axis=3)
        name = ordered
    w.emit("DEPTH_TO_SPACE", [name], op.outputs, blockSize=block)


def write_space_to_depth(op: Op, w: Writing) -> None:
    """SPACE_TO_DEPTH."""
    require_channels_last(op, w)
    w.emit("SPACE_TO_DEPTH", op.inputs, op.outputs, blockSize=op["blocksize"])


def _write_batches(builtin: str, op: Op, w: Writing) -> None:
    """SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND: pads or crops become rows of before and after."""
    if op["data_format"] != "channels_last":
        raise w.unsupported_error(op, "data that are not channels last (the layout pass has not run)", rule="not-channels-last")
    w.emit(builtin, [op.inputs[0], w.index(op, 1), w.rows(op, 2)], op.outputs)


WRITERS: Writers = {
    "Resize": write_resize,
    "SpaceToDepth": write_space_to_depth,
    "DepthToSpace": write_depth_to_space,
    "SpaceToBatch": partial(_write_batches, "SPACE_TO_BATCH_ND"),
    "BatchToSpace": partial(_write_batches, "BATCH_TO_SPACE_ND"),
}
