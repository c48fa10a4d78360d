"""TFLite_Detection_PostProcess, fast and regular, against LiteRT."""

from __future__ import annotations

import numpy as np
import pytest
from differential import compare
from tflite_models import TensorSpec, single_op

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]


def detection(regular: bool, per_box: int, threshold: float, rng: np.random.Generator, stated: int = 0) -> tuple[bytes, list[TensorSpec]]:
    """A model with the operator alone, and its inputs; the file states `stated` rows, if that is given."""
    boxes, classes, limit = 60, 4, 12
    rows = stated or limit * per_box
    anchors = np.concatenate([rng.integers(0, 250, (boxes, 2)), rng.integers(25, 100, (boxes, 2))], 1).astype(np.uint8)
    inputs = [
        TensorSpec("e", (1, boxes, 4), "uint8", 0.05, 128),
        TensorSpec("s", (1, boxes, classes + 1), "uint8", 1 / 256, 0),
        TensorSpec("a", (boxes, 4), "uint8", 1 / 250, 0, data=anchors),
    ]
    outputs = [TensorSpec(n, shape, "float32") for n, shape in (("b", (1, rows, 4)), ("c", (1, rows)), ("p", (1, rows)), ("n", (1,)))]
    options = {
        "max_detections": limit, "max_classes_per_detection": per_box, "detections_per_class": 100, "use_regular_nms": regular,
        "nms_score_threshold": threshold, "nms_iou_threshold": 0.5, "num_classes": classes, "y_scale": 10.0, "x_scale": 10.0,
        "h_scale": 5.0, "w_scale": 5.0,
    }  # fmt: skip
    return single_op("TFLite_Detection_PostProcess", options, inputs, outputs, custom=True), inputs[:2]


@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize("per_box", [1, 2])
@pytest.mark.parametrize("threshold", [0.0, 0.4, 0.97])
def test_detection_postprocess(regular: bool, per_box: int, threshold: float) -> None:
    rng = np.random.default_rng(5)
    data, inputs = detection(regular, per_box, threshold, rng)
    for _ in range(5):
        values = [rng.integers(0, 256, tensor.shape).astype(np.uint8) for tensor in inputs]
        found = compare(data, values)
        count = int(found[3].source[0])
        assert found[3].largest == 0
        kept = count * (1 if regular else per_box)
        assert [item.result.shape for item in found] == [item.source.shape for item in found]
        for item in found[:3]:  # LiteRT leaves what lies behind the last detection unset
            source, result = item.source[:, :kept], item.result[:, :kept]
            assert np.allclose(source, result, rtol=0, atol=1e-5)


@pytest.mark.cross_section
def test_shapes_that_the_file_states_wrongly_are_the_kernels() -> None:
    rng = np.random.default_rng(6)
    data, inputs = detection(False, 2, 0.4, rng, stated=10)
    found = compare(data, [rng.integers(0, 256, tensor.shape).astype(np.uint8) for tensor in inputs])
    assert [item.result.shape for item in found] == [(1, 24, 4), (1, 24), (1, 24), (1,)]
    assert [item.source.shape for item in found] == [item.result.shape for item in found]
