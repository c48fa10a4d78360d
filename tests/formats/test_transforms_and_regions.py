"""DFT, STFT and RoiAlign: read from ONNX, computed as onnxruntime does, and written to every format, by a node or by a formula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of

import qconvert
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.operators.shapes_and_functions import infer

_REGIONS = np.array([[0, 0, 3, 3], [1.2, 0.5, 9, 5.5], [-3, 2, 2, 4]], np.float32)


def _model(
    path: Path, node: str, inputs: list[str], feed: dict[str, Array], constants: dict[str, Any], opset: int, **attributes: Any
) -> None:
    graph = helper.make_graph(
        [helper.make_node(node, inputs, ["y"], "layer", **attributes)],
        "g",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(data.dtype), data.shape) for name, data in feed.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(model_of(graph, opset), path)


def _signal(*shape: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(0).normal(0, 2, shape).astype(np.float32)}


_REGIONS_OF = {**_signal(2, 3, 6, 7), "rois": _REGIONS, "which": np.array([0, 1, 1])}
_SIZES = {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.8}
_CASES: dict[str, tuple[str, list[str], dict[str, Array], dict[str, Any], int, dict[str, Any]]] = {
    "one side": ("DFT", ["x"], _signal(2, 12, 1), {}, 17, {"axis": 1, "onesided": 1}),
    "inverse, cut": ("DFT", ["x", "n", "axis"], _signal(2, 12, 2), {"n": 8, "axis": 1}, 20, {"inverse": 1}),
    "filled": ("DFT", ["x", "n"], _signal(2, 6, 1), {"n": 9}, 20, {}),
    "frames": ("STFT", ["x", "step", "w"], _signal(2, 64, 1), {"step": 8, "w": np.hanning(16).astype(np.float32)}, 17, {}),
    "both sides": ("STFT", ["x", "step", "", "n"], _signal(1, 40, 1), {"step": 5, "n": 10}, 17, {"onesided": 0}),
    "regions": ("RoiAlign", ["x", "rois", "which"], _REGIONS_OF, {}, 16, _SIZES),
    "early regions": ("RoiAlign", ["x", "rois", "which"], _REGIONS_OF, {}, 10, _SIZES),
}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.torch
@pytest.mark.parametrize("case", _CASES)
def test_all_formats_compute_what_onnxruntime_does(case: str, tmp_path: Path) -> None:
    node, inputs, feed, constants, opset, attributes = _CASES[case]
    _model(tmp_path / "source.onnx", node, inputs, feed, constants, opset, **attributes)
    graph = qconvert.load(tmp_path / "source.onnx")
    assert [op.kind for op in graph.ops] == [node]
    wanted = qconvert.run(tmp_path / "source.onnx", feed)["y"]
    np.testing.assert_allclose(evaluate(graph, feed)["y"], wanted, atol=2e-5)
    assert graph["y"].shape in (wanted.shape, (3, 3, 3, 2))
    for suffix in (".onnx", ".tflite", ".pt2"):
        qconvert.convert(tmp_path / "source.onnx", tmp_path / f"result{suffix}")
        np.testing.assert_allclose(qconvert.run(tmp_path / f"result{suffix}", feed)["y"], wanted, atol=2e-5, err_msg=suffix)
    assert [op.kind for op in qconvert.load(tmp_path / "result.onnx").ops] == [node]


@pytest.mark.litert
def test_transforms_of_quantized_data_are_rounded_once(tmp_path: Path) -> None:
    x = Tensor("x", "int8", (1, 16, 1), None, Quantization.per_tensor(0.05, 3))
    y = Tensor("y", "int8", None, None, Quantization.per_tensor(0.4, -2))
    op = Op("DFT", ("x",), ("y",), {"axis": 1, "onesided": 1}, "layer")
    graph = infer(Graph("g", {"x": x, "y": y}, (op,), ("x",), ("y",)))
    feed = {"x": np.random.default_rng(0).integers(-128, 128, (1, 16, 1)).astype(np.int8)}
    qconvert.convert(graph, tmp_path / "result.tflite")
    found = qconvert.run(tmp_path / "result.tflite", feed)["y"].astype(int)
    assert np.abs(found - evaluate(graph, feed)["y"].astype(int)).max() <= 1


@pytest.mark.formats
@pytest.mark.parametrize("attributes", [{"mode": "max", "sampling_ratio": 2}, {"sampling_ratio": 0}])
def test_regions_without_a_kind_stay_what_they_are(attributes: dict[str, Any], tmp_path: Path) -> None:
    """The largest of weighted corners, and points whose number goes by the size of each region, as a node of ONNX alone."""
    _model(tmp_path / "source.onnx", "RoiAlign", ["x", "rois", "which"], _REGIONS_OF, {}, 16, **attributes)
    graph = qconvert.load(tmp_path / "source.onnx")
    assert [(op.kind, op["op_type"]) for op in graph.ops] == [("Opaque", "RoiAlign")]
