"""TVM's quantized dialect, relay.qnn, operator by operator: canonical graphs against the formulas that TVM publishes (qnn_formulas.py).

docs/tvm.md has the table; each of its rows names a test here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from passes.graphs import CONV, applied, constant, make, outputs, q
from qnn_formulas import (
    F32,
    Array,
    clamp,
    half_away,
    qnn_add,
    qnn_avg_pool2d,
    qnn_conv2d,
    qnn_conv2d_transpose,
    qnn_dequantize,
    qnn_leaky_relu,
    qnn_mul,
    qnn_quantize,
    qnn_requantize,
    qnn_requantize_float,
    qnn_softmax,
)  # fmt: skip

from qconvert import Graph, Op, Quantization, Tensor
from qconvert.arithmetic import FixedPoint
from qconvert.evaluate import evaluate
from qconvert.graph import integer_range, numpy_dtype

pytestmark = pytest.mark.property

ROUNDINGS = {"UPWARD": "single", "TONEAREST": "away"}
TYPES = ["int8", "uint8"]


# canonical graphs


def codes(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    low, high = integer_range(dtype)
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(numpy_dtype(dtype))


def every(dtype: str) -> Array:
    low, high = integer_range(dtype)
    return np.arange(low, high + 1).astype(dtype)


def pairs(dtype: str) -> tuple[Array, Array]:
    first, second = np.meshgrid(every(dtype), every(dtype), indexing="ij")
    return first, second


def result(graph: Graph, feed: dict[str, Array], rounding: str = "UPWARD", onnxruntime: bool = True) -> Array:
    """The graph's output with its requantizations in fixed point: the evaluator's, and onnxruntime's, which is the same."""
    decomposed, _ = applied(graph, "requantize_to_fixed_point", fixed_point=ROUNDINGS[rounding])
    assert "Requantize" not in {op.kind for op in decomposed.ops}
    found = evaluate(decomposed, feed)[graph.outputs[0]]
    if onnxruntime:
        assert np.array_equal(found, outputs(decomposed, feed)[0])
    return found


def ints(name: str, value: Any, dtype: str = "int32") -> Tensor:
    return constant(name, np.asarray(value, dtype))


def moved(name: str, dtype: str, shape: tuple[int, ...], output: tuple[float, int]) -> tuple[list[Op], list[Tensor]]:
    """A tensor on the result's quantization as int32, and that without a label: <name>/moved and <name>/plain."""
    tensors = [Tensor(f"{name}/moved", "int32", shape, None, q(*output)), Tensor(f"{name}/plain", "int32", shape)]
    return [Op("Requantize", (name,), (f"{name}/moved",)), Op("Reinterpret", (f"{name}/moved",), (f"{name}/plain",))], tensors


def stored(name: str, dtype: str, shape: tuple[int, ...], output: tuple[float, int]) -> tuple[list[Op], list[Tensor]]:
    """Plain int32 integers, limited and stored, as the tensor y with its label."""
    low, high = integer_range(dtype)
    tensors = [ints("low", low), ints("high", high), Tensor("limited", "int32", shape), Tensor("stored", dtype, shape),
               Tensor("y", dtype, shape, None, q(*output))]  # fmt: skip
    return [Op("Clip", (name, "low", "high"), ("limited",)), Op("Cast", ("limited",), ("stored",), {"to": dtype}),
            Op("Reinterpret", ("stored",), ("y",))], tensors  # fmt: skip


# the table


@pytest.mark.parametrize("dtype", TYPES)
def test_quantize(dtype: str) -> None:
    """Equal but for exact ties, which TVM's round takes away from zero, and ours, as ONNX's, to even."""
    x = np.random.default_rng(0).normal(0, 4, 4000).astype(F32)
    ties = (np.arange(-7, 20) + 0.5).astype(F32) * F32(0.125)
    tensors = [Tensor("x", "float32", ("n",)), Tensor("y", dtype, None, None, q(0.125, 7))]
    graph = make([Op("Quantize", ("x",), ("y",))], tensors, "x", "y")
    assert np.array_equal(evaluate(graph, {"x": x})["y"], qnn_quantize(x, 0.125, 7, dtype))
    found, wanted = evaluate(graph, {"x": ties})["y"], qnn_quantize(ties, 0.125, 7, dtype)
    assert np.array_equal(found, np.rint(ties / 0.125) + 7) and np.count_nonzero(found != wanted) == 14


