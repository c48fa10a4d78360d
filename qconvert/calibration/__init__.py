"""Calibration: choosing grids from data. The methods (observers of activations, scales of weights, corrections) are pure numpy."""

from __future__ import annotations

from qconvert.calibration.methods import METHODS, Method, observer
from qconvert.calibration.observer import Histogram, Observer

__all__ = ["METHODS", "Histogram", "Method", "Observer", "observer"]
