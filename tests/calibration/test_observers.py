"""Observers: what each method chooses, streaming, merging, strange values."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refusals import refused

from qconvert.calibration import METHODS, Observer, observer
from qconvert.encodings import Range, quantization_of
from qconvert.errors import InvalidModelError, OptionError
from qconvert.graph import Array

RUNS = st.lists(
    hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(-1e6, 1e6, width=32)),
    min_size=1,
    max_size=6,
)


def seen(method: str, runs: Sequence[Array], **options: object) -> Observer:
    found = observer(method, **options)()
    for number in range(found.passes):
        if number:
            found.next_pass()
        for values in runs:
            found.update(values)
    return found


def ends(found: Observer) -> tuple[float, float]:
    chosen = found.range()
    return float(chosen.lowest[0]), float(chosen.highest[0])


@pytest.mark.property
@given(RUNS, st.integers(0, 6))
def test_min_max_merges_exactly(runs: list[Array], cut: int) -> None:
    whole = seen("min-max", runs)
    parts = seen("min-max", runs[:cut])
    parts.merge(seen("min-max", runs[cut:]))
    assert ends(parts) == ends(whole) and parts.count == whole.count
    values = np.concatenate(runs)
    assert ends(whole) == ((values.min(), values.max()) if values.size else (0.0, 0.0))


def test_what_comes_again_is_ignored() -> None:
    found = seen("moving-average", [np.array([1, 2], np.float32)])
    before = ends(found)
    found.next_pass()
    found.update(np.array([5, 6], np.float32))
    assert ends(found) == before and found.count == 2


@pytest.mark.property
@given(RUNS, st.integers(0, 6), st.sampled_from([0.0, 0.1]))
def test_moving_averages_merge_in_order(runs: list[Array], cut: int, constant: float) -> None:
    whole = seen("moving-average", runs, constant=constant)
    parts = seen("moving-average", runs[:cut], constant=constant)
    parts.merge(seen("moving-average", runs[cut:], constant=constant))
    np.testing.assert_allclose(ends(parts), ends(whole), rtol=1e-12, atol=1e-9)


@pytest.mark.torch
@pytest.mark.cross_section
def test_moving_average_is_that_of_pytorch() -> None:
    from torch import from_numpy
    from torch.ao.quantization import MovingAverageMinMaxObserver

    runs = [np.random.default_rng(i).normal(size=50).astype(np.float32) * (i + 1) for i in range(5)]
    theirs = MovingAverageMinMaxObserver(averaging_constant=0.01)
    for values in runs:
        theirs(from_numpy(values))
    np.testing.assert_allclose(ends(seen("moving-average", runs, constant=0.01)), (float(theirs.min_val), float(theirs.max_val)), rtol=1e-6)


def test_by_default_all_runs_count_alike() -> None:
    runs = [np.array([-i, 2.0 * i], np.float32) for i in (1, 2, 6)]
    assert ends(seen("moving-average", runs)) == (-3, 6)


@pytest.mark.parametrize("method", METHODS)
def test_strange_values(method: str) -> None:
    assert ends(seen(method, [])) == (0, 0)
    assert ends(seen(method, [np.zeros((0, 3), np.float32)])) == (0, 0)
    zeros = seen(method, [np.zeros((1, 2, 3, 4), np.float32)])
    assert ends(zeros) == (0, 0)
    assert zeros.quantization("int8").quantization.scale[0] > 0
    for value in (np.nan, np.inf, -np.inf):
        with refused(InvalidModelError, "not-finite"):
            seen(method, [np.array([1, value], np.float32)])


@pytest.mark.parametrize("method", METHODS)
def test_observers_are_pickled(method: str) -> None:
    runs = [np.random.default_rng(i).normal(size=(1, 3, 12, 12)).astype(np.float32) for i in range(3)]
    found = pickle.loads(pickle.dumps(observer(method)))()
    for number in range(found.passes):
        if number:
            found.next_pass()
        for values in runs:
            found.update(values)
            found = pickle.loads(pickle.dumps(found))
    assert ends(found) == ends(seen(method, runs))


@pytest.mark.parametrize("method", METHODS)
def test_many_workers_see_what_one_sees(method: str) -> None:
    """Each pass: copies of what is known so far see a part each, and are merged in order."""
    rng = np.random.default_rng(5)
    runs = [(rng.standard_t(4, size=(1, 3, 12, 12)) * (1 + i % 4)).astype(np.float32) for i in range(10)]
    merged = observer(method)()
    for number in range(merged.passes):
        if number:
            merged.next_pass()
        parts = [pickle.loads(pickle.dumps(merged)) for _ in range(4)]
        for part, (first, last) in zip(parts, ((0, 3), (3, 3), (3, 8), (8, 10)), strict=True):
            for values in runs[first:last]:
                part.update(values)
        merged = parts[0]
        for part in parts[1:]:
            merged.merge(part)
    whole = seen(method, runs)
    assert merged.count == whole.count
    np.testing.assert_allclose(ends(merged), ends(whole), rtol=1e-12 if method == "moving-average" else 0)


def test_unknown_methods_and_options() -> None:
    with refused(OptionError, "unknown-method", holds=("minmax",)):
        observer("minmax")
    with refused(OptionError, "unknown-option", holds=("'bins'",)):
        observer("min-max", bins=3)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("moving-average", {"constant": -0.1}),
        ("percentile", {"percentile": 101.0}),
        ("entropy", {"levels": 1}),
        ("js", {"levels": 9999}),
        ("mse", {"bits": 40}),
        ("mnn-kl", {"clamp": 0}),
        ("mnn-admm", {"pack": 0}),
    ],
)
def test_options_have_bounds(method: str, options: dict[str, float]) -> None:
    with refused(OptionError, "number-out-of-range", holds=(*options,)):
        observer(method, **options)()


def test_quantizations_of_a_range() -> None:
    found = Range(np.array([-1.0]), np.array([3.0]))
    signed = quantization_of(found, "int8", symmetric=True)
    assert signed.quantization.scale[0] == np.float32(3) / np.float32(127) and signed.quantization.is_symmetric
    assert quantization_of(found, "uint8", symmetric=True).quantization.zero_point[0] == 128
    affine = quantization_of(found, "int8").quantization
    assert affine.scale[0] == np.float32(4) / np.float32(255) and affine.zero_point[0] == 64 - 128
    assert quantization_of(found, "uint8").quantization.zero_point[0] == 64
    narrow = quantization_of(found, "int8", symmetric=True, narrow=True)
    assert narrow.quantization.limits("int8") == (-127, 127)
    assert quantization_of(Range(np.array([2.0]), np.array([4.0]))).quantization.zero_point[0] == -128, "0 is always in it"
    wide = quantization_of(found, "int16", symmetric=True)
    assert wide.quantization.scale[0] == np.float32(3) / np.float32(32767)
    with refused(OptionError, "narrow-not-symmetric"):
        quantization_of(found, "uint8", narrow=True)
    axis = quantization_of(Range(np.array([-1.0, 0.0]), np.array([3.0, 0.0]), 1)).quantization
    assert axis.axis == 1 and axis.scale.tolist() == [np.float32(4) / np.float32(255), 1]
