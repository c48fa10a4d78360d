"""Real biases that int32 at data scale * weight scale does not hold, to which onnxruntime's optimizer would round them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from passes.graphs import CONV, constant, make, q

from qconvert import Graph, Op, Quantization, Tensor, diff, load, save
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.writer import build
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.onnxruntime


def layer(kind: str, bias: Tensor) -> Graph:
    """The first channel has a scale so small that its bias, 0.5, is 2^34 of its steps; its weights are zeros, as of a dead channel."""
    shape: tuple[int, ...] = (1, 3) if kind == "Gemm" else (1, 3, 2, 2)
    weights = np.zeros((2, 3) if kind == "Gemm" else (2, 3, 3, 3), np.int8)
    weights[1] = 5
    tensors = [
        Tensor("x", "int16", shape, None, q(3e-5)),
        constant("w", weights, Quantization.per_axis([1e-6, 0.01], 0)),
        bias,
        Tensor("y", "int16", None, None, q(1e-4)),
    ]
    return make([Op(kind, ("x", "w", "b"), ("y",), CONV if kind == "Conv" else {})], tensors, "x", "y")


@pytest.mark.cross_section
@pytest.mark.parametrize("kind", ["Gemm", "Conv"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_bias_beyond_int32_is_added(kind: str, dtype: str, tmp_path: Path) -> None:
    scale = np.float32(3e-5) * np.float32([1e-6, 0.01])
    real = np.float32([0.5, 0.25])
    stored = np.rint(real / scale.astype(np.float64)).astype(np.int64)
    graph = layer(kind, constant("b", real) if dtype == "float32" else constant("b", stored, Quantization.per_axis(scale, 0)))
    save(graph, tmp_path / "a.onnx")
    x = np.random.default_rng(0).integers(-9000, 9000, graph["x"].shape).astype(np.int16)
    for optimize in (False, True):
        found = OnnxRuntime((tmp_path / "a.onnx").read_bytes(), optimize=optimize).run({"x": x})["y"]
        assert np.abs(found.astype(int) - evaluate(graph, {"x": x})["y"]).max() <= 1 and (found.take(0, 1) == 5000).all()
    if dtype == "float32":
        assert diff(graph, load(tmp_path / "a.onnx")) == []


def test_a_bias_of_64_bits_that_int32_holds_keeps_its_name() -> None:
    """By it a check knows what an earlier conversion declared to have changed."""
    scale = np.float32(3e-5) * np.float32([1e-6, 0.01])
    proto = build(layer("Gemm", constant("b", np.array([1, 2], np.int64), Quantization.per_axis(scale, 0))), 21, {})
    found = {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}
    assert found["b"].dtype == np.int32 and found["b"].tolist() == [1, 2]
