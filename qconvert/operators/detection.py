"""Boxes: DetectionPostProcess, as TFLite's custom kernel does it (detection_postprocess.cc), suppression, and means of regions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.errors import UnsupportedError
from qconvert.graph.schema import Op
from qconvert.operators.attributes import choice, flag, has, integer, number
from qconvert.operators.call import Call
from qconvert.operators.kind import Kind
from qconvert.operators.properties import MIXES, within_data_or_zero
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, failure, unify_sizes


def _detection_shape(op: Op, s: ShapeContext) -> Shapes:
    """Boxes, classes, scores, count; TFLite's kernel has a row for each class of each detection, in regular suppression too."""
    rows = int(op["max_detections"]) * int(op["max_classes_per_detection"])
    if rows < 0:
        raise failure(op, f"the number of detections is {rows}; it must be at least 0", rule="negative-size")
    boxes, scores, anchors = (s.shape(i) for i in range(3))
    for what, shape, rank in (("boxes", boxes, 3), ("scores", scores, 3), ("anchors", anchors, 2)):
        if shape is not None and len(shape) != rank:
            raise failure(op, f"{what} of shape {shape} do not have rank {rank}", rule="wrong-rank")
    counts = [shape[-2] for shape in (boxes, scores, anchors) if shape is not None]
    if counts:
        unify_sizes(op, counts, "the numbers of boxes, scores and anchors")
    return [(1, rows, 4), (1, rows), (1, rows), (1,)]


def detection_postprocess(call: Call) -> list[Array]:
    """(box encodings, class scores, anchors) -> boxes, classes, scores, count.

    Rows that are not used are zero here; the kernel leaves them as they were. The count is of boxes, not of rows.
    """
    boxes = _decode(call)
    scores = call.values(1)[0]
    # Models may have a background class in front, which is never detected.
    scores = scores[:, scores.shape[-1] - call["num_classes"] :]
    chosen, count = _regular(call, boxes, scores) if call["use_regular_nms"] else _fast(call, boxes, scores)
    result = np.zeros((_rows(call), 6))
    for row, (box, category) in enumerate(chosen[: len(result)]):
        result[row] = (*boxes[box], category, scores[box, category])
    return [result[None, :, :4], result[None, :, 4], result[None, :, 5], np.array([float(count)])]


def _rows(call: Call) -> int:
    """How many rows the outputs have: what the graph says, or as many as can be filled."""
    shape = call.results[0].static_shape
    if shape is not None:
        return shape[1]
    classes = 1 if call["use_regular_nms"] else min(call["max_classes_per_detection"], call["num_classes"])
    return int(call["max_detections"] * classes)


def _decode(call: Call) -> Array:
    """Boxes as (y min, x min, y max, x max) from offsets (y, x, h, w) to the anchors' centres and sizes."""
    encodings, anchors = call.values(0)[0, :, :4], call.values(2)
    scales = np.array([call[f"{name}_scale"] for name in "yxhw"])
    centres = encodings[:, :2] / scales[:2] * anchors[:, 2:] + anchors[:, :2]
    halves = 0.5 * np.exp(encodings[:, 2:] / scales[2:]) * anchors[:, 2:]
    return np.concatenate([centres - halves, centres + halves], axis=1)


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of one box with others; 0 where either has no area."""
    areas = [np.prod(np.atleast_2d(item)[:, 2:] - np.atleast_2d(item)[:, :2], axis=1) for item in (box, others)]
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), axis=1)
    empty = (areas[0] <= 0) | (areas[1] <= 0)
    return np.where(empty, 0, shared / np.where(empty, 1, areas[0] + areas[1] - shared))


def _suppress(boxes: Array, order: Array, limit: int, allows: Callable[[Array], Array]) -> list[int]:
    """Indices of at most `limit` boxes, the first of an order before others, none of which overlaps an earlier one more than is allowed."""
    kept: list[int] = []
    while len(order) and len(kept) < limit:
        best, order = order[0], order[1:]
        kept.append(int(best))
        order = order[allows(_overlaps(boxes[best], boxes[order]))]
    return kept


def _suppress_as_tflite(call: Call, boxes: Array, scores: Array, limit: int) -> list[int]:
    """The same, best first, of boxes from the operator's threshold of scores on."""
    order = np.argsort(-scores, kind="stable")
    kept = order[scores[order] >= call["nms_score_threshold"]]
    return _suppress(boxes, kept, limit, lambda overlaps: overlaps <= call["nms_iou_threshold"])


