"""Ends of values that a result has elsewhere than its source: they show without an input that reaches them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_nodes import model_of
from tflite_models import OpSpec, TensorSpec, model

from qconvert import check, convert, load, save

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

FIXTURES = Path(__file__).parents[2] / "fixtures"


def convolution(path: Path) -> Path:
    """A convolution with a fused Relu6, whose results at small data are far from both ends."""
    rng = np.random.default_rng(2)
    tensors = [
        TensorSpec("x", (1, 5, 5, 2), "int8", 0.05, 0),
        TensorSpec("w", (3, 3, 3, 2), "int8", [0.01, 0.02, 0.015], 0, 0, rng.integers(-127, 128, (3, 3, 3, 2)).astype(np.int8)),
        TensorSpec("b", (3,), "int32", [0.0005, 0.001, 0.00075], 0, 0, np.array([4000, 2000, 2700], np.int32)),
        TensorSpec("y", (1, 3, 3, 3), "int8", 0.03, -20),
    ]
    options = {"padding": 1, "strideW": 1, "strideH": 1, "fusedActivationFunction": 3}
    path.write_bytes(model([OpSpec("CONV_2D", ["x", "w", "b"], ["y"], options)], tensors, ["x"], ["y"]))
    return path


def small(folder: Path) -> Path:
    np.savez(folder / "in.npz", x=np.random.default_rng(0).integers(-3, 4, (1, 5, 5, 2)).astype(np.int8))
    return folder / "in.npz"


@pytest.mark.cross_section
@pytest.mark.parametrize(("bound", "change", "ends"), [("highest", -1, "0 and 4.38"), ("lowest", 1, "0.03 and 4.41")])
def test_a_bound_off_by_one_step_is_found(bound: str, change: int, ends: str, tmp_path: Path) -> None:
    source, result = convolution(tmp_path / "a.tflite"), tmp_path / "b.onnx"
    convert(source, result)
    assert check(source, result, data=[small(tmp_path)]).passed
    proto = onnx.load(result)
    (constant,) = [item for item in proto.graph.initializer if item.name.endswith(bound)]
    stored = numpy_helper.to_array(constant)
    constant.CopyFrom(numpy_helper.from_array((stored.astype(np.int64) + change).astype(stored.dtype), constant.name))
    onnx.save(proto, result)
    report = check(source, result, data=[small(tmp_path)])
    assert report.outputs[0].equal == 1
    assert report.verdict == "not equal"
    assert any("CONV_2D" in text and f"between {ends} instead of between 0 and 4.41" in text for text in report.problems), report.problems


def test_a_limit_that_is_gone_is_found(tmp_path: Path) -> None:
    """A Clip in ONNX, an activation in TFLite."""
    source, result = tmp_path / "a.onnx", tmp_path / "b.tflite"
    convert(convolution(tmp_path / "c.tflite"), source)
    convert(source, result)
    assert check(source, result, data=[small(tmp_path)]).passed
    graph = load(result)
    ops = [op.with_attributes(activation="") if "activation" in op.attributes else op for op in graph.ops if op.kind not in ("Max", "Min")]
    assert any(op.attributes.get("activation") for op in graph.ops)
    save(graph.evolve(ops=ops), result, force=True)
    report = check(source, result, data=[small(tmp_path)])
    assert report.outputs[0].equal == 1
    assert report.verdict == "not equal"
    assert any("its values lie between" in text for text in report.problems), report.problems


def test_limits_spelled_by_minimum_are_told_from_others(tmp_path: Path) -> None:
    """Codes of 4 bits, which a Clip leaves in the source and MINIMUM and MAXIMUM in the result."""
    source, result = FIXTURES / "qonnx" / "mlp_4_bits.onnx", tmp_path / "b.tflite"
    convert(source, result)
    assert check(source, result).passed
    graph = load(result)
    op = next(op for op in graph.ops if op.kind == "Min")
    (name,) = [name for name in op.inputs if graph[name].is_constant]
    data = graph[name].data
    assert data is not None
    save(graph.evolve(tensors=[replace(graph[name], data=(data.astype(int) + 1).astype(data.dtype))]), result, force=True)
    np.savez(tmp_path / "zero.npz", **{load(source).inputs[0]: np.zeros((1, 12), np.float32)})
    report = check(source, result, data=[tmp_path / "zero.npz"])
    assert report.outputs[0].largest < 1e-6
    assert report.verdict == "not equal"


def test_ends_that_the_quantization_has_need_no_activation(tmp_path: Path) -> None:
    """A Relu on data that cannot be negative, which conversions leave out."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q"]), helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]  # fmt: skip
    constants = {"w": np.random.default_rng(1).normal(0, 1, (4, 3)).astype(np.float32), "s": np.float32(0.1), "z": np.uint8(0)}
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [2, 4]), ("y", [2, 3]))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [numpy_helper.from_array(v, n) for n, v in constants.items()])
    onnx.save(model_of(graph), tmp_path / "a.onnx")
    for result in ("b.onnx", "b.tflite"):
        convert(tmp_path / "a.onnx", tmp_path / result)
        assert check(tmp_path / "a.onnx", tmp_path / result, per_op=True).passed
