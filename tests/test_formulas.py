"""Scales and zero points by name: against values worked out by hand, exact rational arithmetic, and the frameworks that are installed."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from qconvert import arithmetic as ar
from qconvert.errors import OptionError
from qconvert.graph import integer_range

F32 = np.float32
ends = st.floats(-1e4, 1e4, width=32)
SYMMETRIC = [name for name, formula in ar.FORMULAS.items() if formula.symmetric]
AFFINE = [name for name in ar.FORMULAS if name not in SYMMETRIC]


def chosen(name: str, low: float, high: float, bits: int = 8, dtype: str = "") -> tuple[float, int, str]:
    found, q = ar.choose_quantization(name, low, high, bits, dtype=dtype)
    return q.step, q.point, found


#: Scale, zero point and type for the range [-1, 3], whose scale is a number of float32 only for cambricon.
@pytest.mark.parametrize(
    ("name", "scale", "zero_point", "dtype"),
    [("google_symmetric", F32(3) / F32(127), 0, "int8"),
     ("google_affine", F32(4) / F32(255), 64, "uint8"),  # 63.75
     ("cambricon", 2.0**-5, 0, "int8"),  # floor(log2(3)) is 1
     ("pytorch_affine", F32(4) / F32(255), 64, "uint8"),
     ("pytorch_symmetric", F32(3) / F32(127.5), 0, "int8"),
     ("tensorflow", F32(4) / F32(255), 64, "uint8"),
     ("tflite_affine", F32(4) / F32(255), -64, "int8"),  # -128 + 63.75
     ("tflite_symmetric", F32(3) / F32(127), 0, "int8"),
     ("gemmlowp", F32(4 / 255), 64, "uint8"),
     ("mindspore_affine", F32(4) / F32(255), -64, "int8"),
     ("mindspore_symmetric", F32(6) / F32(255), 0, "int8"),
     ("onnxruntime_affine", F32(4 / 255), 64, "uint8"),
     ("onnxruntime_symmetric", F32(3 / 127), 0, "int8"),
     ("tensorrt", F32(3) / F32(127), 0, "int8"),
     ("mnn", F32(3) / F32(127), 0, "int8")],
)  # fmt: skip
def test_golden_values(name: str, scale: float, zero_point: int, dtype: str) -> None:
    assert chosen(name, -1, 3) == (float(scale), zero_point, dtype)


def test_every_formula_has_a_golden_value() -> None:
    (mark,) = (m for m in test_golden_values.pytestmark if m.name == "parametrize")  # type: ignore[attr-defined]
    assert {case[0] for case in mark.args[1]} == set(ar.FORMULAS)


@pytest.mark.parametrize(
    ("absmax", "scale", "stored"),
    [(1.0, 2.0**-6, 64), (1.984375, 2.0**-6, 127), (3.0, 2.0**-5, 96), (0.1, 2.0**-10, 102), (2.0, 2.0**-5, 64),
     (1.999, 2.0**-6, 127)],
)  # fmt: skip
def test_cambricon_saturates_by_a_step_at_most(absmax: float, scale: float, stored: int) -> None:
    dtype, q = ar.choose_quantization("cambricon", -absmax / 2, absmax)
    assert (q.step, q.point) == (scale, 0)
    assert int(ar.quantize(F32(absmax), q, dtype)) == stored
    assert chosen("cambricon", 0, absmax, bits=16)[0] == scale / 256
    assert chosen("cambricon", 0, absmax, bits=4)[0] == scale * 16


#: [-0.5, 254.5] has the scale 1, and its zero point lies on 0.5; [-1.5, 253.5] on 1.5.
@pytest.mark.parametrize(
    ("name", "points", "signed"),
    [("google_affine", (0, 2), (-128, -126)),
     ("pytorch_affine", (0, 2), (-128, -126)),  # n minus the even number of steps
     ("onnxruntime_affine", (0, 2), (-128, -126)),
     ("tensorflow", (1, 2), (-128, -127)),  # -127.5 and -126.5, away from zero
     ("tflite_affine", (1, 2), (-128, -127)),
     ("gemmlowp", (1, 2), (-128, -127)),
     ("mindspore_affine", (1, 2), (-127, -126))],  # up
)  # fmt: skip
def test_ties_of_the_zero_point(name: str, points: tuple[int, int], signed: tuple[int, int]) -> None:
    for low, unsigned_point, signed_point in zip((-0.5, -1.5), points, signed, strict=True):
        assert chosen(name, low, low + 255, dtype="uint8") == (1.0, unsigned_point, "uint8")
        assert chosen(name, low, low + 255, dtype="int8") == (1.0, signed_point, "int8")


def test_ranges_without_zero_are_extended_nudged_or_refused() -> None:
    """TensorFlow moves the range [2, 3] to [0, 1]; gemmlowp does not take it; OneFlow's own zero point would be -510."""
    for name in AFFINE:
        formula = ar.FORMULAS[name]
        if formula.beyond == "refused":
            for low, high in ((2, 3), (-3, -2)):
                with refused(OptionError, "range-without-zero"):
                    formula(low, high)
            continue
        span = 1 if formula.beyond == "nudged" else 3
        for (low, high), point in zip(((2, 3), (-3, -2)), (0, 255), strict=True):
            assert chosen(name, low, high, dtype="uint8") == (float(F32(span) / F32(255)), point, "uint8"), name
    assert ar.FORMULAS["tensorflow"].beyond == "nudged" and ar.FORMULAS["gemmlowp"].beyond == "refused"
    raw = ar.FORMULAS["google_affine"].computes(F32([2]), F32([3]), 0, 255)
    assert raw[1].tolist() == [-510]


