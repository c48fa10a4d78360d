"""The passes that fit a graph to TFLite's quantization specification, each by itself, in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from passes.graphs import CONV, applied, assert_equal, constant, make, outputs, q, quantized_conv, random_integers, said
from refusals import refused

from qconvert import Graph, Op, Quantization, Tensor, load
from qconvert.conversion import normalize
from qconvert.errors import UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.tflite.writer import build
from qconvert.graph import integer_range, numpy_dtype
from qconvert.plugins import pass_named, target_named
from qconvert.rules.validation import validate
from qconvert.runtimes.litert import LiteRT

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
LAYOUT = {"data_format": "channels_first"}


def for_target(graph: Graph, name: str, target: str = "tflite", **options: Any) -> tuple[Graph, tuple[str, ...]]:
    changed, notes = pass_named(name).run(graph, target_named(target), **options)
    validate(changed)
    return changed, said(notes)


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


# widen_1d


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_one_dimension_becomes_two() -> None:
    rng = np.random.default_rng(0)
    window = {"strides": (2,), "pads": (1, 2), "dilations": (1,), **LAYOUT}
    pool = {"kernel_shape": (3,), "strides": (1,), "pads": (0, 0), **LAYOUT}
    ops = [Op("Conv", ("x", "w", "b"), ("c",), window), Op("Relu", ("c",), ("r",)), Op("MaxPool", ("r",), ("y",), pool)]
    weights, bias = (constant(name, rng.normal(size=shape).astype(np.float32)) for name, shape in (("w", (4, 3, 5)), ("b", (4,))))
    graph = make(ops, [Tensor("x", "float32", (2, 3, 17)), weights, bias], "x", "y")
    changed, notes = applied(graph, "widen_1d")
    assert notes == ("2 1-D operators have a second dimension of size 1",)
    assert kinds(changed) == ["Unsqueeze", "Conv", "Squeeze", "Relu", "Unsqueeze", "MaxPool", "Squeeze"]
    assert changed.ops[1]["pads"] == (0, 1, 0, 2) and changed.ops[1]["strides"] == (1, 2)
    assert_equal(graph, changed, {"x": rng.normal(size=(2, 3, 17)).astype(np.float32)})


@pytest.mark.onnxruntime
def test_neighbours_share_the_wide_form() -> None:
    pool = {"kernel_shape": (2,), "strides": (1,), "pads": (0, 0), **LAYOUT}
    ops = [Op("MaxPool", ("x",), ("m",), pool), Op("AveragePool", ("m",), ("y",), pool)]
    graph = make(ops, [Tensor("x", "float32", (1, 2, 9))], "x", "y")
    changed, _ = applied(graph, "widen_1d")
    assert kinds(changed) == ["Unsqueeze", "MaxPool", "AveragePool", "Squeeze"]
    assert_equal(graph, changed, {"x": np.random.default_rng(1).normal(size=(1, 2, 9)).astype(np.float32)})


# matmul_to_gemm


def test_neighbours_of_both_layouts_share_nothing() -> None:
    """Found by random graphs: a convolution of the other layout was given data with the new dimension at the wrong place."""
    window = {"strides": (1,), "pads": (0, 0), "dilations": (1,)}
    ops = [Op("Conv", ("x", "v"), ("c",), {**window, **LAYOUT}), Op("Conv", ("c", "w"), ("y",), {**window, "data_format": "channels_last"})]
    rng = np.random.default_rng(0)
    weights = [constant(name, rng.normal(size=shape).astype(np.float32)) for name, shape in (("v", (4, 3, 2)), ("w", (5, 6, 2)))]
    graph = make(ops, [Tensor("x", "float32", (2, 3, 7)), *weights], "x", "y")
    changed, _ = applied(graph, "widen_1d")
    x = rng.normal(size=(2, 3, 7)).astype(np.float32)
    assert np.array_equal(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"])


@pytest.mark.parametrize("shape", [(3, 6), (2, 3, 6)])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_a_product_with_its_bias(shape: tuple[int, ...], trans_b: int) -> None:
    rng = np.random.default_rng(2)
    weights = constant(
        "w", random_integers((4, 6) if trans_b else (6, 4), "int8"), Quantization.per_axis([0.01, 0.02, 0.03, 0.04], 1 - trans_b)
    )
    bias = constant("b", rng.normal(size=4).astype(np.float32))
    tensors = [Tensor("x", "int8", shape, None, q(0.1, 5)), weights, bias, Tensor("y", "int8", None, None, q(0.9, -3))]
    graph = make([Op("MatMul", ("x", "w"), ("p",), {"trans_b": trans_b}), Op("Add", ("p", "b"), ("y",))], tensors, "x", "y")
    changed, notes = applied(graph, "matmul_to_gemm")
    assert notes == ("1 MatMul with constant weights are Gemm, 1 of them with the bias added after them",)
    gemm = next(op for op in changed.ops if op.kind == "Gemm")
    found = changed[gemm.inputs[1]]
    assert found.shape == (4, 6) and found.quantization is not None and found.quantization.axis == 0
    assert gemm.inputs[1] == "w" and gemm.inputs[2] == "b"
    x = random_integers(shape, "int8")
    assert np.array_equal(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"])


def test_a_product_that_others_read_keeps_its_own_quantization() -> None:
    tensors = [
        Tensor("x", "int8", (3, 6), None, q(0.1)),
        constant("w", random_integers((6, 4), "int8"), q(0.02)),
        constant("b", np.ones(4, np.float32)),
    ]
    ops = [Op("MatMul", ("x", "w"), ("p",)), Op("Add", ("p", "b"), ("y",)), Op("Relu", ("p",), ("z",))]
    graph = make(ops, tensors, "x", "y z")
    changed, _ = applied(graph, "matmul_to_gemm")
    assert kinds(changed) == ["Gemm", "Add", "Relu"]
    batched = make([Op("MatMul", ("x", "v"), ("y",))], [Tensor("x", "float32", (2, 3, 6)), Tensor("v", "float32", (2, 6, 4))], "x v", "y")
    assert applied(batched, "matmul_to_gemm")[0] is batched


def test_a_product_of_plain_integers_stays() -> None:
    tensors = [Tensor("x", "int32", (2, 4)), constant("w", np.ones((4, 3), np.int32)), Tensor("y", "int32", None)]
    graph = make([Op("MatMul", ("x", "w"), ("y",))], tensors, "x", "y")
    assert applied(graph, "matmul_to_gemm")[0] is graph


def test_a_product_of_no_rows_stays() -> None:
    tensors = [Tensor("x", "float32", (6, 0, 4)), constant("w", np.ones((4, 3), np.float32))]
    graph = make([Op("MatMul", ("x", "w"), ("y",))], tensors, "x", "y")
    assert applied(graph, "matmul_to_gemm")[0] is graph


@pytest.mark.parametrize("trans_b", [0, 1])
def test_rows_are_as_long_as_the_weights_say(trans_b: int) -> None:
    """The data's last size is known only at run time; the one in the middle, 6, is another."""
    weights = np.arange(12, dtype=np.float32).reshape((3, 4) if trans_b else (4, 3))
    tensors = [Tensor("x", "float32", (1, 6, "depth")), constant("w", weights)]
    graph = make([Op("MatMul", ("x", "w"), ("y",), {"trans_b": trans_b})], tensors, "x", "y")
    changed, _ = applied(graph, "matmul_to_gemm")
    assert kinds(changed) == ["Reshape", "Gemm", "Reshape"]
    x = np.arange(24, dtype=np.float32).reshape(1, 6, 4)
    assert np.array_equal(evaluate(changed, {"x": x})["y"], x @ (weights.T if trans_b else weights))


