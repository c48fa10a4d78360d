"""A graph for cutting: every Dequantize has one reader, so that it stands in the part of its reader; and the order of operators.

onnxruntime does likewise with its NodeUnits (an operator with the DequantizeLinears before it and the QuantizeLinears after it,
core/framework/node_unit.h): integers go from one part of a network to another, not four times as many bytes of floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from qconvert.graph import Graph, Names, Op
from qconvert.graph.metadata import ACTIVATIONS, SOURCE_ENGINE, SOURCE_FORMAT, SOURCE_KERNELS, SOURCE_OPSET
from qconvert.operators import KINDS, kind_of
from qconvert.operators.functions import called_functions

__all__ = ["KEPT", "Expanded", "expand_graph", "states_of"]

#: Keys of metadata that passes read.
KEPT = (SOURCE_FORMAT, SOURCE_KERNELS, SOURCE_ENGINE, SOURCE_OPSET, ACTIVATIONS)


@dataclass(frozen=True, slots=True)
class Expanded:
    """A graph for cutting. Operators are known by their places in `graph.ops`.

    Attributes:
        graph: with a copy of each Dequantize for each further operator that reads it.
        original: the result of a copy -> that of the operator that it is a copy of.
        before: for each operator, those that have to come before it: it reads what they compute, or the state that they write.
        data: the same without those that only have to come first, as what reads a state has to before it is written.
        readers: tensor -> the operators that read it.
    """

    graph: Graph
    original: Mapping[str, str]
    before: tuple[frozenset[int], ...]
    data: tuple[frozenset[int], ...]
    readers: Mapping[str, tuple[int, ...]]

    def piece(self, places: Iterable[int], name: str = "piece") -> Graph:
        """Return some of the operators as a graph of their own, with the functions that they run and the states that they name.

        Its inputs are the tensors of other operators that they read, in order; its outputs are read by other operators or are public.
        """
        chosen = frozenset(places)
        graph, ops = self.graph, [self.graph.ops[place] for place in sorted(chosen)]
        made = {result for op in ops for result in op.outputs if result}
        read = dict.fromkeys(x for op in ops for x in op.inputs if x and x not in made and not graph[x].is_constant)
        given = [x for op in ops for x in op.outputs if x and (x in graph.public or not chosen.issuperset(self.readers.get(x, ())))]
        functions = {one: graph.functions[one] for one in called_functions(graph, ops)}
        states = {state: graph.states[state] for op in ops for state in states_of(graph, op)}
        metadata = {key: graph.metadata[key] for key in KEPT if key in graph.metadata}
        named = dict.fromkeys(x for op in ops for x in (*op.inputs, *op.outputs) if x)
        tensors = {x: graph[x] for x in named}  # not by evolve(), which looks at all tensors of the whole
        return Graph(name, tensors, tuple(ops), tuple(read), tuple(given), metadata=metadata, functions=functions, states=states)

    def merge_copies(self, graph: Graph) -> Graph:
        """Return a part with the original names of copies; each Dequantize occurs once."""
        names, seen, ops = self.original, set[str](), []
        for op in graph.ops:
            renamed = replace(op, inputs=_map_names(op.inputs, names), outputs=_map_names(op.outputs, names))
            if op.kind != "Dequantize" or renamed.outputs[0] not in seen:
                ops.append(renamed)
            seen.update(renamed.outputs)
        tensors = [replace(graph[copy], name=name) for copy, name in names.items() if copy in graph.tensors]
        return graph.evolve(tensors=tensors, ops=ops, outputs=tuple(dict.fromkeys(_map_names(graph.outputs, names))))


def expand_graph(graph: Graph) -> Expanded:
    """Return the graph for cutting; dead operators have to be removed before (pass remove_dead_code)."""
    readers = _readers(graph.ops)
    tensors = dict(graph.tensors)
    names = Names(tensors)
    original: dict[str, str] = {}
    copies: dict[int, list[Op]] = {}
    given: dict[int, dict[str, str]] = {}
    for place, op in enumerate(graph.ops):
        if op.kind != "Dequantize" or op.has(1):
            continue
        result = op.outputs[0]
        for reader in readers.get(result, ())[0 if result in graph.public else 1 :]:
            copy = names.fresh(result)
            tensors[copy] = replace(graph[result], name=copy)
            original[copy] = result
            copies.setdefault(place, []).append(replace(op, outputs=(copy,)))
            given.setdefault(reader, {})[result] = copy
    ops: list[Op] = []
    for place, op in enumerate(graph.ops):
        ops.append(replace(op, inputs=_map_names(op.inputs, given[place])) if place in given else op)
        ops += copies.get(place, ())
    made = graph.evolve(tensors=tensors.values(), ops=ops)
    data, states = _data_before(made), tuple(_states_before(made))
    through = (_find_state_writers(made, op, found) for op, found in zip(made.ops, states, strict=True))
    before = tuple(map(frozenset.union, data, states))
    return Expanded(made, original, before, tuple(map(frozenset.union, data, through)), _readers(made.ops))


def states_of(graph: Graph, op: Op) -> tuple[str, ...]:
    """Return the states that an operator reads or writes, itself or in a function that it runs."""
    found = dict.fromkeys([str(op["state"])] if op.kind in KINDS and kind_of(op).rule == "state" else ())
    for name in sorted(called_functions(graph, [op])):
        found.update(dict.fromkeys(state for inner in graph.functions[name].ops if kind_of(inner).rule == "state"
                                   for state in [str(inner["state"])]))  # fmt: skip
    return tuple(found)


def _map_names(listed: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names.get(name, name) for name in listed)


def _readers(ops: Iterable[Op]) -> dict[str, tuple[int, ...]]:
    """Return tensor -> the places of the operators that read it."""
    found: dict[str, dict[int, None]] = {}
    for place, op in enumerate(ops):
        for name in filter(None, op.inputs):
            found.setdefault(name, {})[place] = None
    return {name: tuple(places) for name, places in found.items()}


def _data_before(graph: Graph) -> tuple[frozenset[int], ...]:
    places = {name: place for place, op in enumerate(graph.ops) for name in op.outputs if name}
    return tuple(frozenset(places[name] for name in op.inputs if name in places) for op in graph.ops)


def _states_before(graph: Graph) -> Iterator[frozenset[int]]:
    """Yield for each operator those before it that use the same state, if one of both may write it."""
    reads: dict[str, list[int]] = {}
    writes: dict[str, list[int]] = {}
    for place, op in enumerate(graph.ops):
        states, only_reads = states_of(graph, op), op.kind == "ReadState"
        found = [one for state in states for one in (*writes.get(state, ()), *(() if only_reads else reads.get(state, ())))]
        yield frozenset(found)
        for state in states:
            (reads if only_reads else writes).setdefault(state, []).append(place)


def _find_state_writers(graph: Graph, op: Op, before: frozenset[int]) -> frozenset[int]:
    """Return those of the operators before a ReadState that write its state."""
    return frozenset(one for one in before if op.kind == "ReadState" and graph.ops[one].kind == "WriteState")
