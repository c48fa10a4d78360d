"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and SVDF by the types of their data; their states are variables of their own."""

from __future__ import annotations

from typing import Any

from qconvert.arithmetic import GATES
from qconvert.formats.tflite.ops.float_lstm import REAL_LSTM, SEQUENCE, read_float_basic, read_float_lstm, read_float_step
from qconvert.formats.tflite.ops.sequences import arithmetic_of, constant_int8, is_asymmetric, require_int8, single_step
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.writing import Writers, Writing
from qconvert.graph import Op, Quantization, Tensor
from qconvert.operators import is_dynamic
from qconvert.operators.integer_recurrent import LSTM_INPUTS

#: The fewest inputs: files from before layer normalizations have 20.
_OLD = 20
_TANH, _BASIC_KERNEL = 4, 1
#: The quantization of a gate's sum in the basic kernel.
_SUMS = Quantization.per_tensor(2.0**-12, 0)


def read_sequence_lstm(r: Reading) -> None:
    """Its variables are read before it and written after it. The activation is not looked at, since the kernel does not either."""
    names = dict(zip(SEQUENCE, r.inputs, strict=False))
    if len(r.inputs) < _OLD or not names["forget_weights"] or not names["hidden"] or not names["cell"]:
        raise r.invalid(f"has {len(r.inputs)} inputs, or lacks one that every LSTM has", rule="wrong-number-of-tensors")
    types = tuple(r.tensor(SEQUENCE.index(role)).dtype for role in ("data", "forget_weights", "cell"))
    if r.option("diagonalRecurrentTensors", False):
        raise r.unsupported_error("diagonal recurrent weights", rule="form-not-covered")
    if types[:2] in REAL_LSTM and types[2] == "float32":
        read_float_lstm(r)
        return
    if types != ("int8", "int8", "int16"):
        what = f"data of {types[0]}, weights of {types[1]} and a cell of {types[2]}"
        raise r.unsupported_error(
            f"{what}, neither int8, int8 and int16 nor float32 with weights of float32 or int8,", rule="operand-types"
        )
    places = {role: SEQUENCE.index(role) for role in ("hidden", "cell")}
    inputs = [places.get(role) or names.get(role, "") for role in LSTM_INPUTS]
    clips: dict[str, Any] = {"cell_clip": float(r.option("cellClip", 0.0)), "projection_clip": float(r.option("projClip", 0.0))}
    time_major = int(r.option("timeMajor", False))
    r.emit_with_states("IntegerLSTM", inputs, r.outputs, places, time_major=time_major, **clips, **_inner_quantizations(r, names))


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
    return q.step, q.point


def read_lstm(r: Reading) -> None:
    """LSTM, one step: of the full kernel, which is of float data, or of the basic one."""
    order = single_step(r)
    if r.option("kernelType", 0) != _BASIC_KERNEL:
        read_float_step(r, order)
    elif len(r.inputs) != 5 or not all(r.inputs):
        raise r.invalid(f"has {len(r.inputs)} inputs, not the five of the basic kernel", rule="wrong-number-of-tensors")
    elif r.tensor(0).dtype == "float32":
        read_float_basic(r, order)
    else:
        _read_basic_integers(r)


def _read_basic_integers(r: Reading) -> None:
    """Data of uint8 and an int16 cell. The other outputs, the cell and what the kernel computes in between, are left to it."""
    types = tuple(r.tensor(index).dtype for index in range(len(r.inputs)))
    if types != ("uint8", "uint8", "uint8", "int32", "int16") or r.result().dtype != "uint8":
        what = f"the basic kernel and tensors of {', '.join(types)} for {r.result().dtype}"
        raise r.unsupported_error(f"{what}, neither all float32 nor uint8, uint8, uint8, int32 and int16 for uint8,", rule="operand-types")
    hidden, weights, bias, cell = range(1, 5)
    inputs = [r.input(0), hidden, cell, r.input(weights), r.input(bias)]
    r.emit_with_states("BasicLSTM", inputs, r.outputs[:1], {"hidden": hidden, "cell": cell})


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
        "UNIDIRECTIONAL_SEQUENCE_LSTM", listed, op.outputs[:1], intermediates=inner,
        fusedActivationFunction=_TANH, cellClip=float(op["cell_clip"]), projClip=float(op["projection_clip"]),
        timeMajor=bool(op["time_major"]),
    )  # fmt: skip


