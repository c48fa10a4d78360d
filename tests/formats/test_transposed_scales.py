"""Weights of transposed convolutions with scales along their inputs, as quantizers that take axis 0 of every weight write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx_nodes import model_of

from qconvert import check, convert, load

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]


def _save(path: Path, group: int, outputs: int) -> np.ndarray:
    """A ConvTranspose of 4 inputs whose weights have a scale for each; returns the stored weights."""
    rng = np.random.default_rng(group)
    weights = rng.integers(-127, 128, (4, outputs, 3, 3)).astype(np.int8)
    constants = {
        "w": weights, "ws": np.array([0.01, 0.02, 0.03, 0.04], np.float32), "wz": np.zeros(4, np.int8),
        "s": np.float32(0.02), "so": np.float32(0.1), "z": np.uint8(128),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xr"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wr"], axis=0),
        helper.make_node("ConvTranspose", ["xr", "wr"], ["c"], strides=[2, 2], group=group),
        helper.make_node("QuantizeLinear", ["c", "so", "z"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "so", "z"], ["y"]),
    ]
    inputs, results = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)]
        for name, shape in (("x", [1, 4, 5, 5]), ("y", [1, outputs * group, 11, 11]))
    )
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, results, held)
    onnx.save(model_of(graph), path)
    return weights


def _run(path: Path, x: np.ndarray) -> np.ndarray:
    return ort.InferenceSession(path).run(None, {"x": x})[0]


@pytest.mark.parametrize(("group", "outputs", "axis"), [(1, 6, 1), (4, 1, 0), (4, 3, 0)])
def test_scales_along_inputs(tmp_path: Path, group: int, outputs: int, axis: int) -> None:
    weights = _save(tmp_path / "a.onnx", group, outputs)
    graph = load(tmp_path / "a.onnx")
    assert "Opaque" not in {op.kind for op in graph.ops}
    (held,) = (tensor for tensor in graph.constants() if tensor.dtype == "int8" and tensor.rank == 4)
    assert held.quantization is not None and held.quantization.axis == axis
    assert np.array_equal(np.sort(np.ravel(held.data)), np.sort(weights.ravel()))
    x = np.random.default_rng(5).normal(size=(1, 4, 5, 5)).astype(np.float32)
    convert(tmp_path / "a.onnx", tmp_path / "b.onnx")
    convert(tmp_path / "a.onnx", tmp_path / "b.tflite")
    np.testing.assert_array_equal(_run(tmp_path / "b.onnx", x), _run(tmp_path / "a.onnx", x))
    assert check(tmp_path / "a.onnx", tmp_path / "b.tflite").passed


def test_scales_that_differ_within_groups_stay_as_onnx_has_them(tmp_path: Path) -> None:
    _save(tmp_path / "a.onnx", 2, 3)
    assert [op["op_type"] for op in load(tmp_path / "a.onnx").ops if op.kind == "Opaque"] == ["ConvTranspose"]