# fuse_functions


@pytest.mark.onnxruntime
@pytest.mark.parametrize("first", [True, False])
def test_a_gelu_in_parts(first: bool) -> None:
    numbers = [constant(name, np.float32(value)) for name, value in (("root", 2**0.5), ("one", 1), ("half", 0.5))]
    ops = [Op("Div", ("x", "root"), ("d",)), Op("Erf", ("d",), ("e",)), Op("Add", ("e", "one"), ("g",))]
    ops += (
        [Op("Mul", ("x", "half"), ("h",)), Op("Mul", ("h", "g"), ("y",))]
        if first
        else [Op("Mul", ("x", "g"), ("p",)), Op("Mul", ("p", "half"), ("y",))]
    )
    graph = make(ops, [Tensor("x", "float32", (3, 40)), *numbers], "x", "y")
    changed, notes = applied(graph, "fuse_functions")
    assert kinds(changed) == ["Gelu"] and changed.ops[0].inputs == ("x",) and len(notes) == 1
    x = np.random.default_rng(5).normal(size=(3, 40)).astype(np.float32) * 3
    assert np.allclose(outputs(graph, {"x": x})[0], outputs(changed, {"x": x})[0], atol=1e-6)


def test_other_products_with_erf_stay() -> None:
    numbers = [constant(name, np.float32(value)) for name, value in (("root", 1.5), ("one", 1), ("half", 0.5))]
    ops = [Op("Div", ("x", "root"), ("d",)), Op("Erf", ("d",), ("e",)), Op("Add", ("e", "one"), ("g",)), Op("Mul", ("x", "half"), ("h",))]
    graph = make([*ops, Op("Mul", ("h", "g"), ("y",))], [Tensor("x", "float32", (3, 4)), *numbers], "x", "y")
    assert applied(graph, "fuse_functions")[0] is graph


