"""Invariants of names, order, operators and tensors, and of functions and states: what stands around the operators of one graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from qconvert.graph import DTYPES, Graph, Op, Shape, Signature, Tensor, numpy_dtype
from qconvert.operators import FunctionCall, Kind, Port, find_kind, kind_of
from qconvert.operators.kind import Broken
from qconvert.operators.shapes_and_functions import all_graphs, named_functions
from qconvert.operators.sizes import is_compatible

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
    """The entry points of the graph itself; those of functions are looked at with these, see scopes()."""
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


#: Functions that call each other run within one another.
_DEEPEST = 50


def scopes(graph: Graph) -> Problems:
    """Functions stand in the whole network alone and do not call themselves; states have a first value; operators name what exists.

    Every operator is of a known kind, with all of its attributes, see operators().
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
