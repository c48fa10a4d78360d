"""requantize_to_fixed_point: sums, multipliers and shifts as integer operators, in the evaluator, in onnxruntime and next to LiteRT."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from passes.graphs import CONV, applied, constant, make, outputs, q, quantized_conv, random_integers

import qconvert
from qconvert import Graph, Op, Quantization, Tensor
from qconvert.arithmetic import FixedPoint, compare_requantizations, requantize
from qconvert.conversion import normalize
from qconvert.conversion.verifying import random_inputs
from qconvert.evaluate import evaluate
from qconvert.graph import integer_range, numpy_dtype
from qconvert.passes.requantize_to_fixed_point import requantize_to_fixed_point
from qconvert.plugins import Change, target_named
from tests.tflite_models import TensorSpec, run_litert, single_op

FIXTURES = Path(__file__).parents[2] / "fixtures"
ROUNDINGS = {"single": "tflite_single_rounding", "away": "tvm_to_nearest", "double": "tflite_double_rounding"}


def decomposed(graph: Graph, rounding: str = "single") -> tuple[Graph, Change]:
    changed, _ = applied(graph, "requantize_to_fixed_point", fixed_point=rounding)
    _, (change, *_) = requantize_to_fixed_point(graph, None, fixed_point=rounding)
    assert isinstance(change, Change)
    for name in changed.tensors:
        assert "float" not in changed[name].dtype
    return changed, change


def feeds(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    return {name: random_integers(tuple(map(int, graph[name].shape or ())), graph[name].dtype, seed + i)
            for i, name in enumerate(graph.inputs)}  # fmt: skip


def assert_decomposed(graph: Graph, rounding: str) -> None:
    """onnxruntime gives the evaluator's integers; these are the exact ones but for what the note says."""
    changed, change = decomposed(graph, rounding)
    assert not {"Conv", "Gemm", "MatMul", "Requantize"} & {op.kind for op in changed.ops}
    for seed in range(3):
        feed = feeds(graph, seed)
        exact, found = evaluate(graph, feed), evaluate(changed, feed)
        for name, values in zip(changed.outputs, outputs(changed, feed), strict=True):
            assert np.array_equal(found[name], values)
            apart = np.abs(exact[name].astype(np.int64) - found[name])
            assert apart.max(initial=0) <= (0 if change.exact else 1)
            if rounding == "double":
                assert apart.mean() < 0.2


