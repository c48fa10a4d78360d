"""symmetric_weights: integers less zero points wherever they fit, channel by channel, and the scale that loses least where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passes.graphs import assert_equal, constant, make, q, quantized_conv, random_integers, said
from refusals import refused

from qconvert import Graph, Op, Quantization, Tensor, convert, load, save
from qconvert.arithmetic import dequantize
from qconvert.errors import UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.passes.weight_storage import symmetric_weights
from qconvert.plugins import Change, Target, target_named
from qconvert.rules.validation import validate

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"


def limited(name: str, ranges: dict[str, tuple[int, int]]) -> Target:
    tflite = target_named("tflite-micro")
    return tflite.derive(name=name, storage=replace(tflite.storage, quant_ranges=ranges))


def for_target(graph: Graph, target: Target | str | None = "tflite-micro") -> tuple[Graph, tuple[str, ...]]:
    changed, notes = symmetric_weights(graph, target_named(target) if isinstance(target, str) else target)
    validate(changed)
    return changed, said(notes)


@pytest.mark.onnxruntime
def test_unsigned_weights_with_zero_point_128_only_move() -> None:
    graph = quantized_conv(dtype="uint8", weight_dtype="uint8")
    changed, notes = for_target(graph)
    weights = changed["w"]
    assert notes == ("1 unsigned weight is stored as signed (integer and zero point - 128) (exact)",)
    assert weights.dtype == "int8" and weights.quantization is not None and weights.quantization.zero_point.tolist() == [0]
    assert np.array_equal(weights.data.astype(int) + 128, graph["w"].data)  # type: ignore[union-attr]
    assert_equal(graph, changed, {"x": random_integers((1, 3, 5, 5), "uint8")})


@pytest.mark.formats
def test_zero_points_of_blocks_stay_and_are_refused_in_words(tmp_path: Path) -> None:
    blocks = Quantization(np.full((4, 2), 0.01, np.float32), np.full((4, 2), 3), axis=1, block_size=8)
    tensors = [
        Tensor("x", "int8", (1, 16), None, q(0.1)),
        constant("w", np.zeros((4, 16), np.int8), blocks),
        Tensor("y", "int8", None, None, q(0.5)),
    ]
    graph = make([Op("Gemm", ("x", "w"), ("y",))], [*tensors, Tensor("y", "int8", None, None, q(0.5))], "x", "y")
    changed, notes = for_target(graph)
    assert changed is graph and notes == ("the weights 'w' are unchanged: their zero points are per-block",)
    save(graph, tmp_path / "m.qgraph")
    with refused(UnsupportedError, "target-rules", holds=("'w'", 8)):
        convert(tmp_path / "m.qgraph", tmp_path / "m.tflite")


@pytest.mark.parametrize("quantized", [True, False])
def test_weights_that_are_computed_on_real_values_are_not_rounded(quantized: bool) -> None:
    quantization = Quantization(np.full(4, 0.01, np.float32), np.array([100, -90, 5, 0]), axis=0)
    result = Tensor("y", "int8", None, None, q(0.5)) if quantized else Tensor("y", "float32", None)
    tensors = [Tensor("x", "int8", (1, 16), None, q(0.1)), constant("w", random_integers((4, 16), "int8"), quantization), result]
    graph = make([Op("Gemm", ("x", "w"), ("y",))], tensors, "x", "y")
    changed, _ = for_target(graph)
    assert (changed is graph) == (not quantized)


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_unsigned_targets_get_unsigned_weights() -> None:
    graph = quantized_conv(dtype="uint8")
    changed, notes = for_target(graph, "tflite-uint8")
    assert notes == ("1 signed weight is stored as unsigned (integer and zero point + 128) (exact)",)
    assert (
        changed["w"].dtype == "uint8" and changed["w"].quantization is not None and changed["w"].quantization.zero_point.tolist() == [128]
    )
    assert_equal(graph, changed, {"x": random_integers((1, 3, 5, 5), "uint8")})


def gemm(
    data: Array, zero_point: int, bias: Sequence[int] = (), scale: float = 0.01, suffix: str = "", **attributes: int
) -> tuple[Op, list[Tensor]]:
    """A Gemm (a MatMul without bias) of uint8 data x (scale 0.05) with its tensors but x."""
    count = len(data) if bias or not attributes else data.shape[-1]
    tensors = [constant(f"w{suffix}", data, q(scale, zero_point)), Tensor(f"y{suffix}", "uint8", (2, count), None, q(0.5, 100))]
    inputs = ["x", f"w{suffix}"]
    if bias:
        tensors.append(constant(f"b{suffix}", np.array(bias, np.int32), q(float(np.float32(0.05) * np.float32(scale)))))
        inputs.append(f"b{suffix}")
    return Op("Gemm", tuple(inputs), (f"y{suffix}",)), tensors


def whole(ops: list[Op], tensors: list[Tensor], depth: int) -> Graph:
    return make(ops, [Tensor("x", "uint8", (2, depth), None, q(0.05, 3)), *tensors], "x", " ".join(op.outputs[0] for op in ops))


def weights_of(graph: Graph, index: int = 0) -> tuple[Array, Quantization]:
    found = graph[graph.ops[index].inputs[1]]
    assert found.data is not None and found.quantization is not None
    return found.data, found.quantization


def test_channels_that_fit_keep_their_scale_their_values_and_their_bias() -> None:
    data = np.arange(256, dtype=np.uint8).reshape(4, 64)  # less 100: -100 .. -37, -36 .. 27, 28 .. 91 and 92 .. 155
    op, tensors = gemm(data, 100, (100, -200, 300, 4000))
    graph = whole([op], tensors, 64)
    changed, notes = for_target(graph)
    stored, quantization = weights_of(changed)
    assert stored.dtype == np.int8 and quantization.axis == 0 and not quantization.zero_point.any()
    assert np.array_equal(quantization.scale[:3], np.float32([0.01] * 3)) and quantization.scale[3] > np.float32(0.01)
    assert np.array_equal(stored[:3], data[:3].astype(int) - 100)
    bias = changed[changed.ops[0].inputs[2]]
    assert bias.data is not None and bias.data[:3].tolist() == [100, -200, 300]
    assert bias.data[3] == np.rint(4000 * np.float64(np.float32(0.01)) / np.float64(quantization.scale[3]))
    assert notes[0].startswith("1 weight has zero point 0: 3 of 4 scales and their values are kept, 1 change, SQNR ")


def test_weights_that_fit_keep_their_one_scale() -> None:
    op, tensors = gemm(np.arange(30, 70, dtype=np.uint8).reshape(4, 10), 50, (1, 2, 3, 4))
    graph = whole([op], tensors, 10)
    changed, notes = for_target(graph)
    stored, quantization = weights_of(changed)
    assert quantization == q(0.01) and stored[0, 0] == -20 and changed["b"] is graph["b"]
    assert notes == ("1 weight has zero point 0 with their previous scales (integer - zero point) (exact)",)
    x = random_integers((2, 10), "uint8")
    assert np.array_equal(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"])


def test_dead_weights_keep_their_scale_and_their_bias() -> None:
    """All equal to the zero point: what is left is the bias, which once moved by up to two steps to a scale of 1."""
    op, tensors = gemm(np.full((2, 4), 7, np.uint8), 7, (7400, -3), scale=0.001)
    graph = whole([op], tensors, 4)
    changed, _ = for_target(graph)
    stored, quantization = weights_of(changed)
    assert not stored.any() and quantization == q(0.001) and changed["b"].data.tolist() == [7400, -3]  # type: ignore[union-attr]


def test_a_bias_of_two_operators_becomes_two_where_their_scales_part() -> None:
    """Weights of one scale and two zero points; one fits and one does not. The second quantization once took the place of the first."""
    (one, tensors), (two, others) = (
        gemm(np.array([[0, 255, 10, 20]], np.uint8), 10, (1000,)),
        gemm(np.array([[100, 110, 120, 125]], np.uint8), 120, (1000,), suffix="2"),
    )
    two = Op("Gemm", ("x", "w2", "b"), two.outputs)
    graph = whole([one, two], [*tensors, *(t for t in others if t.name != "b2")], 4)
    changed, _ = for_target(graph)
    for index, op in enumerate(changed.ops):
        bias, (_, quantization) = changed[op.inputs[2]], weights_of(changed, index)
        assert bias.quantization is not None and np.allclose(bias.quantization.scale, np.float32(0.05) * quantization.scale, rtol=1e-6)
        assert np.abs(dequantize(bias.data, bias.quantization) - 0.5).max() <= bias.quantization.scale.max() / 2
    assert changed.ops[1].inputs[2] == "b" and changed["b"].data.tolist() == [1000]  # type: ignore[union-attr]
    assert changed.ops[0].inputs[2] != "b"


def test_weights_that_something_else_reads_become_a_copy() -> None:
    """A table that a Gather looks up and a MatMul multiplies: the Gather keeps the stored integers that its result's quantization says."""
    table = constant("w", random_integers((6, 4), "uint8"), q(0.01, 90))
    tensors = [
        table,
        Tensor("i", "int64", (3,)),
        Tensor("e", "uint8", None, None, q(0.01, 90)),
        Tensor("y", "uint8", None, None, q(0.5, 100)),
    ]
    ops = [Op("Gather", ("w", "i"), ("e",), {"axis": 0}), Op("MatMul", ("x", "w"), ("y",))]
    graph = make(ops, [Tensor("x", "uint8", (2, 6), None, q(0.05, 3)), *tensors], "x i", "e y")
    changed, _ = for_target(graph, None)
    assert changed.ops[0] == graph.ops[0] and changed["w"] is graph["w"]
    stored, quantization = weights_of(changed, 1)
    assert stored.dtype == np.int8 and (quantization.axis in (None, 1)) and not quantization.zero_point.any()
    feed = {"x": random_integers((2, 6), "uint8"), "i": np.array([0, 5, 2])}
    assert np.array_equal(evaluate(graph, feed)["e"], evaluate(changed, feed)["e"])
    assert np.abs(evaluate(graph, feed)["y"].astype(int) - evaluate(changed, feed)["y"]).max() <= 1


