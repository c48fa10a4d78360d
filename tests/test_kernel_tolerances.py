"""The tolerance of LiteRT's kernels holds for random scales of every operator with a model, and is hardly more than they need."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaded import tflite_graph
from tflite_models import TensorSpec, run_litert, single_op

from qconvert.evaluate import evaluate_op
from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range
from qconvert.kernels import KERNELS
from qconvert.runtimes.tflite_micro import TFLiteMicro

sys.path.insert(0, str(Path(__file__).parent / "targets"))
from one_operator import BUILTINS, CASES, random_feed

pytestmark = pytest.mark.litert

#: Their outputs have one quantization that the specification names.
_FIXED = ("LOGISTIC", "TANH", "SOFTMAX")
_NAMES = (
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "TRANSPOSE_CONV",
    "BATCH_MATMUL",
    "REQUANTIZE",
    "LEAKY_RELU",
    "RELU",
    "RELU6",
    "MEAN",
    "REDUCE_PROD",
    "ADD",
    "SUB",
    "MUL",
    "DIV",
    "ABS",
    *_FIXED,
)


def beyond(name: str, dtype: str, kernels: str, seed: int) -> tuple[float, float]:
    """By how much the kernel's integers are off at most, in steps beyond a rounding, less its reach; and the reach there."""
    rng = np.random.default_rng(seed)
    options, inputs, (output,) = CASES[name](dtype, 4)
    if name not in _FIXED:
        finest = -8 if name == "SQUARED_DIFFERENCE" else -2  # equal values leave squares of which steps of the difference are many
        output = replace(output, scale=float(np.float32(output.scale * np.exp(rng.uniform(finest, 2)))))
    data = single_op(BUILTINS.get(name, name), options, inputs, [output])
    feeds = [random_feed(tensor, name, rng) for tensor in inputs if tensor is not None and tensor.data is None]
    (found,) = run_litert(data, feeds, kernels)
    graph = tflite_graph(data)
    (op,) = graph.ops
    values = dict(zip(graph.inputs, feeds, strict=True))
    stored = [graph.constant(n) if graph[n].is_constant else values[n] for n in op.inputs]
    known = KERNELS[f"litert:{kernels}"].integers(graph, op, stored)
    left = (name, dtype, kernels) == ("DEPTHWISE_CONV_2D", "uint8", "default")  # its weights state an axis, which XNNPACK does not take
    if known is not None and not left:
        return float(np.min([np.abs(found - form.astype(np.float64)) for form in known.ways], axis=0).max()), 0.0
    real = evaluate_op(graph, op, stored)[0].real
    quantization = graph[op.outputs[0]].quantization
    assert real is not None and quantization is not None
    steps = real / quantization.step
    allowed, _ = KERNELS[f"litert:{kernels}"].tolerance(graph, op, steps)
    off = np.abs(found - np.clip(steps + quantization.point, *integer_range(dtype))) - 0.5
    worst = int(np.argmax(off - allowed))
    return float((off - allowed).flat[worst]), float(np.broadcast_to(allowed, off.shape).flat[worst])


@pytest.mark.parametrize("kernels", ["default", "reference"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, dtype) for name in _NAMES for dtype in ("int8", "int16")),
        ("DEPTHWISE_CONV_2D", "uint8"),
        ("SQUARED_DIFFERENCE", "int8"),
    ],
)
def test_no_kernel_is_off_by_more_than_its_reach(name: str, dtype: str, kernels: str) -> None:
    assert max(beyond(name, dtype, kernels, seed)[0] for seed in range(12)) <= 0