def write_basic_lstm(op: Op, w: Writing) -> None:
    data, hidden, cell, weights, bias = op.inputs
    inputs = [data, w.variable(op, hidden), weights, bias, w.variable(op, cell)]
    rows, values = w.shape(data, op)
    cells = w.shape(cell, op)[1]
    between = [
        w.like(f"{op.outputs[0]}/cell", cell, (rows, cells)),
        w.like(f"{op.outputs[0]}/joined", data, (rows, values + cells)),
        w.add(f"{op.outputs[0]}/sums", "int16", (rows, 4 * cells), None, _SUMS),
    ]
    w.emit("LSTM", inputs, [op.outputs[0], *between], fusedActivationFunction=_TANH, kernelType=_BASIC_KERNEL)


_FEATURE, _TIME, _BIAS, _STATE = 1, 2, 3, 4
#: Types of data, both weights and state. A kernel with weights of two types reads one of them as what they are not.
_FLOAT = (("float32",) * 4, ("float32", "int8", "int8", "float32"))
_INTEGER = (("int8", "int8", "int16", "int16"), ("int8",) * 4)
_RELU = 1


def read_svdf(r: Reading) -> None:
    """SVDF. Its memory is read before it and written after it."""
    types = tuple(r.tensor(index).dtype for index in (0, _FEATURE, _TIME, _STATE))
    if types not in (*_FLOAT, *_INTEGER):
        known = "int8, int8 and twice int16 or int8, nor float32 with weights of float32 or int8"
        raise r.unsupported_error(f"tensors of {', '.join(types)}, neither of {known},", rule="operand-types")
    attributes: dict[str, Any] = {"rank": int(r.option("rank", 1))}
    if types in _FLOAT:
        attributes |= _read_float_attributes(r)
    inputs = [r.input(0), _STATE, r.input(_FEATURE), r.input(_TIME), *([r.input(_BIAS)] if r.has(_BIAS) else [])]
    r.emit_with_states("SVDF" if types in _FLOAT else "IntegerSVDF", inputs, r.outputs, {"memory": _STATE}, **attributes)


def _read_float_attributes(r: Reading) -> dict[str, Any]:
    rounds = r.tensor(_FEATURE).dtype == "int8"
    if rounds:
        for index in (_FEATURE, _TIME):
            constant_int8(r, index)
    if r.has(_BIAS) and r.tensor(_BIAS).dtype != "float32":
        raise r.invalid(f"has a bias of {r.tensor(_BIAS).dtype} for float data", rule="bias-type")
    return {"activation": r.activation(), "arithmetic": arithmetic_of(r) if rounds else ""}


def write_svdf(op: Op, w: Writing) -> None:
    """SVDF of float data."""
    if is_dynamic(op):
        for index in (2, 3):
            require_int8(w, op, index)
    _write(op, w, fusedActivationFunction=w.activation(op), asymmetricQuantizeInputs=is_asymmetric(op))


def write_integer_svdf(op: Op, w: Writing) -> None:
    """SVDF of int8 data, whose kernel demands a Relu, and does not apply it."""
    _write(op, w, fusedActivationFunction=_RELU)


def _write(op: Op, w: Writing, **options: Any) -> None:
    data, memory, feature, time, *bias = op.inputs
    w.variable(op, memory)
    w.emit("SVDF", [data, feature, time, *(bias or [""]), memory], op.outputs[:1], rank=op["rank"], **options)


READERS: Readers = {
    "LSTM": read_lstm,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": read_sequence_lstm,
    "SVDF": read_svdf,
}

WRITERS: Writers = {
    "IntegerLSTM": write_integer_lstm,
    "BasicLSTM": write_basic_lstm,
    "SVDF": write_svdf,
    "IntegerSVDF": write_integer_svdf,
}
