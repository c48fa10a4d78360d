"""LSTM, GRU and RNN: one step on values, which evaluation, loops over steps and unrolled forms share, and the recurrences over a sequence.
Formulas: ONNX LSTM-22, GRU-22, RNN-22, and TFLite's LSTM (kernels/lstm_eval.cc), which limits the cell, projects the hidden values, and
normalizes each gate's sum: norm * (sum - mean) / sqrt(variance + 1e-8) + bias, the sum being that of data, hidden values and peephole.
With an `arithmetic` of dynamic range they have integer weights with float data, and round what these are multiplied with: the data, and
the hidden values of each step before they go into the next. Where that goes by the range of the whole tensor, it is the whole sequence
for the data, and all rows of one step for the hidden values; else it is a row of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic import OF_ROWS, OF_WHOLE_TENSORS
from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op
from qconvert.operators.attributes import AttributeSpec, choice, flag, has, integer, number, numbers, texts
from qconvert.operators.call import Call
from qconvert.operators.kind import Kind
from qconvert.operators.products import products_of_rows, rounded_rows
from qconvert.operators.properties import any_value, in_rows
from qconvert.operators.sizes import ShapeContext, Shapes, Size, failure, is_compatible
from qconvert.operators.values import Value, apply, clip, reduce, sqrt, square

#: A function of a gate's sum.
Activation = Callable[[Value], Value]
#: The sums of the hidden values with the rows of weights of so many gates from one on: (values, first gate, number of gates).
Product = Callable[[Value, int, int], Value]

#: What TFLite's kernel adds to a variance (MeanStddevNormalization, kernels/internal/reference/portable_tensor_utils.cc).
_EPSILON = 1e-8

#: Activation -> alpha and beta by default, and the function: those of ONNX (operator LSTM, "activations"), then those of TFLite alone.
ACTIVATIONS: Mapping[str, tuple[float, float, Callable[[Value, float, float], Value]]] = {
    "Relu": (0, 0, lambda x, a, b: apply("Relu", x)),
    "Tanh": (0, 0, lambda x, a, b: apply("Tanh", x)),
    "Sigmoid": (0, 0, lambda x, a, b: apply("Sigmoid", x)),
    "Affine": (1, 0, lambda x, a, b: x * a + b),
    "LeakyRelu": (0.01, 0, lambda x, a, b: apply("LeakyRelu", x, alpha=a)),
    "ThresholdedRelu": (1, 0, lambda x, a, b: apply("ThresholdedRelu", x, alpha=a)),
    "ScaledTanh": (1, 1, lambda x, a, b: apply("Tanh", x * b) * a),
    "HardSigmoid": (0.2, 0.5, lambda x, a, b: apply("HardSigmoid", x, alpha=a, beta=b)),
    "Elu": (1, 0, lambda x, a, b: apply("Elu", x, alpha=a)),
    "Softsign": (0, 0, lambda x, a, b: apply("Softsign", x)),
    "Softplus": (0, 0, lambda x, a, b: apply("Softplus", x)),
    "Relu6": (0, 0, lambda x, a, b: clip(x, 0.0, 6.0)),
    "ReluN1To1": (0, 0, lambda x, a, b: clip(x, -1.0, 1.0)),
}


class Parts(NamedTuple):
    """What one direction of a recurrence computes with.

    Attributes:
        op: the operator, whose attributes hold.
        activations: of the direction.
        recurrent: what the hidden values are multiplied with.
        peepholes: of an LSTM's gates input, output and forget, or none.
        norms: of an LSTM's four gates: the factor, and what is added after it, or none.
        projected: an LSTM's projection of its hidden values, or None.
    """

    op: Op
    activations: Sequence[Activation]
    recurrent: Product
    peepholes: Sequence[Value] = ()
    norms: Sequence[tuple[Value, Value | None]] = ()
    projected: Activation | None = None


def _rnn(p: Parts, sums: Value, h: Value) -> tuple[Value, ...]:
    return (p.activations[0](_clip_symmetric(sums + p.recurrent(h, 0, 1), p.op["clip"])),)


def _gru(p: Parts, sums: Value, h: Value) -> tuple[Value, ...]:
    """h' = z * h + (1 - z) * g(part of the data + what the reset gate leaves of the hidden part)"""
    f, g = p.activations
    limit, after = p.op["clip"], bool(p.op["linear_before_reset"])
    xz, xr, xh = _split_gates(p, sums, 3)
    hz, hr, *hh = _split_gates(p, p.recurrent(h, 0, 3), 3) if after else _split_gates(p, p.recurrent(h, 0, 2), 2)
    z, r = f(_clip_symmetric(xz + hz, limit)), f(_clip_symmetric(xr + hr, limit))
    new = g(_clip_symmetric(xh + (r * hh[0] if after else p.recurrent(r * h, 2, 1)), limit))
    return (z * h + (1.0 - z) * new,)


