"""dense_weights: groups and holes become zeros among weights, which change no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from passes.graphs import applied, constant, make, outputs, q, random_integers

from qconvert import Op, Quantization, Tensor
from qconvert.passes.convolutions import dense_weights
from qconvert.plugins import target_named

LAYOUT = {"data_format": "channels_first"}
#: Kind, shape of the data and of the weights O,I/group,spatial, and attributes.
CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "groups of a transposed one": ("ConvTranspose", (1, 4, 3, 5), (6, 2, 3, 2), {"group": 2, "strides": (2, 1), "dilations": (1, 1)}),
    "each channel its own": ("ConvTranspose", (2, 3, 4, 4), (3, 1, 4, 4), {"group": 3, "strides": (2, 2), "dilations": (1, 1)}),
    "holes": ("ConvTranspose", (1, 2, 4, 3), (3, 2, 2, 3), {"group": 1, "strides": (1, 2), "dilations": (3, 2)}),
    "groups and holes": ("ConvTranspose", (1, 4, 4, 3), (2, 2, 2, 3), {"group": 2, "strides": (1, 2), "dilations": (2, 2)}),
    "one dimension": ("ConvTranspose", (1, 4, 7), (4, 2, 3), {"group": 2, "strides": (2,), "dilations": (2,)}),
    "groups of a volume": ("Conv", (1, 4, 3, 4, 3), (6, 2, 2, 2, 2), {"group": 2, "strides": (1, 1, 1), "dilations": (1, 2, 1)}),
}


def built(kind: str, shape: tuple[int, ...], weights: Any, attributes: dict[str, Any], quantization: Quantization | None = None) -> Any:
    pads = {"pads": (0,) * 2 * (len(shape) - 2), **LAYOUT}
    extra = {"output_padding": (0,) * (len(shape) - 2)} if kind == "ConvTranspose" else {}
    result = [] if quantization is None else [Tensor("y", "int8", None, None, q(0.5, 3))]
    data = Tensor("x", "float32" if quantization is None else "int8", shape, None, None if quantization is None else q(0.1, -5))
    return make(
        [Op(kind, ("x", "w"), ("y",), {**attributes, **pads, **extra})], [data, constant("w", weights, quantization), *result], "x", "y"
    )


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("kind", "shape", "kernel", "attributes"), CASES.values(), ids=CASES)
def test_zeros_stand_for_groups_and_holes(kind: str, shape: tuple[int, ...], kernel: tuple[int, ...], attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    graph = built(kind, shape, rng.integers(-9, 9, kernel).astype(np.float32), attributes)
    changed, _ = applied(graph, "dense_weights")
    assert changed.ops[0]["group"] == 1 and (kind == "Conv" or set(changed.ops[0]["dilations"]) == {1})
    feeds = {"x": rng.integers(-9, 9, shape).astype(np.float32)}  # sums of whole numbers have no rounding
    for was, now in zip(outputs(graph, feeds), outputs(changed, feeds), strict=True):
        np.testing.assert_array_equal(was, now)


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("per_axis", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_zero_points_stand_for_zeros(name: str, per_axis: bool) -> None:
    kind, shape, kernel, attributes = CASES[name]
    repeats = attributes["group"] if kind == "ConvTranspose" and per_axis else 1  # ONNX has one scale for the same row of all groups
    count = kernel[0] // repeats if per_axis else 1
    scales, zero_points = np.linspace(0.01, 0.02, count, dtype=np.float32), np.arange(count) + 7
    quantization = Quantization(np.tile(scales, repeats), np.tile(zero_points, repeats), 0 if per_axis else None)
    graph = built(kind, shape, random_integers(kernel, "int8"), attributes, quantization)
    changed, _ = applied(graph, "dense_weights")
    feeds = {"x": random_integers(shape, "int8", 1)}
    np.testing.assert_array_equal(outputs(graph, feeds)[0], outputs(changed, feeds)[0])


@pytest.mark.onnxruntime
def test_groups_stay_in_onnx() -> None:
    kind, shape, kernel, attributes = CASES["groups and holes"]
    graph = built(kind, shape, np.arange(24, dtype=np.float32).reshape(kernel), attributes)
    changed, _ = dense_weights(graph, target_named("portable"))
    (op,) = changed.ops
    assert op["group"] == 2 and set(op["dilations"]) == {1} and changed[op.inputs[1]].shape == (2, 2, 3, 5)
    feeds = {"x": random_integers(shape, "int8").astype(np.float32)}
    np.testing.assert_array_equal(outputs(graph, feeds)[0], outputs(changed, feeds)[0])


def test_what_tflite_states_stays() -> None:
    conv = built("Conv", (1, 4, 5, 5), np.ones((4, 1, 3, 3), np.float32), {"group": 4, "strides": (1, 1), "dilations": (2, 2)})
    plain = built("ConvTranspose", (1, 4, 5, 5), np.ones((4, 4, 3, 3), np.float32), {"group": 1, "strides": (1, 1), "dilations": (1, 1)})
    for graph in (conv, plain):
        assert applied(graph, "dense_weights") == (graph, ())


def test_weights_that_would_grow_without_bound_stay() -> None:
    far = {"group": 1, "strides": (1, 1), "dilations": (1, 2**27)}
    graph = built("ConvTranspose", (1, 1, 1, 1), np.ones((1, 1, 1, 2), np.float32), far)
    assert applied(graph, "dense_weights") == (graph, ())
