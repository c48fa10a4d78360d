"""Kernels compute float values as their rows say: onnxruntime and MNN in float32 (kernels/float_arithmetic.py), programs for PyTorch in
float64. All codes of 8 bits, all of one operand of 16, windows, and results next to ties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert.conformance.matrix import run_file, write_graph
from qconvert.evaluate.curves import codes_of
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range
from qconvert.kernels import KERNELS
from qconvert.kernels.float_arithmetic import IN_FLOAT32
from qconvert.operators import KINDS
from qconvert.operators.properties import ELEMENTWISE
from qconvert.operators.shapes_and_functions import infer
from qconvert.plugins import kernels_named, target_named

_PAIRS = ("Add", "Sub", "Mul", "Div", "Max", "Min")
#: Bytes of these have kernels of integers.
_OF_16_BITS = ("Add", "Mul")
_FED = [
    (kind, dtype)
    for kind in IN_FLOAT32
    for dtype in ("uint8", "int16")
    if KINDS[kind].layout is ELEMENTWISE and kind not in ("PRelu", "Where", "Quantize") and (kind not in _OF_16_BITS or dtype == "int16")
]
_ATTRIBUTES: dict[str, dict[str, Any]] = {"LeakyRelu": {"alpha": 0.3}, "ThresholdedRelu": {"alpha": 0.7}}
#: The scale of a result, where data have another one.
_RESULTS = {
    **dict.fromkeys(("Sigmoid", "Tanh", "HardSigmoid"), 1 / 128),
    **dict.fromkeys(("Reciprocal", "Sign", "Floor", "Ceil", "Round", "Div"), 1 / 16),
}
#: Factors of scales: results are multiples of (first, second) / (2 * third), half of which is a tie before the scales are rounded.
_FACTORS = ((7, 5, 3), (3, 11, 13), (19, 2, 5))


def any_quantization(rng: np.random.Generator, dtype: str, scale: float, has_ties: bool) -> Quantization:
    """A scale within a factor of 8 of another one, a power of two for ties, and a zero point, often at an end of the type."""
    factor = rng.uniform(-3, 3) + np.log2(scale)
    low, high = integer_range(dtype)
    point = 0 if dtype == "int16" else int(rng.choice([low, high, rng.integers(low, high)]))
    return Quantization.per_tensor(float(np.float32(2.0 ** (np.round(factor) if has_ties else factor))), point)


def compare(graph: Graph, stored: dict[str, Array], kernels: str, target: str, folder: Path) -> int:
    """Return how many elements of a runtime's result are those of the reference; all have to be."""
    runtime, name = kernels_named(kernels)
    fitted, path = write_graph(graph, target_named(target), folder)
    op = fitted.ops[0]
    if len(fitted.ops) > 1:  # MNN gets activations of integers as a Clip
        fitted, op = graph, graph.ops[0]
    inputs = [stored[item] if item in stored else fitted.constant(item) for item in op.inputs]
    found = KERNELS[kernels].integers(fitted, op, inputs)
    if found is None:
        return 0
    np.testing.assert_array_equal(run_file(path, fitted, stored, runtime, name)[0].reshape(found.ways[0].shape), found.ways[0])
    return int(found.ways[0].size)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("kernels", ["onnxruntime:optimized", "onnxruntime:unoptimized"])
