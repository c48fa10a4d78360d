"""LSTM, GRU and RNN as PyTorch's layers of these names, whose gates have another order; those that round their data, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qconvert.formats.torch.program import Node
from qconvert.formats.torch.writers.layer_parts import round_data
from qconvert.formats.torch.writing import Builder, WriteFunction
from qconvert.graph import Op
from qconvert.operators import is_dynamic
from qconvert.operators.recurrent import activation_names, cell_of, resets_before_product
from qconvert.rewriting.lowering import Scope, conditions

_BIAS, _LENGTHS, _STATE, _PEEPHOLES = 3, 4, 5, 7
#: Steps of a sequence up to which they are written one after the other.
_MOST_STEPS = 256


def write_recurrence(op: Op, b: Builder) -> None:
    """aten::lstm, gru, rnn_tanh or rnn_relu, in float; a layer that begins at the end of its data reads them turned round."""
    layer, directions = _LAYERS[op.kind], 2 if op["direction"] == "bidirectional" else 1
    data = b.float_input(op)
    data = b.aten("transpose.int", data, 0, 1) if op["layout"] else data
    turned = op["direction"] == "reverse"
    data = b.aten("flip", data, [0]) if turned else data
    if is_dynamic(op):
        b.note_operator()
        whole, *last = _unroll_steps(op, b, data)
    else:
        params = [part for direction in range(directions) for part in _weights(op, b, direction)]
        states = _states(op, b, data, directions)
        operator = f"{layer.operator.format(activation_names(op)[0].lower())}.input"
        found = b.aten(operator, data, states if len(states) > 1 else states[0], params, True, 1, 0.0, False, directions == 2, False)
        whole, *last = (b.call("operator.getitem", found, place) for place in range(1 + len(states)))
        cells = op["hidden_size"]
        ways = [b.aten("slice.Tensor", whole, 2, way * cells, (way + 1) * cells) for way in range(directions if directions > 1 else 0)]
        whole = b.aten("stack", ways, 1) if ways else b.aten("unsqueeze", whole, 1)  # (steps, directions, rows, cells)
    whole = b.aten("flip", whole, [0]) if turned else whole
    if op["layout"]:
        b.note_operator()
        whole, last = b.aten("permute", whole, [2, 0, 1, 3]), [b.aten("transpose.int", state, 0, 1) for state in last]
    for index, node in enumerate((whole, *last)):
        if index < len(op.outputs) and op.outputs[index]:
            b.finish(op, node, index)


def _find_obstacle(op: Op, scope: Scope) -> str:
    """A feature of the operator that PyTorch's layer lacks; "" if there is none."""
    for attribute in ("clip", "input_forget", "cell_clip", "projection_clip", "activation_alpha", "activation_beta"):
        if op.attributes.get(attribute):
            return attribute
    if resets_before_product(op):
        return "a reset before the product with the hidden values"
    if any(op.has(index) for index in (_LENGTHS, *range(_PEEPHOLES, len(op.inputs)))):
        return "lengths of sequences, peepholes, a projection or a normalization"
    stated = [item.lower() for item in activation_names(op)]
    default = [item.lower() for item in cell_of(op).activations]
    known = stated in (default, default * 2) or (len(default) == 1 and {*stated} == {"relu"})
    return "" if known else f"activations {', '.join(activation_names(op))}"


def _weights(op: Op, b: Builder, direction: int) -> list[Node]:
    """Matrices and biases of one direction, gates in PyTorch's order."""
    found = [_reorder_gates(op, b, _direction(b, op.inputs[index], direction)) for index in (1, 2)]
    half = len(_LAYERS[op.kind].order) * op["hidden_size"]
    if op.has(_BIAS):
        both = _direction(b, op.inputs[_BIAS], direction)
        parts = [b.aten("slice.Tensor", both, 0, start, start + half) for start in (0, half)]
        return [*found, *(_reorder_gates(op, b, part) for part in parts)]
    zeros = np.zeros(half, np.float64 if b.wide else np.float32)
    return [*found, *(b.buffer(zeros, f"{next(filter(None, op.outputs))}/bias") for _ in range(2))]


def _direction(b: Builder, name: str, direction: int) -> Node:
    """One direction of an input. Constants are cut before they are written."""
    tensor = b.tensor(name)
    if tensor.data is not None and tensor.quantization is None:
        data = tensor.data[direction]
        return b.buffer(data.astype(np.float64) if b.wide else data, f"{name}/{direction}")
    return b.aten("select.int", b.float_value(name), 0, direction)


