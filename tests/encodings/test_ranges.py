"""Quantizations made of weights."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

from qconvert.encodings import weights_quantization
from qconvert.errors import InvalidModelError
from qconvert.graph import Op, Tensor

CONV = Op("Conv", ("x", "w"), ("y",))


def test_weights_get_their_largest_magnitude_over_127() -> None:
    data = np.array([[[-0.5]], [[0.0]], [[127.0]]], np.float32)
    quantization = weights_quantization(Tensor("w", "float32", data.shape, data), CONV)
    assert quantization.quantization.scale.tolist() == [np.float32(0.5) / np.float32(127), 1, 1]
    assert (quantization.dtype, quantization.quantization.axis, quantization.quantization.limits("int8")) == ("int8", 0, (-127, 127))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_no_numbers_are_named(value: float) -> None:
    data = np.array([[[1.0]], [[value]]], np.float32)
    with refused(InvalidModelError, "weights-not-finite", where="'w'"):
        weights_quantization(Tensor("w", "float32", data.shape, data), CONV)
