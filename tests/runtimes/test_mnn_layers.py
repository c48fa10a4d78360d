"""int8 convolutions of MNN give what the reference of their row says, also where an element is half a step above an integer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qconvert.conformance.matrix import run_file, write_graph
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.kernels import KERNELS
from qconvert.operators.shapes_and_functions import infer
from qconvert.plugins import kernels_named, target_named
from qconvert.runtimes.onnx_rewrites import has_vnni

pytestmark = [pytest.mark.mnn, pytest.mark.skipif(not has_vnni(), reason="the kernels of CPUs with VNNI")]


def random_layer(rng: np.random.Generator, is_depthwise: bool) -> tuple[Graph, Array]:
    """A convolution with scales that are powers of two, or a result near a tie, and any zero points; and its data."""
    ties = bool(rng.random() < 0.4)
    inputs, size = int(rng.integers(2, 40)), int(rng.choice([1, 3]))
    outputs = inputs if is_depthwise else int(rng.integers(1, 30))
    shape, window = (4, inputs, 9, 9), (outputs, 1 if is_depthwise else inputs, size, size)

    def scales(low: float, high: float, count: int) -> Array:
        exponents = rng.uniform(low, high, count)
        return np.exp2(np.rint(exponents) if ties else exponents).astype(np.float32)

    step, factors = scales(-6, 0, 1), scales(-9, -5, outputs)
    points = rng.choice([-128, 0, 127, rng.integers(-128, 128)], 2)
    size_of_result = 2.0 ** round(float(np.log2(step[0] * factors.mean() * 80 * np.sqrt(np.prod(window[1:])))))
    tensors = {
        "x": Tensor("x", "int8", shape, None, Quantization.per_tensor(float(step[0]), int(points[0]))),
        "w": Tensor("w", "int8", window, rng.integers(-127, 128, window).astype(np.int8), Quantization.per_axis(factors, 0)),
        "b": Tensor(
            "b", "int32", (outputs,), rng.integers(-3000, 3000, outputs).astype(np.int32), Quantization.per_axis(step * factors, 0)
        ),
        "y": Tensor("y", "int8", None, None, Quantization.per_tensor(size_of_result, int(points[1]))),
    }
    attributes = {"data_format": "channels_first", "strides": (1, 1), "pads": (size // 2,) * 4, "dilations": (1, 1)}
    op = Op("Conv", ("x", "w", "b"), ("y",), {**attributes, "group": inputs if is_depthwise else 1})
    graph, data = infer(Graph("g", tensors, (op,), ("x",), ("y",))), rng.integers(-128, 128, shape).astype(np.int8)
    if ties:
        return graph, data
    real = evaluate_op(graph, op, [data, tensors["w"].data, tensors["b"].data])[0].real
    assert real is not None
    scale = float(np.float32(np.abs(rng.choice(real.reshape(-1), 30)).max() / (int(rng.integers(40, 120)) + 0.5)))
    return graph.evolve(tensors=[replace(graph["y"], quantization=Quantization.per_tensor(scale, int(points[1])))]), data


@pytest.mark.parametrize("is_depthwise", [False, True])
def test_the_reference_has_the_integers_of_the_kernel(is_depthwise: bool, tmp_path: Path) -> None:
    runtime, kernels = kernels_named("mnn:cpu")
    compared = 0
    for seed in range(12):
        graph, data = random_layer(np.random.default_rng((3, seed)), is_depthwise)
        fitted, path = write_graph(graph, target_named("mnn"), tmp_path)
        if len(fitted.ops) > 1:
            continue
        (op,) = fitted.ops
        found = KERNELS["mnn:cpu"].integers(fitted, op, [data, *(fitted.constant(name) for name in op.inputs[1:])])
        assert found is not None
        result = run_file(path, fitted, {"x": data}, runtime, kernels)[0]
        np.testing.assert_array_equal(result.reshape(found.ways[0].shape), found.ways[0])
        compared += result.size
    assert compared > 10_000
