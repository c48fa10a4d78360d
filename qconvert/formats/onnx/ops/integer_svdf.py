"""TFLite's int8 SVDF, written in float64 arithmetic on integers: equal to its kernel in every bit."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import IntegerSvdf
from qconvert.formats.onnx.builder import ELEMENT_TYPES, Builder, WriteFunction
from qconvert.formats.onnx.ops.integer_arithmetic import Rescale
from qconvert.formats.onnx.ops.svdf import shift_memory, unit_sums
from qconvert.graph import Array, Op, integer_range
from qconvert.operators.integer_recurrent import SVDF_INPUTS, integer_svdf, name_tensors

__all__ = ["WRITERS"]

_FLOAT64 = ELEMENT_TYPES["float64"]


def write_integer_svdf(op: Op, b: Builder) -> None:
    """The memory is shifted by one place; the newest product, and the sum over places and filters, are rescaled."""
    tensors = name_tensors(op, SVDF_INPUTS, b.tensor)
    values = {role: tensor.data for role, tensor in tensors.items() if tensor.data is not None}
    if "feature" not in values or "time" not in values or ("bias" in tensors and "bias" not in values):
        raise b.unsupported_error(op, "weights that are computed at run time", rule="weights-not-constant")
    layer, hint, names = integer_svdf(op, tensors, values), op.outputs[0], dict(zip(SVDF_INPUTS, op.inputs, strict=False))
    newest, result = _svdf_rescales(op, b, layer)
    filters, places = layer.time[0].shape
    wide = b.node("Cast", [b.stored_value(names["data"])], hint=f"{hint}/data", to=_FLOAT64)
    data = b.node("Sub", [*wide, b.const(np.float64(layer.data[1]), f"{hint}/zero_point")], hint=f"{hint}/data")[0]
    turned = b.node("Transpose", [b.stored_value(names["feature"])], hint=f"{hint}/feature", perm=[1, 0])
    sums = b.node("MatMul", [data, *b.node("Cast", turned, hint=f"{hint}/feature", to=_FLOAT64)], hint=f"{hint}/sums")[0]
    stored, zero = tensors["memory"].dtype, layer.memory_zero_point
    limited = _clip_to_type(b, newest.emit(b, b, sums, f"{hint}/newest"), stored, f"{hint}/newest", zero)
    real = b.cast(b.stored_value(names["memory"]), "float64", hint=f"{hint}/memory")  # integers that are moved take a label along
    if zero:
        real = b.node("Sub", [real, b.const(np.float64(zero), f"{hint}/memory/zero_point")], hint=f"{hint}/memory")[0]
    kept, moved = shift_memory(b, real, limited, (filters, places), hint)
    time = b.cast(b.stored_value(names["time"]), "float64", hint=f"{hint}/time")
    summed = unit_sums(b, kept, time, (filters // layer.rank, layer.rank * places), hint)
    if names.get("bias"):
        bias = b.node("Cast", [b.stored_value(names["bias"])], hint=f"{hint}/bias", to=_FLOAT64)
        summed = b.node("Add", [summed, *bias], hint=f"{hint}/total")[0]
    steps = result.emit(b, b, _wrap_to_int32(b, summed, layer, hint), f"{hint}/result")
    placed = b.node("Add", [steps, b.const(np.float64(layer.output[1]), f"{hint}/zero_point")], hint=f"{hint}/placed")[0]
    b.cast(_clip_to_type(b, placed, "int8", f"{hint}/stored"), "int8", op.outputs[0])
    if op.outputs[1]:
        if zero:
            moved = b.node("Add", [moved, b.const(np.float64(zero), f"{hint}/memory/zero_point")], hint=f"{hint}/memory_after")[0]
        b.cast(moved, stored, op.outputs[1])


def _svdf_rescales(op: Op, b: Builder, layer: IntegerSvdf) -> tuple[Rescale, Rescale]:
    """Of the newest value of each filter, and of the results."""
    feature = layer.feature[0].astype(np.int64)
    largest_sums = np.abs(feature).sum(axis=1) * max(127 - layer.data[1], 128 + layer.data[1])
    newest = Rescale.of(np.full(len(feature), layer.newest_factor), largest_sums)
    result = Rescale.of(np.full(len(feature) // layer.rank, layer.result_factor), np.minimum(_largest_total(layer), 2**31 - 1))
    if newest is None or result is None:
        raise b.unsupported_error(op, "sums that may overflow in its kernel", rule="may-overflow")
    return newest, result


def _largest_total(layer: IntegerSvdf) -> Array:
    """The largest magnitude of a sum over the memory, for each unit."""
    total = np.abs(layer.time[0].astype(np.int64)).sum(axis=1).reshape(-1, layer.rank).sum(axis=1)
    total *= 2**15 if layer.time[0].dtype == np.int16 else 2**8  # an int8 memory may be as far from its zero point
    return np.asarray(total + (0 if layer.bias is None else np.abs(layer.bias.astype(np.int64))))


def _wrap_to_int32(b: Builder, total: str, layer: IntegerSvdf, hint: str) -> str:
    """Sums as the kernel has them in int32, where they may leave it: from its other end."""
    if _largest_total(layer).max(initial=0) < 2**31:
        return total
    size, half = (b.const(np.float64(value), f"{hint}/{word}") for value, word in ((2.0**32, "size"), (2.0**31, "half")))
    turns = b.node("Floor", b.node("Div", [*b.node("Add", [total, half], hint=f"{hint}/total"), size], hint=f"{hint}/turns"))
    return b.node("Sub", [total, *b.node("Mul", [*turns, size], hint=f"{hint}/turns")], hint=f"{hint}/total")[0]


def _clip_to_type(b: Builder, value: str, dtype: str, hint: str, zero_point: int = 0) -> str:
    """Whole numbers in float64, limited to those of an integer type less its zero point."""
    low, high = (end - zero_point for end in integer_range(dtype))
    return b.node("Clip", [value, *(b.const(np.float64(end), f"{hint}/{word}") for end, word in ((low, "lowest"), (high, "highest")))])[0]


WRITERS: dict[str, WriteFunction] = {"IntegerSVDF": write_integer_svdf}