def _lstm(p: Parts, sums: Value, h: Value, c: Value) -> tuple[Value, ...]:
    """c' = f * c + i * g(cell part), h' = o * last(c'); the order of gates is input, output, forget, cell."""
    f, g, last = p.activations
    gates = _split_gates(p, sums + p.recurrent(h, 0, 4), 4)

    def total(gate: int, cell: Value) -> Value:
        found = gates[gate] + p.peepholes[gate] * cell if gate < len(p.peepholes) else gates[gate]
        if p.norms:
            factor, added = p.norms[gate]
            even = found - reduce("ReduceMean", found, [1])
            found = even / sqrt(reduce("ReduceMean", square(even), [1]) + _EPSILON) * factor
            found = found if added is None else found + added
        return _clip_symmetric(found, p.op["clip"])

    enters = f(total(0, c))
    stays = 1.0 - enters if p.op["input_forget"] else f(total(2, c))
    new = _clip_symmetric(stays * c + enters * g(total(3, c)), p.op["cell_clip"])
    hidden = f(total(1, new)) * last(new)
    if p.projected is not None:
        hidden = _clip_symmetric(p.projected(hidden), p.op["projection_clip"])
    return hidden, new


def _split_gates(p: Parts, value: Value, count: int) -> list[Value]:
    """The parts of so many gates, along the last axis."""
    if isinstance(value, np.ndarray):
        return np.split(value, count, axis=1)
    found: list[Value] = apply("Split", value, np.full(count, int(p.op["hidden_size"])), outputs=count, axis=1)
    return found


def _clip_symmetric(value: Value, limit: Any) -> Value:
    return clip(value, -float(limit), float(limit)) if float(limit) > 0 else value


class Cell(NamedTuple):
    """A recurrence.

    Attributes:
        gates: how many matrices stand one above the other in the weights: LSTM input, output, forget, cell; GRU update, reset, hidden.
        states: how many values go from step to step: the hidden ones, and of an LSTM the cell.
        activations: of one direction, where an operator names none.
        step: gives the next value of each state: (parts, the sums of the step's data with the weights of all gates and their bias, (rows,
            gates * cells), the hidden values, (rows, values), and of an LSTM the cell).
    """

    gates: int
    states: int
    activations: tuple[str, ...]
    step: Callable[..., tuple[Value, ...]]


CELLS: Mapping[str, Cell] = {
    "LSTM": Cell(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm),
    "GRU": Cell(3, 1, ("Sigmoid", "Tanh"), _gru),
    "RNN": Cell(1, 1, ("Tanh",), _rnn),
}

#: The inputs of an LSTM that ONNX's does not have: weights of a projection, its bias, and layer normalizations of the gates.
PROJECTION, PROJECTION_BIAS, NORM = 8, 9, 10
ONNX_ACTIVATIONS = frozenset(ACTIVATIONS) - {"Relu6", "ReluN1To1"}
#: Activations that take an alpha, and a beta.
_WITH_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_WITH_BETA = ("Affine", "ScaledTanh", "HardSigmoid")


def activation_names(op: Op, cell: Cell | None = None) -> tuple[str, ...]:
    """The activations of all directions, one after the other; a kind of a plugin names the cell that it has."""
    return tuple(op["activations"]) or (cell or CELLS[op.kind]).activations * _directions(op)


def resets_before_product(op: Op) -> bool:
    """Whether the reset gate of a GRU multiplies the hidden values before their product with the weights."""
    return op.kind == "GRU" and not op["linear_before_reset"]


def _directions(op: Op) -> int:
    return 2 if op["direction"] == "bidirectional" else 1


def _stated_activations(op: Op, cell: Cell) -> list[list[tuple[str, float, float]]]:
    """The activations of each direction: name, alpha and beta. These stand in a list for those alone that take one."""
    alphas, betas = list(op["activation_alpha"]), list(op["activation_beta"])
    found: list[tuple[str, float, float]] = []
    for name in activation_names(op, cell):
        match = next(known for known in ACTIVATIONS if known.lower() == name.lower())
        alpha, beta, _ = ACTIVATIONS[match]
        if match in _WITH_ALPHA and alphas:
            alpha = float(alphas.pop(0))
        if match in _WITH_BETA and betas:
            beta = float(betas.pop(0))
        found.append((match, alpha, beta))
    count = len(cell.activations)
    return [found[index : index + count] for index in range(0, len(found), count)]


def activations_of(op: Op, cell: Cell) -> list[list[Activation]]:
    """The functions of each direction."""
    return [[partial(_apply_activation, *item) for item in direction] for direction in _stated_activations(op, cell)]


