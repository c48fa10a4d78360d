"""unroll_sequences: with unroll=N, what runs step by step over a sequence of up to N steps stands in the graph N times over. Exact.

    IntegerLSTM over 3 steps        Split, three IntegerLSTM of one step each with the states of the one before, Concat
    Scan over 3 steps               Split, its body three times, Concat

For runtimes that have no Scan, or run it slowly. A sequence that is longer, or whose length is known only at run time, is an error: nobody
gets a graph of a size that he did not ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qconvert.errors import OptionError, UnsupportedError, format_count
from qconvert.graph import Graph, Op, Shape, Tensor
from qconvert.operators import Port, kind_of
from qconvert.operators.control import scan_axes
from qconvert.operators.shapes_and_functions import named_functions, with_used_functions
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.control_flow import prefix_of

#: The largest limit.
MOST = 256


def unroll_sequences(graph: Graph, target: Target | None, *, unroll: int = 0) -> PassResult:
    """Unroll what runs over sequences, if a limit is given."""
    if not unroll:
        return graph, ()
    if not 1 <= unroll <= MOST:
        words = f"unroll is {unroll}; the number of steps must be from 1 to {MOST}"
        raise OptionError(words, remedy="Leave -O unroll out to keep sequences as they are.", rule="number-out-of-range")
    # A function's own Scans name functions of the whole network, which is not seen from here: they stay.
    listed = [op for op in graph.of_kind(*_UNROLLED) if all(name in graph.functions for name in named_functions(op))]
    steps = {id(op): _length(graph, op, unroll) for op in listed}
    if not any(count > 1 for count in steps.values()):
        return graph, ()
    rewriter, notes = Rewriter(graph), []
    for op in rewriter:
        count = steps.get(id(op), 0)
        if count < 2:  # one step of an IntegerLSTM is no loop in any form
            continue
        _UNROLLED[op.kind](rewriter, op, count)
        rewriter.remove(op)
        notes.append(f"{op.label} is unrolled into {format_count(count, 'step')}")
    return with_used_functions(rewriter.finish()), tuple(notes)


def _length(graph: Graph, op: Op, limit: int) -> int:
    """Return the number of steps."""
    place = op.label
    found = {None if (shape := graph[name].shape) is None else shape[axis] for name, axis in _stacks(op)}
    count = found.pop() if len(found) == 1 else None
    if not isinstance(count, int):
        raise UnsupportedError(
            f"{place} cannot be unrolled: its number of steps is dynamic",
            where=prefix_of(op),
            remedy="Leave -O unroll out: the operator then becomes a Scan.",
            rule="dynamic-dimension",
        )
    if count > limit:
        raise UnsupportedError(
            f"{place} has {count} steps, more than the limit of -O unroll, {limit}",
            where=prefix_of(op),
            remedy=f"Give a limit of up to {MOST}, or leave -O unroll out: the operator then becomes a Scan.",
            rule="too-many-steps",
        )
    return count


def _stacks(op: Op) -> list[tuple[str, int]]:
    """Return what an operator takes step by step, and along which axis."""
    if "time_major" in kind_of(op).attributes:
        return [(op.inputs[0], _time_axis(op))]
    return [(port.tensor, port.axis) for call in kind_of(op).calls(op) for port in call.inputs if port.axis is not None]


def _time_axis(op: Op) -> int:
    return 0 if op["time_major"] else 1


def _unroll_lstm(rewriter: Rewriter, op: Op, count: int) -> None:
    axis, result = _time_axis(op), rewriter[op.name]
    states, given = op.inputs[1:3], []
    for turn, part in enumerate(_split_steps(rewriter, op, op.inputs[0], axis, count)):
        shown = rewriter.add(f"{result.name}/step_{turn}", result, shape=_step_shape(result, axis))
        after = op.outputs[1:] if turn == count - 1 else _new_states(rewriter, op, turn)
        rewriter.emit(replace(op, inputs=(part, *states, *op.inputs[3:]), outputs=(shown, *after)))
        states = after
        given.append(shown)
    rewriter.emit(op.derive("Concat", tuple(given), op.outputs[:1], axis=axis))


def _new_states(rewriter: Rewriter, op: Op, turn: int) -> tuple[str, ...]:
    """Add tensors for the states of an IntegerLSTM after one of its steps."""
    states = zip(op.outputs[1:], op.inputs[1:3], ("hidden", "cell"), strict=True)
    return tuple(rewriter.add(f"{op.name}/{what}/step_{turn}", rewriter[after or before]) for after, before, what in states)


def _unroll_scan(rewriter: Rewriter, op: Op, count: int) -> None:
    """Put the body of a Scan in its place for each step; constants of the body are shared by all steps."""
    call, function = next(iter(kind_of(op).calls(op))), rewriter.graph.functions[str(op["body"])]
    inner = list(function.constants())
    shared = [rewriter.define(replace(tensor, name=rewriter.fresh(f"{prefix_of(op)}/{tensor.name}"))) for tensor in inner]
    open_tensors = [replace(tensor, data=None) for tensor in function.tensors.values()]
    body = replace(function, tensors={t.name: t for t in open_tensors}, inputs=(*function.inputs, *(tensor.name for tensor in inner)))
    carried = list(op.inputs[: int(op["carried"])])
    taken = _split_sequences(rewriter, op, call.inputs, count)
    stacks: list[list[str]] = [[] for port in call.outputs if port.axis is not None]
    back = scan_axes(op, "scan_output_directions", len(stacks))
    for turn in range(count):
        prefix = f"{prefix_of(op)}/step_{turn}"
        names = [rewriter.add(f"{prefix}/{name}", function[name]) for name in function.outputs]
        if turn == count - 1:
            names[: len(carried)] = op.outputs[: len(carried)]
        given = [taken[index][turn] if port.axis is not None else port.tensor for index, port in enumerate(call.inputs)]
        rewriter.emit(*rewriter.inline(body, [*carried, *given[len(carried) :], *shared], names, prefix))
        carried, shown = names[: len(carried)], names[len(carried) :]
        for stack, value in zip(stacks, shown, strict=True):
            stack.append(value)
    ports = [port for port in call.outputs if port.axis is not None]
    for port, stack, backwards in zip(ports, stacks, back, strict=True):
        _stack(rewriter, op, port, stack[::-1] if backwards else stack)


def _split_sequences(rewriter: Rewriter, op: Op, ports: Sequence[Port], count: int) -> dict[int, list[str]]:
    """Return what each step takes of each sequence, by the place among the inputs."""
    found: dict[int, list[str]] = {}
    back = scan_axes(op, "scan_input_directions", int(op["num_scan_inputs"]))
    for index, port in enumerate(ports):
        if port.axis is None:
            continue
        parts = _split_steps(rewriter, op, port.tensor, port.axis, count)
        whole = rewriter[port.tensor]
        sizes = _shape(op, whole)
        shape = tuple(size for place, size in enumerate(sizes) if place != port.axis % len(sizes))
        steps = [_emit_reshape(rewriter, op, part, replace(whole, shape=shape)) for part in parts]
        found[index] = steps[::-1] if back[len(found)] else steps
    return found


def _stack(rewriter: Rewriter, op: Op, port: Port, values: list[str]) -> None:
    """Make an output of the Scan of what all steps gave."""
    if not port.tensor or port.axis is None:
        return
    whole = rewriter[port.tensor]
    axis = port.axis % len(_shape(op, whole))
    parts = [_emit_reshape(rewriter, op, value, replace(whole, shape=_step_shape(whole, axis))) for value in values]
    rewriter.emit(op.derive("Concat", tuple(parts), (port.tensor,), axis=axis))


def _split_steps(rewriter: Rewriter, op: Op, name: str, axis: int, count: int) -> list[str]:
    """Split a tensor into pieces of one step."""
    whole = rewriter[name]
    sizes = rewriter.constant(f"{prefix_of(op)}/sizes", [1] * count)
    parts = [rewriter.add(f"{name}/step_{turn}", whole, shape=_step_shape(whole, axis)) for turn in range(count)]
    rewriter.emit(op.derive("Split", (name, sizes), tuple(parts), axis=axis % len(_shape(op, whole))))
    return parts


def _emit_reshape(rewriter: Rewriter, op: Op, name: str, like: Tensor) -> str:
    sizes = rewriter.constant(f"{prefix_of(op)}/shape", _shape(op, like))
    return rewriter.compute("Reshape", (name, sizes), f"{name}/step", like, op.source)


def _step_shape(tensor: Tensor, axis: int) -> Shape:
    """Return the shape of a tensor with size 1 along an axis."""
    shape = list(tensor.shape or ())
    shape[axis] = 1
    return tuple(shape)


def _shape(op: Op, tensor: Tensor) -> tuple[int, ...]:
    shape = tensor.static_shape
    if shape is None:
        raise UnsupportedError(
            f"{op.label} cannot be unrolled: {tensor.name!r} has dynamic dimensions",
            where=prefix_of(op),
            remedy="Leave -O unroll out: the operator then becomes a Scan.",
            rule="dynamic-dimension",
        )
    return shape


_UNROLLED = {"IntegerLSTM": _unroll_lstm, "Scan": _unroll_scan}
