"""Sources that are easily judged wrongly: kernels that XNNPACK leaves to TFLite's own, unread scales, shapes that show no layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_nodes import model_of
from passes.graphs import constant, make, q
from strange_models import strange_model
from tflite_models import OpSpec, TensorSpec, model, run_litert, single_op

from qconvert import Op, Quantization, Tensor, check, convert, load, save
from qconvert.checking import per_operator
from qconvert.checking.file_in_runtime import Side
from qconvert.checking.findings import Finding, OutputComparison
from qconvert.checking.side_check import SideCheck
from qconvert.plugins import LoadedModel, ModelFile
from qconvert.runtimes.litert import LiteRTInside

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

_SIDE = 24


def _depthwise(ratio: float) -> bytes:
    """One scale along an axis, which XNNPACK does not take; results are input * weight * ratio steps."""
    shape = (1, _SIDE, _SIDE, 3)
    weights = np.array([[[[131, 132, 129]]]], np.uint8)
    inputs = [
        TensorSpec("x", shape, "uint8", 0.05, 131),
        TensorSpec("w", (1, 1, 1, 3), "uint8", 0.02, 130, axis=3, data=weights),
        TensorSpec("b", (3,), "int32", float(np.float32(0.05) * np.float32(0.02)), 0, data=np.array([1, -5, 3], np.int32)),
    ]
    options = {"padding": 1, "strideH": 1, "strideW": 1, "depthMultiplier": 1}
    return single_op("DEPTHWISE_CONV_2D", options, inputs, [TensorSpec("y", shape, "uint8", 0.05 * 0.02 / ratio, 131)])


@pytest.mark.cross_section
@pytest.mark.parametrize("ratio", [0.2499, 0.4999, 0.062])
def test_a_kernel_that_xnnpack_leaves_to_tflite_may_round_twice(ratio: float, tmp_path: Path) -> None:
    source, result = tmp_path / "source.tflite", tmp_path / "result.onnx"
    source.write_bytes(_depthwise(ratio))
    convert(source, result)
    report = check(source, result)
    assert report.passed, report.problems
    assert report.operators[0].verdict == "one rounding" and report.operators[0].equal < 0.99


def test_a_scale_that_no_kernel_reads_may_be_another(tmp_path: Path) -> None:
    """MAXIMUM takes integers of two scales for equal: its second input's is stated and not used."""
    a, b, y = (TensorSpec(name, (1, 8), "int8", scale, 3) for name, scale in (("a", 0.1), ("b", 0.05), ("y", 0.1)))
    source, result, back = tmp_path / "source.tflite", tmp_path / "result.onnx", tmp_path / "back.tflite"
    source.write_bytes(model([OpSpec("MAXIMUM", ["a", "b"], ["y"])], [a, b, y], ["a", "b"], ["y"]))
    convert(source, result)
    report = check(source, result)
    assert report.passed and all(item.equal == 1 for item in report.outputs), report.problems
    convert(source, back)
    assert check(source, back).passed
    graph = load(back)
    wider = Quantization.per_tensor(0.15, 3)
    stated = [replace(tensor, quantization=wider) for tensor in graph.tensors.values() if tensor.quantization == graph["b"].quantization]
    save(graph.evolve(tensors=stated), back, force=True)
    assert any("'b'" in text for text in check(source, back).problems), "a file that states scales has to state the source's"


@pytest.mark.parametrize("layout", ["", "nchw"])
def test_a_shape_that_shows_no_layout_is_fed_the_right_way_round(layout: str, tmp_path: Path) -> None:
    """(1, 3, 3, 3) is the same shape in both layouts."""
    rng = np.random.default_rng(0)
    x, y = TensorSpec("x", (1, 3, 3, 3), "int8", 0.05, 3), TensorSpec("y", (1, 3, 3, 4), "int8", 0.1, -7)
    w = TensorSpec("w", (4, 1, 1, 3), "int8", 0.02, 0, data=rng.integers(-90, 90, (4, 1, 1, 3)).astype(np.int8))
    b = TensorSpec("b", (4,), "int32", 0.05 * 0.02, 0, data=np.zeros(4, np.int32))
    source, result = tmp_path / "source.tflite", tmp_path / "result.onnx"
    source.write_bytes(single_op("CONV_2D", {"strideH": 1, "strideW": 1, "padding": 1}, [x, w, b], [y]))
    convert(source, result, **({"io_layout": layout} if layout else {}))
    report = check(source, result, per_op=True)
    assert report.passed and [item.equal for item in report.outputs] == [1], report.problems
    assert [op.verdict for op in report.operators] == ["equal"]