@pytest.mark.parametrize(("kind", "dtype"), _FED)
def test_functions_of_elements(kind: str, dtype: str, kernels: str, tmp_path: Path) -> None:
    compared = 0
    for seed, has_ties in enumerate((False, True)):
        rng = np.random.default_rng((seed, *kind.encode()))
        codes = codes_of(dtype) if dtype == "uint8" else np.arange(-32768, 32768).astype(np.int16)
        count = 2 if kind in _PAIRS else 1
        data = (
            [codes] if count == 1 else [item.reshape(-1) for item in np.meshgrid(codes[:: len(codes) // 256], codes[:: len(codes) // 256])]
        )
        data = [data[0], data[1] | 1] if kind == "Div" else data
        size = float(np.exp2(rng.uniform(-12, 4)))
        scales = [any_quantization(rng, dtype, size, has_ties) for _ in range(count)]
        if kind == "Sqrt":
            data = [np.maximum(codes, scales[0].point).astype(dtype)]
        if kind in ("Div", "Reciprocal"):  # by no zero, whose quotient C leaves open
            scales[-1] = Quantization.per_tensor(scales[-1].step, 0)
            data[-1] = np.where(data[-1] == 0, 1, data[-1]).astype(dtype)
        result = any_quantization(rng, dtype, _RESULTS.get(kind, size), has_ties)
        tensors = [Tensor(f"x{place}", dtype, item.shape, None, scales[place]) for place, item in enumerate(data)]
        bounds = [Tensor("low", "float32", (), np.array(-size, np.float32)), Tensor("high", "float32", (), np.array(3 * size, np.float32))]
        inputs = [*tensors, *(bounds if kind == "Clip" else [])]
        op = Op(kind, tuple(tensor.name for tensor in inputs), ("y",), _ATTRIBUTES.get(kind, {}))
        known = {tensor.name: tensor for tensor in (*inputs, Tensor("y", dtype, None, None, result))}
        graph = infer(Graph("g", known, (op,), tuple(tensor.name for tensor in tensors), ("y",)))
        compared += compare(graph, {tensor.name: item for tensor, item in zip(tensors, data, strict=True)}, kernels, "ort-x86", tmp_path)
    assert compared >= 512


@pytest.mark.parametrize("factors", _FACTORS)
@pytest.mark.parametrize(
    ("kind", "kernels"),
    [
        *(pytest.param(kind, "mnn:cpu", marks=pytest.mark.mnn) for kind in ("Add", "Sub", "Mul", "Div", "Relu", "LeakyRelu")),
        *(pytest.param(kind, "torch:rebuilt", marks=pytest.mark.torch) for kind in ("Add", "Sub", "Mul", "Div", "LeakyRelu", "HardSwish")),
    ],
)
def test_results_next_to_ties(kind: str, kernels: str, factors: tuple[int, int, int], tmp_path: Path) -> None:
    """Whether a runtime divides by a scale or multiplies by its reciprocal decides some of them."""
    codes, count = codes_of("int8"), 2 if kind in _PAIRS else 1
    data = [item.reshape(-1) for item in np.meshgrid(codes, codes)][:count]
    unit, (first, second, third) = 0.0123456789, factors
    steps = [first * unit, second * unit]
    result = {"Mul": steps[0] * steps[1] * 2 * third * 8, "Div": first / second / third}.get(kind, 2 * third * unit)
    scales = [Quantization.per_tensor(float(np.float32(step)), place) for place, step in zip((-7, 0), steps, strict=True)]
    if kind == "Div":
        data[1] = np.where(data[1] == 0, 1, data[1]).astype(np.int8)
    tensors = [Tensor(f"x{place}", "int8", item.shape, None, scales[place]) for place, item in enumerate(data)]
    output = Tensor("y", "int8", None, None, Quantization.per_tensor(float(np.float32(result)), 4))
    op = Op(kind, tuple(tensor.name for tensor in tensors), ("y",), _ATTRIBUTES.get(kind, {}))
    graph = infer(Graph("g", {tensor.name: tensor for tensor in (*tensors, output)}, (op,), op.inputs, ("y",)))
    stored = {tensor.name: item for tensor, item in zip(tensors, data, strict=True)}
    compared = compare(graph, stored, kernels, {"mnn:cpu": "mnn", "torch:rebuilt": "torch"}[kernels], tmp_path)
    assert compared == len(data[0])


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("target", "dtype"), [("ort-x86", "uint8"), ("ort-arm", "int8")])
@pytest.mark.parametrize("kind", ["AveragePool", "GlobalAveragePool"])
def test_averages(kind: str, target: str, dtype: str, tmp_path: Path) -> None:
    compared = 0
    for seed in range(12):
        rng = np.random.default_rng((seed, 5))
        shape = (2, *map(int, rng.integers(3, 20, 3)))
        kernel, pads = tuple(map(int, rng.integers(1, 4, 2))), (0, 0, 0, 0) if seed % 3 else tuple(map(int, rng.integers(0, 2, 4)))
        window = {
            "kernel_shape": kernel,
            "strides": tuple(map(int, rng.integers(1, 4, 2))),
            "pads": tuple(min(pad, kernel[place % 2] - 1) for place, pad in enumerate(pads)),
            "count_include_pad": seed % 2,
        }
        scale = float(np.exp2(rng.uniform(-8, 2)))
        quantizations = [any_quantization(rng, dtype, scale, bool(seed % 2)) for _ in range(2)]
        tensors = {"x": Tensor("x", dtype, shape, None, quantizations[0]), "y": Tensor("y", dtype, None, None, quantizations[1])}
        op = Op(kind, ("x",), ("y",), {"data_format": "channels_first", **(window if kind == "AveragePool" else {})})
        low, high = integer_range(dtype)
        data = rng.integers(low, high, shape, endpoint=True).astype(dtype)
        compared += compare(infer(Graph("g", tensors, (op,), ("x",), ("y",))), {"x": data}, "onnxruntime:optimized", target, tmp_path)
    assert compared > 200
