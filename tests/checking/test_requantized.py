"""Results whose weights and activations the conversion declared to have other quantizations: what was declared is what has to be
computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qconvert import Graph, Op, Tensor, check, convert, load, save
from qconvert.arithmetic import dequantize, quantize
from qconvert.checking.classify import classify
from qconvert.checking.requantized_operators import find_costly_constants
from qconvert.graph import Quantization

pytestmark = pytest.mark.litert

FIXTURES = Path(__file__).parents[2] / "fixtures"
MOBILENET, PERSON = FIXTURES / "coral_mobilenet_v1_025_128_uint8.tflite", FIXTURES / "tflm_person_detect_int8.tflite"
STREAMING = FIXTURES / "mww_okay_nabu_streaming_int8.tflite"


def network(path: Path, spatial: bool) -> Path:
    """Products of uint16 by uint8 weights of which one channel does not fit int8, in a row: names of what stands between are lost."""
    rng = np.random.default_rng(0)
    shape, size = ((1, 8, 6), (8, 8, 1)) if spatial else ((1, 6, 8), (8, 8))

    def weights(name: str, zero_point: int) -> Tensor:
        data = rng.integers(zero_point - 60, zero_point + 60, size).astype(np.uint8)
        data[(3, 0, 0) if spatial else (0, 3)] = 255
        return Tensor(name, "uint8", size, data, Quantization.per_tensor(0.01, zero_point))

    def act(name: str, sizes: tuple[int, ...], scale: float, zero_point: int) -> Tensor:
        return Tensor(name, "uint16", sizes, None, Quantization.per_tensor(scale, zero_point))

    conv = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "group": 1, "data_format": "channels_first"} if spatial else {}
    kind = "Conv" if spatial else "MatMul"
    tensors = [act("x", shape, 1e-4, 30000), act("a", shape, 1.1e-4, 0), act("b", shape, 1.5e-4, 35000), act("y", (6, 8), 1.5e-4, 35000)]
    tensors += [weights("v", 120), weights("w", 110), Tensor("sizes", "int64", (2,), np.array([6, 8]))]
    tensors += [Tensor("given", "float32", shape), Tensor("read", "float32", (6, 8))]
    ops = [Op(kind, ("x", "v"), ("a",), conv), Op(kind, ("a", "w"), ("b",), conv), Op("Reshape", ("b", "sizes"), ("y",))]
    ops = [Op("Quantize", ("given",), ("x",)), *ops, Op("Dequantize", ("y",), ("read",))]
    save(Graph("network", {tensor.name: tensor for tensor in tensors}, tuple(ops), ("given",), ("read",)), path)
    return path


@pytest.mark.onnxruntime
@pytest.mark.parametrize("spatial", [False, True])
def test_what_was_declared_is_judged(spatial: bool, tmp_path: Path) -> None:
    source, result = network(tmp_path / "m.onnx", spatial), tmp_path / "m.tflite"
    convert(source, result)
    report = check(source, result, per_op=True)
    assert report.passed, (report.problems, report.unjudged)
    assert {item.verdict for item in report.operators} <= {"requantized", "equal"}


@pytest.mark.onnxruntime
@pytest.mark.parametrize("spatial", [False, True])
@pytest.mark.parametrize("off", [2, 40])
def test_what_was_not_declared_is_found(spatial: bool, off: int, tmp_path: Path) -> None:
    """Half of the weights of an operator are off by some steps, in a file that declares others."""
    source, result, wrong = network(tmp_path / "m.onnx", spatial), tmp_path / "m.tflite", tmp_path / "wrong.tflite"
    convert(source, result)
    graph = load(result)
    weights = next(t for t in graph.constants() if t.dtype == "int8" and t.data is not None and t.data.size == 64)
    assert weights.data is not None
    data = np.where(np.arange(64).reshape(weights.data.shape) % 2, weights.data, np.clip(weights.data.astype(int) + off, -127, 127))
    save(graph.evolve(tensors=[replace(weights, data=data.astype(np.int8))]), wrong)
    assert not check(source, wrong, per_op=True).passed


@pytest.mark.onnxruntime
@pytest.mark.parametrize("spatial", [False, True])
@pytest.mark.parametrize("which", ["a", "b"])
def test_a_single_step_of_a_weight_is_found_at_its_operator(spatial: bool, which: str, tmp_path: Path) -> None:
    """Between the two products stands a tensor in another shape, under another name: both sides are cut there."""
    source, result, wrong = network(tmp_path / "m.onnx", spatial), tmp_path / "m.tflite", tmp_path / "wrong.tflite"
    convert(source, result)
    graph = load(result)
    assert not {"a", "b"} & graph.tensors.keys()
    op = [op for op in graph.ops if op.kind in ("Conv", "Gemm")][which == "b"]
    weights = graph[op.inputs[1]]
    assert weights.data is not None
    data = np.array(weights.data)
    data.reshape(-1)[5] += 1
    changed = graph.evolve(tensors=[replace(weights, data=data)])
    save(changed, wrong)
    for path, expected in ((result, set[str]()), (wrong, {which})):
        report = check(source, path, per_op=True)
        assert {item.output for item in report.operators} >= {"a", "b"}
        assert {item.output for item in report.operators if item.verdict == "unexplained"} == expected


@pytest.mark.cross_section
@pytest.mark.parametrize(("off", "found"), [(0, False), (1, False), (3, True)])
@pytest.mark.parametrize("spread", [1.0, 40.0])
def test_a_joined_constant_has_the_values_that_the_source_s_operator_rounds_it_to(spread: float, off: int, found: bool) -> None:
    """With a quantization that is as coarse as this one, where a signal of its values against the difference says nothing, and on a fine
    one."""
    own, joint = Quantization.per_tensor(0.01, 3), Quantization.per_tensor(0.01 * spread, -5)
    data = np.array([[-90, -20, 4, 100]], np.int8)
    tensors = [Tensor("x", "int8", (1, 4), None, joint), Tensor("c", "int8", (1, 4), data, own), Tensor("y", "int8", (1, 8), None, joint)]
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op("Concat", ("x", "c"), ("y",), {"axis": 1}),), ("x",), ("y",))
    rounded = quantize(dequantize(data, own), joint, "int8")
    changed = replace(graph["c"], data=(rounded + np.int8(off)).astype(np.int8), quantization=joint)
    other = graph.evolve(tensors=[changed])
    assert bool(find_costly_constants(graph, other, {"c"})) is found


@pytest.mark.parametrize(("off", "found"), [([0, 0], False), ([0, 1], True), ([-1, 0], True)])
def test_a_bias_below_half_a_step_of_the_sums_is_zero(off: list[int], found: bool) -> None:
    """A folded BatchNormalization leaves biases of 1e-9, of which no signal is left; the second, 3.2 steps, is 3 of them."""
    step = Quantization.per_tensor(1e-4)
    shapes = {"x": (1, 2, 4, 4), "w": (2, 1, 1, 1), "y": (1, 2, 4, 4)}
    plain = {name: Tensor(name, "float32", shape, np.ones(shape, np.float32) if name == "w" else None) for name, shape in shapes.items()}
    for values in ([2e-9, -4e-5], [2e-9, 3.2e-4]):
        bias = Tensor("b", "float32", (2,), np.array(values, np.float32))
        graph = Graph("g", {**plain, "b": bias}, (Op("Conv", ("x", "w", "b"), ("y",), {"group": 2}),), ("x",), ("y",))
        rounded = np.rint(np.array(values) / 1e-4).astype(np.int32) + np.array(off, np.int32)
        other = graph.evolve(tensors=[Tensor("b", "int32", (2,), rounded, step)])
        assert bool(find_costly_constants(graph, other, {"b"})) is found


def one_conv(path: Path) -> Path:
    """A convolution of uint8 data whose weights are large next to its result's step, so that half a step of the data counts."""
    rng = np.random.default_rng(1)
    weights = rng.integers(-127, 128, (8, 3, 3, 3)).astype(np.int8)
    conv = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1, "data_format": "channels_first"}
    tensors = [
        Tensor("x", "uint8", (1, 3, 12, 12), None, Quantization.per_tensor(0.0078125, 128)),
        Tensor("w", "int8", weights.shape, weights, Quantization.per_tensor(0.006, 0)),
        Tensor("y", "uint8", (1, 8, 12, 12), None, Quantization.per_tensor(0.02, 40)),
    ]
    save(Graph("conv", {tensor.name: tensor for tensor in tensors}, (Op("Conv", ("x", "w"), ("y",), conv),), ("x",), ("y",)), path)
    return path


