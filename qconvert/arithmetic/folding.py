"""What is folded into weights and biases before a network runs: normalizations, and the mean error of rounded weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array

__all__ = ["batch_norm_factor", "bias_correction", "fold_batch_norm"]


def batch_norm_factor(scale: Any, variance: Any, epsilon: float, precision: str = "float64") -> Array:
    """scale / sqrt(variance + epsilon): what a batch normalization multiplies each channel by.

    Source: Ioffe and Szegedy, "Batch Normalization" (arXiv 1502.03167), algorithm 1; ONNX BatchNormalization-15. Where the variance is not
    positive it is NaN or infinite, which the caller has to look at.

    Args:
        scale, variance: one number for each channel.
        epsilon: is added to the variance.
        precision: in which it is computed: float64, or float32 as trainers do.
    """
    real = np.dtype(precision).type
    with np.errstate(all="ignore"):
        return np.asarray(np.asarray(scale, real) / np.sqrt(np.asarray(variance, real) + real(epsilon)))


def fold_batch_norm(
    weights: Any, bias: Any, scale: Any, offset: Any, mean: Any, variance: Any, epsilon: float, precision: str = "float64"
) -> tuple[Array, Array]:
    """Weights and bias of a layer that does what the layer and a batch normalization after it do.

    weights * f and (bias - mean) * f + offset, with f of batch_norm_factor(). Source: Jacob et al. (arXiv 1712.05877), section 3.2, where
    the folded weights are those that are quantized.

    Args:
        weights: outputs first: O,I,spatial of a convolution, O,I of a matrix product.
        bias: one for each output, one for all, or None.
        scale, offset, mean, variance: one for each output: gamma, beta and the statistics.
        epsilon: is added to the variance.
        precision: of all that is computed, and of what is returned.
    """
    real = np.dtype(precision).type
    weights, offset, mean = (np.asarray(item, real) for item in (weights, offset, mean))
    factor = batch_norm_factor(scale, variance, epsilon, precision)
    given = np.zeros(1, real) if bias is None else np.asarray(bias, real).reshape(-1)
    with np.errstate(all="ignore"):
        return np.asarray(weights * factor.reshape(-1, *[1] * (weights.ndim - 1))), np.asarray((given - mean) * factor + offset)


def bias_correction(weights: Any, rounded: Any, mean: Any, groups: int = 1) -> Array:
    """Return the addend of a bias with which rounding the weights keeps the mean of each output.

    The error of the weights times the mean of the data, E[y] - E[y'] = (W - W') E[x]. Source: Nagel et al., "Data-Free Quantization Through
    Weight Equalization and Bias Correction" (arXiv 1906.04721), section 4.2. Padding is not looked at: at the borders of an image the mean
    is that of the inside.

    Args:
        weights: real, outputs first: O,I,spatial or O,I, with the inputs of one group.
        rounded: the float values of the quantized weights.
        mean: of the data: one for each input channel, over all groups.
        groups: of the convolution.

    Returns:
        float64, one for each output.
    """
    error = np.asarray(weights, np.float64) - np.asarray(rounded, np.float64)
    error = error.reshape(groups, -1, *error.shape[1:2], int(np.prod(error.shape[2:], dtype=np.int64))).sum(axis=-1)
    means = np.asarray(mean, np.float64).reshape(groups, 1, -1)
    return np.asarray((error * means).sum(axis=-1).reshape(-1))
