"""States as values that functions take and give, for formats that have no variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qconvert.graph.functions import all_ops, named_functions
from qconvert.graph.inlining import Inlining, distinct
from qconvert.graph.kinds import KINDS
from qconvert.graph.names import Names
from qconvert.graph.schema import Graph, Op

__all__ = ["Threaded"]


class Threaded:
    """The operators of a network whose functions name no states: what reads one takes its value, what writes one gives the next.

    An operator whose functions name states takes them as further inputs and gives those that they write; a loop carries them.

    Args:
        graph: the whole network.

    Attributes:
        functions: those of the network, and the new ones.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.functions = dict(graph.functions)
        self._names = Names(self.functions)
        self._used: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._made: dict[tuple[str, tuple[str, ...], tuple[str, ...], int, int], str] = {}

    def named(self) -> list[str]:
        """The states that functions name which operators run."""
        found = frozenset[str]()
        for op in self._graph.ops:
            for name in named_functions(op):
                found = found.union(*self._states(name))
        return [name for name in self._graph.states if name in found]

    def writing_conditions(self) -> list[str]:
        """The conditions of loops that write a state."""
        conditions = {str(op["condition"]) for op in all_ops(self._graph) if op.kind == "While"}
        return sorted(name for name in conditions if self._states(name)[1])

    def through(self, new: Inlining, inner: Graph, values: Mapping[str, str]) -> dict[str, str]:
        """Adds the operators of a graph.

        Args:
            new: what they are added to.
            inner: the network, or one of its functions.
            values: state -> the tensor that holds it before the first operator; others are read and written as they were.

        Returns:
            state -> the tensor that holds it behind the last.
        """
        current = dict(values)
        for op in inner.ops:
            state = str(op["state"]) if KINDS[op.kind].rule == "state" else ""
            if state in current and op.kind == "ReadState":
                new.ops.append(Op("Identity", (current[state],), op.outputs, {}, op.source))
            elif state in current:
                current[state] = op.inputs[0]
            else:
                self._add(new, op, current)
        return current

    def _add(self, new: Inlining, op: Op, current: dict[str, str]) -> None:
        found = [self._states(name) for name in named_functions(op)]
        named = frozenset[str]().union(*(reads | writes for reads, writes in found))
        written = frozenset[str]().union(*(writes for _, writes in found))
        if not named:
            new.ops.append(op)
            return
        states = [name for name in self._graph.states if name in named]
        carries = op.kind in ("Loop", "Scan", "While")
        given = states if carries else [name for name in states if name in written]
        places = _places(op)
        attributes = dict(op.attributes)
        for attribute, function in _functions(op):
            results = () if attribute == "condition" else tuple(given)
            attributes[attribute] = self._function(function, tuple(states), results, *places[2:])
        if op.kind in ("Loop", "Scan"):
            attributes["carried"] = int(op["carried"]) + len(states)
        behind = [new.add(replace(self._graph.states[name], data=None), f"{name}/after") for name in given]
        inputs = _with(op.inputs, places[0], [current[name] for name in states])
        new.ops.append(Op(op.kind, inputs, _with(op.outputs, places[1], behind), attributes, op.source))
        current.update((name, after) for name, after in zip(given, behind, strict=True) if name in written)

    def _function(self, name: str, states: tuple[str, ...], given: tuple[str, ...], first: int, behind: int) -> str:
        """The function that takes `states` at the input `first` and gives `given` at the output `behind`; -1 stands for the end."""
        key = (name, states, given, first, behind)
        if key not in self._made:
            inner = self._graph.functions[name]
            new = Inlining(inner)
            inside = {state: new.add(replace(self._graph.states[state], data=None), state) for state in states}
            after = self.through(new, inner, inside)
            taken = {*inner.inputs, *inner.outputs, *inside.values(), *(tensor.name for tensor in inner.constants())}
            results = distinct(new, [after[state] for state in given], taken)
            changed = inner.evolve(
                tensors=new.tensors.values(),
                ops=new.ops,
                inputs=_with(inner.inputs, first, list(inside.values())),
                outputs=_with(inner.outputs, behind, results),
            )
            self._made[key] = self._names.fresh(name)
            self.functions[self._made[key]] = changed
        return self._made[key]

    def _states(self, name: str) -> tuple[frozenset[str], frozenset[str]]:
        """The states that a function, or one that it runs, reads and writes."""
        if name not in self._used:
            reads, writes = set[str](), set[str]()
            for op in self._graph.functions[name].ops:
                if KINDS[op.kind].rule == "state":
                    (reads if op.kind == "ReadState" else writes).add(str(op["state"]))
                for inner in named_functions(op):
                    found = self._states(inner)
                    reads |= found[0]
                    writes |= found[1]
            self._used[name] = frozenset(reads), frozenset(writes)
        return self._used[name]


def _functions(op: Op) -> list[tuple[str, str]]:
    """The functions of an operator, by the attributes that name them."""
    return [(name, str(op[name])) for name, spec in KINDS[op.kind].attributes.items() if spec.sort == "function" and name in op.attributes]


def _places(op: Op) -> tuple[int, int, int, int]:
    """Where new values stand among the inputs and outputs of an operator, and of its function: behind what it carries, else at the end."""
    if op.kind == "Loop":
        count = int(op["carried"])
        return 2 + count, count, 2 + count, 1 + count
    if op.kind == "Scan":
        return (int(op["carried"]),) * 4
    return -1, -1, -1, -1


def _with(names: Sequence[str], place: int, more: Sequence[str]) -> tuple[str, ...]:
    place = len(names) if place < 0 else place
    return (*names[:place], *more, *names[place:])