def _reorder_gates(op: Op, b: Builder, node: Node) -> Node:
    """Rows of all gates in PyTorch's order."""
    order, size = _LAYERS[op.kind].order, op["hidden_size"]
    if len(order) == 1:
        return node
    if node.data is not None:
        parts = np.split(node.data, len(order))
        return b.buffer(np.concatenate([parts[place] for place in order]), f"{node.name}/gates")
    return b.aten("cat", [b.aten("slice.Tensor", node, 0, place * size, (place + 1) * size) for place in order])


def _states(op: Op, b: Builder, data: Node, directions: int) -> list[Node]:
    """The first states, (directions, rows, cells)."""
    found = []
    for place in range(cell_of(op).states):
        name = op.input(_STATE + place)
        if name:
            node = b.float_value(name)
            found.append(b.aten("transpose.int", node, 0, 1) if op["layout"] else node)
            continue
        row = b.aten("slice.Tensor", b.aten("select.int", data, 0, 0), 1, 0, 1)
        zeros = b.aten("unsqueeze", b.aten("zeros_like", row) * 0.0, 0)
        found.append(b.aten("expand", zeros, [directions, -1, op["hidden_size"]]))
    return found


def _unroll_steps(op: Op, b: Builder, data: Node) -> list[Node]:
    """All steps, the last hidden values, and of an LSTM the last cells, of one direction that rounds its operands."""
    steps = b.shape(op)[1 if op["layout"] else 0]
    if op["direction"] == "bidirectional" or not isinstance(steps, int) or steps > _MOST_STEPS:
        raise b.unsupported_error(
            op,
            f"data that it rounds in both directions, in more than {_MOST_STEPS} steps, or in a number that is open,",
            rule="unknown-size",
        )
    (w, r, wb, rb), states = _weights(op, b, 0), [b.aten("select.int", node, 0, 0) for node in _states(op, b, data, 1)]
    sums = b.aten("linear", round_data(op, b, data, 3), w, wb)
    shown = []
    for step in range(steps):
        own = b.aten("linear", round_data(op, b, states[0], 2), r, rb)
        states = _LAYERS[op.kind].step(op, b, b.aten("select.int", sums, 0, step), own, states)
        shown.append(states[0])
    whole = b.aten("unsqueeze", b.aten("stack", shown), 1)
    return [whole, *(b.aten("unsqueeze", state, 0) for state in states)]


def _gru_step(op: Op, b: Builder, theirs: Node, own: Node, states: Sequence[Node]) -> list[Node]:
    first, second = (_gates(op, b, node, 3) for node in (own, theirs))
    reset, update = (b.aten("sigmoid", b.aten("add.Tensor", *pair)) for pair in zip(first[:2], second[:2], strict=True))
    new = b.aten("tanh", second[2] + first[2] * reset)
    return [(states[0] - new) * update + new]


def _lstm_step(op: Op, b: Builder, theirs: Node, own: Node, states: Sequence[Node]) -> list[Node]:
    enters, stays, new, opens = _gates(op, b, own + theirs, 4)
    kept = b.aten("sigmoid", stays) * states[1]
    cell = kept + b.aten("sigmoid", enters) * b.aten("tanh", new)
    return [b.aten("sigmoid", opens) * b.aten("tanh", cell), cell]


def _gates(op: Op, b: Builder, node: Node, count: int) -> list[Node]:
    size = op["hidden_size"]
    return [b.aten("slice.Tensor", node, 1, place * size, (place + 1) * size) for place in range(count)]


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer of PyTorch.

    Attributes:
        operator: of aten; "{}" stands for its one activation.
        order: where its gates stand among ONNX's.
        step: writes one step: (operator, what is written, its sums of the data, of the hidden values, states) -> the next states.
    """

    operator: str
    order: tuple[int, ...]
    step: Callable[[Op, Builder, Node, Node, Sequence[Node]], list[Node]]


_LAYERS: Mapping[str, _Layer] = {
    "LSTM": _Layer("lstm", (0, 2, 3, 1), _lstm_step),
    "GRU": _Layer("gru", (1, 0, 2), _gru_step),
    "RNN": _Layer("rnn_{}", (0,), lambda op, b, theirs, own, states: [b.aten(activation_names(op)[0].lower(), own + theirs)]),
}

WRITERS: dict[str, WriteFunction] = dict.fromkeys(_LAYERS, conditions(_find_obstacle)(write_recurrence))
