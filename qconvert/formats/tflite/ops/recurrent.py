"""UNIDIRECTIONAL_SEQUENCE_LSTM and SVDF of int8 (an LSTM of float data: float_recurrent.py), whose states are variables of their own."""

from __future__ import annotations

from typing import Any

from qconvert.arithmetic import GATES
from qconvert.formats.tflite.ops.float_recurrent import REAL_LSTM, SEQUENCE, read_float_lstm
from qconvert.formats.tflite.ops.svdf import REAL_SVDF, read_real_svdf
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op, Quantization, Tensor
from qconvert.operators.integer_recurrent import LSTM_INPUTS

__all__ = ["READERS", "WRITERS"]

#: The fewest inputs: files from before layer normalizations have 20.
_OLD = 20
_TANH, _RELU = 4, 1


def read_sequence_lstm(r: Reading) -> None:
    """Its variables are read before it and written after it. The activation is not looked at, since the kernel does not either."""
    names = dict(zip(SEQUENCE, r.inputs, strict=False))
    if len(r.inputs) < _OLD or not names["forget_weights"] or not names["hidden"] or not names["cell"]:
        raise r.invalid(f"has {len(r.inputs)} inputs, or lacks one that every LSTM has", rule="wrong-number-of-tensors")
    types = tuple(r.tensor(SEQUENCE.index(role)).dtype for role in ("data", "forget_weights", "cell"))
    if r.option("diagonalRecurrentTensors", False):
        raise r.unsupported_error("diagonal recurrent weights", rule="form-not-covered")
    if types[:2] in REAL_LSTM and types[2] == "float32":
        read_float_lstm(r, {role: place for place, role in enumerate(SEQUENCE) if names.get(role)})
        return
    if types != ("int8", "int8", "int16"):
        what = f"data of {types[0]}, weights of {types[1]} and a cell of {types[2]}"
        raise r.unsupported_error(
            f"{what}, neither int8, int8 and int16 nor float32 with weights of float32 or int8,", rule="operand-types"
        )
    places = {role: SEQUENCE.index(role) for role in ("hidden", "cell")}
    states = {role: r.variable(place) for role, place in places.items()}
    before = {role: r.read_state(state, r.tensor(places[role])) for role, state in states.items()}
    after = [r.like(f"{role}_after", r.tensor(place), r.tensor(place).shape) for role, place in places.items()]
    inputs = [before.get(role) or names.get(role, "") for role in LSTM_INPUTS]
    clips = {"cell_clip": float(r.option("cellClip", 0.0)), "projection_clip": float(r.option("projClip", 0.0))}
    r.emit(
        "IntegerLSTM",
        inputs,
        [r.outputs[0], *after],
        time_major=int(r.option("timeMajor", False)),
        **clips,
        **_inner_quantizations(r, names),
    )
    for state, value in zip(states.values(), after, strict=True):
        r.write_state(state, value)


def _inner_quantizations(r: Reading, names: dict[str, str]) -> dict[str, Any]:
    """The quantizations of intermediate results: the file has a tensor without data for each."""
    listed = [r.lookup(name) for name in r.intermediates if name]
    if len(listed) != len(GATES) + 1 or not all(r.intermediates):
        raise r.invalid(f"has {len(listed)} intermediate tensors, not {len(GATES) + 1}", rule="wrong-number-of-tensors")
    scale, zero_point = _per_tensor(r, listed[-1])
    quantizations: dict[str, Any] = {"hidden_scale": scale, "hidden_zero_point": zero_point}
    for gate, tensor in zip(GATES, listed, strict=False):
        if names.get(f"{gate}_norm"):
            quantizations[f"{gate}_scale"] = _per_tensor(r, tensor)[0]
    return quantizations


def _per_tensor(r: Reading, tensor: Tensor) -> tuple[float, int]:
    q = tensor.quantization
    if q is None or not q.is_per_tensor:
        raise r.invalid(f"the intermediate tensor {tensor.name!r} has no scale", rule="scale-missing")
    return float(q.scale[0]), int(q.zero_point[0])


def read_svdf(r: Reading) -> None:
    types = tuple(r.tensor(index).dtype for index in (0, 1, 2, 4))
    if types in REAL_SVDF:
        read_real_svdf(r)
        return
    if types not in (("int8", "int8", "int16", "int16"), ("int8",) * 4):
        known = "int8, int8 and twice int16 or int8, nor float32 with weights of float32 or int8"
        raise r.unsupported_error(f"tensors of {', '.join(types)}, neither of {known},", rule="operand-types")
    state = r.variable(4)
    before = r.read_state(state, r.tensor(4))
    after = r.like("memory_after", r.tensor(4), r.tensor(4).shape)
    inputs = [r.input(0), before, r.input(1), r.input(2), *([r.input(3)] if r.has(3) else [])]
    r.emit("IntegerSVDF", inputs, [r.outputs[0], after], rank=int(r.option("rank", 1)))
    r.write_state(state, after)


READERS: dict[str, ReadFunction] = {"UNIDIRECTIONAL_SEQUENCE_LSTM": read_sequence_lstm, "SVDF": read_svdf}


def write_integer_lstm(op: Op, w: Writing) -> None:
    names = dict(zip(LSTM_INPUTS, op.inputs, strict=False))
    for role in ("hidden", "cell"):
        w.variable(op, names[role])
    has_norm = any(names.get(f"{gate}_norm") for gate in GATES)
    listed = [names.get(role, "") for role in (SEQUENCE if has_norm else SEQUENCE[:_OLD])]
    listed += [""] * (len(SEQUENCE) - len(listed))
    inner = []
    for gate in GATES:  # with a layer normalization the kernel looks at all of them, also at that of an input gate that is not there
        quantization = Quantization.per_tensor(float(op[f"{gate}_scale"]), 0) if has_norm else None
        inner.append(w.add(f"{op.outputs[0]}/{gate}_sum", "int16" if has_norm else "float32", (0,), None, quantization))
    hidden = Quantization.per_tensor(float(op["hidden_scale"]), int(op["hidden_zero_point"]))
    inner.append(w.add(f"{op.outputs[0]}/hidden", "int8", (0,), None, hidden))
    w.emit(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", listed, op.outputs[:1], "UnidirectionalSequenceLSTMOptions", intermediates=inner,
        fusedActivationFunction=_TANH, cellClip=float(op["cell_clip"]), projClip=float(op["projection_clip"]),
        timeMajor=bool(op["time_major"]),
    )  # fmt: skip


def write_integer_svdf(op: Op, w: Writing) -> None:
    data, memory, feature, time, *bias = op.inputs
    w.variable(op, memory)
    inputs = [data, feature, time, *(bias or [""]), memory]
    # The kernel demands a Relu, and does not apply it.
    w.emit("SVDF", inputs, op.outputs[:1], "SVDFOptions", rank=int(op["rank"]), fusedActivationFunction=_RELU)


WRITERS: dict[str, WriteFunction] = {"IntegerLSTM": write_integer_lstm, "IntegerSVDF": write_integer_svdf}
