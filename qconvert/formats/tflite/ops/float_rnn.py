"""RNN of float data, over a sequence one way or both, or of one step: recurrences whose state is a variable of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from qconvert.formats.tflite.ops.sequences import (
    Constant,
    Frame,
    Order,
    both_biases,
    concat_steps,
    emit_recurrence,
    find_opposite_direction,
    order_of,
    order_of_both_ways,
    real_constant,
    require_float32,
    require_writable,
    single_step,
    state_of,
    sum_biases,
)
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op

_HIDDEN, _AUX = 5, 9
_SAME: Mapping[str, Any] = {"activations": ("Affine",), "activation_alpha": (1.0,), "activation_beta": (0.0,)}
#: Activation of the schema -> the attributes of an RNN, whose clip limits what goes into its activation.
_ACTIVATIONS: Mapping[int, Mapping[str, Any]] = {
    0: _SAME,
    1: {"activations": ("Relu",)},
    2: {**_SAME, "clip": 1.0},
    3: {"activations": ("Relu",), "clip": 6.0},
    4: {},
}
_STATED = ("activations", "activation_alpha", "activation_beta", "clip")


def _read_one_way(find_order: Callable[[Reading], Order], r: Reading) -> None:
    require_float32(r, (0,), (4,))
    order = find_order(r)
    order.show(r, _read_way(r, order, order.read_time_first(r), 1))


def read_both_ways_rnn(r: Reading) -> None:
    """An RNN each way, and what its kernel does with an auxiliary input: see _both_data()."""
    order = order_of_both_ways(r)
    if r.has(_AUX + 1) != r.has(_AUX + 2) or (r.has(_AUX + 1) and not r.has(_AUX)):
        raise r.invalid("has weights of an auxiliary input for one direction only, or no such input", rule="incomplete-parameters")
    require_float32(r, (0, _AUX) if r.has(_AUX) else (0,), (4, 8))
    forth, back = _both_data(r, order)
    aux = (_AUX + 1, _AUX + 2) if r.has(_AUX + 1) else (0, 0)
    order.show(r, _read_way(r, order, forth, 1, aux[0]), _read_way(r, order, back, 5, aux[1], direction="reverse"))


def _both_data(r: Reading, order: Order) -> tuple[str, str]:
    """What each way goes through.

    An auxiliary input stands next to the data. Without weights of its own it is what the way back takes, but only where steps come
    first: with rows in front the kernel takes the data, and with steps in front it goes through an auxiliary input as if that had the
    size of the data (EvalFloat, kernels/bidirectional_sequence_rnn.cc).
    """
    data = order.read_time_first(r)
    if not r.has(_AUX):
        return data, data
    if not r.has(_AUX + 1):
        return data, order.read_time_first(r, _AUX) if order.form == "steps" else data
    if order.form == "steps" and r.static_shape(_AUX) != r.static_shape(0):
        raise r.unsupported_error(
            "time first and an auxiliary input of another size than its data, which its kernel reads from wrong offsets,",
            rule="misread-by-kernel",
        )
    joined = concat_steps(r, data, order.read_time_first(r, _AUX))
    return joined, joined


def _read_way(r: Reading, order: Order, data: str, first: int, aux: int = 0, direction: str = "forward") -> str:
    """Adds an RNN; returns the name of all its results, of shape (steps, 1, rows, values).

    Args:
        r: the operator.
        order: that of its data.
        data: with steps in front.
        first: the place of its weights; those for hidden values, the bias and the variable stand after.
        aux: the place of weights for values of an auxiliary input, which stand after the data's; 0 without.
        direction: "forward" or "reverse".
    """
    types = r.tensor(0).dtype, r.tensor(first).dtype
    if types != ("float32", "float32"):
        raise r.unsupported_error(f"data of {types[0]} and weights of {types[1]}, not float32,", rule="operand-types")
    if (code := int(r.option("fusedActivationFunction", 0))) not in _ACTIVATIONS:
        raise r.unsupported_error(f"fused activation number {code}", rule="activation-not-covered")
    shape, size = r.static_shape(first), (r.lookup(data).static_shape or (0,))[-1]
    aux_size = r.static_shape(aux)[-1] if aux else 0
    if len(shape) != 2 or not shape[0]:
        raise r.invalid(f"has {r.inputs[first]!r} of shape {shape}", rule="wrong-rank")
    cells = shape[0]
    weights = real_constant(r, first, (cells, size - aux_size))
    if aux:
        weights = np.concatenate([weights, real_constant(r, aux, (cells, aux_size))], axis=1)
    bias = real_constant(r, first + 2, (cells,))
    parts = {"W": weights, "R": real_constant(r, first + 1, (cells, cells)), "B": both_biases(bias)}
    constants: dict[str, Constant | None] = {hint: (part, None) for hint, part in parts.items()}
    way = {"direction": direction} if direction != "forward" else {}
    states = {"hidden": (first + 3, cells)}
    return emit_recurrence(r, "RNN", order, data, constants, states, hidden_size=cells, **way, **_ACTIVATIONS[code])


def write_rnn(op: Op, w: Writing) -> None:
    """Of one direction, with a state that goes on from run to run; two over the same data, one each way, are one operator."""
    other = find_opposite_direction(w, op, _STATED)
    ways = [op] if other is None else sorted((op, other), key=lambda way: str(way["direction"]))
    for way in ways:
        require_writable(w, way)
    code = rnn_activation_code(op)
    if code is None:
        raise w.unsupported_error(
            op, f"activations {', '.join(op['activations'])} and a clip of {op['clip']}", rule="attribute-not-covered"
        )
    listed = [name for way in ways for name in _write_parameters(w, way)]
    frame = Frame(w, ways, [int(way["hidden_size"]) for way in ways])
    if other is not None:
        w.absorb(other)
        listed += ["", "", ""]
    frame.emit("RNN", listed, fusedActivationFunction=code)


def rnn_activation_code(op: Op) -> int | None:
    """The schema's activation that an RNN's attributes say; None for what TFLite's operator does not have."""
    stated = {name: op[name] for name in _STATED if op[name]}
    if stated.get("activations"):
        stated["activations"] = tuple(name.capitalize() for name in stated["activations"])
    if stated.get("activations") == ("Tanh",):
        del stated["activations"]
    return next((code for code, known in _ACTIVATIONS.items() if dict(known) == stated), None)


def _write_parameters(w: Writing, op: Op) -> list[str]:
    """Weights, bias and variable of one way, in TFLite's order."""
    hint = next(filter(None, op.outputs))
    names = [w.const(w.constant(op, index)[0], f"{hint}/{word}") for index, word in ((1, "weights"), (2, "recurrent"))]
    bias = w.const(sum_biases(w, op, int(op["hidden_size"])), f"{hint}/bias")
    return [*names, bias, state_of(w, op, _HIDDEN)]


READERS: Readers = {
    "UNIDIRECTIONAL_SEQUENCE_RNN": partial(_read_one_way, order_of),
    "RNN": partial(_read_one_way, single_step),
    "BIDIRECTIONAL_SEQUENCE_RNN": read_both_ways_rnn,
}

WRITERS: Writers = {"RNN": write_rnn}
