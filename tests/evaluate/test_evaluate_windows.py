"""The exact evaluation of convolutions, matrix products, pools and resizing against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from qconvert.errors import UnsupportedError
from qconvert.evaluate import ExactResult
from qconvert.graph import Array
from tests.evaluate.evaluation import close, quick, run, runtime

pytestmark = pytest.mark.onnxruntime

# Convolutions, matrices, pools


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes of a convolution of one or two spatial dimensions that has at least one output element."""
    rank, group = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4]))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    return {
        "group": group,
        "kernel": kernel,
        "dilations": dilations,
        "strides": [draw(st.integers(1, 3)) for _ in range(rank)],
        "pads": [draw(st.integers(0, 2)) for _ in range(2 * rank)],
        "sizes": [draw(st.integers((k - 1) * d + 1, 9)) for k, d in zip(kernel, dilations, strict=True)],
        "depth": draw(st.sampled_from([1, 1, 2, 3])),
        "outputs": group * draw(st.integers(1, 2)),
        "last": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32)),
    }


def _layout(case: dict[str, Any], x: Array) -> tuple[Array, str]:
    return (np.moveaxis(x, 1, -1), "channels_last") if case["last"] else (x, "channels_first")


def _first(case: dict[str, Any], y: Array) -> Array:
    return np.moveaxis(y, -1, 1) if case["last"] else y


