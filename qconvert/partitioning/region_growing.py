"""Regions of units of a directed graph: each as large as its owner allows, connected and convex; and orders of units and of groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush

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


def condense(before: Sequence[frozenset[int]], groups: Sequence[Collection[int]]) -> list[frozenset[int]]:
    """Return for each group the groups right before it."""
    home = {unit: number for number, group in enumerate(groups) for unit in group}
    return [frozenset(home[one] for unit in group for one in before[unit]) - {number} for number, group in enumerate(groups)]


def edges(before: Sequence[frozenset[int]], groups: Sequence[Collection[int]]) -> list[list[int]]:
    """Return for each group the groups right after it."""
    return _successors(condense(before, groups))


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


def descendants_of(after: Sequence[Iterable[int]], start: int) -> set[int]:
    """Return the descendants of a node."""
    found, waiting = set[int](), [start]
    while waiting:
        for other in after[waiting.pop()]:
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def is_connected(units: frozenset[int], data: Sequence[frozenset[int]]) -> bool:
    """Whether all units are connected by data, in either direction."""
    return len(_connected_parts([sorted(units)], data)) == 1
