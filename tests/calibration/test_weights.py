"""Scales of weights, next to slow searches; MNN's are in test_mnn.py."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

from qconvert.arithmetic import dequantize, quantize
from qconvert.calibration import WEIGHT_METHODS, weight_quantization
from qconvert.errors import InvalidModelError, OptionError
from qconvert.graph import Array


def weights(heavy: bool = False) -> Array:
    rng = np.random.default_rng(0)
    found = rng.standard_t(3, size=(5, 4, 3, 3)) if heavy else rng.normal(size=(5, 4, 3, 3))
    found[2] = 0
    return found.astype(np.float32)


def errors(values: Array, method: str, axis: int | None, dtype: str = "int8") -> Array:
    quantization = weight_quantization(values, method, axis, dtype)
    back = dequantize(quantize(values, quantization.quantization, dtype), quantization.quantization)
    kept = () if axis is None else (axis % values.ndim,)
    return np.asarray(np.square(values - back).sum(axis=tuple(i for i in range(values.ndim) if i not in kept)))


@pytest.mark.parametrize("method", WEIGHT_METHODS)
@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_quantizations_lie_along_the_axis(method: str, axis: int | None) -> None:
    values = weights()
    quantization = weight_quantization(values, method, axis).quantization
    assert quantization.axis == (axis if axis is None else axis % 4) and quantization.scale.shape == (
        (1,) if axis is None else (values.shape[axis],)
    )
    assert quantization.is_symmetric and quantization.limits("int8") == (-127, 127) and (quantization.scale > 0).all()
    assert np.abs(quantize(values, quantization, "int8")).max() == 127


def test_max_abs() -> None:
    values = weights()
    quantization = weight_quantization(values).quantization
    expected = np.abs(values).max(axis=(1, 2, 3)) / np.float32(127)
    expected[2] = expected.max()  # a channel of zeros
    np.testing.assert_array_equal(quantization.scale, expected)
    few = weight_quantization(values, dtype="int4").quantization
    assert few.limits("int4") == (-7, 7) and few.scale[0] == np.abs(values[0]).max() / np.float32(7)


@pytest.mark.parametrize("dtype", ["int4", "int8"])
@pytest.mark.parametrize("axis", [0, None])
def test_squared_errors_are_nearly_the_smallest(dtype: str, axis: int | None) -> None:
    values = weights(heavy=True)
    found = errors(values, "mse", axis, dtype)
    assert (found <= errors(values, "max-abs", axis, dtype)).all()
    assert (found <= errors(values, "admm", axis, dtype) * 1.01 + 1e-12).all()
    if axis is None and dtype == "int4":
        assert found < 0.97 * errors(values, "max-abs", None, dtype)


def test_admm_settles_where_neither_step_helps() -> None:
    values = weights()[:2]
    quantization = weight_quantization(values, "admm").quantization
    integers = quantize(values, quantization, "int8", "half_away").astype(np.float64)
    best = (values * integers).sum(axis=(1, 2, 3)) / np.square(integers).sum(axis=(1, 2, 3))
    np.testing.assert_allclose(quantization.scale, best, rtol=1e-6)


def test_errors_of_users() -> None:
    with refused(OptionError, "unknown-method", holds=("'kl'",)):
        weight_quantization(weights(), "kl")
    with refused(OptionError, "not-symmetric"):
        weight_quantization(weights(), dtype="uint8")
    with refused(InvalidModelError, "weights-not-finite"):
        weight_quantization(np.array([[np.nan, 1.0]]))
