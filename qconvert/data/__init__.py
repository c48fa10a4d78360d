"""Inputs of models, for checks, calibration and measures of accuracy: from files, or at random."""

from __future__ import annotations

from qconvert.data.preparation import Preparation, numbers
from qconvert.data.random_data import accepted_inputs, extreme_inputs, inputs_of_other_sizes, random_inputs, zero_inputs
from qconvert.data.samples import InputFiles, load_inputs

__all__ = [
    "InputFiles", "Preparation", "accepted_inputs", "extreme_inputs", "inputs_of_other_sizes", "load_inputs", "numbers", "random_inputs",
    "zero_inputs",
]  # fmt: skip
