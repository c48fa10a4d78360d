"""Patterns of operators in a graph: for passes and code generators of plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from qconvert.errors import OptionError
from qconvert.graph.schema import Graph, Op

__all__ = ["Match", "Pattern", "matches"]

#: What a pattern sees through on the way from an operator to what computes its operand.
_CONVERSIONS = ("Dequantize", "Quantize", "Requantize")


@dataclass(frozen=True, slots=True)
class Pattern:
    """An operator and what computes its operands.

    Attributes:
        kinds: the kinds that it may have, with "|" between: "Relu|Clip".
        inputs: for each operand a pattern of the operator that computes it, or a name under which the match gives the tensor; "" for any.
            Operands behind the last are not looked at. Between an operator and the pattern of its operand may stand conversions
            (Dequantize, Quantize, Requantize), unless the pattern names them.
        name: under which the match gives the operator; by default it has none.
    """

    kinds: str
    inputs: tuple[Pattern | str, ...] = ()
    name: str = ""

    def __init__(self, kinds: str, *inputs: Pattern | str, name: str = "") -> None:
        for key, value in (("kinds", kinds), ("inputs", inputs), ("name", name)):
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


def matches(graph: Graph, pattern: Pattern, *, closed: bool = True) -> Iterator[Match]:
    """Where a pattern fits, each operator in one match alone, the earliest first.

    Args:
        graph: in which to look; functions are graphs of their own.
        pattern: its last operator, with those before it as operands.
        closed: whether nothing else may read what is computed inside of the match, so that it can be replaced as a whole.

    Raises:
        OptionError: the pattern names one thing twice.
    """
    _require_names(pattern, set())
    producers, consumers, places = graph.producers(), graph.consumers(), {id(op): place for place, op in enumerate(graph.ops)}
    taken: set[int] = set()
    for op in graph.ops:
        found: dict[int, Op] = {}
        named: dict[str, Op] = {}
        tensors: dict[str, str] = {}
        if not _fits(pattern, op, producers, found, named, tensors) or taken.intersection(found):
            continue
        own = set(found)
        inside = [name for item in found.values() if item is not op for name in item.outputs]
        if closed and any(name in graph.public or any(id(one) not in own for one in consumers.get(name, ())) for name in inside):
            continue
        taken |= own
        yield Match(tuple(sorted(found.values(), key=lambda item: places[id(item)])), named, tensors)


def _fits(
    pattern: Pattern, op: Op, producers: Mapping[str, Op], found: dict[int, Op], named: dict[str, Op], tensors: dict[str, str]
) -> bool:
    if op.kind not in pattern.kinds.split("|"):
        return False
    found[id(op)] = op
    if pattern.name:
        named[pattern.name] = op
    for place, wanted in enumerate(pattern.inputs):
        given = op.inputs[place] if place < len(op.inputs) else ""
        if isinstance(wanted, str):
            if wanted and not given:
                return False
            if wanted:
                tensors[wanted] = given
            continue
        maker = producers.get(given)
        while maker is not None and maker.kind in _CONVERSIONS and maker.kind not in wanted.kinds.split("|"):
            found[id(maker)] = maker
            maker = producers.get(maker.inputs[0])
        if maker is None or not _fits(wanted, maker, producers, found, named, tensors):
            return False
    return True


def _require_names(pattern: Pattern, seen: set[str]) -> None:
    for name in filter(None, (pattern.name, *(item for item in pattern.inputs if isinstance(item, str)))):
        if name in seen:
            raise OptionError(f"a pattern names {name!r} twice")
        seen.add(name)
    for item in pattern.inputs:
        if isinstance(item, Pattern):
            _require_names(item, seen)