@pytest.mark.onnxruntime
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_data_that_are_rounded_onto_seven_bits_where_they_enter(suffix: str, tmp_path: Path) -> None:
    """The quantization of the graph's input stays, a Requantize after it is declared: what is summed are the rounded data."""
    source, result, wrong = one_conv(tmp_path / "m.onnx"), tmp_path / f"r.{suffix}", tmp_path / f"wrong.{suffix}"
    convert(source, result, passes=["reduced_range"], reduce="both")
    assert check(source, result, per_op=True).passed
    graph = load(result)
    op = next(op for op in graph.ops if op.kind == "Conv")
    weights = graph[op.inputs[1]]
    assert weights.data is not None
    data = np.array(weights.data)
    data[0, 0, 0, 0] += 2
    save(graph.evolve(tensors=[replace(weights, data=data)]), wrong)
    assert not check(source, wrong, per_op=True).passed


def test_data_that_a_coarse_kernel_rounds_where_they_enter(tmp_path: Path) -> None:
    """LiteRT's QUANTIZE multiplies by 8 fractional bits, and takes a share of the codes to the next one."""
    source, result, wrong = MOBILENET, tmp_path / "r.tflite", tmp_path / "wrong.tflite"
    convert(source, result, passes=["reduced_range"], reduce="activations")
    report = check(source, result, samples=1)
    first = next(op for op in report.operators if op.operator == "CONV_2D #0")
    assert report.passed and first.verdict == "requantized" and first.predicted_rate < 0.6
    graph = load(result)
    bias = graph[next(op.inputs[2] for op in graph.ops if op.kind == "Conv")]
    assert bias.data is not None
    save(graph.evolve(tensors=[replace(bias, data=bias.data + np.int32(2000))]), wrong)
    problems = check(source, wrong, samples=1).problems
    assert any("CONV_2D #0" in text for text in problems)


