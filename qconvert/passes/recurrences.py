"""Recurrences in other forms: TFLite's integer LSTM in float, and sequences step by step.

real_recurrence: with numerics "fast", TFLite's integer LSTM becomes an LSTM in float, between its quantizations.

onnxruntime has a kernel for it, many times faster than the integer arithmetic decomposed, but it is another model: sums of gates do not
saturate, sigmoid and tanh are not gemmlowp's, hidden values and cell are not rounded from step to step within a run, and the cell has no
limit. Weights keep their integers, each gate its scale; outputs and both states keep their types and quantizations.

unroll_sequences: with unroll=N, what runs step by step over a sequence of up to N steps stands in the graph N times over. Exact.

    IntegerLSTM over 3 steps        Split, three IntegerLSTM of one step each with the states of the one before, Concat
    Scan over 3 steps               Split, its body three times, Concat

For runtimes that have no Scan, or run it slowly. A sequence that is longer, or whose length is known only at run time, is an error: nobody
gets a graph of a size that he did not ask for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from qconvert.errors import OptionError, UnsupportedError, format_count
from qconvert.graph import Array, Graph, Op, Quantization, Shape, Tensor
from qconvert.operators import Port, kind_of
from qconvert.operators.control import scan_axes
from qconvert.operators.integer_recurrent import LSTM_INPUTS, name_tensors
from qconvert.operators.shapes_and_functions import named_functions, with_used_functions
from qconvert.plugins import Change, PassResult, Target
from qconvert.rewriting import Rewriter
from qconvert.rewriting.control_flow import prefix_of

#: The order of gates in the rows of an LSTM.
_ROWS = ("input", "output", "forget", "cell")
#: Microseconds of a step in onnxruntime on one thread of an x86-64 CPU, exact and in float, up to so many cells, without a layer
#: normalization (docs/measured/recurrent.md, "Integer LSTM"). Nothing is timed in a conversion.
_COSTS = ((32, 17, 1), (96, 28, 4), (128, 32, 7))


def real_recurrence(graph: Graph, target: Target | None, *, numerics: str = "exact") -> PassResult:
    """Replace those that an LSTM can say: with four gates of their own, and neither peepholes, projection nor layer normalization. Of each
    it is said which form it has, and what the other would cost."""
    if target is None or target.format != "onnx":
        return graph, ()
    layers = graph.of_kind("IntegerLSTM")
    chosen = [op for op in layers if numerics == "fast" and _is_plain(graph, op)]
    notes = tuple(Change(_describe_form(graph, op, op in chosen), exact=op not in chosen) for op in layers)
    return (lstms_to_float(graph, chosen) if chosen else graph), notes


def lstms_to_float(graph: Graph, chosen: Collection[Op]) -> Graph:
    """Return the graph with some of its integer LSTMs, of which an LSTM can say what they are, in float."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        if op in chosen:
            _Layer(rewriter, op).write()
            rewriter.remove(op)
    return rewriter.finish()


def _describe_form(graph: Graph, op: Op, is_real: bool) -> str:
    """Say which form an operator has, and what the other would cost."""
    tensors = name_tensors(op, LSTM_INPUTS, graph.__getitem__)
    inputs, cells = (tensor.shape[-1] if tensor.shape else "?" for tensor in (tensors["data"], tensors["cell"]))
    cost = next((row[1:] for row in _COSTS if isinstance(cells, int) and cells <= row[0]), None)
    exact, real = (f"about {value} µs a step" for value in cost) if cost else ("many times as long a step", "a fraction of a step")
    name = f"{op.label} ({inputs} inputs, {cells} cells)"
    if is_real:
        return (
            f"{name} computes in float, with the weights' integers, {real}: outputs drift from the source's; "
            f"without --numerics fast they are equal to the last bit, {exact}"
        )
    if not _is_plain(graph, op):
        return f"{name} is exact and has no float form"
    return f"{name} is exact, {exact}; with --numerics fast it is a float LSTM, {real}, whose outputs drift"


def _is_plain(graph: Graph, op: Op) -> bool:
    tensors = name_tensors(op, LSTM_INPUTS, graph.__getitem__)
    extra = [role for role in tensors if role.endswith(("peephole", "norm")) or role.startswith("projection")]
    sizes = [tensors[role].static_shape for role in ("data", "hidden")]
    weights = [tensors.get(f"{gate}_{what}") for gate in _ROWS for what in ("weights", "recurrent")]
    biases = [tensor for role, tensor in tensors.items() if role.endswith("_bias")]
    known = all(tensor is not None and tensor.is_constant for tensor in (*weights, *biases))
    return known and not extra and None not in sizes and len(sizes[0] or ()) == 3 and all(op.outputs)


