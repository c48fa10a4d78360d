"""SVDF of float data, with real or int8 weights (those of int8 data: recurrent.py)."""

from __future__ import annotations

from qconvert.formats.tflite.ops.sequences import arithmetic_of, constant_int8, is_asymmetric, require_int8
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op
from qconvert.operators import is_dynamic

__all__ = ["READERS", "REAL_SVDF", "WRITERS", "read_real_svdf"]

_FEATURE, _TIME, _BIAS, _STATE = 1, 2, 3, 4
#: Types of data, both weights and state. A kernel with weights of two types reads one of them as what they are not.
REAL_SVDF = (("float32",) * 4, ("float32", "int8", "int8", "float32"))


def read_real_svdf(r: Reading) -> None:
    """Its memory is read before it and written after it."""
    rounds = r.tensor(_FEATURE).dtype == "int8"
    if rounds:
        for index in (_FEATURE, _TIME):
            constant_int8(r, index)
    if r.has(_BIAS) and r.tensor(_BIAS).dtype != "float32":
        raise r.invalid(f"has a bias of {r.tensor(_BIAS).dtype} for float data", rule="bias-type")
    activation = r.activation()
    state = r.variable(_STATE)
    before = r.read_state(state, r.tensor(_STATE))
    after = r.like("memory_after", r.tensor(_STATE), r.tensor(_STATE).shape)
    inputs = [r.input(0), before, r.input(_FEATURE), r.input(_TIME), *([r.input(_BIAS)] if r.has(_BIAS) else [])]
    arithmetic = arithmetic_of(r) if rounds else ""
    r.emit("SVDF", inputs, [r.outputs[0], after], rank=int(r.option("rank", 1)), activation=activation, arithmetic=arithmetic)
    r.write_state(state, after)


def write_real_svdf(op: Op, w: Writing) -> None:
    data, memory, feature, time, *bias = op.inputs
    if is_dynamic(op):
        for index in (2, 3):
            require_int8(w, op, index)
    w.variable(op, memory)
    w.emit(
        "SVDF", [data, feature, time, *(bias or [""]), memory], op.outputs[:1], "SVDFOptions", rank=int(op["rank"]),
        fusedActivationFunction=w.activation(op), asymmetricQuantizeInputs=is_asymmetric(op),
    )  # fmt: skip


#: SVDF is read by recurrent.py, which calls read_real_svdf().
READERS: dict[str, ReadFunction] = {}

WRITERS: dict[str, WriteFunction] = {"SVDF": write_real_svdf}