@pytest.mark.property
@given(case=convolutions())
@settings(max_examples=60)
def test_conv_equals_onnxruntime(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    x = rng.normal(size=(2, case["group"] * case["depth"], *case["sizes"])).astype(np.float32)
    w = rng.normal(size=(case["outputs"], case["depth"], *case["kernel"])).astype(np.float32)
    b = rng.normal(size=case["outputs"]).astype(np.float32)
    shared = {name: case[name] for name in ("group", "strides", "pads", "dilations")}
    data, layout = _layout(case, x)
    got = run("Conv", [data, w, b], data_format=layout, **shared)[0]
    close(ExactResult(None, _first(case, got.stored)), runtime("Conv", [x, w, b], **shared)[0], 1e-5)


@pytest.mark.property
@given(case=convolutions())
@quick
def test_conv_transpose_equals_onnxruntime(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    group, depth, per_group = case["group"], case["depth"], case["outputs"] // case["group"]
    x = rng.normal(size=(1, group * depth, *case["sizes"])).astype(np.float32)
    w = rng.normal(size=(group * depth, per_group, *case["kernel"])).astype(np.float32)
    pads = [min(p, k - 1) for p, k in zip(case["pads"], [*case["kernel"]] * 2, strict=True)]
    extra = [min(1, s - 1) for s in case["strides"]]
    shared = {"group": group, "strides": case["strides"], "dilations": case["dilations"], "pads": pads, "output_padding": extra}
    canonical = np.moveaxis(w.reshape(group, depth, per_group, *case["kernel"]), 2, 1)
    canonical = canonical.reshape(group * per_group, depth, *case["kernel"])
    data, layout = _layout(case, x)
    got = run("ConvTranspose", [data, canonical], data_format=layout, **shared)[0]
    close(ExactResult(None, _first(case, got.stored)), runtime("ConvTranspose", [x, w], **shared)[0], 1e-5)


def _pool(case: dict[str, Any], **more: int) -> tuple[Any, dict[str, Any]]:
    """Data, and attributes of a pool of them."""
    x = np.random.default_rng(case["seed"]).normal(size=(1, 3, *case["sizes"])).astype(np.float32)
    kernel = case["kernel"]
    pads = [min(p, k - 1) for p, k in zip(case["pads"], [*kernel] * 2, strict=True)]
    return x, {"kernel_shape": kernel, "strides": case["strides"], "pads": pads, **more}


@pytest.mark.property
@given(case=convolutions())
@quick
def test_pools_equal_onnxruntime(case: dict[str, Any]) -> None:
    x, shared = _pool(case)
    data, layout = _layout(case, x)
    for kind in ("AveragePool", "MaxPool"):
        got = run(kind, [data], "float32", data_format=layout, **shared)[0]
        close(ExactResult(None, _first(case, got.stored)), runtime(kind, [x], **shared)[0], 1e-5)


@pytest.mark.property
@given(case=convolutions(), ceil=st.integers(0, 1), count=st.integers(0, 1))
@settings(max_examples=80)
def test_pools_that_hang_over_and_count_padding_equal_onnxruntime(case: dict[str, Any], ceil: int, count: int) -> None:
    x, shared = _pool(case, ceil_mode=ceil)
    data, layout = _layout(case, x)
    got = run("AveragePool", [data], "float32", data_format=layout, count_include_pad=count, **shared)[0]
    close(ExactResult(None, _first(case, got.stored)), runtime("AveragePool", [x], count_include_pad=count, **shared)[0], 1e-5)
    got = run("MaxPool", [data], "float32", data_format=layout, dilations=tuple(case["dilations"]), **shared)[0]
    close(ExactResult(None, _first(case, got.stored)), runtime("MaxPool", [x], dilations=case["dilations"], **shared)[0], 1e-5)


def test_what_hangs_over_is_not_counted() -> None:
    """Windows of 3 in steps of 2 on 1 + 4 + 1 places: the third one starts on data, and covers one place of padding."""
    shared = {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), "ceil_mode": 1, "data_format": "channels_first"}
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    assert np.allclose(run("AveragePool", [x], count_include_pad=1, **shared)[0].stored, [[[1, 3, 2]]])
    assert np.allclose(run("AveragePool", [x], **shared)[0].stored, [[[1.5, 3, 4]]])


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_global_pools_equal_onnxruntime(rank: int, last: bool) -> None:
    x = np.random.default_rng(rank).normal(size=(2, 3, 4, 5, 2)[:rank]).astype(np.float32)
    data, layout = _layout({"last": last}, x)
    for kind in ("GlobalAveragePool", "GlobalMaxPool"):
        got = run(kind, [data], data_format=layout)[0]
        close(ExactResult(None, _first({"last": last}, got.stored)), runtime(kind, [x])[0], 1e-6)


@pytest.mark.property
@pytest.mark.cross_section
@given(case=convolutions(), points=st.sampled_from(["none", "data", "both", "each"]))
@quick
def test_conv_integer_equals_onnxruntime(case: dict[str, Any], points: str) -> None:
    rng = np.random.default_rng(case["seed"])
    x = rng.integers(0, 256, (2, case["group"] * case["depth"], *case["sizes"])).astype(np.uint8)
    w = rng.integers(0, 256, (case["outputs"], case["depth"], *case["kernel"])).astype(np.uint8)
    zero_points = [] if points == "none" else [np.array(131, np.uint8)]
    if points in ("both", "each"):
        zero_points.append(np.array(7, np.uint8) if points == "both" else rng.integers(0, 9, case["outputs"]).astype(np.uint8))
    shared = {name: case[name] for name in ("group", "strides", "pads", "dilations")}
    data, layout = _layout(case, x)
    got = run("ConvInteger", [data, w, *zero_points], "int32", data_format=layout, **shared)[0].stored
    assert got.dtype == np.int32
    if points != "each":
        assert np.array_equal(_first(case, got), runtime("ConvInteger", [x, w, *zero_points], **shared)[0])
        return
    # onnxruntime refuses zero points for each output: they are the real convolution of shifted weights.
    shifted = [x.astype(np.float32) - 131, w.astype(np.float32) - zero_points[1].reshape(-1, *[1] * (w.ndim - 1))]
    assert np.array_equal(_first(case, got), runtime("Conv", shifted, **shared)[0])


@pytest.mark.parametrize("points", [(), (3,), (3, 5), ((3, 9), (5, 6, 7))])
def test_matmul_integer_equals_onnx(points: tuple[Any, ...]) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (3, 2, 4)).astype(np.uint8), rng.integers(0, 256, (4, 3)).astype(np.uint8)
    inputs = [a, b, *(np.array(point, np.uint8) for point in points)]
    got = run("MatMulInteger", inputs, "int32")[0].stored
    rows, columns = (np.array(points[0])[..., None], np.array(points[1])) if len(points) == 2 else (points[0] if points else 0, 0)
    assert np.array_equal(got, (a.astype(int) - rows) @ (b.astype(int) - columns))
    if not np.ndim(rows):
        assert np.array_equal(got, runtime("MatMulInteger", inputs)[0])


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "bij,bjk->bik", "ij,jk", "ij,ij->", "i j -> j i", "ii->i", "...ij,...jk->...ik", "...i,i", "ij,j,jk->k"]
)
def test_einsum_equals_onnxruntime(equation: str) -> None:
    rng = np.random.default_rng(len(equation))
    sizes = {"i": 3, "j": 3, "k": 4, "b": 2}
    terms = equation.replace(" ", "").split("->")[0].split(",")
    inputs = [rng.normal(size=[*(2,) * ("." in term), *(sizes[c] for c in term if c != ".")]).astype(np.float32) for term in terms]
    close(run("Einsum", inputs, equation=equation)[0], runtime("Einsum", inputs, equation=equation)[0], 1e-5)


