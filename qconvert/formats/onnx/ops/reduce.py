"""Reductions, running sums and searches along axes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.arithmetic import tflite_mean_multiplier
from qconvert.arithmetic.storage import REALS
from qconvert.formats.onnx.builder import Builder, WriteFunction, Writers
from qconvert.formats.onnx.ops.integer_arithmetic import AWAY_40
from qconvert.formats.onnx.reading import NotCoveredError, Readers, Reading
from qconvert.formats.onnx.values import Value, axes_opset, place_of
from qconvert.graph import Graph, Op, Quantization, integer_range, numpy_dtype
from qconvert.kernels import KERNELS
from qconvert.kernels.litert.forms import reduction, xnnpack_reduction_form
from qconvert.operators import reduced_count
from qconvert.rewriting.lowering import conditions, since

_HALF_BITS = 16


def write_as_xnnpack(op: Op, b: Builder) -> None:
    """XNNPACK's arithmetic in float32, in which the sums are exact, of a reduction of 8-bit data that forms.reduction() takes; or the
    kernel of onnxruntime that gives the same."""
    kernel = KERNELS["onnxruntime:optimized"].of(b.graph, op) if b.forms.guards else None
    if kernel is not None and kernel.runs == "integers":
        _write_pool(op, b)
        return
    result, (given, output, count) = b.result(op), _quantizations(op, b)
    factor, offset, shift = xnnpack_reduction_form(op, result.dtype, (given, output), count)
    total = _sum(op, b, "float32")
    scaled = ((total + -shift * count if shift else total) * factor + offset).round()
    store_steps(op, scaled + shift if shift else scaled)


def _write_pool(op: Op, b: Builder) -> None:
    """Write a mean over all positions as a GlobalAveragePool, which onnxruntime runs as one kernel instead of eight."""
    result = b.result(op)
    pooled = b.node("GlobalAveragePool", [b.float_value(op.inputs[0])], hint=f"{result.name}/pooled")[0]
    if op["keepdims"]:
        b.quantize(pooled, result, result.name)
    else:
        b.quantize(pooled, result, kept := b.name(f"{result.name}/kept"))
        b.node("Squeeze", [kept, b.stored_value(op.inputs[1])], [result.name])


def write_as_tflite(op: Op, b: Builder) -> None:
    """TFLite's arithmetic of 16-bit data in float64: the halves of the multiplier one by one, so that no product has more than 53 bits."""
    multiplier, shift = tflite_mean_multiplier(*_quantizations(op, b))
    total = _sum(op, b, "int32").cast("float64")
    total = total * 2.0**shift if shift > 0 else total
    high, low = divmod(multiplier, 2**_HALF_BITS)
    steps = ((total * high + (total * (low * 2.0**-_HALF_BITS)).floor()) * 2.0 ** (_HALF_BITS - 31)).round_up()
    store_steps(op, (steps * (2.0**shift * AWAY_40)).round() if shift < 0 else steps)


def _sum(op: Op, b: Builder, dtype: str) -> Value:
    """The sum of the stored integers over the operator's axes, as another type."""
    at = place_of(op, b)
    return at.value(_reduce(op, b, "ReduceSum", at.stored(op.inputs[0], dtype).name), dtype)


def _quantizations(op: Op, b: Builder) -> tuple[Quantization, Quantization, int]:
    given, output = (b.tensor(name).quantization for name in (op.inputs[0], op.outputs[0]))
    count = reduced_count(b.graph, op)
    assert given is not None and output is not None and count is not None
    return given, output, count


def store_steps(op: Op, steps: Value) -> None:
    """Store whole numbers, with the zero point, as the result of an operator does."""
    steps.clip(*integer_range(steps.at.b.result(op).dtype)).finish(op.outputs[0])


#: Plain integers that go through int32.
_NARROW = ("int8", "uint8", "int16", "uint16")


def _reduce(op: Op, b: Builder, kind: str, value: str) -> str:
    """A reduction node: axes are an input in newer opsets, an attribute in older ones."""
    inputs, axes = [value], None
    if b.opset >= axes_opset(kind):
        inputs.append(b.stored_value(op.inputs[1]))
    else:
        axes = b.integers(op, 1) or None
    return b.node(kind, inputs, hint=f"{op.outputs[0]}/reduced", axes=axes, keepdims=op["keepdims"])[0]


def write_reduce(op: Op, b: Builder) -> None:
    """A reduction of float values, or of stored integers where a kernel's own rounding is asked for."""
    if op.attributes.get("arithmetic") and reduction(b.graph, op):
        (write_as_tflite if op["arithmetic"] == "tflite" else write_as_xnnpack)(op, b)
    else:
        b.finish(op, _reduce(op, b, op.kind, b.float_value(op.inputs[0])))


def write_mean(op: Op, b: Builder) -> None:
    """ReduceMean; that of no real elements is no number, of which onnxruntime makes 0."""
    if _is_empty(op, b):
        zero, nothing = _reduce(op, b, "ReduceSum", b.float_value(op.inputs[0])), numpy_dtype(b.operand(op).dtype).type(np.nan)
        b.finish(op, b.node("Mul", [zero, b.const(nothing, f"{op.outputs[0]}/nothing")])[0])
    else:
        write_reduce(op, b)


