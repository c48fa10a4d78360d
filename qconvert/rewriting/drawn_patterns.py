"""Patterns drawn from functions on values: run on names in place of tensors, a formula gives the pattern of what computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.operators import KINDS
from qconvert.operators.values import Value, Values
from qconvert.rewriting.parts import Operand, Pattern


@dataclass(frozen=True, eq=False)
class Drawn(Values):
    """A value while a function is drawn.

    Attributes:
        part: the pattern of the operator that computes it, or the name under which a match gives the tensor.
    """

    part: Pattern | str

    def apply(self, kind: str, operands: Sequence[Value], attributes: Mapping[str, Any], outputs: int) -> Drawn:
        """Return the value that an operator without an activation computes; what it reads besides numbers and such values may be any."""
        spec = KINDS[kind]
        stated = {**attributes, **({"activation": ""} if "activation" in spec.attributes else {})}
        return Drawn(Pattern(kind, *map(_draw_operand, operands), any_order=spec.commutes, attributes=stated))


def _draw_operand(item: Value) -> Operand:
    if isinstance(item, Drawn):
        return item.part
    return "" if item is None or np.ndim(item) else float(item)


def draw_pattern(function: Callable[..., Value], *names: str) -> Pattern:
    """Return the pattern of what a function computes.

    Args:
        function: of values, as formulas are (operators/values.py). It may not ask for shapes, types or constants.
        names: under which a match gives the tensors that it takes.
    """
    pattern = function(*map(Drawn, names)).part
    assert isinstance(pattern, Pattern)
    return pattern
