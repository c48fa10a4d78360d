"""per_axis_in_float: activations with scales along an axis, as NNCF gives the data of depthwise convolutions, in TFLite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from tflite_models import run_litert

from qconvert import check, convert, load
from qconvert.evaluate import evaluate
from qconvert.passes.requantizations import per_axis_in_float

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

_X = np.random.default_rng(3).normal(size=(1, 3, 8, 8)).astype(np.float32) * np.array([1, 8, 0.1], np.float32).reshape(3, 1, 1)


def _save(path: Path, points: list[int], dtype: type = np.int8) -> Path:
    """Data quantized by channel, a depthwise Conv of them in float."""
    held = {
        "s": np.array([0.02, 0.1, 0.0013], np.float32), "z": np.array(points, dtype),
        "w": np.random.default_rng(4).normal(size=(3, 1, 3, 3)).astype(np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=1),
        helper.make_node("Conv", ["d", "w"], ["y"], group=3, pads=[1, 1, 1, 1]),
    ]
    inputs, results = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 8, 8])] for name in "xy")
    graph = helper.make_graph(nodes, "g", inputs, results, [numpy_helper.from_array(value, name) for name, value in held.items()])
    onnx.save(model_of(graph), path)
    return path


@pytest.mark.parametrize(("points", "dtype"), [([3, -100, 0], np.int8), ([0, 0, 0], np.int8), ([128, 3, 255], np.uint8)])
def test_the_values_stay(tmp_path: Path, points: list[int], dtype: type) -> None:
    graph = load(_save(tmp_path / "a.onnx", points, dtype))
    found, notes = per_axis_in_float(graph, None)
    assert len(notes) == 1 and ("Sub" in {op.kind for op in found.ops}) == any(points)
    assert all(tensor.quantization is None or tensor.quantization.axis is None for tensor in found.tensors.values())
    before, after = (evaluate(side, {"x": _X}) for side in (graph, found))
    np.testing.assert_array_equal(after["y"], before["y"])


def test_in_litert(tmp_path: Path) -> None:
    _save(tmp_path / "a.onnx", [3, -100, 0])
    convert(tmp_path / "a.onnx", tmp_path / "a.tflite", io_layout="nchw")
    (found,) = run_litert((tmp_path / "a.tflite").read_bytes(), [_X])
    (wanted,) = ort.InferenceSession(tmp_path / "a.onnx").run(None, {"x": _X})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert check(tmp_path / "a.onnx", tmp_path / "a.tflite").passed


def test_integers_that_others_read_stay(tmp_path: Path) -> None:
    model = onnx.load(_save(tmp_path / "a.onnx", [3, -100, 0]))
    model.graph.output.append(helper.make_tensor_value_info("q", TensorProto.INT8, [1, 3, 8, 8]))
    onnx.save(model, tmp_path / "b.onnx")
    graph = load(tmp_path / "b.onnx")
    assert per_axis_in_float(graph, None) == (graph, ())