def test_real_slopes_beside_int16_data_stay_real(tmp_path: Path) -> None:
    """LiteRT has no PRELU of int16, so the operator runs in float, and nothing is gained by rounding its slopes to a quantization."""
    x, y = TensorSpec("x", (1, 4, 4, 3), "int16", 0.001, 0), TensorSpec("y", (1, 4, 4, 3), "int16", 0.001, 0)
    slopes = np.array([[[0.1, 0.2345678, -0.3]]], np.float32)
    tensors = [
        x,
        TensorSpec("r", x.shape, "float32"),
        TensorSpec("a", (1, 1, 3), "float32", data=slopes),
        TensorSpec("p", x.shape, "float32"),
        y,
    ]
    ops = [OpSpec("DEQUANTIZE", ["x"], ["r"]), OpSpec("PRELU", ["r", "a"], ["p"]), OpSpec("QUANTIZE", ["p"], ["y"])]
    source, there, back = (tmp_path / name for name in ("source.tflite", "there.onnx", "back.tflite"))
    source.write_bytes(model(ops, tensors, ["x"], ["y"]))
    convert(source, there)
    convert(there, back)
    (op,) = (op for op in load(back).ops if op.kind == "PRelu")
    np.testing.assert_array_equal(load(back)[op.inputs[1]].data.reshape(-1), slopes.reshape(-1))
    assert check(there, back).passed and check(source, back).passed


@pytest.mark.parametrize("wrong", [False, True])
def test_slopes_of_a_prelu_that_only_the_result_quantizes(wrong: bool, tmp_path: Path) -> None:
    """-62 quarters of the data's scale are 24.4984 steps of the result's, which LiteRT's PRELU rounds to 24.5 and then to 25."""
    scales = q(0.0033233838621526957), q(0.0021026898175477982, -78)
    tensors = [Tensor("x", "int8", (1, 2, 16, 16), None, scales[0]), Tensor("y", "int8", (1, 2, 16, 16), None, scales[1])]
    sides = [
        make([Op("PRelu", ("x", "a"), ("y",))], [*tensors, constant("a", np.full((2, 1, 1), slope, np.float32))], "x", "y")
        for slope in (0.25, 0.252)
    ]
    source, result, data = tmp_path / "source.onnx", tmp_path / "result.tflite", tmp_path / "data.npz"
    save(sides[0], source)
    codes = np.arange(-128, 128).astype(np.int8).reshape(1, 1, 16, 16)
    np.savez(data, x=np.concatenate([codes, codes], axis=1))
    convert(source, result)
    if wrong:
        save(sides[1], tmp_path / "other.onnx")
        convert(tmp_path / "other.onnx", result, force=True)
    report = check(source, result, data=[data], per_op=True)
    assert report.passed is not wrong, report.problems
    if not wrong:
        (found,) = [item for item in report.operators if "PRelu" in item.operator]
        assert (found.verdict, found.largest) == ("one rounding", 1)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_softmax_with_a_beta_passes_on_its_way_and_back(dtype: str, tmp_path: Path) -> None:
    """ONNX writes the beta as a product in front; on the way back the result is rounded at once to the quantization that it is stored
    on."""
    quantizations = [(None, None), (None, None)] if dtype == "float32" else [(0.1, 3), (1 / 256, -128)]
    x, y = (TensorSpec(name, (1, 8), dtype, *quantization) for name, quantization in zip("xy", quantizations, strict=True))
    source, result, back = tmp_path / "source.tflite", tmp_path / "result.onnx", tmp_path / "back.tflite"
    source.write_bytes(single_op("SOFTMAX", {"beta": 0.5}, [x], [y]))
    convert(source, result)
    convert(result, back)
    assert check(source, result).problems == ()
    assert check(result, back).problems == ()
    source.write_bytes(single_op("SOFTMAX", {"beta": 0.51}, [x], [y]))
    assert not check(source, result).passed