# quantize_operands


@pytest.mark.onnxruntime
@pytest.mark.parametrize("kind", ["Concat", "Max", "Min"])
def test_constants_that_reach_the_result_are_rounded_to_its_quantization_alone(kind: str) -> None:
    """A class token, whose own quantization would round it once more."""
    values = np.random.default_rng(2).normal(size=(1, 40)).astype(np.float32)
    x, y = Tensor("x", "int8", (1, 40), None, q(0.02, 3)), Tensor("y", "int8", None, None, q(0.037, -11))
    attributes = {"axis": 1} if kind == "Concat" else {}
    graph = make([Op(kind, ("x", "c"), ("y",), attributes)], [x, constant("c", values), y], "x", "y")
    changed, notes = applied(graph, "quantize_operands")
    assert notes == ("1 float operand of quantized operators is quantized (exact)",)
    stored = changed[changed.ops[0].inputs[1]]
    assert stored.shares_quantization(graph["y"])
    assert_equal(graph, changed, {"x": random_integers((1, 40), "int8")})


@pytest.mark.parametrize("divisor", [0.0, 1e-42])
def test_a_division_by_a_number_without_a_reciprocal_stays(divisor: float) -> None:
    tensors = [Tensor("x", "int8", (1, 4), None, q(0.1, 5)), Tensor("y", "int8", None, None, q(0.2))]
    graph = make([Op("Div", ("x", "d"), ("y",))], [*tensors, constant("d", np.array([divisor, 1, 2, 3], np.float32))], "x", "y")
    changed, notes = applied(graph, "quantize_operands")
    assert kinds(changed) == ["Div"] and not notes


def test_a_single_value_is_exact_and_a_list_is_reported() -> None:
    tensors = [
        Tensor("x", "int8", (1, 4), None, q(0.1, 5)),
        Tensor("y", "int8", None, None, q(0.2)),
        Tensor("z", "int8", None, None, q(0.3)),
    ]
    tensors += [constant("c", np.float32(0.37)), constant("d", np.array([1.0, 2.0, 4.0, 8.0], np.float32))]
    graph = make([Op("Mul", ("x", "c"), ("y",)), Op("Div", ("y", "d"), ("z",))], tensors, "x", "z")
    changed, notes = applied(graph, "quantize_operands")
    assert kinds(changed) == ["Mul", "Mul"]
    single, several = (changed[op.inputs[1]] for op in changed.ops)
    assert single.quantization is not None and single.data is not None and several.quantization is not None and several.data is not None
    assert float(single.data * single.quantization.scale[0]) == np.float32(0.37)
    assert several.data.tolist() == [127, 64, 32, 16]
    assert notes[0].startswith("2 float operands of quantized operators are quantized, SQNR 48.1 dB, by at most 0.5 LSB ('d')")
    x = random_integers((1, 4), "int8")
    assert np.abs(evaluate(graph, {"x": x})["z"].astype(int) - evaluate(changed, {"x": x})["z"]).max() <= 1


@pytest.mark.litert
def test_one_slope_of_a_prelu_is_an_integer_that_its_kernel_rounds_once() -> None:
    """With the slope as 1 * 0.25 LiteRT is another integer off for 33 of these codes."""
    tensors = [Tensor("x", "int8", (1, 256), None, q(0.0199164, 3)), Tensor("y", "int8", None, None, q(0.0122325, -75))]
    graph = make([Op("PRelu", ("x", "a"), ("y",))], [*tensors, constant("a", np.full(1, 0.25, np.float32))], "x", "y")
    codes = np.arange(-128, 128).astype(np.int8)[None]
    (found,) = LiteRT(build(normalize(graph, target_named("tflite"))[0], {})).run({"x": codes}).values()
    np.testing.assert_array_equal(found, evaluate(graph, {"x": codes})["y"])


