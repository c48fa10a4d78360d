"""UNIDIRECTIONAL_SEQUENCE_LSTM of real data: an LSTM whose states are variables of its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Array, Op

__all__ = ["READERS", "WRITERS", "read_float_lstm"]

#: The gates in the order of an LSTM's rows, and of its peepholes.
_ROWS, _PEEPHOLES = ("input", "output", "forget", "cell"), ("input", "output", "forget")
#: The order in which TFLite lists them.
_LISTED = ("input", "forget", "cell", "output")
_TANH = 4
_TO_TIME = (1, 0, 2)


def read_float_lstm(r: Reading, places: dict[str, int]) -> None:
    """Batch and time change places around it where the file has the batch first.

    Args:
        r: the operator.
        places: its inputs by what they are; those alone that are there.
    """
    _require_plain(r, places)
    shape = r.static_shape(0)
    cells = _cells(r, places)
    time_major = bool(r.option("timeMajor", False))
    steps, rows = shape[:2] if time_major else (shape[1], shape[0])
    states = {role: r.variable(places[role], (1, rows, cells)) for role in ("hidden", "cell")}
    before = {role: r.read_state(state, r.tensor(places[role])) for role, state in states.items()}
    after = [r.intermediate(f"{role}_after", "float32", (1, rows, cells)) for role in states]
    data = r.input(0) if time_major else _turned(r, r.input(0), r.intermediate("time_first", "float32", (steps, rows, shape[2])))
    weights = [r.const(_rows(r, places, what)[None], name) for what, name in (("weights", "W"), ("recurrent", "R"), ("bias", "B"))]
    peepholes = [r.const(_peepholes(r, places)[None], "P")] if "output_peephole" in places else []
    whole = r.intermediate("all", "float32", (steps, 1, rows, cells))
    clip = {"cell_clip": clip} if (clip := float(r.option("cellClip", 0.0))) > 0 else {}
    r.emit("LSTM", [data, *weights, "", *before.values(), *peepholes], [whole, *after], hidden_size=cells, **clip)
    sizes = r.shape_const([steps, rows, cells], "shape")
    if time_major:
        r.emit("Reshape", [whole, sizes])
    else:
        _turned(r, r.emit("Reshape", [whole, sizes], [r.intermediate("steps", "float32", (steps, rows, cells))])[0], r.outputs[0])
    for state, value in zip(states.values(), after, strict=True):
        r.write_state(state, value)


def _require_plain(r: Reading, places: dict[str, int]) -> None:
    """Raises UnsupportedError for what an LSTM of ONNX does not have."""
    missing = [f"{gate}_{what}" for what in ("weights", "recurrent", "bias") for gate in _ROWS if f"{gate}_{what}" not in places]
    if missing:
        raise r.unsupported(f"real data and no {missing[0]} of its own")
    extra = [role for role in places if role.startswith("projection") or role.endswith("_norm")]
    if extra:
        raise r.unsupported(f"real data and {extra[0]}")
    if (code := r.option("fusedActivationFunction", _TANH)) != _TANH:
        raise r.unsupported(f"fused activation number {code}, not tanh,")
    seen = [f"{gate}_peephole" in places for gate in _PEEPHOLES]
    if any(seen) and not all(seen):
        raise r.invalid("has peepholes for some gates alone")


def _cells(r: Reading, places: dict[str, int]) -> int:
    """How many cells there are; raises InvalidModelError if weights, biases or peepholes do not fit them and the data."""
    data, cells = r.static_shape(0), math.prod(r.static_shape(places["forget_bias"]))
    if len(data) != 3 or not cells:
        raise r.invalid(f"has data of shape {data} and {cells} cells")
    wanted = {"weights": (cells, data[2]), "recurrent": (cells, cells), "bias": (cells,), "peephole": (cells,)}
    for role, place in places.items():
        sizes = wanted.get(role.rpartition("_")[2])
        if sizes is not None and r.static_shape(place) != sizes:
            raise r.invalid(f"has {r.inputs[place]!r} of shape {r.static_shape(place)}, not {sizes}")
    return cells


def _rows(r: Reading, places: dict[str, int], what: str) -> Array:
    """The weights of all gates in the order of an LSTM's; biases with zeros for those of the hidden values, which TFLite does not have."""
    found = np.concatenate([_constant(r, places[f"{gate}_{what}"]) for gate in _ROWS])
    return np.concatenate([found, np.zeros_like(found)]) if what == "bias" else found


