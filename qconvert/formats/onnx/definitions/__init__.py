"""Definitions of operators: nodes of other operators in the place of one that a format lacks.

Reading keeps such a node whole, as an Opaque operator, so that another ONNX file gets it back. For a format without the operator the pass
expand_definitions writes its definition: that of onnx's own schema, or one of the tables here.
"""

from __future__ import annotations

from qconvert.formats.onnx.definitions.expand import DEFINITIONS, infer_outputs, run

__all__ = ["DEFINITIONS", "infer_outputs", "run"]
