"""remove_redundant_requantize: fewer conversions, every output the same."""

from __future__ import annotations

import numpy as np
import pytest
from passes.graphs import applied, assert_equal, make, q, random_integers

from qconvert import Op, Quantization, Tensor
from qconvert.evaluate import evaluate

PASS = "remove_redundant_requantize"


def kinds(ops: tuple[Op, ...]) -> list[str]:
    return [op.kind for op in ops]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("scale", [0.1, 1 / 3, 3.7e-12, 1e-39, 2.5e33])
def test_dequantize_and_quantize_on_one_quantization(dtype: str, scale: float) -> None:
    """All values of the type, in onnxruntime and in the exact evaluation."""
    limits = np.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    quantization = q(scale, int(every[len(every) // 3]))
    ops = [Op("Dequantize", ("x",), ("real",)), Op("Quantize", ("real",), ("a",)), Op("Relu", ("a",), ("y",))]
    graph = make(ops, [Tensor(name, dtype, every.shape, None, quantization) for name in "xay"], "x", "y")
    changed, notes = applied(graph, PASS)
    assert kinds(changed.ops) == ["Relu"]
    assert notes == ("1 Quantize became 0, 1 Dequantize became 0",)
    assert_equal(graph, changed, {"x": every})


def test_scales_whose_products_overflow_stay() -> None:
    ops = [Op("Dequantize", ("x",), ("real",)), Op("Quantize", ("real",), ("y",))]
    graph = make(ops, [Tensor(name, "int8", (4,), None, q(2e37)) for name in "xy"], "x", "y")
    changed, _ = applied(graph, PASS)
    assert kinds(changed.ops) == ["Requantize"]


@pytest.mark.onnxruntime
def test_another_quantization_becomes_one_requantize() -> None:
    ops = [Op("Dequantize", ("x",), ("real",)), Op("Quantize", ("real",), ("y",)), Op("Neg", ("real",), ("z",))]
    tensors = [Tensor("x", "int8", (256,), None, q(0.1, 3)), Tensor("y", "uint8", (256,), None, q(0.17, 99))]
    graph = make(ops, tensors, "x", "y z")
    changed, _ = applied(graph, PASS)
    assert kinds(changed.ops) == ["Dequantize", "Requantize", "Neg"]  # its float values have another reader
    assert_equal(graph, changed, {"x": np.arange(-128, 128).astype(np.int8)})


@pytest.mark.onnxruntime
def test_there_and_back_disappears() -> None:
    """int8 -> uint8 -> int8, as between two tools; the graph's output keeps its name."""
    tensors = [
        Tensor("x", "int8", (4, 64), None, q(0.1, 3)),
        Tensor("a", "int8", None, None, q(0.1, 3)),
        Tensor("b", "uint8", None, None, q(0.1, 131)),
        Tensor("y", "int8", None, None, q(0.1, 3)),
    ]
    ops = [Op("Relu", ("x",), ("a",)), Op("Requantize", ("a",), ("b",)), Op("Requantize", ("b",), ("y",))]
    graph = make(ops, tensors, "x", "y")
    changed, notes = applied(graph, PASS)
    assert kinds(changed.ops) == ["Relu"] and changed.outputs == ("y",)
    assert notes == ("2 Requantize became 0",)
    assert_equal(graph, changed, {"x": random_integers((4, 64), "int8")})


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_a_shift_is_passed_by_on_both_sides() -> None:
    """Quantize -> shift and shift -> Dequantize: one conversion each."""
    tensors = [
        Tensor("x", "float32", (300,)),
        Tensor("a", "int8", None, None, q(0.1, 3)),
        *(Tensor(name, "uint8", None, None, q(0.1, 131)) for name in "bc"),
        Tensor("d", "int8", None, None, q(0.1, 3)),
    ]
    ops = [
        Op("Quantize", ("x",), ("a",)),
        Op("Requantize", ("a",), ("b",)),
        Op("Relu", ("b",), ("c",)),
        Op("Requantize", ("c",), ("d",)),
        Op("Dequantize", ("d",), ("y",)),
    ]
    graph = make(ops, tensors, "x", "y")
    changed, _ = applied(graph, PASS)
    assert kinds(changed.ops) == ["Quantize", "Relu", "Dequantize"]
    assert changed["b"].dtype == "uint8"
    assert_equal(graph, changed, {"x": np.linspace(-20, 20, 300).astype(np.float32)})


def test_a_requantize_that_rounds_stays() -> None:
    """Through a coarser quantization and back is not the identity."""
    tensors = [Tensor("x", "int8", (256,), None, q(0.1)), Tensor("a", "int8", None, None, q(0.3)), Tensor("y", "int8", None, None, q(0.1))]
    graph = make([Op("Requantize", ("x",), ("a",)), Op("Requantize", ("a",), ("y",))], tensors, "x", "y")
    assert applied(graph, PASS) == (graph, ())


def test_inputs_and_outputs_of_the_graph_keep_their_names() -> None:
    quantization = q(0.1, 3)
    tensors = [Tensor(name, "int8", (4,), None, quantization) for name in "xyz"]
    graph = make([Op("Requantize", ("x",), ("y",)), Op("Requantize", ("x",), ("z",))], tensors, "x", "y z")
    assert applied(graph, PASS) == (graph, ())


def test_int32_stays_since_float32_cannot_hold_it() -> None:
    tensors = [Tensor(name, "int32", (4,), None, q(0.1)) for name in "xy"]
    graph = make([Op("Dequantize", ("x",), ("real",)), Op("Quantize", ("real",), ("y",))], tensors, "x", "y")
    assert kinds(applied(graph, PASS)[0].ops) == ["Requantize"]


@pytest.mark.onnxruntime
def test_per_axis_quantizations() -> None:
    quantization = Quantization.per_axis([0.1, 0.02], 0)
    tensors = [Tensor(name, "int8", (2, 256), None, quantization) for name in "xay"]
    ops = [Op("Dequantize", ("x",), ("real",)), Op("Quantize", ("real",), ("a",)), Op("Identity", ("a",), ("y",))]
    graph = make(ops, tensors, "x", "y")
    changed, _ = applied(graph, PASS)
    assert kinds(changed.ops) == ["Identity"]
    x = random_integers((2, 256), "int8")
    assert_equal(graph, changed, {"x": x})
    assert np.array_equal(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"])
