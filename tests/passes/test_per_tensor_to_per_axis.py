"""per_tensor_to_per_axis: the same values under repeated scales."""

from __future__ import annotations

import numpy as np
import pytest
from passes.graphs import applied, assert_equal, constant, make, q, quantized_conv, random_integers

from qconvert import Op, Tensor
from qconvert.evaluate import evaluate

pytestmark = pytest.mark.onnxruntime


@pytest.mark.parametrize("weight_dtype", ["int8", "uint8"])
def test_a_convolution_stays_equal(weight_dtype: str) -> None:
    graph = quantized_conv(weight_dtype=weight_dtype, dtype="uint8" if weight_dtype == "uint8" else "int8")
    changed, notes = applied(graph, "per_tensor_to_per_axis")
    weights, bias = changed["w"].quantization, changed["b"].quantization
    assert weights is not None and bias is not None
    assert (weights.axis, weights.scale.tolist(), bias.axis, bias.scale.size) == (0, [np.float32(0.02)] * 4, 0, 4)
    assert set(weights.zero_point.tolist()) == {0 if weight_dtype == "int8" else 128}
    assert changed["w"].data is graph["w"].data
    assert notes == ("a scale for each output channel: 1 weight and 1 bias",)
    assert_equal(graph, changed, {"x": random_integers((1, 3, 5, 5), graph["x"].dtype)})
    again, _ = applied(changed, "per_tensor_to_per_axis")
    assert again is changed


@pytest.mark.cross_section
@pytest.mark.parametrize(("trans_b", "axis"), [(0, 1), (1, 0)])
def test_matmul_has_its_channels_last_or_first(trans_b: int, axis: int) -> None:
    w = constant("w", random_integers((6, 4) if not trans_b else (4, 6), "int8"), q(0.03))
    tensors = [Tensor("x", "int8", (2, 6), None, q(0.1, 5)), w, Tensor("y", "int8", None, None, q(0.7))]
    graph = make([Op("MatMul", ("x", "w"), ("y",), {"trans_b": trans_b})], tensors, "x", "y")
    changed, _ = applied(graph, "per_tensor_to_per_axis")
    found = changed["w"].quantization
    assert found is not None and (found.axis, found.scale.size) == (axis, 4)
    x = random_integers((2, 6), "int8")
    assert_equal(graph, changed, {"x": x})
    assert np.array_equal(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"])


def test_a_gemm_with_a_bias_of_two_dimensions() -> None:
    tensors = [
        Tensor("x", "int8", (2, 6), None, q(0.1, 5)),
        constant("w", random_integers((4, 6), "int8"), q(0.03)),
        constant("b", np.array([[5, -6, 7, 800]], np.int32), q(float(np.float32(0.1) * np.float32(0.03)))),
        Tensor("y", "int8", None, None, q(0.7)),
    ]
    graph = make([Op("Gemm", ("x", "w", "b"), ("y",))], tensors, "x", "y")
    changed, _ = applied(graph, "per_tensor_to_per_axis")
    bias = changed["b"].quantization
    assert bias is not None and (bias.axis, bias.scale.size) == (1, 4)
    assert_equal(graph, changed, {"x": random_integers((2, 6), "int8")})


def test_weights_that_something_else_reads_stay() -> None:
    tensors = [
        Tensor("x", "int8", (4, 4), None, q(0.1)),
        constant("w", random_integers((4, 4), "int8"), q(0.03)),
        Tensor("y", "int8", None, None, q(0.7)),
        Tensor("z", "int8", None, None, q(0.03)),
    ]
    ops = [Op("MatMul", ("x", "w"), ("y",)), Op("Transpose", ("w",), ("z",), {"perm": (1, 0)})]
    graph = make(ops, tensors, "x", "y z")
    assert applied(graph, "per_tensor_to_per_axis") == (graph, ())