def _corners(boxes: Array) -> Array:
    """Boxes of any two opposite corners as (y min, x min, y max, x max)."""
    return np.concatenate([np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])], axis=-1)


def _fast(call: Call, boxes: Array, scores: Array) -> tuple[list[tuple[int, int]], int]:
    """One suppression over the best score of each box; then the best classes of each box that is left."""
    count = min(call["max_classes_per_detection"], call["num_classes"])
    classes = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    kept = _suppress_as_tflite(call, boxes, scores.max(axis=1), call["max_detections"])
    return [(box, int(category)) for box in kept for category in classes[box]], len(kept)


def _regular(call: Call, boxes: Array, scores: Array) -> tuple[list[tuple[int, int]], int]:
    """One suppression for each class; then the best of all."""
    found: list[tuple[int, int]] = []
    for category in range(scores.shape[1]):
        kept = _suppress_as_tflite(call, boxes, scores[:, category], call["detections_per_class"])
        found += [(box, category) for box in kept]
        found.sort(key=lambda item: -scores[item])
        found = found[: call["max_detections"]]
    return found, len(found)


def _select_shape(op: Op, s: ShapeContext) -> Shapes:
    boxes, scores, most = s.shape(0), s.shape(1), s.ints(2)
    if boxes is not None and (len(boxes) != 2 or boxes[1] != 4):
        raise failure(op, f"boxes of shape {boxes}", rule="wrong-rank")
    if boxes is not None and scores is not None:
        unify_sizes(op, [boxes[0], *scores], "the numbers of boxes and scores")
    rows: Shapes = [None if most is None else (most[0],)]
    return [*rows, (), *rows][: len(op.outputs)]


def select_boxes(call: Call) -> list[Array]:
    """The best boxes, none of which overlaps a better one by iou_threshold or more, filled up with 0 to a fixed number; how many there
    are; and their scores. A sigma above 0 lowers the scores of boxes that overlap instead (soft suppression, which is not evaluated).
    """
    boxes, scores, (most,) = call.values(0), call.values(1), call.ints(2)
    overlap, least = float(call.raw(3).reshape(())), float(call.raw(4).reshape(()))
    if call.has(5) and float(call.raw(5).reshape(())) != 0:
        raise UnsupportedError("soft suppression is not evaluated", where=str(call.op), rule="not-evaluated")
    order = np.argsort(-scores, kind="stable")
    kept = _suppress(_corners(boxes), order[scores[order] > least], most, lambda overlaps: overlaps < overlap)
    chosen, values = np.zeros(most, np.int64), np.zeros(most)
    chosen[: len(kept)], values[: len(kept)] = kept, scores[kept]
    return [chosen, np.array(len(kept)), values][: len(call.results)]


def _suppression_shape(op: Op, s: ShapeContext) -> Shapes:
    boxes, scores = s.shape(0), s.shape(1)
    for what, shape in (("boxes", boxes), ("scores", scores)):
        if shape is not None and (len(shape) != 3 or (what == "boxes" and shape[2] != 4)):
            raise failure(op, f"{what} of shape {shape}", rule="wrong-rank")
    if boxes is not None and scores is not None:
        unify_sizes(op, [boxes[0], scores[0]], "the numbers of images")
        unify_sizes(op, [boxes[1], scores[2]], "the numbers of boxes and scores")
    return [(UNKNOWN, 3)]


def non_max_suppression(call: Call) -> Array:
    """NonMaxSuppression of ONNX: rows of (image, class, box), the best boxes of each class first."""
    boxes, scores = call.values(0), call.values(1)
    most = min(call.ints(2)[0] if call.has(2) else 0, boxes.shape[1])
    overlap, least = (float(call.raw(index).flat[0]) if call.has(index) else 0.0 for index in (3, 4))
    if call["center_point_box"]:
        boxes = np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], axis=-1)
    corners = _corners(boxes)
    rows: list[tuple[int, int, int]] = []
    for image, category in np.ndindex(scores.shape[:2]):
        values = scores[image, category]
        order = np.argsort(-values, kind="stable")
        order = order[values[order] > least] if call.has(4) else order
        kept = _suppress(corners[image], order, most, lambda overlaps: overlaps <= overlap)
        rows += [(image, category, box) for box in kept]
    return np.array(rows, np.int64).reshape(-1, 3)


