"""Invariants of functions and states: what stands around the operators of one graph."""

from __future__ import annotations

from collections.abc import Iterator

from qconvert.graph.schema import Graph, Op, Shape, Signature, Tensor
from qconvert.operators import FunctionCall, Kind, Port, kind_of
from qconvert.operators.kind import Broken
from qconvert.operators.shapes_and_functions import all_graphs, named_functions
from qconvert.operators.sizes import is_compatible
from qconvert.rules.validation.structure import Problems

#: Functions that call each other run within one another.
_DEEPEST = 50


def scopes(graph: Graph) -> Problems:
    """Functions stand in the whole network alone and do not call themselves; states have a first value; operators name what exists.

    Every operator is of a known kind, with all of its attributes (structure.py).
    """
    for name, inner in graph.functions.items():
        where = f"function {name!r}"
        if not name:
            yield where, "no-name", "has no name"
        for what in ("functions", "states", "signatures"):
            if getattr(inner, what):
                yield where, "nested-scope", f"has {what} of its own, which only the main graph may have"
    for name, state in graph.states.items():
        yield from ((f"state {name!r}", *broken) for broken in _state_problems(name, state))
    for name, inner in all_graphs(graph):
        where = f"function {name!r}, " if inner is not graph else ""
        written: set[str] = set()
        for op in inner.ops:
            if kind_of(op).has_effect:
                if (state_name := str(op["state"])) in written:
                    yield where + op.location, "two-writes", f"writes the state {state_name!r} for the second time in a run"
                written.add(state_name)
            yield from ((where + op.location, *broken) for broken in _reference_problems(graph, inner, op))
            yield from ((where + op.location, *broken) for broken in _call_problems(graph, inner, op))
    for signature in graph.signatures:
        yield from ((f"signature {signature.key!r}", *broken) for broken in _signature_problems(graph, signature))
    yield from _recursion_problems(graph)


def _signature_problems(graph: Graph, signature: Signature) -> Iterator[Broken]:
    """What is wrong with an entry point of a function."""
    if not signature.function:
        return
    function = graph.functions.get(signature.function)
    if function is None:
        yield "unknown-function", f"names the function {signature.function!r}, which does not exist"
        return
    for word, names, known in (("input", signature.inputs, function.inputs), ("output", signature.outputs, function.outputs)):
        for argument, name in names.items():
            if name not in known:
                yield "unknown-tensor", f"maps the {word} {argument!r} to {name!r}, which is none of the function {signature.function!r}"


def _state_problems(name: str, state: Tensor) -> Iterator[Broken]:
    if state.name != name:
        yield "wrong-key", f"has the key {name!r} but the name {state.name!r}"
    if state.data is None:
        yield "no-initial-value", "has no initial value"


def _reference_problems(graph: Graph, inner: Graph, op: Op) -> Iterator[Broken]:
    """Functions and states that an operator names exist, and the state is of the tensor's type, shape and quantization."""
    for name in named_functions(op):
        if name not in graph.functions:
            yield "unknown-function", f"names the function {name!r}, which does not exist"
            return
    if kind_of(op).rule != "state":
        return
    state = graph.states.get(str(op["state"]))
    if state is None:
        yield "unknown-state", f"names the state {op['state']!r}, which does not exist"
        return
    for tensor in (inner[name] for name in op.names if name in inner.tensors):
        same = tensor.dtype == state.dtype and tensor.quantization == state.quantization
        if not same or not is_compatible(tensor.shape, state.shape):
            yield "state-mismatch", f"has {tensor.name!r}, which does not have the type, shape and quantization of the state {state.name!r}"
        elif tensor.name in op.outputs and tensor.shape != state.shape:
            yield (
                "state-mismatch",
                f"has {tensor.name!r} of the shape {tensor.shape}, and reads the state {state.name!r}, which has {state.shape}",
            )


