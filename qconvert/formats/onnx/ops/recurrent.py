"""LSTM, GRU and RNN, in float."""

from __future__ import annotations

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.decomposed_recurrence import runs_in_float, unknown_activation, write_decomposed_gates, write_decomposed_lstm
from qconvert.formats.onnx.ops.quantized_lstm import (
    QUANTIZED,
    named_outputs,
    quantized_lstm_reason,
    stated_attributes,
    write_quantized_lstm,
    write_recurrent_node,
)
from qconvert.formats.onnx.reading import NotCoveredError, ReadFunction, Reading
from qconvert.graph import Op
from qconvert.operators import is_dynamic
from qconvert.operators.recurrent import CELLS, activation_names
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


WRITERS: dict[str, WriteFunction] = {**dict.fromkeys(CELLS, write_recurrence), "LSTM": write_lstm}

READERS: dict[str, ReadFunction] = {**dict.fromkeys(CELLS, read_recurrence), **QUANTIZED}
