"""References where random operators of benchmarks/kernel_rows.py once differed from the runtimes: extreme scales, one element, ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert.conformance.matrix import run_file, write_graph
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.kernels import KERNELS, Integers
from qconvert.operators.shapes_and_functions import infer
from qconvert.plugins import kernels_named, target_named


def one_operator(
    kind: str,
    dtype: str,
    shapes: Sequence[tuple[int, ...]],
    qparams: Sequence[tuple[float, int]],
    constants: Sequence[Array] = (),
    result: str = "",
    **attributes: Any,
) -> Graph:
    """A graph of one operator: scale and zero point of each operand, then of the result."""
    quantizations = [Quantization.per_tensor(float(np.float32(scale)), point) for scale, point in qparams]
    data = [Tensor(f"x{place}", dtype, shape, None, quantizations[place]) for place, shape in enumerate(shapes)]
    held = [Tensor(f"c{place}", str(item.dtype), item.shape, item) for place, item in enumerate(constants)]
    output = Tensor("y", result or dtype, None, None, None if result else quantizations[-1])
    op = Op(kind, tuple(tensor.name for tensor in (*data, *held)), ("y",), attributes)
    known = {tensor.name: tensor for tensor in (*data, *held, output)}
    return infer(Graph(kind, known, (op,), tuple(tensor.name for tensor in data), ("y",)))


def run_as_it_is(graph: Graph, kernels: str, values: Sequence[Array], folder: Path) -> tuple[Array, Integers | None]:
    """What the runtime and the row give for an operator that no pass changes."""
    runtime, name = kernels_named(kernels)
    target = replace(target_named("ort-x86" if runtime.name == "onnxruntime" else "tflite"), passes=())
    stored = dict(zip(graph.inputs, values, strict=True))
    fitted, path = write_graph(graph, target, folder)
    found = run_file(path, fitted, stored, runtime, name)[0]
    (op,) = fitted.ops
    inputs = [stored[item] if item in stored else fitted.constant(item) for item in op.inputs]
    rows = KERNELS["litert:optimized" if kernels == "litert:default" else kernels]  # XNNPACK takes none of these
    return found, rows.integers(fitted, op, inputs)


def codes(*values: int, dtype: str = "int16") -> Array:
    return np.array(values, dtype)


_EVERY = np.arange(-32768, 32768).astype(np.int16)


@pytest.mark.litert
@pytest.mark.parametrize("kernels", ["litert:default", "litert:reference"])
@pytest.mark.parametrize("kind", ["Equal", "NotEqual", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
@pytest.mark.parametrize("scales", [(1e-4, 1e-4), (3e-5, 1e-3), (0.9, 0.01), (4.4, 4.4), (1e3, 2e4)])
def test_comparisons_of_16_bits(kind: str, scales: tuple[float, float], kernels: str, tmp_path: Path) -> None:
    """EQUAL brings both sides to one scale of 32 bits, in which neighbours are equal; GREATER compares stored integers."""
    graph = one_operator(kind, "int16", [(65536,)] * 2, [(scale, 0) for scale in scales], result="bool")
    other = np.clip(_EVERY.astype(np.int64) + np.random.default_rng(0).integers(-2, 3, 65536), -32768, 32767).astype(np.int16)
    found, known = run_as_it_is(graph, kernels, [_EVERY, other], tmp_path)
    assert known is not None
    assert np.any([found == way for way in known.ways], axis=0).all()


@pytest.mark.litert
def test_a_product_of_one_element_is_copied_by_the_default_kernel(tmp_path: Path) -> None:
    graph = one_operator("ReduceProd", "int8", [(4, 1)], [(0.1, 3), (0.5, -7)], [np.array([1])], keepdims=0)
    (op,) = graph.ops
    for kernels, wanted in (("litert:default", [-128, -40, 0, 127]), ("litert:reference", [-33, -16, -8, 18])):
        found, known = run_as_it_is(graph, kernels, [codes(-128, -40, 0, 127, dtype="int8").reshape(4, 1)], tmp_path)
        assert known is not None
        assert found.tolist() == known.ways[0].tolist() == wanted
        assert bool(KERNELS[kernels].fault(graph, op)) is (kernels == "litert:default")
    alike = one_operator("ReduceProd", "int8", [(4, 1)], [(0.1, 3), (0.1, 3)], [np.array([1])], keepdims=0)
    assert KERNELS["litert:default"].fault(alike, alike.ops[0]) == ""


@pytest.mark.litert
def test_a_clip_with_the_bounds_of_relu6_rescales_as_relu6(tmp_path: Path) -> None:
    """QUANTIZE, MAXIMUM and MINIMUM would give other integers for 12 codes."""
    bounds = [np.array(0, np.float32), np.array(6, np.float32)]
    graph = one_operator("Clip", "int16", [(65536,)], [(7.38771e-05, 0), (8.6327986e-05, 0)], bounds)
    found, known = run_as_it_is(graph, "litert:default", [_EVERY], tmp_path)
    assert known is not None
    assert np.array_equal(found, known.ways[0])
    assert found[28195 + 32768] == 24129


@pytest.mark.litert
@pytest.mark.parametrize("shapes", [((16384,), (16384,)), ((9999,), (9999,)), ((4, 1, 64, 8), (4, 16, 1, 8)), ((128, 1), (1, 128))])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_additions_of_bytes_that_xnnpack_leaves(dtype: str, shapes: tuple[tuple[int, ...], ...], tmp_path: Path) -> None:
    """Operands with scales far apart are rounded once, twice or down, which decides ties of the sum."""
    rng = np.random.default_rng(0)
    for power in (14, 16, 18, 20):
        point = 7 if dtype == "int8" else 130
        graph = one_operator("Add", dtype, shapes, [(2.0**-power, point), (1.0, point), (4.0, point)])
        info = np.iinfo(dtype)
        values = [rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype) for shape in shapes]
        found, known = run_as_it_is(graph, "litert:default", values, tmp_path)
        assert known is not None
        assert np.any([found == way for way in known.ways], axis=0).all()


@pytest.mark.litert
def test_sums_of_bytes_beyond_16_bits_wrap_in_vectors(tmp_path: Path) -> None:
    graph = one_operator("Add", "int8", [(32,)] * 2, [(98.79856, -128), (6.8212614e-07, 127), (0.50976944, -128)])
    found, _ = run_as_it_is(graph, "litert:default", [np.full(32, 55, np.int8), np.zeros(32, np.int8)], tmp_path)
    assert set(found.tolist()) == {-128}  # the sum is 35,468 steps
    assert "at least" not in (words := KERNELS["litert:optimized"].fault(graph, graph.ops[0])) and "below 32768" in words


@pytest.mark.litert
def test_additions_of_16_bits_by_multipliers_below_the_15th_bit_are_not_known(tmp_path: Path) -> None:
    pair = [codes(*[-8] * 16), codes(*[29951] * 16)]
    graph = one_operator("Add", "int16", [(16,)] * 2, [(1.4087684, 0), (3.5224161e-06, 0), (0.0101452, 0)])
    found, known = run_as_it_is(graph, "litert:default", pair, tmp_path)
    assert found[0] == -1101 and known is None  # rounded once or twice the operands make it -1100
    assert KERNELS["litert:reference"].integers(graph, graph.ops[0], pair) is not None


@pytest.mark.parametrize(
    ("kernels", "kind", "scale", "wanted"),
    [
        ("litert:optimized", "HardSwish", 1.7e-7, True),
        ("litert:optimized", "HardSwish", 1.9e-7, False),
        ("tflite-micro:reference", "Softmax", 2.0**-26, True),  # stops the process
        ("tflite-micro:reference", "Softmax", 2.0**-25, False),
    ],
)
def test_scales_that_ask_for_shifts_beyond_the_width(kernels: str, kind: str, scale: float, wanted: bool) -> None:
    attributes = {"axis": 1} if kind == "Softmax" else {}
    graph = one_operator(kind, "int8", [(2, 3)], [(scale, 0), (1 / 256 if attributes else scale, -128)], **attributes)
    assert bool(KERNELS[kernels].fault(graph, graph.ops[0])) is wanted


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("count", "scale", "output", "wanted"), [(2, 0.02654087, 0.00528322, 94), (3, 0.14333689, 0.00414703, 121)])
def test_ties_of_a_softmax_of_equal_elements(count: int, scale: float, output: float, wanted: int, tmp_path: Path) -> None:
    """The logarithm of the largest float32 over the size is a float32 before onnxruntime 1.32; a float64 one gives 95 and 120."""
    data = np.array([[165, 165, 0][:count]], np.uint8)
    graph = one_operator("Softmax", "uint8", [(1, count)], [(scale, 89), (output, 0)], axis=1)
    found, known = run_as_it_is(graph, "onnxruntime:optimized", [data], tmp_path)
    assert known is not None
    assert known.ways[0][0, 0] == wanted
    assert found[0, 0] in {way[0, 0] for way in known.ways}


def test_mnn_holds_the_zero_point_of_a_depthwise_result_in_32_bits_of_the_sum() -> None:
    """A channel of weights 2e-9 next to others: MNN gives 0 where the zero point is 26 (measured with MNN 3.6.1)."""
    for scale, wanted in ((2e-6, True), (2e-3, False)):
        scales = np.array([0.1, 0.1, 0.1, scale], np.float32)
        weights = Tensor("w", "int8", (4, 1, 3, 3), np.ones((4, 1, 3, 3), np.int8), Quantization.per_axis(scales, 0))
        data, result = (
            Tensor(name, "int8", (1, 4, 8, 8), None, Quantization.per_tensor(*q)) for name, q in (("x", (0.1, 0)), ("y", (40.0, 26)))
        )
        op = Op("Conv", ("x", "w"), ("y",), {"group": 4, "data_format": "channels_first", "pads": (1,) * 4})
        graph = Graph("depthwise", {tensor.name: tensor for tensor in (data, weights, result)}, (op,), ("x",), ("y",))
        assert bool(KERNELS["mnn:cpu"].fault(graph, op)) is wanted