def _call_problems(graph: Graph, inner: Graph, op: Op) -> Iterator[Broken]:
    """The inputs and outputs of the functions of an operator match its own."""
    kind = kind_of(op)
    for name in kind.inputs_with_role(op, "condition"):
        if inner[name].dtype not in ("bool", "unknown") or not _is_single_element(inner[name].shape):
            yield "not-boolean", f"takes {name!r} of {inner[name].dtype} {inner[name].shape} as a condition, which must be one bool"
    if kind.rule != "control":
        return
    yield from _count_problems(kind, op)
    for call in kind.calls(op):
        function = graph.functions[call.function]
        sides = (("takes", "gives", call.inputs, function.inputs), ("gives", "takes", call.outputs, function.outputs))
        for word, other, ports, names in sides:
            if len(ports) != len(names):
                yield "counts-differ", f"{other} {len(ports)} values where the function {call.function!r} {word} {len(names)}"
                return
            for port, name in zip(ports, names, strict=True):
                tensor = inner[port.tensor] if port.tensor else None
                if reason := _port_difference(port, tensor, function[name]):
                    yield "call-mismatch", f"runs the function {call.function!r}, which {word} {name!r} {reason}"
        yield from _carried_problems(call, function)


def _count_problems(kind: Kind, op: Op) -> Iterator[Broken]:
    """What an operator says of the number of its values fits those that it has."""
    stated = {name: int(op[name]) for name in ("carried", "num_scan_inputs") if name in kind.attributes}
    carried, scanned = stated.get("carried", 0), stated.get("num_scan_inputs", 0)
    first = sum(role != "data" for role in kind.roles)  # after counts and conditions
    inputs = len(op.inputs) - first
    is_wrong = min(carried, scanned) < 0 or carried + scanned > inputs or carried > len(op.outputs)
    if is_wrong or ("num_scan_inputs" in stated and not scanned):
        yield (
            "counts-differ",
            f"states {carried} carried and {scanned} scanned values, but has {inputs} inputs and {len(op.outputs)} outputs",
        )
    if op.kind == "While" and len(op.inputs) != len(op.outputs):
        yield "counts-differ", f"takes {len(op.inputs)} values and gives {len(op.outputs)}, although it carries all of them"
    if not all(op.inputs[first:]):
        yield "input-missing", "lacks a value that its function takes"


def _carried_problems(call: FunctionCall, function: Graph) -> Iterator[Broken]:
    """What a function gives for its next turn is what it takes there."""
    for given, taken in call.carried:
        one, other = function[function.outputs[given]], function[function.inputs[taken]]
        if not one.shares_quantization(other) or not is_compatible(one.shape, other.shape):
            yield (
                "carried-mismatch",
                f"runs the function {call.function!r}, whose output {one.name!r} does not match its next input {other.name!r}",
            )


def _port_difference(port: Port, tensor: Tensor | None, inner: Tensor) -> str:
    """What is wrong with the function's tensor next to a port, in words; "" if nothing is."""
    if port.dtype:
        return (
            "" if inner.dtype == port.dtype and _is_single_element(inner.shape) else f"of {inner.dtype} {inner.shape}, not one {port.dtype}"
        )
    if tensor is None:
        return ""
    shape = tensor.shape if port.axis is None else _drop_axis(tensor.shape, port.axis)
    along = port.axis is not None and inner.quantization is not None and inner.quantization.axis is not None
    if not inner.shares_quantization(tensor) or along:
        return f"of another type or quantization than {tensor.name!r}"
    return "" if is_compatible(inner.shape, shape) else f"of the shape {inner.shape}, not {shape}, as {tensor.name!r} has it"


def _drop_axis(shape: Shape | None, axis: int) -> Shape | None:
    """A shape without one of its axes; one that it does not have leaves a shape that fits nothing."""
    if shape is None:
        return None
    if not -len(shape) <= axis < len(shape):
        return (-1,)
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1 :])


def _is_single_element(shape: Shape | None) -> bool:
    """Whether a shape may be that of one element."""
    return shape is None or all(size == 1 or isinstance(size, str) for size in shape)


def _recursion_problems(graph: Graph) -> Problems:
    """A function that calls itself, also through others, never returns."""
    called = {name: {one for op in inner.ops for one in named_functions(op)} for name, inner in graph.functions.items()}
    done: set[str] = set()
    depth = 0
    while left := {name for name in called if name not in done}:
        free = {name for name in left if not (called[name] & left)}
        if not free:
            yield f"function {min(left)!r}", "recursive-function", "calls itself"
            return
        done |= free
        depth += 1
        if depth > _DEEPEST:
            yield f"function {min(free)!r}", "nested-too-deeply", f"calls more than {_DEEPEST} nested functions"
            return
