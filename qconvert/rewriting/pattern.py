"""Patterns of operators in a graph: for passes, and for code generators of plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from qconvert.errors import OptionError
from qconvert.graph.schema import Graph, Op

__all__ = ["Match", "Pattern", "find_matches"]

#: What a pattern sees through between an operator and the one that computes its operand.
_CONVERSIONS = ("Dequantize", "Quantize", "Requantize")


@dataclass(frozen=True, slots=True)
class Pattern:
    """An operator and what computes its operands.

    Attributes:
        kinds: the kinds that it may have, with "|" between: "Relu|Clip".
        inputs: for each operand a pattern of the operator that computes it, or a name under which the match gives the tensor; "" for any.
            Operands after the last are not looked at. A name that stands twice is one tensor.
        name: under which the match gives the operator; by default it has none.
        any_order: whether the operands may stand in any order, as those of a sum.
    """

    kinds: str
    inputs: tuple[Pattern | str, ...] = ()
    name: str = ""
    any_order: bool = False

    def __init__(self, kinds: str, *inputs: Pattern | str, name: str = "", any_order: bool = False) -> None:
        for key, value in (("kinds", kinds), ("inputs", inputs), ("name", name), ("any_order", any_order)):
            object.__setattr__(self, key, value)


@dataclass(frozen=True, slots=True)
class Match:
    """Operators that fit a pattern.

    Attributes:
        ops: those that the pattern's parts stand for, and the conversions between them, in the graph's order.
        named: the operators that the pattern names.
        tensors: the tensors that it names.
    """

    ops: tuple[Op, ...]
    named: Mapping[str, Op] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)


def find_matches(graph: Graph, pattern: Pattern, *, closed: bool = True, through_conversions: bool = False) -> Iterator[Match]:
    """Yield where a pattern fits, each operator in one match alone, the earliest first.

    Args:
        graph: in which to look; functions are graphs of their own.
        pattern: its last operator, with those before it as operands.
        closed: whether nothing else may read what is computed inside of the match, so that it can be replaced as a whole.
        through_conversions: whether Dequantize, Quantize and Requantize may stand between an operator and the pattern of its operand,
            unless that names them.

    Raises:
        OptionError: the pattern gives two operators one name.
    """
    _require_names(pattern, set())
    finder = _Finder(graph, through_conversions)
    consumers, places = graph.consumers() if closed else {}, {id(op): place for place, op in enumerate(graph.ops)}
    taken: set[int] = set()
    for op in graph.ops:
        found = finder.match(pattern, op, _Found())
        if found is None or taken.intersection(found.ops):
            continue
        inside = [name for item in found.ops.values() if item is not op for name in item.outputs]
        if closed and any(name in graph.public or any(id(one) not in found.ops for one in consumers.get(name, ())) for name in inside):
            continue
        taken.update(found.ops)
        yield Match(tuple(sorted(found.ops.values(), key=lambda item: places[id(item)])), found.named, found.tensors)


@dataclass(slots=True)
class _Found:
    """What a part of a pattern stands for so far."""

    ops: dict[int, Op] = field(default_factory=dict)
    named: dict[str, Op] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)

    def copy(self) -> _Found:
        return _Found(dict(self.ops), dict(self.named), dict(self.tensors))


class _Finder:
    def __init__(self, graph: Graph, through_conversions: bool) -> None:
        self._producers = graph.producers()
        self._through_conversions = through_conversions

    def match(self, pattern: Pattern, op: Op, found: _Found) -> _Found | None:
        """Return what was found and this operator with its operands; None if they do not fit."""
        if op.kind not in pattern.kinds.split("|"):
            return None
        found = found.copy()
        found.ops[id(op)] = op
        if pattern.name:
            found.named[pattern.name] = op
        orders: Iterator[Sequence[Pattern | str]] = permutations(pattern.inputs) if pattern.any_order else iter((pattern.inputs,))
        return next((whole for order in orders if (whole := self._match_operands(order, op, found)) is not None), None)

    def _match_operands(self, wanted: Sequence[Pattern | str], op: Op, found: _Found) -> _Found | None:
        found = found.copy()
        for place, part in enumerate(wanted):
            given = op.inputs[place] if place < len(op.inputs) else ""
            if isinstance(part, str):
                if part and (not given or found.tensors.setdefault(part, given) != given):
                    return None
                continue
            maker = self._producers.get(given)
            while (
                self._through_conversions and maker is not None and maker.kind in _CONVERSIONS and maker.kind not in part.kinds.split("|")
            ):
                found.ops[id(maker)] = maker
                maker = self._producers.get(maker.inputs[0])
            inner = self.match(part, maker, found) if maker is not None else None
            if inner is None:
                return None
            found = inner
        return found


def _require_names(pattern: Pattern, seen: set[str]) -> None:
    if pattern.name in seen:
        raise OptionError(f"a pattern gives two operators the name {pattern.name!r}", rule="duplicate-name")
    seen.update((pattern.name,) if pattern.name else ())
    for item in pattern.inputs:
        if isinstance(item, Pattern):
            _require_names(item, seen)