def weighted(kind: str, dtype: str, weight_dtype: str, per_axis: bool, activation: str = "", bias: bool = True) -> Graph:
    """A Conv of two groups in channels_last, a Gemm, or a MatMul; weights with pairs that would saturate."""
    rng = np.random.default_rng(4)
    zero = integer_range(dtype)[0] + 125
    point = 128 if weight_dtype == "uint8" else 0
    shape = {"Conv": (6, 2, 3, 3), "Gemm": (6, 40), "MatMul": (40, 6)}[kind]
    weights = (rng.integers(-127, 128, shape) + point).astype(weight_dtype)
    if weight_dtype == "int8":
        weights.reshape(-1)[:20] = 127
    scales = rng.uniform(0.002, 0.01, 6).astype(np.float32) if per_axis else np.array([0.006], np.float32)
    axis = 1 if kind == "MatMul" else 0
    quantization = Quantization.per_axis(scales, axis, point) if per_axis else q(float(scales[0]), point)
    x = {"Conv": (2, 7, 6, 4), "Gemm": (5, 40), "MatMul": (2, 5, 40)}[kind]
    tensors = [
        Tensor("x", dtype, x, None, q(0.05, zero)),
        constant("w", weights, quantization),
        Tensor("y", dtype, None, None, q(0.11, zero + 9)),
    ]
    inputs = ["x", "w"]
    if bias and kind != "MatMul":
        products = np.float32(0.05) * scales
        on = Quantization.per_axis(products, 0) if per_axis else q(float(products[0]))
        tensors.append(constant("b", rng.integers(-3000, 3000, 6).astype(np.int32), on))
        inputs.append("b")
    attributes = {**CONV, "group": 2, "data_format": "channels_last", "strides": (2, 1)} if kind == "Conv" else {}
    extra = {"activation": activation} if activation else {}
    return make([Op(kind, tuple(inputs), ("y",), {**attributes, **extra})], tensors, "x", "y")  # type: ignore[dict-item]


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("per_axis", [False, True])
@pytest.mark.parametrize(("dtype", "weight_dtype"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("kind", ["Gemm", "MatMul"])
def test_matrix_products(kind: str, dtype: str, weight_dtype: str, per_axis: bool, rounding: str) -> None:
    assert_decomposed(weighted(kind, dtype, weight_dtype, per_axis), rounding)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scales", [(0.02,), (0.02, 0.003, 0.4, 0.011)])
@pytest.mark.parametrize(("dtype", "weight_dtype"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("activation", ["", "relu6"])
def test_convolutions(dtype: str, weight_dtype: str, scales: tuple[float, ...], rounding: str, activation: str) -> None:
    graph = quantized_conv(3, dtype=dtype, weight_dtype=weight_dtype, scales=scales, activation=activation)
    assert_decomposed(graph, rounding)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("per_axis", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_channels_last_and_groups(per_axis: bool, bias: bool, rounding: str) -> None:
    """In the evaluator alone: ONNX has channels first, which assign_layout sees to."""
    graph = weighted("Conv", "int8", "int8", per_axis, "relu", bias)
    changed, change = decomposed(graph, rounding)
    feed = feeds(graph)
    apart = np.abs(evaluate(graph, feed)["y"].astype(int) - evaluate(changed, feed)["y"])
    assert apart.max() <= (0 if change.exact else 1)
    assert change.exact is (rounding != "double")


@pytest.mark.onnxruntime
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_products_of_two_tensors(rounding: str) -> None:
    a, b = Tensor("a", "uint8", (2, 5, 7), None, q(0.03, 120)), Tensor("b", "uint8", (2, 7, 4), None, q(0.02, 9))
    y = Tensor("y", "uint8", None, None, q(0.02, 100))
    assert_decomposed(make([Op("MatMul", ("a", "b"), ("y",))], [a, b, y], "a b", "y"), rounding)
    factor = constant("b", random_integers((7,), "int8"), q(0.02, -9))
    assert_decomposed(make([Op("Mul", ("a", "b"), ("y",), {"activation": "relu"})], [a, factor, y], "a", "y"), rounding)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("given", "result"), [("int8", "int8"), ("uint8", "int8"), ("int16", "int8"), ("int32", "int8"), ("int8", "int32"),
                                              ("uint8", "int16"), ("int16", "int16")])  # fmt: skip
@pytest.mark.parametrize("scale", [0.013, 0.05, 1.7])
def test_conversions_equal_the_formula(given: str, result: str, scale: float, rounding: str) -> None:
    """Also from accumulators of 32 bits with a scale for each channel, as a requantize by itself has them."""
    rng, point = np.random.default_rng(1), {"int8": 5, "uint8": 99, "int16": -300, "int32": 0}[given]
    output = q(scale * {"int32": 2.0**18, "int16": 2.0**7}.get(given, 1), -4)
    scales = np.array([0.03, 0.2, 0.0007], np.float32) if given == "int32" else np.array([0.05], np.float32)
    quantization = Quantization.per_axis(scales, 1, point) if given == "int32" else q(float(scales[0]), point)
    x, y = Tensor("x", given, (40, 3, 2), None, quantization), Tensor("y", result, None, None, output)
    graph = make([Op("Requantize", ("x",), ("y",))], [x, y], "x", "y")
    changed, _ = decomposed(graph, rounding)
    low, high = integer_range(given)
    values = rng.integers(low, high + 1, (40, 3, 2)).astype(numpy_dtype(given))
    values[0] = low
    found = evaluate(changed, {"x": values})["y"]
    ratio = scales.astype(np.float64) / output.step
    wanted = requantize(
        values.astype(np.int64) - point, ratio.reshape(-1, 1) if given == "int32" else ratio, -4, result, ROUNDINGS[rounding]
    )
    assert np.array_equal(found, wanted)
    assert np.array_equal(outputs(changed, {"x": values})[0], wanted)


@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("seed", range(6))
def test_two_shifts_are_tflite_s_reference_kernels(dtype: str, seed: int) -> None:
    """MUL on all pairs; CONV_2D at an accumulator, which its bias gives, where it matters that the product of scales is one of float32, as
    for uint8, or of float64, as for int8.
    """
    rng = np.random.default_rng(seed)
    low, high = integer_range(dtype)
    a, b = (codes.astype(dtype) for codes in np.meshgrid(np.arange(low, high + 1), np.arange(low, high + 1)))
    scales, points = rng.uniform(0.01, 0.1, 3).astype(np.float32), rng.integers(low + 100, low + 150, 3)
    specs = [TensorSpec(name, a.shape, dtype, float(s), int(z)) for name, s, z in zip("aby", scales, points, strict=True)]
    tensors = [Tensor(name, dtype, a.shape, None, q(float(s), int(z))) for name, s, z in zip("aby", scales, points, strict=True)]
    changed, _ = decomposed(make([Op("Mul", ("a", "b"), ("y",))], tensors, "a b", "y"), "double")
    wanted = run_litert(single_op("MUL", {}, specs[:2], specs[2:]), [a, b], "reference")[0]
    assert np.array_equal(evaluate(changed, {"a": a, "b": b})["y"], wanted)
    scale, acc = deciding(rng)
    point, bias = 0 if dtype == "int8" else 131, np.array([acc], np.int32)
    weights, x = np.full((1, 1, 1, 1), point, dtype), np.full((1, 1, 1, 1), 9, dtype)
    tensors = [Tensor("x", dtype, x.shape, None, q(scale[0], 9)), constant("w", weights, q(scale[1], point)),
               constant("b", bias, q(float(np.float32(scale[0]) * np.float32(scale[1])))),
               Tensor("y", dtype, None, None, q(scale[2], low + 128))]  # fmt: skip
    attributes = {**CONV, "pads": (0, 0, 0, 0), "data_format": "channels_last"}
    changed, _ = decomposed(make([Op("Conv", ("x", "w", "b"), ("y",), attributes)], tensors, "x", "y"), "double")  # type: ignore[arg-type]
    specs = [TensorSpec("x", x.shape, dtype, scale[0], 9), TensorSpec("w", weights.shape, dtype, scale[1], point, data=weights),
             TensorSpec("b", (1,), "int32", scale[0] * scale[1], 0, data=bias),
             TensorSpec("y", x.shape, dtype, scale[2], low + 128)]  # fmt: skip
    options = {"padding": 1, "strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    wanted = run_litert(single_op("CONV_2D", options, specs[:3], specs[3:]), [x], "reference")[0]
    assert np.array_equal(evaluate(changed, {"x": x})["y"], wanted)


def deciding(rng: np.random.Generator) -> tuple[tuple[float, float, float], int]:
    """Scales of data, weights and result, and an accumulator for which the product of the first two in float32 gives another integer."""
    while True:
        data, weights, result = (np.float32(value) for value in rng.uniform(0.001, 0.1, 3))
        exact, narrow = float(data) * float(weights) / float(result), float(data * weights) / float(result)
        first, second = FixedPoint.of(exact, "double"), FixedPoint.of(narrow, "double")
        found = compare_requantizations(first, second, (-128, 127), -(2**24), 2**24, exact)
        if found.examples:
            return (float(data), float(weights), float(result)), found.examples[0][1]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["Add", "Sub"])
def test_sums_of_all_pairs(kind: str, dtype: str, seed: int, rounding: str) -> None:
    """What the note says differs does, and no more; two shifts are TFLite's reference kernels; onnxruntime gives the same."""
    rng = np.random.default_rng(seed)
    low, high = integer_range(dtype)
    scales = np.array([0.5, 0.25, 1.0]) if not seed else rng.uniform(0.01, 0.1, 3).astype(np.float32)  # the first has ties
    points = rng.integers(low + 100, low + 150, 3)
    a, b = (codes.astype(dtype) for codes in np.meshgrid(np.arange(low, high + 1), np.arange(low, high + 1)))
    tensors = [Tensor(name, dtype, a.shape, None, q(float(s), int(z))) for name, s, z in zip("aby", scales, points, strict=True)]
    activation = {"activation": "relu"} if seed == 1 else {}
    graph = make([Op(kind, ("a", "b"), ("y",), activation)], tensors, "a b", "y")
    changed, change = decomposed(graph, rounding)
    feed = {"a": a, "b": b}
    exact, found = evaluate(graph, feed)["y"], evaluate(changed, feed)["y"]
    assert np.array_equal(found, outputs(changed, feed)[0])
    differing = int(np.abs(exact.astype(int) - found).sum())
    assert change.exact is (differing == 0) and (not differing or f"{differing} of " in change.text)
    assert differing or seed
    if rounding == "double" and not activation:
        specs = [TensorSpec(name, a.shape, dtype, float(s), int(z)) for name, s, z in zip("aby", scales, points, strict=True)]
        assert np.array_equal(found, run_litert(single_op(kind.upper(), {}, specs[:2], specs[2:]), [a, b], "reference")[0])


def test_every_accumulator_that_the_note_names_differs() -> None:
    """The note of a requantization of 8 bits against all 256 codes, by both roundings: ties at every fourth step."""
    x, y = Tensor("x", "int8", (256,), None, q(0.25)), Tensor("y", "int8", None, None, q(1.0))
    graph = make([Op("Requantize", ("x",), ("y",))], [x, y], "x", "y")
    codes = {"x": np.arange(-128, 128).astype(np.int8)}
    exact = evaluate(graph, codes)["y"].astype(int)
    for rounding in ROUNDINGS:
        changed, change = decomposed(graph, rounding)
        differing = int(np.abs(evaluate(changed, codes)["y"] - exact).sum())
        assert differing and f"{differing} of " in change.text and not change.exact
        assert change.costs[0].tensor == "y" and change.costs[0].largest == 1


def test_what_stays_and_why() -> None:
    graph = quantized_conv()
    real = replace(graph["b"], dtype="float32", data=np.ones(4, np.float32), quantization=None)
    cases = {
        "its bias is float; float_bias_to_int32 quantizes it": graph.evolve(tensors=[real]),
        "its bias has another scale": graph.evolve(tensors=[replace(graph["b"], quantization=q(0.7))]),
        "its accumulator may leave int32": graph.evolve(tensors=[replace(graph["b"], data=np.full(4, 2**31 - 1, np.int32))]),
        "its multiplier has no fixed point": graph.evolve(tensors=[replace(graph["y"], quantization=q(1e-30))]),
    }
    for reason, changed in cases.items():
        found, notes = requantize_to_fixed_point(changed, None)
        assert found is changed and notes == (f"1 operator stays, Conv: {reason}",)
    _, notes = requantize_to_fixed_point(graph, target_named("tflite"))
    assert "tflite has no ConvInteger" in notes[0]
    assert "tflite has no" in str(notes[0]) and requantize_to_fixed_point(graph, target_named("ort-x86"))[0] is not graph


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_real_network_in_onnxruntime(rounding: str, tmp_path: Path) -> None:
    """Single: equal to LiteRT's default kernels wherever these round the exact sum once. Double: to its reference kernels, operator by
    operator, but for the fully connected layer, which they round once.
    """
    source = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    report = qconvert.convert(source, tmp_path / "m.onnx", passes=["requantize_to_fixed_point"], fixed_point=rounding)
    (change,) = (change for change in report.changes if change.by == "requantize_to_fixed_point")
    assert change.text.startswith("13 requantizations") and change.exact is (rounding != "double")
    kernels = ["litert:reference"] if rounding == "double" else []
    checked = qconvert.check(source, tmp_path / "m.onnx", per_op=True, kernels=kernels)
    assert checked.passed if rounding != "double" else [p.split(" #")[0] for p in checked.problems] == ["FULLY_CONNECTED"]
    kinds = {op.kind for op in qconvert.load(tmp_path / "m.onnx").ops}
    assert {"ConvInteger", "MatMulInteger", "BitShift"} <= kinds and "Conv" not in kinds


@pytest.mark.formats
def test_a_target_asks_for_it_by_name() -> None:
    """After its own passes: the data are uint8, and weights that would saturate next to them too; the outputs stay what they are."""
    own = target_named("ort-x86")
    target = own.derive(name="integers", passes=(*own.passes, "requantize_to_fixed_point"))
    source = qconvert.load(FIXTURES / "tiny_resnet_cifar10_int8.tflite")
    (before, _), (after, changes) = normalize(source, own), normalize(source, target)
    assert "Conv" not in {op.kind for op in after.ops} and any(change.by == "requantize_to_fixed_point" for change in changes)
    feed = random_inputs(before, np.random.default_rng(0))
    for name, values in evaluate(before, feed).items():
        assert np.array_equal(values, evaluate(after, feed)[name])
