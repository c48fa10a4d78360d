"""Fixed point step by step: the kernels' own results; the proof of where two requantizations differ, against trying every accumulator."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from qconvert import arithmetic as ar
from qconvert.errors import OptionError
from qconvert.formats.onnx.ops.integer_arithmetic import Rescale

pytestmark = pytest.mark.property

scales = st.floats(2.0**-40, 2.0**29)
int32s = st.integers(-(2**31), 2**31 - 1)
NAMES = {"single": "tflite_single_rounding", "away": "tvm_to_nearest", "double": "tflite_double_rounding"}


@pytest.mark.parametrize("rounding", ar.FIXED_POINT_ROUNDINGS)
@given(acc=int32s, scale=scales)
@settings(max_examples=300)
def test_the_steps_are_the_kernels(rounding: str, acc: int, scale: float) -> None:
    found = ar.FixedPoint.of(scale, rounding)
    acc = int(np.sign(acc)) * (abs(acc) % found.largest)
    assert int(found(acc)) == int(ar.REQUANTIZERS[NAMES[rounding]](np.array(acc, np.int64), np.array(scale)))


@given(acc=int32s, scale=st.floats(2.0**-30, 2.0**-1))
@settings(max_examples=300)
def test_one_shift_is_the_rational_number_of_the_multiplier_ties_up(acc: int, scale: float) -> None:
    found = ar.FixedPoint.of(scale)
    exact = Fraction(acc * int(found.multiplier), 2 ** int(found.shift)) + Fraction(1, 2)
    assert int(found(acc)) == exact.numerator // exact.denominator
    assert abs(Fraction(int(found.multiplier), 2 ** int(found.shift)) / Fraction(scale) - 1) <= Fraction(1, 2**31)


def test_golden_values() -> None:
    """0.3 is 1288490189 * 2**-32; 5 * 0.3 = 1.5, which the multiplier is a little above; -5 * 0.3 a little below."""
    found = ar.FixedPoint.of(0.3)
    assert (int(found.multiplier), int(found.shift), int(found.half)) == (1288490189, 32, 2**31)
    assert found(np.array([5, -5, 10, 1, 2])).tolist() == [2, -2, 3, 0, 1]
    half = {rounding: ar.FixedPoint.of(0.25, rounding)(np.array([2, -2, 6, -6])).tolist() for rounding in NAMES}
    assert half == {"single": [1, 0, 2, -1], "away": [1, -1, 2, -2], "double": [1, -1, 2, -2]}  # ties up; ties away from zero
    below = {rounding: int(ar.FixedPoint.of(0.75 * 2.0**-8, rounding)(np.array(170))) for rounding in NAMES}  # 170 * 0.75 / 256 = 0.498
    assert below == {"single": 0, "away": 0, "double": 1}  # 127.5 rounded to 128 first
    twice = ar.FixedPoint.of(np.array([0.25, 3.0]), "double")
    assert (twice.second_shift.tolist(), twice(np.array([6, 5])).tolist()) == ([1, 0], [2, 15])


def test_what_has_no_fixed_point_is_refused() -> None:
    for scale in (0.0, -1.0, np.nan, np.inf, 2.0**30):
        with refused(OptionError, "multiplier-out-of-range"):
            ar.FixedPoint.of(scale)
    with refused(OptionError, "unknown-rounding"):
        ar.FixedPoint.of(0.5, "triple")


def _all(first: Callable[[Any], Any], second: Callable[[Any], Any], limits: tuple[int, int], low: int, high: int) -> int:
    acc = np.arange(low, high + 1)[None, :]
    a, b = (np.clip(function(acc), *limits).astype(np.int64) for function in (first, second))
    return int(np.abs(a - b).sum())


@given(scale=st.floats(1e-4, 4), point=st.integers(-128, 127), low=st.integers(-70_000, 0), span=st.integers(1, 120_000),
       rounding=st.sampled_from(ar.FIXED_POINT_ROUNDINGS))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_proof_finds_what_trying_all_finds(scale: float, point: int, low: int, span: int, rounding: str) -> None:
    fixed = ar.FixedPoint.of(np.array([[scale]]), rounding)

    def exact(acc: Any) -> Any:
        return np.rint(acc * scale).astype(np.int64) + point

    def decomposed(acc: Any) -> Any:
        return fixed(acc) + point

    found = ar.compare_requantizations(exact, decomposed, (-128, 127), low, low + span, scale)
    assert found.differing == _all(exact, decomposed, (-128, 127), low, low + span)
    for channel, acc, a, b in found.examples:
        assert channel == 0 and a != b
        assert (int(np.clip(exact(np.array([acc]))[0], -128, 127)), int(np.clip(decomposed(np.array([acc])).ravel()[0], -128, 127))) == (
            a,
            b,
        )


@pytest.mark.parametrize("wrong", [1 + 1e-3, 1 - 1e-3, 1 + 2.0**-20])
def test_the_proof_finds_faults_in_single_channels(wrong: float) -> None:
    """A multiplier that is a little off in one of many channels; how many accumulators differ is counted there."""
    scale = np.random.default_rng(2).uniform(1e-5, 1e-3, 40)
    faulty = scale.copy()
    faulty[17] *= wrong
    right, off = (ar.FixedPoint.of(values[:, None]) for values in (scale, faulty))
    same = ar.compare_requantizations(right, right, (-128, 127), -(2**30), 2**30, scale)
    found = ar.compare_requantizations(right, off, (-128, 127), -(2**30), 2**30, scale)
    assert same.differing == 0 and same.examples == ()
    assert found.differing and {example[0] for example in found.examples} == {17}
    one = ar.FixedPoint.of(scale[17]), ar.FixedPoint.of(faulty[17])
    reach = int(130 / scale[17])
    assert found.differing == _all(*one, (-128, 127), -reach, reach)


def test_the_share_of_double_rounding_is_the_predicted_one() -> None:
    scale = np.random.default_rng(3).uniform(2.0**-9, 2.0**-8, 60)
    single, double = (ar.FixedPoint.of(scale[:, None], rounding) for rounding in ("single", "double"))
    found = ar.compare_requantizations(single, double, (-128, 127), -(2**30), 2**30, scale)
    assert found.differing / found.total == pytest.approx(ar.predicted_rate_double_rounding(scale), rel=0.15)


def test_a_factor_that_is_too_small_for_a_multiplier_is_0() -> None:
    steps = Rescale.of_pair(1e-30)
    assert (int(steps.multipliers), steps.in_floats) == (0, True)
