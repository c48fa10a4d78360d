"""Histograms that grow: counts, merging, what percentiles of them miss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qconvert.calibration import observer
from qconvert.calibration.observer import HALF, Counted
from qconvert.encodings import Range
from qconvert.graph import Array

pytestmark = pytest.mark.property

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-1, 1, width=32) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 4096.0])
RUNS = st.lists(hnp.arrays(np.float32, st.integers(0, 30), elements=FLOATS), min_size=1, max_size=5)


class Plain(Counted):
    def range(self) -> Range:
        return self.clip_to_threshold(np.inf)


def counted(runs: list[Array]) -> Plain:
    found = Plain()
    for values in runs:
        found.update(values)
    return found


@given(RUNS, st.randoms(use_true_random=False))
def test_counts_are_those_of_any_order(runs: list[Array], random: object) -> None:
    """One run after the other in any order, merged in any way, and all at once."""
    whole = counted([np.concatenate(runs)])
    shuffled = list(runs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    merged = counted([])
    for values in shuffled:
        part = counted([values])
        before = part._counts.copy()
        merged.merge(part)
        np.testing.assert_array_equal(part._counts, before)
    for other in (counted(shuffled), merged):
        np.testing.assert_array_equal(other._counts, whole._counts)
        assert (other.width, other.count, other.lowest, other.highest) == (whole.width, whole.count, whole.lowest, whole.highest)


@given(RUNS)
def test_each_value_is_in_its_bin(runs: list[Array]) -> None:
    found = counted(runs)
    values = np.concatenate(runs).astype(np.float64)
    counts, edges = found.histogram()
    assert counts.sum() == values.size
    if not values.any():
        return
    assert found.width <= 2 * np.abs(values).max() / HALF or np.abs(values).max() < 2.0**-113
    places = np.where(values < 0, -np.floor(-values / found.width) - 1, np.floor(values / found.width))
    own, many = np.unique(places, return_counts=True)
    np.testing.assert_array_equal(own, edges[:-1][counts > 0] / found.width)
    np.testing.assert_array_equal(many, counts[counts > 0])
    absolute, width = found.fold_to_absolute()
    np.testing.assert_array_equal(absolute, np.bincount(np.floor(np.abs(values) / width).astype(int)))


@given(
    hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-1e4, 1e4, width=32)),
    st.floats(0, 100),
)
def test_percentiles_are_within_a_bin(values: Array, percentile: float) -> None:
    found = observer("percentile", percentile=percentile)()
    found.update(values)
    chosen = found.range()
    ordered = np.sort(values.astype(np.float64))
    outside = values.size * (100 - percentile) / 200
    bound = max(float(np.abs(values).max()) / 2048, 2.0**-126)
    low = ordered[min(int(np.floor(outside)), values.size - 1)]
    high = ordered[max(int(np.ceil(values.size - outside)) - 1, 0)]
    assert abs(chosen.lowest[0] - low) <= bound
    assert abs(chosen.highest[0] - max(low, high)) <= bound
    assert ordered[0] <= chosen.lowest[0] <= chosen.highest[0] <= ordered[-1]


def test_growing_is_cheap_in_memory() -> None:
    found = counted([np.full(5, 1e-30, np.float32), np.full(7, 1e30, np.float32), np.zeros(3, np.float32)])
    assert found._counts.nbytes == 2 * HALF * 8
    assert found._counts[HALF] == 8 and found.count == 15
