"""LSTM, GRU and RNN: recurrences over a sequence, as ONNX defines them (LSTM-22, GRU-22, RNN-22), and what TFLite's LSTM has besides.

That is a limit of the cell, a projection of the hidden values with a limit of its own, and a layer normalization of each gate's sum:
what goes into a gate's activation is then norm * (sum - mean) / sqrt(variance + 1e-8) + bias, the sum being that of data, hidden values and
peephole (TFLite, kernels/lstm_eval.cc).

With an `arithmetic` of dynamic range they have integer weights with float data, and round what these are multiplied with: the data, and
the hidden values of each step before they go into the next. Where that goes by the range of the whole tensor, it is the whole sequence for
the data, and all rows of one step for the hidden values; else it is a row of one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from qconvert.operators.samples import in_rows
from qconvert.operators.sizes import Result as Shapes
from qconvert.operators.sizes import ShapeContext, Size, failure

__all__ = [
    "ACTIVATIONS",
    "GATES",
    "KINDS",
    "NORM",
    "ONNX_ACTIVATIONS",
    "PROJECTION",
    "PROJECTION_BIAS",
    "activation_names",
    "stated_activations",
]

#: How many matrices stand one above the other in the weights: LSTM input, output, forget, cell; GRU update, reset, hidden.
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
#: The inputs of an LSTM that ONNX's does not have: weights of a projection, its bias, and layer normalizations of the gates.
PROJECTION, PROJECTION_BIAS, NORM = 8, 9, 10
#: What TFLite's kernel adds to a variance (MeanStddevNormalization, kernels/internal/reference/portable_tensor_utils.cc).
_EPSILON = 1e-8
#: The activations of one direction where an operator names none.
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


#: Activation -> alpha and beta by default, and the function: those of ONNX (operator LSTM, "activations"), then those of TFLite alone.
ACTIVATIONS: Mapping[str, tuple[float, float, Callable[[Array, float, float], Array]]] = {
    "Relu": (0, 0, lambda x, a, b: np.maximum(x, 0)),
    "Tanh": (0, 0, lambda x, a, b: np.tanh(x)),
    "Sigmoid": (0, 0, lambda x, a, b: _sigmoid(x)),
    "Affine": (1, 0, lambda x, a, b: a * x + b),
    "LeakyRelu": (0.01, 0, lambda x, a, b: np.where(x >= 0, x, a * x)),
    "ThresholdedRelu": (1, 0, lambda x, a, b: np.where(x > a, x, 0)),
    "ScaledTanh": (1, 1, lambda x, a, b: a * np.tanh(b * x)),
    "HardSigmoid": (0.2, 0.5, lambda x, a, b: np.clip(a * x + b, 0, 1)),
    "Elu": (1, 0, lambda x, a, b: np.where(x >= 0, x, a * (np.exp(x) - 1))),
    "Softsign": (0, 0, lambda x, a, b: x / (1 + np.abs(x))),
    "Softplus": (0, 0, lambda x, a, b: np.logaddexp(0, x)),
    "Relu6": (0, 0, lambda x, a, b: np.clip(x, 0, 6)),
    "ReluN1To1": (0, 0, lambda x, a, b: np.clip(x, -1, 1)),
}
ONNX_ACTIVATIONS = frozenset(ACTIVATIONS) - {"Relu6", "ReluN1To1"}
#: Activations that take an alpha, and a beta.
_WITH_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_WITH_BETA = ("Affine", "ScaledTanh", "HardSigmoid")


def activation_names(op: Op) -> tuple[str, ...]:
    """The activations of all directions, one after the other."""
    return tuple(op["activations"]) or _DEFAULTS[op.kind] * _directions(op)


def _directions(op: Op) -> int:
    return 2 if op["direction"] == "bidirectional" else 1


def stated_activations(op: Op) -> list[list[tuple[str, float, float]]]:
    """The activations of each direction: name, alpha and beta. These stand in a list for those alone that take one."""
    alphas, betas = list(op["activation_alpha"]), list(op["activation_beta"])
    found: list[tuple[str, float, float]] = []
    for name in activation_names(op):
        match = next(known for known in ACTIVATIONS if known.lower() == name.lower())
        alpha, beta, _ = ACTIVATIONS[match]
        if match in _WITH_ALPHA and alphas:
            alpha = float(alphas.pop(0))
        if match in _WITH_BETA and betas:
            beta = float(betas.pop(0))
        found.append((match, alpha, beta))
    count = len(_DEFAULTS[op.kind])
    return [found[index : index + count] for index in range(0, len(found), count)]


def _activations(op: Op) -> list[list[Callable[[Array], Array]]]:
    """The functions of each direction."""
    stated = stated_activations(op)
    return [[partial(_applied, ACTIVATIONS[name][2], alpha, beta) for name, alpha, beta in direction] for direction in stated]


def _applied(function: Callable[[Array, float, float], Array], alpha: float, beta: float, x: Array) -> Array:
    return function(x, alpha, beta)


#: The inputs that the states begin with, hidden and cell.
_STATES = (5, 6)


def _shape(op: Op, s: ShapeContext) -> Shapes:
    """Y: all hidden states; Y_h and Y_c: the last ones."""
    unknown = [name for name in op["activations"] if name.lower() not in {known.lower() for known in ACTIVATIONS}]
    if unknown:
        raise failure(op, f"{unknown[0]!r} is not an activation of a recurrent operator", rule="unknown-activation")
    count = _directions(op)
    if op["activations"] and len(op["activations"]) != len(_DEFAULTS[op.kind]) * count:
        raise failure(op, f"has {len(op['activations'])} activations, not {len(_DEFAULTS[op.kind]) * count}", rule="counts-differ")
    hidden, data = int(op["hidden_size"]), s.shape(0)
    if hidden < 1:
        raise failure(op, f"has {hidden} cells", rule="not-positive")
    if data is None:
        return [None] * len(op.outputs)
    if len(data) != 3:
        raise failure(op, f"takes sequences of rank 3, not of shape {data}", rule="wrong-rank")
    width = _width(op, s, hidden)
    _require_weights(op, s, (count, hidden, width, data[2]))
    _require_states(op, s, count)
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


def _require_states(op: Op, s: ShapeContext, count: int) -> None:
    """Raises an error for first states that are not one of each direction."""
    for place in _STATES[: 2 if op.kind == "LSTM" else 1]:
        shape = s.shape(place) if s.has(place) else None
        if shape is None:
            continue
        directions = shape[1 if op["layout"] else 0] if len(shape) == 3 else None
        if len(shape) != 3 or (isinstance(directions, int) and directions != count):
            raise failure(op, f"begins with states of shape {shape}, in {count} directions", rule="shape-mismatch")


def _require_weights(op: Op, s: ShapeContext, sizes: tuple[int, int, Size, Size]) -> None:
    """Raises an error for weights that do not fit (directions, cells, values a step gives, values a step takes)."""
    count, hidden, width, size = sizes
    rows = GATES[op.kind] * hidden
    wanted: list[tuple[int, tuple[Size, ...]]] = [(1, (count, rows, size)), (2, (count, rows, width)), (3, (count, 2 * rows))]
    if op.kind == "LSTM":
        wanted += [(7, (count, 3 * hidden)), (PROJECTION, (count, width, hidden)), (PROJECTION_BIAS, (count, width)), (NORM, (count, rows))]
    for index, shape in wanted:
        stated = s.shape(index) if s.has(index) else None
        if stated is not None and (
            len(stated) != len(shape)
            or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(stated, shape, strict=True))
        ):
            raise failure(op, f"has {op.inputs[index]!r} of shape {stated}, not {shape}", rule="shape-mismatch")


@dataclass(frozen=True, slots=True)
class _Weights:
    """Those of one direction.

    Attributes:
        w, r: rows of all gates, for the data and for the hidden values.
        bias: for the data, then for the hidden values.
        peepholes: of the gates input, output and forget.
        projection: weights and bias, or None.
        norm: of all gates, or None.
    """

    w: Array
    r: Array
    bias: Array
    peepholes: Array
    projection: tuple[Array, Array] | None
    norm: Array | None


def _optional(call: Call, index: int, shape: Sequence[int]) -> Array:
    return call.values(index) if call.has(index) else np.zeros(shape)


def _weights(call: Call, direction: int) -> _Weights:
    hidden, count = int(call["hidden_size"]), _directions(call.op)
    w, r = call.values(1)[direction], call.values(2)[direction]
    bias = _optional(call, 3, (count, 2 * len(w)))[direction]
    if call.op.kind != "LSTM":
        return _Weights(w, r, bias, np.zeros(0), None, None)
    projection = None
    if call.has(PROJECTION):
        projection = call.values(PROJECTION)[direction], _optional(call, PROJECTION_BIAS, (count, r.shape[1]))[direction]
    norm = call.values(NORM)[direction] if call.has(NORM) else None
    return _Weights(w, r, bias, _optional(call, 7, (count, 3 * hidden))[direction], projection, norm)


def _turned(states: Array, call: Call) -> Array:
    """Initial or last states, from the operator's layout to direction, batch, cells, or back."""
    return np.swapaxes(states, 0, 1) if call["layout"] else states


