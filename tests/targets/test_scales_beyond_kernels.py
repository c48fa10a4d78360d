"""Scales that LiteRT's integer kernels cannot hold, some of which end the process: such operators run in float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from passes.graphs import constant, make, q
from tflite_models import run_litert

from qconvert import save
from qconvert.conversion.normalizing import normalize
from qconvert.evaluate import evaluate
from qconvert.formats.tflite.file_contents import contents
from qconvert.graph import Op, Tensor
from qconvert.plugins import target_named

#: Input scale, the other's, the result's: the mask of an attention in lowest float32; a result much finer than an operand.
SUMS = [(0.05, 1.3e36, 1.3e36, True), (0.05, 3e32, 3e32, False), (0.05, 1.0, 1e-7, True), (0.05, 0.1, 0.1, False)]


@pytest.mark.parametrize(("first", "second", "result", "is_real"), SUMS)
@pytest.mark.parametrize("kind", ["Add", "Sub"])
def test_a_sum(kind: str, first: float, second: float, result: float, is_real: bool) -> None:
    tensors = [Tensor(name, "int8", (2, 4), None, q(scale, 3)) for name, scale in (("a", first), ("b", second), ("y", result))]
    graph, _ = normalize(make([Op(kind, ("a", "b"), ("y",))], tensors, "a b", "y"), target_named("tflite"))
    (op,) = [op for op in graph.ops if op.kind == kind]
    assert (graph[op.outputs[0]].dtype == "float32") == is_real
    assert all(verdict.runs != "refused" for _, verdict in target_named("tflite").verdicts(graph))


@pytest.mark.parametrize(("scale", "is_real"), [(1e-8, True), (1e-7, False)])
def test_a_softmax(scale: float, is_real: bool) -> None:
    quantization = q(1 / 256, -128)
    graph = make(
        [Op("Softmax", ("x",), ("y",), {"axis": -1})],
        [Tensor("x", "int8", (2, 4), None, q(scale)), Tensor("y", "int8", (2, 4), None, quantization)],
        "x",
        "y",
    )
    graph, _ = normalize(graph, target_named("tflite"))
    (op,) = [op for op in graph.ops if op.kind == "Softmax"]
    assert (graph[op.outputs[0]].dtype == "float32") == is_real
    assert all(verdict.runs != "refused" for _, verdict in target_named("tflite").verdicts(graph))


@pytest.mark.parametrize(
    ("kind", "scales", "is_real"),
    [
        ("Softmax", (5.1, 2.0**-15), True), ("Softmax", (4.9, 2.0**-15), False),
        ("Tanh", (5.1, 2.0**-15), True), ("Tanh", (4.9, 2.0**-15), False),
        ("LeakyRelu", (1.0, 2.0**-16), True), ("LeakyRelu", (1.0, 2.0**-14), False),
    ],
)  # fmt: skip
def test_functions_on_16_bits(kind: str, scales: tuple[float, float], is_real: bool) -> None:
    x, y = (Tensor(name, "int16", (2, 4), None, q(scale)) for name, scale in zip("xy", scales, strict=True))
    attributes = {"Softmax": {"axis": -1}, "LeakyRelu": {"alpha": 0.5}}.get(kind, {})
    graph, _ = normalize(make([Op(kind, ("x",), ("y",), attributes)], [x, y], "x", "y"), target_named("tflite"))
    (op,) = [op for op in graph.ops if op.kind == kind]
    assert (graph[op.outputs[0]].dtype == "float32") == is_real
    assert all(verdict.runs != "refused" for _, verdict in target_named("tflite").verdicts(graph))


@pytest.mark.litert
@pytest.mark.parametrize(("dtype", "ratio", "operators"), [
    ("int16", 2.0**15, ["DEQUANTIZE", "QUANTIZE"]), ("int16", 2.0**14, ["QUANTIZE"]),
    ("int8", 2.0**23, ["DEQUANTIZE", "QUANTIZE"]), ("int8", 2.0**22, ["QUANTIZE"]),
])  # fmt: skip
def test_steps_that_become_a_whole_range(dtype: str, ratio: float, operators: list[str], tmp_path: Path) -> None:
    x, y = Tensor("x", dtype, (1, 5), None, q(ratio * 0.001)), Tensor("y", dtype, (1, 5), None, q(0.001))
    graph = make([Op("Requantize", ("x",), ("y",))], [x, y], "x", "y")
    save(graph, tmp_path / "m.tflite")
    data = (tmp_path / "m.tflite").read_bytes()
    assert contents(tmp_path / "m.tflite")["operators"] == dict.fromkeys(operators, 1)
    codes = np.array([[-2, -1, 0, 1, 2]], dtype)
    np.testing.assert_array_equal(run_litert(data, [codes])[0], evaluate(graph, {"x": codes})["y"])


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("kind", ["Mul", "Add", "Max"])
def test_constants_of_8_bits_beside_16_bits_are_widened(kind: str, dtype: str, tmp_path: Path) -> None:
    codes = np.array([[3, 250 if dtype == "uint8" else -120, 7, 0]], dtype)
    tensors = [Tensor(name, "int16", (2, 4), None, q(0.01)) for name in "xy"]
    graph = make([Op(kind, ("x", "c"), ("y",))], [*tensors, Tensor("c", dtype, (1, 4), codes, q(0.02, 5))], "x", "y")
    changed, _ = normalize(graph, target_named("tflite"))
    (op,) = [op for op in changed.ops if op.kind == kind]
    assert {changed[name].dtype for name in (*op.inputs, *op.outputs)} == {"int16"}
    x = np.array([[100, -2000, 32767, -32768], [0, 5, -7, 4000]], np.int16)
    np.testing.assert_array_equal(evaluate(changed, {"x": x})["y"], evaluate(graph, {"x": x})["y"])
    save(changed, tmp_path / "m.tflite")
    found = run_litert((tmp_path / "m.tflite").read_bytes(), [x])[0].astype(int)
    assert np.abs(found - evaluate(graph, {"x": x})["y"]).max() <= 1


@pytest.mark.litert
@pytest.mark.parametrize("kind", ["Abs", "ReduceProd", "Exp", "Elu"])
def test_bytes_without_a_kernel_of_uint8_run_on_real_values(kind: str, tmp_path: Path) -> None:
    inputs = ("x", "axes") if kind == "ReduceProd" else ("x",)
    tensors = [Tensor("x", "uint8", (2, 4), None, q(0.05, 128)), Tensor("y", "uint8", None, None, q(0.07, 100))]
    tensors += [constant("axes", np.array([1], np.int64))] * (len(inputs) - 1)
    graph = make([Op(kind, inputs, ("y",))], tensors, "x", "y")
    changed, _ = normalize(graph, target_named("tflite-same"))
    save(changed, tmp_path / "m.tflite")
    data = np.random.default_rng(0).integers(0, 256, (2, 4)).astype(np.uint8)
    (found,) = run_litert((tmp_path / "m.tflite").read_bytes(), [data])
    assert np.array_equal(found, evaluate(graph, {"x": data})["y"])


@pytest.mark.litert
@pytest.mark.parametrize("target", ["tflite", "tflite-uint8"])
@pytest.mark.parametrize(("kind", "ratio", "is_real"), [
    ("Add", 2.0**8, True), ("Add", 2.0**7, False), ("Mul", 2.0**8, True), ("Mul", 2.0**7, False),
    ("ReduceSum", 2.0**18, True), ("ReduceSum", 2.0**16, False),
])  # fmt: skip
def test_results_that_saturate_equal_the_exact_ones(kind: str, ratio: float, is_real: bool, target: str, tmp_path: Path) -> None:
    """Where the kernel wraps, 127 to 255 steps off, the operator runs in float; it was declared exact."""
    data = q(1.0 if kind == "Mul" else ratio * 0.001, 3)
    names = ["x"] if kind == "ReduceSum" else ["x", "b"]
    y = Tensor("y", "int8", (4,) if kind == "ReduceSum" else (4, 50), None, q(1 / ratio if kind == "Mul" else 0.001, 3))
    axes = [constant("axes", np.array([1], np.int64))] if kind == "ReduceSum" else []
    attributes = {"keepdims": 0} if axes else {}
    inputs = (*names, *(item.name for item in axes))
    graph = make(
        [Op(kind, inputs, ("y",), attributes)], [*(Tensor(n, "int8", (4, 50), None, data) for n in names), y, *axes], " ".join(names), "y"
    )
    fitted, _ = normalize(graph, target_named(target))
    (op,) = [op for op in fitted.ops if op.kind == kind]
    assert (fitted[op.outputs[0]].dtype == "float32") == is_real
    save(fitted, tmp_path / "m.tflite")
    rng = np.random.default_rng(5)
    feeds = {name: rng.integers(-128, 128, (4, 50)).astype(np.int8) for name in names}
    shift = 128 if fitted[names[0]].dtype == "uint8" else 0
    found = run_litert(
        (tmp_path / "m.tflite").read_bytes(), [(feed.astype(int) + shift).astype(fitted[names[0]].dtype) for feed in feeds.values()]
    )
    shift = 128 if fitted["y"].dtype == "uint8" else 0
    np.testing.assert_array_equal(found[0].astype(int) - shift, evaluate(graph, feeds)["y"])