@pytest.mark.parametrize("name", ar.FORMULAS)
def test_a_range_of_zero_alone_has_a_quantization(name: str) -> None:
    scale, point, dtype = chosen(name, 0, 0)
    low, high = integer_range(dtype)
    assert low <= point <= high
    assert scale == (ar.PYTORCH_EPS if name.startswith("pytorch") else 1.0)
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    assert chosen(name, -tiny, tiny)[:2] == (scale, point) or name.startswith("pytorch")
    for low, high in ((0, -1.1754943508222875e-38), (0, 1.4338085886971528e-41)):  # whose scales have few bits
        found, where, dtype = chosen(name, min(low, high), max(low, high), 13)
        ends = ar.choose_quantization(name, -1, 1, 13)[1].limits(dtype)
        assert (found == 1.0 or name.startswith("pytorch")) and ends[0] <= where <= ends[1]


@pytest.mark.parametrize("name", ar.FORMULAS)
def test_what_is_no_range_is_refused(name: str) -> None:
    for low, high in ((np.nan, 1), (-1, np.nan), (-1, np.inf), (-np.inf, 1), (2, 1), (1, -1), (-1e39, 1)):
        with refused(OptionError, "range-not-finite"):
            ar.choose_quantization(name, low, high)
    with refused(OptionError, "axis-missing"):
        ar.choose_quantization(name, [-1, -2], [1, 2])
    with refused(OptionError, "bits-not-covered"):
        ar.choose_quantization(name, -1, 1, 9, dtype="int8")
    with refused(OptionError, "bits-not-covered"):
        ar.choose_quantization(name, -1, 1, 1)
    if ar.FORMULAS[name].integers == ("int",):
        with refused(OptionError, "bits-not-covered", holds=("uint8",)):
            ar.choose_quantization(name, -1, 1, dtype="uint8")


def test_narrow_ranges() -> None:
    """TensorFlow's narrow_range has the integers 1 to 255."""
    assert chosen("tensorflow", -1, 3)[:2] == (float(F32(4) / F32(255)), 64)
    dtype, q = ar.choose_quantization("tensorflow", -1, 3, narrow=True)
    assert (q.step, q.point, q.limits(dtype)) == (float(F32(4) / F32(254)), 65, (1, 255))  # 1 + 63.5, up
    assert ar.choose_quantization("tensorrt", -3, 1, narrow=True)[1].limits("int8") == (-127, 127)


def test_unknown_formulas_and_scales_beyond_float32_are_refused() -> None:
    with refused(OptionError, "unknown-formula") as error:
        ar.choose_quantization("googel", -1, 1)
    assert "google_affine" in error.value.remedy
    with refused(OptionError, "scale-not-float32"):
        ar.choose_quantization("pytorch_affine", -3e38, 3e38)  # the difference is infinite in float32, in float64 it is not
    assert chosen("onnxruntime_affine", -3e38, 3e38)[0] == float(F32(6e38 / 255))


@pytest.mark.parametrize("name", [name for name, formula in ar.FORMULAS.items() if formula.per_axis])
def test_ranges_along_an_axis(name: str) -> None:
    low, high = [-1.0, -4.0, 0.0], [0.5, 2.0, 0.0]
    _, q = ar.choose_quantization(name, low, high, axis=1)
    each = [ar.choose_quantization(name, a, b)[1] for a, b in zip(low, high, strict=True)]
    assert q.axis == 1 and [float(s) for s in q.scale] == [item.step for item in each]
    assert q.zero_point.tolist() == [item.point for item in each]


