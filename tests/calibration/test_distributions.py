"""Every method compared with min-max on distributions of many kinds: how much is clipped, and what is left of the signal."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert.calibration import METHODS, observer
from qconvert.calibration.report import Noise
from qconvert.encodings import QParams
from qconvert.graph import Array

N = 4096


def distributions() -> dict[str, Array]:
    rng = np.random.default_rng(27)
    normal, uniform, choice = rng.normal(size=N), rng.random(N), rng.random(N)
    found = {
        "normal": normal, "normal, wide": normal * 1e6, "normal around 3": normal + 3, "uniform": 2 * uniform - 1,
        "after Relu": np.maximum(normal, 0), "after Relu, sparse": np.maximum(normal - 2.5, 0), "never positive": np.minimum(normal, 0),
        "Relu6": np.clip(3 * normal + 2, 0, 6), "hard tanh": np.clip(2 * normal, -1, 1), "sigmoid": 1 / (1 + np.exp(-4 * normal)),
        "15 to 40": 15 + 25 * uniform, "-40 to -15": -40 + 25 * uniform, "pixels 10 to 255": np.floor(10 + 246 * uniform),
        "pixels": np.floor(256 * uniform), "normalized pixels": (np.floor(256 * uniform) / 255 - 0.485) / 0.229,
        "around 1000": 1000 + normal, "around 1e6": 1e6 + normal, "around -50": -50 + normal / 10,
        "constant": np.full(N, 7.0), "negative constant": np.full(N, -3.0), "zeros": np.zeros(N), "one among zeros": np.eye(1, N, 5)[0] * 4,
        "two clusters, 9 to 1": np.where(choice < 0.9, 1, 10) + normal / 100, "two clusters": np.where(choice < 0.5, -5, 20) + normal / 10,
        "two clusters of two signs": np.where(choice < 0.5, -1, 1) * (10 + uniform), "two values": np.where(choice < 0.5, 2.0, 9.0),
        "spike and tail": np.where(choice < 0.9, 15, 15 + 25 * uniform),
        "spike of 99.5% and tail": np.where(choice < 0.995, 15, 40 * uniform),
        "mask": np.where(choice < 0.5, 0.0, -10000.0), "zeros and 15 to 40": np.where(choice < 0.3, 0, 15 + 25 * uniform),
        "outliers": np.append(normal, [30, -40]), "one outlier": np.append(normal, 300),
        "15 to 40, outlier": np.append(15 + 25 * uniform, 4000),
        "Student's t, 3": rng.standard_t(3, N), "Laplace": rng.laplace(size=N), "exponential": rng.exponential(size=N),
        "log-normal": np.exp(normal), "Cauchy": rng.standard_cauchy(N), "powers of two": 2.0 ** -np.floor(20 * uniform),
        "denormal": normal * 1e-41, "about 1e-30": (1 + uniform) * 1e-30, "1 to 1.000001": 1 + uniform * 1e-6, "1e37": normal * 1e37,
        "1 value": np.array([3.7]), "3 values": np.array([-1, 0.5, 2.0]), "10 values, 15 to 40": 15 + 25 * uniform[:10],
        "100 values": normal[:100],
        "small integers": np.floor(16 * uniform) - 8, "logits": np.where(choice < 0.1, 15 + normal, -5 + 2 * normal),
    }  # fmt: skip
    return {name: values.astype(np.float32) for name, values in found.items()}


DISTRIBUTIONS = distributions()


def chosen(method: str, values: Array, dtype: str, symmetric: bool) -> QParams:
    """The quantization of one sample of these values, as a plane of one channel."""
    seeing = observer(method)()
    for number in range(seeing.passes):
        if number:
            seeing.next_pass()
        seeing.update(values.reshape(1, 1, 1, -1))
    return seeing.quantization(dtype, symmetric=symmetric)


def ends(quantization: QParams) -> tuple[float, float]:
    """The smallest and the largest value that a quantization has."""
    q = quantization.quantization
    low, high = (float((limit - q.point) * q.step) for limit in q.limits(quantization.dtype))
    return low, high


def measured(values: Array, quantization: QParams) -> tuple[float, float]:
    """SQNR in dB, at most 60, and the share of clipped values."""
    noise = Noise(quantization)
    noise.update(values)
    return min(60.0, 60.0 if noise.sqnr_db is None else noise.sqnr_db), noise.clipped_share


@pytest.mark.parametrize("method", [name for name in METHODS if name != "min-max" and not name.startswith("mnn")])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_method_compared_with_min_max(name: str, method: str) -> None:
    """At most 1% is clipped, and the rest keeps the signal that min-max leaves it; so does all, unless outliers hold the energy."""
    values = DISTRIBUTIONS[name]
    for dtype, symmetric in (("int8", False), ("int8", True), ("uint8", False)):
        quantization, reference = (chosen(one, values, dtype, symmetric) for one in (method, "min-max"))
        (found, clipped), (best, none) = measured(values, quantization), measured(values, reference)
        assert none == 0 and clipped <= 0.01
        low, high = ends(quantization)
        inside = values[(values >= low) & (values <= high)]
        assert measured(inside, quantization)[0] >= min(measured(inside, reference)[0], 48) - 6
        peak = float(np.abs(values).max()) / max(float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))), 1e-300)
        if peak <= 10:
            assert found >= max(10, min(best, 48) - (6 if peak <= 3 else 20)), peak


@pytest.mark.parametrize("method", ["mnn-kl", "mnn-admm"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_methods_of_mnn_give_finite_scales(name: str, method: str) -> None:
    """They are MNN's in every bit, what they clip is too."""
    quantization = chosen(method, DISTRIBUTIONS[name], "int8", True)
    assert 0 < quantization.quantization.scale[0] < np.inf
