"""What a formula is: a kind as others, written once for all formats."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from qconvert.graph.schema import Op
from qconvert.operators import KINDS, kind_of

#: Attributes that are no formula's business: lowering sees to them.
_ASIDE = ("activation",)


@dataclass(frozen=True)
class Formula:
    """A kind as a function of other kinds (operators/values.py).

    The function takes the operator's inputs in their order, None for absent ones, and by name those attributes that it depends on, or all
    as **attributes. It gives a value, or a tuple with one for each output; None where it does not hold. It may branch on types, shapes and
    constants alone (dtype_of(), shape_of(), constant_of()).

    Attributes:
        kind: that it stands for.
        function: of its inputs.
        is_emitted: whether lowering may use it; others are for recognition alone, such as mean(x * x) - mean(x) * mean(x), which cancels.
        is_near: whether it comes near to the kind only, by several roundings: of quantized data a table is better (unary_to_table).
        in_float: whether quantized operands are dequantized before, since what is moved is computed with more than once.
        is_sought: whether exporters write it in the place of its kind, which runtimes compute faster: fuse_functions looks for it.
    """

    kind: str
    function: Callable[..., Any]
    is_emitted: bool = True
    is_near: bool = False
    in_float: bool = False
    is_sought: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The attributes that the function takes."""
        found = inspect.signature(self.function).parameters.values()
        if any(item.kind is inspect.Parameter.VAR_KEYWORD for item in found):
            return frozenset(KINDS[self.kind].attributes) - {*_ASIDE}
        return frozenset(item.name for item in found if item.kind is inspect.Parameter.KEYWORD_ONLY)

    def attributes(self, op: Op) -> dict[str, Any] | None:
        """Return what the function takes of an operator's attributes; None if one that it does not take says something."""
        for name, spec in kind_of(op).attributes.items():
            if name not in self.parameters and name not in _ASIDE and op.attributes.get(name, spec.default) != spec.default:
                return None
        return {name: op[name] for name in self.parameters}


_known: dict[str, tuple[Formula, ...]] = {}

#: Kind -> its formulas, the preferred one first.
FORMULAS: Mapping[str, tuple[Formula, ...]] = MappingProxyType(_known)


def formulas_of(op: Op, further: Iterable[Formula] = ()) -> list[Formula]:
    """Return the formulas of an operator's kind: those among `further`, then the others, the preferred one first."""
    return list(dict.fromkeys(item for item in (*further, *FORMULAS.get(op.kind, ())) if item.kind == op.kind))


def lowers(
    kind: str, *, is_emitted: bool = True, is_near: bool = False, in_float: bool = False, is_sought: bool = False
) -> Callable[[Callable[..., Any]], Formula]:
    """Make a Formula of the function that it decorates; register() or the hook qconvert_formulas makes it known."""
    return lambda function: Formula(kind, function, is_emitted, is_near, in_float, is_sought)


def register(formulas: Iterable[Formula]) -> None:
    """Add formulas to FORMULAS, after those that a kind has already."""
    for item in formulas:
        if item not in _known.get(item.kind, ()):
            _known[item.kind] = (*_known.get(item.kind, ()), item)