def test_a_tensor_named_as_a_part_leaves_the_whole_to_its_own_kernel(tmp_path: Path) -> None:
    """LOG_SOFTMAX is TFLite's own, the QUANTIZE after it XNNPACK's, whose multiplier has 8 bits."""
    x, part, whole = (TensorSpec(name, (1, 64), "int8", scale, zero) for name, scale, zero in
                      (("x", 0.0158, 4), ("y/kernel_scale", 0.0625, 127), ("y", 0.01734168268740177, 127)))  # fmt: skip
    source, result = tmp_path / "source.tflite", tmp_path / "result.onnx"
    ops = [OpSpec("LOG_SOFTMAX", ["x"], ["y/kernel_scale"]), OpSpec("QUANTIZE", ["y/kernel_scale"], ["y"])]
    source.write_bytes(model(ops, [x, part, whole], ["x"], ["y"]))
    convert(source, result, numerics="fast")
    report = check(source, result, samples=8, per_op=True)
    assert report.passed, report.problems
    assert any(op.verdict == "approximate" for op in report.operators if op.output == "y")


def _fully_connected_with_small_bias() -> bytes:
    """Data of 16 bits and a bias of 32 whose type the operator does not state: LiteRT's reference kernel reads 64 bits of it."""
    rng = np.random.default_rng(0)
    weights, bias = rng.integers(-127, 128, (8, 16)).astype(np.int8), rng.integers(-(2**18), 2**18, 8).astype(np.int32)
    inputs = [
        TensorSpec("x", (4, 16), "int16", 1e-3, 0),
        TensorSpec("w", (8, 16), "int8", 0.01, 0, data=weights),
        TensorSpec("b", (8,), "int32", float(np.float32(1e-3) * np.float32(0.01)), 0, data=bias),
    ]
    return single_op("FULLY_CONNECTED", {}, inputs, [TensorSpec("y", (4, 8), "int16", 0.01, 0)])


def test_what_the_sources_own_kernels_differ_by_is_no_fault_of_the_result(tmp_path: Path) -> None:
    source, result = tmp_path / "source.tflite", tmp_path / "result.onnx"
    source.write_bytes(_fully_connected_with_small_bias())
    convert(source, result)
    assert check(source, result).verdict == "passed"
    report = check(source, result, kernels="litert:reference")
    assert report.verdict == "inconclusive" and not report.problems
    assert [item.verdict for item in report.operators] == ["kernels differ"] and report.operators[0].largest > 1000
    model = onnx.load(result)
    for place in (model.graph.input[0], model.graph.output[0]):  # without names in common the outputs alone are compared
        for node in model.graph.node:
            node.input[:] = [f"{name}_" if name == place.name else name for name in node.input]
            node.output[:] = [f"{name}_" if name == place.name else name for name in node.output]
        place.name += "_"
    del model.metadata_props[:], model.graph.value_info[:]
    onnx.save(model, tmp_path / "renamed.onnx")
    report = check(source, tmp_path / "renamed.onnx", kernels="litert:reference")
    assert not any("differs by up to" in text for text in report.problems) and "own kernels differ by up to" in report.unjudged[0]
    model = onnx.load(result)
    weights = next(item for item in model.graph.initializer if item.name == "w")
    values = numpy_helper.to_array(weights).copy()
    values.reshape(-1)[5] += 3
    weights.CopyFrom(numpy_helper.from_array(values, "w"))
    onnx.save(model, result)
    assert check(source, result, kernels="litert:reference").verdict == "not equal"


@pytest.mark.parametrize(("kind", "around"), [("Sigmoid", -16.957895), ("Elu", 0.0), ("HardSwish", -3.0)])
def test_functions_whose_results_are_next_to_zero_are_off_by_last_bits_of_one(kind: str, around: float, tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "small"], ["m"]), helper.make_node("Add", ["m", "around"], ["a"])]
    numbers = [numpy_helper.from_array(np.float32(value), name) for name, value in (("small", 1e-5), ("around", around))]
    ends = [helper.make_tensor_value_info(name, 1, [1, 256]) for name in "xy"]
    graph = helper.make_graph([*nodes, helper.make_node(kind, ["a"], ["y"])], "g", ends[:1], ends[1:], numbers)
    source, result = tmp_path / "source.onnx", tmp_path / "result.tflite"
    onnx.save(model_of(graph), source)
    convert(source, result)
    assert check(source, result, per_op=True).verdict == "passed"


