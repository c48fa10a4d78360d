"""The searches of thresholds, next to slow ones that follow their definitions bin by bin, and next to onnxruntime's calibrators."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert.arithmetic import dequantize, quantize
from qconvert.calibration import Observer, observer
from qconvert.calibration.methods import Split
from qconvert.graph import Array

DIVERGENCES = ("entropy", "symmetric-kl", "js")


def histograms() -> list[Array]:
    rng = np.random.default_rng(5)
    samples = [
        np.abs(rng.normal(size=20_000)),
        np.abs(rng.standard_t(3, size=20_000)),
        rng.exponential(size=500),
        rng.integers(0, 50, 3_000) / 50,
        np.append(rng.random(1000) / 9, 1.0),
    ]
    return [np.bincount((values / values.max() * 399.5).astype(int)) for values in samples]


def by_definition(counts: Array, end: int, levels: int) -> tuple[Array, Array]:
    """P and Q of the first `end` bins, as shares."""
    p, q = counts[:end].astype(np.float64), np.zeros(end)
    for level in range(levels):
        own = [k for k in range(end) if k * levels // end == level and counts[k]]
        for k in own:
            q[k] = counts[own].sum() / len(own)
    p[-1] += counts[end:].sum()
    return p / p.sum(), q / q.sum()


def kullback_leibler(p: Array, q: Array) -> float:
    if (q[p > 0] == 0).any():
        return np.inf
    return float(np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0])))


@pytest.mark.parametrize("counts", histograms(), ids=["normal", "t", "exponential", "steps", "outlier"])
def test_divergences_are_those_of_their_definitions(counts: Array) -> None:
    ends = np.array([64, 65, 77, 128, 200, 201, 255, 384, counts.size])
    split = Split(counts, ends, 64)
    forward, backward, middle = split.forward(), split.backward(), split.jensen_shannon()
    for i, end in enumerate(ends):
        p, q = by_definition(counts, int(end), 64)
        mean = (p + q) / 2
        assert forward[i] == pytest.approx(kullback_leibler(p, q), abs=1e-11)
        assert middle[i] == pytest.approx((kullback_leibler(p, mean) + kullback_leibler(q, mean)) / 2, abs=1e-11)
        if np.isfinite(forward[i]):
            assert backward[i] == pytest.approx(kullback_leibler(q, p), abs=1e-11)


def seen(method: str, *runs: Array, **options: object) -> Observer:
    found = observer(method, **options)()
    for values in runs:
        found.update(values)
    return found


def test_the_search_of_js_finds_what_all_candidates_give() -> None:
    values = np.random.default_rng(0).laplace(size=30_000).astype(np.float32)
    found = seen("js", values)
    counts, width = found.fold_to_absolute()  # type: ignore[attr-defined]
    counts[0] = counts[1]
    every = Split(counts, np.arange(128, counts.size + 1), 128).jensen_shannon()
    best = 128 + every.size - 1 - np.argmin(every[::-1])
    assert abs(found.absmax - found.range().highest[0]) > 1
    chosen = round(found.range().highest[0] / width - 0.5)
    assert every[chosen - 128] <= every[best - 128] * 1.02


@pytest.mark.parametrize("method", DIVERGENCES)
def test_outliers_are_left_out(method: str) -> None:
    values = np.append(np.random.default_rng(1).normal(size=100_000), [30.0, -40.0]).astype(np.float32)
    found = seen(method, values)
    chosen = found.range()
    assert -20 < chosen.lowest[0] < -2 and 2 < chosen.highest[0] < 20
    assert error(found, values[:-2]) < 0.5 * error(seen("min-max", values), values[:-2])


@pytest.mark.parametrize("method", (*DIVERGENCES, "mse"))
def test_flat_values_are_kept_whole(method: str) -> None:
    values = np.linspace(0, 6, 100_000, dtype=np.float32)
    assert seen(method, values).range().highest[0] >= 5.98


@pytest.mark.parametrize("method", DIVERGENCES)
def test_pixels_are_kept_whole(method: str) -> None:
    """Each in a bin of its own, so that many thresholds leave no divergence but that of what lies beyond."""
    values = np.random.default_rng(0).integers(0, 256, 50_000).astype(np.float32)
    assert seen(method, values).range().highest[0] >= 250


def error(found: Observer, values: Array, **options: bool) -> float:
    quantization = found.quantization("int8", **options)
    back = dequantize(quantize(values, quantization.quantization, "int8"), quantization.quantization)
    return float(np.mean(np.square(values - back)))


@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"symmetric": True, "narrow": True}])
def test_squared_errors_are_the_smallest(options: dict[str, bool]) -> None:
    """No other range, a step farther in or out, has a smaller error, up to the width of bins."""
    rng = np.random.default_rng(2)
    for values in (rng.normal(size=50_000), np.maximum(rng.laplace(size=50_000), 0), rng.normal(size=50_000) - 2, -rng.random(50_000)):
        values = values.astype(np.float32)
        found = seen("mse", values)
        best = error(found, values, **options)
        other = seen("min-max", values)
        assert best <= error(other, values, **options) * 1.001
        low, high = other.lowest, other.highest
        for factor in np.arange(0.5, 1.0, 0.05):
            other.lowest, other.highest = low * factor, high * factor
            assert best <= error(other, values, **options) * 1.01


def theirs(method: str, runs: list[Array], **options: object) -> tuple[float, float]:
    """The range of onnxruntime's collector."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    taken = {"symmetric": False, "num_bins": 128, "num_quantized_bins": 128, "percentile": 99.999, "scenario": "same", **options}
    collector = HistogramCollector(method, **taken)
    for values in runs:
        collector.collect({"x": [values]})
    found = collector.compute_collection_result()["x"]
    if method == "distribution":
        return float(found.lowest), float(found.highest)
    return float(found[0]), float(found[1])