@pytest.mark.parametrize("trans_b", [0, 1])
def test_a_product_has_its_own_axis_or_one_scale_where_operands_are_data(trans_b: int) -> None:
    data = np.arange(48, dtype=np.uint8).reshape(8, 6) * 5  # less 20: up to 215
    ops = [Op("MatMul", ("x", "w"), ("y",), {"trans_b": trans_b})]
    tensors = [constant("w", data, q(0.01, 20)), Tensor("y", "uint8", None, None, q(0.5, 100))]
    graph = make(ops, [Tensor("x", "uint8", (2, 6 if trans_b else 8), None, q(0.05, 3)), *tensors], "x", "y")
    free, _ = for_target(graph, None)
    assert weights_of(free)[1].axis == 1 - trans_b
    one, _ = for_target(graph, "tflite-micro")
    assert weights_of(one)[1].axis is None


def test_the_target_says_the_range() -> None:
    op, tensors = gemm(np.array([[0, 128, 255], [60, 128, 200]], np.uint8), 128)
    graph = whole([op], tensors, 3)
    kept, _ = for_target(graph)
    assert weights_of(kept)[0].tolist() == [[-128, 0, 127], [-68, 0, 72]] and weights_of(kept)[1] == q(0.01)
    narrow, _ = for_target(graph, limited("narrow", {"int8": (-127, 127)}))
    stored, quantization = weights_of(narrow)
    assert stored[0].min() >= -127 and stored[1].tolist() == [-68, 0, 72] and quantization.scale.size in (1, 2)
    small, _ = for_target(graph, limited("small", {"int8": (-63, 63)}))
    assert np.abs(weights_of(small)[0]).max() <= 63