def test_a_function_that_rounds_and_is_read_twice_is_judged_from_its_own_result(tmp_path: Path) -> None:
    """LiteRT's SQRT cuts its results off, onnxruntime rounds them: what stores them in another type differs by as much."""
    half = TensorSpec("half", (), "int8", 0.0039, -128, data=np.int8(0))
    tensors = [TensorSpec("x", (1, 64), "uint8", 0.05, 0), TensorSpec("c", (1, 64), "int8", 0.05, -128), half]
    tensors += [TensorSpec("s", (1, 64), "int8", 0.015, -128), TensorSpec("u", (1, 64), "uint8", 0.015, 0)]
    tensors += [TensorSpec("g", (1, 64), "bool"), TensorSpec("m", (1, 64), "int8", 0.05, -128)]
    ops = [OpSpec("QUANTIZE", ["x"], ["c"]), OpSpec("SQRT", ["c"], ["s"]), OpSpec("QUANTIZE", ["s"], ["u"])]
    ops += [OpSpec("GREATER", ["s", "half"], ["g"]), OpSpec("MUL", ["s", "c"], ["m"], {})]
    source, result = tmp_path / "source.tflite", tmp_path / "result.onnx"
    source.write_bytes(model(ops, tensors, ["x"], ["u", "g", "m"]))
    convert(source, result)
    report = check(source, result, per_op=True)
    assert report.passed, report.problems


def test_an_output_that_an_optimizer_alone_makes_differ_is_held_to_no_limit(tmp_path: Path) -> None:
    """A float Gemm whose result onnxruntime's optimizer rounds to another step of a coarse quantization; without optimizations all is
    equal."""
    (tmp_path / "m.onnx").write_bytes(strange_model(Random(900_050), 2).SerializeToString())
    convert(tmp_path / "m.onnx", tmp_path / "r.onnx", target="ort-x86")
    report = check(tmp_path / "m.onnx", tmp_path / "r.onnx")
    assert any(item.sqnr_db is not None and item.sqnr_db < 30 for item in report.outputs)
    assert report.passed and all(op.equal == 1 for op in report.operators)


def test_operators_without_optimizations_are_those_of_the_result_opened_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs are named and laid out as the model takes them that the operators are compared in."""
    (tmp_path / "m.onnx").write_bytes(strange_model(Random(900_050), 2).SerializeToString())
    convert(tmp_path / "m.onnx", tmp_path / "r.onnx", target="ort-x86")
    compared, opened, open_side, compare_outputs = [], [], Side.open, SideCheck._compare_outputs

    def compare(source: Side, result: Side, feeds: object, model: LoadedModel, *rest: object) -> tuple[tuple[Finding, ...], list[str]]:
        compared.append((result.kernels, result.path, model))
        return (Finding("equal", "", 1.0, 0.0, 0.0, 0),), []

    def note(side: Side) -> LoadedModel:
        model = open_side(side)
        opened.append((side.kernels, side.path, model))
        return model

    def differ(self: SideCheck, *args: object) -> tuple[OutputComparison, ...]:
        return tuple(replace(item, largest=max(item.largest, 1.0)) for item in compare_outputs(self, *args))

    monkeypatch.setattr(per_operator, "check_operators", compare)
    monkeypatch.setattr(Side, "open", note)
    monkeypatch.setattr(SideCheck, "_compare_outputs", differ)
    check(tmp_path / "m.onnx", tmp_path / "r.onnx")
    assert {kernels for kernels, _, _ in compared} == {"optimized", "unoptimized"} and all(item in opened for item in compared)


@pytest.mark.parametrize(("kind", "wrong"), [("Min", False), ("Where", False), ("Min", True), ("Where", True)])
def test_a_constant_that_is_chosen_may_be_rounded_first(kind: str, wrong: bool, tmp_path: Path) -> None:
    """-0.3 is no value of the result's quantization, whose steps are 1/32; half a step more is another of its values."""
    numbers = {"s": np.float32(1 / 32), "z": np.int8(0), "c": np.float32(-0.3), "t": np.float32(0.1)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"])]
    nodes += [helper.make_node("Greater", ["d", "t"], ["b"]), helper.make_node("Where", ["b", "d", "c"], ["m"])] if kind == "Where" else [
        helper.make_node("Min", ["d", "c"], ["m"])
    ]  # fmt: skip
    nodes += [helper.make_node("QuantizeLinear", ["m", "s", "z"], ["r"]), helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"])]
    ends = [helper.make_tensor_value_info(name, 1, [1, 64]) for name in "xy"]
    source, result = tmp_path / "source.onnx", tmp_path / "result.tflite"
    for value in (-0.34 if wrong else -0.3, -0.3):
        numbers["c"] = np.float32(value)
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(item, name) for name, item in numbers.items()])
        onnx.save(model_of(graph), source)
        if not result.exists():
            convert(source, result, target="tflite")
    assert check(source, result).passed is not wrong


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("name", ["CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED"])
def test_an_int32_bias_beside_int16_data_is_stated(name: str, stated: bool, tmp_path: Path) -> None:
    """LiteRT's convolutions read 64 bits for each integer where the options do not say that the bias is int32, and go beyond the tensor:
    such a file is not run, and none is written."""
    rng, channels, steps = np.random.default_rng(0), 8, (1e-3, 0.01)
    shape = (8, channels) if name == "FULLY_CONNECTED" else (8, 3, 3, channels)
    sizes = {"CONV_2D": ((1, 8, 8, channels), (1, 6, 6, 8)), "TRANSPOSE_CONV": ((1, 6, 6, channels), (1, 8, 8, 8))}
    given, made = sizes.get(name, ((4, channels), (4, 8)))
    x, y = TensorSpec("x", given, "int16", steps[0], 0), TensorSpec("y", made, "int16", 0.01, 0)
    weights = TensorSpec("w", shape, "int8", steps[1], 0, data=rng.integers(-127, 128, shape).astype(np.int8))
    bias = TensorSpec("b", (8,), "int32", steps[0] * steps[1], 0, data=rng.integers(-(2**19), 2**19, 8).astype(np.int32))
    size = TensorSpec("s", (4,), "int32", data=np.array(made, np.int32))
    inputs = [size, weights, x, bias] if name == "TRANSPOSE_CONV" else [x, weights, bias]
    options = {} if name == "FULLY_CONNECTED" else {"padding": 1, "strideH": 1, "strideW": 1}
    source, result = tmp_path / "m.tflite", tmp_path / "again.tflite"
    source.write_bytes(single_op(name, {**options, "quantizedBiasType": 2 * stated}, inputs, [y]))
    convert(source, result)
    runs = stated or name == "FULLY_CONNECTED"
    assert check(source, result).verdict == ("passed" if runs else "inconclusive")
    values = rng.integers(-(2**15), 2**15, given).astype(np.int16)
    outputs = [run_litert(result.read_bytes(), [values], kernels)[0] for kernels in ("default", "reference")]
    assert np.abs(outputs[0].astype(np.int64) - outputs[1]).max() <= 1
    convert(source, tmp_path / "m.onnx")
    meant = check(result, tmp_path / "m.onnx", data=[])
    assert meant.passed, meant.problems


