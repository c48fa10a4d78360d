"""load, save and convert: files to graphs, graphs to files, and the way between for a target."""

from __future__ import annotations

from qconvert.conversion.converting import convert
from qconvert.conversion.loading import load
from qconvert.conversion.normalizing import normalize, run_passes
from qconvert.conversion.report import ConversionReport
from qconvert.conversion.saving import save

__all__ = ["ConversionReport", "convert", "load", "normalize", "run_passes", "save"]