class _Layer:
    """One layer that is rewritten."""

    def __init__(self, rewriter: Rewriter, op: Op) -> None:
        self._op, self._rewriter = op, rewriter
        self._tensors = name_tensors(op, LSTM_INPUTS, rewriter.graph.__getitem__)

    def write(self) -> None:
        op, outputs = self._op, [self._rewriter[name] for name in self._op.outputs]
        data, hidden, cell = (self._tensors[role] for role in ("data", "hidden", "cell"))
        major = bool(op["time_major"])
        sizes = data.static_shape or ()
        steps, rows = sizes[:2] if major else (sizes[1], sizes[0])
        cells = int((hidden.static_shape or (0,))[-1])
        quantization = Quantization.per_tensor(float(op["hidden_scale"]), int(op["hidden_zero_point"]))
        given = data.name
        if not major:
            given = self._emit("Transpose", [given], replace(data, shape=(steps, rows, sizes[2])), "time", perm=(1, 0, 2))
        state = (1, rows, cells)
        firsts = [self._emit_reshape(tensor.name, replace(tensor, shape=state), "first") for tensor in (hidden, cell)]
        whole = self._add(Tensor("", "int8", (steps, 1, rows, cells), None, quantization), "all")
        last = [
            self._add(replace(outputs[1], shape=state, quantization=quantization), "last"),
            self._add(replace(outputs[2], shape=state), "last"),
        ]
        inputs = (given, self._join_gates("weights"), self._join_gates("recurrent"), self._bias(), "", *firsts)
        self._rewriter.emit(op.derive("LSTM", inputs, (whole, *last), hidden_size=cells))
        shown = self._emit_reshape(whole, Tensor("", "int8", (steps, rows, cells), None, quantization), "steps")
        if not major:
            shown = self._emit("Transpose", [shown], Tensor("", "int8", (rows, steps, cells), None, quantization), "rows", perm=(1, 0, 2))
        self._deliver(shown, outputs[0])
        self._deliver(self._emit_reshape(last[0], replace(outputs[1], quantization=quantization), "hidden"), outputs[1])
        self._deliver(self._emit_reshape(last[1], outputs[2], "cell"), outputs[2])

    def _add(self, tensor: Tensor, hint: str) -> str:
        return self._rewriter.add(f"{self._op.name}/{hint}", tensor)

    def _constant(self, hint: str, data: Array, quantization: Quantization | None = None) -> str:
        return self._rewriter.constant(f"{self._op.name}/{hint}", data, quantization=quantization)

    def _emit(self, kind: str, inputs: list[str], result: Tensor, hint: str, **attributes: tuple[int, ...]) -> str:
        return self._rewriter.compute(kind, inputs, f"{self._op.name}/{hint}", result, self._op.source, **attributes)

    def _emit_reshape(self, name: str, result: Tensor, hint: str) -> str:
        return self._emit("Reshape", [name, self._constant("shape", np.array(result.static_shape, np.int64))], result, hint)

    def _deliver(self, name: str, result: Tensor) -> None:
        """Give an output the stored integers of a tensor, whatever its own quantization: the kernel copies bytes."""
        if self._rewriter[name].quantization == result.quantization:
            self._rewriter.rename(name, result.name)
        else:
            self._rewriter.emit(self._op.derive("Reinterpret", (name,), (result.name,)))

    def _join_gates(self, what: str) -> str:
        """Join the weights of all gates one above the other, with a scale for each row."""
        roles = [f"{gate}_{what}" for gate in _ROWS]
        data = np.concatenate([stored for role in roles if (stored := self._tensors[role].data) is not None])
        scales = np.concatenate([np.repeat(self._scale(role), len(data) // len(roles)) for role in roles])
        return self._constant(what, data[None], Quantization(scales, np.zeros(len(scales), np.int64), 1))

    def _bias(self) -> str:
        """Add float biases: the kernel takes their integers in steps of data scale * weight scale."""
        cells = len(self._tensors["forget_weights"].data)  # type: ignore[arg-type]
        found = []
        for gate in _ROWS:
            bias = self._tensors.get(f"{gate}_bias")
            step = self._scale("data") * self._scale(f"{gate}_weights")
            found.append(np.zeros(cells, np.float32) if bias is None or bias.data is None else (bias.data * step.astype(float)))
        return self._constant("biases", np.concatenate([*found, np.zeros(4 * cells)])[None].astype(np.float32))

    def _scale(self, role: str) -> Array:
        return self._tensors[role].require_quantization().scale


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