@pytest.mark.litert
def test_a_constant_factor_of_a_batched_product_is_as_wide_as_the_data() -> None:
    """BATCH_MATMUL takes operands of one type; the keys of relative positions are weights of 8 bits next to activations of 16."""
    data = np.random.default_rng(3).integers(-127, 128, (2, 8, 4)).astype(np.int8)
    x, y = Tensor("x", "int16", (2, 5, 8), None, q(0.001)), Tensor("y", "int16", None, None, q(0.004))
    factor = Tensor("w", "int8", data.shape, data, q(0.01, 2))
    graph = normalize(make([Op("MatMul", ("x", "w"), ("y",))], [x, factor, y], "x", "y"), target_named("tflite"))[0]
    (product,) = graph.of_kind("MatMul")
    assert [graph[name].dtype for name in product.names] == ["int16"] * 3
    assert np.array_equal(graph[product.inputs[1]].data, data.astype(np.int16) - 2)
    codes = random_integers((2, 5, 8), "int16") // 16
    (found,) = LiteRT(build(graph, {})).run({"x": codes}).values()
    assert np.abs(found.astype(int) - evaluate(graph, {"x": codes})["y"]).max() <= 1


@pytest.mark.litert
@pytest.mark.parametrize("kind", ["MatMul", "Add"])
def test_activations_of_8_bits_next_to_16_become_as_wide(kind: str) -> None:
    """Mixed precision of ONNX, which LiteRT's kernels do not take."""
    x, w = Tensor("x", "int16", (2, 4, 4), None, q(0.001)), Tensor("w", "int8", (2, 4, 4), None, q(0.02, 5))
    y = Tensor("y", "int16", None, None, q(0.004))
    graph = normalize(make([Op(kind, ("x", "w"), ("y",))], [x, w, y], "x w", "y"), target_named("tflite"))[0]
    assert kinds(graph) == ["Requantize", kind]
    feeds = {"x": random_integers((2, 4, 4), "int16") // 16, "w": random_integers((2, 4, 4), "int8")}
    (found,) = LiteRT(build(graph, {})).run(feeds).values()
    assert np.abs(found.astype(int) - evaluate(graph, feeds)["y"]).max() <= 1


def test_real_results_and_real_data_stay() -> None:
    tensors = [Tensor("x", "int8", (1, 4), None, q(0.1)), constant("c", np.float32(2)), Tensor("r", "float32", (1, 4))]
    graph = make([Op("Mul", ("x", "c"), ("y",)), Op("Add", ("y", "r"), ("z",))], tensors, "x r", "z")
    assert applied(graph, "quantize_operands")[0] is graph


# isolate_float


def softplus() -> Graph:
    tensors = [
        Tensor("x", "int8", (1, 50), None, q(0.1, 5)),
        Tensor("y", "int8", None, None, q(0.2)),
        Tensor("z", "int8", None, None, q(0.3)),
    ]
    return make([Op("Softplus", ("x",), ("y",)), Op("Add", ("y", "y"), ("z",))], tensors, "x", "z")


def test_a_kernel_that_is_less_exact_is_not_said_to_be_missing() -> None:
    tensors = [Tensor("x", "int8", (1, 8), None, q(0.1)), Tensor("y", "int8", (1, 8), None, q(0.2)), Tensor("z", "bool", (1, 8))]
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op("Greater", ("x", "y"), ("z",)),), ("x", "y"), ("z",))
    for name in ("tflite", "tflite-micro"):
        notes = said(pass_named("isolate_float").run(graph, target_named(name))[1])
        assert notes == (f"in float32, between Dequantize and Quantize: 1 Greater: {name}'s integer kernel is less exact",)


