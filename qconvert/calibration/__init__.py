"""Calibration: choosing quantizations from data. The methods (observers of activations, scales of weights, corrections) are pure numpy."""

from __future__ import annotations

from qconvert.calibration.layer_changes import (
    ChannelMeans,
    analytic_shifts,
    clipped_normal_means,
    correct_biases,
    equalize,
    expected_shifts,
    normalized_means,
)
from qconvert.calibration.methods import METHODS, Method, observer
from qconvert.calibration.observer import Histogram, Observer
from qconvert.calibration.weights import WEIGHT_METHODS, WeightMethod, weight_quantization

__all__ = [
    "METHODS",
    "WEIGHT_METHODS",
    "ChannelMeans",
    "Histogram",
    "Method",
    "Observer",
    "WeightMethod",
    "analytic_shifts",
    "clipped_normal_means",
    "correct_biases",
    "equalize",
    "expected_shifts",
    "normalized_means",
    "observer",
    "weight_quantization",
]