_BYTES, _SIGNED, _ALL = ("int8", "uint8"), ("int8", "int16"), ("int8", "uint8", "int16")
#: Operators whose integers rows know, and the types of their data.
_KNOWN = {
    "ADD SUB MUL MEAN SUM AVERAGE_POOL_2D RELU RELU6 LEAKY_RELU LOGISTIC TANH SOFTMAX CONV_2D TRANSPOSE_CONV FULLY_CONNECTED": _ALL,
    "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REQUANTIZE MAXIMUM MINIMUM CONCATENATION": _ALL,
    "HARD_SWISH PRELU": _BYTES,
    "BATCH_MATMUL ABS SQRT EXP LOG RSQRT DEPTHWISE_CONV_2D REDUCE_PROD": _SIGNED,
    "SQUARED_DIFFERENCE ELU GELU LOG_SOFTMAX L2_NORMALIZATION RELU_N1_TO_1": ("int8",),
}
#: Without a kernel, or without a right one.
_LACKING = {
    "default": (),
    "reference": ("SUM", "ELU"),
    "micro": ("SQRT", "EXP", "LOG", "GELU", "RELU_N1_TO_1", "RELU6", "RESIZE_BILINEAR of int16", "REDUCE_PROD"),
}
#: Their data and results have one quantization; results of others have one that the specification names.
_SHARED = ("AVERAGE_POOL_2D", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "MAXIMUM", "MINIMUM", "CONCATENATION")
_NAMED = (*_FIXED, "LOG_SOFTMAX", "L2_NORMALIZATION")
_ROOTS = ("EXP", "LOG", "SQRT", "RSQRT")
#: Of each case: operators, and elements that they have at least.
_OPERATORS, _ELEMENTS = 6, 60