def ends(found: Observer) -> tuple[float, float]:
    return float(found.range().lowest[0]), float(found.range().highest[0])


@pytest.mark.onnxruntime
def test_percentiles_of_onnxruntime() -> None:
    """It takes edges of 2048 bins, the lower ones, so that it is up to one of its bins and one of ours away."""
    runs = [np.random.default_rng(i).laplace(size=20_000).astype(np.float32) for i in range(3)]
    for percentile in (90.0, 99.0, 99.9):
        found = seen("percentile", *runs, percentile=percentile)
        bound = 2 * found.absmax / 2048 + 2 * found.absmax / 2048
        np.testing.assert_allclose(ends(found), theirs("percentile", runs, num_bins=2048, percentile=percentile), atol=bound)


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_entropy_of_onnxruntime_by_default_is_the_whole_range() -> None:
    """Its 128 bins of both signs leave one candidate for 128 levels, so that it searches nothing."""
    values = np.append(np.random.default_rng(1).normal(size=20_000), [30.0, -40.0]).astype(np.float32)
    assert theirs("entropy", [values]) == ends(seen("min-max", values))
    assert ends(seen("entropy", values))[1] < 20


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", ["normal", "laplace", "relu"])
def test_entropy_of_onnxruntime_with_more_bins(name: str) -> None:
    """Near ours, not equal: it counts both signs in one histogram, merges whole bins with a rest in the last level, cuts the counts of Q
    to whole numbers and smooths empty bins."""
    rng = np.random.default_rng(3)
    values = {"normal": rng.normal(size=100_000), "laplace": rng.laplace(size=100_000), "relu": np.maximum(rng.normal(size=100_000), 0)}[
        name
    ]
    values = values.astype(np.float32)
    low, high = theirs("entropy", [values], num_bins=1025, num_quantized_bins=256)
    found = ends(seen("entropy", values))
    assert found != (low, high) and 0.8 < found[1] / high < 1.4


@pytest.mark.onnxruntime
def test_distribution_of_onnxruntime_is_no_range() -> None:
    """It gives the mean and the deviation, for types of 8-bit floats, and the whole range next to."""
    values = np.random.default_rng(4).normal(1, 2, size=20_000).astype(np.float32)
    low, high = theirs("distribution", [values], num_bins=2048)
    assert -low == high == seen("min-max", values).absmax
