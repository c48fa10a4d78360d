"""LSTM, GRU and RNN: recurrences over a sequence, whose steps cells.py has.

With an `arithmetic` of dynamic range they have integer weights with float data, and round what these are multiplied with: the data, and
the hidden values of each step before they go into the next. Where that goes by the range of the whole tensor, it is the whole sequence for
the data, and all rows of one step for the hidden values; else it is a row of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic import OF_ROWS, OF_WHOLE_TENSORS
from qconvert.arithmetic.dtypes import Array
from qconvert.graph.schema import Op
from qconvert.operators.attributes import AttributeSpec, choice, flag, has, integer, number, numbers, texts
from qconvert.operators.bounds import any_value
from qconvert.operators.call import Call
from qconvert.operators.kind import kind
from qconvert.operators.products import products_of_rows, rounded_rows
from qconvert.operators.recurrent_cells import ACTIVATIONS, CELLS, Activation, Cell, Parts
from qconvert.operators.samples import in_rows
from qconvert.operators.sizes import Result as Shapes
from qconvert.operators.sizes import ShapeContext, Size, failure
from qconvert.operators.values import Value

__all__ = [
    "KINDS",
    "NORM",
    "ONNX_ACTIVATIONS",
    "PROJECTION",
    "PROJECTION_BIAS",
    "activation_names",
    "activations_of",
    "stated_activations",
]

#: The inputs of an LSTM that ONNX's does not have: weights of a projection, its bias, and layer normalizations of the gates.
PROJECTION, PROJECTION_BIAS, NORM = 8, 9, 10
ONNX_ACTIVATIONS = frozenset(ACTIVATIONS) - {"Relu6", "ReluN1To1"}
#: Activations that take an alpha, and a beta.
_WITH_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_WITH_BETA = ("Affine", "ScaledTanh", "HardSigmoid")


def activation_names(op: Op, cell: Cell | None = None) -> tuple[str, ...]:
    """The activations of all directions, one after the other."""
    return tuple(op["activations"]) or (cell or CELLS[op.kind]).activations * _directions(op)


def _directions(op: Op) -> int:
    return 2 if op["direction"] == "bidirectional" else 1


def stated_activations(op: Op, cell: Cell | None = None) -> list[list[tuple[str, float, float]]]:
    """The activations of each direction: name, alpha and beta. These stand in a list for those alone that take one."""
    cell = cell or CELLS[op.kind]
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


def activations_of(op: Op, cell: Cell | None = None) -> list[list[Activation]]:
    """The functions of each direction."""
    return [[partial(_apply_activation, *item) for item in direction] for direction in stated_activations(op, cell)]


def _apply_activation(name: str, alpha: float, beta: float, x: Value) -> Value:
    return ACTIVATIONS[name][2](x, alpha, beta)


#: The inputs that the states begin with, hidden and cell.
_STATES = (5, 6)


def _shape(cell: Cell, op: Op, s: ShapeContext) -> Shapes:
    """Y: all hidden states; Y_h and Y_c: the last ones."""
    unknown = [name for name in op["activations"] if name.lower() not in {known.lower() for known in ACTIVATIONS}]
    if unknown:
        raise failure(op, f"{unknown[0]!r} is not an activation of a recurrent operator", rule="unknown-activation")
    count = _directions(op)
    if op["activations"] and len(op["activations"]) != len(cell.activations) * count:
        raise failure(op, f"has {len(op['activations'])} activations, not {len(cell.activations) * count}", rule="counts-differ")
    hidden, data = int(op["hidden_size"]), s.shape(0)
    if hidden < 1:
        raise failure(op, f"has {hidden} cells", rule="not-positive")
    if data is None:
        return [None] * len(op.outputs)
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
        if stated is not None and (
            len(stated) != len(shape)
            or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(stated, shape, strict=True))
        ):
            raise failure(op, f"has {op.inputs[index]!r} of shape {stated}, not {shape}", rule="shape-mismatch")


def _optional(call: Call, index: int, direction: int) -> Array | None:
    return call.values(index)[direction] if call.has(index) else None


def _parts(cell: Cell, call: Call, direction: int, activations: list[Activation]) -> tuple[Parts, Callable[[Array], Array]]:
    """What a direction computes with, and what makes the sums of the data."""
    op, gates = call.op, cell.gates
    w, r = call.values(1)[direction], call.values(2)[direction]
    found = _optional(call, 3, direction)
    bias, own = np.split(np.zeros(2 * len(w)) if found is None else found, 2)
    if cell.states > 1:  # an LSTM, where a normalization comes before the bias
        bias, own = bias + own, np.zeros(len(w))
    norm = _optional(call, NORM, direction)
    added = bias if norm is None else np.zeros(len(w))

    def product(values: Array, first: int, count: int) -> Array:
        size = len(r) // gates
        rows = slice(first * size, (first + count) * size)
        return np.asarray(rounded_rows(op, values) @ r[rows].T + own[rows])

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


KINDS = (
    # sequence, W, R, B, lengths, initial h, initial c, P, weights and bias of the projection, norms -> all h, last h, last c
    kind(
        "LSTM",
        "data parameter parameter parameter? index? data? data? parameter? parameter? parameter? parameter?",
        "data? data? data?",
        samples=in_rows(_rows),
        bounds=any_value,
        products=products_of_rows(1, 2, 8),
        weights=(1, 2, 7, 8),
        shape=partial(_shape, CELLS["LSTM"]),
        evaluate=partial(_evaluate, CELLS["LSTM"]),
        types="any any any any int32 any any any any any any -> any",
        # The largest magnitudes of the cell and of projected values; 0: any.
        attributes=has(_COMMON, input_forget=flag(0), cell_clip=number(0.0), projection_clip=number(0.0)),
    ),
    kind(
        "GRU",
        "data parameter parameter parameter? index? data?",
        "data? data?",
        samples=in_rows(_rows),
        bounds=any_value,
        products=products_of_rows(1, 2),
        weights=(1, 2),
        shape=partial(_shape, CELLS["GRU"]),
        evaluate=partial(_evaluate, CELLS["GRU"]),
        types="any any any any int32 any -> any",
        attributes=has(_COMMON, linear_before_reset=flag(0)),
    ),
    kind(
        "RNN",
        "data parameter parameter parameter? index? data?",
        "data? data?",
        samples=in_rows(_rows),
        bounds=any_value,
        products=products_of_rows(1, 2),
        weights=(1, 2),
        shape=partial(_shape, CELLS["RNN"]),
        evaluate=partial(_evaluate, CELLS["RNN"]),
        types="any any any any int32 any -> any",
        attributes=has(_COMMON),
    ),
)