def write_reduce_wide(op: Op, b: Builder) -> None:
    """A reduction that plain integers of few bits have too: ONNX reduces none of them, so that they go through int32, which wraps around in
    the end."""
    tensor, result = b.operand(op), b.result(op)
    if tensor.is_quantized or result.is_quantized or tensor.dtype not in _NARROW:
        write_reduce(op, b)
        return
    wide = b.cast(b.stored_value(tensor.name), "int32")
    b.cast(_reduce(op, b, op.kind, wide), result.dtype, result.name)


def _is_empty(op: Op, b: Builder) -> bool:
    """Whether a reduction to real values has axes without elements."""
    tensor, result = b.operand(op), b.result(op)
    if tensor.dtype not in REALS or result.is_quantized:
        return False
    axes = b.graph.constant(op.inputs[1]) if op.has(1) else None
    shape = tensor.shape
    return shape is not None and 0 in (shape if axes is None or not axes.size else [shape[int(axis)] for axis in axes.reshape(-1)])


def _make_logic_writer(op_type: str) -> WriteFunction:
    """The writer of a reduction of booleans, as the largest or smallest of 0 and 1."""

    def write(op: Op, b: Builder) -> None:
        numbers = b.cast(b.stored_value(op.inputs[0]), "int32")
        b.cast(_reduce(op, b, op_type, numbers), "bool", op.outputs[0])

    return write


def write_cumulative(op: Op, b: Builder) -> None:
    """CumSum and CumProd; ONNX takes the axis as an input."""
    axis = b.const(np.int64(op["axis"]), f"{op.outputs[0]}/axis")
    b.compute(op, [b.float_value(op.inputs[0]), axis])


def write_arg(op: Op, b: Builder) -> None:
    """ArgMax and ArgMin of stored integers: a positive scale keeps their order."""
    tensor = b.operand(op)
    value = b.stored_value(tensor.name) if tensor.dtype in ("int8", "uint8", "int32", "float32") else b.float_value(tensor.name)
    if tensor.dtype in ("int16", "int64", "bool") and tensor.quantization is None:
        value = b.cast(value, "int32", hint=f"{tensor.name}/int32")
    b.node(op.kind, [value], op.outputs, **b.own_attributes(op))


def read_reduce(r: Reading) -> None:
    """A reduction along axes: an attribute in older opsets, an input in newer ones; all of them if none are named."""
    if r.has(1) and r.constant(1) is None and not r.attribute("noop_with_empty_axes", 0):
        r.emit(r.op_type, r.inputs[:2], **r.own_attributes())
        return
    axes = r.ints(1) if r.has(1) else tuple(r.attribute("axes", ()))
    if not axes and r.attribute("noop_with_empty_axes", 0):
        if r.op_type not in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
            raise NotCoveredError(f"{r.op_type} of single elements")
        r.emit("Identity", [r.input(0)])
        return
    if axes and r.has(1):
        name = r.fold_input(1)
    else:
        name = r.list64(axes or range(r.rank()), "axes")
    r.emit(r.op_type, [r.input(0), name], **r.own_attributes())


def read_arg(r: Reading) -> None:
    """ArgMax and ArgMin: the first of equal elements."""
    r.require_only(select_last_index=0)
    r.emit(r.op_type, **r.own_attributes())


def read_cumulative(r: Reading) -> None:
    """CumSum and CumProd along a known axis."""
    axes = r.ints(1)
    if len(axes) != 1:
        raise r.invalid(f"{len(axes)} axes, not one", rule="counts-differ")
    r.emit(r.op_type, [r.input(0)], axis=axes[0], **r.own_attributes())


def read_top_k(r: Reading) -> None:
    """TopK: k is an attribute before opset 10."""
    k = r.fold_input(1) if r.version >= 10 else r.list64([r.attribute("k")], "k")
    r.emit("TopK", [r.input(0), k], **r.own_attributes())


def _opset(graph: Graph, op: Op) -> int:
    """The opset in which axes that are computed can be an input of a reduction."""
    is_computed = op.has(1) and not graph[op.inputs[1]].is_constant
    return axes_opset(op.kind) if is_computed else 0


_REDUCTIONS = "Mean Sum Prod Max Min L1 L2 SumSquare LogSum LogSumExp"

WRITERS: Writers = {
    **dict.fromkeys([f"Reduce{name}" for name in _REDUCTIONS.split()], write_reduce),
    **dict.fromkeys(("ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"), write_reduce_wide),
    "ReduceMean": write_mean,
    "ReduceAny": _make_logic_writer("ReduceMax"),
    "ReduceAll": _make_logic_writer("ReduceMin"),
    "CumSum": write_cumulative,
    "CumProd": conditions(since(26))(write_cumulative),
    "ArgMax": write_arg,
    "ArgMin": write_arg,
}

READERS: Readers = {
    **dict.fromkeys([f"Reduce{name}" for name in _REDUCTIONS.split()], read_reduce),
    "ArgMax": read_arg,
    "ArgMin": read_arg,
    "CumSum": read_cumulative,
    "CumProd": read_cumulative,
    "TopK": read_top_k,
}

OPSETS: dict[str, Callable[[Graph, Op], int]] = {kind: _opset for kind in WRITERS if kind.startswith("Reduce")}