def with_random_scales(name: str, dtype: str, rng: np.random.Generator) -> tuple[Any, list[TensorSpec | None], TensorSpec]:
    """Options, inputs and result of an operator of CASES, with any zero points, and ratios of scales that make ties among others."""
    options, inputs, (output,) = CASES[name](dtype, 2 if name == "FULLY_CONNECTED" else 4)
    low, high = integer_range(dtype)
    step = 1.0 if name in _ROOTS else 2.0 ** int(rng.integers(-5, 4))  # so that the scale of a bias stays exact
    middle = int(rng.choice([low, high, (low + high + 1) // 2, int(rng.integers(low, high + 1))]))

    def ratio() -> float:
        found = 2.0 ** rng.uniform(-2, 2)
        return float(rng.choice([found, 2.0 ** np.round(np.log2(found)), rng.integers(1, 16) / rng.integers(1, 16)]))

    def change(spec: TensorSpec | None, factor: float) -> TensorSpec | None:
        if spec is None or spec.scale is None or (spec.name == "w" and spec.data is not None):
            return spec
        moves = spec.dtype == dtype != "int16" and name not in _ROOTS
        return replace(spec, scale=np.float32(spec.scale * factor), zero_point=middle if moves else spec.zero_point)

    others = ratio() if name not in _SHARED else 1.0
    changed = [change(spec, step * (others if place and spec is not None and spec.name != "bias" and name != "TRANSPOSE_CONV" else 1.0))
               for place, spec in enumerate(inputs)]  # fmt: skip
    growth = step if name in _SHARED else step * ratio() * (step * others if name in ("MUL", "SQUARED_DIFFERENCE", "BATCH_MATMUL") else 1.0)
    result = output if name in _NAMED else change(output, growth)
    assert result is not None
    return options, changed, result


def compare_with_reference(name: str, dtype: str, kernels: str, seed: int) -> tuple[int, int]:
    """The elements of an operator whose integers its row knows, and those that differ."""
    rng = np.random.default_rng((seed, *name.encode(), *dtype.encode()))
    options, inputs, output = with_random_scales(name, dtype, rng)
    data = single_op(BUILTINS.get(name, name), options, inputs, [output])
    feeds = [random_feed(tensor, name, rng) for tensor in inputs if tensor is not None and tensor.data is None]
    graph, rows = tflite_graph(data), KERNELS["tflite-micro:reference" if kernels == "micro" else f"litert:{kernels}"]
    op = graph.ops[-1]
    if rows.fault(graph, op) and name != "SQRT":
        return 0, 0
    found = TFLiteMicro(data).run_in_order(feeds)[0] if kernels == "micro" else run_litert(data, feeds, kernels)[0]
    values = dict(zip(graph.inputs, feeds, strict=True))
    known = rows.integers(graph, op, [graph.constant(n) if graph[n].is_constant else values[n] for n in op.inputs])
    assert known is not None, [graph[item] for item in (*op.inputs, *op.outputs)]
    ways = [np.asarray(way).reshape(found.shape) == found for way in known.ways]
    return found.size, int((~np.any(ways, axis=0)).sum())


def cases() -> Iterator[Any]:
    for kernels, lacking in _LACKING.items():
        for name, dtype in ((name, dtype) for names, types in _KNOWN.items() for name in names.split() for dtype in types):
            if {name, f"{name} of {dtype}"}.isdisjoint(lacking) and (kernels, dtype) != ("micro", "uint8"):
                yield pytest.param(name, dtype, kernels, marks=[pytest.mark.tflite_micro] if kernels == "micro" else [])


@pytest.mark.parametrize(("name", "dtype", "kernels"), list(cases()))
def test_references_give_the_integers_of_the_runtime(name: str, dtype: str, kernels: str) -> None:
    tried = [compare_with_reference(name, dtype, kernels, seed) for seed in range(_OPERATORS)]
    assert sum(elements for elements, _ in tried) >= _ELEMENTS
    assert not sum(differing for _, differing in tried)


def test_int16_softmax_of_values_far_below_the_largest() -> None:
    """Each is 2 steps instead of none, and all together take from the largest."""
    count = 40
    data = single_op(
        "SOFTMAX", {"beta": 1.0}, [TensorSpec("x", (1, count), "int16", 0.002, 0)], [TensorSpec("y", (1, count), "int16", 1 / 32768, 0)]
    )
    given = np.full((1, count), -30000, np.int16)
    given[0, 0] = 30000
    (found,) = run_litert(data, [given])
    graph = tflite_graph(data)
    exact = np.zeros((1, count))
    exact[0, 0] = 32768
    allowed, _ = KERNELS["litert:default"].tolerance(graph, graph.ops[0], exact)
    off = np.abs(found - np.minimum(exact, 32767)) - 0.5
    assert 40 < off[0, 0] <= allowed[0, 0] < 120
    assert (off <= allowed).all()


@pytest.mark.parametrize("count", [3, 24, 40, 63])
def test_int16_mean_over_a_count_that_is_no_power_of_two(count: int) -> None:
    """The right shift of the multiplier holds a power of two alone, so the second rounding is coarser than the ratio says."""
    rng, worst = np.random.default_rng(0), -1.0
    for ratio in rng.uniform(0.3, 16, 12):
        inputs = [TensorSpec("x", (1, 300, count), "int16", 0.001, 0), TensorSpec("axes", (1,), "int32", data=np.array([2], np.int32))]
        output = TensorSpec("y", (1, 300), "int16", float(np.float32(0.001 / ratio)), 0)
        data = single_op("MEAN", {"keepDims": False}, inputs, [output])
        given = rng.integers(-2000, 2000, (1, 300, count)).astype(np.int16)
        (found,) = run_litert(data, [given])
        graph = tflite_graph(data)
        (op,) = graph.ops
        scales = [graph[name].quantization.step for name in (op.inputs[0], op.outputs[0])]
        exact = given.astype(np.float64).mean(axis=2) * scales[0] / scales[1]
        allowed, _ = KERNELS["litert:default"].tolerance(graph, op, exact)
        worst = max(worst, float((np.abs(found - exact) - 0.5 - allowed).max()))
    assert worst <= 0


@pytest.mark.cross_section
@pytest.mark.parametrize(
    ("name", "least", "most"), [("EXP", -9, 2), ("LOG", 0.001, 8), ("LOG", 0.0001, 0.002), ("RSQRT", 0.02, 9), ("GELU", -5, 5)]
)
def test_int16_functions_that_are_looked_up(name: str, least: float, most: float) -> None:
    """Every input of the range, among them those next to a logarithm's pole, where lines are off by hundreds of steps."""
    given = np.arange(-32768, 32768, dtype=np.int16)
    scale = float(np.float32(max(abs(least), abs(most)) / 32767))
    function = {"EXP": np.exp, "LOG": np.log, "RSQRT": lambda x: 1 / np.sqrt(x), "GELU": lambda x: x}[name]
    largest = float(np.abs(function(np.array([least, most], np.float64))).max())
    inputs = [TensorSpec("x", (65536,), "int16", scale, 0)]
    output = TensorSpec("y", (65536,), "int16", float(np.float32(largest / 32767)), 0)
    data = single_op(name, {"approximate": False} if name == "GELU" else None, inputs, [output])
    inside = given > 0 if name in ("LOG", "RSQRT") else np.full(given.shape, True)
    (found,) = run_litert(data, [np.where(inside, given, 1).astype(np.int16)])
    graph = tflite_graph(data)
    (op,) = graph.ops
    with np.errstate(all="ignore"):
        real = evaluate_op(graph, op, [given])[0].real
    assert real is not None
    exact = real[inside] / float(graph[op.outputs[0]].quantization.scale[0])
    allowed, _ = KERNELS["litert:default"].tolerance(graph, op, exact)
    off = np.abs(found[inside] - np.clip(exact, -32768, 32767)) - 0.5
    assert (off <= allowed).all(), (off - allowed).max()
    assert off.max() > 0.3 * allowed.max(), "the bound is hardly wider than the kernel needs"


def test_a_channel_without_a_shift_leaves_others_their_second_rounding() -> None:
    """Multipliers of 2.5, which rounds once, and of 0.3, which rounds to halves first."""
    given = np.arange(-128, 128, dtype=np.int8).reshape(256, 1, 1, 1)
    w = TensorSpec("w", (2, 1, 1, 1), "int8", (0.25, 0.03), (0, 0), data=np.ones((2, 1, 1, 1), np.int8))
    b = TensorSpec("b", (2,), "int32", (0.025, 0.003), (0, 0), data=np.zeros(2, np.int32))
    options = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "padding": 1}
    tensors = [TensorSpec("x", given.shape, "int8", 0.1, 0), w, b], [TensorSpec("y", (256, 1, 1, 2), "int8", 0.01, 0)]
    data = single_op("CONV_2D", options, *tensors)
    (found,) = run_litert(data, [given], "reference")
    graph = tflite_graph(data)
    (op,) = graph.ops
    exact = given * np.array([2.5, 0.3])
    allowed, _ = KERNELS["litert:reference"].tolerance(graph, op, exact)
    off = np.abs(found - np.clip(exact, -128, 127)) - 0.5
    assert (off <= allowed).all() and off.max() > 0.15, off.max()


def test_int16_sums_without_a_bias_are_rounded_twice() -> None:
    """Their sums have 32 bits: 367 * 0.0013625 is 0.50004, and becomes 0."""
    weights = np.array([[1]], np.int8)
    inputs = [TensorSpec("x", (400, 1), "int16", 0.001, 0), TensorSpec("w", (1, 1), "int8", 0.001, 0, data=weights)]
    worst = []
    for ratio in np.linspace(0.00132, 0.00142, 40):
        data = single_op("FULLY_CONNECTED", {}, inputs, [TensorSpec("y", (400, 1), "int16", float(np.float32(1e-6 / ratio)), 0)])
        given = np.arange(200, 600, dtype=np.int16).reshape(400, 1)
        (found,) = run_litert(data, [given])
        graph = tflite_graph(data)
        op = next(op for op in graph.ops if op.kind in ("Gemm", "MatMul"))
        scales = [graph[name].quantization.step for name in (*op.inputs[:2], op.outputs[0])]
        exact = given * scales[0] * scales[1] / scales[2]
        allowed, _ = KERNELS["litert:default"].tolerance(graph, op, exact)
        worst.append(float((np.abs(found - exact) - 0.5 - allowed).max()))
    assert -1e-3 < max(worst) <= 0


@pytest.mark.parametrize("growth", [1.0, 40.0, 900.0, 13800.0, 16000.0])
@pytest.mark.parametrize("name", ["ADD", "SUB"])
def test_int16_sums_whose_own_quantization_is_as_coarse_as_the_result_s(name: str, growth: float) -> None:
    """Operands are brought to 2^-14 of the larger scale; what is off by more than the bound's half needs it."""
    rng = np.random.default_rng(4)
    scales = (1e-4 * growth, 1.07e-4)
    inputs = [TensorSpec(item, (1, 20000), "int16", scale, 0) for item, scale in zip("ab", scales, strict=True)]
    data = single_op(name, {}, inputs, [TensorSpec("y", (1, 20000), "int16", 1.07e-4, 0)])
    most = max(2, int(20000 / growth))
    given = [rng.integers(-size, size, (1, 20000)).astype(np.int16) for size in (most, 30000)]
    graph = tflite_graph(data)
    (op,) = graph.ops
    (found,) = run_litert(data, given)
    exact = evaluate_op(graph, op, given)[0].real
    assert exact is not None
    steps = exact / 1.07e-4
    bound = KERNELS["litert:default"].tolerance(graph, op, steps)[0]
    inside = np.abs(steps) < 32000
    assert (np.abs(found - steps) <= 0.5 + bound)[inside].all()
    assert (np.abs(found - steps) - 0.5)[inside].max() > 0.4 * float(np.max(bound)) - 0.02


@pytest.mark.tflite_micro
@pytest.mark.parametrize("name", ["DIV", "EQUAL", "LESS", "GREATER_EQUAL"])
def test_references_of_tflite_micro_for_all_pairs(name: str) -> None:
    """Quotients include those whose shift C leaves undefined."""
    codes = np.arange(-128, 128, dtype=np.int8)
    pairs = [item.reshape(-1) for item in np.meshgrid(codes, codes[codes != 3])]
    specs = [TensorSpec(item, pairs[0].shape, "int8", 0.3, zero) for item, zero in (("a", -5), ("b", 3))]
    quotient = TensorSpec("y", pairs[0].shape, "int8", 3.0, 1) if name == "DIV" else TensorSpec("y", pairs[0].shape, "bool")
    (found,) = TFLiteMicro(single_op(name, {} if name == "DIV" else None, specs, [quotient])).run_in_order(pairs)
    kind = {"DIV": "Div", "EQUAL": "Equal", "LESS": "Less", "GREATER_EQUAL": "GreaterOrEqual"}[name]
    tensors = {
        item.name: Tensor(item.name, item.dtype, item.shape, None, item.scale and Quantization.per_tensor(item.scale, item.zero_point))
        for item in (*specs, quotient)
    }
    op = Op(kind, ("a", "b"), ("y",), {})
    known = KERNELS["tflite-micro:reference"].integers(Graph("g", tensors, (op,), op.inputs, op.outputs), op, pairs)
    assert known is not None and bool(known.fault) == (name == "DIV")
    np.testing.assert_array_equal(known.ways[0], found)


@pytest.mark.tflite_micro
def test_tflite_multiplies_the_scales_of_a_root_in_float32_and_tflite_micro_in_float64() -> None:
    data = single_op("RSQRT", None, [TensorSpec("x", (1,), "int8", 0.095, -128)], [TensorSpec("y", (1,), "int8", 0.0016, -128)])
    given, graph = np.array([61], np.int8), tflite_graph(data)
    known = {name: KERNELS[name].integers(graph, graph.ops[0], [given]) for name in ("litert:default", "tflite-micro:reference")}
    assert {name: item and int(item.ways[0][0]) for name, item in known.items()} == {"litert:default": 20, "tflite-micro:reference": 19}
    assert run_litert(data, [given])[0].tolist() == [20] and TFLiteMicro(data).run_in_order([given])[0].tolist() == [19]
