"""symmetric_activations, and operands that meet with one quantization, in numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from passes.graphs import constant, make, q, quantized_conv, random_integers, said

from qconvert import Graph, Op, Quantization, Target, Tensor
from qconvert.arithmetic import affine_range, dequantize
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.kernels import Kernel, Kernels
from qconvert.plugins import Storage, pass_named
from qconvert.rules.validation import validate

SYMMETRIC = Target("symmetric", "onnx", "", storage=Storage(symmetric_activations=("int8",)))
JOINING = Target(
    "joining",
    "onnx",
    "",
    kernels=Kernels((Kernel(("Add",), ("int8",), one_quantization="data"), Kernel(("Mul",), ("int8",), one_quantization="all"), Kernel())),
)


def applied(name: str, graph: Graph, target: Target) -> tuple[Graph, tuple[str, ...]]:
    changed, notes = pass_named(name).run(graph, target)
    validate(changed)
    return changed, said(notes)


def chain(zero_point: int = -128, dtype: str = "int8") -> Graph:
    """A Quantize, two Relus of one quantization and a Dequantize: nothing of it is a graph input or output."""
    quantization = q(0.5, zero_point)
    inner = [Tensor(name, dtype, (1, 256), None, quantization) for name in ("a", "b", "c")]
    ops = [Op("Quantize", ("x",), ("a",)), Op("Relu", ("a",), ("b",)), Op("Identity", ("b",), ("c",)), Op("Dequantize", ("c",), ("y",))]
    return make(ops, [Tensor("x", "float32", (1, 256)), *inner], "x", "y")


def error_of(quantization: Quantization, zero_point: int) -> Array:
    """What each code of the old quantization is off by, in old steps."""
    codes = np.arange(-128, 128) - zero_point
    ratio = np.float64(quantization.scale[0]) / 0.5
    return np.rint(codes / ratio).clip(-128, 127) * ratio - codes


@pytest.mark.parametrize(("zero_point", "holding"), [(-128, 255 / 127), (127, 255 / 128), (-28, 155 / 127), (28, 156 / 128)])
def test_the_new_scale_loses_no_more_than_the_one_that_holds_the_range(zero_point: int, holding: float) -> None:
    graph, notes = applied("symmetric_activations", chain(zero_point), SYMMETRIC)
    for name in "abc":
        quantization = graph[name].quantization
        assert quantization is not None and quantization.zero_point[0] == 0
        error, plain = error_of(quantization, zero_point), error_of(q(0.5 * holding), zero_point)
        assert np.square(error).sum() <= np.square(plain).sum() and np.abs(error).max() <= 1.05 * holding / 2
        assert 0.98 * holding <= quantization.scale[0] / 0.5 <= 1.02 * holding
    growth = f"{quantization.scale[0] / 0.5:.2f}"
    assert len(notes) == 1
    # What a Relu gives goes beyond the old range at the upper end alone.
    words = f"3 activations have the zero point 0, {1 if zero_point < 0 else 2} of them clipped to their previous range"
    assert notes[0].startswith(f"{words}; their steps grow {growth} times on average, at most {growth}; at worst")
    (change,) = pass_named("symmetric_activations").run(chain(zero_point), SYMMETRIC)[1]
    real = 0.5 * (np.arange(-128, 128) - zero_point)
    assert [cost.tensor for cost in change.costs] == ["a", "b", "c"] and not change.exact
    assert change.costs[0].sqnr_db == pytest.approx(10 * np.log10((real**2).sum() / (0.25 * error**2).sum()), abs=1e-3)
    assert change.costs[0].largest == pytest.approx(np.abs(error).max() * 0.5 / quantization.scale[0], abs=1e-3)


def test_at_zero_point_minus_64_three_old_steps_are_two_new_ones() -> None:
    """Holding the range, 191 / 127, would put some codes three quarters of an old step off."""
    graph, _ = applied("symmetric_activations", chain(-64), SYMMETRIC)
    quantization = graph["a"].quantization
    assert quantization is not None and quantization.scale[0] == 0.75
    assert np.abs(error_of(quantization, -64)).max() == 0.5 and np.abs(error_of(q(0.5 * 191 / 127), -64)).max() > 0.7


def test_each_value_is_off_by_half_a_step_at_most() -> None:
    before, after = chain(), applied("symmetric_activations", chain(), SYMMETRIC)[0]
    x = np.linspace(0, 127.5, 256, dtype=np.float32)[None]
    error = np.abs(evaluate(before, {"x": x})["y"] - evaluate(after, {"x": x})["y"])
    assert 0.25 < error.max() <= 0.5 * 0.5 * 255 / 127 + 1e-6


def test_a_part_of_the_range_stays_the_part_that_is_used() -> None:
    graph = chain(-28)
    narrow = replace(q(0.5, -28), quant_min=-68, quant_max=12)  # -20 to 20
    graph = replace(
        graph, tensors={name: t if t.quantization is None else replace(t, quantization=narrow) for name, t in graph.tensors.items()}
    )
    changed, notes = applied("symmetric_activations", graph, SYMMETRIC)
    quantization = changed["a"].quantization
    assert quantization is not None and quantization.scale[0] == 0.5 and notes[0].endswith("(exact)")  # integer - zero point fits
    assert (quantization.quant_min, quantization.quant_max) == (-40, 40)
    x = np.linspace(-99, 99, 256, dtype=np.float32)[None]
    y = evaluate(changed, {"x": x})["y"]
    assert y.max() == pytest.approx(20) and y.min() == 0


def test_what_is_symmetric_or_of_another_type_stays() -> None:
    assert applied("symmetric_activations", (graph := chain(0)), SYMMETRIC) == (graph, ())
    assert applied("symmetric_activations", (graph := chain(5, "int16")), SYMMETRIC) == (graph, ())


def test_a_convolution_keeps_its_inputs_and_outputs_and_moves_its_bias() -> None:
    before = quantized_conv(scales=(0.02, 0.01, 0.03, 0.04))
    after, _ = applied("symmetric_activations", before, SYMMETRIC)
    assert [op.kind for op in after.ops] == ["Requantize", "Conv", "Requantize"]
    assert (after["x"], after["y"]) == (before["x"], before["y"])
    conv = after.ops[1]
    data, weights, bias = (after[name].quantization for name in conv.inputs)
    assert np.array_equal(bias.scale, data.scale * weights.scale)
    old = dequantize(before["b"].data, before["b"].quantization)
    assert np.abs(dequantize(after[conv.inputs[2]].data, bias) - old).max() <= bias.scale.max() / 2
    x = random_integers((1, 3, 5, 5), "int8")
    assert np.abs(evaluate(before, {"x": x})["y"].astype(int) - evaluate(after, {"x": x})["y"]).max() <= 4


def test_a_bias_of_two_convolutions_becomes_two() -> None:
    """Its scale is that of the data of each; once the second quantization took the place of the first."""
    tensors = [
        *(Tensor(name, "float32", (1, 3)) for name in ("x", "z")),
        Tensor("a", "int8", (1, 3), None, q(0.5, 10)),
        Tensor("b", "int8", (1, 3), None, q(0.5, -100)),
        constant("w", np.ones((2, 3), np.int8), q(0.5)),
        constant("bias", np.array([100, -50], np.int32), q(0.25)),
        *(Tensor(name, "int8", (1, 2), None, q(1.0)) for name in ("c", "d")),
    ]
    gemms = [Op("Gemm", ("a", "w", "bias"), ("c",)), Op("Gemm", ("b", "w", "bias"), ("d",))]
    graph = make([Op("Quantize", ("x",), ("a",)), Op("Quantize", ("z",), ("b",)), *gemms], tensors, "x z", "c d")
    after, _ = applied("symmetric_activations", graph, SYMMETRIC)
    found = [after[op.inputs[2]] for op in after.ops if op.kind == "Gemm"]
    assert found[0].name != found[1].name
    for bias in found:
        assert np.abs(dequantize(bias.data, bias.quantization) - [25, -12.5]).max() <= bias.quantization.scale[0] / 2


def operands(kind: str, scales: tuple[float, float, float], points: tuple[int, int, int] = (0, 0, 0)) -> Graph:
    tensors = [Tensor(name, "int8", (1, 8), None, q(scale, point)) for name, scale, point in zip("aby", scales, points, strict=True)]
    return make([Op(kind, ("a", "b"), ("y",))], tensors, "a b", "y")


def test_operands_meet_on_the_quantization_that_holds_both() -> None:
    after, notes = applied("match_scales", operands("Add", (0.5, 0.125, 0.7)), JOINING)
    add = after.ops[-1]
    assert after[add.inputs[0]].quantization == after[add.inputs[1]].quantization == q(0.5)
    assert after[add.outputs[0]].quantization == q(0.7)
    assert notes == ("1 operand shares a scale with others of its operator: one more rounding; SQNR 35.6 dB, by at most 0.5 LSB ('b')",)
    a, b = np.int8([[10, -10, 127, 0, 3, 5, 7, 9]]), np.int8([[8, 9, 10, 11, 12, 13, 14, 127]])
    wanted = np.rint((a * 0.5 + np.rint(b * 0.125 / 0.5) * 0.5) / np.float32(0.7)).clip(-128, 127)
    assert np.array_equal(evaluate(after, {"a": a, "b": b})["y"], wanted)
    assert applied("match_scales", (same := operands("Add", (0.5, 0.5, 0.7))), JOINING) == (same, ())


def test_quantizations_that_hold_neither_give_a_new_one() -> None:
    """One reaches from 0 to 127.5, the other from -127.5 to 0: their sum from -127.5 to 127.5."""
    after, notes = applied("match_scales", operands("Add", (0.5, 0.5, 1.0), (-128, 127, 0)), JOINING)
    add = after.ops[-1]
    quantization = after[add.inputs[0]].quantization
    assert quantization == after[add.inputs[1]].quantization
    (low,), (high,) = affine_range(quantization, "int8")
    assert quantization.scale[0] == 1 and low <= -127 and high >= 127
    assert notes[0].startswith("2 operands")


def test_a_result_that_shares_the_scale_too_gets_its_own_behind() -> None:
    after, notes = applied("match_scales", operands("Mul", (0.5, 0.125, 0.25)), JOINING)
    mul = next(op for op in after.ops if op.kind == "Mul")
    assert len({after[name].quantization.scale[0] for name in (*mul.inputs, *mul.outputs)}) == 1
    assert after.ops[-1].kind == "Requantize" and after[after.outputs[0]].quantization == q(0.25)
    assert "1 Requantize after operators whose kernels fix the scale" in notes[1]
