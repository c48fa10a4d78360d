"""Operators whose activations lose their zero points: which go on with integers, why others do not, and how they take the shifts in.
Conv, Gemm and MatMul with constant weights take the shifts of data and result into their sums of products. Averages that round ties
away from the stored zero, as TFLite's do, round away from 0 on shifted values: a factor a little above 1 rounds ties so and takes no
other value across a half. A MatMul of two activations gets products with sums of the other side: of float values a = a' - s and b = b'
- t, where a' and b' are what the integers stand for without zero points, a product over the depth K is a' b' - s * (sums of b' along K)
- t * (sums of a' along K) + K s t. The first term is a product of symmetric quantizations; the others are computed in float32 next to
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Shape, Tensor, drop_keys
from qconvert.graph.activations import activation_bounds, clip_range
from qconvert.operators import kind_of, output_axis
from qconvert.operators.products import is_product_of_activations
from qconvert.operators.sizes import SAME, axes_of_space, padding
from qconvert.passes.shifted_graph import Shifting
from qconvert.rewriting import Pattern, Rewriter


def linear_obstacle(graph: Graph, op: Op, is_shifted: bool) -> str:
    """Return why an operator cannot take shifts in, in the words of a list of many; "" if it can.

    Args:
        graph: that it belongs to.
        op: a linear one.
        is_shifted: whether its data have a zero point that goes.
    """
    data, weights = graph[op.inputs[0]], graph[op.inputs[1]]
    if data.quantization is None or weights.quantization is None or data.is_constant:
        return "part of their data is float"
    if weights.data is None:
        return "their factor is computed"
    if op.has(2) and graph[op.inputs[2]].data is None:
        return "their bias is computed"
    return "they pad data with dynamic dimensions" if is_shifted and _pads(graph, op) is None else ""


def _limits(graph: Graph, op: Op) -> tuple[int, int] | None:
    """Return the stored integers that the activation of an operator leaves; None where it has none, or the quantization of its result
    implies it."""
    result = graph[op.name]
    if not _on_quantization(result) or not op.attributes.get("activation"):
        return None
    limits = clip_range(result, activation_bounds(op))
    return None if result.quantization is None or limits == result.quantization.limits(result.dtype) else limits


def _on_quantization(tensor: Tensor) -> bool:
    """Whether saturation stands for an activation."""
    return tensor.per_tensor is not None and "int" in tensor.dtype


def is_touched(s: Shifting, op: Op) -> bool:
    """Whether there is anything to change about a linear operator."""
    shifts = s.shift(op.inputs[0]) or s.shift(op.name)
    return bool(shifts) or (s.graph[op.inputs[0]].is_quantized and _limits(s.graph, op) is not None)


def shift_linear(s: Shifting, op: Op) -> None:
    """Emit the operator with the shifts in its bias, padding of its own and activation where its quantization does not imply it."""
    data, name = op.inputs[0], op.name
    result, limits = s.graph[name], _limits(s.graph, op)
    attributes = drop_keys(op.attributes, "activation", "arithmetic")
    fused = {"activation": op["activation"]} if op.attributes.get("activation") and not _on_quantization(result) else {}
    source = s.twin(data)
    if "pads" in op.attributes and s.shift(data):
        source = s.pad_with_zero(data, _amounts(s.graph, op))
        attributes |= {"auto_pad": "NOTSET", "pads": (0,) * 2 * len(op["strides"])}
    plain = replace(op, inputs=(source, op.inputs[1], *_bias(s, op)), attributes=attributes)
    adds = not kind_of(op).has_weights and bool(s.shift(data) or s.shift(name))
    if limits is None and not adds:
        s.emit(replace(plain.with_attributes(**fused), outputs=(s.twin(name),)))
        s.give_out(name)
        return
    value = s.add_float(f"{name}/real", result)
    s.emit(replace(plain, outputs=(value,)))
    if adds:
        total = shift_of_sums(op, s.graph[op.inputs[1]], s.shift(data), s.shift(name))
        row = s.constant(f"{name}/shift", total[..., None, :].astype(np.float32))
        moved = s.add(f"{name}/moved", s[value]) if result.is_quantized else name
        value = s.write("Add", (value, row), moved, **fused)
    if limits is not None:
        value = _emit_clip(s, name, value, limits)
    if result.is_quantized:
        s.quantize(value, name)


def _emit_clip(s: Shifting, name: str, value: str, limits: tuple[int, int]) -> str:
    """Clip float values so that they leave the stored integers between the limits."""
    quantization = s.quantization(name)
    point = 0 if s.shift(name) else quantization.point
    clip = s.clip(value, [(limit - point) * quantization.step for limit in limits], name)
    s.counts["activations are Clips in float"] += 1
    clipped = s.add_float(f"{name}/clipped", s.graph[name])
    s.emit(replace(clip, outputs=(clipped,)))
    return clipped


def shift_of_sums(op: Op, weights: Tensor, data: float, result: float) -> Array:
    """Return what has to be added to the sums of each output channel, in float64, for the data and the result to be larger by some numbers.

    That is the shift of the result, less the sum of the channel's weights times the shift of the data.
    """
    real = weights.float_values().astype(np.float64)
    if not kind_of(op).has_weights:
        channels = output_axis(op, real.ndim)
        depth = real.ndim - 1 if channels == real.ndim - 2 else real.ndim - 2
        return np.asarray(result - real.sum(depth) * data)
    return np.asarray(result - real.reshape(len(real), -1).sum(1) * data)


def _bias(s: Shifting, op: Op) -> tuple[str, ...]:
    """Return the bias with both shifts: that of the data is taken off, that of the result put on."""
    old, shifts = op.input(2), (s.shift(op.inputs[0]), s.shift(op.name))
    if not kind_of(op).has_weights or not any(shifts):
        return (old,) if old else ()
    total = shift_of_sums(op, s.graph[op.inputs[1]], *shifts)
    if old:
        total = total + s.graph[old].float_values()
    elif not np.any(total):
        return ()
    return (s.bias(old, total, op.name),)


def _pads(graph: Graph, op: Op) -> list[tuple[int, int]] | None:
    """Return the padding of a Conv before and after each spatial axis; None if it depends on unknown sizes. A product of matrices has
    none."""
    if "pads" not in op.attributes:
        return []
    shape, taps = graph[op.inputs[0]].shape, graph[op.inputs[1]].static_shape
    if shape is None or taps is None:
        return None
    sizes = [shape[axis] for axis in axes_of_space(op, shape)]
    if op["auto_pad"] in SAME and any(isinstance(size, str) for size in sizes):
        return None
    known = tuple(size if isinstance(size, int) else 0 for size in sizes)
    return padding(op, known, taps[2:], tuple(op["dilations"]))


def _amounts(graph: Graph, op: Op) -> tuple[int, ...]:
    """Return what a Conv adds before each axis of its data, and then after."""
    pads, shape = _pads(graph, op), graph[op.inputs[0]].shape
    assert pads is not None and shape is not None
    before, following = [0] * len(shape), [0] * len(shape)
    for axis, pad in zip(axes_of_space(op, shape), pads, strict=True):
        before[axis], following[axis] = pad
    return (*before, *following)


#: Shifts a tie of 128 steps by 2**-9 of one: less than the difference of two averages of up to 128 integers, more than the error of
#: float32 sums of as many.
NUDGE = float(np.float32(1 + 2.0**-16))
_MOST = 128
_FLOAT_AVERAGE = Pattern("Quantize", Pattern("AveragePool", Pattern("Dequantize", "stored"), name="average"))


def is_ties_away_average(graph: Graph | Rewriter, op: Op) -> bool:
    """Whether an operator is such an average of integers, to the quantization that these have, without padding."""
    if op.attributes.get("arithmetic") != "ties_away" or any(op["pads"]) or op.attributes.get("activation"):
        return False
    data, result = graph[op.inputs[0]], graph[op.name]
    is_plain = op["auto_pad"] == "NOTSET" and not op["ceil_mode"] and math.prod(op["kernel_shape"]) <= _MOST
    has_point = data.dtype == "int8" and data.quantization is not None and not data.quantization.is_symmetric
    return is_plain and has_point and data.shares_quantization(result)


def join_averages(graph: Graph) -> Graph:
    """Put such averages on integers that ran in float between Dequantize and Quantize."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        match = rewriter.match(_FLOAT_AVERAGE, op.name)
        if match is None or not rewriter.is_read_once(op.inputs[0]):
            continue
        average = match.named["average"]
        made = replace(average, inputs=(match.tensors["stored"],), outputs=op.outputs)
        if is_ties_away_average(graph, made):
            rewriter.replace(op, made)
            rewriter.remove(average)
    for op in rewriter if rewriter.is_changed else ():
        readers = rewriter.readers[op.name]
        if kind_of(op).dequantizes and op.name not in graph.public and all(map(rewriter.is_replaced, readers)):
            rewriter.remove(op)
    return rewriter.finish()


