"""Suppression of boxes that overlap: TFLite_Detection_PostProcess, with its options in a FlexBuffer, and operators that take one image and
one class."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.formats.reading.flexbuffer import decode_flexbuffer
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op
from qconvert.operators import KINDS
from qconvert.rewriting.lowering import conditions


def read_detection_postprocess(r: Reading) -> None:
    """TFLite_Detection_PostProcess: (box encodings, class scores, anchors) -> boxes, classes, scores, count."""
    options = read_option_map(r)

    def number(key: str, default: Any = None) -> Any:
        if key not in options and default is None:
            raise r.invalid(f"the option {key!r} is missing", rule="option-missing")
        return options.get(key, default)

    for index in range(4):
        r.with_shape(None, index)
    r.emit(
        "DetectionPostProcess",
        max_detections=int(number("max_detections")),
        max_classes_per_detection=int(number("max_classes_per_detection")),
        detections_per_class=int(number("detections_per_class", 100)),
        use_regular_nms=int(bool(number("use_regular_nms", False))),
        nms_score_threshold=float(number("nms_score_threshold")),
        nms_iou_threshold=float(number("nms_iou_threshold")),
        num_classes=int(number("num_classes")),
        y_scale=float(number("y_scale")),
        x_scale=float(number("x_scale")),
        h_scale=float(number("h_scale")),
        w_scale=float(number("w_scale")),
    )


def read_option_map(r: Reading) -> dict[str, Any]:
    """The options of a custom operator that are a map in a FlexBuffer; raises InvalidModelError if they are none."""
    try:
        value = decode_flexbuffer(r.custom_options)
    except InvalidModelError as error:
        raise r.invalid(f"its options: {error.reason}", rule="invalid-options") from error
    if not isinstance(value, dict):
        raise r.invalid("its options are not a map", rule="invalid-options")
    return value


def write_detection_postprocess(op: Op, w: Writing) -> None:
    """TFLite_Detection_PostProcess."""
    from flatbuffers import flexbuffers

    builder = flexbuffers.Builder()
    with builder.Map():
        for name in KINDS["DetectionPostProcess"].attributes:
            builder.Key(name)
            builder.Add(bool(op[name]) if name == "use_regular_nms" else op[name])
    w.emit("TFLite_Detection_PostProcess", op.inputs, op.outputs, custom=bytes(builder.Finish()))


#: Images times classes, of which each is an operator.
_MOST = 1024


def read_suppression(r: Reading) -> None:
    """NON_MAX_SUPPRESSION_V4 and _V5: the scores come before the number in V5. TensorFlow's converter states a batch that none makes."""
    most = r.known_ints(2)
    for index in {0, len(r.outputs) - 2}:
        r.with_shape((most[0] if most else f"{r.outputs[index]}_count",), index)
    outputs = [r.outputs[0], r.outputs[-1], *r.outputs[1:-1]]
    r.emit("SelectBoxes", [r.input(0), r.input(1), r.int64(2), *(r.input(index) for index in range(3, len(r.inputs)))], outputs)


def write_select_boxes(op: Op, w: Writing) -> None:
    """NON_MAX_SUPPRESSION_V4, or _V5 where scores are asked for."""
    operands = [*op.inputs[:2], w.index(op, 2), *op.inputs[3:]]
    version = "V5" if len(op.outputs) == 3 else "V4"
    if (version == "V5") != (len(op.inputs) == 6):
        raise w.unsupported_error(op, f"{len(op.inputs)} inputs and {len(op.outputs)} outputs", rule="wrong-number-of-tensors")
    outputs = [op.outputs[0], *op.outputs[2:], op.outputs[1]]
    w.emit(f"NON_MAX_SUPPRESSION_{version}", operands, outputs)