def _roi_align_shape(op: Op, s: ShapeContext) -> Shapes:
    data, rois = s.shape(0), s.shape(1)
    if (data is not None and len(data) != 4) or (rois is not None and (len(rois) != 2 or rois[1] not in (4, UNKNOWN))):
        raise failure(op, f"data of shape {data} and regions of shape {rois} are not (N, C, H, W) and (R, 4)", rule="wrong-rank")
    sizes = int(op["output_height"]), int(op["output_width"])
    return [(UNKNOWN if rois is None else rois[0], UNKNOWN if data is None else data[1], *sizes)]


def roi_align(call: Call) -> Array:
    """RoiAlign of ONNX (opset 16), mode avg: means of `sampling_ratio` times as many points of each cell of a region, both ways, which lie
    between four elements of the data."""
    data, rois, which = call.values(0), call.values(1), call.raw(2)
    result = np.zeros((len(rois), data.shape[1], call["output_height"], call["output_width"]))
    for place, (roi, image) in enumerate(zip(rois, which, strict=True)):
        rows = _cells(call, roi[1], roi[3], int(call["output_height"]), data.shape[2])
        columns = _cells(call, roi[0], roi[2], int(call["output_width"]), data.shape[3])
        result[place] = rows @ data[image] @ columns.T
    return result


def _cells(call: Call, first: float, last: float, count: int, size: int) -> Array:
    """The share of each of `size` elements in each of `count` cells between two places."""
    scale, each, halves = float(call["spatial_scale"]), int(call["sampling_ratio"]), call["coordinate_transformation_mode"] == "half_pixel"
    extent = (last - first) * scale
    extent = extent if halves else max(extent, 1.0)
    points = first * scale - (0.5 if halves else 0.0) + extent * (np.arange(count * each) + 0.5) / (count * each)
    shares = np.zeros((count * each, size))
    for share, point in zip(shares, points, strict=True):
        if -1 <= point <= size:
            held = min(max(point, 0.0), size - 1.0)
            low = min(int(held), size - 1)
            share[low] += 1 - (held - low)
            share[min(low + 1, size - 1)] += held - low
    return np.asarray(shares.reshape(count, each, size).mean(axis=1))


KINDS = (
    # data, regions (x1, y1, x2, y2), the image that each is of
    Kind(
        "RoiAlign",
        "data parameter index",
        shape=_roi_align_shape,
        evaluate=roi_align,
        samples=MIXES,
        bounds=within_data_or_zero,
        domain=lambda operands, number: [(2, 0, operands.size(0, 0, number) - 1)],
        attributes=has(
            output_height=integer(1),
            output_width=integer(1),
            sampling_ratio=integer(),
            spatial_scale=number(1.0),
            coordinate_transformation_mode=choice(("half_pixel", "output_half_pixel"), "half_pixel"),
        ),
    ),
    Kind(
        "NonMaxSuppression",
        "data data index? parameter? parameter?",
        "index",
        samples=MIXES,
        ranks=True,
        shape=_suppression_shape,
        rule="plain",
        evaluate=non_max_suppression,
        types="float32 float32 any float32 float32 -> int64",
        attributes=has(center_point_box=flag(0)),
    ),
    Kind(
        "SelectBoxes",
        "data data index parameter parameter parameter?",
        "index index index?",
        samples=MIXES,
        ranks=True,
        shape=_select_shape,
        rule="plain",
        evaluate=select_boxes,
        types="T T any T T T -> int32 int32 float32",
    ),
    Kind(
        "DetectionPostProcess",
        "data data data",
        "data data data data",
        samples=MIXES,
        ranks=True,
        shape=_detection_shape,
        rule="index",
        evaluate=detection_postprocess,
        attributes=has(
            max_detections=integer(),
            max_classes_per_detection=integer(1),
            detections_per_class=integer(100),
            use_regular_nms=flag(0),
            nms_score_threshold=number(),
            nms_iou_threshold=number(),
            num_classes=integer(),
            y_scale=number(),
            x_scale=number(),
            h_scale=number(),
            w_scale=number(),
        ),
    ),
)
