"""float_bias_to_int32: rounded to the quantization of the products; what does not fit stays and is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from passes.graphs import applied, constant, make, outputs, quantized_conv, random_integers

from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.plugins import pass_named, target_named
from qconvert.rules.validation import validate

SCALES = (0.02, 0.004, 0.013, 0.0005)


def with_bias(graph: Graph, data: Array) -> Graph:
    changed = replace(graph, tensors={**graph.tensors, "b": constant("b", data)})
    validate(changed)
    return changed


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("scales", [SCALES, (0.02,)])
def test_values_are_rounded_to_input_scale_times_weight_scale(scales: tuple[float, ...]) -> None:
    bias = np.random.default_rng(5).normal(0, 1, 4).astype(np.float32)
    graph = with_bias(quantized_conv(scales=scales), bias)
    changed, (note,) = applied(graph, "float_bias_to_int32")
    products = np.float32(0.05) * np.float32(scales)
    steps = bias.astype(np.float64) / products
    assert changed["b"].data is not None and np.array_equal(changed["b"].data, np.rint(steps))
    found = changed["b"].quantization
    assert found is not None and np.array_equal(found.scale, products)
    largest = np.abs(steps - np.rint(steps)).max()
    assert note == f"1 bias of 4 values is int32; 4 of them are not exact, by at most {largest:.3g} LSB of the sums of products"
    feeds = {"x": random_integers((1, 3, 5, 5), "int8")}
    (a,), (b,) = outputs(graph, feeds), outputs(changed, feeds)
    assert np.abs(a.astype(int) - b.astype(int)).max() <= 1


def test_the_bias_of_an_operator_that_runs_on_real_values_stays() -> None:
    """LiteRT has integer kernels of two dimensions alone; rounding the bias would cost something for nothing."""
    graph = quantized_conv()
    attributes = {"strides": (1,) * 3, "pads": (0,) * 6, "dilations": (1,) * 3, "group": 1, "data_format": "channels_first"}
    tensors = [Tensor("x", "int8", (1, 3, 5, 5, 1), None, graph["x"].quantization), replace(graph["y"], shape=None)]
    tensors += [constant("w", graph.constant("w")[..., None], graph["w"].quantization), constant("b", np.float32([0.1, 0.2, 0.3, 0.4]))]
    graph = make([Op("Conv", ("x", "w", "b"), ("y",), attributes)], tensors, "x", "y")
    assert pass_named("float_bias_to_int32").run(graph, target_named("tflite")) == (graph, ())


@pytest.mark.parametrize("value", [1e9, np.nan, np.inf])
def test_what_does_not_fit_stays(value: float) -> None:
    graph = with_bias(quantized_conv(), np.float32([1, value, 2, 3]))
    changed, (note,) = applied(graph, "float_bias_to_int32")
    assert changed is graph
    assert note == "the bias 'b' of Conv 'y' stays float32: it does not fit int32 at input scale * weight scale"


def test_ties_go_to_even() -> None:
    graph = with_bias(quantized_conv(scales=(0.5,)), np.float32([0, 0, 0, 0]))
    scale = np.float32(0.05) * np.float32(0.5)
    graph = with_bias(graph, np.float32([0.5, 1.5, 2.5, -0.5]) * scale)
    changed, (note,) = applied(graph, "float_bias_to_int32")
    assert changed["b"].data is not None and changed["b"].data.tolist() == [0, 2, 2, 0]
    assert note.endswith("by at most 0.5 LSB of the sums of products")


def test_operators_of_different_scales_get_a_bias_each() -> None:
    graph = with_bias(quantized_conv(), np.float32([1, 2, 3, 4]))
    other = replace(graph["w"], name="v", quantization=quantized_conv(scales=(0.01,))["w"].quantization)
    second = replace(graph.ops[0], inputs=("x", "v", "b"), outputs=("z",))
    tensors = {**graph.tensors, "v": other, "z": replace(graph["y"], name="z")}
    both = replace(graph, tensors=tensors, ops=(*graph.ops, second), outputs=("y", "z"))
    validate(both)
    changed, _ = applied(both, "float_bias_to_int32")
    assert [op.inputs[2] for op in changed.ops] == ["b/int32", "b/int32_1"]
    assert changed["b/int32_1"].data is not None and changed["b/int32_1"].data.tolist() == [2000, 4000, 6000, 8000]
