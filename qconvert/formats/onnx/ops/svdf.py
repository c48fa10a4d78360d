"""TFLite's SVDF: a product with the data, and a product with the last results of the first, kept as a state.

Of float data it is rounded to integers as its kernel does; of int8 data it is written in float64 arithmetic on integers, equal to the
kernel in every bit.
"""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import IntegerSvdf
from qconvert.formats.onnx.builder import Builder, Writers
from qconvert.formats.onnx.ops.dynamic import is_sum_exact, product, rounded_rows
from qconvert.formats.onnx.ops.integer_arithmetic import Rescale
from qconvert.formats.onnx.values import Value, axes, place_of
from qconvert.graph import Array, Op, integer_range
from qconvert.operators import is_dynamic
from qconvert.operators.integer_recurrent import SVDF_INPUTS, integer_svdf, name_tensors
from qconvert.rewriting.lowering import conditions

_DATA, _MEMORY, _FEATURE, _TIME, _BIAS = range(5)


@conditions(lambda op, scope: "" if is_dynamic(op) else "has no SVDF")
def write_svdf(op: Op, b: Builder) -> None:
    """The memory is shifted by one place; each unit is the sum over the places of its filters."""
    at, rank = place_of(op, b), int(op["rank"])
    shape = b.operand(op, _TIME).static_shape
    if shape is None:
        raise b.unsupported_error(op, "weights with dynamic dimensions", rule="dynamic-dimension")
    filters, places = shape
    weights = b.operand(op, _FEATURE)
    if weights.data is None or weights.quantization is None or not weights.quantization.is_per_tensor or weights.dtype != "int8":
        raise b.unsupported_error(op, "weights that are not an int8 constant with one scale", rule="weight-quantization")
    steps, scale = rounded_rows(at.floats(op.inputs[_DATA]), str(op["arithmetic"]))
    sums = product(steps, at.stored(weights.name, "int8").transpose(1, 0), exact=is_sum_exact(weights.data))
    newest = sums * (scale * weights.quantization.scale.reshape(()))
    kept, moved = shift_memory(at.floats(op.inputs[_MEMORY]), newest, (filters, places))
    total = unit_sums(kept * at.floats(op.inputs[_TIME]), (filters // rank, rank * places))
    if op.has(_BIAS):
        total = total + at.floats(op.inputs[_BIAS])
    b.finish(op, total.name)
    b.rename(moved.name, op.outputs[1])


def shift_memory(memory: Value, newest: Value, sizes: tuple[int, int]) -> tuple[Value, Value]:
    """The memory with the newest values at its end, of shape (rows, filters, places), and as it is kept.

    Args:
        memory: of shape (rows, filters * places).
        newest: of shape (rows, filters).
        sizes: filters and places.
    """
    filters, places = sizes
    older = memory.then("Reshape", axes(-1, filters, places)).then("Slice", axes(1), axes(places), axes(2))
    kept = older.then("Concat", newest.then("Reshape", axes(-1, filters, 1)), axis=2)
    return kept, kept.then("Reshape", axes(-1, filters * places))


def unit_sums(products: Value, sizes: tuple[int, int]) -> Value:
    """The sums over the memory, of shape (rows, units).

    Args:
        products: of the memory and its weights, of shape (rows, filters, places).
        sizes: units, and terms of each.
    """
    return products.then("Reshape", axes(-1, *sizes)).reduce("ReduceSum", 2, keepdims=0)


def write_integer_svdf(op: Op, b: Builder) -> None:
    """The memory is shifted by one place; the newest product, and the sum over places and filters, are rescaled."""
    tensors = name_tensors(op, SVDF_INPUTS, b.tensor)
    values = {role: tensor.data for role, tensor in tensors.items() if tensor.data is not None}
    if "feature" not in values or "time" not in values or ("bias" in tensors and "bias" not in values):
        raise b.unsupported_error(op, "weights that are computed at run time", rule="weights-not-constant")
    layer, at = integer_svdf(op, tensors, values), place_of(op, b)
    newest, result = _svdf_rescales(op, b, layer)
    filters, places = layer.time[0].shape
    names = {role: name for role, name in zip(SVDF_INPUTS, op.inputs, strict=False) if name}

    def real(role: str) -> Value:
        return at.stored(names[role], "float64")

    sums = (real("data") - layer.data[1]) @ at.stored(names["feature"]).transpose(1, 0).cast("float64")
    zero = layer.memory_zero_point
    lowest, highest = (end - zero for end in integer_range(tensors["memory"].dtype))
    memory = real("memory")  # integers that are moved take a label along
    memory = memory - zero if zero else memory
    kept, moved = shift_memory(memory, newest.emit(sums).clip(lowest, highest), (filters, places))
    total = unit_sums(kept * real("time"), (filters // layer.rank, layer.rank * places))
    total = total + real("bias") if "bias" in names else total
    placed = result.emit(_wrap_to_int32(total, layer)) + layer.output[1]
    placed.clip(*integer_range("int8")).finish(op.outputs[0])
    (moved + zero if zero else moved).finish(op.outputs[1])


def _svdf_rescales(op: Op, b: Builder, layer: IntegerSvdf) -> tuple[Rescale, Rescale]:
    """Of the newest value of each filter, and of the results."""
    feature = layer.feature[0].astype(np.int64)
    largest_sums = np.abs(feature).sum(axis=1) * max(127 - layer.data[1], 128 + layer.data[1])
    newest = Rescale.of(np.full(len(feature), layer.newest_factor), largest_sums, op, b)
    factors = np.full(len(feature) // layer.rank, layer.result_factor)
    return newest, Rescale.of(factors, np.minimum(_largest_total(layer), 2**31 - 1), op, b)


def _largest_total(layer: IntegerSvdf) -> Array:
    """The largest magnitude of a sum over the memory, for each unit."""
    total = np.abs(layer.time[0].astype(np.int64)).sum(axis=1).reshape(-1, layer.rank).sum(axis=1)
    total *= 2**15 if layer.time[0].dtype == np.int16 else 2**8  # an int8 memory may be as far from its zero point
    return np.asarray(total + (0 if layer.bias is None else np.abs(layer.bias.astype(np.int64))))


def _wrap_to_int32(total: Value, layer: IntegerSvdf) -> Value:
    """Sums as the kernel has them in int32, where they may leave it: from its other end."""
    if _largest_total(layer).max(initial=0) < 2**31:
        return total
    turns = ((total + 2.0**31) / 2.0**32).floor()
    return total - turns * 2.0**32


WRITERS: Writers = {
    "SVDF": write_svdf,
    "IntegerSVDF": write_integer_svdf,
}