@pytest.mark.onnxruntime
def test_operators_without_a_kernel_run_on_real_values() -> None:
    graph = softplus()
    changed, notes = for_target(graph, "isolate_float")
    assert kinds(changed) == ["Dequantize", "Softplus", "Quantize", "Add"]
    assert notes == ("in float32, between Dequantize and Quantize: 1 Softplus: tflite has no integer kernel",)
    assert_equal(graph, changed, {"x": random_integers((1, 50), "int8")})


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("kind", "dtype", "scale", "result"),
    [("Add", "int8", 1e36, 1e36), ("Add", "int16", 30.0, 1e-4), ("Sub", "uint8", 3e4, 1e-3), ("Mul", "int8", 400.0, 1e-3)],
)
def test_factors_that_fixed_point_arithmetic_does_not_hold_are_computed_as_real_numbers(
    kind: str, dtype: str, scale: float, result: float
) -> None:
    """As quantizers leave them where a mask of -3.4e38 is added to scores: LiteRT would end its process, or wrap around."""
    tensors = [
        Tensor("x", dtype, (1, 50), None, q(0.1)),
        Tensor("m", dtype, (1, 50), None, q(scale)),
        Tensor("y", dtype, None, None, q(result)),
    ]
    graph = make([Op(kind, ("x", "m"), ("y",))], tensors, "x m", "y")
    changed, notes = for_target(graph, "isolate_float")
    assert kinds(changed) == ["Dequantize", "Dequantize", kind, "Quantize"]
    assert "the integer kernel is wrong" in notes[0]
    assert_equal(graph, changed, {name: random_integers((1, 50), dtype, seed) for seed, name in enumerate("xm")})
    tensors[1:] = [Tensor("m", dtype, (1, 50), None, q(0.2)), Tensor("y", dtype, None, None, q(0.3))]
    usual = make([Op(kind, ("x", "m"), ("y",))], tensors, "x m", "y")
    assert for_target(usual, "isolate_float")[0] is usual


@pytest.mark.formats
def test_real_values_are_not_called_exact() -> None:
    """With 16 bits, steps are near enough to float32's that results differ by one; the note does not declare otherwise."""
    graph = load(FIXTURES / "tflm_seanet_conv_int16x8.tflite")
    changed, notes = pass_named("isolate_float").run(graph, target_named("ort-x86"))
    assert "Dequantize" in kinds(changed) and not any("exact" in note for note in said(notes))
    assert not pass_named("isolate_float").exact
    feed = {name: np.random.default_rng(0).integers(-3000, 3000, graph[name].shape).astype(np.int16) for name in graph.inputs}
    (before,), (after,) = (list(evaluate(item, feed).values()) for item in (graph, changed))
    assert np.abs(before.astype(int) - after).max() <= 1


def test_sizes_of_quantized_data_are_asked_for_as_they_are() -> None:
    graph = make([Op("Shape", ("x",), ("s",))], [Tensor("x", "int8", ("n", 3), None, q(0.1)), Tensor("s", "int64", (2,))], "x", "s")
    assert for_target(graph, "isolate_float")[0] is graph
    assert target_named("tflite").judge(graph, graph.ops[0]).runs == "integers"


def test_partial_forbid_lists_them() -> None:
    with refused(UnsupportedError, "float-operators", holds=("1 Softplus", "--no-float")):
        for_target(softplus(), "isolate_float", no_float=True)


@pytest.mark.parametrize("kind", ["Rsqrt", "SquaredDifference", "Gelu", "Div", "Softplus"])
def test_partial_forbid_lists_what_was_real_in_the_source_too(kind: str) -> None:
    """Kinds with an integer kernel among them: between Dequantize and Quantize they run in float all the same."""
    names = ("a", "b")[: 2 if kind in ("SquaredDifference", "Div") else 1]
    ops = [Op("Dequantize", (name,), (f"{name}r",)) for name in names]
    ops += [Op(kind, tuple(f"{name}r" for name in names), ("yr",)), Op("Quantize", ("yr",), ("y",))]
    tensors = [Tensor(name, "int8", (2, 3), None, q(0.1)) for name in names]
    graph = make(ops, [*tensors, Tensor("y", "int8", None, None, q(0.1))], " ".join(names), "y")
    with refused(UnsupportedError, "float-operators", holds=(f"1 {kind}",)):
        for_target(graph, "isolate_float", no_float=True)


@pytest.mark.onnxruntime
def test_a_bias_beside_real_results_becomes_real_and_weights_stay_integers() -> None:
    graph = quantized_conv()
    graph = graph.evolve(tensors=[Tensor("y", "float32", graph["y"].shape)])
    changed, notes = for_target(graph, "isolate_float")
    assert kinds(changed) == ["Dequantize", "Dequantize", "Conv"]
    weights, bias = (changed[name] for name in (changed.ops[1].inputs[0], changed.ops[-1].inputs[2]))
    assert weights == graph[graph.ops[0].inputs[1]] and changed.ops[-1].inputs[1] == changed.ops[1].outputs[0]
    assert bias.dtype == "float32" and bias.is_constant
    assert "1 Conv: their results have no scale" in notes[0]
    assert notes[1] == "1 weight stays integers, before a Dequantize, for operators in float"
    x = random_integers((1, 3, 5, 5), "int8")
    assert np.allclose(outputs(graph, {"x": x})[0], outputs(changed, {"x": x})[0], atol=1e-5)