@pytest.mark.property
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@given(case=convolutions())
@quick
def test_auto_pad_equals_onnxruntime(mode: str, case: dict[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    x = rng.normal(size=(1, 2, *case["sizes"])).astype(np.float32)
    w = rng.normal(size=(3, 2, *case["kernel"])).astype(np.float32)
    ones = [1] * len(case["kernel"])
    shared = {"strides": case["strides"], "auto_pad": mode}
    got = run("Conv", [x, w], data_format="channels_first", dilations=ones, pads=[0] * 2 * len(ones), **shared)[0]
    close(got, runtime("Conv", [x, w], **shared)[0], 1e-5)


@pytest.mark.property
@given(seed=st.integers(0, 2**32), trans_a=st.booleans(), trans_b=st.booleans())
@quick
def test_matmul_and_gemm(seed: int, trans_a: bool, trans_b: bool) -> None:
    rng = np.random.default_rng(seed)
    n, k, m = rng.integers(1, 6, 3)
    a, b, c = rng.normal(size=(3, 1, n, k)), rng.normal(size=(2, k, m)), rng.normal(size=m)
    given_a, given_b = (a.swapaxes(-1, -2) if trans_a else a), (b.swapaxes(-1, -2) if trans_b else b)
    close(run("MatMul", [given_a, given_b], trans_a=int(trans_a), trans_b=int(trans_b))[0], a @ b, 1e-12)
    close(run("Gemm", [a[0, 0], b[0].T, c])[0], a[0, 0] @ b[0] + c, 1e-12)


@pytest.mark.property
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["linear", "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@given(sizes=st.tuples(*[st.integers(1, 7)] * 2), wanted=st.tuples(*[st.integers(1, 15)] * 2), last=st.booleans())
@settings(max_examples=15)
def test_resize_equals_onnx(coordinates: str, mode: str, sizes: Any, wanted: Any, last: bool) -> None:
    x = np.random.default_rng(sum(sizes)).normal(size=(1, 2, *sizes))
    attributes: dict[str, Any] = {"coordinate_transformation_mode": coordinates, "mode": mode}
    if mode != "linear":
        attributes |= {"mode": "nearest", "nearest_mode": mode}
    data, layout = (np.moveaxis(x, 1, -1), "channels_last") if last else (x, "channels_first")
    got = run("Resize", [data, np.array(wanted)], data_format=layout, **attributes)[0].stored
    got = np.moveaxis(got, -1, 1) if last else got
    # The definition itself, in rational numbers; ONNX's runtimes use float32 coordinates, which break some ties.
    close(ExactResult(None, got), _resized(x, wanted, coordinates, mode), 1e-12)
    if mode == "linear":
        expected = runtime("Resize", [x.astype(np.float32), None, None, np.array([1, 2, *wanted])], **attributes)[0]
        close(ExactResult(None, got), expected, 1e-4)


def _resized(x: Array, wanted: Any, coordinates: str, mode: str) -> Array:
    """Resize by ONNX's formulas, one output position at a time, in rational numbers."""
    import math
    from fractions import Fraction

    for axis, count in ((2, wanted[0]), (3, wanted[1])):
        size, columns = x.shape[axis], []
        for i in range(count):
            half = Fraction(2 * i + 1, 2) * size / count - Fraction(1, 2)
            at = {
                "asymmetric": Fraction(i * size, count),
                "half_pixel": half,
                "pytorch_half_pixel": half if count > 1 else Fraction(0),
                "align_corners": Fraction(i * (size - 1), count - 1) if count > 1 else Fraction(0),
            }[coordinates]
            if mode == "linear":
                low = math.floor(at)
                pair = [x.take(min(max(j, 0), size - 1), axis) for j in (low, low + 1)]
                columns.append(pair[0] * float(1 - (at - low)) + pair[1] * float(at - low))
                continue
            near = {
                "floor": math.floor(at),
                "ceil": math.ceil(at),
                "round_prefer_floor": math.ceil(at - Fraction(1, 2)),
                "round_prefer_ceil": math.floor(at + Fraction(1, 2)),
            }[mode]
            columns.append(x.take(min(max(near, 0), size - 1), axis))
        x = np.stack(columns, axis)
    return x


def test_unknown_resize_mode_is_refused() -> None:
    with refused(UnsupportedError, "not-evaluated", holds=("'cubic'",)):
        run("Resize", [np.zeros((1, 1, 2, 2)), np.array([4, 4])], mode="cubic",
            coordinate_transformation_mode="half_pixel", data_format="channels_first")  # fmt: skip
