"""Units that a target takes whole or not at all: an operator with the Dequantize before it, groups that a target declares, states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from qconvert.operators import kind_of
from qconvert.partitioning.expanding import Expanded, states_of
from qconvert.partitioning.growing import edges, order
from qconvert.plugins import Target
from qconvert.rewriting import Pattern, find_matches

__all__ = ["STATES", "Bases", "Candidate", "bases_of", "candidates", "closure", "kinds_of"]

#: The name of units that hold states.
STATES = "states"


@dataclass(frozen=True, slots=True)
class Bases:
    """The smallest units: each operator with the copies of Dequantize that it reads.

    Attributes:
        graph: whose operators they hold.
        ops: for each unit the places of its operators.
        of: for each operator the unit that holds it.
        before: for each unit those that have to come before it.
        data: the same for what it reads alone.
    """

    graph: Expanded
    ops: tuple[tuple[int, ...], ...]
    of: tuple[int, ...]
    before: tuple[frozenset[int], ...]
    data: tuple[frozenset[int], ...]

    def main(self, base: int) -> int:
        """Return the place of a unit's operator after its Dequantize operators."""
        return self.ops[base][-1]

    def places(self, bases: Iterable[int]) -> list[int]:
        """Return the places of the operators of several units."""
        return sorted(place for base in bases for place in self.ops[base])


@dataclass(frozen=True, slots=True)
class Candidate:
    """Units that a target may take together.

    Attributes:
        bases: the units.
        name: of the group that the target declares; STATES for units of states; "" for one operator.
    """

    bases: frozenset[int]
    name: str = ""


def bases_of(graph: Expanded) -> Bases:
    """The smallest units of a graph, in the order of its operators."""
    ops = graph.graph.ops
    home = list(range(len(ops)))
    for place in range(len(ops) - 1, -1, -1):
        op = ops[place]
        if op.kind == "Dequantize" and not op.has(1) and op.outputs[0] not in graph.graph.public:
            (reader,) = graph.readers[op.outputs[0]]
            home[place] = home[reader]
    held: dict[int, list[int]] = {}
    for place, main in enumerate(home):
        held.setdefault(main, []).append(place)
    numbers = {main: number for number, main in enumerate(sorted(held))}
    of = tuple(numbers[main] for main in home)

    def among(found: Sequence[frozenset[int]], number: int, places: Iterable[int]) -> frozenset[int]:
        return frozenset(of[one] for place in places for one in found[place]) - {number}

    listed = [tuple(held[main]) for main in sorted(held)]
    before, data = (tuple(among(found, n, places) for n, places in enumerate(listed)) for found in (graph.before, graph.data))
    return Bases(graph, tuple(listed), of, before, data)


def candidates(bases: Bases, target: Target, states: bool) -> list[Candidate]:
    """Return the candidates of a target, the largest first: states with the operators between read and write, its groups, operators with
    the Quantize after them, operators.

    Args:
        bases: the smallest units.
        target: whose groups are looked for, in the order in which it declares them.
        states: whether a part may hold states.
    """
    following, places = _quantized_after(bases), {id(op): place for place, op in enumerate(bases.graph.graph.ops)}
    found = [Candidate(closed, STATES) for closed in _state_units(bases)] if states else []
    for name, pattern in target.groups.items():
        for match in find_matches(bases.graph.graph, pattern, through_conversions=True):
            held = frozenset(bases.of[places[id(op)]] for op in match.ops)
            last = max(held)
            found += [Candidate(held | following[last], name)] if following[last] else []
            found.append(Candidate(held, name))
    for base in range(len(bases.ops)):
        found += [Candidate(following[base] | {base})] if following[base] else []
    return [*found, *(Candidate(frozenset((base,))) for base in range(len(bases.ops)))]


def _quantized_after(bases: Bases) -> list[frozenset[int]]:
    """Return for each unit the Quantize units of its results: they belong to it."""
    graph = bases.graph
    found = []
    for base in range(len(bases.ops)):
        main = graph.graph.ops[bases.main(base)]
        own = [place for name in main.outputs for place in graph.readers.get(name, ()) if graph.graph.ops[place].kind == "Quantize"]
        found.append(frozenset(bases.of[place] for place in own) if kind_of(main).rule not in ("convert", "state") else frozenset())
    return found


def _state_units(bases: Bases) -> Iterator[frozenset[int]]:
    """Return for each state the units that read or write it, and all units between; states that share units, or depend on each other, are
    joined. Unconnected units are no part."""
    graph = bases.graph.graph
    touching: dict[str, set[int]] = {}
    for place, op in enumerate(graph.ops):
        for state in states_of(graph, op):
            touching.setdefault(state, set()).add(bases.of[place])
    found: list[frozenset[int]] = []
    for members in touching.values():
        whole = closure(bases.before, members)
        while sharing := [other for other in found if other & whole]:
            found = [other for other in found if other not in sharing]
            whole = closure(bases.before, whole.union(*sharing))
        found.append(whole)
    while (circle := _find_cycle(bases, found)) is not None:
        found = [*(other for other in found if not other & circle), circle]
    return (whole for whole in found if _is_connected(whole, bases.data))


def _find_cycle(bases: Bases, groups: Sequence[frozenset[int]]) -> frozenset[int] | None:
    """Return the units of a cycle between groups; None if there is none."""
    held = frozenset[int]().union(*groups)
    listed = [*groups, *(frozenset((base,)) for base in range(len(bases.ops)) if base not in held)]
    after = edges(bases.before, listed)
    running = {*order(after)}
    left = [number for number in range(len(listed)) if number not in running]
    for number in left:  # in a circle, or after one
        if number in (ahead := _descendants(after, number)):
            circle = [other for other in ahead if number in _descendants(after, other)]
            return frozenset[int]().union(*(listed[other] for other in circle))
    return None


def _descendants(after: Sequence[Iterable[int]], start: int) -> set[int]:
    """Return the descendants of a node."""
    found, waiting = set[int](), [start]
    while waiting:
        for other in after[waiting.pop()]:
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def _is_connected(units: frozenset[int], data: Sequence[frozenset[int]]) -> bool:
    """Whether all units are connected by data, in either direction."""
    near: dict[int, set[int]] = {unit: set(data[unit] & units) for unit in units}
    for unit in units:
        for other in data[unit] & units:
            near[other].add(unit)
    first = min(units)
    return _descendants([near.get(unit, ()) for unit in range(max(units) + 1)], first) | {first} == units


def closure(before: Sequence[frozenset[int]], members: Iterable[int]) -> frozenset[int]:
    """Return units, and all units on paths between them. `before`: for each unit those before it, which have smaller numbers."""
    members = frozenset(members)
    first, last = min(members), max(members)
    following = set(members)  # what depends on one of them
    for number in range(first, last + 1):
        if not before[number].isdisjoint(following):
            following.add(number)
    ahead = set(members)  # what one of them depends on
    for number in range(last, first - 1, -1):
        if number in ahead:
            ahead.update(before[number])
    return frozenset(following & ahead)


def kinds_of(pattern: Pattern) -> frozenset[str]:
    """Return the kinds of operators that a pattern names."""
    inner = (kinds_of(item) for item in pattern.inputs if isinstance(item, Pattern))
    return frozenset(pattern.kinds.split("|")).union(*inner)
