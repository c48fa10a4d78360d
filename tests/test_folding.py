"""Folding into weights and biases, and tables of 256: against the layers that they stand for, and LiteRT's kernels with tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qconvert import arithmetic as ar
from qconvert.graph import Quantization
from tests.tflite_models import TensorSpec, run_litert, single_op


def test_a_folded_layer_is_the_layer_and_its_normalization() -> None:
    rng = np.random.default_rng(0)
    x, weights = rng.normal(0, 1, (20, 7)), rng.normal(0, 1, (5, 7))
    bias, scale, offset, mean = rng.normal(0.5, 1, (4, 5))
    variance = rng.uniform(0.1, 2, 5)
    wanted = (x @ weights.T + bias - mean) / np.sqrt(variance + 1e-3) * scale + offset
    folded, added = ar.fold_batch_norm(weights, bias, scale, offset, mean, variance, 1e-3)
    assert np.allclose(x @ folded.T + added, wanted, rtol=1e-12)
    kernel, _ = ar.fold_batch_norm(weights[..., None, None], None, scale, offset, mean, variance, 1e-3)
    assert np.array_equal(kernel[..., 0, 0], folded)
    single, _ = ar.fold_batch_norm(weights, bias, scale, offset, mean, variance, 1e-3, "float32")
    assert single.dtype == np.float32 and np.allclose(single, folded, rtol=1e-6)


def test_golden_values_of_a_normalization() -> None:
    """gamma 3, variance 3 + epsilon 1: a factor of 1.5; (2 - 1) * 1.5 + 0.5 = 2."""
    assert ar.batch_norm_factor([3.0], [3.0], 1.0).tolist() == [1.5]
    weights, bias = ar.fold_batch_norm([[2.0, -4.0]], [2.0], [3.0], [0.5], [1.0], [3.0], 1.0)
    assert weights.tolist() == [[3.0, -6.0]] and bias.tolist() == [2.0]
    assert not np.isfinite(ar.batch_norm_factor([1.0, 1.0], [0.0, -1.0], 0.0)).any()


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_bias_correction_keeps_the_mean_of_outputs(groups: int) -> None:
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 1, (8, 4 // groups, 3, 3))
    rounded = np.rint(weights * 3) / 3
    data = rng.normal(0, 1, (4, 50, 9)) + rng.normal(0, 3, (4, 1, 1))  # channels, places, taps: the mean is the same at each tap
    data += data.mean(axis=(1, 2), keepdims=True) - data.mean(axis=1, keepdims=True)

    def means(kernel: Any) -> Any:
        rows = kernel.reshape(groups, 8 // groups, -1)
        return np.einsum("goi,gip->gop", rows, data.transpose(0, 2, 1).reshape(groups, -1, 50)).mean(axis=-1).reshape(-1)

    found = ar.bias_correction(weights, rounded, data.mean(axis=(1, 2)), groups)
    assert np.allclose(means(rounded) + found, means(weights), atol=1e-12)
    assert not np.allclose(means(rounded), means(weights), atol=1e-2)


def test_bias_correction_of_a_matrix_product() -> None:
    """(1 - 0.5) * 2 + (3 - 4) * 10."""
    assert ar.bias_correction([[1.0, 3.0]], [[0.5, 4.0]], [2.0, 10.0]).tolist() == [-9.0]


@pytest.mark.litert
@pytest.mark.parametrize(("builtin", "function", "quantizations"), [
    ("EXP", np.exp, ((0.02, 10), (0.1, -100))),
    ("ELU", lambda x: np.where(x < 0, np.expm1(x), x), ((0.0517, 20), (0.0391, -30))),
    ("LOG", np.log, ((0.02, -128), (0.03, 5))),
])  # fmt: skip
def test_tables_are_litert_s(builtin: str, function: Any, quantizations: Any) -> None:
    """Its kernels of int8 that look up a table: all 256 codes, none of which is a tie (they multiply by the reciprocal of the scale)."""
    (scale, point), (other, zero) = quantizations
    x, y = TensorSpec("x", (256,), "int8", scale, point), TensorSpec("y", (256,), "int8", other, zero)
    codes = np.arange(-128, 128).astype(np.int8)
    if builtin == "LOG":  # of the smallest code it takes the logarithm of zero
        codes = codes[1:]
        x, y = TensorSpec("x", (255,), "int8", scale, point), TensorSpec("y", (255,), "int8", other, zero)
    (found,) = run_litert(single_op(builtin, None, [x], [y]), [codes], kernels="default" if builtin == "ELU" else "reference")
    given, output = Quantization.per_tensor(scale, point), Quantization.per_tensor(other, zero)
    table = ar.lookup_table(function, given, output, "int8", rounding="half_away", precision="float32")
    assert table.dtype == np.int8 and np.array_equal(table[codes.astype(int) + 128], found)


def test_tables_of_other_types() -> None:
    given, output = Quantization.per_tensor(0.25, 128), Quantization.per_tensor(0.5)
    assert ar.lookup_table(np.abs, given, output, "uint8", "int8").tolist()[126:132] == [1, 0, 0, 0, 1, 2]  # 0.25 / 0.5 is a tie
    assert ar.lookup_table(np.abs, given, output, "uint8", "int8", "half_away").tolist()[126:132] == [1, 1, 0, 1, 1, 2]
    wide = ar.lookup_table(lambda x: x, Quantization.per_tensor(1.0), Quantization.per_tensor(2.0), "int16")
    assert wide.shape == (65536,) and wide[-1] == 16384
    odd = ar.lookup_table(np.log, Quantization.per_tensor(1.0), Quantization.per_tensor(0.1, 7))
    assert odd[:129].tolist() == [7] * 128 + [-128]  # NaN, and minus infinity