def _dynamic(rng: np.random.Generator) -> onnx.GraphProto:
    """A ConvInteger after a DynamicQuantizeLinear whose weights no int8 with zero point 0 holds: TFLite gets it in float."""
    weights = rng.integers(0, 256, (4, 3, 1, 1)).astype(np.uint8)
    weights[0, :2, 0, 0] = 0, 255
    numbers = {"w": weights, "wz": np.uint8(126), "ws": np.float32(0.005)}
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), helper.make_node("Mul", ["s", "ws"], ["m"])]
    nodes += [helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["i"]), helper.make_node("Cast", ["i"], ["f"], to=1)]
    ends = [helper.make_tensor_value_info(name, 1, [1, size, 5, 5]) for name, size in (("x", 3), ("y", 4))]
    named = [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    return helper.make_graph([*nodes, helper.make_node("Mul", ["f", "m"], ["y"])], "g", ends[:1], ends[1:], named)


def _of_16_bits(rng: np.random.Generator) -> onnx.GraphProto:
    """A Conv of int16 data, of whose multiplier LiteRT keeps 16 bits."""
    numbers = {"w": rng.integers(-127, 128, (4, 3, 1, 1)).astype(np.int8), "ws": np.float32(0.0062027), "wz": np.int8(0)}
    nodes = [helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["v"])]
    for name, given, scale in (("x", "x", 1.2804e-4), ("c", "c", 9.136419e-5)):
        numbers |= {f"{name}s": np.float32(scale), f"{name}z": np.int16(0)}
        nodes += [helper.make_node("QuantizeLinear", [given, f"{name}s", f"{name}z"], [f"{name}q"])]
        nodes += [helper.make_node("DequantizeLinear", [f"{name}q", f"{name}s", f"{name}z"], ["y" if name == "c" else "d"])]
        if name == "x":
            nodes += [helper.make_node("Conv", ["d", "v"], ["c"])]
    ends = [helper.make_tensor_value_info(name, 1, [1, size, 9, 9]) for name, size in (("x", 3), ("y", 4))]
    named = [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    return helper.make_graph(nodes, "g", ends[:1], ends[1:], named)


@pytest.mark.parametrize("make", [_dynamic, _of_16_bits])
def test_what_is_made_by_way_of_a_tflite_file_rounds_as_litert(
    make: Callable[[np.random.Generator], onnx.GraphProto], tmp_path: Path
) -> None:
    source, middle, result = tmp_path / "source.onnx", tmp_path / "middle.tflite", tmp_path / "result.onnx"
    onnx.save(model_of(make(np.random.default_rng(0)), 21), source)
    convert(source, middle)
    convert(middle, result)
    report = check(source, result)
    assert report.passed, report.problems
    assert any(op.equal < 0.99 for op in report.operators)
    changed = onnx.load(result)
    (weights,) = (item for item in changed.graph.initializer if item.data_type in (2, 3) and len(item.dims) == 4)
    values = numpy_helper.to_array(weights).copy()
    values.reshape(-1)[3] ^= 4
    weights.CopyFrom(numpy_helper.from_array(values, weights.name))
    onnx.save(changed, result)
    assert check(source, result).verdict == "not equal"


def test_tensors_that_xnnpack_folds_are_not_taken_for_the_zeros_that_it_returns(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    tensors = [
        TensorSpec("x", (1, 16), "float32"),
        TensorSpec("half", (10, 16), "float16", data=rng.normal(size=(10, 16)).astype(np.float16)),
        TensorSpec("w", (10, 16), "float32"),
        TensorSpec("y", (1, 10), "float32"),
    ]
    source = tmp_path / "source.tflite"
    source.write_bytes(model([OpSpec("DEQUANTIZE", ["half"], ["w"]), OpSpec("FULLY_CONNECTED", ["x", "w"], ["y"])], tensors, ["x"], ["y"]))
    feed = {"x": rng.normal(size=(1, 16)).astype(np.float32)}
    found = LiteRTInside(ModelFile(source, "default"), load(source)).values(feed)
    assert found.keys() == {"x", "y"} and found["y"].any()


def test_a_product_of_dynamic_range_may_compute_in_float_on_a_microcontroller(tmp_path: Path) -> None:
    """Its file says so, as an ONNX file does."""
    rng = np.random.default_rng(3)
    weights = rng.integers(-127, 128, (64, 64)).astype(np.int8)
    tensors = [
        TensorSpec("x", (1, 64), "float32"),
        TensorSpec("w", (64, 64), "int8", 0.01, 0, data=weights),
        TensorSpec("y", (1, 64), "float32"),
    ]
    source, result = tmp_path / "source.tflite", tmp_path / "result.tflite"
    source.write_bytes(model([OpSpec("FULLY_CONNECTED", ["x", "w"], ["y"])], tensors, ["x"], ["y"]))
    convert(source, result, target="tflite-micro")
    report = check(source, result, samples=1)
    assert report.passed and report.operators[-1].verdict == "dynamic range", report.problems


def test_kernels_that_give_another_shape_are_told(tmp_path: Path) -> None:
    """XNNPACK takes a Slice of no elements for all that is left, where TFLite's own kernels and onnxruntime give none."""
    given, result, ends = (
        Quantization.per_tensor(0.25, 127),
        Quantization.per_tensor(0.5, 127),
        {"s": (0, 0, 0), "e": (1, 2, 0), "a": (0, 1, 2), "t": (1, 1, 1)},
    )
    graph = make(
        [Op("Relu", ("x",), ("u",)), Op("Requantize", ("u",), ("v",)), Op("Slice", ("v", *ends), ("y",), source="STRIDED_SLICE")],
        [
            *(Tensor(name, "int8", (1, 2, 3), None, given) for name in "xu"),
            Tensor("v", "int8", (1, 2, 3), None, result),
            Tensor("y", "int8", (1, 2, 0), None, result),
            *(Tensor(name, "int64", (3,), np.array(numbers)) for name, numbers in ends.items()),
        ],
        "x",
        "y",
    )
    source, there = tmp_path / "source.tflite", tmp_path / "result.onnx"
    convert(graph, source)
    convert(source, there)
    report = check(source, there)
    assert report.verdict == "not equal"
    assert "output 'y' has the shape (1, 2, 0) instead of (1, 2, 3)" in report.problems
