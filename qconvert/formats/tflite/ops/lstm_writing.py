"""An LSTM of float data as TFLite's operator: over a sequence one way, back, or both ways at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.arithmetic import GATES
from qconvert.formats.tflite.ops.float_recurrent import ACTIVATIONS, PEEPHOLES, ROWS, SEQUENCE, WAY
from qconvert.formats.tflite.ops.sequences import (
    Constant,
    Frame,
    find_opposite_direction,
    is_asymmetric,
    require_writable,
    split_gates,
    state_of,
    sum_biases,
)
from qconvert.formats.tflite.reading import ReadFunction
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op
from qconvert.operators import integer_weights, is_dynamic
from qconvert.operators.recurrent import ACTIVATIONS as KNOWN_ACTIVATIONS
from qconvert.operators.recurrent import NORM, PROJECTION, PROJECTION_BIAS

_PEEPHOLES, _HIDDEN, _CELL = 7, 5, 6


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
    frame = Frame(w, [op], [_width(w, op)])
    names = [listed.get(role, "") for role in SEQUENCE[1:]]
    if frame.form == "single":
        frame.emit("LSTM", names, **_options(op))
    else:
        frame.emit("UNIDIRECTIONAL_SEQUENCE_LSTM", names, **_options(op), timeMajor=frame.form == "steps")


def _require(w: Writing, op: Op) -> None:
    require_writable(w, op, clip=0.0)
    if activation_code(op) is None:
        raise w.unsupported_error(op, f"activations {', '.join(op['activations'])}", rule="activation-not-covered")


def activation_code(op: Op) -> int | None:
    """The schema's activation that an LSTM's are, whose names ONNX takes in any case; None for what TFLite's operator lacks, and with a
    clip of all sums."""
    if op["clip"]:
        return None
    names = tuple(known for name in op["activations"] for known in KNOWN_ACTIVATIONS if known.lower() == name.lower())
    plain = () if names == ("Sigmoid", "Tanh", "Tanh") else names
    return next((code for code, known in ACTIVATIONS.items() if known == plain), None)


def _options(op: Op) -> dict[str, Any]:
    clips = {"cellClip": float(op["cell_clip"]), "projClip": float(op["projection_clip"])}
    return {"fusedActivationFunction": activation_code(op), **clips, "asymmetricQuantizeInputs": is_asymmetric(op)}


def _write_both_ways(w: Writing, forth: Op, back: Op) -> None:
    ways, listed = (forth, back), list[str]()
    for op in ways:
        own = _write_parameters(w, op)
        listed += [own.get(role, "") for role in WAY]
    listed += [state_of(w, op, index) for op in ways for index in (_HIDDEN, _CELL)]
    listed += [""] * (1 + 2 * len(GATES))
    # With rows in front and results side by side the kernel takes states from beyond their tensors.
    frame = Frame(w, ways, [_width(w, op) for op in ways], merges_rows=False)
    frame.emit(
        "BIDIRECTIONAL_SEQUENCE_LSTM", listed, **_options(forth), timeMajor=frame.form == "steps",
        mergeOutputs=frame.merged,
    )  # fmt: skip


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
        ("bias", _write_gate_constants(w, op, {gate: (part, None) for gate, part in zip(ROWS, np.split(bias, 4), strict=True)}, "bias")),
        ("peephole", _gates(w, op, _PEEPHOLES, "peephole", (cells,), PEEPHOLES)),
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


def _gates(w: Writing, op: Op, index: int, what: str, shape: tuple[int, ...], gates: tuple[str, ...] = ROWS) -> dict[str, str]:
    """Each gate's part of a constant."""
    if not op.has(index):
        return {}
    parts = _parts(w, op, index, len(gates))
    return _write_gate_constants(
        w, op, {gate: (part.reshape(shape), quantization) for gate, (part, quantization) in zip(gates, parts, strict=True)}, what
    )


def _parts(w: Writing, op: Op, index: int, count: int) -> list[Constant]:
    """A constant cut along its rows, each part with its scale where the kernel takes integers."""
    if is_dynamic(op) and index in integer_weights(op):
        return list(split_gates(w, op, index, count))
    return [(part, None) for part in np.split(w.constant(op, index)[0], count)]


def _write_gate_constants(w: Writing, op: Op, parts: dict[str, Constant], what: str) -> dict[str, str]:
    """Constants of the gates. One whose input gate is 1 - the forget gate has none for it, and its negative for the latter."""
    if op["input_forget"]:
        coupled, quantization = parts.pop("input")
        parts["forget"] = coupled if what == "norm" else -coupled, quantization
    return {gate: w.const(part, f"{_hint(op)}/{gate}_{what}", quantization) for gate, (part, quantization) in parts.items()}


#: LSTMs are read by float_recurrent.py.
READERS: dict[str, ReadFunction] = {}

WRITERS: dict[str, WriteFunction] = {"LSTM": write_lstm}
