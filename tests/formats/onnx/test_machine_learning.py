"""Operators of ai.onnx.ml in TFLite: what stands in their place gives what onnxruntime's kernels give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused
from tflite_models import run_litert

from qconvert import convert
from qconvert.errors import UnsupportedError

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

_X = np.array([[-1.5, 0.25, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0], [2.0, -0.5, -4.0, 1.0]], np.float32)
_WEIGHTS = [0.5, -1.0, 0.25, 2.0, 1.0, 0.5, -0.75, 0.1, -0.3, 0.7, 0.9, -1.1]
#: Name -> operator, attributes, constants after the data, results.
_CASES: dict[str, tuple[str, dict[str, Any], list[Any], int]] = {
    "scaler": ("Scaler", {"offset": [0.5, -1.0, 2.0, 0.0], "scale": [2.0, 0.1, 3.0, 1.0]}, [], 1),
    "scaler_of_all": ("Scaler", {"offset": [0.5], "scale": [2.0]}, [], 1),
    "extractor": ("ArrayFeatureExtractor", {}, [np.array([[2, 0, 2]], np.int64)], 1),
    "binarizer": ("Binarizer", {"threshold": 0.25}, [], 1),
    **{f"normalizer_{norm}": ("Normalizer", {"norm": norm}, [], 1) for norm in ("MAX", "L1", "L2")},
    "regressor": ("LinearRegressor", {"coefficients": _WEIGHTS[:4], "intercepts": [0.5]}, [], 1),
    "regressor_of_three": ("LinearRegressor", {"coefficients": _WEIGHTS, "targets": 3}, [], 1),
    **{
        f"classifier_{function}": (
            "LinearClassifier",
            {"coefficients": _WEIGHTS, "intercepts": [0.1, -0.2, 0.3], "classlabels_ints": [7, 3, 9], "post_transform": function},
            [], 2,
        )
        for function in ("NONE", "SOFTMAX", "LOGISTIC")
    },
}  # fmt: skip


def _save(path: Path, name: str, attributes: dict[str, Any], constants: list[Any], count: int) -> None:
    node = helper.make_node(
        name, ["x", *(f"c{index}" for index in range(len(constants)))], [f"y{index}" for index in range(count)], domain="ai.onnx.ml",
        **attributes,
    )  # fmt: skip
    types = [TensorProto.INT64, TensorProto.FLOAT] if count == 2 else [TensorProto.FLOAT]
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info(f"y{index}", kind, None) for index, kind in enumerate(types)],
        [numpy_helper.from_array(value, f"c{index}") for index, value in enumerate(constants)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.parametrize("case", _CASES)
def test_values(tmp_path: Path, case: str) -> None:
    _save(tmp_path / "a.onnx", *_CASES[case])
    convert(tmp_path / "a.onnx", tmp_path / "a.tflite")
    wanted = ort.InferenceSession(tmp_path / "a.onnx").run(None, {"x": _X})
    found = run_litert((tmp_path / "a.tflite").read_bytes(), [_X])
    for value, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)


def test_a_classifier_of_texts_is_refused(tmp_path: Path) -> None:
    attributes = {"coefficients": _WEIGHTS, "intercepts": [0.1, -0.2, 0.3], "classlabels_strings": ["a", "b", "c"]}
    _save(tmp_path / "a.onnx", "LinearClassifier", attributes, [], 2)
    with refused(UnsupportedError, "target-rules"):
        convert(tmp_path / "a.onnx", tmp_path / "a.tflite")
