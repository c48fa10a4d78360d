"""Kinds that TFLite computes of several operators, next to their formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loaded import tflite_graph
from passes.graphs import constant, make, q
from refusals import refused
from tflite_models import run_litert

from qconvert.errors import UnsupportedError
from qconvert.formats.tflite.writer import build
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.rules.validation import validate

pytestmark = pytest.mark.litert

RNG = np.random.default_rng(11)
X = np.concatenate([RNG.normal(0, 3, 230), [0.01, -60, 60, 100, -100, 1e-3, 5, -5, 1, -1]]).astype(np.float32).reshape(2, 3, 5, 8)
SCALE, BIAS = RNG.uniform(0.5, 2, 8).astype(np.float32), RNG.normal(size=8).astype(np.float32)
MEAN, VARIANCE = RNG.normal(size=8).astype(np.float32), RNG.uniform(0.1, 3, 8).astype(np.float32)


def one(kind: str, *more: Array, data: Array = X, dtype: str = "", **attributes: Any) -> Graph:
    """A graph of one operator on `data` and constants."""
    tensors = [Tensor("x", data.dtype.name, data.shape), *(constant(f"c{i}", array) for i, array in enumerate(more))]
    if dtype:
        tensors.append(Tensor("y", dtype, None))
    return make([Op(kind, tuple(tensor.name for tensor in tensors if tensor.name != "y"), ("y",), attributes)], tensors, "x", "y")


def softmax(x: Array, axis: int) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def log_sum_exp(x: Array, keep: bool) -> Array:
    largest = x.max((1, 3), keepdims=True)
    found: Array = np.log(np.exp(x - largest).sum((1, 3), keepdims=True)) + largest
    return found if keep else found[:, 0, :, 0]


def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def normalized(x: Array, axes: tuple[int, ...], centred: bool = True) -> Array:
    mean = x.mean(axes, keepdims=True) if centred else 0
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + 1e-5)


AXES = np.array([1, -1])
LAST = {"data_format": "channels_last"}
FORMULAS: dict[str, tuple[Graph, Callable[[Array], Array]]] = {
    "Reciprocal": (one("Reciprocal"), lambda x: 1 / x),
    "Softplus": (one("Softplus"), softplus),
    "Mish": (one("Mish"), lambda x: x * np.tanh(softplus(x))),
    "Softsign": (one("Softsign"), lambda x: x / (1 + np.abs(x))),
    "HardSigmoid": (one("HardSigmoid"), lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "Elu": (one("Elu", alpha=0.3), lambda x: np.where(x > 0, x, 0.3 * np.expm1(np.minimum(x, 0)))),
    "Celu": (one("Celu", alpha=2.0), lambda x: np.maximum(x, 0) + np.minimum(2 * np.expm1(np.minimum(x, 0) / 2), 0)),
    "Selu": (one("Selu"), lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))),
    "ThresholdedRelu": (one("ThresholdedRelu", alpha=1.5), lambda x: np.where(x > 1.5, x, 0)),
    "ReduceL1": (one("ReduceL1", AXES, keepdims=0), lambda x: np.abs(x).sum((1, 3))),
    "ReduceL2": (one("ReduceL2", AXES, keepdims=0), lambda x: np.sqrt((x**2).sum((1, 3)))),
    "ReduceSumSquare": (one("ReduceSumSquare", AXES), lambda x: (x**2).sum((1, 3), keepdims=True)),
    "ReduceLogSumExp": (one("ReduceLogSumExp", AXES), lambda x: log_sum_exp(x, True)),
    "ReduceLogSumExp without": (one("ReduceLogSumExp", AXES, keepdims=0), lambda x: log_sum_exp(x, False)),
    "LayerNormalization": (one("LayerNormalization", SCALE, BIAS), lambda x: normalized(x, (3,)) * SCALE + BIAS),
    "RMSNormalization": (one("RMSNormalization", SCALE), lambda x: normalized(x, (3,), False) * SCALE),
    "InstanceNormalization": (one("InstanceNormalization", SCALE, BIAS, **LAST), lambda x: normalized(x, (1, 2)) * SCALE + BIAS),
    "InstanceNormalization first": (
        one("InstanceNormalization", SCALE[:3], BIAS[:3], data_format="channels_first"),
        lambda x: normalized(x, (2, 3)) * SCALE[:3, None, None] + BIAS[:3, None, None],
    ),
    "BatchNormalization": (
        one("BatchNormalization", SCALE, BIAS, MEAN, VARIANCE, **LAST),
        lambda x: (x - MEAN) / np.sqrt(VARIANCE + 1e-5) * SCALE + BIAS,
    ),
    "Trilu": (one("Trilu", np.array(1)), lambda x: np.triu(x, 1)),
    "Trilu lower": (one("Trilu", np.array(-1), upper=0), lambda x: np.tril(x, -1)),
    "Softmax of axis 1": (one("Softmax", axis=1), lambda x: softmax(x, 1)),
    "ArgMax kept": (one("ArgMax", axis=2, keepdims=1, dtype="int64"), lambda x: x.argmax(2, keepdims=True)),
    "IsNaN": (one("IsNaN", dtype="bool"), np.isnan),
    "IsInf": (one("IsInf", dtype="bool"), np.isinf),
    "Clip to odd bounds": (one("Clip", np.float32(-0.7), np.float32(2.5)), lambda x: np.clip(x, -0.7, 2.5)),
    "Clip below": (one("Clip", np.float32(-0.7)), lambda x: np.maximum(x, -0.7)),
    "Slice by steps": (
        one("Slice", np.array([2**40, -3]), np.array([-(2**40), 2**62]), np.array([2, -1]), np.array([-2, 1])),
        lambda x: x[:, :, ::-2, -3:],
    ),
    "Slice along one axis": (one("Slice", np.array([1]), np.array([-1]), np.array([2])), lambda x: x[:, :, 1:-1]),
    "Gather from the end": (one("Gather", np.array([-1, 0]), axis=3), lambda x: x[..., [-1, 0]]),
    "Unsqueeze of two axes": (one("Unsqueeze", np.array([0, -1])), lambda x: x[None, ..., None]),
    "Expand": (one("Expand", np.array([4, 1, 1, 1, 1])), lambda x: np.broadcast_to(x, (4, *x.shape))),
    "Reshape with 0": (one("Reshape", np.array([0, -1, 8])), lambda x: x.reshape(2, 15, 8)),
    "Resize of torch": (
        one(
            "Resize",
            np.array([6, 10]),
            mode="nearest",
            coordinate_transformation_mode="half_pixel",
            nearest_mode="round_prefer_floor",
            **LAST,
        ),
        lambda x: x.repeat(2, 1).repeat(2, 2),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name: str) -> None:
    graph, formula = FORMULAS[name]
    data = build(graph, {})
    validate(tflite_graph(data, "again"))
    value = X.copy()
    if name.startswith("Is"):
        value.reshape(-1)[:6] = [np.nan, np.inf, -np.inf, 0, 1, -1]
    with np.errstate(divide="ignore", over="ignore"):
        wanted = formula(value.astype(np.float64))
    for kernels in ("default", "reference") if name not in ("Elu", "Celu", "Selu") else ("default",):  # LiteRT has no reference ELU
        (found,) = run_litert(data, [value], kernels)
        assert found.shape == wanted.shape == graph["y"].shape
        if wanted.dtype == np.float64:
            finite = np.isfinite(wanted)
            assert np.array_equal(finite, np.isfinite(found))
            assert np.allclose(found[finite], wanted[finite], rtol=2e-5, atol=2e-5)
        else:
            assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))), ("ij,kj->ik", ((3, 4), (5, 4))), ("bji,bjk->bik", ((2, 4, 3), (2, 4, 5)))],
)
def test_einsum_that_is_a_matrix_product(equation: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    tensors = [Tensor(name, "float32", shape) for name, shape in zip("ab", shapes, strict=True)]
    graph = make([Op("Einsum", ("a", "b"), ("y",), {"equation": equation})], tensors, "a b", "y")
    values = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    (found,) = run_litert(build(graph, {}), values)
    assert np.allclose(found, np.einsum(equation, *values), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bghid,bghjd->bghij", (("n", 2, 3, 4, 5), ("n", 2, 3, 6, 5))),
        ("bhij,bhjd->bhid", (("n", 3, 4, 6), ("n", 3, 6, 5))),
        ("bcd,ce->bed", (("n", 3, 4), (3, 5))),
        ("bcd->bd", (("n", 3, 4),)),
    ],
)
def test_einsum_of_an_unknown_batch(equation: str, shapes: tuple[tuple[int | str, ...], ...]) -> None:
    names = "ab"[: len(shapes)]
    tensors = [Tensor(name, "float32", shape) for name, shape in zip(names, shapes, strict=True)]
    data = build(make([Op("Einsum", tuple(names), ("y",), {"equation": equation})], tensors, " ".join(names), "y"), {})
    for batch in (1, 3):
        values = [RNG.normal(size=[batch if size == "n" else size for size in shape]).astype(np.float32) for shape in shapes]
        (found,) = run_litert(data, values)
        assert np.allclose(found, np.einsum(equation, *values), rtol=1e-5, atol=1e-5)


def test_einsum_of_two_unknown_sizes_is_refused() -> None:
    tensors = [Tensor("a", "float32", ("n", "t", 4)), Tensor("b", "float32", ("n", 4, 5))]
    with refused(UnsupportedError, "no-formula", holds=("Einsum", "'n', 't', 4")):
        build(make([Op("Einsum", ("a", "b"), ("y",), {"equation": "btd,bde->bte"})], tensors, "a b", "y"), {})


def test_xor() -> None:
    tensors = [Tensor(name, "bool", (4,)) for name in "aby"]
    graph = make([Op("Xor", ("a", "b"), ("y",))], tensors, "a b", "y")
    values = [np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)]
    assert run_litert(build(graph, {}), values)[0].tolist() == [False, True, True, False]


@pytest.mark.parametrize("kind", ["Softplus", "Reciprocal", "HardSigmoid", "Mish"])
def test_quantized_tensors_do_not_become_several_operators(kind: str) -> None:
    graph = one(kind)
    changes = [replace(graph[name], dtype="int8", quantization=q(0.1)) for name in ("x", "y") if graph[name].dtype == "float32"]
    with refused(UnsupportedError, "quantized-data", holds=("'x'", kind)):
        build(graph.evolve(tensors=changes), {})


@pytest.mark.parametrize("kernels", ["default", "reference"])
def test_clip_of_integers_on_one_quantization_leaves_the_others(kernels: str) -> None:
    quantization = q(0.05, 3)
    bounds = [constant("low", np.float32(-1.13)), constant("high", np.float32(4.0))]
    tensors = [Tensor("x", "int8", (256,), None, quantization), *bounds, Tensor("y", "int8", (256,), None, quantization)]
    data = build(make([Op("Clip", ("x", "low", "high"), ("y",))], tensors, "x", "y"), {})
    stored = np.arange(-128, 128, dtype=np.int8)
    low, high = round(-1.13 / 0.05) + 3, round(4.0 / 0.05) + 3
    assert np.array_equal(run_litert(data, [stored], kernels)[0], np.clip(stored, low, high))


@pytest.mark.cross_section
def test_clip_onto_another_quantization_requantizes_first() -> None:
    tensors = [
        Tensor("x", "int8", (256,), None, q(0.05, 3)), constant("low", np.float32(-1.13)), constant("high", np.float32(2.0)),
        Tensor("y", "int8", (256,), None, q(0.03, -9)),
    ]  # fmt: skip
    data = build(make([Op("Clip", ("x", "low", "high"), ("y",))], tensors, "x", "y"), {})
    stored = np.arange(-128, 128, dtype=np.int8)
    wanted = np.clip(np.rint(np.clip((stored - 3.0) * 0.05, -1.13, 2.0) / 0.03) - 9, -128, 127)
    assert np.abs(run_litert(data, [stored])[0] - wanted).max() <= 1