def _recurrence(step: Callable[..., tuple[Array, ...]], states: int) -> Callable[[Call], list[Array]]:
    """The evaluation of a recurrence from one step of it: (operator, data, direction's weights, activations, states) -> new states."""

    def evaluate(call: Call) -> list[Array]:
        rounded = rounded_rows(call.op, call.values(0))
        data = np.swapaxes(rounded, 0, 1) if call["layout"] else rounded
        length, batch, _ = data.shape
        count, width = _directions(call.op), call.values(2).shape[2]
        lengths = np.array(call.ints(4)) if call.has(4) else np.full(batch, length)
        sizes = (width, int(call["hidden_size"]))[:states]
        given = [_turned(call.values(5 + i), call) if call.has(5 + i) else np.zeros((count, batch, size)) for i, size in enumerate(sizes)]
        results, last = np.zeros((length, count, batch, width)), [np.zeros((count, batch, size)) for size in sizes]
        for direction, functions in enumerate(_activations(call.op)):
            backwards = call["direction"] == "reverse" or direction == 1
            weights = _weights(call, direction)
            values = tuple(item[direction] for item in given)
            for turn in range(length):
                active = turn < lengths
                place = np.where(active, lengths - 1 - turn, 0) if backwards else np.full(batch, turn)
                new = step(call.op, data[place, np.arange(batch)], weights, functions, values)
                values = tuple(np.where(active[:, None], a, b) for a, b in zip(new, values, strict=True))
                results[place[active], direction, np.flatnonzero(active)] = values[0][active]
            for index, value in enumerate(values):
                last[index][direction] = value
        outputs = results.transpose(2, 0, 1, 3) if call["layout"] else results
        return [outputs, *(_turned(value, call) for value in last)]

    return evaluate


