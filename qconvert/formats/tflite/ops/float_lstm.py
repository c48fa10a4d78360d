"""LSTM of float data, over a sequence one way or both, or of one step: recurrences whose states are variables of their own.

A gate that TFLite couples (CIFG: the input gate is 1 - the forget gate) has the forget gate's values with the other sign, as ONNX couples
the forget gate to the input gate: 1 - sigmoid(x) is sigmoid(-x).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic import BASIC_GATES, GATES
from qconvert.formats.tflite.ops.sequences import (
    Constant,
    Frame,
    Order,
    arithmetic_of,
    both_biases,
    concat_steps,
    constant_int8,
    emit_recurrence,
    find_opposite_direction,
    is_asymmetric,
    order_of,
    order_of_both_ways,
    real_constant,
    require_float32,
    require_writable,
    rounds_rows,
    state_of,
    sum_biases,
)
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op, Quantization
from qconvert.operators import integer_weights, is_dynamic
from qconvert.operators.recurrent import ACTIVATIONS, NORM, PROJECTION, PROJECTION_BIAS

#: The gates in the order of an LSTM's rows, and of its peepholes.
_ROWS, _PEEPHOLE_GATES = ("input", "output", "forget", "cell"), ("input", "output", "forget")
#: The inputs of an LSTM in the graph.
_HIDDEN, _CELL, _PEEPHOLES = 5, 6, 7
#: The inputs of one way through a sequence by what they are, in TFLite's order (lstm_shared.h); data stand in front, states after.
_WAY = (
    *(f"{gate}_weights" for gate in GATES),
    *(f"{gate}_recurrent" for gate in GATES),
    *(f"{gate}_peephole" for gate in GATES if gate != "cell"),
    *(f"{gate}_bias" for gate in GATES),
    "projection_weights", "projection_bias",
)  # fmt: skip
#: The inputs of UNIDIRECTIONAL_SEQUENCE_LSTM and of LSTM; files from before layer normalizations have 20.
SEQUENCE = ("data", *_WAY, "hidden", "cell", *(f"{gate}_norm" for gate in GATES))
#: The fewest inputs of one way, which no LSTM lacks.
_NEVER_ABSENT = frozenset(("forget_weights", "forget_recurrent", "forget_bias", "hidden", "cell"))
#: What is integers where weights are.
_INTEGERS = ("weights", "recurrent", "peephole", "projection_weights")
#: Types of data and weights. With integer weights the kernel rounds rows of data and hidden values when it runs (sequences.py).
REAL_LSTM = (("float32", "float32"), ("float32", "int8"))
_BOTH_WAYS = (
    "data",
    *(f"forth/{role}" for role in _WAY),
    *(f"back/{role}" for role in _WAY),
    "forth/hidden", "forth/cell", "back/hidden", "back/cell", "aux",
    *(f"{way}/{gate}_aux" for way in ("forth", "back") for gate in GATES),
)  # fmt: skip
_DIRECTIONS = {"forth": "forward", "back": "reverse"}
#: Activation of the schema -> the activations of an LSTM. Without one (0) the kernel does not write what it gives.
_ACTIVATIONS: Mapping[int, tuple[str, ...]] = {
    1: ("Sigmoid", "Relu", "Relu"),
    2: ("Sigmoid", "ReluN1To1", "ReluN1To1"),
    3: ("Sigmoid", "Relu6", "Relu6"),
    4: (),
}


class _Sizes(NamedTuple):
    cells: int
    width: int
    inputs: int
    aux: int


def _present_inputs(r: Reading, roles: Sequence[str]) -> dict[str, int]:
    """The inputs that are there by what they are."""
    return {role: place for place, role in enumerate(roles) if r.has(place)}


def read_float_lstm(r: Reading) -> None:
    """UNIDIRECTIONAL_SEQUENCE_LSTM of REAL_LSTM."""
    _read_one_way(r, _present_inputs(r, SEQUENCE))


def read_float_step(r: Reading, order: Order) -> None:
    """LSTM of the full kernel: one step, whose inputs are those of UNIDIRECTIONAL_SEQUENCE_LSTM."""
    places = _present_inputs(r, SEQUENCE)
    _require_real(r, places)
    _read_one_way(r, places, order)


def _read_one_way(r: Reading, places: dict[str, int], step: Order | None = None) -> None:
    require_float32(r, (0,), (places["hidden"], places["cell"]))
    order = order_of(r) if step is None else step
    order.show(r, _read_way(r, places, order, order.read_time_first(r), "forward"))


def read_both_ways_lstm(r: Reading) -> None:
    """BIDIRECTIONAL_SEQUENCE_LSTM: an LSTM each way.

    An auxiliary input stands next to the data; without weights of its own it is what the way back takes.
    """
    places, order = _present_inputs(r, _BOTH_WAYS), order_of_both_ways(r)
    if len(r.outputs) == 1 and order.form == "rows" and order.rows > 1:
        raise r.unsupported_error(
            "the batch first and merged outputs, for which its kernel reads states outside of their tensors,", rule="misread-by-kernel"
        )
    own = {
        way: {role.removeprefix(f"{way}/"): place for role, place in places.items() if role.startswith(f"{way}/")} for way in _DIRECTIONS
    }
    for way in own.values():
        _require_real(r, way)
    aux = [place for role, place in places.items() if role == "aux"]
    require_float32(r, (0, *aux), tuple(way[state] for way in own.values() for state in ("hidden", "cell")))
    forth = back = order.read_time_first(r)
    if aux:
        back = order.read_time_first(r, *aux)
        if any(role.endswith("_aux") for role in places):
            forth = back = concat_steps(r, forth, back)
    given = zip(own.values(), (forth, back), _DIRECTIONS.values(), strict=True)
    order.show(r, *[_read_way(r, way, order, data, direction) for way, data, direction in given])


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
    if activations := _ACTIVATIONS[int(r.option("fusedActivationFunction", 0))]:
        attributes["activations"] = activations
    if "input_weights" not in places:
        attributes["input_forget"] = 1
    if rounds_rows(r, places["forget_weights"]):
        attributes["arithmetic"] = arithmetic_of(r)
    states = {"hidden": (places["hidden"], sizes.width), "cell": (places["cell"], sizes.cells)}
    return emit_recurrence(r, "LSTM", order, data, _constants(r, places, sizes), states, hidden_size=sizes.cells, **attributes)


def read_float_basic(r: Reading, order: Order) -> None:
    """LSTM of the basic kernel, with weights of all gates in one, side by side for data and hidden values; it looks at no options."""
    require_float32(r, (0,), (1, 4))
    cells, inputs = math.prod(r.static_shape(3)) // 4, r.static_shape(0)[1]
    split = np.split(real_constant(r, 2, (4 * cells, inputs + cells)), 4)
    biases = np.split(real_constant(r, 3, (4 * cells,)), 4)
    joined, bias = (np.concatenate([parts[BASIC_GATES.index(gate)] for gate in _ROWS]) for parts in (split, biases))
    found = {"W": joined[:, :inputs], "R": joined[:, inputs:], "B": both_biases(bias)}
    constants: dict[str, Constant | None] = {hint: (data, None) for hint, data in found.items()}
    states = {"hidden": (1, cells), "cell": (4, cells)}
    order.show(r, emit_recurrence(r, "LSTM", order, order.read_time_first(r), constants, states, hidden_size=cells))


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
    if (code := r.option("fusedActivationFunction", 0)) not in _ACTIVATIONS:
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

    def read(role: str, shape: tuple[int, ...], what: str) -> Constant | None:
        if role not in places:
            return None
        is_integers = rounds and what in _INTEGERS
        return constant_int8(r, places[role], shape) if is_integers else (real_constant(r, places[role], shape), None)

    def read_gates(what: str, shape: tuple[int, ...], gates: tuple[str, ...] = _ROWS) -> Constant | None:
        """All gates one above the other; integers have a scale for each row."""
        found = {gate: part for gate in gates if (part := read(f"{gate}_{what}", shape, what)) is not None}
        if not found:
            return None
        if "input" not in found:
            found["input"] = _couple_input_gate(r, found["forget"], what)
        parts = [found[gate] for gate in gates]
        return np.concatenate([data for data, _ in parts]), _join_scales([scales for _, scales in parts], shape[0])

    weights, aux_weights, bias = (read_gates(*one) for one in (
        ("weights", (cells, sizes.inputs)), ("aux", (cells, sizes.aux)), ("bias", (cells,))))  # fmt: skip
    assert weights is not None and bias is not None
    return {
        "W": weights if aux_weights is None else (np.concatenate([weights[0], aux_weights[0]], axis=1), None),
        "R": read_gates("recurrent", (cells, width)),
        "B": (both_biases(bias[0]), None),
        "P": read_gates("peephole", (cells,), _PEEPHOLE_GATES),
        "PW": read("projection_weights", (width, cells), "projection_weights"),
        "PB": read("projection_bias", (width,), "projection_bias"),
        "N": read_gates("norm", (cells,)),
    }


def _couple_input_gate(r: Reading, forget: Constant, what: str) -> Constant:
    """Weights of an input gate that is 1 - the forget gate: negated, but for those of a normalization, which commutes with the sign."""
    data, quantization = forget
    if quantization is not None and data.min(initial=0) == -128:
        raise r.unsupported_error("a coupled input gate and weights of -128, which int8 cannot negate,", rule="weight-quantization")
    return data if what == "norm" else -data, quantization


def _join_scales(gates: Sequence[Quantization | None], rows: int) -> Quantization | None:
    """A scale for each row after an axis of directions; None where weights are real."""
    scales = [np.repeat(gate.scale, rows) for gate in gates if gate is not None]
    return Quantization.per_axis(np.concatenate(scales), 1) if scales else None


#: The other operators, which may be of integers, are read by recurrent.py.
READERS: Readers = {"BIDIRECTIONAL_SEQUENCE_LSTM": read_both_ways_lstm}


def write_lstm(op: Op, w: Writing) -> None:
    """Of one direction, with states that go on from run to run: those of TFLite's operator always do."""
    _require(w, op)
    other = find_opposite_direction(w, op, ("hidden_size", "activations", "arithmetic", "cell_clip", "projection_clip"))
    if other is not None and not op.has(NORM) and not other.has(NORM) and _width(w, op) == _width(w, other):
        _require(w, other)
        w.absorb(other)
        _write_both_ways(w, *((op, other) if op["direction"] == "forward" else (other, op)))
        return
    listed = {**_write_parameters(w, op), "hidden": state_of(w, op, _HIDDEN), "cell": state_of(w, op, _CELL)}
    listed |= {f"{gate}_norm": name for gate, name in _gates(w, op, NORM, "norm", (int(op["hidden_size"]),)).items()}
    Frame(w, [op], [_width(w, op)]).emit("LSTM", [listed.get(role, "") for role in SEQUENCE[1:]], **_options(op))


