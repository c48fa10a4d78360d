"""QOperator forms: operators whose inputs and outputs are integers, with scales and zero points among their inputs.

In each family the functions that read and write a form stand side by side. READERS: ONNX operator (after its domain) -> function.
WRITERS: canonical kind -> function that adds the form and returns "", or adds nothing and returns the reason in words.
"""

from __future__ import annotations

from qconvert.formats.onnx.qoperator import forms, matrix
from qconvert.formats.onnx.qoperator.forms import WriteForms
from qconvert.formats.onnx.reading import Readers

__all__ = ["READERS", "WRITERS"]

_FAMILIES = (matrix, forms)

WRITERS: WriteForms = {kind: write for family in _FAMILIES for kind, write in family.WRITERS.items()}

READERS: Readers = {name: read for family in _FAMILIES for name, read in family.READERS.items()}
