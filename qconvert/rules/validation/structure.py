"""Invariants of names, order, operators and tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from qconvert.graph import DTYPES, Graph, Op, Tensor, numpy_dtype
from qconvert.graph.schema import Signature
from qconvert.operators import find_kind, kind_of
from qconvert.operators.kind import Broken

#: (operator or tensor, rule that it breaks, what is wrong with it)
Problems = Iterator[tuple[str, str, str]]

#: More elements than any network's tensor has; a larger product comes from a damaged file.
_MOST_ELEMENTS = 2**40


def names(graph: Graph) -> Problems:
    """Every name exists, keys are names, and each tensor has one origin."""
    for key, tensor in graph.tensors.items():
        if key != tensor.name:
            yield f"tensor {key!r}", "wrong-key", f"has the key {key!r} but the name {tensor.name!r}"
    for op in graph.ops:
        for name in op.names:
            if name and name not in graph.tensors:
                yield op.location, "unknown-tensor", f"names the tensor {name!r}, which does not exist"
    yield from _border_names(graph)
    origin = dict.fromkeys(graph.inputs, "is a graph input")
    origin |= {tensor.name: "is a constant" for tensor in graph.constants()}
    for op in graph.ops:
        for name in filter(None, op.outputs):
            if name in origin:
                yield op.location, "two-producers", f"writes {name!r}, which {origin[name]}"
            origin[name] = f"{op.location} writes already"


def _border_names(graph: Graph) -> Problems:
    """Graph inputs, outputs and signatures name tensors that exist; inputs are distinct and no constants, outputs are distinct."""
    for what, listed in (("input", graph.inputs), ("output", graph.outputs)):
        for name in listed:
            if name not in graph.tensors:
                yield f"tensor {name!r}", "unknown-tensor", f"is a graph {what} that does not exist"
    for name, count in Counter(graph.inputs).items():
        if count > 1:
            yield f"tensor {name!r}", "duplicate-name", f"is a graph input {count} times"
        if graph[name].is_constant:
            yield f"tensor {name!r}", "constant-input", "is a graph input and a constant"
    for name, count in Counter(graph.outputs).items():
        if count > 1:
            yield f"tensor {name!r}", "duplicate-name", f"is a graph output {count} times"
    for signature in _own_signatures(graph):
        for argument, name in (*signature.inputs.items(), *signature.outputs.items()):
            if name not in graph.tensors:
                yield f"signature {signature.key!r}", "unknown-tensor", f"maps {argument!r} to {name!r}, which does not exist"


def _own_signatures(graph: Graph) -> list[Signature]:
    """The entry points of the graph itself; those of functions are looked at with these (scopes.py)."""
    return [signature for signature in graph.signatures if not signature.function]


def order(graph: Graph) -> Problems:
    """Operators come after what they read: a cycle, a wrong order and a value never written."""
    ready = {*graph.inputs} | {tensor.name for tensor in graph.constants()}
    producers = graph.producers()
    for op in graph.ops:
        for name in op.inputs:
            if not name or name in ready:
                continue
            if name not in producers:
                yield (
                    op.location,
                    "not-computed",
                    f"reads {name!r}, which is neither an input, a constant nor an operator's output",
                )
            elif _has_path(graph, op, producers[name]):
                yield op.location, "cycle", f"is part of a cycle: {name!r} depends on its own output"
            else:
                yield (
                    op.location,
                    "wrong-order",
                    f"comes before {producers[name].location}, which writes its input {name!r}",
                )
        ready.update(op.outputs)
    for name in graph.outputs:
        if name not in ready:
            yield f"tensor {name!r}", "not-computed", "is a graph output that nothing writes"
    inputs = set(graph.inputs)
    for signature in _own_signatures(graph):
        where = f"signature {signature.key!r}"
        for argument, name in signature.inputs.items():
            if name not in inputs:
                yield where, "not-an-input", f"maps the input {argument!r} to {name!r}, which is not a graph input"
        for argument, name in signature.outputs.items():
            if name not in ready:
                yield where, "not-computed", f"maps the output {argument!r} to {name!r}, which nothing writes"


def _has_path(graph: Graph, start: Op, goal: Op) -> bool:
    """Whether `goal` depends on the outputs of `start`."""
    consumers = graph.consumers()
    pending, seen = [start], {id(start)}
    while pending:
        op = pending.pop()
        if op is goal:
            return True
        for reader in (reader for name in op.outputs for reader in consumers.get(name, [])):
            if id(reader) not in seen:
                seen.add(id(reader))
                pending.append(reader)
    return False


def operators(graph: Graph) -> Problems:
    """Kinds exist, arity fits, attributes are the kind's own with values of the right sort."""
    for op in graph.ops:
        if find_kind(op) is None:
            yield op.location, "unknown-kind", f"the operator set has no kind {op.kind!r}"
            return
        yield from ((op.location, *broken) for broken in kind_of(op).problems(op))


def tensors(graph: Graph) -> Problems:
    """Types exist, sizes are sane, constants have the shape and type that they claim."""
    for tensor in graph.tensors.values():
        where = f"tensor {tensor.name!r}"
        if tensor.dtype not in DTYPES:
            yield where, "unknown-type", f"is of type {tensor.dtype!r}, which does not exist"
            return
        yield from ((where, *broken) for broken in _shape_problems(tensor))
        if tensor.data is None:
            continue
        if tensor.data.shape != tensor.shape:
            yield where, "shape-mismatch", f"has data of shape {tensor.data.shape}, but states {tensor.shape}"
        if tensor.data.dtype != numpy_dtype(tensor.dtype):
            yield where, "type-mismatch", f"has data of type {tensor.data.dtype}, but states {tensor.dtype}"


def _shape_problems(tensor: Tensor) -> Iterator[Broken]:
    count = 1
    for size in tensor.shape or ():
        if isinstance(size, str):
            if not size:
                yield "invalid-size", f"has a size without a name in its shape {tensor.shape}"
        elif not isinstance(size, int) or isinstance(size, bool):
            yield "invalid-size", f"has {size!r} in its shape, which is neither a number nor a name"
            return
        elif size < 0:
            yield "negative-size", f"has a negative size in its shape {tensor.shape}"
        else:
            count *= max(size, 1)
    if count > _MOST_ELEMENTS:
        yield "too-many-elements", f"has more than 2^40 elements in its shape {tensor.shape}"