def _require(w: Writing, op: Op) -> None:
    require_writable(w, op, clip=0.0)
    if lstm_activation_code(op) is None:
        raise w.unsupported_error(op, f"activations {', '.join(op['activations'])}", rule="activation-not-covered")


def lstm_activation_code(op: Op) -> int | None:
    """The schema's activation that an LSTM's are, whose names ONNX takes in any case; None for what TFLite's operator lacks, and with a
    clip of all sums."""
    if op["clip"]:
        return None
    names = tuple(known for name in op["activations"] for known in ACTIVATIONS if known.lower() == name.lower())
    plain = () if names == ("Sigmoid", "Tanh", "Tanh") else names
    return next((code for code, known in _ACTIVATIONS.items() if known == plain), None)


def _options(op: Op) -> dict[str, Any]:
    clips = {"cellClip": float(op["cell_clip"]), "projClip": float(op["projection_clip"])}
    return {"fusedActivationFunction": lstm_activation_code(op), **clips, "asymmetricQuantizeInputs": is_asymmetric(op)}


def _write_both_ways(w: Writing, *ways: Op) -> None:
    listed: list[str] = []
    for op in ways:
        own = _write_parameters(w, op)
        listed += [own.get(role, "") for role in _WAY]
    listed += [state_of(w, op, index) for op in ways for index in (_HIDDEN, _CELL)]
    # With rows in front and results side by side the kernel takes states from beyond their tensors.
    frame = Frame(w, ways, [_width(w, op) for op in ways], merges_rows=False)
    frame.emit("LSTM", [*listed, *[""] * (1 + 2 * len(GATES))], **_options(ways[0]))


