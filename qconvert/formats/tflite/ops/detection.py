"""TFLite_Detection_PostProcess: box decoding and non-maximum suppression, with its options in a FlexBuffer."""

from __future__ import annotations

from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.reading.flexbuffer import decode_flexbuffer
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op
from qconvert.operators import KINDS


def read_detection_postprocess(r: Reading) -> None:
    """TFLite_Detection_PostProcess: (box encodings, class scores, anchors) -> boxes, classes, scores, count."""
    options = read_option_map(r)

    def number(key: str, default: Any = None) -> Any:
        if key not in options and default is None:
            raise r.invalid(f"the option {key!r} is missing", rule="option-missing")
        return options.get(key, default)

    if len(r.outputs) != 4:
        raise r.invalid(f"{len(r.outputs)} outputs, not 4", rule="wrong-number-of-tensors")
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


READERS: dict[str, ReadFunction] = {"TFLite_Detection_PostProcess": read_detection_postprocess}


def write_detection_postprocess(op: Op, w: Writing) -> None:
    """TFLite_Detection_PostProcess."""
    from flatbuffers import flexbuffers

    builder = flexbuffers.Builder()
    with builder.Map():
        for name in KINDS["DetectionPostProcess"].attributes:
            builder.Key(name)
            builder.Add(bool(op[name]) if name == "use_regular_nms" else op[name])
    w.emit("TFLite_Detection_PostProcess", op.inputs, op.outputs, custom=bytes(builder.Finish()))


WRITERS: dict[str, WriteFunction] = {"DetectionPostProcess": write_detection_postprocess}