def test_cambricon_has_no_scales_along_an_axis() -> None:
    with refused(OptionError, "not-per-tensor"):
        ar.choose_quantization("cambricon", [-1], [1], axis=0)


@pytest.mark.parametrize("name", ar.FORMULAS)
@given(low=ends, high=ends, bits=st.integers(2, 16))
@settings(max_examples=60, deadline=None)
def test_quantizations_hold_zero_and_the_range(name: str, low: float, high: float, bits: int) -> None:
    """Zero is exact; both ends are within a step of the quantization, and cambricon's within a step as well."""
    low, high = min(low, high, 0.0), max(low, high, 0.0)
    dtype, q = ar.choose_quantization(name, low, high, bits)
    lowest, highest = q.limits(dtype)
    scale, point = Fraction(q.step), q.point
    assert lowest <= point <= highest and scale > 0
    assert highest - lowest + 1 in (2**bits, 2**bits - 1)
    assert scale * (lowest - point) <= Fraction(low) + scale * Fraction(101, 100)
    assert scale * (highest - point) >= Fraction(high) - scale * Fraction(101, 100)


# The frameworks themselves


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Please use quant_min")
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
@pytest.mark.parametrize("bits", [8, 7])
def test_pytorch_itself(scheme: str, dtype: str, bits: int) -> None:
    """Its observers; those of 7 bits by reduce_range, or by the limits where reduce_range leaves 128 as the zero point of 0 to 127."""
    torch = pytest.importorskip("torch")
    from torch.ao.quantization.observer import MinMaxObserver

    rng = np.random.default_rng(5)
    pairs = [*np.sort(rng.normal(0, 2, (300, 2)).astype(F32), 1), *F32([[-0.5, 254.5], [-1.5, 253.5], [0, 0], [1e-9, 2e-9], [3, 3]])]
    limits = {} if bits == 8 else {"reduce_range": True}
    if bits == 7 and scheme == "symmetric" and dtype == "uint8":
        limits = {"quant_min": 0, "quant_max": 127}
    for pair in pairs:
        observer = MinMaxObserver(dtype=getattr(torch, f"q{dtype}"), qscheme=getattr(torch, f"per_tensor_{scheme}"), **limits)
        observer(torch.from_numpy(pair))
        scale, point = observer.calculate_qparams()
        assert chosen(f"pytorch_{scheme}", *pair, bits=bits, dtype=dtype) == (float(scale[0]), int(point[0]), dtype)


@pytest.mark.torch
def test_pytorch_itself_along_an_axis() -> None:
    torch = pytest.importorskip("torch")
    from torch.ao.quantization.observer import PerChannelMinMaxObserver

    weights = np.random.default_rng(6).normal(0, 1, (8, 5)).astype(F32)
    weights[3] = 0
    observer = PerChannelMinMaxObserver(ch_axis=0, dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
    observer(torch.from_numpy(weights))
    _, q = ar.choose_quantization("pytorch_symmetric", weights.min(1), weights.max(1), axis=0)
    assert np.array_equal(q.scale, observer.calculate_qparams()[0].numpy())


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
def test_onnxruntime_itself(scheme: str, dtype: str) -> None:
    utils = pytest.importorskip("onnxruntime.quantization.quant_utils")
    from onnx import TensorProto

    qmin, qmax = utils.get_qmin_qmax_for_qType(getattr(TensorProto, dtype.upper()), symmetric=scheme == "symmetric")
    rng = np.random.default_rng(7)
    cases: list[Any] = [*np.sort(rng.normal(0, 2, (300, 2)).astype(F32), 1), *F32([[-0.5, 254.5], [-1.5, 253.5], [0, 0], [3, 3]])]
    for low, high in cases:
        point, scale = utils.compute_scale_zp(np.array(low), np.array(high), qmin, qmax, scheme == "symmetric")
        bits = int(dtype.lstrip("uint"))
        assert chosen(f"onnxruntime_{scheme}", low, high, bits, dtype) == (float(scale), int(point), dtype)


def test_all_arithmetic_is_documented() -> None:
    page = (Path(__file__).parent.parent / "docs" / "arithmetic.md").read_text()
    missing = [name for name in ar.__all__ if not re.search(rf"\b{name}\b", page)]
    assert not missing, f"docs/arithmetic.md has a table where these belong: {missing}"
    assert all(re.search(rf"\b{name}\b", page) for name in ar.FORMULAS)
