"""The exact evaluation of elementwise operators, reductions and movement against onnx and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from qconvert.errors import UnsupportedError
from qconvert.graph import Quantization
from qconvert.operators import KINDS
from tests.evaluate.evaluation import close, quick, reference, run, runtime


def test_every_operator_has_a_function() -> None:
    without = {name for name, kind in KINDS.items() if kind.evaluate is None and kind.rule not in ("state", "control")}
    assert without == {"Opaque"}


# Elementwise


PLAIN = ["Abs", "Neg", "Exp", "Log", "Sqrt", "Sin", "Cos", "Round", "Floor", "Ceil", "Sign", "Relu", "HardSwish", "Sigmoid", "Tanh"]
PLAIN += ["Reciprocal", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Erf", "Softplus", "Softsign", "Mish", "IsNaN", "IsInf", "Selu"]
UNARY: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in PLAIN},
    "Celu": {"alpha": 0.75},
    "ThresholdedRelu": {"alpha": 1.5},
    "HardSigmoid": {"alpha": 0.25, "beta": 0.375},
    "LeakyRelu": {"alpha": 0.25},
    "Elu": {"alpha": 0.75},
    "Softmax": {"axis": 1},
    "LogSoftmax": {"axis": -1},
    "LpNormalization": {"axis": 1, "p": 2},
}


@pytest.mark.formats
@pytest.mark.property
@pytest.mark.parametrize("kind", UNARY)
@given(seed=st.integers(0, 2**32))
@quick
def test_unary_equals_onnx(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 3, tuple(rng.integers(1, 5, 3)))
    x = np.abs(x) if kind in ("Log", "Sqrt") else np.clip(x / 4, -1, 1) if kind in ("Asin", "Acos") else x
    if kind in ("IsNaN", "IsInf"):
        x = np.where(rng.random(x.shape) < 0.6, rng.choice([np.nan, np.inf, -np.inf], x.shape), x)
    # The reference keeps HardSwish's factor 1/6 and Erf's and Selu's results in float32.
    tolerance = 1e-6 if kind in ("HardSwish", "Erf", "Selu") else 1e-9
    expected = reference(kind, [x], **UNARY[kind])[0]
    close(run(kind, [x], "bool" if expected.dtype == bool else "float64", **UNARY[kind])[0], expected, tolerance)


@pytest.mark.parametrize("kind", ["Softplus", "Mish", "Celu", "Selu", "Softsign"])
def test_large_values_do_not_overflow(kind: str) -> None:
    x = np.array([-1e4, 1e4])
    limits = {"Softplus": [0, 1e4], "Mish": [0, 1e4], "Celu": [-1, 1e4], "Softsign": [-1, 1]}
    expected = limits.get(kind, [-1.7580993408473766, 10507.009873554803])
    assert np.allclose(run(kind, [x])[0].stored, expected, rtol=1e-3 if kind == "Softsign" else 1e-7, atol=1e-9)


@pytest.mark.onnxruntime
@pytest.mark.property
@given(seed=st.integers(0, 2**32), low=st.sampled_from([-1.0, 0.0, 0.5, -2.0]), high=st.sampled_from([0.0, 1.0, 3.0]))
@quick
def test_dynamic_quantization_equals_onnxruntime(seed: int, low: float, high: float) -> None:
    x = np.random.default_rng(seed).uniform(min(low, high), high, (3, 40)).astype(np.float32)
    expected = runtime("DynamicQuantizeLinear", [x], 3)
    for got, wanted in zip(run("DynamicQuantizeLinear", [x], "uint8", "float32", "uint8"), expected, strict=True):
        assert got.stored.dtype == wanted.dtype
        assert got.stored.shape == wanted.shape
        assert np.array_equal(got.stored, wanted)


def test_exclusive_or() -> None:
    a, b = np.array([[False], [True]]), np.array([False, True])
    assert run("Xor", [a, b], "bool")[0].stored.tolist() == [[False, True], [True, False]]


@pytest.mark.formats
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_equals_onnx(approximate: str) -> None:
    x = np.linspace(-6, 6, 200).reshape(2, 100)
    expected = reference("Gelu", [x.astype(np.float32)], approximate=approximate)[0]
    close(run("Gelu", [x], approximate=approximate)[0], expected, 1e-6)


def test_operators_that_onnx_lacks() -> None:
    a, b = np.array([7.5, -7.5, 7.5, -7.5]), np.array([2.0, 2.0, -2.0, -2.0])
    assert run("FloorDiv", [a, b])[0].stored.tolist() == [3, -4, -4, 3]
    assert run("FloorMod", [a, b])[0].stored.tolist() == [1.5, 0.5, -0.5, -1.5]
    assert run("SquaredDifference", [a, b])[0].stored.tolist() == [30.25, 90.25, 90.25, 30.25]
    assert run("Square", [a])[0].stored.tolist() == [56.25] * 4
    assert run("Rsqrt", [np.array([4.0, 0.25])])[0].stored.tolist() == [0.5, 2]
    assert np.allclose(run("Softmax", [np.log([[1.0, 2.0]])], beta=2.0)[0].stored, [[0.2, 0.8]])
    assert run("ReduceAny", [np.array([[0, 1], [0, 0]], bool), np.array([1])], "bool", keepdims=0)[0].stored.tolist() == [True, False]


@pytest.mark.formats
@pytest.mark.property
@pytest.mark.parametrize(
    "kind", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
)
@given(seed=st.integers(0, 2**32))
@quick
def test_binary_equals_onnx(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    full = rng.integers(1, 4, 3)
    part = np.where(rng.random(3) < 0.4, 1, full)[int(rng.integers(0, 3)) :]
    a, b = rng.normal(0, 2, tuple(full)).round(1), rng.normal(0, 2, tuple(part)).round(1)
    b = np.where(b == 0, 1, b) if kind == "Div" else b
    a = np.abs(a) + 0.1 if kind == "Pow" else a
    expected = reference(kind, [a, b])[0]
    got = run(kind, [a, b], "bool" if expected.dtype == bool else "float64")[0]
    close(got, expected)
    assert (got.real is None) == (expected.dtype == bool)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_quotients_of_the_lowest_integer_are_those_of_onnxruntime(dtype: str) -> None:
    lowest = np.iinfo(dtype).min
    a, b = np.array([lowest, lowest, lowest, 7, -7], dtype), np.array([2, -3, lowest, -2, 3], dtype)
    assert run("Div", [a, b], dtype)[0].stored.tolist() == runtime("Div", [a, b])[0].tolist() == [lowest // 2, lowest // -3, 1, -3, -2]


def test_plain_integers_stay_integers() -> None:
    a, b = np.array([7, -7, 2**62 + 1]), np.array([2, 2, 1])
    assert run("Div", [a, b], "int64")[0].stored.tolist() == [3, -3, 2**62 + 1]
    assert run("Add", [a, b], "int64")[0].stored.tolist() == [9, -5, 2**62 + 2]
    assert run("Mul", [a, b], "int64")[0].real is None
    assert run("Cast", [np.array([1.9, -1.9])], "int32", to="int32")[0].stored.tolist() == [1, -1]


@pytest.mark.parametrize(("activation", "low", "high"), [("relu", 0, 9), ("relu6", 0, 6), ("relu_n1_to_1", -1, 1)])
def test_fused_activation(activation: str, low: float, high: float) -> None:
    x = np.array([-9.0, -0.5, 0.5, 4.5])
    assert run("Add", [x, x], activation=activation)[0].stored.tolist() == np.clip(2 * x, low, high).tolist()


def test_clip_and_where() -> None:
    x = np.array([-3.0, 0.0, 3.0])
    assert run("Clip", [x, np.array(-1.0), None])[0].stored.tolist() == [-1, 0, 3]
    assert run("Clip", [x, None, np.array(1.0)])[0].stored.tolist() == [-3, 0, 1]
    assert run("Where", [x > 0, x, -x])[0].stored.tolist() == [3, 0, 3]


# Reductions and searches


REDUCTIONS = ["ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"]
REDUCTIONS += ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"]


@pytest.mark.formats
@pytest.mark.property
@pytest.mark.parametrize("kind", REDUCTIONS)
@given(
    seed=st.integers(0, 2**32),
    axes=st.sets(st.integers(-3, 2), min_size=1, max_size=2),
    keep=st.integers(0, 1),
)
@quick
def test_reductions_equal_onnx(kind: str, seed: int, axes: set[int], keep: int) -> None:
    chosen = np.array(sorted({axis % 3 for axis in axes}))
    x = np.random.default_rng(seed).normal(size=(2, 3, 4))
    x = np.abs(x) if kind == "ReduceLogSum" else x
    close(run(kind, [x, chosen], keepdims=keep)[0], reference(kind, [x, chosen], keepdims=keep)[0], 1e-12)


@pytest.mark.formats
@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("keep", [0, 1])
def test_no_axes_reduce_all(kind: str, keep: int) -> None:
    x = np.arange(1.0, 7.0).reshape(2, 3)
    expected = reference(kind, [x, np.zeros(0, np.int64)], keepdims=keep)[0]
    close(run(kind, [x, np.zeros(0, np.int64)], keepdims=keep)[0], np.asarray(expected))


def test_reductions_of_plain_integers_stay_integers() -> None:
    x, axes = np.array([[2**40 + 1, -3]]), np.array([1])
    assert run("ReduceL1", [x, axes], "int64", keepdims=0)[0].stored.tolist() == [2**40 + 4]
    assert run("ReduceSumSquare", [x % 7, axes], "int64", keepdims=0)[0].stored.tolist() == [int((x[0, 0] % 7) ** 2 + 16)]
    assert run("ReduceLogSumExp", [np.array([1000.0, 1000.0]), np.array([0])])[0].stored[0] == 1000 + np.log(2)


@pytest.mark.onnxruntime
@pytest.mark.property
@given(seed=st.integers(0, 2**32), axis=st.integers(-3, 2), flag=st.integers(0, 1), other=st.integers(0, 1))
@quick
def test_searches_and_sums_equal_onnx(seed: int, axis: int, flag: int, other: int) -> None:
    x = np.random.default_rng(seed).integers(-3, 4, (2, 3, 4)).astype(np.float64)
    for kind in ("ArgMax", "ArgMin"):
        close(
            run(kind, [x], "int64", axis=axis, keepdims=flag)[0],
            reference(kind, [x], axis=axis, keepdims=flag)[0],
        )
    expected = reference("CumSum", [x, np.array(axis)], exclusive=flag, reverse=other)[0]
    close(run("CumSum", [x], axis=axis, exclusive=flag, reverse=other)[0], expected)
    k = np.array([2])
    values, indices = run("TopK", [x.astype(np.float32), k], "float32", "int64", axis=axis, largest=flag)
    wanted = runtime("TopK", [x.astype(np.float32), k], 2, axis=axis, largest=flag)
    close(values, wanted[0])
    close(indices, wanted[1])


def test_top_k_keeps_the_order_of_equal_values() -> None:
    values, indices = run("TopK", [np.tile([1.0, 2.0], 50), np.array([60])], "float64", "int64", axis=0)
    assert indices.stored.tolist() == [*range(1, 100, 2), *range(0, 20, 2)]
    assert values.stored.tolist() == [2.0] * 50 + [1.0] * 10


# Movement


MOVES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "Reshape": ([np.array([0, -1, 2])], {}),
    "Transpose": ([], {"perm": (2, 0, 1)}),
    "Unsqueeze": ([np.array([0, 4])], {}),
    "Slice": ([np.array([3, -5]), np.array([-9, 3]), np.array([1, 2]), np.array([-2, 1])], {}),
    "Tile": ([np.array([1, 2, 3])], {}),
    "Expand": ([np.array([5, 2, 1, 4])], {}),
    "Gather": ([np.array([[0, -1], [2, 1]])], {"axis": 1}),
    "GatherND": ([np.array([[[0, 1]], [[1, 2]]])], {}),
    "ScatterND": ([np.array([[0], [1]]), np.ones((2, 3, 4), np.int8)], {}),
    "ScatterElements": ([np.array([[[0, -1, 2, 1]], [[2, 2, 2, 2]]]), np.full((2, 1, 4), 7, np.int8)], {"axis": -2}),
    "Trilu": ([np.array(1)], {"upper": 1}),
    "NonZero": ([], {}),
    "Shape": ([], {}),
}


@pytest.mark.formats
@pytest.mark.parametrize("kind", MOVES)
def test_movement_equals_onnx(kind: str) -> None:
    x = np.random.default_rng(2).integers(-2, 3, (2, 3, 4)).astype(np.int8)
    inputs, attributes = MOVES[kind]
    expected = reference(kind, [x, *inputs], **attributes)[0]
    got = run(kind, [x, *inputs], expected.dtype.name, **attributes)[0]
    assert got.real is None
    assert got.stored.dtype == expected.dtype
    assert np.array_equal(got.stored, expected)


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("axis", "shape"), [(0, (5, 3, 4)), (1, (1, 2, 4)), (-1, (2, 1, 7))])
def test_gathered_elements_equal_onnxruntime(axis: int, shape: tuple[int, ...]) -> None:
    """The indices may be fewer than the data along other axes too, and count from the end if they are negative."""
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    indices = np.random.default_rng(axis + 1).integers(-x.shape[axis], x.shape[axis], shape)
    got = run("GatherElements", [x, indices], "int32", axis=axis)[0].stored
    assert np.array_equal(got, runtime("GatherElements", [x, indices], axis=axis)[0])


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scattered_elements_equal_onnxruntime(reduction: str) -> None:
    x, updates = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([[9, -2, 3], [1, 5, -7]], np.float32)
    indices = np.array([[1, 1, -1], [0, 1, 2]]) if reduction != "none" else np.array([[3, 1, -4], [0, 1, 2]])
    inputs = [x, indices, updates]
    got = run("ScatterElements", inputs, "float32", axis=1, reduction=reduction)[0]
    close(got, runtime("ScatterElements", inputs, axis=1, reduction=reduction)[0])


@pytest.mark.formats
@pytest.mark.parametrize(("upper", "k"), [(1, None), (0, None), (1, -1), (0, 2)])
def test_triangles_equal_onnx(upper: int, k: int | None) -> None:
    inputs = [np.arange(24.0).reshape(2, 3, 4), *([] if k is None else [np.array(k)])]
    close(run("Trilu", inputs, upper=upper)[0], reference("Trilu", inputs, upper=upper)[0])


def test_scattered_quantized_elements_are_added_as_real_values() -> None:
    q = Quantization.per_tensor(0.5, 9)
    inputs = [(np.array([10, 11], np.int8), q), np.array([0, 0]), (np.array([12, 8], np.int8), q)]
    assert run("ScatterElements", inputs, ("int8", q), reduction="add")[0].stored.tolist() == [12, 11]
    with refused(UnsupportedError, "not-evaluated"):
        run("ScatterElements", inputs, ("int8", q), reduction="mul")


@pytest.mark.formats
@pytest.mark.property
@given(seed=st.integers(0, 2**32), batch=st.integers(0, 2))
@quick
def test_gather_with_batch_dimensions(seed: int, batch: int) -> None:
    rng = np.random.default_rng(seed)
    x, indices = rng.integers(0, 9, (2, 3, 4, 2)), rng.integers(0, 2, (2, 3, 2))
    axis = int(rng.integers(batch, 4))
    got = run("Gather", [x, indices], "int64", axis=axis, batch_dims=batch)[0].stored
    for at in np.ndindex(x.shape[:batch]):
        assert np.array_equal(got[at], np.take(x[at], indices[at], axis - batch))
    rows = rng.integers(0, 2, (2, 3, 5, 1)) if batch == 2 else rng.integers(0, 2, (2, 5, 1))
    expected = reference("GatherND", [x, rows], batch_dims=batch)[0]
    assert np.array_equal(run("GatherND", [x, rows], "int64", batch_dims=batch)[0].stored, expected)


def test_gather_of_no_batches() -> None:
    x, indices = np.zeros((0, 3, 4, 2), np.int64), np.zeros((0, 5), np.int64)
    assert run("Gather", [x, indices], "int64", axis=2, batch_dims=1)[0].stored.shape == (0, 3, 5, 2)


@pytest.mark.parametrize(("start", "end", "step"), [(0, -(2**63), 1), (-(2**63), 2**63 - 1, 2), (2**63 - 1, -(2**63), -1)])
def test_bounds_of_a_slice_are_clipped_to_the_data(start: int, end: int, step: int) -> None:
    (found,) = run("Slice", [np.arange(5), *(np.array([item]) for item in (start, end, 0, step))], "int64")
    assert found.stored.tolist() == [*range(5)][start:end:step]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad_equals_onnx(mode: str) -> None:
    x, pads = (
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.array([1, 2, 0, -1 if mode == "constant" else 1]),
    )
    inputs = [x, pads, np.array(7, np.float32)] if mode == "constant" else [x, pads]
    close(run("Pad", inputs, "float32", mode=mode)[0], runtime("Pad", inputs, mode=mode)[0])


@pytest.mark.parametrize(("end", "step", "expected"), [(-(2**31), 1, []), (-(2**31), -1, [3, 2, 1]), (-(2**63), -1, [3, 2, 1])])
def test_a_slice_may_end_far_before_the_first_element(end: int, step: int, expected: list[int]) -> None:
    found = run(
        "Slice", [np.array([1, 2, 3], np.int8), np.array([0 if step > 0 else 2]), np.array([end]), np.array([0]), np.array([step])], "int8"
    )
    assert found[0].stored.tolist() == expected


def test_padding_of_a_quantized_tensor_is_real_zero() -> None:
    q = Quantization.per_tensor(0.5, 9)
    got = run("Pad", [(np.array([1, 2], np.int8), q), np.array([1, 0])], ("int8", q))[0]
    assert got.stored.tolist() == [9, 1, 2]


@pytest.mark.formats
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_space_and_depth_equal_onnx(layout: str) -> None:
    x = np.arange(2 * 8 * 4 * 6, dtype=np.float64).reshape(2, 8, 4, 6)
    data = np.moveaxis(x, 1, -1) if layout == "channels_last" else x
    for kind in ("SpaceToDepth", "DepthToSpace"):
        got = run(kind, [data], blocksize=2, data_format=layout)[0].stored
        got = np.moveaxis(got, -1, 1) if layout == "channels_last" else got
        assert np.array_equal(got, reference(kind, [x], blocksize=2)[0])


def test_joining_splitting_and_ranges() -> None:
    a, b = np.arange(6).reshape(2, 3), np.arange(6, 12).reshape(2, 3)
    assert np.array_equal(run("Pack", [a, b], "int64", axis=1)[0].stored, np.stack([a, b], 1))
    parts = run("Unpack", [a], "int64", "int64", "int64", axis=1)
    assert [part.stored.tolist() for part in parts] == [[0, 3], [1, 4], [2, 5]]
    left, right = run("Split", [a, np.array([1, 2])], "int64", "int64", axis=1)
    assert (left.stored.tolist(), right.stored.tolist()) == ([[0], [3]], [[1, 2], [4, 5]])
    assert run("Squeeze", [a[None], np.array([0])], "int64")[0].stored.shape == (2, 3)
    assert run("Range", [np.array(5), np.array(0), np.array(-2)], "int64")[0].stored.tolist() == [5, 3, 1]
    codes = [np.array([1, -1, 5]), np.array([3]), np.array([2.0, 8.0])]
    assert run("OneHot", codes, axis=0)[0].stored.tolist() == [[2, 2, 2], [8, 2, 2], [2, 2, 2]]
    hot = run("OneHot", codes, axis=0, wraps=1)[0]
    assert hot.stored.tolist() == [[2, 2, 2], [8, 2, 2], [2, 8, 2]]
