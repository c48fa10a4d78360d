"""Functions put in the place of operators that run them, for formats that have no such operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from qconvert.errors import UnsupportedError
from qconvert.graph.functions import all_graphs, all_ops, with_used_functions
from qconvert.graph.names import Names
from qconvert.graph.schema import Graph, Op, Tensor

__all__ = ["Inlining", "whiles_to_loops", "without_calls"]

#: Operators that a network may have once its calls are inlined: functions that call others twice double at each step.
_MOST = 200_000


class Inlining:
    """A graph that is written anew, with functions in the place of some of its operators.

    Args:
        graph: whose tensors stay.

    Attributes:
        tensors: those of the graph, and the new ones.
        ops: so far.
    """

    def __init__(self, graph: Graph) -> None:
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.ops: list[Op] = []
        self._names = Names(self.tensors)

    def add(self, tensor: Tensor, hint: str = "") -> str:
        """Adds a tensor under a free name, which is returned."""
        name = self._names.fresh(hint or tensor.name)
        self.tensors[name] = replace(tensor, name=name)
        return name

    def inline(self, function: Graph, inputs: Sequence[str], outputs: Sequence[str], prefix: str) -> None:
        """Adds the operators of a function.

        Args:
            function: the function.
            inputs: what it is given.
            outputs: what its outputs become; "" for one that nobody reads.
            prefix: stands in front of the names of its other tensors.

        Raises:
            UnsupportedError: there would be more operators than any network has.
        """
        names = dict(zip(function.inputs, inputs, strict=True))
        written = {name for op in function.ops for name in op.outputs}
        ends = {name: outer for name, outer in zip(function.outputs, outputs, strict=True) if outer and name in written}
        names |= ends
        for name, tensor in function.tensors.items():
            if name not in names:
                names[name] = self.add(tensor, f"{prefix}/{name}")
        self.ops += [
            replace(op, inputs=tuple(names.get(x, "") for x in op.inputs), outputs=tuple(names.get(x, "") for x in op.outputs))
            for op in function.ops
        ]
        if len(self.ops) > _MOST:
            raise UnsupportedError(f"the network would have more than {_MOST:,} operators once its functions stand in the place of calls")
        for name, outer in zip(function.outputs, outputs, strict=True):
            if outer and names[name] != outer:
                self.ops.append(Op("Identity", (names[name],), (outer,)))


def without_calls(graph: Graph) -> Graph:
    """The graph with functions in the place of every Call, in its functions too."""
    if all(op.kind != "Call" for op in all_ops(graph)):
        return graph
    done: dict[str, Graph] = {}
    for name in _callees_first(graph):
        done[name] = _inlined(graph.functions[name], done)
    return with_used_functions(replace(_inlined(graph, done), functions=done))


def _callees_first(graph: Graph) -> list[str]:
    """The functions, each behind those that it calls."""
    called = {name: {str(op["function"]) for op in inner.ops if op.kind == "Call"} for name, inner in graph.functions.items()}
    order: list[str] = []
    while len(order) < len(called):
        order += [name for name in called if name not in order and called[name] <= set(order)]
    return order


def _inlined(graph: Graph, functions: dict[str, Graph]) -> Graph:
    if all(op.kind != "Call" for op in graph.ops):
        return graph
    new = Inlining(graph)
    for op in graph.ops:
        if op.kind == "Call":
            new.inline(functions[str(op["function"])], op.inputs, op.outputs, _prefix(op))
        else:
            new.ops.append(op)
    return graph.evolve(tensors=new.tensors.values(), ops=new.ops)


def _prefix(op: Op) -> str:
    return next(filter(None, op.outputs), op.kind)


def whiles_to_loops(graph: Graph) -> Graph:
    """The graph with a Loop in the place of every While, in its functions too: the condition is asked before it, and behind its body."""
    if all(op.kind != "While" for op in all_ops(graph)):
        return graph
    functions = dict(graph.functions)
    names = Names(functions)
    changed: dict[str, Graph] = {}
    for key, inner in all_graphs(graph):
        new = Inlining(inner)
        for op in inner.ops:
            if op.kind != "While":
                new.ops.append(op)
                continue
            condition, body = (graph.functions[str(op[name])] for name in ("condition", "body"))
            first = new.add(condition[condition.outputs[0]], f"{_prefix(op)}/condition")
            new.tensors[first] = replace(new.tensors[first], data=None)
            new.inline(condition, op.inputs, (first,), f"{_prefix(op)}/first")
            name = names.fresh(str(op["body"]))
            functions[name] = _loop_body(body, condition)
            new.ops.append(Op("Loop", ("", first, *op.inputs), op.outputs, {"body": name, "carried": len(op.outputs)}, op.source))
        changed[key] = inner.evolve(tensors=new.tensors.values(), ops=new.ops)
    functions.update((key, inner) for key, inner in changed.items() if key)
    return with_used_functions(replace(changed[""], functions=functions))


def _loop_body(body: Graph, condition: Graph) -> Graph:
    """The function that a Loop runs: the number of the turn and the condition, which it does not need, and what a While carries."""
    new = Inlining(body)
    turn = new.add(Tensor("turn", "int64", ()))
    before = new.add(Tensor("condition", "bool", ()))
    new.ops = list(body.ops)
    outputs = _distinct(new, body.outputs, body.inputs)
    after = new.add(replace(condition[condition.outputs[0]], data=None), "again")
    new.inline(condition, outputs, (after,), "condition")
    return body.evolve(tensors=new.tensors.values(), ops=new.ops, inputs=(turn, before, *body.inputs), outputs=(after, *outputs))


def _distinct(new: Inlining, outputs: Sequence[str], inputs: Iterable[str]) -> tuple[str, ...]:
    """Outputs of which each is a value of its own: an input that is given out is given out as an Identity of it."""
    taken = set(inputs)
    found = []
    for name in outputs:
        if name in taken:
            other = new.add(replace(new.tensors[name], data=None), f"{name}/kept")
            new.ops.append(Op("Identity", (name,), (other,)))
            name = other
        taken.add(name)
        found.append(name)
    return tuple(found)
