"""TFLite's SVDF of float data: a product with the data, and one with the last values of that, which are a state."""

from __future__ import annotations

import numpy as np

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.dynamic import is_sum_exact, product, rounded_rows
from qconvert.graph import Op
from qconvert.operators import is_dynamic

__all__ = ["WRITERS", "shift_memory", "unit_sums"]

_DATA, _MEMORY, _FEATURE, _TIME, _BIAS = range(5)


def write_svdf(op: Op, b: Builder) -> None:
    """The memory is shifted by one place; each unit is the sum over the places of its filters."""
    hint, rank = op.outputs[0], int(op["rank"])
    shape = b.tensor(op.inputs[_TIME]).static_shape
    if shape is None:
        raise b.unsupported_error(op, "weights with dynamic dimensions", rule="dynamic-dimension")
    filters, places = shape
    kept, moved = shift_memory(b, b.float_value(op.inputs[_MEMORY]), _filter_products(op, b), (filters, places), hint)
    total = unit_sums(b, kept, b.float_value(op.inputs[_TIME]), (filters // rank, rank * places), hint)
    if op.has(_BIAS):
        total = b.node("Add", [total, b.float_value(op.inputs[_BIAS])], hint=f"{hint}/total")[0]
    b.finish(op, total)
    b.rename(moved, op.outputs[1])


def _filter_products(op: Op, b: Builder) -> str:
    """What each filter makes of the data."""
    hint = op.outputs[0]
    if not is_dynamic(op):
        turned = b.node("Transpose", [b.float_value(op.inputs[_FEATURE])], hint=f"{hint}/feature", perm=[1, 0])
        return b.node("MatMul", [b.float_value(op.inputs[_DATA]), *turned], hint=f"{hint}/newest")[0]
    weights = b.tensor(op.inputs[_FEATURE])
    if weights.data is None or weights.quantization is None or not weights.quantization.is_per_tensor or weights.dtype != "int8":
        raise b.unsupported_error(op, "weights that are not an int8 constant with one scale", rule="weight-quantization")
    turned = b.node("Transpose", [b.stored_value(weights.name)], hint=f"{hint}/feature", perm=[1, 0])
    steps, scale = rounded_rows(b, b, b.float_value(op.inputs[_DATA]), str(op["arithmetic"]), f"{hint}/rows")
    sums = product(b, b, steps, turned[0], f"{hint}/newest", exact=is_sum_exact(weights.data))
    own = b.const(weights.quantization.scale.reshape(()), f"{hint}/feature/scale")
    return b.node("Mul", [sums, *b.node("Mul", [scale, own], hint=f"{hint}/scale")], hint=f"{hint}/newest")[0]


def shift_memory(b: Builder, memory: str, newest: str, sizes: tuple[int, int], hint: str) -> tuple[str, str]:
    """The memory with the newest values at its end, of shape (rows, filters, places), and as it is kept.

    Args:
        b: the graph.
        memory: of shape (rows, filters * places).
        newest: of shape (rows, filters).
        sizes: filters and places.
        hint: for names.
    """
    filters, places = sizes
    shapes = ([-1, filters, places], [-1, filters, 1], [-1, filters * places])
    whole, column, flat = (b.const(np.array(shape, np.int64), f"{hint}/sizes") for shape in shapes)
    bounds = [b.const(np.array([value], np.int64), f"{hint}/{word}") for value, word in ((1, "first"), (places, "last"), (2, "axis"))]
    older = b.node("Slice", [*b.node("Reshape", [memory, whole], hint=f"{hint}/memory"), *bounds], hint=f"{hint}/older")[0]
    last = b.node("Reshape", [newest, column], hint=f"{hint}/newest")[0]
    kept = b.node("Concat", [older, last], hint=f"{hint}/kept", axis=2)[0]
    return kept, b.node("Reshape", [kept, flat], hint=f"{hint}/memory_after")[0]


def unit_sums(b: Builder, kept: str, time: str, sizes: tuple[int, int], hint: str) -> str:
    """The sums over the memory, of shape (rows, units).

    Args:
        b: the graph.
        kept: the memory, of shape (rows, filters, places).
        time: its weights, of shape (filters, places).
        sizes: units, and terms of each.
        hint: for names.
    """
    products = b.node("Mul", [kept, time], hint=f"{hint}/products")[0]
    grouped = b.node("Reshape", [products, b.const(np.array([-1, *sizes], np.int64), f"{hint}/units")], hint=f"{hint}/units")[0]
    return b.node("ReduceSum", [grouped, b.const(np.array([2], np.int64), f"{hint}/along")], hint=f"{hint}/total", keepdims=0)[0]


WRITERS: dict[str, WriteFunction] = {"SVDF": write_svdf}
