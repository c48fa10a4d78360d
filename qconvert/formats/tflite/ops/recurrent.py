"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and SVDF by the types of their data, and RNN of float data, over a sequence one way or both, or of one
step; their states are variables of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic import GATES
from qconvert.formats.tflite.ops.float_lstm import REAL_LSTM, SEQUENCE, read_float_basic, read_float_lstm, read_float_step
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
    require_int8,
    require_writable,
    single_step,
    state_of,
    sum_biases,
)
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
    "LSTM": read_lstm,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": read_sequence_lstm,
    "SVDF": read_svdf,
    "UNIDIRECTIONAL_SEQUENCE_RNN": partial(_read_one_way, order_of),
    "RNN": partial(_read_one_way, single_step),
    "BIDIRECTIONAL_SEQUENCE_RNN": read_both_ways_rnn,
}

WRITERS: Writers = {
    "IntegerLSTM": write_integer_lstm,
    "BasicLSTM": write_basic_lstm,
    "SVDF": write_svdf,
    "IntegerSVDF": write_integer_svdf,
    "RNN": write_rnn,
}
