"""Decompositions: each kind as a formula of other kinds, a family a file, for all formats and plugins."""

from __future__ import annotations

from qconvert.operators.formulas import (
    activations,
    arithmetic,
    compositions,
    curves,
    detection,
    diagonals,
    einsum,
    matrices,
    normalization,
    recurrent,
    reductions,
    segments,
    windows,
)
from qconvert.operators.formulas.formula import FORMULAS, Formula, lowers, register

__all__ = ["FORMULAS", "Formula", "lowers", "register"]

for _family in (
    activations, arithmetic, compositions, curves, detection, diagonals, einsum, matrices, normalization, recurrent, reductions, segments,
    windows,
):  # fmt: skip
    register(item for item in vars(_family).values() if isinstance(item, Formula))
