"""per_axis_to_per_tensor: what it costs is what the notes say."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from passes.graphs import applied, assert_equal, constant, make, outputs, q, quantized_conv, random_integers

from qconvert import Op, Quantization, Tensor
from qconvert.arithmetic import dequantize
from qconvert.graph import Array, Graph

SCALES = (0.02, 0.004, 0.013, 0.0005)


def real(graph: Graph, name: str) -> Array:
    found = graph[name].quantization
    assert found is not None
    return dequantize(graph[name].data, found)


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_weights_and_bias_are_requantized_at_the_cost_that_the_note_says() -> None:
    graph = quantized_conv(scales=SCALES)
    changed, (note,) = applied(graph, "per_axis_to_per_tensor")
    weights, bias = changed["w"].quantization, changed["b"].quantization
    assert weights is not None and bias is not None and weights.axis is None and bias.axis is None
    before, after = real(graph, "w"), real(changed, "w")
    assert weights.scale[0] == np.float32(np.abs(before).max() / 127)
    assert bias.scale[0] == np.float32(0.05) * weights.scale[0]
    error = np.abs(before - after)
    assert 0.4 < error.max() / weights.scale[0] <= 0.5 + 1e-6
    old = (error.reshape(4, -1) / np.float32(SCALES)[:, None]).max()
    assert old > 15  # the channel with the smallest scale loses most of its steps
    sqnr = 10 * np.log10((before**2).sum() / (error**2).sum())
    numbers = [float(n) for n in re.findall(r"[\d.]+(?= LSB| dB)", note)]
    assert np.allclose(numbers, [sqnr, error.max() / weights.scale[0], old], rtol=0.01)
    assert np.abs(real(graph, "b") - real(changed, "b")).max() <= bias.scale[0] / 2 * 1.0001
    x = random_integers((1, 3, 5, 5), "int8")
    (a,), (b,) = outputs(graph, {"x": x}), outputs(changed, {"x": x})
    assert 0 < np.abs(a.astype(int) - b.astype(int)).max() < 8


@pytest.mark.onnxruntime
def test_equal_scales_are_exact() -> None:
    graph = quantized_conv(scales=(0.02,) * 4)
    narrow = graph["w"].quantization
    assert narrow is not None
    graph = graph.evolve(tensors=[replace(graph["w"], quantization=replace(narrow, quant_min=-127))])
    changed, notes = applied(graph, "per_axis_to_per_tensor")
    assert notes == ("'w': all scales are equal (exact)",)
    assert changed["w"].data is graph["w"].data
    found = changed["w"].quantization
    assert found is not None and (found.axis, found.limits("int8")) == (None, (-127, 127))
    assert_equal(graph, changed, {"x": random_integers((1, 3, 5, 5), "int8")})


def test_unsigned_weights_keep_their_middle() -> None:
    graph = quantized_conv(scales=SCALES, dtype="uint8", weight_dtype="uint8")
    changed, _ = applied(graph, "per_axis_to_per_tensor")
    found = changed["w"].quantization
    assert found is not None and found.zero_point.tolist() == [128]
    assert np.abs(real(graph, "w") - real(changed, "w")).max() <= found.scale[0] * 0.5001


def test_a_bias_that_would_leave_int32_keeps_its_weights_per_axis() -> None:
    scales = np.float32([1e-8, 1.0])
    tensors = [
        Tensor("x", "int8", (1, 3), None, q(1.0)),
        constant("w", np.int8([[1, 2, 3], [0, 0, 0]]), Quantization.per_axis(scales, 0)),
        constant("b", np.array([5, 2**31 - 1], np.int32), Quantization.per_axis(scales, 0)),
        Tensor("y", "int8", None, None, q(1.0)),
    ]
    graph = make([Op("Gemm", ("x", "w", "b"), ("y",))], tensors, "x", "y")
    changed, (note,) = applied(graph, "per_axis_to_per_tensor")
    assert changed is graph and "'w' stays per-channel: with one scale the bias 'b' would not fit int32" in note


def test_a_bias_of_two_operators_gets_a_form_for_each() -> None:
    scales = np.float32([0.01, 0.002])
    products = Quantization.per_axis(np.float32(0.1) * scales, 0)
    tensors = [
        Tensor("x", "int8", (1, 3), None, q(0.1)),
        constant("w", np.int8([[1, 2, 127], [4, 5, 6]]), Quantization.per_axis(scales, 0)),
        constant("v", np.int8([[1, 2, 100], [4, 5, 6]]), Quantization.per_axis(scales, 0)),
        constant("b", np.array([500, -4000], np.int32), products),
        *(Tensor(name, "int8", None, None, q(0.05)) for name in "yz"),
    ]
    graph = make([Op("Gemm", ("x", "w", "b"), ("y",)), Op("Gemm", ("x", "v", "b"), ("z",))], tensors, "x", "y z")
    changed, notes = applied(graph, "per_axis_to_per_tensor")
    assert len(notes) == 2
    names = [op.inputs[2] for op in changed.ops]
    assert len(set(names)) == 2
    for name in names:
        found = changed[name].quantization
        assert found is not None and np.abs(real(changed, name) - real(graph, "b")).max() <= found.scale[0] * 0.5001
