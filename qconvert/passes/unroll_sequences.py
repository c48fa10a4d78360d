"""unroll_sequences: with --unroll N, what runs step by step over a sequence of up to N steps stands in the graph N times over. Exact.

    IntegerLSTM over 3 steps        Split, three IntegerLSTM of one step each with the states of the one before, Concat
    Scan over 3 steps               Split, its body three times, Concat

For runtimes that have no Scan, or run it slowly. A sequence that is longer, or whose length is known only at run time, is an error: nobody
gets a graph of a size that he did not ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.errors import OptionError, UnsupportedError
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.functions import with_used_functions
from qconvert.graph.inlining import Inlining, prefix_of
from qconvert.graph.kinds.control import Port, calls, scan_axes
from qconvert.plugins import Target

__all__ = ["MOST", "run"]

#: The largest limit.
MOST = 256


def run(graph: Graph, target: Target | None, *, unroll: int = 0) -> tuple[Graph, tuple[str, ...]]:
    """Unrolls what runs over sequences, if a limit is given."""
    if not unroll:
        return graph, ()
    if not 1 <= unroll <= MOST:
        words = f"unroll is {unroll}, no number of steps from 1 to {MOST}"
        raise OptionError(words, remedy=f"Give a number up to {MOST}, or leave it out.")
    # A function's own Scans name functions of the whole network, which is not seen from here: they stay.
    listed = [op for op in graph.ops if op.kind == "IntegerLSTM" or (op.kind == "Scan" and str(op["body"]) in graph.functions)]
    steps = {id(op): _length(graph, op, unroll) for op in listed}
    if not any(count > 1 for count in steps.values()):
        return graph, ()
    new, notes = Inlining(graph), []
    for op in graph.ops:
        count = steps.get(id(op), 0)
        if count < 2:  # one step of an IntegerLSTM is no loop in any form
            new.ops.append(op)
            continue
        (_unroll_lstm if op.kind == "IntegerLSTM" else _unroll_scan)(graph, op, new, count)
        notes.append(f"{op.source or op.kind} stands in the graph for each of its {count} steps")
    return with_used_functions(graph.evolve(tensors=new.tensors.values(), ops=new.ops)), tuple(notes)


def _length(graph: Graph, op: Op, limit: int) -> int:
    """The number of steps; of a Scan over nothing, 0."""
    place = op.source or op.kind
    found = {None if (shape := graph[name].shape) is None else shape[axis] for name, axis in _stacks(op)}
    count = found.pop() if len(found) == 1 else None
    if not isinstance(count, int):
        raise UnsupportedError(
            f"{place} cannot be unrolled: its number of steps is known only at run time",
            where=prefix_of(op), remedy="Leave --unroll out: the operator then is a Scan.",
        )  # fmt: skip
    if count > limit:
        raise UnsupportedError(
            f"{place} runs over {count} steps, which is more than the limit of --unroll, {limit}",
            where=prefix_of(op), remedy=f"Give a limit up to {MOST}, or leave --unroll out: the operator then is a Scan.",
        )  # fmt: skip
    return count


def _stacks(op: Op) -> list[tuple[str, int]]:
    """What an operator takes step by step, and along which axis."""
    if op.kind == "IntegerLSTM":
        return [(op.inputs[0], 0 if op["time_major"] else 1)]
    return [(port.tensor, port.axis) for call in calls(op) for port in call.inputs if port.axis is not None]


def _unroll_lstm(graph: Graph, op: Op, new: Inlining, count: int) -> None:
    axis = 0 if op["time_major"] else 1
    parts = _split(graph, op, new, op.inputs[0], axis, count)
    states, given = op.inputs[1:3], []
    for turn, part in enumerate(parts):
        last = turn == count - 1
        shown = new.add(_sized(graph[op.outputs[0]], axis, 1), f"{op.outputs[0]}/step_{turn}")
        after = op.outputs[1:] if last else _fresh(graph, op, new, turn)
        new.ops.append(replace(op, inputs=(part, *states, *op.inputs[3:]), outputs=(shown, *after)))
        states = after
        given.append(shown)
    new.ops.append(Op("Concat", tuple(given), op.outputs[:1], {"axis": axis}, op.source))


def _fresh(graph: Graph, op: Op, new: Inlining, turn: int) -> tuple[str, ...]:
    """Tensors for the states of an IntegerLSTM after one of its steps."""
    states = zip(op.outputs[1:], op.inputs[1:3], ("hidden", "cell"), strict=True)
    named = [(graph[after or before], f"{op.outputs[0]}/{what}/step_{turn}") for after, before, what in states]
    return tuple(new.add(replace(tensor, data=None), hint) for tensor, hint in named)


def _unroll_scan(graph: Graph, op: Op, new: Inlining, count: int) -> None:
    """Constants of the body are shared by all steps."""
    call, function = next(iter(calls(op))), graph.functions[str(op["body"])]
    inner = [tensor for tensor in function.tensors.values() if tensor.is_constant]
    shared = [new.add(tensor, f"{prefix_of(op)}/{tensor.name}") for tensor in inner]
    open_tensors = [replace(tensor, data=None) if tensor.is_constant else tensor for tensor in function.tensors.values()]
    body = replace(function, tensors={t.name: t for t in open_tensors}, inputs=(*function.inputs, *(tensor.name for tensor in inner)))
    carried = list(op.inputs[: int(op["carried"])])
    taken = _taken(graph, op, new, call.inputs, count)
    stacks: list[list[str]] = [[] for port in call.outputs if port.axis is not None]
    back = scan_axes(op, "scan_output_directions", len(stacks))
    for turn in range(count):
        last = turn == count - 1
        names = [new.add(replace(function[name], data=None), f"{prefix_of(op)}/step_{turn}/{name}") for name in function.outputs]
        if last:
            names[: len(carried)] = op.outputs[: len(carried)]
        given = [taken[index][turn] if port.axis is not None else port.tensor for index, port in enumerate(call.inputs)]
        new.inline(body, [*carried, *given[len(carried) :], *shared], names, f"{prefix_of(op)}/step_{turn}")
        carried, shown = names[: len(carried)], names[len(carried) :]
        for stack, value in zip(stacks, shown, strict=True):
            stack.append(value)
    ports = [port for port in call.outputs if port.axis is not None]
    for port, stack, backwards in zip(ports, stacks, back, strict=True):
        _stack(graph, op, new, port, stack[::-1] if backwards else stack)


def _taken(graph: Graph, op: Op, new: Inlining, ports: Sequence[Port], count: int) -> dict[int, list[str]]:
    """What each step takes of each sequence, by the place among the inputs."""
    found: dict[int, list[str]] = {}
    back = scan_axes(op, "scan_input_directions", int(op["num_scan_inputs"]))
    for index, port in enumerate(ports):
        if port.axis is None:
            continue
        parts = _split(graph, op, new, port.tensor, port.axis, count)
        whole = graph[port.tensor]
        shape = [size for place, size in enumerate(_shape(op, whole)) if place != port.axis % len(_shape(op, whole))]
        steps = [_reshaped(op, new, part, replace(whole, shape=tuple(shape), data=None)) for part in parts]
        found[index] = steps[::-1] if back[len(found)] else steps
    return found


def _stack(graph: Graph, op: Op, new: Inlining, port: Port, values: list[str]) -> None:
    """What all steps gave becomes an output of the Scan."""
    if not port.tensor or port.axis is None:
        return
    axis = port.axis % len(_shape(op, graph[port.tensor]))
    parts = [_reshaped(op, new, value, _sized(graph[port.tensor], axis, 1)) for value in values]
    new.ops.append(Op("Concat", tuple(parts), (port.tensor,), {"axis": axis}, op.source))


def _split(graph: Graph, op: Op, new: Inlining, name: str, axis: int, count: int) -> list[str]:
    """A tensor in pieces of one step."""
    sizes = np.ones(count, np.int64)
    given = new.add(Tensor("", "int64", sizes.shape, sizes), f"{prefix_of(op)}/sizes")
    parts = tuple(new.add(_sized(graph[name], axis, 1), f"{name}/step_{turn}") for turn in range(count))
    new.ops.append(Op("Split", (name, given), parts, {"axis": axis % len(_shape(op, graph[name]))}, op.source))
    return list(parts)


def _reshaped(op: Op, new: Inlining, name: str, like: Tensor) -> str:
    sizes = np.array(_shape(op, like), np.int64)
    given = new.add(Tensor("", "int64", sizes.shape, sizes), f"{prefix_of(op)}/shape")
    result = new.add(replace(like, data=None), f"{name}/step")
    new.ops.append(Op("Reshape", (name, given), (result,), {}, op.source))
    return result


def _sized(tensor: Tensor, axis: int, size: int) -> Tensor:
    """The tensor with another size along an axis."""
    shape = list(tensor.shape or ())
    shape[axis] = size
    return replace(tensor, shape=tuple(shape), data=None)


def _shape(op: Op, tensor: Tensor) -> tuple[int, ...]:
    shape = tensor.static_shape
    if shape is None:
        raise UnsupportedError(
            f"{op.source or op.kind} cannot be unrolled: {tensor.name!r} has sizes that are known only at run time",
            where=prefix_of(op), remedy="Leave --unroll out: the operator then is a Scan.",
        )  # fmt: skip
    return shape
