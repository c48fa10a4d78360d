"""DetectionPostProcess, from ONNX's own operators: box decoding, NonMaxSuppression, and the best classes of each box.

The steps and their order of float operations are those of TFLite's kernel (detection_postprocess.cc): boxes (y, x, h, w) relative to
anchors become corners; "fast" suppression runs once on each box's best score, "regular" once a class. Among equal scores both
sides take the lower index first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder, WriteFunction
from qconvert.formats.onnx.node import NotCoveredError
from qconvert.formats.onnx.reading import ReadFunction, Reading
from qconvert.formats.onnx.steps import Steps
from qconvert.graph import Op
from qconvert.rewriting.lowering import conditions, since

__all__ = ["READERS", "WRITERS"]


def write_detection(op: Op, b: Builder) -> None:
    """Boxes, classes, scores and count, padded with zeros to a fixed number of detections."""
    if b.tensor(op.inputs[0]).shape is None or b.tensor(op.inputs[0]).shape[0] != 1:  # type: ignore[index]
        raise b.unsupported(op, f"data of shape {b.tensor(op.inputs[0]).shape}", rule="unsupported-shape")
    if op["max_classes_per_detection"] > op["num_classes"]:
        raise b.unsupported(
            op, f"{op['max_classes_per_detection']} classes of {op['num_classes']} for each detection", rule="attribute-not-covered"
        )
    s = Steps(op, b)
    boxes = _decode(s, b.real(op.inputs[0]), b.real(op.inputs[2]))
    scores = _without_background(s, b.real(op.inputs[1]))
    if op["use_regular_nms"]:
        chosen, classes, values, count = _regular(s, boxes, scores)
    else:
        chosen, classes, values, count = _fast(s, boxes, scores)
    rows = int(op["max_detections"]) * int(op["max_classes_per_detection"])
    found = s.node("Gather", boxes, chosen, axis=0)
    _padded(s, found, rows, op.outputs[0], [1, rows, 4])
    _padded(s, s.node("Cast", classes, to=ELEMENT_TYPES["float32"]), rows, op.outputs[1], [1, rows])
    _padded(s, values, rows, op.outputs[2], [1, rows])
    b.node("Cast", [count], [op.outputs[3]], to=ELEMENT_TYPES["float32"])


def _decode(s: Steps, encodings: str, anchors: str) -> str:
    """Corners (ymin, xmin, ymax, xmax) of shape [boxes, 4] from encodings [1, boxes, 4] and anchors [boxes, 4]."""
    code = s.node("Squeeze", encodings, s.ints(0))
    y, x, h, w = (s.column(code, i, 1) for i in range(4))
    anchor_y, anchor_x, anchor_h, anchor_w = (s.column(anchors, i, 1) for i in range(4))

    def center(value: str, scale: float, size: str, origin: str) -> str:
        return s.node("Add", s.node("Mul", s.node("Div", value, s.number(scale)), size), origin)

    def half(value: str, scale: float, size: str) -> str:
        grown = s.node("Exp", s.node("Div", value, s.number(scale)))
        return s.node("Mul", s.node("Mul", s.number(0.5), grown), size)

    middle_y, middle_x = center(y, s.op["y_scale"], anchor_h, anchor_y), center(x, s.op["x_scale"], anchor_w, anchor_x)
    half_h, half_w = half(h, s.op["h_scale"], anchor_h), half(w, s.op["w_scale"], anchor_w)
    corners = [s.node(kind, middle, size) for kind in ("Sub", "Add") for middle, size in ((middle_y, half_h), (middle_x, half_w))]
    return s.node("Concat", *(s.node("Unsqueeze", corner, s.ints(1)) for corner in corners), axis=1)


def _without_background(s: Steps, scores: str) -> str:
    """Scores [1, boxes, classes] without the classes before the last num_classes."""
    shape = s.b.tensor(s.op.inputs[1]).shape or ()
    offset = int(shape[2]) - int(s.op["num_classes"])
    return scores if offset == 0 else s.slice(scores, offset, int(shape[2]), 2)


def _suppress(s: Steps, boxes: str, scores: str, limit: int) -> str:
    """Rows (batch, class, box). TFLite keeps scores at the threshold; ONNX wants them above, so it is one float lower."""
    lower = float(np.nextafter(np.float32(s.op["nms_score_threshold"]), np.float32(-np.inf)))
    batch = s.node("Unsqueeze", boxes, s.ints(0))
    return s.node("NonMaxSuppression", batch, scores, s.ints(limit), s.number_1d(s.op["nms_iou_threshold"]), s.number_1d(lower))


def _fast(s: Steps, boxes: str, scores: str) -> tuple[str, str, str, str]:
    """One suppression on each box's best score; then the best classes of each box that is left."""
    per_box = int(s.op["max_classes_per_detection"])
    flat = s.node("Squeeze", scores, s.ints(0))
    top, classes = s.b.node("TopK", [flat, s.ints(per_box)], 2, hint=f"{s.name}/best", axis=1)
    best = s.node("Reshape", s.slice(top, 0, 1, 1), s.ints(1, 1, -1))
    rows = _suppress(s, boxes, best, int(s.op["max_detections"]))
    chosen = s.column(rows, 2, 1)
    values = s.node("Reshape", s.node("Gather", top, chosen, axis=0), s.ints(-1))
    kinds = s.node("Reshape", s.node("Gather", classes, chosen, axis=0), s.ints(-1))
    count = s.node("Shape", chosen)
    if per_box > 1:  # the kernel repeats a box for each of its classes
        spread = s.node("Expand", s.node("Unsqueeze", chosen, s.ints(1)), s.ints(1, per_box))
        chosen = s.node("Reshape", spread, s.ints(-1))
    return chosen, kinds, values, count


def _regular(s: Steps, boxes: str, scores: str) -> tuple[str, str, str, str]:
    """A suppression for each class, then the best detections of all."""
    by_class = s.node("Transpose", scores, perm=[0, 2, 1])
    rows = _suppress(s, boxes, by_class, int(s.op["detections_per_class"]))
    values = s.node("GatherND", by_class, rows)
    count = s.node("Min", s.node("Shape", values), s.ints(int(s.op["max_detections"])))
    best, order = s.b.node("TopK", [values, count], 2, hint=f"{s.name}/best", axis=0)
    kept = s.node("Gather", rows, order, axis=0)
    return s.column(kept, 2, 1), s.column(kept, 1, 1), best, count


def _padded(s: Steps, value: str, rows: int, output: str, shape: list[int]) -> None:
    """`value`, whose first axis is the detections, filled with zeros to `rows` of them."""
    missing = s.node("Sub", s.ints(rows), s.slice(s.node("Shape", value), 0, 1, 0))
    wide = len(shape) == 3
    pads = s.node("Concat", s.ints(0, 0), missing, s.ints(0), axis=0) if wide else s.node("Concat", s.ints(0), missing, axis=0)
    s.b.node("Reshape", [s.node("Pad", value, pads), s.ints(*shape)], [output])


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
    inputs = [*(b.real(name) for name in op.inputs[:2]), b.int64(op.inputs[2])]
    stated = {name: op[name] for name in ("output_height", "output_width", "sampling_ratio", "spatial_scale")}
    mode = str(op["coordinate_transformation_mode"]) if b.opset >= 16 else None
    b.finish(op, b.node("RoiAlign", inputs, mode="avg", coordinate_transformation_mode=mode, **stated)[0])


WRITERS: dict[str, WriteFunction] = {"RoiAlign": write_roi_align, "DetectionPostProcess": write_detection}

READERS: dict[str, ReadFunction] = {"RoiAlign": read_roi_align}
