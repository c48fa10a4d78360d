"""Inputs of models, for checks, calibration and measures of accuracy: from files, or at random."""

from __future__ import annotations

from qconvert.data.inputs import accepted_inputs, load_inputs, random_inputs

__all__ = ["accepted_inputs", "load_inputs", "random_inputs"]