def _apply_activation(name: str, alpha: float, beta: float, x: Value) -> Value:
    return ACTIVATIONS[name][2](x, alpha, beta)


#: The inputs that the states begin with, hidden and cell.
_STATES = (5, 6)


def cell_of(op: Op) -> Cell:
    """The cell of a recurrence."""
    return CELLS[op.kind]


def _shape(cell: Cell, op: Op, s: ShapeContext) -> Shapes:
    """Y: all hidden states; Y_h and Y_c: the last ones."""
    unknown = [name for name in op["activations"] if name.lower() not in {known.lower() for known in ACTIVATIONS}]
    if unknown:
        raise failure(op, f"{unknown[0]!r} is not an activation of a recurrent operator", rule="unknown-activation")
    count = _directions(op)
    if op["activations"] and len(op["activations"]) != len(cell.activations) * count:
        raise failure(op, f"has {len(op['activations'])} activations, not {len(cell.activations) * count}", rule="counts-differ")
    hidden = int(op["hidden_size"])
    if hidden < 1:
        raise failure(op, f"has {hidden} cells", rule="not-positive")
    data = s.known_shape(0)
    if len(data) != 3:
        raise failure(op, f"takes sequences of rank 3, not of shape {data}", rule="wrong-rank")
    width = _width(op, s, hidden)
    _require_weights(cell, op, s, (count, hidden, width, data[2]))
    _require_states(cell, op, s, count)
    first, second = data[:2]
    if op["layout"]:
        found = [(first, second, count, width), (first, count, width), (first, count, hidden)]
    else:
        found = [(first, count, second, width), (count, second, width), (count, second, hidden)]
    return list(found[: len(op.outputs)])


def _width(op: Op, s: ShapeContext, hidden: int) -> Size:
    """How many values a step gives: as many as there are cells, or what the projection makes of them."""
    if not s.has(PROJECTION):
        if s.has(PROJECTION_BIAS) or op.attributes.get("projection_clip"):
            raise failure(op, "has a bias or a limit of a projection, without a projection", rule="incomplete-parameters")
        return hidden
    shape = s.shape(PROJECTION)
    return shape[1] if shape is not None and len(shape) == 3 else f"{op.inputs[PROJECTION]}/width"


def _require_states(cell: Cell, op: Op, s: ShapeContext, count: int) -> None:
    """Raises an error for first states that are not one of each direction."""
    for place in _STATES[: cell.states]:
        shape = s.shape(place) if s.has(place) else None
        if shape is None:
            continue
        directions = shape[1 if op["layout"] else 0] if len(shape) == 3 else None
        if len(shape) != 3 or (isinstance(directions, int) and directions != count):
            raise failure(op, f"begins with states of shape {shape}, in {count} directions", rule="shape-mismatch")


def _require_weights(cell: Cell, op: Op, s: ShapeContext, sizes: tuple[int, int, Size, Size]) -> None:
    """Raises an error for weights that do not fit (directions, cells, values a step gives, values a step takes)."""
    count, hidden, width, size = sizes
    rows = cell.gates * hidden
    wanted: list[tuple[int, tuple[Size, ...]]] = [(1, (count, rows, size)), (2, (count, rows, width)), (3, (count, 2 * rows))]
    if cell.states > 1:
        wanted += [(7, (count, 3 * hidden)), (PROJECTION, (count, width, hidden)), (PROJECTION_BIAS, (count, width)), (NORM, (count, rows))]
    for index, shape in wanted:
        stated = s.shape(index) if s.has(index) else None
        if not is_compatible(stated, shape):
            raise failure(op, f"has {op.inputs[index]!r} of shape {stated}, not {shape}", rule="shape-mismatch")


def _optional(call: Call, index: int, direction: int) -> Array | None:
    return call.values(index)[direction] if call.has(index) else None


def _parts(cell: Cell, call: Call, direction: int, activations: list[Activation]) -> tuple[Parts, Callable[[Array], Array]]:
    """What a direction computes with, and what makes the sums of the data."""
    op, gates = call.op, cell.gates
    w, r = call.values(1)[direction], call.values(2)[direction]
    found = _optional(call, 3, direction)
    bias, recurrent_bias = np.split(np.zeros(2 * len(w)) if found is None else found, 2)
    if cell.states > 1:  # an LSTM, where a normalization comes before the bias
        bias, recurrent_bias = bias + recurrent_bias, np.zeros(len(w))
    norm = _optional(call, NORM, direction)
    added = bias if norm is None else np.zeros(len(w))

    def product(values: Array, first: int, count: int) -> Array:
        size = len(r) // gates
        rows = slice(first * size, (first + count) * size)
        return np.asarray(rounded_rows(op, values) @ r[rows].T + recurrent_bias[rows])

    def sums(x: Array) -> Array:
        return np.asarray(x @ w.T + added)

    peepholes, matrix = _optional(call, 7, direction), _optional(call, PROJECTION, direction)
    more: dict[str, Any] = {}
    if peepholes is not None:
        more["peepholes"] = np.split(peepholes, 3)
    if norm is not None:
        more["norms"] = list(zip(np.split(norm, gates), np.split(bias, gates), strict=True))
    if matrix is not None:
        offset = _optional(call, PROJECTION_BIAS, direction)
        more["projected"] = lambda hidden: rounded_rows(op, hidden) @ matrix.T + (0.0 if offset is None else offset)
    return Parts(op, activations, product, **more), sums