def shift_average(s: Shifting, op: Op) -> None:
    """Emit the average of shifted float values, and the factor."""
    attributes = drop_keys(op.attributes, "arithmetic")
    name = op.name
    value = s.dequantize_shifted(op.inputs[0])
    value = s.compute_float("AveragePool", (value,), f"{name}/average", name, **attributes)
    factor = s.constant(f"{name}/away", NUDGE)
    value = s.compute_float("Mul", (value, factor), f"{name}/away_from_zero", name)
    s.quantize(value, name)


def is_shifted_product(s: Shifting, op: Op) -> bool:
    """Whether an operator is such a product, with a shift on any side."""
    if not kind_of(op).is_matrix_product or any(s.graph[name].is_constant for name in op.inputs[:2]):
        return False
    return any(s.shift(name) for name in (*op.inputs[:2], op.name))


def shift_product(s: Shifting, op: Op) -> None:
    """Emit the product of the integers and what the shifts add to it."""
    first, second = (_transpose_operand(s, name, bool(op.attributes.get(turned)))
                     for name, turned in zip(op.inputs, ("trans_a", "trans_b"), strict=True))  # fmt: skip
    name, shifts = op.name, [s.shift(side) for side in op.inputs]
    result = s.graph[name]
    value = s.compute_float("MatMul", (first, second), f"{name}/real", name)
    for side, shift, axis in ((second, shifts[0], -2), (first, shifts[1], -1)):
        if shift:
            value = s.compute_float("Sub", (value, _emit_sums(s, side, shift, axis)), f"{name}/less", name)
    shape = s.graph[op.inputs[0]].shape
    depth = shape[-2 if op.attributes.get("trans_a") else -1] if shape else 0
    total = int(depth) * shifts[0] * shifts[1] + s.shift(name)
    if result.is_quantized:
        s.quantize(s.plus(value, total), name)
    else:
        s.plus(value, total, name)


