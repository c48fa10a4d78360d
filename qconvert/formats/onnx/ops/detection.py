"""Suppression of boxes that overlap, and means of regions of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.reading import NotCoveredError, ReadFunction, Reading
from qconvert.graph import Op
from qconvert.rewriting.lowering import conditions, since

__all__ = ["READERS", "WRITERS"]


def read_roi_align(r: Reading) -> None:
    """RoiAlign of means of a number of points that is stated."""
    each, mode = int(r.attribute("sampling_ratio", 0)), str(r.attribute("mode", "avg"))
    if mode != "avg" or each < 1:
        raise NotCoveredError("the largest of points" if mode != "avg" else "a number of points that goes by each region")
    where = str(r.attribute("coordinate_transformation_mode", "half_pixel" if r.version >= 16 else "output_half_pixel"))
    sizes: dict[str, Any] = {name: int(r.attribute(name, 1)) for name in ("output_height", "output_width")}
    scale = float(r.attribute("spatial_scale", 1.0))
    r.emit("RoiAlign", sampling_ratio=each, spatial_scale=scale, coordinate_transformation_mode=where, **sizes)


@conditions(lambda op, scope: since(16 if op["coordinate_transformation_mode"] == "half_pixel" else 10)(op, scope))
def write_roi_align(op: Op, b: Builder) -> None:
    """RoiAlign, which knew half pixels of the output alone before opset 16."""
    inputs = [*(b.float_value(name) for name in op.inputs[:2]), b.int64(op.inputs[2])]
    stated = {name: op[name] for name in ("output_height", "output_width", "sampling_ratio", "spatial_scale")}
    mode = str(op["coordinate_transformation_mode"]) if b.opset >= 16 else None
    b.finish(op, b.node("RoiAlign", inputs, mode="avg", coordinate_transformation_mode=mode, **stated)[0])


def read_suppression(r: Reading) -> None:
    """NonMaxSuppression."""
    operands = [r.input(0), r.input(1), *(r.fold_input(index) if r.has(index) else "" for index in range(2, len(r.inputs)))]
    r.emit("NonMaxSuppression", operands, dtype="int64", center_point_box=int(r.attribute("center_point_box", 0)))


def write_suppression(op: Op, b: Builder) -> None:
    """NonMaxSuppression, whose number and thresholds are lists of one."""
    one = b.const(np.array([1], np.int64), f"{op.outputs[0]}/one")
    operands = [b.stored_value(name) for name in op.inputs]
    for position, name in enumerate(op.inputs[2:], 2):
        if name and b.tensor(name).rank == 0:
            operands[position] = b.node("Reshape", [operands[position], one])[0]
    b.node("NonMaxSuppression", operands, op.outputs, center_point_box=int(op["center_point_box"]) or None)


WRITERS: dict[str, WriteFunction] = {"RoiAlign": write_roi_align, "NonMaxSuppression": write_suppression}

READERS: dict[str, ReadFunction] = {"RoiAlign": read_roi_align, "NonMaxSuppression": read_suppression}
