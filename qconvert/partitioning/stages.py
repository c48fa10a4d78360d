"""A partitioned network as parts that run one after the other: its regions, and the rest in as few parts as there are stages between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qconvert.graph import Graph, Op
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import in_function, named_states, with_used_functions
from qconvert.partitioning.manifest import CrossingState
from qconvert.partitioning.parts import kept_metadata


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a network.

    Attributes:
        name: the region's, or "rest_0" ….
        target: of the region; "" of the rest.
        graph: the part as a graph of its own.
    """

    name: str
    target: str
    graph: Graph


@dataclass(frozen=True, slots=True)
class Staged:
    """A network as parts in the order in which they run.

    Attributes:
        parts: the parts. Their inputs are inputs of the network, states, or outputs of parts before them.
        states: those that no part holds.
    """

    parts: tuple[Stretch, ...]
    states: tuple[CrossingState, ...]


def stage_graph(graph: Graph) -> Staged:
    """Return the parts of a partitioned graph."""
    main, states = _without_states(graph)
    levels = _levels(main)
    last = max(levels, default=0)
    listed: list[tuple[str, list[Op]]] = []
    for level in range(last + 1):
        here = [op for op, one in zip(main.ops, levels, strict=True) if one == level]
        rest = [op for op in here if not _target(op)]
        listed += [("", rest)] if rest else []
        listed += [(_target(op), [op]) for op in here if _target(op)]
    kept = main.public.union(state.written for state in states)
    return Staged(_stretches(main, _with_dequantizes(main, listed, kept), kept), states)


def _target(op: Op) -> str:
    """Return the target of a region; "" for other operators."""
    return str(op.attributes.get("target", ""))


def _without_states(graph: Graph) -> tuple[Graph, tuple[CrossingState, ...]]:
    """Return the graph without reads and writes of states outside of regions; the values that they read become inputs of parts."""
    ops: list[Op] = []
    reads: dict[str, list[str]] = {}
    written: dict[str, str] = {}
    for op in graph.ops:
        kind = kind_of(op)
        if kind.reads_state:
            name = str(op["state"])
            reads.setdefault(name, [])
            if name in written:
                ops.append(op.derive("Identity", (written[name],), op.outputs))
            else:
                reads[name].append(op.outputs[0])
        elif kind.has_effect:
            written[str(op["state"])] = op.inputs[0]
        else:
            ops.append(op)
    names = dict.fromkeys((*reads, *written))
    return replace(graph, ops=tuple(ops)), tuple(CrossingState(n, tuple(reads.get(n, ())), written.get(n, "")) for n in names)


def _levels(graph: Graph) -> list[int]:
    """Return the stage of each operator: one more for an operator of the rest after a region; regions in sequence share a stage.

    An operator of the rest that only later stages read is in the first of these, so that there are few.
    """
    following: dict[str, tuple[int, bool]] = {}  # tensor -> the level of what computes it, and whether that is a region
    found = []
    for op in graph.ops:
        own = bool(_target(op))
        level = 0
        for name in filter(None, op.inputs):
            before, is_region = following.get(name, (0, False))
            level = max(level, before + (is_region and not own))
        found.append(level)
        following.update((name, (level, own)) for name in op.outputs if name)
    wanted: dict[str, int] = dict.fromkeys(graph.public, 0)
    for place in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[place]
        readers = [wanted[name] for name in op.outputs if name in wanted]
        if not _target(op) and readers:
            found[place] = max(found[place], min(readers))
        for name in filter(None, op.inputs):
            wanted[name] = min(wanted.get(name, found[place]), found[place])
    return found


def _with_dequantizes(graph: Graph, listed: Sequence[tuple[str, list[Op]]], kept: frozenset[str]) -> list[tuple[str, list[Op]]]:
    """Add to each part of the rest the Dequantize operators that it reads, so that integers go between parts; drop unread ones."""
    dequantizes = {op.outputs[0]: op for op in graph.of_kind("Dequantize")}
    found = []
    for target, ops in listed:
        if not target:
            given = dict.fromkeys(name for op in ops for name in op.inputs if name)
            own = {name for op in ops for name in op.outputs}
            ops = [*(dequantizes[name] for name in given if name in dequantizes and name not in own), *ops]
            read = kept.union(*(op.inputs for op in ops))
            ops = [op for op in ops if op.name not in dequantizes or op.name in read]
        if ops:
            found.append((target, ops))
    return found


def _stretches(graph: Graph, listed: Sequence[tuple[str, list[Op]]], kept: frozenset[str]) -> tuple[Stretch, ...]:
    """Return the parts. `kept`: tensors that are outputs even without a reader."""
    reads = [{name for op in ops for name in op.inputs if name} for _, ops in listed]
    given: set[str] = set()
    parts: list[Stretch] = []
    for place, (target, ops) in enumerate(listed):
        if target:
            name = str(ops[0]["function"])
            parts.append(Stretch(name, target, _region(graph, name)))
            continue
        made = dict.fromkeys(name for op in ops for name in op.outputs if name and name not in given)
        wanted = kept.union(*(read for other, read in enumerate(reads) if other != place))
        outputs = tuple(name for name in made if name in kept or (name in wanted and not _is_duplicated(name, ops, listed, place)))
        inside = {name for op in ops for name in op.outputs}
        inputs = tuple(dict.fromkeys(x for op in ops for x in op.inputs if x and x not in inside and not graph[x].is_constant))
        number = sum(not part.target for part in parts)
        part = graph.evolve(
            ops=ops, name=f"rest_{number}", inputs=inputs, outputs=outputs, signatures=(), states={}, metadata=kept_metadata(graph)
        )
        given.update(outputs)
        parts.append(Stretch(part.name, "", with_used_functions(part)))
    return tuple(parts)


def _is_duplicated(name: str, ops: Sequence[Op], listed: Sequence[tuple[str, list[Op]]], place: int) -> bool:
    """Whether a tensor is the result of a Dequantize that each of its readers' parts has too."""
    maker = next(op for op in ops if name in op.outputs)
    if not kind_of(maker).dequantizes:
        return False
    readers = [other for other, (_, others) in enumerate(listed) if other != place and any(name in op.inputs for op in others)]
    return all(any(name in op.outputs for op in listed[other][1]) for other in readers)


def _region(graph: Graph, name: str) -> Graph:
    whole = in_function(graph, name)
    states = {state: graph.states[state] for state in named_states(whole, whole.ops)}
    return with_used_functions(replace(whole, name=name, states=states))
