"""From operators to regions: units that a target takes whole or not at all (an operator with the Dequantize before it, declared groups,
states), the units of each region, and regions as functions of the graph, run by Call operators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from qconvert.graph import Graph, Names, Op
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import named_states, with_used_functions
from qconvert.partitioning.parts import Expanded
from qconvert.plugins import Target
from qconvert.rewriting import Pattern, find_matches

__all__ = [
    "REST",
    "STATES",
    "Bases",
    "Candidate",
    "Part",
    "bases_of",
    "candidates",
    "closure",
    "descendants",
    "grow_regions",
    "kinds_of",
    "sorted_groups",
    "with_regions",
]

#: The owner of units that no target takes.
REST = -1


def grow_regions(before: Sequence[frozenset[int]], data: Sequence[frozenset[int]], owners: Sequence[int]) -> list[list[int]]:
    """Return the regions, each as its units in order, sorted by their first units.

    Args:
        before: for each unit those that have to come before it; there is no cycle.
        data: those of them whose results it reads: regions are connected by these.
        owners: the number of the target of each unit; REST for those of none.
    """
    regions = _connected_parts(_stretches(before, owners), data)
    regions = [region for region in regions if owners[region[0]] != REST]
    return _merge_regions(before, data, owners, regions)


def _stretches(before: Sequence[frozenset[int]], owners: Sequence[int]) -> list[list[int]]:
    """Sort units topologically in stretches of one owner, as long as possible, those of the rest first."""
    following = _successors(before)
    missing = [len(found) for found in before]
    ready: dict[int, list[int]] = {owner: [] for owner in sorted(set(owners))}
    for unit, count in enumerate(missing):
        if not count:
            heappush(ready[owners[unit]], unit)
    found: list[list[int]] = []
    while waiting := [owner for owner in ready if ready[owner]]:
        owner, stretch = waiting[0], list[int]()
        while ready[owner]:
            stretch.append(unit := heappop(ready[owner]))
            for one in following[unit]:
                missing[one] -= 1
                if not missing[one]:
                    heappush(ready[owners[one]], one)
        found.append(stretch)
    return found


def _connected_parts(stretches: Iterable[list[int]], data: Sequence[frozenset[int]]) -> list[list[int]]:
    """Return the connected parts of each stretch, sorted by their first units."""
    parts: list[list[int]] = []
    for stretch in stretches:
        home = {unit: unit for unit in stretch}

        def root(unit: int, home: dict[int, int] = home) -> int:
            while home[unit] != unit:
                home[unit] = unit = home[home[unit]]
            return unit

        for unit in stretch:
            for one in data[unit]:
                if one in home:
                    low, high = sorted((root(unit), root(one)))
                    home[high] = low
        together: dict[int, list[int]] = {}
        for unit in sorted(stretch):
            together.setdefault(root(unit), []).append(unit)
        parts += together.values()
    return sorted(parts)


def _merge_regions(
    before: Sequence[frozenset[int]], data: Sequence[frozenset[int]], owners: Sequence[int], regions: list[list[int]]
) -> list[list[int]]:
    """Join regions as long as two of them have an edge between them, and no other path."""
    while (pair := _find_joinable(before, data, owners, regions)) is not None:
        first, second = pair
        regions[first] = sorted(regions[first] + regions[second])
        del regions[second]
        regions.sort()
    return regions


def _find_joinable(
    before: Sequence[frozenset[int]], data: Sequence[frozenset[int]], owners: Sequence[int], regions: Sequence[Sequence[int]]
) -> tuple[int, int] | None:
    """Return the first two regions of one owner that can be joined."""
    home = {unit: number for number, region in enumerate(regions) for unit in region}
    pairs = {(home[one], home[unit]) for unit in home for one in data[unit] if one in home and home[one] != home[unit]}
    wanted = sorted((a, b) for a, b in pairs if owners[regions[a][0]] == owners[regions[b][0]])
    if not wanted:
        return None
    singles = [[unit] for unit in range(len(before)) if unit not in home]
    groups = [*regions, *singles]
    after = edges(before, groups)
    ways = descendants(after)
    for first, second in wanted:
        if not any(other != second and ways[other] >> second & 1 for other in after[first]):
            return min(first, second), max(first, second)
    return None


def descendants(after: Sequence[Iterable[int]]) -> list[int]:
    """Return for each node of an acyclic graph its descendants and itself, as bits."""
    ways = [0] * len(after)
    for node in reversed(order(after)):
        ways[node] = 1 << node
        for other in after[node]:
            ways[node] |= ways[other]
    return ways


def sorted_groups(before: Sequence[frozenset[int]], groups: Sequence[Sequence[int]]) -> list[int] | None:
    """Sort groups of units topologically, the earliest first where there is a choice; return their numbers, or None for a cycle."""
    found = order(edges(before, groups), [min(group) for group in groups])
    return found if len(found) == len(groups) else None


def edges(before: Sequence[frozenset[int]], groups: Sequence[Collection[int]]) -> list[set[int]]:
    """Return for each group the groups right after it."""
    home = {unit: number for number, group in enumerate(groups) for unit in group}
    after: list[set[int]] = [set() for _ in groups]
    for unit, found in enumerate(before):
        for one in found:
            if home[one] != home[unit]:
                after[home[one]].add(home[unit])
    return after


def order(after: Sequence[Iterable[int]], keys: Sequence[int] | None = None) -> list[int]:
    """Sort nodes topologically, those of lower keys first; nodes in or after cycles are left out."""
    missing = [0] * len(after)
    for others in after:
        for node in others:
            missing[node] += 1
    ready = [(keys[node] if keys else node, node) for node, count in enumerate(missing) if not count]
    heapify(ready)
    found = []
    while ready:
        found.append(node := heappop(ready)[1])
        for other in after[node]:
            missing[other] -= 1
            if not missing[other]:
                heappush(ready, (keys[other] if keys else other, other))
    return found


def _successors(before: Sequence[frozenset[int]]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in before]
    for unit, others in enumerate(before):
        for one in sorted(others):
            found[one].append(unit)
    return found


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
        if op.kind == "Dequantize" and op.outputs[0] not in graph.graph.public:
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
    order = sorted_groups(bases.before, groups)
    assert order is not None, "regions must be convex, and units without cycles"
    ops: list[Op] = []
    functions = dict(whole.graph.functions)
    for number in order:
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
