"""DetectionPostProcess with one suppression for all classes: a step for each detection, on as many boxes as there are anchors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qconvert.formats.torch.program import Node
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op

_MOST = 200  # detections, of each of which some twenty calls are made


def write_detection(op: Op, b: Builder) -> None:
    """DetectionPostProcess in float64: boxes, classes, scores and count; rows that are not used are zero."""
    rows = b.static_shape(op, op.outputs[0])[1]
    classes = min(op["max_classes_per_detection"], op["num_classes"])
    steps = min(op["max_detections"], -(-rows // max(classes, 1)))
    if op["use_regular_nms"]:
        raise b.unsupported_error(op, "a suppression for each class", rule="variant-not-writable")
    if steps > _MOST:
        raise b.unsupported_error(op, f"{steps} detections")
    b.note_operator()
    boxes = _decode_boxes(op, b)
    count = b.static_shape(op, 1)[-1]
    scores = b.aten("slice.Tensor", b.aten("select.int", _real(b, op.inputs[1]), 0, 0), 1, count - op["num_classes"], count)
    order = b.aten("sort.stable", scores, stable=True, dim=1, descending=True)
    ordered, places = (b.aten("slice.Tensor", b.call("operator.getitem", order, place), 1, 0, classes) for place in (0, 1))
    chosen = _suppress_boxes(op, b, boxes, b.aten("amax", scores, [1]), steps)
    index = b.aten("cat", [node for node, _ in chosen], 0)
    found = b.aten("cat", [is_found for _, is_found in chosen], 0)
    picked = [b.aten("index_select", node, 0, index) for node in (boxes, places, ordered)]
    for name, node, columns in zip(op.outputs, picked, (4, 1, 1), strict=False):
        node = b.cast(node, "float64")
        if columns == 4:  # a row for each class of a detection
            node = b.aten("reshape", b.aten("expand", b.aten("unsqueeze", node, 1), [steps, classes, 4]), [1, -1, 4])
            shares = b.aten("reshape", b.aten("expand", b.aten("reshape", found, [-1, 1, 1]), [steps, classes, 4]), [1, -1, 4])
        else:
            node = b.aten("reshape", node, [1, -1])
            shares = b.aten("reshape", b.aten("expand", b.aten("unsqueeze", found, 1), [steps, classes]), [1, -1])
        kept = b.aten("slice.Tensor", b.aten("where.self", shares, node, b.aten("zeros_like", node)), 1, 0, rows)
        if rows > steps * classes:  # rows that nothing can fill
            kept = b.aten("constant_pad_nd", kept, [*[0] * (2 * (columns > 1)), 0, rows - steps * classes], 0.0)
        if name:
            b.set_node(name, b.cast(kept, b.tensor(name).dtype))
    total = b.aten("sum.dim_IntList", b.cast(found, "float64"), [0], True)
    b.set_node(op.outputs[3], b.cast(total, b.tensor(op.outputs[3]).dtype))


def _real(b: Builder, name: str) -> Node:
    """Return float values in float64."""
    return b.float_value(name) if b.wide else b.widen(b.stored_value(name))


def _decode_boxes(op: Op, b: Builder) -> Node:
    """Return boxes as (y min, x min, y max, x max) of offsets to the anchors' centres and sizes."""
    scales = np.array([op[f"{name}_scale"] for name in "yxhw"], np.float64)
    coded, anchors = b.aten("select.int", _real(b, op.inputs[0]), 0, 0), _real(b, op.inputs[2])

    def part(node: Node, start: int) -> Node:
        return b.aten("slice.Tensor", node, 1, start, start + 2)

    def scale_part(start: int) -> Node:
        return part(coded, start) / b.buffer(scales[start : start + 2], f"{op.outputs[0]}/scales")

    centres = scale_part(0) * part(anchors, 2) + part(anchors, 0)
    halves = b.aten("exp", scale_part(2)) * 0.5 * part(anchors, 2)
    return b.aten("cat", [centres - halves, centres + halves], 1)


def _suppress_boxes(op: Op, b: Builder, boxes: Node, best: Node, steps: int) -> list[tuple[Node, Node]]:
    """Return for each detection the place of its box, and whether there is one; a list of one each."""
    lowest = b.buffer(np.array(-np.inf), f"{op.outputs[0]}/suppressed")
    left = b.aten("where.self", b.aten("ge.Scalar", best, float(op["nms_score_threshold"])), best, lowest)
    low, high = (b.aten("slice.Tensor", boxes, 1, start, start + 2) for start in (0, 2))
    areas = b.aten("prod.dim_int", high - low, 1)
    places = b.buffer(np.arange(b.static_shape(op)[1]), f"{op.outputs[0]}/places")
    found = []
    for _ in range(steps):
        at = b.aten("argmax", left, 0, True)
        found.append((at, b.aten("gt.Tensor", b.aten("index_select", left, 0, at), lowest)))
        own = [b.aten("index_select", node, 0, at) for node in (low, high, areas)]
        sides = b.aten("minimum", own[1], high) - b.aten("maximum", own[0], low)
        shared = b.aten("prod.dim_int", b.aten("clamp_min", sides, 0.0), 1)
        share = shared / (own[2] + areas - shared)
        flat = b.aten("logical_or", b.aten("le.Scalar", own[2], 0.0), b.aten("le.Scalar", areas, 0.0))
        share = b.aten("where.self", flat, b.aten("zeros_like", share), share)
        gone = b.aten("logical_or", b.aten("gt.Scalar", share, float(op["nms_iou_threshold"])), b.aten("eq.Tensor", places, at))
        left = b.aten("where.self", gone, lowest, left)
    return found


WRITERS: Mapping[str, WriteFunction] = {"DetectionPostProcess": write_detection}