def test_channels_with_zero_point_0_stay_beside_others() -> None:
    """PyTorch's training gives channels of one sign an affine quantization, and uses -128 in those that are symmetric."""
    data = np.array([[-128, 0, 127], [-128, -128, 127], [-128, -100, 0], [3, 4, 5]], np.int8)
    quantization = Quantization(np.float32([0.01, 0.02, 0.03, 0.04]), np.array([0, -128, -128, 4]), 0)
    tensors = [constant("w", data, quantization), Tensor("y", "int8", None, None, q(0.5, 3))]
    graph = make([Op("Gemm", ("x", "w"), ("y",))], [Tensor("x", "int8", (2, 3), None, q(0.05, 3)), *tensors], "x", "y")
    changed, notes = for_target(graph)
    stored, found = weights_of(changed)
    assert stored[[0, 3]].tolist() == [[-128, 0, 127], [-1, 0, 1]]
    assert (found.scale == quantization.scale).tolist() == [True, False, False, True]
    assert "2 of 4 scales and their values are kept" in notes[0]
    narrow, _ = for_target(graph, limited("narrow", {"int8": (-127, 127)}))
    assert weights_of(narrow)[0].min() == -127


@pytest.mark.property
@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.sampled_from(["uint8", "int8"]), st.booleans())
def test_no_channel_loses_without_need(seed: int, point: int, dtype: str, per_axis: bool) -> None:
    """Channels within the range are equal; the others lose about what the scale that holds their largest value costs, or less."""
    rng = np.random.default_rng(seed)
    low = 0 if dtype == "uint8" else -128
    spread = rng.integers(1, 256, (5, 1))
    data = np.clip(rng.integers(-spread, spread + 1, (5, 9)) + point + low, low, low + 255).astype(dtype)
    scale = np.float32(2.0 ** rng.uniform(-9, -3, 5 if per_axis else 1))
    old = Quantization.per_axis(scale, 0, point + low) if per_axis else q(float(scale[0]), point + low)
    tensors = [constant("w", data, old), Tensor("y", "uint8", (2, 5), None, q(0.5, 100))]
    graph = whole([Op("Gemm", ("x", "w"), ("y",))], tensors, 9)
    changed, _ = symmetric_weights(graph, target_named("tflite-micro"))
    stored, quantization = weights_of(changed)
    assert quantization.is_symmetric and stored.dtype == np.int8
    real, new = dequantize(data, old), dequantize(stored, quantization)
    steps = data.astype(int) - point - low
    for index in range(5):
        if np.abs(steps[index]).max() <= 127 or (dtype == "int8" and point == 128):
            assert np.array_equal(real[index], new[index])
        else:
            step = np.abs(real[index]).max() / 127
            plain = np.rint(real[index] / step) * step
            assert np.square(new[index] - real[index]).sum() <= 2 * np.square(plain - real[index]).sum() + 2 * step**2


