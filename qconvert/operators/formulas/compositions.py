"""Operators that some formats compose, as formulas: parts of complex numbers, pooling of squares, fake quantization, ranges, numbers of
shapes; and of boxes the suppression of those that overlap, and DetectionPostProcess.

The steps of DetectionPostProcess and their order of float operations are those of TFLite's kernel (detection_postprocess.cc): boxes (y, x,
h, w) relative to anchors become corners; "fast" suppression runs once on each box's best score, "regular" once a class. Among equal scores
both sides take the lower index first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.storage import numpy_dtype
from qconvert.operators.formulas.formula import lowers
from qconvert.operators.signal import fake_quant_quantization
from qconvert.operators.values import (
    Value,
    apply,
    cast,
    clip,
    constant_of,
    dtype_of,
    exp,
    maximum,
    minimum,
    rank_of,
    reduce,
    reshape,
    shape_of,
    slice_along,
    sqrt,
    square,
    transpose,
    where,
)


def _part(x: Value, index: int) -> Value:
    return apply("Gather", x, np.array(index), axis=-1)


@lowers("Real")
def real(x: Value) -> Value:
    """The first of the two parts along the last axis."""
    return _part(x, 0)


@lowers("Imag")
def imaginary(x: Value) -> Value:
    """The second of them."""
    return _part(x, 1)


@lowers("ComplexAbs")
def magnitude(x: Value) -> Value:
    """The root of the sum of squares of both."""
    return sqrt(square(_part(x, 0)) + square(_part(x, 1)))


@lowers("L2Pool")
def pool_of_squares(x: Value, **window: Any) -> Value:
    """The root of the mean of squares of what is no padding."""
    return sqrt(apply("AveragePool", square(x), **window))


@lowers("FakeQuant")
def steps_from_the_lowest(x: Value, *, min: float, max: float, num_bits: int, narrow_range: int) -> Value:
    """Steps from the lowest value, rounded up from a half, in the order of TFLite's kernel (fake_quant.h)."""
    low, high, scale = fake_quant_quantization(float(min), float(max), int(num_bits), bool(narrow_range))
    steps = (clip(x, low, high) - low) * float(np.float32(1) / np.float32(scale))
    return apply("Floor", steps + 0.5) * scale + low


@lowers("Bucketize")
def count_boundaries(x: Value, boundaries: Value) -> Value:
    """The number of boundaries that are not above the element."""
    if 0 in (shape_of(x) or ()):  # onnxruntime's sums over an axis keep it where there are no elements
        return cast(x, "int32")
    if dtype_of(x) != "float32":
        x, boundaries = cast(x, "float64"), cast(boundaries, "float64")
    above = apply("GreaterOrEqual", apply("Unsqueeze", x, np.array([-1])), boundaries)
    return reduce("ReduceSum", cast(above, "int32"), [-1], keepdims=False)


@lowers("Rank")
def length_of_the_shape(x: Value) -> Value:
    """The shape of the shape."""
    return apply("Gather", apply("Shape", apply("Shape", x)), np.array(0))


@lowers("ZerosLike")
def expand_zero(x: Value) -> Value:
    """Zero, expanded to the shape of the data."""
    return apply("Expand", np.zeros((), numpy_dtype(dtype_of(x))), apply("Shape", x))


@lowers("BroadcastArgs")
def sizes_of_either_shape(first: Value, second: Value) -> Value:
    """The sizes of either shape, the shorter one filled up with 1 in front: of the second where the first has 1."""
    sizes = [(shape_of(item) or ("",))[0] for item in (first, second)]
    lengths = [size for size in sizes if isinstance(size, int)]
    if len(lengths) < 2:
        return None
    filled = []
    for item, length in zip((first, second), lengths, strict=True):
        ones = np.ones(max(lengths) - length, numpy_dtype(dtype_of(item)))
        filled.append(apply("Concat", ones, item, axis=0) if ones.size else item)
    return where(apply("Equal", filled[0], 1), filled[1], filled[0])


#: Elements along an axis that a Pad may repeat, each of which is a Slice.
_MOST_REPEATED = 32