@pytest.mark.parametrize(("dtype", "zero"), [("int8", 0), ("uint8", 131), ("int4", 2), ("uint4", 7)])
def test_weights_alone_quantized_stay_integers_of_8_bits(dtype: str, zero: int) -> None:
    quantization = Quantization(np.array([0.01, 0.02, 0.03, 0.04], np.float32), np.full(4, zero, np.int64), 0)
    low, high = integer_range(dtype)
    stored = np.random.default_rng(5).integers(low, high + 1, (4, 6)).astype(numpy_dtype(dtype))
    weights = Tensor("w", dtype, (4, 6), stored, quantization)
    ops = [Op("Dequantize", ("w",), ("r",)), Op("Gemm", ("x", "r"), ("y",))]
    graph = make(ops, [Tensor("x", "float32", (2, 6)), weights], "x", "y")
    changed, notes = for_target(graph, "isolate_float")
    assert kinds(changed) == ["Dequantize", "Gemm"] and not notes
    assert changed[changed.ops[0].inputs[0]].dtype == "int8"
    feed = {"x": np.random.default_rng(6).normal(size=(2, 6)).astype(np.float32)}
    for before, after in zip(evaluate(graph, feed).values(), evaluate(changed, feed).values(), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.onnxruntime
def test_microcontrollers_get_real_weights() -> None:
    """Their DEQUANTIZE would run each time."""
    ops = [Op("Dequantize", ("w",), ("r",)), Op("Gemm", ("x", "r"), ("y",))]
    weights = constant("w", random_integers((4, 6), "int8"), Quantization.per_axis([0.01, 0.02, 0.03, 0.04], 0))
    graph = make(ops, [Tensor("x", "float32", (2, 6)), weights], "x", "y")
    changed, notes = for_target(graph, "isolate_float", "tflite-micro")
    assert kinds(changed) == ["Gemm"] and notes == ("1 quantized constant is float32, for operators in float",)
    assert_equal(graph, changed, {"x": np.random.default_rng(6).normal(size=(2, 6)).astype(np.float32)})


# match_scales


@pytest.mark.onnxruntime
def test_operands_that_are_joined_get_the_result_s_scale() -> None:
    tensors = [Tensor(name, "int8", (1, 40), None, q(scale, zero)) for name, scale, zero in (("a", 0.1, 3), ("b", 0.2, -4))]
    graph = make([Op("Concat", ("a", "b"), ("y",), {"axis": 1})], [*tensors, Tensor("y", "int8", None, None, q(0.2, -4))], "a b", "y")
    changed, notes = for_target(graph, "match_scales")
    assert kinds(changed) == ["Requantize", "Concat"] and changed.ops[1].inputs[1] == "b"
    assert notes == ("1 Requantize before operators whose operands must share a scale (exact)",)
    assert_equal(graph, changed, {name: random_integers((1, 40), "int8", seed) for seed, name in enumerate("ab")})


def test_a_softmax_has_its_kernel_s_scale() -> None:
    tensors = [Tensor("x", "int8", (1, 10), None, q(0.1)), Tensor("y", "int8", None, None, q(0.005, -120))]
    graph = make([Op("Softmax", ("x",), ("y",))], tensors, "x", "y")
    changed, notes = for_target(graph, "match_scales")
    inner = changed[changed.ops[0].outputs[0]].quantization
    assert kinds(changed) == ["Softmax", "Requantize"] and inner is not None
    assert (inner.scale.tolist(), inner.zero_point.tolist()) == ([1 / 256], [-128])
    assert "a second rounding; " in notes[0]
    x = random_integers((1, 10), "int8")
    assert np.abs(evaluate(graph, {"x": x})["y"].astype(int) - evaluate(changed, {"x": x})["y"]).max() <= 1
    fixed = make([Op("Softmax", ("x",), ("y",))], [tensors[0], Tensor("y", "int8", None, None, q(1 / 256, -128))], "x", "y")
    assert for_target(fixed, "match_scales")[0] is fixed


# integer_io


@pytest.mark.onnxruntime
def test_inputs_and_outputs_become_integers() -> None:
    tensors = [Tensor("x", "float32", (1, 4)), Tensor("xq", "int8", (1, 4), None, q(0.1, 5)), Tensor("yq", "int8", (1, 4), None, q(0.2))]
    ops = [Op("Quantize", ("x",), ("xq",)), Op("Add", ("xq", "xq"), ("yq",)), Op("Dequantize", ("yq",), ("y",))]
    graph = make(ops, tensors, "x", "y")
    assert applied(graph, "integer_io")[0] is graph
    changed, notes = applied(graph, "integer_io", io="integer")
    assert kinds(changed) == ["Add"] and notes == ("2 tensors among inputs and outputs hold integers",)
    assert changed["x"].dtype == changed["y"].dtype == "int8" and changed["x"].quantization == graph["xq"].quantization
    assert outputs(changed, {"x": np.array([[1, 2, 3, 4]], np.int8)})[0].tolist() == [[-4, -3, -2, -1]]


def test_inputs_that_others_read_stay_real() -> None:
    tensors = [Tensor("x", "float32", (1, 4)), *(Tensor(name, "int8", (1, 4), None, q(0.1, 5)) for name in ("xq", "z"))]
    ops = [Op("Quantize", ("x",), ("xq",)), Op("Relu", ("x",), ("y",)), Op("Identity", ("xq",), ("z",))]
    graph = make(ops, tensors, "x", "y z")
    assert applied(graph, "integer_io", io="integer")[0] is graph


# merge_reshapes


@pytest.mark.onnxruntime
def test_chains_become_one_reshape_or_nothing() -> None:
    sizes = [
        constant("s", np.array([2, 12], np.int64)),
        constant("t", np.array([0], np.int64)),
        constant("u", np.array([2, 3, 4], np.int64)),
    ]
    ops = [Op("Reshape", ("x", "s"), ("a",)), Op("Unsqueeze", ("a", "t"), ("b",)), Op("Relu", ("b",), ("y",))]
    ops += [Op("Reshape", ("a", "u"), ("c",)), Op("Abs", ("c",), ("z",))]
    graph = make(ops, [Tensor("x", "float32", (2, 3, 4)), *sizes], "x", "y z")
    changed, notes = applied(graph, "merge_reshapes")
    assert kinds(changed) == ["Reshape", "Unsqueeze", "Relu", "Abs"] and changed.ops[-1].inputs == ("x",)
    assert notes == ("1 Reshape, Squeeze, Unsqueeze and Identity are merged with others or removed",)
    assert_equal(graph, changed, {"x": np.random.default_rng(3).normal(size=(2, 3, 4)).astype(np.float32)})


def test_the_layouts_of_a_trivial_shape_cancel() -> None:
    """A Reshape to channels first of one channel, as a conversion to ONNX puts it, is gone when the layout goes back."""
    weights = constant("w", np.random.default_rng(4).normal(size=(2, 1, 3, 3)).astype(np.float32))
    sizes = constant("s", np.array([1, 1, 6, 5], np.int64))
    ops = [Op("Reshape", ("x", "s"), ("n",)), Op("Conv", ("n", "w"), ("y",), CONV)]
    graph = make(ops, [Tensor("x", "float32", (1, 6, 5, 1)), weights, sizes], "x", "y")
    changed, _ = for_target(graph, "assign_layout")
    assert kinds(changed) == ["Conv", "Transpose"]


# kinds that are exact in float


def curved(kind: str, scale: float, zero_point: int) -> Graph:
    tensors = [Tensor("x", "int8", (4, 64), None, q(0.06, 5)), Tensor("y", "int8", None, None, q(scale, zero_point))]
    return make([Op(kind, ("x",), ("y",))], tensors, "x", "y")


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("kind", "fixed"), [("Sigmoid", (1 / 256, -128)), ("Tanh", (1 / 128, 0)), ("Softmax", (1 / 256, -128)), ("LogSoftmax", (16 / 256, 127))]
)
def test_a_kernel_with_a_fixed_quantization_is_not_rounded_again(kind: str, fixed: tuple[float, int]) -> None:
    """On its kernel's own quantization the operator stays; on another it is exact in float alone."""
    other = curved(kind, fixed[0] * 0.93, fixed[1])
    changed, notes = for_target(other, "isolate_float")
    assert kinds(changed) == ["Dequantize", kind, "Quantize"] and f"1 {kind}: " in notes[0]
    assert_equal(other, changed, {"x": random_integers((4, 64), "int8")})
    for graph, target, options in (
        (curved(kind, *fixed), "tflite", {}), (other, "tflite", {"numerics": "fast"}), (other, "tflite", {"no_float": True}),
        (other, "tflite-micro", {}),
    ):  # fmt: skip
        assert for_target(graph, "isolate_float", target, **options)[0] is graph