def _width(w: Writing, op: Op) -> int:
    return int(w.constant(op, 2).shape[2])


def _write_parameters(w: Writing, op: Op) -> dict[str, str]:
    """Weights, peepholes, biases and projection of an LSTM of one direction by what they are."""
    cells, width = int(op["hidden_size"]), _width(w, op)
    bias = sum_biases(w, op, 4 * cells)
    found: dict[str, str] = {}
    for what, names in (
        ("weights", _gates(w, op, 1, "weights", (cells, -1))),
        ("recurrent", _gates(w, op, 2, "recurrent", (cells, width))),
        ("bias", _write_gate_constants(w, op, {gate: (part, None) for gate, part in zip(_ROWS, np.split(bias, 4), strict=True)}, "bias")),
        ("peephole", _gates(w, op, _PEEPHOLES, "peephole", (cells,), _PEEPHOLE_GATES)),
    ):
        found |= {f"{gate}_{what}": name for gate, name in names.items()}
    if op.has(PROJECTION):
        ((data, quantization),) = _parts(w, op, PROJECTION, 1)
        found["projection_weights"] = w.const(data, f"{_hint(op)}/projection_weights", quantization)
    if op.has(PROJECTION_BIAS):
        found["projection_bias"] = w.const(w.constant(op, PROJECTION_BIAS)[0], f"{_hint(op)}/projection_bias")
    return found