def _transpose_operand(s: Shifting, name: str, is_turned: bool) -> str:
    """Return what stands for an operand, its last two axes exchanged if it is stored turned."""
    shape = s.graph[name].shape
    if not is_turned or shape is None:
        return s.twin(name)
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    turned = replace(s[s.twin(name)], shape=tuple(shape[axis] for axis in order))
    return s.compute("Transpose", (s.twin(name),), f"{name}/turned", turned, s.source, perm=order)


def _emit_sums(s: Shifting, side: str, shift: float, axis: int) -> str:
    """Emit the sums of an operand's float values along the depth, times the other's shift."""
    tensor = s[side]
    shape: Shape = tuple(1 if index == (tensor.rank or 0) + axis else size for index, size in enumerate(tensor.shape or ()))
    real = s.compute_float("Dequantize", (side,), f"{side}/summed_value", side)
    axes = s.constant(f"{side}/depth", [axis])
    total = s.compute("ReduceSum", (real, axes), f"{side}/sums", replace(s[real], shape=shape), s.source, keepdims=1)
    return s.compute_float("Mul", (total, s.constant(f"{side}/other_shift", shift)), f"{side}/shifted_sums", total)


#: Kinds that pad the data with real zero if no input has another value.
_FILLING = ("Pad", "SpaceToBatch")


def obstacle(graph: Graph, op: Op, points: Mapping[str, int]) -> str:
    """Return why an operator has to run in float, in the words of a list of many; "" if it need not.

    Args:
        graph: that it belongs to.
        op: the operator.
        points: the zero points that go, by tensor.
    """
    touched, kind = points.keys() & op.names, kind_of(op)
    if not touched or kind.takes_stored or kind.rule in ("convert", "relabel"):
        return ""
    if is_shift_invariant(graph, op) or is_ties_away_average(graph, op):
        return ""
    if is_product_of_activations(graph, op):
        return ""
    if kind.sums_all_weights:
        return linear_obstacle(graph, op, op.inputs[0] in points)
    return "they compute with zero points"


def is_shift_invariant(graph: Graph, op: Op) -> bool:
    """Whether an operator gives the same stored integers whatever one zero point all its sides have."""
    kind = kind_of(op)
    names = [name for name in (*kind.moved_inputs(op), *kind.results_of(op)) if graph.is_quantized(name)]
    if op.attributes.get("activation") or op.attributes.get("reduction", "none") != "none":
        return False
    if kind.rule == "move":
        return op.kind not in _FILLING or op.attributes.get("mode", "constant") != "constant" or bool(kind.inputs_with_role(op, "filler"))
    shared = all(graph[name].shares_quantization(graph[names[0]]) for name in names[1:])
    if kind.rule == "index":
        return (kind.compares or kind.reads_shape) and shared and all(graph[name].is_quantized for name in kind.moved_inputs(op))
    whole = all(graph[name].is_quantized for name in (*kind.moved_inputs(op), *kind.results_of(op)) if name)
    return shared and whole and (kind.chooses or op.attributes.get("mode") == "nearest")
