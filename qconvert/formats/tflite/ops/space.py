"""Resizing, and data movement between space, depth and batch."""

from __future__ import annotations

from qconvert.formats.tflite.ops.window import spatial_sizes
from qconvert.formats.tflite.reading import ReadFunction, Reading

__all__ = ["READERS"]

_LAYOUT = {"data_format": "channels_last"}


def _coordinates(op: Reading) -> str:
    """How an output position maps to the input, in ONNX's words."""
    if op.option("AlignCorners", False):
        return "align_corners"
    return "half_pixel" if op.option("HalfPixelCenters", False) else "asymmetric"


def read_resize_bilinear(op: Reading) -> None:
    """RESIZE_BILINEAR to the height and width in input 1."""
    spatial_sizes(op)
    op.emit("Resize", [op.input(0), op.int64(1)], mode="linear", coordinate_transformation_mode=_coordinates(op), **_LAYOUT)


def read_resize_nearest_neighbor(op: Reading) -> None:
    """RESIZE_NEAREST_NEIGHBOR: the kernel floors (x + 0.5) * scale or x * scale, and rounds x * scale up from .5 if corners align."""
    spatial_sizes(op)
    coordinates = _coordinates(op)
    nearest = "floor" if coordinates == "asymmetric" else "round_prefer_ceil"
    op.emit(
        "Resize",
        [op.input(0), op.int64(1)],
        mode="nearest",
        coordinate_transformation_mode=coordinates,
        nearest_mode=nearest,
        **_LAYOUT,
    )


def _blocks(kind: str) -> ReadFunction:
    """The reader of SPACE_TO_DEPTH and DEPTH_TO_SPACE."""

    def read(op: Reading) -> None:
        size = op.option("BlockSize")
        if size < 1:
            raise op.invalid(f"block size {size}")
        spatial_sizes(op)
        op.emit(kind, blocksize=size, **_LAYOUT)

    return read


def _batches(kind: str) -> ReadFunction:
    """The reader of SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND: (data, block shape, pads or crops as rows of before and after)."""

    def read(op: Reading) -> None:
        blocks, rows = op.ints(1), op.ints(2)
        if len(rows) != 2 * len(blocks) or min(blocks, default=0) < 1 or min(rows, default=0) < 0:
            raise op.invalid(f"blocks {blocks} with {rows}")
        pads = op.shape_const(rows[::2] + rows[1::2], "pads" if kind == "SpaceToBatch" else "crops")
        op.emit(kind, [op.input(0), op.int64(1), pads], **_LAYOUT)

    return read


READERS: dict[str, ReadFunction] = {
    "RESIZE_BILINEAR": read_resize_bilinear,
    "RESIZE_NEAREST_NEIGHBOR": read_resize_nearest_neighbor,
    "SPACE_TO_DEPTH": _blocks("SpaceToDepth"),
    "DEPTH_TO_SPACE": _blocks("DepthToSpace"),
    "SPACE_TO_BATCH_ND": _batches("SpaceToBatch"),
    "BATCH_TO_SPACE_ND": _batches("BatchToSpace"),
}