def _swap_layout(states: Array, call: Call) -> Array:
    """Initial or last states, from the operator's layout to direction, batch, cells, or back."""
    return np.swapaxes(states, 0, 1) if call["layout"] else states


def _evaluate(cell: Cell, call: Call) -> list[Array]:
    """All steps of a recurrence, one after the other."""
    rounded = rounded_rows(call.op, call.values(0))
    data = np.swapaxes(rounded, 0, 1) if call["layout"] else rounded
    length, batch, _ = data.shape
    count, width = _directions(call.op), call.values(2).shape[2]
    lengths = np.array(call.ints(4)) if call.has(4) else np.full(batch, length)
    sizes = (width, int(call["hidden_size"]))[: cell.states]
    given = [_swap_layout(call.values(5 + i), call) if call.has(5 + i) else np.zeros((count, batch, size)) for i, size in enumerate(sizes)]
    results, last = np.zeros((length, count, batch, width)), [np.zeros((count, batch, size)) for size in sizes]
    for direction, functions in enumerate(activations_of(call.op, cell)):
        backwards = call["direction"] == "reverse" or direction == 1
        parts, sums = _parts(cell, call, direction, functions)
        values = tuple(item[direction] for item in given)
        for turn in range(length):
            active = turn < lengths
            place = np.where(active, lengths - 1 - turn, 0) if backwards else np.full(batch, turn)
            new = cell.step(parts, sums(data[place, np.arange(batch)]), *values)
            values = tuple(np.where(active[:, None], a, b) for a, b in zip(new, values, strict=True))
            results[place[active], direction, np.flatnonzero(active)] = values[0][active]
        for index, value in enumerate(values):
            last[index][direction] = value
    outputs = results.transpose(2, 0, 1, 3) if call["layout"] else results
    return [outputs, *(_swap_layout(value, call) for value in last)]


_COMMON: Mapping[str, AttributeSpec] = has(
    hidden_size=integer(),
    direction=choice(("forward", "reverse", "bidirectional"), "forward"),
    activations=texts(()),
    activation_alpha=numbers(()),
    activation_beta=numbers(()),
    clip=number(0.0),  # 0: none
    layout=flag(0),  # 1: the batch comes first
    arithmetic=choice(("", *sorted(OF_WHOLE_TENSORS), *OF_ROWS), ""),
)


def _rows(op: Op) -> dict[int, int]:
    """Where data, lengths and initial values have a row for each sample."""
    axis = 0 if op["layout"] else 1
    return {0: axis, 4: 0, 5: axis, 6: axis}


_TAKEN = "data parameter parameter parameter? index? data?"


def _recurrence(name: str, takes: str = _TAKEN, gives: str = "data? data?", *, types: str = "any any any any int32 any -> any",
                weights: tuple[int, ...] = (1, 2), peepholes: tuple[int, ...] = (), **attributes: AttributeSpec) -> Kind:  # fmt: skip
    """A recurrence, with the inputs that are weights of its products, and those that are multiplied element by element."""
    return Kind(
        name,
        takes,
        gives,
        samples=in_rows(_rows),
        bounds=any_value,
        products=products_of_rows(*weights),
        weights=tuple(sorted((*weights, *peepholes))),
        recurs=True,
        shape=partial(_shape, CELLS[name]),
        evaluate=partial(_evaluate, CELLS[name]),
        types=types,
        attributes=has(_COMMON, **attributes),
    )


KINDS = (
    # sequence, W, R, B, lengths, initial h, initial c, P, weights and bias of the projection, norms -> all h, last h, last c
    _recurrence(
        "LSTM",
        f"{_TAKEN} data? parameter? parameter? parameter? parameter?",
        "data? data? data?",
        types="any any any any int32 any any any any any any -> any",
        weights=(1, 2, 8),
        peepholes=(7,),
        # The largest magnitudes of the cell and of projected values; 0: any.
        input_forget=flag(0),
        cell_clip=number(0.0),
        projection_clip=number(0.0),
    ),
    _recurrence("GRU", linear_before_reset=flag(0)),
    _recurrence("RNN"),
)
