"""The algorithm by itself, on random graphs of units: connected, convex also together, and nothing can be joined any more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from qconvert.partitioning.region_growing import REST, descendants, grow_regions, sorted_groups

Befores = list[frozenset[int]]


def random_units(seed: int) -> tuple[Befores, Befores, list[int]]:
    """What comes before what, of that what is data, and owners: long chains, wide layers, or anything between."""
    rng = np.random.default_rng(seed)
    count, reads, span = int(rng.integers(1, 45)), int(rng.integers(1, 4)), int(rng.integers(1, 12))
    data, before = [], []
    for unit in range(count):
        near = range(max(0, unit - span), unit)
        found = frozenset(int(one) for one in rng.permutation(list(near))[: int(rng.integers(0, reads + 1))])
        data.append(found)
        more = frozenset(int(one) for one in rng.permutation(list(near))[:1]) if rng.random() < 0.1 else frozenset[int]()
        before.append(found | more)
    targets = int(rng.integers(1, 4))
    owners = [int(owner) for owner in rng.integers(-1, targets, count)]
    return before, data, owners


def is_connected(units: Sequence[int], data: Befores) -> bool:
    seen, waiting = set[int](), [units[0]]
    while waiting:
        unit = waiting.pop()
        if unit not in seen:
            seen.add(unit)
            waiting += [one for one in units if one in data[unit] or unit in data[one]]
    return seen == set(units)


def condensed(before: Befores, groups: Sequence[Sequence[int]]) -> list[set[int]]:
    home = {unit: number for number, group in enumerate(groups) for unit in group}
    after: list[set[int]] = [set() for _ in groups]
    for unit, found in enumerate(before):
        for one in found:
            if home[one] != home[unit]:
                after[home[one]].add(home[unit])
    return after


@pytest.mark.parametrize("seed", range(400))
def test_regions(seed: int) -> None:
    before, data, owners = random_units(seed)
    regions = grow_regions(before, data, owners)
    held = [unit for region in regions for unit in region]
    assert sorted(held) == [unit for unit, owner in enumerate(owners) if owner != REST]
    groups = [*regions, *([unit] for unit in range(len(before)) if unit not in held)]
    assert sorted_groups(before, groups) is not None, "regions wait for each other"
    after = condensed(before, groups)
    ways = descendants(after)
    for number, region in enumerate(regions):
        assert len({owners[unit] for unit in region}) == 1
        assert is_connected(region, data)
        assert not any(ways[other] >> number & 1 for other in after[number]), "a path leaves a region and comes back"
    for first, one in enumerate(regions):
        for second, other in enumerate(regions):
            has_edge = any(unit in data[reader] for unit in one for reader in other)
            if first != second and owners[one[0]] == owners[other[0]] and has_edge:
                between = [group for group in after[first] if group != second and ways[group] >> second & 1]
                assert between, "two regions could be one"


def test_a_diamond_is_one_region_and_a_hole_in_it_makes_two() -> None:
    """0 -> 1, 2 -> 3; without 2 the ways 0 -> 2 -> 3 and 0 -> 1 -> 3 part."""
    before = [frozenset(), frozenset({0}), frozenset({0}), frozenset({1, 2})]
    assert grow_regions(before, before, [0, 0, 0, 0]) == [[0, 1, 2, 3]]
    assert grow_regions(before, before, [0, 0, REST, 0]) == [[0, 1], [3]]
    assert grow_regions(before, before, [0, 0, 1, 0]) == [[0, 1], [2], [3]]


def test_the_rest_goes_first_so_that_regions_are_large() -> None:
    """1 and 3 are of the rest and do not depend on 0 and 2: the region goes through both."""
    before = [frozenset(), frozenset(), frozenset({0, 1}), frozenset(), frozenset({2, 3})]
    assert grow_regions(before, before, [0, REST, 0, REST, 0]) == [[0, 2, 4]]


def test_long_chains_take_little_time() -> None:
    count = 20_000
    before = [frozenset({unit - 1} if unit else ()) for unit in range(count)]
    owners = [REST if unit % 100 == 99 else 0 for unit in range(count)]
    assert len(grow_regions(before, before, owners)) == count // 100
