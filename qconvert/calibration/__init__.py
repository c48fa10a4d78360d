"""Calibration: choosing quantizations from data. The methods (observers of activations, scales of weights, corrections) are pure numpy."""

from __future__ import annotations

from qconvert.calibration.layer_changes import (
    ChannelMeans,
    correct_biases,
    equalize,
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
    "correct_biases",
    "equalize",
    "observer",
    "weight_quantization",
]
