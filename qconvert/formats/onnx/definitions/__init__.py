"""Operators by what defines them: nodes of others in the place of one that a format has no word for.

Reading keeps such a node whole, as an Opaque operator, so that another ONNX file gets it back. Where the target's format lacks it, the pass
expand_definitions puts its definition there: that of onnx's own schema, or one of the tables here.
"""

from __future__ import annotations

from qconvert.formats.onnx.definitions.expand import results, run

__all__ = ["results", "run"]
