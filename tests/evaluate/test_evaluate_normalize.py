"""The exact evaluation of normalizations against onnx and onnxruntime, in both layouts and of quantized data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qconvert.arithmetic import dequantize
from qconvert.evaluate import ExactResult
from qconvert.graph import Array, Quantization
from tests.evaluate.evaluation import close, reference, run, runtime

RNG = np.random.default_rng(5)
SPATIAL: dict[str, tuple[list[Array], dict[str, Any]]] = {
    "BatchNormalization": ([RNG.normal(size=6) for _ in range(3)] + [RNG.uniform(0.1, 2, 6)], {"epsilon": 0.01}),
    "InstanceNormalization": ([RNG.normal(size=6) for _ in range(2)], {"epsilon": 0.02}),
    "GroupNormalization": ([RNG.normal(size=6) for _ in range(2)], {"epsilon": 0.03, "num_groups": 3}),
}


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("kind", SPATIAL)
def test_normalizations_over_space_equal_onnx(kind: str, rank: int, last: bool) -> None:
    x = np.random.default_rng(rank).normal(3, 2, (2, 6, 4, 3, 2)[:rank])
    parameters, attributes = SPATIAL[kind]
    data, layout = (np.moveaxis(x, 1, -1), "channels_last") if last else (x, "channels_first")
    got = run(kind, [data, *parameters], data_format=layout, **attributes)[0].stored
    got = np.moveaxis(got, -1, 1) if last else got
    narrow = [array.astype(np.float32) for array in (x, *parameters)]
    close(ExactResult(None, got), runtime(kind, narrow, **attributes)[0], 1e-5)
    if kind == "BatchNormalization":
        close(ExactResult(None, got), reference(kind, [x, *parameters], **attributes)[0], 1e-9)


@pytest.mark.formats
def test_batch_normalization_without_space() -> None:
    x, (parameters, attributes) = RNG.normal(size=(4, 6)), SPATIAL["BatchNormalization"]
    got = run("BatchNormalization", [x, *parameters], data_format="channels_first", **attributes)[0]
    close(got, reference("BatchNormalization", [x, *parameters], **attributes)[0], 1e-9)


@pytest.mark.formats
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("axis", [-1, 1, -3])
@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
def test_normalizations_over_last_axes_equal_onnx(kind: str, axis: int, has_bias: bool) -> None:
    x = RNG.normal(1, 2, (2, 3, 4))
    shape = x.shape[axis % 3 :]
    inputs = [x, RNG.normal(size=shape)]
    if kind == "LayerNormalization" and has_bias:
        inputs.append(RNG.normal(size=shape))
    got = run(kind, inputs, axis=axis, epsilon=0.01)[0]
    expected = reference(kind, [item.astype(np.float32) for item in inputs], axis=axis, epsilon=0.01)[0]
    close(got, expected, 1e-5)


@pytest.mark.parametrize("kind", SPATIAL)
def test_a_quantized_normalization_is_that_of_its_real_values(kind: str) -> None:
    x = np.random.default_rng(3).integers(-128, 128, (1, 6, 4, 4)).astype(np.int8)
    q, out = Quantization.per_tensor(0.125, 5), Quantization.per_tensor(0.03125, -7)
    parameters, attributes = SPATIAL[kind]
    got = run(kind, [(x, q), *parameters], ("int8", out), data_format="channels_first", **attributes)[0]
    real = run(kind, [dequantize(x, q), *parameters], data_format="channels_first", **attributes)[0].stored
    assert np.array_equal(got.stored, np.clip(np.rint(real / 0.03125) - 7, -128, 127))