def test_dequantize() -> None:
    for dtype, point, axis in (("uint8", 100, None), ("int8", 3, None), ("int32", 0, 1)):
        data, scales = codes(dtype, (5, 3), 1) // (2**8 if dtype == "int32" else 1), F32([0.3, 0.007, 1.1])
        quantization = q(0.3, point) if axis is None else Quantization.per_axis(scales, 1)
        graph = make([Op("Dequantize", ("x",), ("y",))], [Tensor("x", dtype, (5, 3), None, quantization)], "x", "y")
        assert np.array_equal(evaluate(graph, {"x": data})["y"], qnn_dequantize(data, 0.3 if axis is None else scales, point))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("given", "dtype"), [("int8", "int8"), ("int8", "uint8"), ("uint8", "int8"), ("int32", "int8"), ("int32", "uint8"),
                                              ("int16", "int8"), ("int8", "int16"), ("int8", "int32")])  # fmt: skip
def test_requantize(given: str, dtype: str, rounding: str) -> None:
    """Multipliers above and below 1, and of ties: 1 / 2 and 3 / 4."""
    point = 0 if given == "int32" else 3
    for wide, output in ((0.05, 0.031), (0.031, 0.05), (0.25, 0.5), (0.375, 0.5)):
        scale = wide * 2.0 ** {"int32": -18, "int16": -7}.get(given, 0)
        data = codes(given, (4000,), 2)
        tensors = [Tensor("x", given, (4000,), None, q(scale, point)), Tensor("y", dtype, None, None, q(output, 5))]
        graph = make([Op("Requantize", ("x",), ("y",))], tensors, "x", "y")
        assert np.array_equal(result(graph, {"x": data}, rounding), qnn_requantize(data, (scale, point), (output, 5), dtype, rounding))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_requantize_of_channels(rounding: str) -> None:
    scales, data = F32([1e-5, 3.7e-6, 2.2e-7, 9.1e-4]), codes("int32", (50, 4, 6), 3) // 2**9
    tensors = [Tensor("x", "int32", (50, 4, 6), None, Quantization.per_axis(scales, 1)), Tensor("y", "uint8", None, None, q(0.02, 128))]
    graph = make([Op("Requantize", ("x",), ("y",))], tensors, "x", "y")
    assert np.array_equal(result(graph, {"x": data}, rounding), qnn_requantize(data, (scales, 0), (0.02, 128), "uint8", rounding, 1))


