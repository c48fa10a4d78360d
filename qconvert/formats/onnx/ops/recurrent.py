"""LSTM, GRU and RNN in float, and DynamicQuantizeLSTM of onnxruntime: an LSTM of integer weights that rounds its data and hidden values
when it runs.

In that the data of the whole sequence have one range, and the hidden values of all rows at each step (DynamicQuantizeLinear's rounding).
With several threads the kernel takes the rows of a batch in shares, each with a range of its own: measured with onnxruntime 1.31, where one
thread gives what is meant here. Weights stand the other way round than an LSTM's: (directions, inputs, rows of gates).
Source: docs/ContribOperators.md and contrib_ops/cpu/quantization/dynamic_quantize_lstm.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.ops.decomposed_recurrence import runs_in_float, unknown_activation, write_decomposed_gates, write_decomposed_lstm
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.signatures import CONTRIB
from qconvert.graph import Array, Op, Quantization, Tensor
from qconvert.operators import KINDS, is_dynamic
from qconvert.operators.recurrent import CELLS, NORM, PROJECTION, activation_names
from qconvert.rewriting.lowering import Scope, conditions


def read_recurrence(r: Reading) -> None:
    """All attributes of opset 7 and newer; weights stay as they are stored."""
    if r.version < 7:
        raise NotCoveredError(f"{r.op_type} of opset {r.version}")
    found = stated_attributes(r, r.op_type)
    if foreign := unknown_activation(found.get("activations", ())):
        raise r.invalid(f"{foreign!r} is not an activation of a recurrent operator", rule="unknown-activation")
    r.emit(r.op_type, outputs=named_outputs(r), hidden_size=_cells(r), **found)


def _cells(r: Reading) -> int:
    """The number of cells, which old files leave to the weights."""
    stated = r.attribute("hidden_size")
    shape = r.tensor(2).shape
    if stated is None and (shape is None or not isinstance(shape[-1], int)):
        raise NotCoveredError("an unknown hidden_size")
    return int(stated if stated is not None or shape is None else shape[-1])


def _unsupported_reason(op: Op, scope: Scope) -> str:
    if is_dynamic(op):
        return ""
    if foreign := unknown_activation(activation_names(op)):
        return f"the activation {foreign}"
    return "onnxruntime has no batch as the first axis" if op["layout"] else ""


@conditions(_unsupported_reason)
def write_recurrence(op: Op, b: Builder) -> None:
    """The node of its own; what is quantized is real between DequantizeLinear and QuantizeLinear."""
    if is_dynamic(op):
        write_decomposed_gates(op, b)
        return
    names = [b.stored_value(name) if index == 4 else b.float_value(name) for index, name in enumerate(op.inputs)]
    write_recurrent_node(op, b, op.kind, names)


@conditions(lambda op, scope: "" if runs_in_float(op) else _unsupported_reason(op, scope))
def write_lstm(op: Op, b: Builder) -> None:
    """LSTM, whose attributes and inputs of its own here are nodes."""
    if op["arithmetic"] == "dynamic_tensor" and not quantized_lstm_reason(op, b):
        write_quantized_lstm(op, b)
    elif runs_in_float(op):
        write_decomposed_lstm(op, b)
    else:
        write_recurrence(op, b)


_DATA, _WEIGHTS, _RECURRENT, _BIAS, _LENGTHS, _HIDDEN, _CELL, _PEEPHOLES, _SCALE, _POINT, _RECURRENT_SCALE, _RECURRENT_POINT = range(12)
_GATES = 4
_BYTES = ("int8", "uint8")
_OUTPUTS = 3


def read_quantized_lstm(r: Reading) -> None:
    """An LSTM of one direction; of two directions two of them, since a tensor's scales run along one axis."""
    count = 2 if r.attribute("direction") == "bidirectional" else 1
    weights = [_matrix(r, index, count) for index in (_WEIGHTS, _RECURRENT)]
    hidden = weights[1][0].shape[1]
    if weights[0][0].shape[2] != _GATES * hidden or weights[1][0].shape[2] != _GATES * hidden:
        raise r.invalid(
            f"weights of shape {weights[0][0].shape} and {weights[1][0].shape}, which are not those of {_GATES} gates",
            rule="shape-mismatch",
        )
    common = _common(r, hidden, count)
    if count == 1:
        names = [
            _direction(r, index, data, quantization, 0, 1)
            for index, (data, quantization) in zip((_WEIGHTS, _RECURRENT), weights, strict=True)
        ]
        others = [r.inputs[index] if r.has(index) else "" for index in range(_BIAS, _PEEPHOLES + 1)]
        r.emit("LSTM", _trim_absent([r.input(_DATA), *names, *others]), named_outputs(r), integers=True, **common)
        return
    parts: list[str] = []
    for place in range(count):
        names = [
            _direction(r, index, data, quantization, place, 2)
            for index, (data, quantization) in zip((_WEIGHTS, _RECURRENT), weights, strict=True)
        ]
        others = [_part(r, index, place) for index in range(_BIAS, _PEEPHOLES + 1)]
        ends = [r.intermediate(f"{_WAYS[place]}/{index}", "float32") for index in range(_OUTPUTS)]
        r.emit("LSTM", _trim_absent([r.input(_DATA), *names, *others]), ends, integers=True, **{**common, "direction": _WAYS[place]})
        parts += ends
    for index, name in enumerate(r.outputs):
        if name:
            r.emit("Concat", [parts[index], parts[index + _OUTPUTS]], [name], axis=0 if index else 1)