def _hint(op: Op) -> str:
    return next(filter(None, op.outputs))


def _gates(w: Writing, op: Op, index: int, what: str, shape: tuple[int, ...], gates: tuple[str, ...] = _ROWS) -> dict[str, str]:
    """Each gate's part of a constant."""
    if not op.has(index):
        return {}
    parts = zip(gates, _parts(w, op, index, len(gates)), strict=True)
    return _write_gate_constants(w, op, {gate: (part.reshape(shape), quantization) for gate, (part, quantization) in parts}, what)


def _parts(w: Writing, op: Op, index: int, count: int) -> list[Constant]:
    """A constant cut along its rows, each part with its one scale where the kernel takes integers.

    Raises:
        UnsupportedError: a part of integers has several scales, or there are zero points or no integers.
    """
    if not is_dynamic(op) or index not in integer_weights(op):
        return [(part, None) for part in np.split(w.constant(op, index)[0], count)]
    tensor = w.operand(op, index)
    q = tensor.quantization
    if tensor.data is None or tensor.dtype != "int8" or q is None or not q.is_symmetric or q.block_size or q.axis not in (None, 1):
        raise w.unsupported_error(
            op,
            f"{tensor.name!r} that is not an int8 constant with zero point 0, for data that are quantized at run time",
            rule="weight-quantization",
        )
    parts = np.split(tensor.data[0], count)
    scales = np.split(np.broadcast_to(q.scale, (count * len(parts[0]),)), count)
    if any((scale != scale[0]).any() for scale in scales):
        raise w.unsupported_error(
            op, f"{tensor.name!r} with several scales in one gate, of which TFLite's operator has one,", rule="weight-quantization"
        )
    return [(part, Quantization.per_tensor(float(scale[0]))) for part, scale in zip(parts, scales, strict=True)]


def _write_gate_constants(w: Writing, op: Op, parts: dict[str, Constant], what: str) -> dict[str, str]:
    """Constants of the gates. One whose input gate is 1 - the forget gate has none for it, and its negative for the latter."""
    if op["input_forget"]:
        coupled, quantization = parts.pop("input")
        parts["forget"] = coupled if what == "norm" else -coupled, quantization
    return {gate: w.const(part, f"{_hint(op)}/{gate}_{what}", quantization) for gate, (part, quantization) in parts.items()}


WRITERS: Writers = {"LSTM": write_lstm}
