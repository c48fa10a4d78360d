"""Decompositions: each kind as a formula of other kinds, a family a file, for all formats and plugins."""

from __future__ import annotations

from qconvert.operators.formulas import along_axes, blocks, compositions, elementwise, matrices, places, recurrent
from qconvert.operators.formulas.formula import FORMULAS, Formula, formulas_of, lowers, register

__all__ = ["FORMULAS", "Formula", "formulas_of", "lowers", "register"]

for _family in (elementwise, compositions, places, blocks, matrices, along_axes, recurrent):
    register(item for item in vars(_family).values() if isinstance(item, Formula))
