"""Invariants of functions and states: what stands around the operators of one graph."""

from __future__ import annotations

from collections.abc import Iterator

from qconvert.graph.kinds import KINDS
from qconvert.graph.schema import Graph, Op, Tensor
from qconvert.graph.shapes import compatible
from qconvert.graph.validation.structure import Problems, located

__all__ = ["named_functions", "scopes"]


def scopes(graph: Graph) -> Problems:
    """Functions stand in the whole network alone and do not call themselves; states have a first value; operators name what exists."""
    for name, inner in graph.functions.items():
        where = f"function {name!r}"
        if not name:
            yield where, "has no name"
        for what in ("functions", "states", "signatures"):
            if getattr(inner, what):
                yield where, f"has {what} of its own, which only the whole network may have"
    for name, state in graph.states.items():
        yield from ((f"state {name!r}", reason) for reason in _state(name, state))
    for where, inner in (("", graph), *((f"function {name!r}, ", inner) for name, inner in graph.functions.items())):
        written: set[str] = set()
        for op in inner.ops:
            if op.kind == "WriteState":
                if (name := str(op["state"])) in written:
                    yield where + located(op), f"writes the state {name!r} for the second time in a run"
                written.add(name)
            yield from ((where + located(op), reason) for reason in _named(graph, inner, op))
    yield from _recursion(graph)


def _state(name: str, state: Tensor) -> Iterator[str]:
    if state.name != name:
        yield f"is filed under another name than its own, {state.name!r}"
    if state.data is None:
        yield "has no first value"


def _named(graph: Graph, inner: Graph, op: Op) -> Iterator[str]:
    """Functions and states that an operator names exist, and the state is of the tensor's type, shape and grid."""
    for name in named_functions(op):
        if name not in graph.functions:
            yield f"names the function {name!r}, which does not exist"
    if op.kind not in KINDS or KINDS[op.kind].rule != "state" or "state" not in op.attributes:
        return
    state = graph.states.get(str(op.attributes["state"]))
    if state is None:
        yield f"names the state {op.attributes['state']!r}, which does not exist"
        return
    for tensor in (inner[name] for name in (*op.inputs, *op.outputs) if name in inner.tensors):
        same = tensor.dtype == state.dtype and tensor.quantization == state.quantization
        if not same or not compatible(tensor.shape, state.shape):
            yield f"has {tensor.name!r}, which is not of the type, shape and grid of the state {state.name!r}"


def named_functions(op: Op) -> list[str]:
    """The functions that an operator names."""
    attributes = KINDS[op.kind].attributes if op.kind in KINDS else {}
    return [str(value) for name, value in op.attributes.items() if name in attributes and attributes[name].sort == "function"]


def _recursion(graph: Graph) -> Problems:
    """A function that calls itself, through others too, never ends."""
    calls = {name: {called for op in inner.ops for called in named_functions(op)} for name, inner in graph.functions.items()}
    done: set[str] = set()
    while left := {name for name in calls if name not in done}:
        free = {name for name in left if not (calls[name] & left)}
        if not free:
            yield f"function {min(left)!r}", "calls itself"
            return
        done |= free
