"""Regions as functions of the graph, which Call operators run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qconvert.graph import Graph, Names, Op
from qconvert.operators.functions import with_used_functions
from qconvert.partitioning.growing import sorted_groups
from qconvert.partitioning.units import Bases

__all__ = ["Part", "with_regions"]


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
