"""Invariants of scales and zero points: of each tensor, and of the rule by which operators pass them on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from qconvert.arithmetic import accumulator_scale, is_accumulator_scale
from qconvert.arithmetic.storage import REALS, SMALL_FLOATS
from qconvert.graph import Array, Graph, Op, Quantization, Shape, Tensor, integer_range
from qconvert.operators import kind_of
from qconvert.operators.kind import Broken
from qconvert.operators.properties import AxisMove
from qconvert.operators.typing import input_type, type_problems
from qconvert.rules.validation.structure import Problems

_NO_INDEX = (*REALS, *SMALL_FLOATS, "complex64", "string")
_NOT_QUANTIZED = (*REALS, "bool", "complex64", "string", "unknown")


def quantization(graph: Graph) -> Problems:
    """Every tensor's parameters are sound, and every operator's fit its rule (operators/kind.py)."""
    for tensor in graph.tensors.values():
        if tensor.quantization is not None:
            yield from ((f"tensor {tensor.name!r}", *broken) for broken in _parameter_problems(tensor, tensor.quantization))
    for op in graph.ops:
        yield from ((op.location, *broken) for broken in _operator_problems(graph, op))


def _operator_problems(graph: Graph, op: Op) -> Iterator[Broken]:
    kind = kind_of(op)
    rule = kind.rule
    yield from _index_problems(graph, op)
    if rule == "move":
        yield from _move_problems(graph, op)
    elif rule == "real":
        yield from _computation_problems(graph, op)
    elif rule == "convert":
        yield from _conversion_problems(graph, op)
    elif rule == "relabel":
        yield from _relabel_problems(graph, op)
    elif rule == "index":
        for name in op.outputs:
            if graph.is_quantized(name):
                yield "index-quantized", f"gives plain integers, but {name!r} is quantized"
    if kind.tensor_rule is not None and (problem := kind.tensor_rule(op, graph.__getitem__)):
        yield problem
    if kind.has_weights:
        yield from _weight_problems(graph, op)
    sides = ([graph[name] if name else None for name in names] for names in (op.inputs, op.outputs))
    yield from type_problems(kind, op, *sides)


def _parameter_problems(tensor: Tensor, q: Quantization) -> Iterator[Broken]:
    """Scales are positive and finite, zero points fit the type, each index or block has one of each.

    Scales of constants in blocks may be negative or zero, as onnxruntime's quantizer makes them: nothing is ever rounded to them.
    """
    if tensor.dtype in _NOT_QUANTIZED:
        yield "not-quantizable", f"is quantized although its type is {tensor.dtype}"
        return
    if q.scale.dtype != np.float32 or q.zero_point.dtype != np.int64:
        yield "parameter-types", f"has scales of {q.scale.dtype} and zero points of {q.zero_point.dtype}, not float32 and int64"
        return
    if (q.scale.ndim != 1 and not q.block_size) or q.scale.size == 0:
        yield "counts-differ", f"has scales of shape {q.scale.shape}, not a list of at least one"
        return
    if q.zero_point.shape != q.scale.shape:
        yield "counts-differ", f"has {q.scale.size} scales and {q.zero_point.size} zero points"
    unsound = q.scale[~(np.isfinite(q.scale) & ((q.scale > 0) | (q.block_size > 0 and tensor.is_constant)))]
    if unsound.size:
        yield "scale-not-positive", f"has the scale {unsound[0]:g}, which is not positive and finite"
    if tensor.dtype in SMALL_FLOATS:
        if q.zero_point.any():
            yield "zero-point-outside-type", f"has the zero point {int(q.zero_point.max())}, which {tensor.dtype} cannot have"
        if q.quant_min is not None or q.quant_max is not None:
            yield "invalid-range", f"states a range of stored values, {q.quant_min} to {q.quant_max}, which {tensor.dtype} cannot have"
        yield from _axis_problems(tensor, q)
        return
    low, high = integer_range(tensor.dtype)
    lowest, highest = q.limits(tensor.dtype)
    if not low <= lowest < highest <= high:
        yield "invalid-range", f"uses the stored values {lowest} to {highest}, which is not a range within {tensor.dtype} ({low} to {high})"
    elif (lowest > low or highest < high) and tensor.data is not None and not _is_within(tensor.data, lowest, highest):
        yield "data-out-of-range", f"has data outside its range of stored values, {lowest} to {highest}"
    if not _is_within(q.zero_point, low, high):
        outside = next(int(point) for point in q.zero_point.reshape(-1) if not low <= int(point) <= high)
        yield "zero-point-outside-type", f"has the zero point {outside}, which is outside {tensor.dtype} ({low} to {high})"
    yield from _axis_problems(tensor, q)


def _is_within(values: Array, lowest: int, highest: int) -> bool:
    return not values.size or bool(values.min() >= lowest and values.max() <= highest)


def _axis_problems(tensor: Tensor, q: Quantization) -> Iterator[Broken]:
    if q.block_size < 0:
        yield "block-scales", f"has blocks of {q.block_size} elements"
        return
    if q.axis is None:
        if q.scale.size != 1 or q.block_size:
            yield "scales-without-axis", f"has {q.scale.size} scales in blocks of {q.block_size}, but no axis"
        return
    if tensor.shape is None or not 0 <= q.axis < len(tensor.shape):
        yield "axis-out-of-range", f"is quantized along axis {q.axis} of shape {tensor.shape}"
        return
    size = tensor.shape[q.axis]
    if isinstance(size, str):
        yield "dynamic-dimension", f"is quantized along axis {q.axis}, whose size {size!r} is dynamic"
        return
    if q.block_size:
        wanted = tuple(-(-size // q.block_size) if axis == q.axis else other for axis, other in enumerate(tensor.shape))
        if q.scale.shape != wanted:
            yield (
                "counts-differ",
                f"has scales of shape {q.scale.shape} in blocks of {q.block_size} for shape {tensor.shape}, not {wanted}",
            )
    elif q.scale.size != size:
        yield "counts-differ", f"has {q.scale.size} scales along axis {q.axis} of shape {tensor.shape}, not {size}"


def _move_problems(graph: Graph, op: Op) -> Iterator[Broken]:
    """Stored integers are moved, never changed: all data sides have one type and one quantization."""
    inputs = kind_of(op).moved_inputs(op)
    outputs = [name for name in kind_of(op).results_of(op) if name]
    source = graph[inputs[0]]
    for other in (graph[name] for name in (*inputs[1:], *outputs)):
        if other.dtype != source.dtype:
            yield "type-mismatch", f"moves {source.dtype} of {source.name!r} into {other.dtype} of {other.name!r}"
        elif not _is_moved(graph, op, source, other, is_output=other.name in outputs):
            pair = f"{source.name!r} and {other.name!r}"
            yield "quantization-mismatch", f"moves stored integers, but {pair} have different quantizations"


def _index_problems(graph: Graph, op: Op) -> Iterator[Broken]:
    """Shapes, axes, indices and conditions are plain integers or truth values."""
    kind = kind_of(op)
    for index in kind.positions(op, "index"):
        if not op.inputs[index]:
            continue
        tensor = graph[op.inputs[index]]
        if tensor.dtype in _NO_INDEX or tensor.is_quantized or (tensor.dtype == "bool" and input_type(kind, index) != "bool"):
            sort = f"quantized {tensor.dtype}" if tensor.is_quantized else tensor.dtype
            yield "not-plain-integers", f"takes {tensor.name!r} as indices or sizes, which must be plain integers, but it is {sort}"


def _computation_problems(graph: Graph, op: Op) -> Iterator[Broken]:
    """What is not quantized has one type on all sides; what is quantized on one side is float on the others."""
    kind = kind_of(op)
    for name in kind.inputs_with_role(op, "parameter"):
        if graph[name].dtype in ("bool", "string", "complex64"):
            yield "not-numbers", f"has {name!r} of {graph[name].dtype}, which is not numeric"
    if op.attributes.get("activation") and graph[op.outputs[0]].dtype in ("bool", "string"):
        yield "not-numbers", f"fuses {op['activation']} on {graph[op.outputs[0]].dtype}"
    operands = kind.data(op)[: 1 if op.kind == "Pow" else None]  # whose exponent may have a type of its own
    sides = [graph[name] for name in (*operands, *kind.results_of(op)) if name]
    plain = [tensor for tensor in sides if not tensor.is_quantized and tensor.dtype != "unknown"]
    is_quantized = any(tensor.is_quantized for tensor in sides)
    for tensor in plain:
        if is_quantized and tensor.dtype != "float32":
            yield "float-type", f"has {tensor.name!r} of plain {tensor.dtype} with quantized operands; it must be float32"
        elif tensor.dtype != plain[0].dtype:
            yield (
                "type-mismatch",
                f"has {plain[0].name!r} of {plain[0].dtype} and {tensor.name!r} of {tensor.dtype}, which must have one type",
            )


def _is_moved(graph: Graph, op: Op, source: Tensor, other: Tensor, *, is_output: bool) -> bool:
    """Whether the stored integers mean the same float values on both sides."""
    a, b = source.quantization, other.quantization
    if a is None or b is None or a.axis is None or b.axis is None:
        return a == b
    kind = kind_of(op)
    if not is_output:
        return a == b and kind.joins(op) and kind.keeps_axis is not None
    if a.block_size:
        return a == b if kind.copies else kind.transposes and a.transpose(op["perm"]) == b
    if a.with_axis(b.axis) != b or source.shape is None or other.shape is None:
        return False
    return _is_axis_kept(graph.tensors, op, source.shape, other.shape, a.axis, b.axis)


def moved_quantization(tensors: Mapping[str, Tensor], op: Op, source: Tensor, shape: Shape | None) -> Quantization | None:
    """Return the quantization of what data movement makes of quantized data; None if no axis of the result has their scales.

    Args:
        tensors: those that the operator names.
        op: the operator.
        source: its data.
        shape: of its result.
    """
    kind, quantization = kind_of(op), source.require_quantization()
    axis = quantization.axis
    if axis is None or kind.copies:
        return quantization
    if kind.transposes:
        return quantization.transpose(op["perm"])
    if quantization.block_size or shape is None or source.shape is None:
        return None
    kept = (after for after in range(len(shape)) if _is_axis_kept(tensors, op, source.shape, shape, axis, after))
    return next((quantization.with_axis(after) for after in kept), None)


def _is_axis_kept(tensors: Mapping[str, Tensor], op: Op, before: Shape, after: Shape, a: int, b: int) -> bool:
    """Whether axis `a` of a move's input is axis `b` of its output, each index in its place."""
    keeps, move = kind_of(op).keeps_axis, AxisMove(op, lambda index: _constant(tensors, op, index), before, after, a, b)
    return before[a] == after[b] and keeps is not None and keeps(move)


