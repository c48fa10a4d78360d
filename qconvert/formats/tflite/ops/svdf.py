"""SVDF of int8 data, and of float data with real or int8 weights; its memory is a variable of its own."""

from __future__ import annotations

from typing import Any

from qconvert.formats.tflite.ops.sequences import arithmetic_of, constant_int8, is_asymmetric, require_int8
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op
from qconvert.operators import is_dynamic

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


READERS: dict[str, ReadFunction] = {"SVDF": read_svdf}

WRITERS: dict[str, WriteFunction] = {"SVDF": write_svdf, "IntegerSVDF": write_integer_svdf}
