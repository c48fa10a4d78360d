"""A Softmax of bytes, and a conversion to another type, in float, with a Clip before it is quantized again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qconvert.evaluate import evaluate
from qconvert.formats.onnx.writer import build
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.passes.absorb_quantization import absorb_quantization
from qconvert.passes.isolate_float import clip_before_quantize
from qconvert.plugins import Accelerator, target_named
from qconvert.rules.validation import validate


def softmax(kind: str, zero_point: int, attributes: dict[str, object]) -> Graph:
    tensors = [
        Tensor("x", "int8", (3, 10), None, Quantization.per_tensor(0.1, 4)),
        Tensor("y", "int8", (3, 10), None, Quantization.per_tensor(1 / 256 if kind == "Softmax" else 1 / 16, zero_point)),
    ]
    return Graph(
        "one", {tensor.name: tensor for tensor in tensors}, (Op(kind, ("x",), ("y",), {"axis": -1, **attributes}),), ("x",), ("y",)
    )


@pytest.mark.parametrize(
    ("kind", "zero_point", "attributes"),
    [("Softmax", -128, {}), ("Softmax", -128, {"arithmetic": "tflite_softmax"}), ("LogSoftmax", 127, {})],
)
def test_the_clip_changes_nothing(kind: str, zero_point: int, attributes: dict[str, object]) -> None:
    graph = softmax(kind, zero_point, {})
    found, notes = clip_before_quantize(softmax(kind, zero_point, attributes), target_named("portable"))
    assert [op.kind for op in found.ops] == ["Dequantize", kind, "Clip", "Quantize"] and notes == (
        "1 operator computed in float, and clipped",
    )
    validate(found)
    feed = {"x": np.random.default_rng(3).integers(-128, 128, (3, 10)).astype(np.int8)}
    np.testing.assert_array_equal(evaluate(found, feed)["y"], evaluate(graph, feed)["y"])
    assert clip_before_quantize(found, target_named("portable"))[0].ops == found.ops
    validate(found)
    assert absorb_quantization(found, None)[0].ops == graph.ops


def conversion(dtype: str, scale: float) -> Graph:
    tensors = [
        Tensor("x", dtype, (256,), None, Quantization.per_tensor(0.1, 128 if dtype == "uint8" else 3)),
        Tensor("y", "int8", (256,), None, Quantization.per_tensor(scale, -7)),
    ]
    return Graph("one", {tensor.name: tensor for tensor in tensors}, (Op("Requantize", ("x",), ("y",)),), ("x",), ("y",))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("scale", [0.1, 0.03, 0.27])
def test_a_conversion_to_another_type_is_clipped_to_the_range_of_its_result(scale: float) -> None:
    """tract refuses a uint8 that becomes an int8 without the Clip: "Trying to substitute a I8 by U8"."""
    import onnxruntime

    graph = conversion("uint8", scale)
    found, _ = clip_before_quantize(graph, target_named("portable"))
    assert [op.kind for op in found.ops] == ["Dequantize", "Clip", "Quantize"]
    feed = {"x": np.arange(256, dtype=np.uint8)}
    wanted = evaluate(graph, feed)["y"]
    np.testing.assert_array_equal(evaluate(found, feed)["y"], wanted)
    session = onnxruntime.InferenceSession(build(found, 13, {}, numerics="fast", guards=False).SerializeToString())
    np.testing.assert_array_equal(session.run(None, feed)[0], wanted)
    assert [op.kind for op in absorb_quantization(found, None)[0].ops] == ["Requantize"]


def test_a_conversion_within_one_type_is_kept() -> None:
    graph = conversion("int8", 0.03)
    assert clip_before_quantize(graph, target_named("portable")) == (graph, ())


def test_an_accelerator_keeps_the_operator_that_it_knows() -> None:
    graph = softmax("Softmax", -128, {})
    npu = target_named("portable").derive(name="npu", accelerator=Accelerator("NPU", lambda *_: lambda op: ""))
    assert clip_before_quantize(graph, npu) == (graph, ())


@pytest.mark.onnxruntime
def test_onnxruntime_keeps_a_min_where_its_kernel_overflows() -> None:
    """It drops a Clip to 1 before codes up to 1/6, and its QLinearSoftmax of 10 classes gives 255 for all of them."""
    import onnxruntime

    scores = softmax("Softmax", -128, {})
    graph = scores.evolve(tensors=[replace(scores["y"], quantization=Quantization.per_tensor(1 / 1530, -128))])
    found, _ = clip_before_quantize(graph, target_named("portable"))
    feed = {"x": np.arange(30, dtype=np.int8).reshape(3, 10)}
    session = onnxruntime.InferenceSession(build(found, 18, {}, numerics="fast", guards=False).SerializeToString())
    np.testing.assert_array_equal(session.run(None, feed)[0], evaluate(graph, feed)["y"])


def product(kind: str, bias: bool) -> Graph:
    """A product of int16 data and float weights that int8 does not hold: of one row, 1 and 0.0039."""
    steps, rng = Quantization.per_tensor(2.0**-8, 0), np.random.default_rng(5)
    shape, weights = ((1, 3), (2, 3)) if kind == "Gemm" else ((1, 3, 4, 4), (2, 3, 1, 1))
    values = np.resize(np.array([1, 0.0039, 0.0118, 1, 0.51, 0.263], np.float32), weights)
    sizes = (1, 2, *shape[2:])
    tensors = [
        Tensor("x", "int16", shape, None, steps),
        Tensor("y", "int16", sizes, None, steps),
        Tensor("x/real", "float32", shape),
        Tensor("y/real", "float32", sizes),
        Tensor("w", "float32", weights, values),
        Tensor("b", "float32", (2,), rng.normal(size=2).astype(np.float32)),
    ]
    window = {} if kind == "Gemm" else {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    ops = (
        Op("Dequantize", ("x",), ("x/real",)),
        Op(kind, ("x/real", "w", *(["b"] * bias)), ("y/real",), window),
        Op("Quantize", ("y/real",), ("y",)),
    )
    used = {item.name: item for item in tensors if bias or item.name != "b"}
    return Graph("product", used, ops, ("x",), ("y",), metadata={SOURCE_KERNELS: "litert:default"})


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("kind", "bias"), [("Gemm", False), ("Gemm", True), ("Conv", True)])
def test_onnxruntime_keeps_float_weights_before_a_min(kind: str, bias: bool) -> None:
    """It rounds them to int8 before a Quantize (weight_bias_quantization.cc), which is up to 15 steps here, and leaves a Min."""
    import onnxruntime

    graph = product(kind, bias)
    found, _ = clip_before_quantize(graph, target_named("portable"))
    assert [op.kind for op in found.ops] == ["Dequantize", kind, "Min", "Quantize"]
    validate(found)
    feed = {"x": np.zeros(graph["x"].static_shape or (), np.int16)}
    feed["x"][:, 1:] = 32767
    wanted = evaluate(graph, feed)["y"].astype(int)
    for each, least, most in ((graph, 10, 20), (found, 0, 1)):
        session = onnxruntime.InferenceSession(build(each, 21, {}, numerics="fast", guards=False).SerializeToString())
        assert least <= np.abs(session.run(None, feed)[0].astype(int) - wanted).max() <= most
    assert clip_before_quantize(found, target_named("portable"))[0].ops == found.ops
    assert clip_before_quantize(graph.evolve(metadata={}), target_named("portable"))[0].ops == graph.ops