#: Values of attributes that say nothing.
_NOTHING: tuple[Any, ...] = ((), 0, 0.0, "", "forward")
_WAYS = ("forward", "reverse")


def _common(r: Reading, hidden: int, count: int) -> dict[str, Any]:
    """The attributes of each direction."""
    if r.attribute("hidden_size", hidden) != hidden:
        raise r.invalid(f"{r.attribute('hidden_size')} cells and weights of {hidden}", rule="shape-mismatch")
    found = stated_attributes(r, "LSTM")
    names = found.get("activations", ())
    if count == 2 and (names[:3] != names[3:] or "activation_alpha" in found or "activation_beta" in found):
        raise NotCoveredError("activations of two directions that differ")
    own = {"activations": names[: len(names) // count]} if names else {}
    return {**found, **own, "hidden_size": hidden, "arithmetic": "dynamic_tensor"}


def _matrix(r: Reading, index: int, count: int) -> tuple[Array, list[Quantization]]:
    """Constant weights, and the quantization of each direction."""
    data = r.constant(index)
    scale, point = (_SCALE, _POINT) if index == _WEIGHTS else (_RECURRENT_SCALE, _RECURRENT_POINT)
    scales, points = r.constant(scale), r.constant(point)
    if data is None or scales is None or points is None:
        raise NotCoveredError("weights, scales or zero points that are computed at run time")
    if data.ndim != 3 or data.shape[0] != count or data.dtype.name not in _BYTES:
        raise r.invalid(f"weights {data.dtype} of shape {data.shape} for {count} directions", rule="shape-mismatch")
    sizes = ((count,), (count, data.shape[2]))
    if scales.shape not in sizes or points.size not in (1, *map(np.prod, sizes)) or points.dtype != data.dtype:
        raise r.invalid(f"scales of shape {scales.shape} and zero points {points.dtype} of shape {points.shape}", rule="counts-differ")
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise r.invalid("a scale that is not positive", rule="scale-not-positive")
    return data, [_quantization(scales[place], points, place, count) for place in range(count)]


def _quantization(scales: Array, points: Array, place: int, count: int) -> Quantization:
    own = points.reshape(-1) if points.size == 1 else points.reshape(count, -1)[place]
    values = np.asarray(scales, np.float32).reshape(-1)
    size = max(values.size, own.size)
    return Quantization(np.broadcast_to(values, size), np.broadcast_to(own.astype(np.int64), size), 1 if size > 1 else None)


def _direction(r: Reading, index: int, data: Array, quantizations: list[Quantization], place: int, count: int) -> str:
    """The weights of one direction as an LSTM has them."""
    return r.variant(index, "rows" if count == 1 else _WAYS[place], data[place : place + 1].swapaxes(1, 2), quantizations[place])


def _part(r: Reading, index: int, place: int) -> str:
    """One direction of an input that has both; lengths of sequences are those of both."""
    if not r.has(index):
        return ""
    if index == _LENGTHS:
        return r.input(index)
    if (data := r.constant(index)) is not None:
        return r.variant(index, _WAYS[place], data[place : place + 1], None)
    bounds = [r.list64([value], "part") for value in (place, place + 1, 0)]
    return r.emit_inner("Slice", [r.input(index), *bounds], f"{_WAYS[place]}/part")


def _trim_absent(names: list[str]) -> list[str]:
    while not names[-1]:
        names.pop()
    return names


def quantized_lstm_reason(op: Op, b: Builder) -> str:
    """Why an LSTM that rounds its data by the range of whole tensors is no DynamicQuantizeLSTM; "" if it is one."""
    extra = [name for name in ("cell_clip", "projection_clip", "layout") if op[name]]
    if extra or len(op.inputs) > min(PROJECTION, NORM):
        return "a limited cell, a projection, a normalization or the batch in front"
    if op["direction"] == "bidirectional":
        return "weights of two directions in one tensor"
    for index in (_WEIGHTS, _RECURRENT):
        tensor = b.operand(op, index)
        if reason := _weights_reason(tensor):
            return reason
    return ""


def _weights_reason(tensor: Tensor) -> str:
    """Of the kernel's rules (measured): zero points of columns are one, which is 0 of int8."""
    quantization = tensor.quantization
    if (
        tensor.data is None
        or quantization is None
        or tensor.dtype not in _BYTES
        or quantization.axis not in (None, 1)
        or quantization.block_size
    ):
        return "weights that are not an int8 or uint8 constant with one scale, or one for each row"
    if quantization.axis is not None and (
        len(set(quantization.zero_point.tolist())) > 1 or (tensor.dtype == "int8" and quantization.zero_point.any())
    ):
        return "weights with zero points of their own for each row"
    return ""


def write_quantized_lstm(op: Op, b: Builder) -> None:
    """The node; quantized_lstm_reason() has to be ""."""
    names = [b.float_value(op.inputs[_DATA])]
    quantizations = []
    for index in (_WEIGHTS, _RECURRENT):
        tensor = b.operand(op, index)
        assert tensor.data is not None and tensor.quantization is not None
        quantization, along = tensor.quantization, (1, -1) if tensor.quantization.axis is not None else (1,)
        names.append(b.replace_constant(tensor.name, np.ascontiguousarray(tensor.data.swapaxes(1, 2))))
        quantizations.append(b.const(quantization.scale.reshape(along), f"{tensor.name}/scale"))
        quantizations.append(b.const(quantization.zero_point.astype(tensor.data.dtype).reshape(along), f"{tensor.name}/zero_point"))
    for index in range(_BIAS, _PEEPHOLES + 1):
        name = op.inputs[index] if index < len(op.inputs) else ""
        names.append(b.stored_value(name) if index == _LENGTHS else b.float_value(name))
    write_recurrent_node(op, b, "DynamicQuantizeLSTM", [*names, *quantizations], CONTRIB)


def named_outputs(r: Reading) -> list[str]:
    """The outputs of a recurrence; the first has a name also where nobody reads it, as the first of every operator has."""
    if not any(r.outputs):
        raise r.invalid("has no output", rule="output-missing")
    if r.outputs[0]:
        return list(r.outputs)
    return [r.draft.add(f"{next(filter(None, r.outputs))}/all", r.tensor(0).dtype, None), *r.outputs[1:]]


def stated_attributes(r: Reading, kind: str) -> dict[str, Any]:
    """The attributes that a node states for a kind of recurrence, without those that state the default."""
    stated = {name: r.attribute(name) for name in KINDS[kind].attributes if name != "hidden_size"}
    return {name: value for name, value in stated.items() if value not in (None, *_NOTHING)}


def write_recurrent_node(op: Op, b: Builder, op_type: str, inputs: Sequence[str], domain: str = "") -> None:
    """Adds the node of a recurrence with the attributes that the operator states; its results are quantized where the tensors are."""
    stated: dict[str, Any] = {name: value for name, value in op.attributes.items() if value not in _NOTHING and name != "arithmetic"}
    values = [b.name(f"{name}/value") if name else "" for name in op.outputs]
    b.node(op_type, inputs, values, domain=domain, **stated)
    position = len(b.nodes) - 1
    for index, name in enumerate(op.outputs):
        if name and b.tensor(name).is_quantized:
            b.finish(op, values[index], index)
        elif name:
            b.nodes[position].output[index] = name


READERS: Readers = {**dict.fromkeys(CELLS, read_recurrence), f"{CONTRIB}.DynamicQuantizeLSTM": read_quantized_lstm}

WRITERS: Writers = {**dict.fromkeys(CELLS, write_recurrence), "LSTM": write_lstm}