@pytest.mark.parametrize("seed", range(8))
def test_errors_of_a_channel_cancel(seed: int) -> None:
    data = np.random.default_rng(seed).integers(90, 256, (1, 300)).astype(np.uint8)
    data[0, 0] = 255
    op, tensors = gemm(data, 100)
    changed, _ = for_target(whole([op], tensors, 300))
    stored, quantization = weights_of(changed)
    error = dequantize(stored, quantization) - (data.astype(float) - 100) * 0.01
    assert np.abs(error).max() < quantization.scale[0] and abs(error.sum()) <= quantization.scale[0] * 0.51


@pytest.mark.formats
def test_almost_all_channels_of_a_real_model_are_exact() -> None:
    graph = load(FIXTURES / "coral_mobilenet_v2_224_uint8.tflite")
    changed, notes = symmetric_weights(graph, target_named("tflite-micro"))
    validate(changed)
    lossy = next(note for note in notes if isinstance(note, Change) and note.costs)
    exact = channels = 0
    for old, new in zip(graph.ops, changed.ops, strict=True):
        if old.kind in ("Conv", "Gemm"):
            before, after = graph[old.inputs[1]], changed[new.inputs[1]]
            assert before.quantization is not None and after.quantization is not None
            same = dequantize(before.data, before.quantization) == dequantize(after.data, after.quantization)
            exact += int(same.reshape(len(same), -1).all(axis=1).sum())
            channels += len(same)
    assert (exact, channels) == (17_994, 18_057)
    assert all(cost.sqnr_db is not None and cost.sqnr_db > 45 for cost in lossy.costs)


@pytest.mark.parametrize(("target", "dtype"), [("tensorrt", "int8"), ("tflite", "uint8")])
def test_weights_beside_a_real_result_become_signed_where_sums_are_real(target: str, dtype: str) -> None:
    """TensorRT's products of int8 give real numbers, whatever rounds them; TFLite's kernel has no such result."""
    tensors = [Tensor("x", "int8", (1, 16), None, q(0.1)), constant("w", random_integers((4, 16), "uint8"), q(0.01, 120))]
    graph = make([Op("Gemm", ("x", "w"), ("y",))], [*tensors, Tensor("y", "float32", None, None)], "x", "y")
    changed, notes = for_target(graph, target)
    assert changed.tensors[changed.ops[0].inputs[1]].dtype == dtype and bool(notes) == (dtype == "int8")


def test_a_scale_that_doubles_is_declared_with_its_bias() -> None:
    """138 steps do not fit, and all of the channel are even: the weights keep their values, and the bias is rounded."""
    steps = np.array([[1, -5, 7], [0, 14, 138]], np.int64)
    tensors = [
        Tensor("x", "uint8", (1, 3), None, q(0.1, 3)),
        constant("w", (steps + 117).astype(np.uint8), q(0.5, 117)),
        constant("b", np.array([11, -7483], np.int32), q(0.05)),
        Tensor("y", "uint8", (1, 2), None, q(0.7, 9)),
    ]
    graph = make([Op("Gemm", ("x", "w", "b"), ("y",))], tensors, "x", "y")
    changed, notes = symmetric_weights(graph, target_named("tflite-micro"))
    weights = changed[changed.ops[0].inputs[1]]
    assert weights.float_values().tolist() == (steps * 0.5).tolist() and weights.quantization is not None
    assert weights.quantization.scale.tolist() == [0.5, 1.0]
    assert [note.exact for note in notes if isinstance(note, Change)] == [False]