@pytest.mark.onnxruntime
def test_a_mask_beyond_float32_stays_finite() -> None:
    """As quantizers leave the mask -3.4e38: -127 steps are beyond float32 by its last bit, and infinity would be -128."""
    mask, scale = q(2.6793887e36), 0.00039
    tensors = [Tensor("x", "int8", (1, 4), None, q(scale)), Tensor("m", "int8", (1, 4), None, mask), Tensor("y", "int8", None, None, mask)]
    graph = make([Op("Add", ("x", "m"), ("y",))], tensors, "x m", "y")
    changed, _ = for_target(graph, "isolate_float")
    assert kinds(changed) == ["Dequantize", "Dequantize", "Clip", "Add", "Quantize"]
    feed = {"x": random_integers((1, 4), "int8"), "m": np.array([[-127, 0, -1, 127]], np.int8)}
    assert outputs(changed, feed)[0].tolist() == [[-127, 0, -1, 127]]


# compute_constants


def relative_positions(quantized: bool) -> Graph:
    """Data to which what a small network makes of constants is added, as in Swin v2."""
    rng = np.random.default_rng(4)
    quantizations = {"p": q(0.02, 3), "w": q(0.01), "m": q(0.03, -5), "s": q(0.0037, -128), "x": q(0.05), "y": q(0.06)} if quantized else {}
    dtype = "int8" if quantized else "float32"

    def held(name: str, *shape: int) -> Tensor:
        data = rng.integers(-90, 90, shape).astype(np.int8) if quantized else rng.normal(size=shape).astype(np.float32)
        return constant(name, data, quantizations.get(name))

    tensors = [held("p", 6, 8), held("w", 8, 4), *(Tensor(name, dtype, None, None, quantizations.get(name)) for name in "msy")]
    tensors.append(Tensor("x", dtype, (6, 4), None, quantizations.get("x")))
    return make([Op("MatMul", ("p", "w"), ("m",)), Op("Sigmoid", ("m",), ("s",)), Op("Add", ("x", "s"), ("y",))], tensors, "x", "y")


