"""gemm_to_conv, pool_to_mean and decompose_activations: what MNN's converter needs to find the layers that it can run on integers."""

from __future__ import annotations

import numpy as np
import pytest
from passes.graphs import CONV, applied, assert_equal, constant, make, q, random_integers

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.plugins import pass_named, target_named
from qconvert.rules.validation import validate


def gemm(bias_shape: tuple[int, ...] | None = (4,), per_axis: bool = True, **attributes: str) -> Graph:
    scales = Quantization.per_axis([0.01, 0.02, 0.03, 0.04], 0) if per_axis else q(0.03)
    tensors = [
        Tensor("x", "int8", (3, 6), None, q(0.1, 5)),
        constant("w", random_integers((4, 6), "int8"), scales),
        Tensor("y", "int8", None, None, q(0.2, -7)),
    ]
    inputs: tuple[str, ...] = ("x", "w")
    if bias_shape is not None:
        step = np.float32(0.1) * scales.scale
        quantization = Quantization(step, np.zeros(step.size, np.int64), len(bias_shape) - 1 if step.size > 1 else None)
        tensors.append(constant("b", np.arange(-200, 200, 100, dtype=np.int32).reshape(bias_shape), quantization))
        inputs += ("b",)
    return make([Op("Gemm", inputs, ("y",), attributes)], tensors, "x", "y")


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("bias_shape", [None, (4,), (1, 4)])
@pytest.mark.parametrize("per_axis", [True, False])
def test_a_gemm_becomes_an_equal_convolution(bias_shape: tuple[int, ...] | None, per_axis: bool) -> None:
    graph = gemm(bias_shape, per_axis)
    changed, notes = applied(graph, "gemm_to_conv")
    assert notes == ("1 Gemm are 1x1 convolutions",)
    assert [op.kind for op in changed.ops] == ["Reshape", "Conv", "Reshape"]
    weights = changed["w"].quantization
    assert weights is not None and (changed["w"].shape, weights.axis) == ((4, 6, 1, 1), 0 if per_axis else None)
    x = random_integers((3, 6), "int8", seed=4)
    assert_equal(graph, changed, {"x": x})
    assert np.array_equal(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"])


def test_the_activation_of_a_gemm_stays() -> None:
    changed, _ = applied(gemm(activation="relu6"), "gemm_to_conv")
    assert changed.ops[1]["activation"] == "relu6"


def test_a_gemm_with_a_bias_for_each_row_stays() -> None:
    tensors = [
        Tensor("x", "int8", (4, 6), None, q(0.1)),
        constant("w", random_integers((1, 6), "int8"), q(0.03)),
        constant("b", np.zeros((4, 1), np.int32), q(float(np.float32(0.1) * np.float32(0.03)))),
        Tensor("y", "int8", None, None, q(0.2)),
    ]
    graph = make([Op("Gemm", ("x", "w", "b"), ("y",))], tensors, "x", "y")
    assert applied(graph, "gemm_to_conv")[0] is graph


@pytest.mark.onnxruntime
def test_weights_that_two_gemms_read_stay_for_the_other() -> None:
    tensors = [
        Tensor("x", "int8", (3, 6), None, q(0.1)),
        constant("w", random_integers((6, 6), "int8"), q(0.03)),
        Tensor("h", "int8", None, None, q(0.2)),
        Tensor("y", "int8", None, None, q(0.2)),
    ]
    graph = make([Op("Gemm", ("x", "w"), ("h",)), Op("Gemm", ("h", "w"), ("y",))], tensors, "x", "y")
    changed, _ = applied(graph, "gemm_to_conv")
    x = random_integers((3, 6), "int8")
    assert [op.kind for op in changed.ops].count("Conv") == 2
    assert_equal(graph, changed, {"x": x})


def pool(kind: str, data_format: str, kernel: tuple[int, int] = (4, 5), **attributes: object) -> Graph:
    shape = (2, 3, 4, 5) if data_format == "channels_first" else (2, 4, 5, 3)
    own = {"kernel_shape": kernel, "strides": (1, 1), "pads": (0, 0, 0, 0)} if kind == "AveragePool" else {}
    tensors = [Tensor("x", "int8", shape, None, q(0.1, 5)), Tensor("y", "int8", None, None, q(0.07, -7))]
    return make([Op(kind, ("x",), ("y",), {**own, "data_format": data_format, **attributes})], tensors, "x", "y")  # type: ignore[dict-item]


@pytest.mark.parametrize("kind", ["AveragePool", "GlobalAveragePool"])
@pytest.mark.parametrize("data_format", ["channels_first", "channels_last"])
def test_an_average_over_all_positions_becomes_a_mean(kind: str, data_format: str) -> None:
    graph = pool(kind, data_format)
    changed, _ = applied(graph, "pool_to_mean")
    assert [op.kind for op in changed.ops] == ["ReduceMean"] and changed["y"].shape == graph["y"].shape
    x = random_integers(graph["x"].static_shape or (), "int8")
    assert np.array_equal(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"])


def test_averages_over_some_positions_stay() -> None:
    for graph in (pool("AveragePool", "channels_first", (2, 2)), pool("AveragePool", "channels_first", activation="relu")):
        assert applied(graph, "pool_to_mean")[0] is graph


def conv(zero_point: int, activation: str = "", scale: float = 0.05, kind: str = "Conv") -> Graph:
    tensors = [
        Tensor("x", "int8", (1, 3, 4, 4), None, q(0.1, 5)),
        Tensor("x2", "int8", (1, 3, 4, 4), None, q(0.03, 0)),
        constant("w", random_integers((3, 3, 3, 3), "int8"), q(0.002)),
        Tensor("y", "int8", None, None, q(scale, zero_point)),
    ]
    attributes = {"activation": activation} if activation else {}
    if kind == "Conv":
        return make([Op("Conv", ("x", "w"), ("y",), {**CONV, **attributes})], tensors, "x", "y")
    return make([Op(kind, ("x", "x2"), ("y",), attributes)], tensors, "x x2", "y")


def decomposed(graph: Graph) -> Graph:
    changed, _ = pass_named("decompose_activations").run(graph, target_named("mnn"))
    validate(changed)
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(-128, 128, graph[name].static_shape).astype(np.int8) for name in graph.inputs}
    before, after = evaluate(graph, feeds), evaluate(changed, feeds)
    assert all(np.array_equal(before[name], after[name]) for name in graph.outputs)
    return changed


def bounds(graph: Graph) -> list[float]:
    found: list[Array | None] = [graph.constant(name) for name in graph.ops[-1].inputs[1:]]
    return [float(value) for value in found if value is not None]


def test_a_quantization_that_begins_at_zero_is_a_relu() -> None:
    changed = decomposed(conv(-128))
    assert [(op.kind, op.outputs) for op in changed.ops] == [("Conv", ("y/unlimited",)), ("Relu", ("y",))]
    assert changed["y/unlimited"].shares_quantization(changed["y"])


def test_other_quantizations_stand_for_nothing() -> None:
    graph = conv(-127)
    assert pass_named("decompose_activations").run(graph, target_named("mnn"))[0] is graph


def test_relu6_is_a_clip_to_six() -> None:
    changed = decomposed(conv(-128, "relu6", 6 / 255))
    assert changed.ops[-1].kind == "Clip" and bounds(changed) == [0, 6] and not changed.ops[0].attributes.get("activation")


def test_six_within_the_quantization_is_the_step_next_to_it() -> None:
    """MNN's integer kernels know a Relu6's lower bound alone."""
    changed = decomposed(conv(-14, "relu6", 0.078))
    assert changed.ops[-1].kind == "Clip" and bounds(changed) == [0, np.float32(77 * np.float32(0.078))]


def test_behind_an_addition_stands_a_clip_that_no_runtime_takes_for_a_relu() -> None:
    changed = decomposed(conv(-128, kind="Add"))
    assert [op.kind for op in changed.ops] == ["Add", "Clip"]
    assert bounds(changed) == [0, np.float32(0.05 * 255)]


def test_six_behind_an_addition_is_the_next_number() -> None:
    changed = decomposed(conv(-128, "relu6", 6 / 255, "Add"))
    assert bounds(changed) == [0, np.nextafter(np.float32(6), np.float32(7))]


def test_an_activation_that_the_model_spells_itself_stays_alone() -> None:
    tensors = [
        Tensor("x", "int8", (1, 3, 4, 4), None, q(0.1, 5)),
        constant("w", random_integers((3, 3, 3, 3), "int8"), q(0.002)),
        Tensor("h", "int8", None, None, q(0.05, -128)),
        Tensor("y", "int8", None, None, q(0.05, -128)),
    ]
    graph = make([Op("Conv", ("x", "w"), ("h",), CONV), Op("Relu", ("h",), ("y",))], tensors, "x", "y")
    assert pass_named("decompose_activations").run(graph, target_named("mnn"))[0] is graph
