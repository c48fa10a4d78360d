"""Parts of a graph: operators that fit a pattern, for passes and for code generators of plugins, and the part between cuts, which can be
run by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qconvert.errors import InvalidModelError, OptionError
from qconvert.graph.schema import DEFAULTS, Attribute, Graph, Op
from qconvert.operators import KINDS, kind_of
from qconvert.operators.values import Value, Values


@dataclass(frozen=True, slots=True)
class Pattern:
    """An operator and what computes its operands.

    Attributes:
        kinds: the kinds that it may have, with "|" between: "Relu|Clip".
        inputs: for each operand a pattern of the operator that computes it, a number that a constant is, or a name under which the match
            gives the tensor; "" for any. Operands after the last are not looked at. A name that stands twice is one tensor.
        name: under which the match gives the operator; by default it has none.
        any_order: whether the operands may stand in any order, as those of a sum.
        attributes: those that the operator has to have.
    """

    kinds: str
    inputs: tuple[Operand, ...] = ()
    name: str = ""
    any_order: bool = False
    attributes: Mapping[str, Attribute] = field(default_factory=dict, hash=False)

    def __init__(
        self, kinds: str, *inputs: Operand, name: str = "", any_order: bool = False, attributes: Mapping[str, Attribute] | None = None
    ) -> None:
        given = {"kinds": kinds, "inputs": inputs, "name": name, "any_order": any_order, "attributes": attributes or {}}
        for key, value in given.items():
            object.__setattr__(self, key, value)


#: See Pattern.inputs.
Operand = Pattern | str | float


class Match(NamedTuple):
    """Operators that fit a pattern.

    Attributes:
        ops: those that the pattern's parts stand for, and the conversions between them, in the graph's order.
        named: the operators that the pattern names.
        tensors: the tensors that it names.
    """

    ops: tuple[Op, ...]
    named: Mapping[str, Op] = MappingProxyType({})
    tensors: Mapping[str, str] = MappingProxyType({})


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
    finder = _Finder(graph, graph.producers(), through_conversions)
    matches = [(op, found) for op in graph.ops if (found := finder.match(pattern, op, _Found())) is not None]
    if not matches:
        return
    consumers, places = graph.consumers() if closed else {}, {id(op): place for place, op in enumerate(graph.ops)}
    taken: set[int] = set()
    for op, found in matches:
        if taken.intersection(found.ops):
            continue
        inside = [name for item in found.ops.values() if item is not op for name in item.outputs]
        if closed and any(name in graph.public or any(id(one) not in found.ops for one in consumers[name]) for name in inside):
            continue
        taken.update(found.ops)
        yield Match(tuple(sorted(found.ops.values(), key=lambda item: places[id(item)])), found.named, found.tensors)


def match_producer(graph: Graph, producers: Mapping[str, Op], pattern: Pattern, name: str) -> Match | None:
    """Return how a pattern fits the operator that computes a tensor, whatever else reads what is between; None if it does not.

    Args:
        graph: with the tensor.
        producers: the operators among which to look, by the tensors that they compute.
        pattern: its last operator, with those before it as operands.
        name: of the tensor.
    """
    op = producers.get(name)
    found = _Finder(graph, producers, through_conversions=False).match(pattern, op, _Found()) if op is not None else None
    return None if found is None else Match(tuple(found.ops.values())[::-1], found.named, found.tensors)


def dequantized_source(producers: Mapping[str, Op], name: str) -> str:
    """Return the tensor of stored integers that a Dequantize gives the float values of under a name; "" if none does."""
    op = producers.get(name)
    return op.inputs[0] if op is not None and kind_of(op).dequantizes else ""


def trace_back(producers: Mapping[str, Op], name: str, passes: Callable[[Op], bool]) -> str:
    """Return the tensor that operators which pass values on make another of, one after the other; the tensor itself if none does.

    Args:
        producers: the operator that computes each tensor of a graph.
        name: of the tensor.
        passes: whether an operator passes its first input on.
    """
    while (op := producers.get(name)) is not None and passes(op):
        name = op.inputs[0]
    return name


def _fits_kind(pattern: Pattern, op: Op) -> bool:
    return op.kind in pattern.kinds.split("|")


def _fits_attributes(pattern: Pattern, op: Op) -> bool:
    usual = DEFAULTS.get(op.kind, {})
    return all(op.attributes.get(name, usual.get(name)) == value for name, value in pattern.attributes.items())


@dataclass(slots=True)
class _Found:
    """What a part of a pattern stands for so far."""

    ops: dict[int, Op] = field(default_factory=dict)
    named: dict[str, Op] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)

    def copy(self) -> _Found:
        return _Found(dict(self.ops), dict(self.named), dict(self.tensors))


class _Finder:
    def __init__(self, graph: Graph, producers: Mapping[str, Op], through_conversions: bool) -> None:
        self._graph, self._producers = graph, producers
        self._through_conversions = through_conversions

    def match(self, pattern: Pattern, op: Op, found: _Found) -> _Found | None:
        """Return what was found and this operator with its operands; None if they do not fit."""
        if not _fits_kind(pattern, op) or not _fits_attributes(pattern, op):
            return None
        found = found.copy()
        found.ops[id(op)] = op
        if pattern.name:
            found.named[pattern.name] = op
        orders: Iterator[Sequence[Operand]] = permutations(pattern.inputs) if pattern.any_order else iter((pattern.inputs,))
        return next((whole for order in orders if (whole := self._match_operands(order, op, found)) is not None), None)

    def _match_operands(self, wanted: Sequence[Operand], op: Op, found: _Found) -> _Found | None:
        found = found.copy()
        for place, part in enumerate(wanted):
            given = op.input(place)
            if isinstance(part, str):
                if part and (not given or found.tensors.setdefault(part, given) != given):
                    return None
                continue
            if not isinstance(part, Pattern):
                if not self._is_number(given, part):
                    return None
                continue
            maker = self._producers.get(given)
            while self._through_conversions and maker is not None and kind_of(maker).rule == "convert" and not _fits_kind(part, maker):
                found.ops[id(maker)] = maker
                maker = self._producers.get(maker.inputs[0])
            inner = self.match(part, maker, found) if maker is not None else None
            if inner is None:
                return None
            found = inner
        return found

    def _is_number(self, name: str, number: float) -> bool:
        """Whether a tensor is a constant of which each element is a number."""
        data = self._graph.constant(name)
        return data is not None and data.size > 0 and data.dtype.kind in "fiu" and bool(np.all(data == number))


def _require_names(pattern: Pattern, seen: set[str]) -> None:
    if pattern.name in seen:
        raise OptionError(f"a pattern gives two operators the name {pattern.name!r}", rule="duplicate-name")
    seen.update((pattern.name,) if pattern.name else ())
    for item in pattern.inputs:
        if isinstance(item, Pattern):
            _require_names(item, seen)


#: Suffix of the second name of a tensor at which the graph is cut: that of the value that the piece computes.
_COMPUTED = "/computed by the result"


class Cut(NamedTuple):
    """The part of a graph between cuts.

    Attributes:
        graph: its inputs are what the part is fed with, its outputs what it computes, in the order of `computed`.
        computed: name in the whole graph -> name in the part, since a tensor may be both.
    """

    graph: Graph
    computed: Mapping[str, str]


def cut(graph: Graph, names: Collection[str], wanted: frozenset[str]) -> Cut:
    """Return the graph cut at the tensors called `names`, with the operators that compute those `wanted` among them.

    Raises:
        InvalidModelError: no operator is left.
    """
    ops = computable_ops(graph, names, wanted)
    written = {name for op in ops for name in op.outputs if name in names}
    read = {name for op in ops for name in op.inputs if name in names}
    computed = {name: name + _COMPUTED for name in graph.tensors if name in written}
    if not computed:
        raise InvalidModelError("source and result have no tensor names in common", where="check by operators", rule="no-common-tensors")
    part = graph.evolve(
        tensors=[replace(graph[name], name=new) for name, new in computed.items()],
        ops=[replace(op, outputs=tuple(computed.get(name, name) for name in op.outputs)) for op in ops],
        inputs=tuple(name for name in graph.tensors if name in read),
        outputs=tuple(computed.values()),
        signatures=(),
        metadata={},
        states={},
    )
    return Cut(part, computed)


def computable_ops(graph: Graph, cuts: Collection[str], wanted: frozenset[str] | None = None) -> list[Op]:
    """Return the operators that lead to the tensors called `cuts`, or to those `wanted` among them, and stem from such tensors and
    constants, in order. What is read of a state is known where the graph is cut at it: a piece has no runs before."""
    shared = frozenset(cuts)
    ends = shared if wanted is None else wanted
    known = {*shared, *(tensor.name for tensor in graph.constants())}
    stems: list[Op] = []
    for op in graph.ops:
        if kind_of(op).rule != "state" and all(not name or name in known for name in op.inputs):
            stems.append(op)
            known.update(op.outputs)
    needed: set[str] = set()
    found: list[Op] = []
    for op in reversed(stems):
        if any(name in ends or name in needed for name in op.outputs):
            found.append(op)
            needed.update(name for name in op.inputs if name not in shared)
    return found[::-1]


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
