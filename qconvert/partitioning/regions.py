"""From operators to regions: units that a target takes whole or not at all (an operator with the Dequantize before it, declared groups,
states), and regions as functions of the graph, run by Call operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from qconvert.graph import Graph, Names, Op
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import named_states, with_used_functions
from qconvert.partitioning.parts import Expanded
from qconvert.partitioning.region_growing import closure, condense, descendants_of, edges, is_connected, order, sorted_groups
from qconvert.plugins import Target
from qconvert.rewriting import Pattern, find_matches

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

    def op(self, base: int) -> Op:
        """Return a unit's operator after its Dequantize operators."""
        return self.graph.graph.ops[self.main(base)]

    def ops_of(self, bases: Iterable[int]) -> list[Op]:
        """Return the operators of several units."""
        return [self.graph.graph.ops[place] for place in self.places(bases)]

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
        if kind_of(op).dequantizes and op.name not in graph.graph.public:
            (reader,) = graph.readers[op.name]
            home[place] = home[reader]
    held: dict[int, list[int]] = {}
    for place, main in enumerate(home):
        held.setdefault(main, []).append(place)
    numbers = {main: number for number, main in enumerate(sorted(held))}
    listed = tuple(tuple(held[main]) for main in sorted(held))
    before, data = (tuple(condense(found, listed)) for found in (graph.before, graph.data))
    return Bases(graph, listed, tuple(numbers[main] for main in home), before, data)


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
        main = bases.op(base)
        own = [place for name in main.outputs for place in graph.readers.get(name, ()) if kind_of(graph.graph.ops[place]).quantizes]
        found.append(frozenset(bases.of[place] for place in own) if kind_of(main).rule not in ("convert", "state") else frozenset())
    return found


def _state_units(bases: Bases) -> Iterator[frozenset[int]]:
    """Return for each state the units that read or write it, and all units between; states that share units, or depend on each other, are
    joined. Unconnected units are no part."""
    graph = bases.graph.graph
    touching: dict[str, set[int]] = {}
    for place, op in enumerate(graph.ops):
        for state in named_states(graph, [op]):
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
    return (whole for whole in found if is_connected(whole, bases.data))


def _find_cycle(bases: Bases, groups: Sequence[frozenset[int]]) -> frozenset[int] | None:
    """Return the units of a cycle between groups; None if there is none."""
    held = frozenset[int]().union(*groups)
    listed = [*groups, *(frozenset((base,)) for base in range(len(bases.ops)) if base not in held)]
    after = edges(bases.before, listed)
    running = {*order(after)}
    left = [number for number in range(len(listed)) if number not in running]
    for number in left:  # in a circle, or after one
        if number in (ahead := descendants_of(after, number)):
            circle = [other for other in ahead if number in descendants_of(after, other)]
            return frozenset[int]().union(*(listed[other] for other in circle))
    return None


def kinds_of(pattern: Pattern) -> frozenset[str]:
    """Return the kinds of operators that a pattern names."""
    inner = (kinds_of(item) for item in pattern.inputs if isinstance(item, Pattern))
    return frozenset(pattern.kinds.split("|")).union(*inner)


@dataclass(frozen=True, slots=True)
class Part:
    """A region before it is a function.

    Attributes:
        name: of the function.
        target: the name of what runs it.
        bases: its units, in order.
    """

    name: str
    target: str
    bases: tuple[int, ...]


def with_regions(bases: Bases, parts: Sequence[Part]) -> Graph:
    """Return the graph with a function for each region, and a Call in the place of its operators.

    Functions that operators run, and states, keep their names: functions see both.
    """
    whole = bases.graph
    held = {base for part in parts for base in part.bases}
    rest = [base for base in range(len(bases.ops)) if base not in held]
    groups: list[Sequence[int]] = [*(part.bases for part in parts), *((base,) for base in rest)]
    ordered = sorted_groups(bases.before, groups)
    assert ordered is not None, "regions must be convex, and units without cycles"
    ops: list[Op] = []
    functions = dict(whole.graph.functions)
    for number in ordered:
        if number >= len(parts):
            ops += (whole.graph.ops[place] for place in bases.ops[groups[number][0]])
            continue
        part = parts[number]
        function = region_graph(bases, part)
        functions[part.name] = replace(function, functions={}, states={})
        ops.append(Op("Call", function.inputs, function.outputs, {"function": part.name, "target": part.target}))
    main = replace(whole.graph, functions=functions).evolve(ops=ops)
    return with_used_functions(whole.merge_copies(main))


def region_graph(bases: Bases, part: Part) -> Graph:
    """Return a region as a graph of its own, with the functions and states that its operators name."""
    whole = bases.graph
    return whole.merge_copies(whole.piece(bases.places(part.bases), part.name))


def name_parts(graph: Graph, found: Sequence[tuple[str, Sequence[int]]]) -> list[Part]:
    """Name regions by their targets and a number.

    Args:
        graph: the whole, whose functions have names already.
        found: target and units of each.
    """
    names, counts = Names(graph.functions), dict[str, int]()
    parts = []
    for target, units in found:
        number = counts.get(target, 0)
        counts[target] = number + 1
        parts.append(Part(names.fresh(f"{target}_{number}"), target, tuple(units)))
    return parts
