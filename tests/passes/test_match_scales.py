"""Quantizations are the same only where the stored type is, too: a scale and zero point mean other values in int8 than in uint8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qconvert import check, convert, load, save
from qconvert.conversion import normalize
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.kernels import Kernel, Kernels
from qconvert.passes.operand_scales import match_scales
from qconvert.plugins import Change, Target, target_named
from qconvert.rules.changed_values import changed_values

GRID = Quantization.per_tensor(0.05, 3)


def test_equal_numbers_of_another_type_are_another_quantization() -> None:
    op = Op("Max", ("x", "k"), ("y",))
    shape = (1, 3, 3, 2)
    k = np.arange(18, dtype=np.int8).reshape(shape)
    tensors = [Tensor("x", "uint8", shape, None, GRID), Tensor("k", "int8", shape, k, GRID), Tensor("y", "int8", shape, None, GRID)]
    graph = Graph("g", {t.name: t for t in tensors}, (op,), ("x",), ("y",))
    found, _ = match_scales(graph, target_named("tflite-same"))
    (kept,) = [item for item in found.ops if item.kind == op.kind]
    assert len({found[name].dtype for name in (*kept.inputs, *kept.outputs)}) == 1
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(evaluate(found, {"x": x})["y"], evaluate(graph, {"x": x})["y"])


@pytest.mark.parametrize("kind", ["Add", "Sub"])
@pytest.mark.parametrize("turned", [False, True])
def test_zeros_take_the_scale_of_what_they_are_added_to(kind: str, turned: bool) -> None:
    """XNNPACK's kernel has 20 bits for the larger of both scales: next to zeros of scale 1 few are left for the other operand."""
    shape, quantization = (64, 4), Quantization.per_tensor(0.0003, -7)
    zeros = np.full((1, 4), 5, np.int8)
    tensors = [Tensor("x", "int8", shape, None, quantization), Tensor("k", "int8", (1, 4), zeros, Quantization.per_tensor(1.0, 5))]
    tensors.append(Tensor("y", "int8", shape, None, Quantization.per_tensor(0.00031, 4)))
    op = Op(kind, ("k", "x") if turned else ("x", "k"), ("y",))
    graph = Graph("g", {t.name: t for t in tensors}, (op,), ("x",), ("y",))
    found, (change,) = match_scales(graph, target_named("tflite"))
    assert isinstance(change, Change) and change.exact
    (kept,) = found.ops
    assert all(found[name].quantization == quantization for name in kept.inputs)
    x = np.arange(-128, 128, dtype=np.int16).astype(np.int8).reshape(shape)
    expected = evaluate(graph, {"x": x})["y"]
    np.testing.assert_array_equal(evaluate(found, {"x": x})["y"], expected)
    assert not changed_values(graph, found)