@lowers("Pad")
def repeated_elements(x: Value, pads: Value, value: Value = None, *, mode: str) -> Value:
    """For each axis the elements before it and after it, one by one, as `mode` repeats them (reflect, symmetric, edge, wrap)."""
    shape, counts = shape_of(x), constant_of(pads)
    if mode == "constant" or shape is None or counts is None or counts.min(initial=0) < 0 or counts.size != 2 * len(shape):
        return None
    for axis, (size, widths) in enumerate(zip(shape, counts.reshape(2, -1).T, strict=True)):
        if not widths.any():
            continue
        if not isinstance(size, int) or not size or widths.sum() > _MOST_REPEATED:
            return None
        places = np.pad(np.arange(size), tuple(widths), mode=mode)  # type: ignore[call-overload]
        before, after = ([slice_along(x, i, i + 1, axis) for i in part] for part in (places[: widths[0]], places[widths[0] + size :]))
        x = apply("Concat", *before, x, *after, axis=axis)
    return x


@lowers("DynamicQuantizeLinear")
def quantize_by_range(x: Value) -> tuple[Value, ...] | None:
    """(high - low) / 255 of a range that holds 0, and the rest from that, as ONNX defines it."""
    rank = rank_of(x)
    if rank is None:
        return None
    low, high = (
        minimum(reduce("ReduceMin", x, range(rank), keepdims=False), 0.0),
        maximum(reduce("ReduceMax", x, range(rank), keepdims=False), 0.0),
    )
    span = high - low
    scale = where(apply("Equal", span, 0.0), 1.0, span / 255.0)
    point = apply("Round", minimum(maximum(-low / scale, 0.0), 255.0))
    steps = minimum(maximum(apply("Round", x / scale) + point, 0.0), 255.0)
    stored, zero = (cast(cast(item, "int32"), "uint8") for item in (steps, point))  # LiteRT has no CAST from float32 to uint8
    return stored, scale, zero


@lowers("NonMaxSuppression")
def suppression_of_corners(boxes: Value, scores: Value, *more: Value, center_point_box: int) -> Value:
    """Boxes of centres and sizes as two corners."""
    if not center_point_box:
        return None
    centre, half = slice_along(boxes, 0, 2, 2), slice_along(boxes, 2, 4, 2) * 0.5
    return apply("NonMaxSuppression", apply("Concat", centre - half, centre + half, axis=2), scores, *more)


@lowers("SelectBoxes")
def suppression_of_one_class(
    boxes: Value, scores: Value, most: Value, overlap: Value, least: Value, sigma: Value = None
) -> tuple[Value, ...] | None:
    """NonMaxSuppression, filled up with zeros. TFLite suppresses at the threshold, ONNX above it, which therefore is one float lower."""
    count, softness = constant_of(most), np.zeros(1) if sigma is None else constant_of(sigma)
    if count is None or softness is None or softness.any():  # soft suppression has no other form
        return None
    rows = apply(
        "NonMaxSuppression", apply("Unsqueeze", boxes, np.array([0])), apply("Unsqueeze", scores, np.array([0, 1])), count.reshape(1),
        _one_float_lower(overlap), _to_vector(least),
    )  # fmt: skip
    chosen = _column(rows, 2)
    found = apply("Shape", chosen)
    pads = apply("Concat", np.array([0]), int(count.flat[0]) - found, axis=0)
    return apply("Pad", chosen, pads), reshape(found, []), apply("Pad", apply("Gather", scores, chosen), pads)


def _to_vector(number: Value) -> Value:
    """A number as a list of one."""
    known = constant_of(number)
    return reshape(number, [1]) if known is None else known.reshape(1)


def _one_float_lower(threshold: Value) -> Value:
    """The greatest float32 below a threshold, between the bounds 0 and 1 that ONNX demands, as a list of one.

    Of one that is computed at run time it is a product: 2**-24 of a float is more than half of the step to its lower neighbour, and the
    whole step where that is of another power of two.
    """
    number = _to_vector(threshold)
    if isinstance(number, np.ndarray):
        return np.clip(np.nextafter(number.astype(np.float32), np.float32(-1)), 0, 1)
    return clip(number * float(np.nextafter(np.float32(1), np.float32(0))), 0.0, 1.0)