@pytest.mark.onnxruntime
@pytest.mark.parametrize("real", ["float32", "float64"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_requantize_in_floating_point(rounding: str, real: str) -> None:
    """Differences, a product, the zero point and the rounding as operators in float."""
    data, given, output = codes("int32", (3000,), 4) // 2**12, (0.001, 0), (0.06, -9)
    low, high = integer_range("int8")
    numbers = {
        "m": float(F32(0.001)) / float(F32(0.06)),
        "zero": -9,
        "half": 0.5,
        "low": low,
        "high": high,
        "none": 0,
        "one": 1,
        "less": -1,
    }
    tensors = [Tensor("x", "int32", (3000,)), *(constant(name, np.array(value, real)) for name, value in numbers.items())]
    ops = [Op("Cast", ("x",), ("c",), {"to": real}), Op("Mul", ("c", "m"), ("p",)), Op("Add", ("p", "zero"), ("v",))]
    if rounding == "UPWARD":
        ops += [Op("Add", ("v", "half"), ("b",)), Op("Floor", ("b",), ("r",))]
    else:  # TVM's own way where there is no such instruction: to the magnitude plus a half, cut off
        ops += [Op("Less", ("v", "none"), ("n",)), Op("Where", ("n", "less", "one"), ("s",)), Op("Abs", ("v",), ("a",)),
                Op("Add", ("a", "half"), ("b",)), Op("Floor", ("b",), ("f",)), Op("Mul", ("f", "s"), ("r",))]  # fmt: skip
    ops += [Op("Clip", ("r", "low", "high"), ("k",)), Op("Cast", ("k",), ("y",), {"to": "int8"})]
    tensors += [Tensor(name, real, None) for name in "cpvbrsafk"] + [Tensor("n", "bool", None), Tensor("y", "int8", None)]
    names = {name for op in ops for side in (op.inputs, op.outputs) for name in side}
    graph = make(ops, [tensor for tensor in tensors if tensor.name in names], "x", "y")
    wanted = qnn_requantize_float(data, given, output, "int8", rounding, getattr(np, real))
    assert np.array_equal(evaluate(graph, {"x": data})["y"], wanted)
    assert np.array_equal(outputs(graph, {"x": data})[0], wanted)


def test_where_floating_point_and_int64_differ() -> None:
    """TONEAREST rounds the integer with its zero point in floating point, and without it in int64: -0.5 becomes 3 or 2 at zero point 3."""
    data = np.array([-1], np.int8)
    assert qnn_requantize(data, (0.5, 0), (1.0, 3), "int8", "TONEAREST")[0] == 2
    assert qnn_requantize_float(data, (0.5, 0), (1.0, 3), "int8", "TONEAREST", np.float32)[0] == 3


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", TYPES)
def test_conv2d(dtype: str) -> None:
    """The integers are ConvInteger's; with a bias and a requantize after it, by channels, the result is equal too."""
    x, w = codes(dtype, (2, 3, 6, 6), 5), codes("int8", (4, 3, 3, 3), 6)
    bias, scales = codes("int32", (4,), 7) // 2**17, F32([0.011, 0.004, 0.0173, 0.009])
    product, output = F32(0.037) * scales, (0.29, 4)
    total = qnn_conv2d(x, w, 9, 0, 1)
    tensors = [Tensor("x", dtype, x.shape, None, q(0.037, 9)), Tensor("plain", dtype, x.shape), ints("w", w, "int8"),
               ints("zero", 9, dtype), Tensor("acc", "int32", total.shape)]  # fmt: skip
    ops = [Op("Reinterpret", ("x",), ("plain",)), Op("ConvInteger", ("plain", "w", "zero"), ("acc",), CONV)]
    alone = make(ops, tensors, "x", "acc")
    assert np.array_equal(evaluate(alone, {"x": x})["acc"], total) and np.array_equal(outputs(alone, {"x": x})[0], total)
    tensors += [ints("b", bias.reshape(4, 1, 1)), Tensor("sum", "int32", total.shape),
                Tensor("on", "int32", total.shape, None, Quantization.per_axis(product, 1)),
                Tensor("y", dtype, None, None, q(*output))]  # fmt: skip
    ops += [Op("Add", ("acc", "b"), ("sum",)), Op("Reinterpret", ("sum",), ("on",)), Op("Requantize", ("on",), ("y",))]
    for rounding in ROUNDINGS:
        wanted = qnn_requantize(total + bias.reshape(4, 1, 1), (product, 0), output, dtype, rounding, 1)
        assert np.array_equal(result(make(ops, tensors, "x", "y"), {"x": x}, rounding), wanted)
    layer = [Tensor("x", dtype, x.shape, None, q(0.037, 9)), constant("w", w, Quantization.per_axis(scales, 0)),
             constant("b", bias, Quantization.per_axis(product, 0)), Tensor("y", dtype, None, None, q(*output))]  # fmt: skip
    whole = make([Op("Conv", ("x", "w", "b"), ("y",), CONV)], layer, "x", "y")
    wanted = qnn_requantize(total + bias.reshape(4, 1, 1), (product, 0), output, dtype, "UPWARD", 1)
    assert np.array_equal(result(whole, {"x": x}), wanted) and np.array_equal(evaluate(whole, {"x": x})["y"], wanted)


def test_conv2d_transpose() -> None:
    x, w = codes("uint8", (1, 3, 4, 5), 8), codes("int8", (3, 4, 3, 3), 9)
    total = qnn_conv2d_transpose(x, w, 120, 0, 2)
    wanted = qnn_requantize(total, (F32(0.02) * F32(0.013), 0), (0.21, 100), "uint8")
    tensors = [Tensor("x", "uint8", x.shape, None, q(0.02, 120)), constant("w", np.ascontiguousarray(w.swapaxes(0, 1)), q(0.013)),
               Tensor("y", "uint8", None, None, q(0.21, 100))]  # fmt: skip
    attributes = {**CONV, "pads": (0, 0, 0, 0), "strides": (2, 2)}
    graph = make([Op("ConvTranspose", ("x", "w"), ("y",), attributes)], tensors, "x", "y")  # type: ignore[arg-type]
    assert np.array_equal(evaluate(graph, {"x": x})["y"], wanted)


@pytest.mark.onnxruntime
def test_dense() -> None:
    """Weights are (units, depth) on both sides."""
    x, w, bias = codes("int8", (7, 30), 10), codes("int8", (5, 30), 11), codes("int32", (5,), 12) // 2**17
    product = F32(0.05) * F32(0.02)
    total = (x.astype(int) + 4) @ (w.astype(int) - 0).T + bias
    tensors = [Tensor("x", "int8", x.shape, None, q(0.05, -4)), constant("w", w, q(0.02)), constant("b", bias, q(float(product))),
               Tensor("y", "int8", None, None, q(0.7, 3))]  # fmt: skip
    graph = make([Op("Gemm", ("x", "w", "b"), ("y",))], tensors, "x", "y")
    for rounding in ROUNDINGS:
        assert np.array_equal(result(graph, {"x": x}, rounding), qnn_requantize(total, (product, 0), (0.7, 3), "int8", rounding))


@pytest.mark.onnxruntime
def test_batch_matmul() -> None:
    """TVM's second operand is (batch, N, K): a Transpose before the product."""
    x, y = codes("int8", (3, 4, 9), 13), codes("int8", (3, 6, 9), 14)
    total = np.einsum("bmk,bnk->bmn", x.astype(int) - 5, y.astype(int) + 7)
    tensors = [Tensor("x", "int8", x.shape, None, q(0.03, 5)), Tensor("w", "int8", y.shape, None, q(0.06, -7)),
               Tensor("t", "int8", (3, 9, 6), None, q(0.06, -7)), Tensor("y", "int8", None, None, q(0.4, 1))]  # fmt: skip
    ops = [Op("Transpose", ("w",), ("t",), {"perm": (0, 2, 1)}), Op("MatMul", ("x", "t"), ("y",))]
    wanted = qnn_requantize(total, (F32(0.03) * F32(0.06), 0), (0.4, 1), "int8")
    assert np.array_equal(result(make(ops, tensors, "x w", "y"), {"x": x, "w": y}), wanted)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["Add", "Sub"])
def test_add_and_subtract(kind: str, dtype: str) -> None:
    """TVM rounds both operands onto the result's quantization first; decomposed so, all 65,536 pairs are equal. Add rounds the sum once."""
    a, b = pairs(dtype)
    quantizations, output = ((0.05, 3), (0.021, 9)), (0.043, 1)
    wanted = qnn_add(a, b, quantizations, output, dtype, 1 if kind == "Add" else -1)
    operands = [Tensor(name, dtype, a.shape, None, q(*quantization)) for name, quantization in zip("ab", quantizations, strict=True)]
    parts = [moved(name, dtype, a.shape, output) for name in "ab"]
    end = stored("sum", dtype, a.shape, output)
    ops = [*parts[0][0], *parts[1][0], Op(kind, ("a/plain", "b/plain"), ("total",)),
           Op("Sub" if kind == "Add" else "Add", ("total", "zero"), ("sum",)), *end[0]]  # fmt: skip
    tensors = [
        *operands,
        *parts[0][1],
        *parts[1][1],
        ints("zero", output[1]),
        Tensor("total", "int32", a.shape),
        Tensor("sum", "int32", a.shape),
        *end[1],
    ]
    assert np.array_equal(result(make(ops, tensors, "a b", "y"), {"a": a, "b": b}), wanted)
    once = make([Op(kind, ("a", "b"), ("y",))], [*operands, Tensor("y", dtype, a.shape, None, q(*output))], "a b", "y")
    apart = np.abs(evaluate(once, {"a": a, "b": b})["y"].astype(int) - wanted)
    assert apart.max() == 1 and 0.1 < apart.mean() < 0.3


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", TYPES)
def test_mul(dtype: str) -> None:
    """The product of differences is on the float32 product of both scales; with such a quantization named, all pairs are equal."""
    a, b = pairs(dtype)
    quantizations, output = ((0.05, 3), (0.021, 9)), (0.043, 1)
    wanted = qnn_mul(a, b, quantizations, output, dtype)
    quantization = q(float(F32(0.05) * F32(0.021)))
    ops, tensors = [], []
    for name, (scale, point) in zip("ab", quantizations, strict=True):
        tensors += [Tensor(name, dtype, a.shape, None, q(scale, point)), Tensor(f"{name}/plain", dtype, a.shape),
                    ints(f"{name}/zero", point), *(Tensor(f"{name}/{hint}", "int32", a.shape) for hint in ("wide", "steps"))]  # fmt: skip
        ops += [Op("Reinterpret", (name,), (f"{name}/plain",)), Op("Cast", (f"{name}/plain",), (f"{name}/wide",), {"to": "int32"}),
                Op("Sub", (f"{name}/wide", f"{name}/zero"), (f"{name}/steps",))]  # fmt: skip
    ops += [Op("Mul", ("a/steps", "b/steps"), ("acc",)), Op("Reinterpret", ("acc",), ("on",)), Op("Requantize", ("on",), ("y",))]
    tensors += [
        Tensor("acc", "int32", a.shape),
        Tensor("on", "int32", a.shape, None, quantization),
        Tensor("y", dtype, None, None, q(*output)),
    ]
    assert np.array_equal(result(make(ops, tensors, "a b", "y"), {"a": a, "b": b}), wanted)
    once = make([Op("Mul", ("a", "b"), ("y",))], [*(t for t in tensors if t.name in ("a", "b")), tensors[-1]], "a b", "y")
    assert np.array_equal(result(once, {"a": a, "b": b}), wanted)


@pytest.mark.onnxruntime
def test_concatenate() -> None:
    """Operands with other quantizations than the result's are requantized, those with its quantization stay."""
    a, b = codes("uint8", (2, 3, 4), 15), codes("uint8", (2, 5, 4), 16)
    output = (0.08, 12)
    wanted = np.concatenate([a, qnn_requantize(b, (0.05, 130), output, "uint8")], axis=1)
    tensors = [Tensor("a", "uint8", a.shape, None, q(*output)), Tensor("b", "uint8", b.shape, None, q(0.05, 130)),
               Tensor("m", "uint8", b.shape, None, q(*output)), Tensor("y", "uint8", None, None, q(*output))]  # fmt: skip
    ops = [Op("Requantize", ("b",), ("m",)), Op("Concat", ("a", "m"), ("y",), {"axis": 1})]
    assert np.array_equal(result(make(ops, tensors, "a b", "y"), {"a": a, "b": b}), wanted)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", TYPES)
def test_leaky_relu(dtype: str) -> None:
    """TVM rounds up to three times. Decomposed, all 256 codes are equal; LeakyRelu, which rounds once, is at most 1 apart."""
    data, given, output, alpha = every(dtype), (0.05, 20), (0.03, -5 if dtype == "int8" else 90), 0.1
    wanted = qnn_leaky_relu(data, alpha, given, output, dtype)
    slope, rest = FixedPoint.of(alpha), int(FixedPoint.of(1 - alpha)(output[1]))
    start, end = moved("x", dtype, (256,), output), stored("chosen", dtype, (256,), output)
    wide = {"m": int(slope.multiplier), "h": int(slope.half), "s": int(slope.shift), "z": rest}
    tensors = [Tensor("x", dtype, (256,), None, q(*given)), *start[1], *(ints(name, value, "int64") for name, value in wide.items()),
               ints("point", given[1], dtype), Tensor("codes", dtype, (256,)), Tensor("less", "bool", (256,)), *end[1],
               *(Tensor(name, "int64", (256,)) for name in ("wide", "p", "a", "r", "l")), Tensor("lower", "int32", (256,)),
               Tensor("chosen", "int32", (256,))]  # fmt: skip
    ops = [*start[0], Op("Cast", ("x/plain",), ("wide",), {"to": "int64"}), Op("Mul", ("wide", "m"), ("p",)), Op("Add", ("p", "h"), ("a",)),
           Op("BitShift", ("a", "s"), ("r",), {"direction": "RIGHT"}), Op("Add", ("r", "z"), ("l",)),
           Op("Cast", ("l",), ("lower",), {"to": "int32"}), Op("Reinterpret", ("x",), ("codes",)),
           Op("Less", ("codes", "point"), ("less",)), Op("Where", ("less", "lower", "x/plain"), ("chosen",)), *end[0]]  # fmt: skip
    assert np.array_equal(result(make(ops, tensors, "x", "y"), {"x": data}), wanted)
    once = make([Op("LeakyRelu", ("x",), ("y",), {"alpha": alpha})], [tensors[0], Tensor("y", dtype, None, None, q(*output))], "x", "y")
    exact = qnn_dequantize(data, *given).astype(np.float64)
    found = evaluate(once, {"x": data})["y"]
    assert np.array_equal(found, clamp(np.rint(np.where(exact < 0, alpha * exact, exact) / F32(0.03)) + output[1], dtype))
    assert np.abs(found.astype(int) - wanted).max() <= 1


def test_softmax() -> None:
    """TVM computes exponentials by shifts, and shares in 7 bits. Softmax is the real function; TVM's is some steps of 1 / 256 away."""
    given, output = (0.06, 3), (1 / 256, -128)
    data = np.random.default_rng(17).integers(-30, 60, (200, 10)).astype(np.int8)
    graph = make(
        [Op("Softmax", ("x",), ("y",))],
        [Tensor("x", "int8", data.shape, None, q(*given)), Tensor("y", "int8", None, None, q(*output))],
        "x",
        "y",
    )
    x = qnn_dequantize(data, *given).astype(np.float64)
    shares = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
    found = evaluate(graph, {"x": data})["y"]
    assert np.array_equal(found, clamp(np.rint(shares * 256) - 128, "int8"))
    apart = np.abs(found.astype(int) - qnn_softmax(data, given, output))
    assert 2 <= apart.max() <= 12, apart.max()


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", TYPES)
def test_avg_pool2d(dtype: str) -> None:
    """TVM divides sums of stored integers towards zero; decomposed, it is equal. AveragePool rounds the exact average once."""
    data, given, output = codes(dtype, (1, 2, 7, 7), 18), (0.05, 7), (0.043, 3)
    wanted = qnn_avg_pool2d(data, given, output, dtype, 3)
    start, end = moved("x", dtype, data.shape, output), stored("average", dtype, (1, 2, 5, 5), output)
    shape = (1, 2, 5, 5)
    tensors = [Tensor("x", dtype, data.shape, None, q(*given)), *start[1], ints("w", np.ones((2, 1, 3, 3)), "float32"), ints("count", 9),
               *(Tensor(name, "float32", None) for name in ("real", "sums")),
               *(Tensor(name, "int32", shape) for name in ("total", "average")), *end[1]]  # fmt: skip
    window = {**CONV, "pads": (0, 0, 0, 0), "group": 2}
    ops = [*start[0], Op("Cast", ("x/plain",), ("real",), {"to": "float32"}), Op("Conv", ("real", "w"), ("sums",), window),  # type: ignore[arg-type]
           Op("Cast", ("sums",), ("total",), {"to": "int32"}), Op("Div", ("total", "count"), ("average",)), *end[0]]  # fmt: skip
    assert np.array_equal(result(make(ops, tensors, "x", "y"), {"x": data}), wanted)
    pool = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    once = make([Op("AveragePool", ("x",), ("y",), pool)], [tensors[0], Tensor("y", dtype, None, None, q(*output))], "x", "y")  # type: ignore[arg-type]
    assert np.abs(evaluate(once, {"x": data})["y"].astype(int) - wanted).max() <= 1


def test_simulated_quantize_and_dequantize() -> None:
    """simulated_quantize gives the integers as float32: a Quantize, and a Cast. With simulated_dequantize: Quantize and Dequantize."""
    x = np.random.default_rng(19).normal(0, 3, 2000).astype(F32)
    tensors = [
        Tensor("x", "float32", (2000,)),
        Tensor("s", "int8", (2000,), None, q(0.03, 11)),
        Tensor("p", "int8", (2000,)),
        Tensor("i", "float32", (2000,)),
    ]
    ops = [
        Op("Quantize", ("x",), ("s",)),
        Op("Reinterpret", ("s",), ("p",)),
        Op("Cast", ("p",), ("i",), {"to": "float32"}),
        Op("Dequantize", ("s",), ("y",)),
    ]
    graph = make(ops, tensors, "x", "i y")
    integers = np.clip(half_away(x / F32(0.03)) + F32(11), -128, 127)
    found = evaluate(graph, {"x": x})
    assert np.array_equal(found["i"], integers)
    assert np.array_equal(found["y"], ((integers - F32(11)) * F32(0.03)).astype(F32))


FUNCTIONS: dict[str, tuple[Callable[[Array], Any], float, float]] = {
    "Tanh": (np.tanh, 4, 1), "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 6, 1), "Exp": (np.exp, 2, 7), "Sqrt": (np.sqrt, 4, 2),
    "Rsqrt": (lambda x: 1 / np.sqrt(x), 4, 4), "Erf": (lambda x: np.vectorize(math.erf)(x), 3, 1), "Log": (np.log, 4, 3),
    "HardSwish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, 5, 5), "Abs": (np.abs, 3, 4),
}  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_tables(kind: str, dtype: str) -> None:
    """TVM makes a table of 256: dequantize, the function in float32, quantize. So do we, in float64: all codes equal but for ties."""
    function, widest, high = FUNCTIONS[kind]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        given, output = (float(F32(widest / 120 * rng.uniform(0.8, 1.2))), int(rng.integers(-20, 20)) + (128 if dtype == "uint8" else 0)), (
            float(F32(high / 120 * rng.uniform(0.8, 1.2))), int(rng.integers(-20, 20)) + (128 if dtype == "uint8" else 0))  # fmt: skip
        data = every(dtype)
        with np.errstate(all="ignore"):
            x = qnn_dequantize(data, *given)
            steps = np.asarray(function(x), F32) / F32(output[0])
            wanted = clamp(np.nan_to_num(half_away(steps), nan=0, posinf=1e6, neginf=-1e6).astype(np.int64) + output[1], dtype)
            is_near = np.abs(np.abs(steps - np.floor(steps)) - 0.5) < 1e-4
        tensors = [
            Tensor("x", dtype, (256,), None, q(*given)),
            Tensor("y", dtype, None, None, q(*output)),
            Tensor("z", dtype, None, None, q(*output)),
        ]
        graph = make([Op(kind, ("x",), ("z",)), Op("Requantize", ("z",), ("y",))], tensors, "x", "y")
        table, _ = applied(graph, "unary_to_table", tables="chains")
        assert [op.kind for op in table.ops][-1] == "Gather"
        found = evaluate(table, {"x": data})["y"]
        assert np.array_equal(found, outputs(table, {"x": data})[0])
        assert np.array_equal(found[~is_near], wanted[~is_near])
        assert np.abs(found.astype(int) - wanted).max() <= 1


def test_each_row_of_the_table_has_a_test() -> None:
    page = (Path(__file__).parent.parent / "docs" / "tvm.md").read_text()
    rows = re.findall(r"^\| (qnn\.[^|]+)\|.*\| (test_\w+) \|$", page, re.M)
    assert len(rows) >= 15 and all(name in globals() for _, name in rows)
    listed = " ".join(operators for operators, _ in rows)
    wanted = (
        "quantize dequantize requantize conv2d conv2d_transpose dense batch_matmul add subtract mul concatenate leaky_relu softmax "
        "avg_pool2d simulated_quantize simulated_dequantize tanh sigmoid exp sqrt rsqrt erf hardswish log abs"
    )
    assert all(re.search(rf"qnn\.{name}\b", listed) for name in wanted.split())
