"""Passes between quantizations, in numbers: powers of two, the google formulas, narrow and reduced ranges, other widths, what is
reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from passes.graphs import constant, make, outputs, q, quantized_conv, random_integers
from refusals import refused

from qconvert import Change, Graph, Op, Quantization, Tensor, check, convert, load
from qconvert.arithmetic import affine_range, dequantize
from qconvert.errors import UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.passes.quantizations.activations import infer_intervals, infer_joint_intervals
from qconvert.plugins import pass_named
from qconvert.rules.validation import validate

FIXTURES = Path(__file__).parents[2] / "fixtures"


def applied(graph: Graph, name: str, **options: object) -> tuple[Graph, tuple[Change, ...]]:
    changed, notes = pass_named(name).run(graph, None, **options)
    validate(changed)
    return changed, tuple(note for note in notes if isinstance(note, Change))


def quantization_of(graph: Graph, name: str) -> Quantization:
    found = graph[name].quantization
    assert found is not None
    return found


def integers(graph: Graph, name: str) -> list[int]:
    data = graph[name].data
    assert data is not None
    return [int(value) for value in data.reshape(-1)]


def inner(scale: float, zero_point: int = 0, dtype: str = "int8", kind: str = "Identity") -> Graph:
    """A Quantize and one operator with one quantization, between float values: nothing quantized is a graph input or output."""
    quantization = q(scale, zero_point)
    tensors = [Tensor("x", "float32", (1, 256)), *(Tensor(name, dtype, (1, 256), None, quantization) for name in "ab")]
    return make([Op("Quantize", ("x",), ("a",)), Op(kind, ("a",), ("b",)), Op("Dequantize", ("b",), ("y",))], tensors, "x", "y")


def weighted(data: Array, quantization: Quantization, bias: Array | None = None, dtype: str = "int8") -> Graph:
    """A Gemm of int8 data at scale 0.5 with weights, between quantized inputs and outputs."""
    products = np.float32(0.5) * quantization.scale
    added = Quantization.per_axis(products, 0) if products.size > 1 else q(float(products[0]))
    tensors = [
        Tensor("x", "int8", (1, data.shape[1]), None, q(0.5)),
        constant("w", data, quantization),
        Tensor("y", dtype, (1, len(data)), None, q(1.0)),
        *([constant("b", bias, added)] if bias is not None else []),
    ]
    return make([Op("Gemm", ("x", "w", "b" if bias is not None else ""), ("y",))], tensors, "x", "y")


@pytest.mark.parametrize(
    ("scale", "zero_point", "rounding", "wanted"),
    [
        (0.01, 0, "up", 2.0**-6),  # largest magnitude 1.28: position floor(log2(1.28)) - 6
        (0.012, 0, "up", 2.0**-6),  # 1.536: the same, half of the quantization more
        (0.012, 0, "nearest", 2.0**-6),  # 1.536 / 127 = 0.0121, whose logarithm is -6.37
        (0.01, 0, "nearest", 2.0**-7),  # -6.63: clips at 0.99
        (0.01, 0, "mse", 2.0**-6),
        (0.5, 0, "up", 0.5),
        (0.02, -128, "up", 2.0**-4),  # a Relu: 5.1 in 7 bits
    ],
)
def test_scales_become_powers_of_two(scale: float, zero_point: int, rounding: str, wanted: float) -> None:
    graph, notes = applied(inner(scale, zero_point), "power_of_two", rounding=rounding)
    assert (quantization_of(graph, "b").scale[0], quantization_of(graph, "b").zero_point[0]) == (np.float32(wanted), 0)
    assert quantization_of(graph, "a") == quantization_of(graph, "b") and bool(notes) == (scale != wanted)


def test_unsigned_values_from_zero_on_use_the_bit_of_the_sign() -> None:
    graph, _ = applied(inner(0.02, 0, "uint8"), "power_of_two")
    assert (quantization_of(graph, "a").scale[0], quantization_of(graph, "a").zero_point[0]) == (2.0**-5, 0)
    graph, _ = applied(inner(0.02, 10, "uint8"), "power_of_two")
    assert (quantization_of(graph, "a").scale[0], quantization_of(graph, "a").zero_point[0]) == (2.0**-4, 128)


def test_channels_whose_scales_are_powers_of_two_keep_their_integers() -> None:
    data = np.int8([[1, -2, 127], [100, -50, 25]])
    before = weighted(data, Quantization.per_axis([0.25, 0.3], 0), np.int32([40, -40]))
    after, (note, *_) = applied(before, "power_of_two")
    assert integers(after, "w")[:3] == [1, -2, 127] and list(quantization_of(after, "w").scale) == [0.25, 0.25]
    assert integers(after, "w")[3:] == [120, -60, 30]  # 30, -15 and 7.5 in steps of a quarter
    assert integers(after, "b") == [40, -48] and "1 of 2 scales and their values are kept" in note.text and not note.exact
    one, _ = applied(before, "power_of_two", granularity="tensor")
    assert quantization_of(one, "w") == q(0.25) and integers(one, "w") == integers(after, "w")


def test_the_google_formulas_are_those_of_oneflow() -> None:
    graph, _ = applied(inner(0.02, -28), "google_scales")
    assert (quantization_of(graph, "a").scale[0], quantization_of(graph, "a").zero_point[0]) == (
        np.float32(np.float32(3.1) / np.float32(127)),
        0,
    )
    assert applied(inner(0.02, 0), "google_scales") == (inner(0.02, 0), ())
    assert applied(inner(0.02, 17), "google_scales", scheme="affine") == (inner(0.02, 17), ())
    narrow = replace(q(0.5, 100), quant_min=0, quant_max=200)
    tensors = {name: t if t.quantization is None else replace(t, quantization=narrow) for name, t in inner(0.5, 0, "uint8").tensors.items()}
    graph, _ = applied(replace(inner(0.5, 0, "uint8"), tensors=tensors), "google_scales")
    assert (
        quantization_of(graph, "a").scale[0] == np.float32(100 / 255) and quantization_of(graph, "a").zero_point[0] == 128
    )  # -(-50 / scale), 127.5 to even


def test_narrow_weights_lose_a_step_or_nothing() -> None:
    data = np.int8([[-128, 100, 3, 50], [-127, 127, 0, 1]])
    after, (note,) = applied(weighted(data, Quantization.per_axis([0.25, 0.5], 0)), "narrow_range")
    assert min(integers(after, "w")) == -127 and integers(after, "w")[4:] == [-127, 127, 0, 1]
    assert note.costs[0].largest is not None and note.costs[0].largest <= 1 and "1 of 2 scales and their values are kept" in note.text
    kept = weighted(np.int8([[-127, 5]]), q(0.25))
    assert applied(kept, "narrow_range") == (kept, ())
    unsigned, _ = applied(weighted(np.uint8([[0, 254, 101, 130]]), q(0.25, 120)), "narrow_range")
    assert min(integers(unsigned, "w")) >= 1 and quantization_of(unsigned, "w").zero_point[0] == 120


def test_weights_of_seven_bits() -> None:
    data = np.int8([[-64, 63, 10], [-128, 127, 64]])
    after, (note,) = applied(weighted(data, Quantization.per_axis([0.5, 0.5], 0), np.int32([7, 100])), "reduced_range")
    assert integers(after, "w")[:3] == [-64, 63, 10] and min(integers(after, "w")) >= -64 and max(integers(after, "w")) <= 63
    scale = float(quantization_of(after, "w").scale[1])
    assert 1.0 <= scale < 1.2 and integers(after, "b") == [7, round(100 * 0.25 / (0.5 * scale))]
    assert "1 of 2 scales and their values are kept" in note.text


@pytest.mark.parametrize(("dtype", "zero_point", "lowest"), [("uint8", 0, 0), ("uint8", 77, 0), ("int8", 0, -64), ("int8", 5, -64)])
def test_activations_of_seven_bits_never_leave_them(dtype: str, zero_point: int, lowest: int) -> None:
    before = inner(0.5, zero_point, dtype)
    after, _ = applied(before, "reduced_range", reduce="activations")
    (low,), (high,) = affine_range(quantization_of(before, "a"), dtype)
    x = np.linspace(2 * low - 9, 2 * high + 9, 256, dtype=np.float32)[None]
    stored = evaluate(after.evolve(outputs=("b",)), {"x": x})["b"]
    assert stored.min() >= lowest and stored.max() <= lowest + 127
    assert (
        np.abs(evaluate(before, {"x": x})["y"] - evaluate(after, {"x": x})["y"]).max()
        <= 0.5 * (0.5 + quantization_of(after, "a").scale[0]) + 1e-6
    )


def test_wider_weights_keep_everything_and_narrower_ones_what_fits() -> None:
    data = np.int8([[-7, 3, 0], [100, -50, 25]])
    before = weighted(data, Quantization.per_axis([0.5, 0.25], 0), np.int32([8, 8]))
    narrow, (note,) = applied(before, "change_bits", weight_bits=4)
    assert (
        narrow["w"].dtype == "int4" and integers(narrow, "w")[:3] == [-7, 3, 0] and integers(narrow, "w")[3:] == [4, -2, 1]
    )  # 25 is their largest common divisor
    assert quantization_of(narrow, "w").scale[0] == 0.5
    assert "1 of 2 scales and their values are kept; all values are the same" in note.text and not note.exact  # a bias is rounded again
    wide, (note,) = applied(before, "change_bits", weight_bits=16)
    assert wide["w"].dtype == "int16" and integers(wide, "w") == integers(before, "w") and note.exact
    assert quantization_of(wide, "w") == quantization_of(before, "w") and wide["b"] == before["b"]
    back, (note,) = applied(wide, "change_bits", weight_bits=8)
    assert back["w"] == before["w"] and note.exact


def test_weights_in_blocks_lose_less_than_one_scale_a_channel() -> None:
    rng = np.random.default_rng(0)
    data = np.concatenate([rng.integers(-8, 9, (4, 32)), rng.integers(-127, 128, (4, 32))], 1).astype(np.int8)
    before = weighted(data, q(0.25), np.int32([1, 2, 3, 4]))
    found = {size: applied(before, "change_bits", weight_bits=4, block_size=size) for size in (0, 32)}
    costs = {size: notes[0].costs[0].sqnr_db for size, (_, notes) in found.items()}
    assert costs[32] > costs[0] > 15
    after = found[32][0]
    assert quantization_of(after, "w").block_size == 32 and quantization_of(after, "w").scale.shape == (4, 2)
    assert after["b"].dtype == "float32" and list(after["b"].data) == [0.125, 0.25, 0.375, 0.5]


@pytest.mark.parametrize("zero_point", [-128, 0, 31])
def test_wider_activations_keep_every_code_and_come_back(zero_point: int) -> None:
    before = inner(0.5, zero_point)
    wide, (note,) = applied(before, "change_bits", activation_bits=16)
    codes = dequantize(np.arange(-128, 128), quantization_of(before, "a"))
    assert wide["a"].dtype == "int16" and all(cost.sqnr_db > 130 for cost in note.costs)
    assert np.allclose(evaluate(wide, {"x": codes.astype(np.float32)[None]})["y"], codes, rtol=1e-6)
    if zero_point:
        back, _ = applied(wide, "change_bits", activation_bits=8)
        assert quantization_of(back, "a").zero_point[0] == zero_point and quantization_of(back, "a").scale[0] == pytest.approx(
            0.5, rel=1e-6
        )


def test_biases_beside_wider_data_follow_and_stay_integers_where_they_fit() -> None:
    before = quantized_conv(scales=(0.02, 0.01, 0.03, 0.04))
    after, _ = applied(before, "change_bits", activation_bits=16)
    conv = next(op for op in after.ops if op.kind == "Conv")
    bias, old = after[conv.inputs[2]], before["b"]
    assert bias.quantization is not None and old.quantization is not None
    assert np.abs(dequantize(bias.data, bias.quantization) - dequantize(old.data, old.quantization)).max() <= bias.quantization.scale.max()
    large = weighted(np.int8([[1, 2]]), q(0.25), np.int32([2**30]))
    after, _ = applied(large, "change_bits", activation_bits=16)
    gemm = next(op for op in after.ops if op.kind == "Gemm")
    assert after[gemm.inputs[2]].dtype == "int64" and integers(after, gemm.inputs[2]) == [2**38]


def test_a_bias_that_leaves_its_type_becomes_real() -> None:
    before = weighted(np.int8([[100, 2]]), q(2.0**-20), np.int32([2**30]))
    tensors = [replace(before["x"], quantization=q(1000.0, 5))]
    graph = before.evolve(tensors=[*tensors, replace(before["b"], quantization=q(float(np.float32(1000) * np.float32(2.0**-20))))])
    after, _ = applied(graph, "change_bits", weight_bits=16)
    assert after["b"] == graph["b"]
    wide = weighted(np.int8([[0, 0]]), q(0.3), np.int32([2**31 - 1]))
    after, _ = applied(wide, "power_of_two")
    bias = next(op for op in after.ops if op.kind == "Gemm").inputs[2]
    assert after[bias].dtype in ("int32", "float32")


def test_what_is_reached_makes_finer_quantizations() -> None:
    """After a Relu a symmetric quantization has 127 of its steps: twice as many fit, and each old one is one of them."""
    before = inner(0.5, kind="Relu")
    tensors = [replace(before["b"], name="c"), replace(before["b"], name="b", quantization=q(0.5))]
    graph = make(
        [Op("Quantize", ("x",), ("a",)), Op("Requantize", ("a",), ("b",)), Op("Relu", ("b",), ("c",)), Op("Dequantize", ("c",), ("y",))],
        [before["x"], before["a"], *tensors], "x", "y",
    )  # fmt: skip
    assert infer_intervals(graph)["a"] == (-64.0, 63.5) and infer_intervals(graph)["c"] == (0.0, 63.5)
    assert infer_joint_intervals(graph)["b"] == (-64.0, 63.5)
    real = Op("Clip", ("x", "low", "high"), ("k",))
    bounds = [Tensor(name, "float32", (), np.array(value, np.float32)) for name, value in (("low", 0), ("high", 62))]
    fine = graph.evolve(
        ops=[real, replace(graph.ops[0], inputs=("k",)), *graph.ops[1:]], tensors=[*bounds, Tensor("k", "float32", (1, 256))]
    )
    after, (note,) = applied(fine, "affine_activations")
    assert [float(quantization_of(after, name).scale[0]) for name in "abc"] == [0.25] * 3 and quantization_of(after, "a").zero_point[
        0
    ] == -128
    assert not note.costs and not note.exact
    codes = np.arange(0, 62, 0.5, dtype=np.float32)[None].repeat(3, 1)[:, :256]
    codes = np.pad(codes, ((0, 0), (0, 256 - codes.shape[1])))
    assert np.array_equal(evaluate(fine, {"x": codes})["y"], evaluate(after, {"x": codes})["y"])


@pytest.mark.parametrize("name", ["power_of_two", "google_scales", "symmetric_activations", "change_bits"])
def test_edges_stay_unless_they_are_to_change(name: str) -> None:
    before = quantized_conv()
    options = {"activation_bits": 16} if name == "change_bits" else {}
    kept, _ = applied(before, name, **options)
    assert (kept["x"], kept["y"]) == (before["x"], before["y"])
    changed, notes = applied(before, name, edges="change", **options)
    assert changed["x"].quantization != before["x"].quantization and changed.ops[0].kind == "Conv"
    assert "inputs and outputs 'x', 'y' too" in " ".join(note.text for note in notes)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("symmetric_activations", {}), ("affine_activations", {}), ("google_scales", {}), ("narrow_range", {}), ("reduced_range", {}),
        ("power_of_two", {}), ("change_bits", {"weight_bits": 16}), ("change_bits", {"activation_bits": 16}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_models_pass_the_check(name: str, options: dict[str, object], suffix: str, tmp_path: Path) -> None:
    model = "tiny_resnet_cifar10_int8" if name == "power_of_two" else "tiny_kws_dscnn_int8"
    source, result = FIXTURES / f"{model}.tflite", tmp_path / f"result.{suffix}"
    convert(source, result, passes=[name], **options)
    report = check(source, result, min_sqnr=20)
    assert report.passed, report.problems
    assert check(source, result).passed == all(item.sqnr_db is None or item.sqnr_db >= 30 for item in report.outputs)


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_results_run_in_onnxruntime_as_the_evaluator_has_them() -> None:
    """But for ties, which float32 does not see as such."""
    before = quantized_conv(scales=(0.02, 0.01, 0.03, 0.04))
    x = random_integers((1, 3, 5, 5), "int8")
    for name in ("power_of_two", "google_scales", "narrow_range", "reduced_range"):
        after, _ = applied(before, name)
        off = np.abs(outputs(after, {"x": x})[0].astype(int) - evaluate(after, {"x": x})["y"])
        assert off.max() <= 1 and off.mean() < (0.2 if name == "power_of_two" else 0.01), name


@pytest.mark.formats
def test_activations_of_four_bits_are_refused_where_the_optimizer_would_break_them(tmp_path: Path) -> None:
    source = FIXTURES / "tiny_ad_toycar_int8.tflite"
    with refused(UnsupportedError, "target-rules", holds=(8, 16)):
        convert(source, tmp_path / "a.onnx", passes=["change_bits"], activation_bits=4, min_tensor_sqnr=0)
    assert not list(tmp_path.iterdir())
    convert(source, tmp_path / "a.onnx", passes=["change_bits"], activation_bits=4, target="generic", min_tensor_sqnr=0)


@pytest.mark.formats
def test_unsigned_models_with_signed_weights_become_signed_for_tflite(tmp_path: Path) -> None:
    """No kernel of LiteRT takes int8 weights next to uint8 data; inputs and outputs stay uint8."""
    convert(FIXTURES / "coral_mobilenet_v1_025_128_uint8.tflite", tmp_path / "a.tflite", passes=["symmetric_weights"])
    graph = load(tmp_path / "a.tflite")
    assert {graph[name].dtype for name in (*graph.inputs, *graph.outputs)} == {"uint8"}
    assert all(graph[op.inputs[0]].dtype == graph[op.inputs[1]].dtype == "int8" for op in graph.ops if op.kind == "Conv")


@pytest.mark.litert
def test_unsigned_models_of_sixteen_bits_run_in_litert(tmp_path: Path) -> None:
    """Activations become int16, biases int64; the uint8 output comes by float values, since no kernel goes from int16 to uint8."""
    source = FIXTURES / "coral_mobilenet_v1_025_128_uint8.tflite"
    convert(source, tmp_path / "a.tflite", passes=["change_bits"], activation_bits=16)
    graph = load(tmp_path / "a.tflite")
    assert {graph[op.inputs[2]].dtype for op in graph.ops if op.kind == "Conv"} == {"int64"}
    assert check(source, tmp_path / "a.tflite", samples=2).passed
