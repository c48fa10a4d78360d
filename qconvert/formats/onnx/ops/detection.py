"""Suppression of boxes that overlap, and means of regions of images."""

from __future__ import annotations

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.reading import NotCoveredError, ReadFunction, Reading
from qconvert.formats.onnx.values import axes
from qconvert.graph import Op
from qconvert.rewriting.lowering import conditions, since


def read_roi_align(r: Reading) -> None:
    """RoiAlign of means of a number of points that is stated."""
    each, mode = r.attribute("sampling_ratio", 0), r.attribute("mode", "avg")
    if mode != "avg" or each < 1:
        raise NotCoveredError("the largest of points" if mode != "avg" else "a number of points that goes by each region")
    where = r.attribute("coordinate_transformation_mode", "half_pixel" if r.version >= 16 else "output_half_pixel")
    r.emit("RoiAlign", **r.own_attributes() | {"coordinate_transformation_mode": where})


@conditions(lambda op, scope: since(16 if op["coordinate_transformation_mode"] == "half_pixel" else 10)(op, scope))
def write_roi_align(op: Op, b: Builder) -> None:
    """RoiAlign, which knew half pixels of the output alone before opset 16."""
    inputs = [*(b.float_value(name) for name in op.inputs[:2]), b.int64(op.inputs[2])]
    b.finish(op, b.node("RoiAlign", inputs, mode="avg", **b.own_attributes(op))[0])


def read_suppression(r: Reading) -> None:
    """NonMaxSuppression."""
    operands = [r.input(0), r.input(1), *(r.fold_input(index) if r.has(index) else "" for index in range(2, len(r.inputs)))]
    r.emit("NonMaxSuppression", operands, **r.own_attributes())


def write_suppression(op: Op, b: Builder) -> None:
    """NonMaxSuppression, whose number and thresholds are lists of one."""
    one = b.const(axes(1), f"{op.outputs[0]}/one")
    operands = [b.stored_value(name) for name in op.inputs]
    for position, name in enumerate(op.inputs[2:], 2):
        if name and b.tensor(name).rank == 0:
            operands[position] = b.node("Reshape", [operands[position], one])[0]
    b.node("NonMaxSuppression", operands, op.outputs, center_point_box=op["center_point_box"] or None)


WRITERS: dict[str, WriteFunction] = {"RoiAlign": write_roi_align, "NonMaxSuppression": write_suppression}

READERS: dict[str, ReadFunction] = {"RoiAlign": read_roi_align, "NonMaxSuppression": read_suppression}