@pytest.mark.parametrize("quantized", [False, True])
def test_what_constants_alone_say_is_a_constant(quantized: bool) -> None:
    graph = relative_positions(quantized)
    changed, notes = for_target(graph, "compute_constants")
    assert kinds(changed) == ["Add"] and changed["s"].is_constant and changed["s"].quantization == graph["s"].quantization
    assert notes == ("1 tensor depends on constants alone: computed, each operator rounded once",)
    x = random_integers((6, 4), "int8") if quantized else np.ones((6, 4), np.float32)
    assert np.array_equal(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"])


def test_a_large_constant_made_of_a_few_numbers_is_a_constant() -> None:
    """The kernel of a resampler, 300 KB of a few hundred numbers."""
    column, row = (
        constant(name, np.linspace(0, 1, 300, dtype=np.float32).reshape(shape)) for name, shape in (("c", (300, 1)), ("r", (1, 300)))
    )
    ops = [Op("Mul", ("c", "r"), ("m",)), Op("Sin", ("m",), ("k",)), Op("Add", ("x", "k"), ("y",))]
    changed, _ = for_target(make(ops, [column, row, Tensor("x", "float32", (300, 300))], "x", "y"), "compute_constants")
    assert kinds(changed) == ["Add"]


def test_weights_that_are_unpacked_and_results_that_are_outputs_stay() -> None:
    graph = relative_positions(True)
    shown = graph.evolve(outputs=("y", "s"))
    assert for_target(shown, "compute_constants")[0] is shown
    weights = constant("w", random_integers((4, 6), "int8"), q(0.01))
    ops = [Op("Dequantize", ("w",), ("r",)), Op("Transpose", ("r",), ("t",), {"perm": (1, 0)}), Op("MatMul", ("x", "t"), ("y",))]
    packed = make(ops, [Tensor("x", "float32", (2, 6)), weights], "x", "y")
    assert for_target(packed, "compute_constants")[0] is packed