def test_zeros_have_the_common_scale_of_a_target_that_asks_for_one() -> None:
    zeros = Tensor("k", "int8", (1, 4), np.full((1, 4), 5, np.int8), Quantization.per_tensor(1.0, 5))
    tensors = [Tensor("x", "int8", (1, 4), None, GRID), zeros, Tensor("y", "int8", (1, 4), None, Quantization.per_tensor(0.06, 3))]
    graph = Graph("g", {t.name: t for t in tensors}, (Op("Add", ("x", "k"), ("y",)),), ("x",), ("y",))
    joining = Kernels((Kernel(("Add",), ("int8",), one_quantization="data"), Kernel()))
    found, _ = match_scales(graph, Target("one scale", "onnx", "", kernels=joining))
    assert [(op.kind, op.inputs, op.outputs) for op in found.ops] == [("Add", ("x", "k/zeros"), ("y",))]
    assert found["k/zeros"].quantization == GRID and (found.constant("k/zeros") == 3).all()


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_constants_that_are_joined_are_rounded_at_once(tmp_path: Path) -> None:
    """The class token of a vision transformer: LiteRT's QUANTIZE multiplies by 8 fractional bits, which rounds a third of it otherwise."""
    token = np.arange(-100, 100, dtype=np.int16).astype(np.int8).reshape(1, 200)
    tensors = [Tensor("x", "int8", (3, 200), None, GRID), Tensor("k", "int8", (1, 200), token, Quantization.per_tensor(0.0337, -20))]
    tensors += [Tensor("y", "int8", (4, 200), None, GRID)]
    graph = Graph("g", {t.name: t for t in tensors}, (Op("Concat", ("k", "x"), ("y",), {"axis": 0}),), ("x",), ("y",))
    save(graph, tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
    assert [op.kind for op in load(tmp_path / "m.tflite").ops] == ["Concat"]
    report = check(tmp_path / "m.onnx", tmp_path / "m.tflite", per_op=True)
    assert report.passed and all(item.equal == 1 for item in report.outputs)


def test_a_clip_is_rounded_once_at_its_bounds_too() -> None:
    """On the coarser quantization of its data a bound would be another number."""
    x = Tensor("x", "int8", (256,), None, Quantization.per_tensor(0.05, 3))
    bounds = [Tensor(name, "float32", (), np.array(value, np.float32)) for name, value in (("low", -0.52), ("high", 0.93))]
    y = Tensor("y", "int8", (256,), None, Quantization.per_tensor(0.011, 3))
    graph = Graph("g", {t.name: t for t in (x, *bounds, y)}, (Op("Clip", ("x", "low", "high"), ("y",)),), ("x",), ("y",))
    found, _ = match_scales(graph, target_named("tflite-micro"))
    assert [op.kind for op in found.ops] == ["Requantize", "Clip"]
    codes = np.arange(-128, 128, dtype=np.int8)
    np.testing.assert_array_equal(evaluate(found, {"x": codes})["y"], evaluate(graph, {"x": codes})["y"])


def assert_micro_runs(kind: str, x: Tensor, y: Tensor, runs: str) -> None:
    """Expect that tflite-micro runs an operator of two tensors on "integers" or "floats"."""
    target = target_named("tflite-micro")
    found, _ = normalize(Graph("g", {"x": x, "y": y}, (Op(kind, ("x",), ("y",)),), ("x",), ("y",)), target)
    assert [verdict.runs for op, verdict in target.verdicts(found) if op.kind == kind] == [runs]


@pytest.mark.parametrize(
    ("kind", "scale", "zero", "runs"),
    [
        ("LogSoftmax", 0.2, 127, "floats"),  # the kernel ends at -16
        ("LogSoftmax", 0.0625, 127, "integers"),
        ("Softmax", 1 / 255, -128, "integers"),
        ("Softmax", 1 / 500, -128, "integers"),
        ("Softmax", 1 / 900, -128, "floats"),  # its steps are 1/256
        ("Sigmoid", 1 / 128, -128, "integers"),
    ],
)
def test_a_scale_that_a_kernel_fixes_loses_no_more_than_a_step(kind: str, scale: float, zero: int, runs: str) -> None:
    x, y = Tensor("x", "int8", (4, 9), None, GRID), Tensor("y", "int8", (4, 9), None, Quantization.per_tensor(scale, zero))
    assert_micro_runs(kind, x, y, runs)


@pytest.mark.parametrize("kind", ["Sigmoid", "Tanh"])
@pytest.mark.parametrize(("scale", "runs"), [(7.9, "integers"), (8.0, "floats")])
def test_curves_of_coarse_data_run_in_float(kind: str, scale: float, runs: str) -> None:
    """At a scale of 8 tflite-micro's Sigmoid and Tanh of 0 are the lowest result."""
    x = Tensor("x", "int8", (4, 9), None, Quantization.per_tensor(scale, 3))
    y = Tensor("y", "int8", (4, 9), None, Quantization.per_tensor(*{"Sigmoid": (1 / 256, -128), "Tanh": (1 / 128, 0)}[kind]))
    assert_micro_runs(kind, x, y, runs)


def test_a_relu_after_an_l2_normalization_stands_by_itself() -> None:
    """LiteRT refuses an L2_NORMALIZATION with a fused activation (l2norm.cc)."""
    tensors = {name: Tensor(name, "float32", (4, 9)) for name in "xyz"}
    graph = Graph("g", tensors, (Op("LpNormalization", ("x",), ("y",)), Op("Relu", ("y",), ("z",))), ("x",), ("z",))
    found, _ = normalize(graph, target_named("tflite"))
    assert [op.kind for op in found.ops] == ["LpNormalization", "Relu"]


@pytest.mark.litert
@pytest.mark.onnxruntime
@pytest.mark.parametrize("size", [1, 2, 10])
def test_a_softmax_in_float_stays_in_float(size: int, tmp_path: Path) -> None:
    """onnxruntime would make a QLinearSoftmax of it, which is a step off, and gives 0 for 1 over one element."""
    tensors = [Tensor("x", "int8", (4, size), None, Quantization.per_tensor(1.5, 7))]
    tensors += [Tensor("y", "int8", (4, size), None, Quantization.per_tensor(1 / 255, -128))]
    graph = Graph("g", {t.name: t for t in tensors}, (Op("Softmax", ("x",), ("y",)),), ("x",), ("y",))
    save(graph, tmp_path / "a.qgraph")
    convert(tmp_path / "a.qgraph", tmp_path / "a.tflite", target="tflite")
    assert [op.kind for op in load(tmp_path / "a.tflite").ops] == ["Dequantize", "Softmax", "Quantize"]
    convert(tmp_path / "a.tflite", tmp_path / "b.onnx", target="ort-x86")
    report = check(tmp_path / "a.tflite", tmp_path / "b.onnx")
    assert report.passed and all(item.equal == 1 for item in report.outputs)