def _constant(tensors: Mapping[str, Tensor], op: Op, index: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The integers of constant input `index`; none if it is computed at run time."""
    data = tensors[op.inputs[index]].data if op.inputs[index] else None
    return np.zeros(0, np.int64) if data is None else np.asarray(data, np.int64).reshape(-1)


def _conversion_problems(graph: Graph, op: Op) -> Iterator[Broken]:
    """Quantize: real to quantized; Dequantize: quantized to real; Requantize: quantized to quantized."""
    for name, is_wanted in ((op.inputs[0], not kind_of(op).quantizes), (op.outputs[0], not kind_of(op).dequantizes)):
        tensor = graph[name]
        if is_wanted and not tensor.is_quantized:
            yield "not-quantized", f"needs {name!r} to be quantized, but it is plain {tensor.dtype}"
        elif not is_wanted and tensor.dtype not in REALS:
            yield "not-float", f"needs {name!r} to be float, but it is {tensor.dtype}"


def _relabel_problems(graph: Graph, op: Op) -> Iterator[Broken]:
    """The same stored integers under another quantization, or with none on one side."""
    source, result = graph[op.inputs[0]], graph[op.outputs[0]]
    if source.dtype != result.dtype or not (source.is_quantized or result.is_quantized):
        sides = " and ".join(f"{side.name!r} ({side.dtype})" for side in (source, result))
        yield "type-mismatch", f"needs quantized tensors of one type, not {sides}"


def _weight_problems(graph: Graph, op: Op) -> Iterator[Broken]:
    """Weights are quantized along O; an integer bias has the products' scale, input * weight, and no zero point."""
    data, weights = graph[op.inputs[0]], graph[op.inputs[1]]
    sides = (data, weights, graph[op.outputs[0]])
    plain = [tensor for tensor in sides if not tensor.is_quantized and tensor.dtype != "unknown"]
    for tensor in plain:
        if tensor.dtype not in REALS:
            yield "float-type", f"has {tensor.name!r} of plain {tensor.dtype}, which is neither quantized nor float"
        elif tensor.dtype != plain[0].dtype:
            yield (
                "type-mismatch",
                f"has {plain[0].name!r} of {plain[0].dtype} and {tensor.name!r} of {tensor.dtype}, which must have one type",
            )
        elif data.is_quantized and tensor.dtype != "float32":
            yield "float-type", f"has {tensor.name!r} of {tensor.dtype} with quantized data; it must be float32"
    along = weights.quantization
    if along is not None and along.axis not in (None, 0) and not along.block_size:
        yield "weight-axis", f"has weights {weights.name!r} quantized along axis {along.axis}, not along their outputs (0)"
    if data.quantization is not None and data.quantization.axis is not None:
        yield "not-per-tensor", f"has data {data.name!r} quantized per axis; it must be quantized per tensor"
    if not op.has(2) or data.quantization is None or weights.quantization is None:
        return
    bias = graph[op.inputs[2]]
    if bias.dtype == "float32" and not bias.is_quantized:
        return
    allowed = ("int32", "int64") if data.dtype == "int16" else ("int32",)
    if bias.quantization is None or bias.dtype not in allowed:
        sort = "quantized" if bias.is_quantized else "plain"
        yield "bias-type", f"has the bias {bias.name!r} of {sort} {bias.dtype}, not quantized {' or '.join(allowed)}, or float32"
        return
    if bias.quantization.zero_point.any():
        yield "bias-zero-point", f"has the bias {bias.name!r} with a zero point other than 0"
    exact = accumulator_scale(data.quantization, weights.quantization)
    stated = bias.quantization.scale
    if stated.size not in (1, exact.size) and exact.size != 1:
        yield "counts-differ", f"has the bias {bias.name!r} with {stated.size} scales, but the weights have {exact.size}"
    elif not is_accumulator_scale(stated, exact):
        both = np.broadcast_arrays(stated, exact)
        worst = int(np.argmax(np.abs(both[0] / both[1] - 1)))
        scales = f"{both[0][worst]:.9g} is not input scale * weight scale, {both[1][worst]:.9g}"
        yield "bias-scale", f"has the bias {bias.name!r} whose scale {scales}"