@pytest.mark.onnxruntime
def test_data_are_stored_in_another_type_before_they_enter(tmp_path: Path) -> None:
    """int8 inputs are uint8 in ONNX, moved to channels first, and then rounded to the declared quantization."""
    result = tmp_path / "r.onnx"
    convert(PERSON, result, passes=["symmetric_activations"])
    report = check(PERSON, result, samples=1)
    assert report.passed, report.problems
    assert next(op.verdict for op in report.operators if op.operator == "DEPTHWISE_CONV_2D #0") == "requantized"


def test_a_streaming_model_has_operators_without_results(tmp_path: Path) -> None:
    result = tmp_path / "r.tflite"
    convert(STREAMING, result, passes=["reduced_range"])
    report = check(STREAMING, result, samples=1)
    assert report.passed and any(op.verdict == "requantized" for op in report.operators), (report.problems, report.unjudged)


def test_values_beyond_the_limits_of_a_quantization_saturate_at_these() -> None:
    """At the end of 7 bits a result may be a step lower, however far the float value is beyond it."""
    quantization = replace(Quantization.per_tensor(0.1, 0), quant_min=-64, quant_max=63)
    tensors = [Tensor("x", "int8", (3,), None, quantization), Tensor("y", "int8", (3,), None, quantization)]
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op("Relu", ("x",), ("y",)),), ("x",), ("y",))
    exact, ideal = np.array([6.39, 6.39, 1.0]), np.array([63, 63, 10], np.int8)
    kernels = ("onnxruntime:optimized", "onnxruntime:optimized")
    found = classify(graph, graph.ops[0], ideal, np.array([62, 63, 10], np.int8), exact, kernels, 0.5)
    assert (found.verdict, found.largest) == ("approximate", 1)
    assert classify(graph, graph.ops[0], ideal, np.array([61, 63, 10], np.int8), exact, kernels, 0.5).unexplained == 1


def test_sums_of_sixteen_bits_lose_what_their_size_before_the_activation_loses() -> None:
    quantization = Quantization.per_tensor(6 / 65535, -32768)
    weights = Tensor("w", "int8", (1, 4), np.ones((1, 4), np.int8), Quantization.per_tensor(1.0, 0))
    tensors = [Tensor("x", "int16", (2, 4), None, quantization), weights, Tensor("y", "int16", (2, 1), None, quantization)]
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op("Gemm", ("x", "w"), ("y",)),), ("x",), ("y",))
    exact, summed = np.array([[0.47 * 6 / 65535], [6.0]]), np.array([[0.47 * 6 / 65535], [60.0]])
    pair = np.array([[-32768], [32767]], np.int16), np.array([[-32767], [32767]], np.int16)
    kernels = ("onnxruntime:optimized", "onnxruntime:optimized")
    assert classify(graph, graph.ops[0], *pair, exact, kernels).verdict == "unexplained"
    assert classify(graph, graph.ops[0], *pair, exact, kernels, 0.0, summed).verdict == "one rounding"


def test_a_clip_that_ends_a_step_beyond_the_old_range_is_as_declared(tmp_path: Path) -> None:
    """-0.3 is -4967.55 steps of the symmetric quantization, and the lowest value of the source's one is -4967.43."""
    x = Tensor("x", "uint16", (1, 64), None, Quantization.per_tensor(5.48703e-05, 29785))
    y = Tensor("y", "uint16", (1, 64), None, Quantization.per_tensor(3.45097e-05, 8693))
    ends = [Tensor("low", "float32", (), np.array(-0.3, np.float32))]
    ends += [Tensor("given", "float32", (1, 64)), Tensor("read", "float32", (1, 64))]
    ops = Op("Quantize", ("given",), ("x",)), Op("Clip", ("x", "low"), ("y",)), Op("Dequantize", ("y",), ("read",))
    save(Graph("clipped", {t.name: t for t in (x, y, *ends)}, ops, ("given",), ("read",)), tmp_path / "a.onnx")
    convert(tmp_path / "a.onnx", tmp_path / "b.tflite")
    report = check(tmp_path / "a.onnx", tmp_path / "b.tflite", per_op=True)
    assert report.passed, report.problems
    assert {item.verdict for item in report.operators} == {"requantized"}