def _clipped(op: Op, *values: Array) -> list[Array]:
    limit = float(op["clip"])
    return [np.clip(value, -limit, limit) if limit > 0 else value for value in values]


def _rnn_step(op: Op, x: Array, weights: _Weights, functions: Any, states: tuple[Array, ...]) -> tuple[Array, ...]:
    wb, rb = np.split(weights.bias, 2)
    (total,) = _clipped(op, x @ weights.w.T + rounded_rows(op, states[0]) @ weights.r.T + wb + rb)
    return (functions[0](total),)


def _gru_step(op: Op, x: Array, weights: _Weights, functions: Any, states: tuple[Array, ...]) -> tuple[Array, ...]:
    (h,), (f, g) = states, functions
    wb, rb = np.split(weights.bias, 2)
    xz, xr, xh = np.split(x @ weights.w.T + wb, 3, axis=1)
    rz, rr, rh = np.split(weights.r, 3)
    bz, br, bh = np.split(rb, 3)
    own = rounded_rows(op, h)
    z, reset = (f(total) for total in _clipped(op, xz + own @ rz.T + bz, xr + own @ rr.T + br))
    inner = reset * (own @ rh.T + bh) if op["linear_before_reset"] else rounded_rows(op, reset * h) @ rh.T + bh
    (total,) = _clipped(op, xh + inner)
    return ((1 - z) * g(total) + z * h,)


def _lstm_step(op: Op, x: Array, weights: _Weights, functions: Any, states: tuple[Array, ...]) -> tuple[Array, ...]:
    (h, c), (f, g, last) = states, functions
    sums = dict(zip(("i", "o", "f", "c"), np.split(x @ weights.w.T + rounded_rows(op, h) @ weights.r.T, 4, axis=1), strict=True))
    seen = dict(zip(("i", "o", "f"), np.split(weights.peepholes, 3), strict=True))
    biases = dict(zip(sums, np.split(sum(np.split(weights.bias, 2)), 4), strict=True))
    norms = None if weights.norm is None else dict(zip(sums, np.split(weights.norm, 4), strict=True))

    def gate(name: str, cell: Array) -> Array:
        total = sums[name] + seen[name] * cell if name in seen else sums[name]
        if norms is not None:
            total = norms[name] * (total - total.mean(axis=1, keepdims=True)) / np.sqrt(total.var(axis=1, keepdims=True) + _EPSILON)
        return _clipped(op, total + biases[name])[0]

    enters = f(gate("i", c))
    stays = 1 - enters if op["input_forget"] else f(gate("f", c))
    new = _limited(stays * c + enters * g(gate("c", c)), op["cell_clip"])
    hidden = f(gate("o", new)) * last(new)
    if weights.projection is not None:
        matrix, bias = weights.projection
        hidden = _limited(rounded_rows(op, hidden) @ matrix.T + bias, op["projection_clip"])
    return hidden, new


def _limited(values: Array, limit: Any) -> Array:
    return np.clip(values, -float(limit), float(limit)) if float(limit) else values


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
        shape=_shape,
        evaluate=_recurrence(_lstm_step, 2),
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
        shape=_shape,
        evaluate=_recurrence(_gru_step, 1),
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
        shape=_shape,
        evaluate=_recurrence(_rnn_step, 1),
        types="any any any any int32 any -> any",
        attributes=has(_COMMON),
    ),
)