def _peepholes(r: Reading, places: dict[str, int]) -> Array:
    return np.concatenate([_constant(r, places[f"{gate}_peephole"]) for gate in _PEEPHOLES])


def _constant(r: Reading, index: int) -> Array:
    data = r.constant(index)
    if data is None or data.dtype != np.float32:
        raise r.unsupported(f"{r.inputs[index]!r}, which is no constant of float32,")
    return data


def _turned(r: Reading, value: str, result: str) -> str:
    return r.emit("Transpose", [value], [result], perm=_TO_TIME)[0]


def write_lstm(op: Op, w: Writing) -> None:
    """Of one direction, with states that go on from run to run: those of TFLite's operator always do."""
    for name, value in {"direction": "forward", "clip": 0.0, "layout": 0, "input_forget": 0}.items():
        if op[name] != value:
            raise w.unsupported(op, f"{name} {op[name]!r}")
    if tuple(op["activations"]) not in ((), ("Sigmoid", "Tanh", "Tanh")):
        raise w.unsupported(op, f"activations {', '.join(op['activations'])}")
    data, _, _, bias, lengths, hidden, cell, peepholes = (*op.inputs, *[""] * (8 - len(op.inputs)))
    if lengths:
        raise w.unsupported(op, "lengths of sequences")
    if not hidden or not cell:
        raise w.unsupported(op, "states that begin anew in each run, where those of TFLite's operator go on,")
    states = [w.variable(op, name) for name in (hidden, cell)]
    cells = int(op["hidden_size"])
    own = {name: _gates(w, op, index) for name, index in (("weights", 1), ("recurrent", 2))}
    sums = w.constant(op, 3).reshape(2, -1).sum(axis=0, dtype=np.float32) if bias else np.zeros(4 * cells, np.float32)
    own["bias"] = dict(zip(_ROWS, np.split(sums, 4), strict=True))
    seen = dict(zip(_PEEPHOLES, np.split(w.constant(op, 7).reshape(-1), 3), strict=True)) if peepholes else {}
    hint = next(filter(None, op.outputs))
    listed = [data]
    for what in ("weights", "recurrent"):
        listed += [w.const(own[what][gate], f"{hint}/{gate}_{what}") for gate in _LISTED]
    listed += [w.const(seen[gate], f"{hint}/{gate}_peephole") if seen else "" for gate in _LISTED if gate != "cell"]
    listed += [w.const(own["bias"][gate], f"{hint}/{gate}_bias") for gate in _LISTED]
    listed += ["", "", *states, "", "", "", ""]
    steps, rows = w.shape(data, op)[:2]
    whole = w.add(f"{hint}/steps", "float32", (steps, rows, cells))
    w.emit(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", listed, [whole], "UnidirectionalSequenceLSTMOptions", fusedActivationFunction=_TANH,
        cellClip=float(op["cell_clip"]), timeMajor=True,
    )  # fmt: skip
    if op.outputs[0]:
        w.emit("RESHAPE", [whole, w.ints([steps, 1, rows, cells], f"{hint}/shape")], [op.outputs[0]], "ReshapeOptions")


def _gates(w: Writing, op: Op, index: int) -> dict[str, Any]:
    """Each gate's weights of an LSTM of one direction."""
    return dict(zip(_ROWS, np.split(w.constant(op, index)[0], 4), strict=True))


#: UNIDIRECTIONAL_SEQUENCE_LSTM is read by recurrent.py, which calls read_float_lstm().
READERS: dict[str, ReadFunction] = {}

WRITERS: dict[str, WriteFunction] = {"LSTM": write_lstm}
