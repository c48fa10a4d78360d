"""LSTM of float data, over a sequence one way or both, or of one step: recurrences whose states are variables of their own.

A gate that TFLite couples (CIFG: the input gate is 1 - the forget gate) has the forget gate's values with the other sign, as ONNX couples
the forget gate to the input gate: 1 - sigmoid(x) is sigmoid(-x).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.arithmetic import GATES
from qconvert.formats.tflite.ops.sequences import (
    INTEGERS,
    Constant,
    Order,
    arithmetic_of,
    concat_steps,
    constant_int8,
    joined_gates,
    order_of,
    real_constant,
    require_float32,
    rounds_rows,
)
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction
from qconvert.graph import Array

#: The gates in the order of an LSTM's rows, and of its peepholes.
ROWS, PEEPHOLES = ("input", "output", "forget", "cell"), ("input", "output", "forget")
#: The inputs of one way through a sequence by what they are, in TFLite's order (lstm_shared.h); data stand in front, states after.
WAY = (
    *(f"{gate}_weights" for gate in GATES),
    *(f"{gate}_recurrent" for gate in GATES),
    *(f"{gate}_peephole" for gate in GATES if gate != "cell"),
    *(f"{gate}_bias" for gate in GATES),
    "projection_weights", "projection_bias",
)  # fmt: skip
#: The inputs of UNIDIRECTIONAL_SEQUENCE_LSTM and of LSTM; files from before layer normalizations have 20.
SEQUENCE = ("data", *WAY, "hidden", "cell", *(f"{gate}_norm" for gate in GATES))
#: The fewest inputs of one way, which no LSTM lacks.
_NEVER_ABSENT = frozenset(("forget_weights", "forget_recurrent", "forget_bias", "hidden", "cell"))
#: Types of data and weights. With integer weights the kernel rounds rows of data and hidden values when it runs (sequences.py).
REAL_LSTM = (("float32", "float32"), ("float32", "int8"))
#: The order of gates in the weights of the basic kernel (lstm_cell.h).
_BASIC_GATES = ("input", "cell", "forget", "output")
_BOTH_WAYS = (
    "data",
    *(f"forth/{role}" for role in WAY),
    *(f"back/{role}" for role in WAY),
    "forth/hidden", "forth/cell", "back/hidden", "back/cell", "aux",
    *(f"{way}/{gate}_aux" for way in ("forth", "back") for gate in GATES),
)  # fmt: skip
_WAYS = ("forth", "back")
#: Activation of the schema -> the activations of an LSTM. Without one (0) the kernel does not write what it gives.
ACTIVATIONS: Mapping[int, tuple[str, ...]] = {
    1: ("Sigmoid", "Relu", "Relu"),
    2: ("Sigmoid", "ReluN1To1", "ReluN1To1"),
    3: ("Sigmoid", "Relu6", "Relu6"),
    4: (),
}


@dataclass(frozen=True, slots=True)
class _Sizes:
    cells: int
    width: int
    inputs: int
    aux: int


def read_float_lstm(r: Reading, places: dict[str, int]) -> None:
    """UNIDIRECTIONAL_SEQUENCE_LSTM.

    Args:
        r: the operator.
        places: its inputs by what they are; those alone that are there.
    """
    require_float32(r, (0,), (places["hidden"], places["cell"]))
    order = order_of(r)
    order.show(r, _read_way(r, places, order, order.read_time_first(r), "forward"))


def read_float_step(r: Reading, order: Order) -> None:
    """LSTM of the full kernel: one step, whose inputs are those of UNIDIRECTIONAL_SEQUENCE_LSTM."""
    places = {role: place for place, role in enumerate(SEQUENCE) if place < len(r.inputs) and r.inputs[place]}
    _require_real(r, places)
    require_float32(r, (0,), (places["hidden"], places["cell"]))
    order.show(r, _read_way(r, places, order, order.read_time_first(r), "forward"))


def read_both_ways_lstm(r: Reading) -> None:
    """BIDIRECTIONAL_SEQUENCE_LSTM: an LSTM each way.

    An auxiliary input stands next to the data; without weights of its own it is what the way back takes.
    """
    places = {role: place for place, role in enumerate(_BOTH_WAYS) if place < len(r.inputs) and r.inputs[place]}
    order, merged = order_of(r), bool(r.option("mergeOutputs", False))
    if len(r.outputs) != 2 - merged:
        raise r.invalid(f"has {len(r.outputs)} outputs, not {2 - merged}", rule="wrong-number-of-tensors")
    if merged and order.form == "rows" and order.rows > 1:
        raise r.unsupported_error(
            "the batch first and merged outputs, for which its kernel reads states outside of their tensors,", rule="misread-by-kernel"
        )
    own = {way: {role.removeprefix(f"{way}/"): place for role, place in places.items() if role.startswith(f"{way}/")} for way in _WAYS}
    for way in _WAYS:
        _require_real(r, own[way])
    aux = [place for role, place in places.items() if role == "aux"]
    require_float32(r, (0, *aux), tuple(own[way][state] for way in _WAYS for state in ("hidden", "cell")))
    given = {"forth": order.read_time_first(r), "back": ""}
    given["back"] = given["forth"]
    if "aux" in places:
        auxiliary = order.read_time_first(r, places["aux"])
        if any(role.endswith("_aux") for role in places):
            given = dict.fromkeys(given, concat_steps(r, given["forth"], auxiliary))
        else:
            given["back"] = auxiliary
    found = [_read_way(r, own[way], order, given[way], direction) for way, direction in (("forth", "forward"), ("back", "reverse"))]
    if merged:
        found = [concat_steps(r, *found)]
    for output, whole in enumerate(found):
        order.show(r, whole, output)


def _read_way(r: Reading, places: dict[str, int], order: Order, data: str, direction: str) -> str:
    """Adds an LSTM; returns the name of all its results, of shape (steps, 1, rows, values)."""
    _require_whole(r, places)
    sizes = _sizes(r, places, data)
    attributes: dict[str, Any] = {}
    if (limit := r.option("cellClip", 0.0)) > 0:
        attributes["cell_clip"] = float(limit)
    if (limit := r.option("projClip", 0.0)) > 0 and "projection_weights" in places:
        attributes["projection_clip"] = float(limit)
    if direction != "forward":
        attributes["direction"] = direction
    if activations := ACTIVATIONS[int(r.option("fusedActivationFunction", 0))]:
        attributes["activations"] = activations
    if "input_weights" not in places:
        attributes["input_forget"] = 1
    if rounds_rows(r, places["forget_weights"]):
        attributes["arithmetic"] = arithmetic_of(r)
    return _emit(r, (places["hidden"], places["cell"]), order, data, sizes, _constants(r, places, sizes), attributes)


def read_float_basic(r: Reading, order: Order) -> None:
    """LSTM of the basic kernel, with weights of all gates in one, side by side for data and hidden values; it looks at no options."""
    require_float32(r, (0,), (1, 4))
    cells, inputs = math.prod(r.static_shape(3)) // 4, r.static_shape(0)[1]
    split = np.split(real_constant(r, 2, (4 * cells, inputs + cells)), 4)
    biases = np.split(real_constant(r, 3, (4 * cells,)), 4)
    joined, bias = (
        np.concatenate([parts[_BASIC_GATES.index(gate)] for gate in ROWS]) for parts in (split, biases)
    )  # fmt: skip
    found = {"W": joined[:, :inputs], "R": joined[:, inputs:], "B": np.concatenate([bias, np.zeros_like(bias)])}
    constants: dict[str, Constant | None] = {hint: (data, None) for hint, data in found.items()}
    order.show(r, _emit(r, (1, 4), order, order.read_time_first(r), _Sizes(cells, cells, inputs, 0), constants, {}))


def _emit(
    r: Reading,
    variables: tuple[int, int],
    order: Order,
    data: str,
    sizes: _Sizes,
    constants: Mapping[str, Constant | None],
    attributes: dict[str, Any],
) -> str:
    """Adds an LSTM between its states, whose places are those of hidden values and cell; returns the name of all its results."""
    names = {hint: r.const(found[0][None], hint, found[1]) for hint, found in constants.items() if found is not None}
    inputs = [data, names["W"], names["R"], names["B"], "", *variables, *(names.get(hint, "") for hint in ("P", "PW", "PB", "N"))]
    while inputs[-1] == "":
        inputs.pop()
    whole = r.intermediate("all", "float32", (order.steps, 1, order.rows, sizes.width))
    states, shapes = dict(zip(("hidden", "cell"), variables, strict=True)), [(1, order.rows, size) for size in (sizes.width, sizes.cells)]
    r.emit_with_states("LSTM", inputs, [whole], states, shapes, hidden_size=sizes.cells, **attributes)
    return whole


def _require_real(r: Reading, places: dict[str, int]) -> None:
    """Raises an error if an input of every LSTM is absent, data are not float32, or weights are neither float32 nor int8."""
    if not places.keys() >= _NEVER_ABSENT:
        raise r.invalid(f"has no {min(_NEVER_ABSENT - places.keys())}", rule="input-missing")
    types = r.tensor(0).dtype, r.tensor(places["forget_weights"]).dtype
    if types not in REAL_LSTM:
        raise r.unsupported_error(f"data of {types[0]} and weights of {types[1]}, not float32, nor float32 and int8,", rule="operand-types")
    if types[1] == "int8" and any(role.endswith("_aux") for role in places):
        raise r.unsupported_error(
            "integer weights and an auxiliary input, whose rows have dynamic ranges of their own,", rule="form-not-covered"
        )


def _require_whole(r: Reading, places: dict[str, int]) -> None:
    """Raises an error for gates with something missing, and an activation that the kernel does not have."""
    if (code := r.option("fusedActivationFunction", 0)) not in ACTIVATIONS:
        raise r.unsupported_error(
            f"fused activation number {code}" if code else "no activation, without which its kernel computes no values,",
            rule="activation-not-covered",
        )
    gates = GATES if "input_weights" in places else tuple(gate for gate in GATES if gate != "input")
    for what in ("weights", "recurrent", "bias", "peephole", "norm", "aux"):
        own = [gate for gate in gates if what != "peephole" or gate != "cell"]
        seen = [gate for gate in GATES if f"{gate}_{what}" in places]
        if (seen and seen != own) or (not seen and what in ("weights", "recurrent", "bias")):
            missing = [gate for gate in own if gate not in seen]
            raise r.invalid(
                f"has no {missing[0]}_{what}" if missing else f"has input_{what} and no input_weights", rule="incomplete-parameters"
            )
    if "projection_bias" in places and "projection_weights" not in places:
        raise r.invalid("has a bias of a projection, and no projection", rule="incomplete-parameters")


def _sizes(r: Reading, places: dict[str, int], data: str) -> _Sizes:
    """How many cells there are, and how many values a step gives and takes."""
    cells, recurrent = math.prod(r.static_shape(places["forget_bias"])), r.static_shape(places["forget_recurrent"])
    inputs = (r.lookup(data).static_shape or (0,))[-1]
    if len(recurrent) != 2 or not cells or not recurrent[1]:
        raise r.invalid(f"has {r.inputs[places['forget_recurrent']]!r} of shape {recurrent} and {cells} cells", rule="shape-mismatch")
    if "projection_weights" not in places and recurrent != (cells, cells):
        raise r.invalid(f"has {r.inputs[places['forget_recurrent']]!r} of shape {recurrent}, not {(cells, cells)}", rule="shape-mismatch")
    aux = r.static_shape(places["forget_aux"]) if "forget_aux" in places else (cells, 0)
    if len(aux) != 2 or aux[1] > inputs:
        raise r.invalid(f"has {r.inputs[places['forget_aux']]!r} of shape {aux} for {inputs} values a step", rule="shape-mismatch")
    return _Sizes(cells, recurrent[1], inputs - aux[1], aux[1])


def _constants(r: Reading, places: dict[str, int], sizes: _Sizes) -> dict[str, Constant | None]:
    """The weights of an LSTM by the names of its inputs, without the axis of directions."""
    cells, width = sizes.cells, sizes.width
    rounds = rounds_rows(r, places["forget_weights"])

    def read_rows(what: str, shape: tuple[int, ...], gates: tuple[str, ...] = ROWS) -> Constant | None:
        if f"forget_{what}" not in places:
            return None
        own = {gate: place for gate in gates if (place := places.get(f"{gate}_{what}")) is not None}
        if rounds and what in INTEGERS:
            return joined_gates(r, own, shape, gates)
        found = {gate: real_constant(r, place, shape) for gate, place in own.items()}
        return np.concatenate([found[gate] if gate in found else _couple_input_gate(found["forget"], what) for gate in gates]), None

    def read_single(role: str, shape: tuple[int, ...]) -> Constant | None:
        if role not in places:
            return None
        return constant_int8(r, places[role], shape) if rounds and role in INTEGERS else (real_constant(r, places[role], shape), None)

    weights, aux_weights = read_rows("weights", (cells, sizes.inputs)), read_rows("aux", (cells, sizes.aux))
    bias = read_rows("bias", (cells,))
    assert weights is not None and bias is not None
    return {
        "W": weights if aux_weights is None else (np.concatenate([weights[0], aux_weights[0]], axis=1), None),
        "R": read_rows("recurrent", (cells, width)),
        "B": (np.concatenate([bias[0], np.zeros_like(bias[0])]), None),
        "P": read_rows("peephole", (cells,), PEEPHOLES),
        "PW": read_single("projection_weights", (width, cells)),
        "PB": read_single("projection_bias", (width,)),
        "N": read_rows("norm", (cells,)),
    }


def _couple_input_gate(forget: Array, what: str) -> Array:
    """Weights of an input gate that is 1 - the forget gate: negated, but for those of a normalization, which commutes with the sign."""
    return forget if what == "norm" else -forget


#: The other operators, which may be of integers, are read by lstm.py.
READERS: dict[str, ReadFunction] = {"BIDIRECTIONAL_SEQUENCE_LSTM": read_both_ways_lstm}

#: An LSTM is written by lstm_writing.py.
WRITERS: dict[str, WriteFunction] = {}
