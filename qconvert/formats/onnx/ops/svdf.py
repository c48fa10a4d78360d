"""TFLite's SVDF: a product with the data, rounded to integers, and a product with the last results of the first, kept as a state."""

from __future__ import annotations

from qconvert.formats.onnx.builder import Builder, WriteFunction
from qconvert.formats.onnx.ops.dynamic import is_sum_exact, product, rounded_rows
from qconvert.formats.onnx.values import Value, axes, place_of
from qconvert.graph import Op
from qconvert.operators import is_dynamic
from qconvert.rewriting.lowering import conditions

_DATA, _MEMORY, _FEATURE, _TIME, _BIAS = range(5)


@conditions(lambda op, scope: "" if is_dynamic(op) else "has no SVDF")
def write_svdf(op: Op, b: Builder) -> None:
    """The memory is shifted by one place; each unit is the sum over the places of its filters."""
    at, rank = place_of(op, b), int(op["rank"])
    shape = b.tensor(op.inputs[_TIME]).static_shape
    if shape is None:
        raise b.unsupported_error(op, "weights with dynamic dimensions", rule="dynamic-dimension")
    filters, places = shape
    weights = b.tensor(op.inputs[_FEATURE])
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


WRITERS: dict[str, WriteFunction] = {"SVDF": write_svdf}