def _column(rows: Value, index: int) -> Value:
    return apply("Gather", rows, np.array(index), axis=1)


@lowers("DetectionPostProcess", in_float=True)
def decode_and_suppress(
    encodings: Value, scores: Value, anchors: Value, *, max_detections: int, max_classes_per_detection: int, detections_per_class: int,
    use_regular_nms: int, nms_score_threshold: float, nms_iou_threshold: float, num_classes: int, **scales: Any,
) -> tuple[Value, ...] | None:  # fmt: skip
    """Boxes, classes, scores and count, padded with zeros to a fixed number of detections."""
    shape, kinds = shape_of(encodings), (shape_of(scores) or ("",))[-1]
    if shape is None or shape[0] != 1 or not isinstance(kinds, int) or max_classes_per_detection > num_classes:
        return None
    boxes = _corners(encodings, anchors, scales)
    scores = scores if kinds == num_classes else slice_along(scores, kinds - num_classes, kinds, 2)  # without background classes
    # TFLite keeps scores at the threshold, ONNX those above.
    lower = np.nextafter(np.float32(nms_score_threshold), np.float32(-np.inf))
    thresholds = (np.array([nms_iou_threshold]), np.array([lower]))
    batch = apply("Unsqueeze", boxes, np.array([0]))
    if use_regular_nms:  # a suppression for each class, then the best detections of all
        by_class = transpose(scores, (0, 2, 1))
        rows = apply("NonMaxSuppression", batch, by_class, np.array([detections_per_class]), *thresholds)
        values = apply("GatherND", by_class, rows)
        count = minimum(apply("Shape", values), max_detections)
        values, order = apply("TopK", values, count, axis=0, outputs=2)
        kept = apply("Gather", rows, order, axis=0)
        chosen, classes = _column(kept, 2), _column(kept, 1)
    else:  # one suppression on each box's best score, then the best classes of each box that is left
        flat = apply("Squeeze", scores, np.array([0]))
        top, ranked = apply("TopK", flat, np.array([max_classes_per_detection]), axis=1, outputs=2)
        best = reshape(slice_along(top, 0, 1, 1), [1, 1, -1])
        chosen = _column(apply("NonMaxSuppression", batch, best, np.array([max_detections]), *thresholds), 2)
        values, classes = (reshape(apply("Gather", item, chosen, axis=0), [-1]) for item in (top, ranked))
        count = apply("Shape", chosen)
        if max_classes_per_detection > 1:  # the kernel repeats a box for each of its classes
            spread = apply("Expand", apply("Unsqueeze", chosen, np.array([1])), np.array([1, max_classes_per_detection]))
            chosen = reshape(spread, [-1])
    total = max_detections * max_classes_per_detection
    found = apply("Gather", boxes, chosen, axis=0)
    dtype = dtype_of(values)
    return (*(_pad_detections(item, total) for item in (found, cast(classes, dtype), values)), cast(count, dtype))


def _corners(encodings: Value, anchors: Value, scales: Any) -> Value:
    """Corners (ymin, xmin, ymax, xmax) of shape (boxes, 4) from encodings (1, boxes, 4) and anchors (boxes, 4)."""
    code = apply("Squeeze", encodings, np.array([0])) / np.array([scales[f"{name}_scale"] for name in "yxhw"])
    origin, size = slice_along(anchors, 0, 2, 1), slice_along(anchors, 2, 4, 1)
    centre = slice_along(code, 0, 2, 1) * size + origin
    half = exp(slice_along(code, 2, 4, 1)) * 0.5 * size
    return apply("Concat", centre - half, centre + half, axis=1)


def _pad_detections(value: Value, rows: int) -> Value:
    """A value whose first axis is the detections, with zeros for those that are missing, and an axis of 1 in front."""
    wide = rank_of(value) == 2
    missing = rows - slice_along(apply("Shape", value), 0, 1, 0)
    pads = apply("Concat", *([np.array([0, 0]), missing, np.array([0])] if wide else [np.array([0]), missing]), axis=0)
    return reshape(apply("Pad", value, pads), [1, rows, 4] if wide else [1, rows])