@conditions(lambda op, scope: "has boxes of corners alone" if op["center_point_box"] else "")
def write_suppression(op: Op, w: Writing) -> None:
    """NonMaxSuppression as a NON_MAX_SUPPRESSION_V4 for each class of each image; what they choose, and how much, becomes one list of rows.

    TFLite suppresses at the threshold, ONNX above it, which therefore is one float higher.
    """
    images, classes, count = w.shape(op.inputs[1], op)
    most = min(w.integers(op, 2)[0], count) if op.has(2) else 0
    if not 0 < images * classes <= _MOST or most < 1:
        raise w.unsupported_error(op, f"{images * classes} suppressions of at most {most} boxes each", rule="too-many-operators")
    overlap, least = (float(w.constant(op, index).reshape(())) if op.has(index) else default
                      for index, default in ((3, 0.0), (4, float(np.finfo(np.float32).min))))  # fmt: skip
    result = op.outputs[0]
    numbers = [w.ints(most, f"{result}/most")]
    numbers += [w.const(np.float32(value), f"{result}/threshold") for value in (np.nextafter(np.float32(overlap), np.float32(2)), least)]
    boxes = _write_unpack(w, op.inputs[0], (images, count, 4))
    of_class = w.like(f"{result}/of_class", op.inputs[1], (images * classes, count))
    w.reshape(op.inputs[1], [images * classes, count], of_class)
    scores = _write_unpack(w, of_class, (images * classes, count))
    chosen, found = [], []
    for index, values in enumerate(scores):
        pair = w.add(f"{result}/chosen", "int32", (most,)), w.add(f"{result}/number", "int32", ())
        w.emit("NON_MAX_SUPPRESSION_V4", [boxes[index // classes], values, *numbers], pair)
        chosen.append(pair[0])
        found.append(pair[1])
    _write_rows(op, w, _write_pack(w, chosen, (len(scores), most)), _write_pack(w, found, (len(scores),)), classes)


def _write_unpack(w: Writing, name: str, shape: tuple[int, ...]) -> list[str]:
    return w.emit("UNPACK", [name], [w.add(f"{name}/part", "float32", shape[1:]) for _ in range(shape[0])], num=shape[0], axis=0)


def _write_pack(w: Writing, parts: list[str], shape: tuple[int, ...]) -> str:
    return w.emit_new("PACK", parts, f"{parts[0]}/all", "int32", shape, valuesCount=len(parts), axis=0)


def _write_rows(op: Op, w: Writing, chosen: str, found: str, classes: int) -> None:
    """Rows of (image, class, box) of what each suppression chose, of which the first `found` count."""
    result = op.outputs[0]
    count, most = w.shape(chosen, op)
    rows = w.tensor(result).shape or ("rows", 3)

    def column(builtin: str, inputs: list[str], dtype: str, shape: tuple[int | str, ...]) -> str:
        return w.emit_new(builtin, inputs, f"{result}/{builtin.lower()}", dtype, shape)

    last = w.ints([count, 1], f"{result}/column")
    places = w.const(np.arange(most, dtype=np.int32)[None], f"{result}/places")
    counts = column("RESHAPE", [found, last], "int32", (count, 1))
    there = column("WHERE", [column("LESS", [places, counts], "bool", (count, most))], "int64", (rows[0], 2))
    box = column("GATHER_ND", [chosen, there], "int32", (rows[0],))
    wide = column("CAST", [box], "int64", (rows[0],))
    boxes = column("RESHAPE", [wide, w.ints([-1, 1], f"{result}/boxes")], "int64", (rows[0], 1))
    bounds = [w.ints(values, f"{result}/first") for values in ([0, 0], [-1, 1])]
    number = column("SLICE", [there, *bounds], "int64", (rows[0], 1))
    flat = column("RESHAPE", [number, w.ints([-1], f"{result}/numbers")], "int64", (rows[0],))
    known = w.const(np.stack(np.divmod(np.arange(count), classes), -1).astype(np.int64), f"{result}/image_and_class")
    pairs = column("GATHER", [known, flat], "int64", (rows[0], 2))
    w.emit("CONCATENATION", [pairs, boxes], [result], axis=1)


READERS: Readers = {
    "TFLite_Detection_PostProcess": read_detection_postprocess,
    "NON_MAX_SUPPRESSION_V4": read_suppression,
    "NON_MAX_SUPPRESSION_V5": read_suppression,
}

WRITERS: Writers = {
    "DetectionPostProcess": write_detection_postprocess,
    "SelectBoxes": write_select_boxes,
    "NonMaxSuppression": write_suppression,
}
