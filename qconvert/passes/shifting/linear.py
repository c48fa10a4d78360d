"""Conv, Gemm and MatMul with constant weights, whose sums of products take the shifts of data and result in."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import dequantize
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS, clip_range
from qconvert.operators import output_axis
from qconvert.operators.spatial import SAME, axes_of_space, padding
from qconvert.passes.shifting.shifted_graph import Shifting

__all__ = ["LINEAR", "is_touched", "linear_obstacle", "shift_linear", "sums_of_weights"]

LINEAR = ("Conv", "Gemm", "MatMul")


def linear_obstacle(graph: Graph, op: Op, is_shifted: bool) -> str:
    """Why an operator cannot take shifts in, in the words of a list of many; "" if it can.

    Args:
        graph: that it belongs to.
        op: one of Conv, Gemm and MatMul.
        is_shifted: whether its data have a zero point that goes.
    """
    data, weights = graph[op.inputs[0]], graph[op.inputs[1]]
    if data.quantization is None or weights.quantization is None or data.is_constant:
        return "part of their data is float"
    if weights.data is None:
        return "their factor is computed"
    if op.has(2) and graph[op.inputs[2]].data is None:
        return "their bias is computed"
    return "they pad data with dynamic dimensions" if is_shifted and op.kind == "Conv" and _pads(graph, op) is None else ""


def _limits(graph: Graph, op: Op) -> tuple[int, int] | None:
    """The stored integers that the activation of an operator leaves; None where it has none, or the quantization of its result implies
    it."""
    result = graph[op.outputs[0]]
    if not _on_quantization(result) or not op.attributes.get("activation"):
        return None
    limits = clip_range(result, ACTIVATIONS[str(op["activation"])])
    return None if result.quantization is None or limits == result.quantization.limits(result.dtype) else limits


def _on_quantization(tensor: Tensor) -> bool:
    """Whether saturation stands for an activation."""
    return tensor.quantization is not None and tensor.quantization.is_per_tensor and "int" in tensor.dtype


def is_touched(s: Shifting, op: Op) -> bool:
    """Whether there is anything to change about one of LINEAR."""
    shifts = s.shift(op.inputs[0]) or s.shift(op.outputs[0])
    return bool(shifts) or (s.graph[op.inputs[0]].is_quantized and _limits(s.graph, op) is not None)


def shift_linear(s: Shifting, op: Op) -> None:
    """Emit the operator with the shifts in its bias, padding of its own and activation where its quantization does not imply it."""
    data, name = op.inputs[0], op.outputs[0]
    result, limits = s.graph[name], _limits(s.graph, op)
    attributes = {key: value for key, value in op.attributes.items() if key not in ("activation", "arithmetic")}
    fused = {"activation": op["activation"]} if op.attributes.get("activation") and not _on_quantization(result) else {}
    source = s[data]
    if op.kind == "Conv" and s.shift(data):
        source = s.pad_with_zero(data, _amounts(s.graph, op))
        attributes |= {"auto_pad": "NOTSET", "pads": (0,) * 2 * len(op["strides"])}
    inputs = (source, op.inputs[1], *_bias(s, op))
    adds = op.kind == "MatMul" and bool(s.shift(data) or s.shift(name))
    if limits is None and not adds:
        s.emit(op.kind, inputs, s[name], op.source, **attributes, **fused)
        s.finish(name)
        return
    value = s.compute(op.kind, inputs, f"{name}/real", name, op.source, **attributes)
    if adds:
        row = s.rewriter.constant(f"{name}/shift", (s.shift(name) - _sums(s, op))[..., None, :].astype(np.float32))
        moved = s.rewriter.add(f"{name}/moved", s.rewriter[value]) if result.is_quantized else name
        value = s.emit("Add", (value, row), moved, op.source, **fused)
    if limits is not None:
        value = _emit_clip(s, name, value, limits)
    if result.is_quantized:
        s.quantize(value, name, op.source)


def _emit_clip(s: Shifting, name: str, value: str, limits: tuple[int, int]) -> str:
    """Clip float values so that they leave the stored integers between the limits."""
    quantization = s.quantization(name)
    point = 0 if s.shift(name) else int(quantization.zero_point[0])
    bounds = [s.rewriter.constant(f"{name}/{word}", (limit - point) * float(quantization.scale[0]))
              for word, limit in zip(("lowest", "highest"), limits, strict=True)]  # fmt: skip
    s.counts["activations are Clips in float"] += 1
    return s.compute("Clip", (value, *bounds), f"{name}/clipped", name)


def _sums(s: Shifting, op: Op) -> Array:
    """What the data's shift adds to each output channel."""
    weights = s.graph[op.inputs[1]]
    assert weights.data is not None and weights.quantization is not None
    return sums_of_weights(op, dequantize(weights.data, weights.quantization)) * s.shift(op.inputs[0])


def sums_of_weights(op: Op, real: Array) -> Array:
    """The sum of the weights of each output channel, of their float values, in float64."""
    real = real.astype(np.float64)
    if op.kind == "MatMul":
        channels = output_axis(op, real.ndim)
        depth = real.ndim - 1 if channels == real.ndim - 2 else real.ndim - 2
        return np.asarray(real.sum(depth))
    return np.asarray(real.reshape(len(real), -1).sum(1))


def _bias(s: Shifting, op: Op) -> tuple[str, ...]:
    """The bias with both shifts: that of the data is taken off, that of the result put on."""
    old = op.inputs[2] if len(op.inputs) > 2 else ""
    shifts = s.shift(op.inputs[0]), s.shift(op.outputs[0])
    if op.kind == "MatMul" or not any(shifts):
        return (old,) if old else ()
    total = shifts[1] - _sums(s, op)
    if old:
        bias = s.graph[old]
        assert bias.data is not None
        total = total + (dequantize(bias.data, bias.quantization) if bias.quantization is not None else bias.data.astype(np.float64))
    elif not np.any(total):
        return ()
    return (s.bias(old, total, op.outputs[0]),)


def _pads(graph: Graph, op: Op) -> list[tuple[int, int]] | None:
    """The padding of a Conv before and after each spatial axis; None if it depends on unknown sizes."""
    shape, taps = graph[op.inputs[0]].shape, graph[op.inputs[1]].static_shape
    if shape is None or taps is None:
        return None
    sizes = [shape[axis] for axis in axes_of_space(op, shape)]
    if op["auto_pad"] in SAME and any(isinstance(size, str) for size in sizes):
        return None
    known = tuple(size if isinstance(size, int) else 0 for size in sizes)
    return padding(op, known, taps[2:], tuple(op["dilations"]))


def _amounts(graph: Graph, op: Op) -> tuple[int, ...]:
    """What a Conv adds before each axis of its data, and then after."""
    pads, shape = _pads(graph, op), graph[op.inputs[0]].shape
    assert pads is not None and shape is not None
    before, following = [0] * len(shape), [0] * len(shape)
    for axis, pad in zip(axes_of_space(op, shape), pads, strict=True):
        before[axis], following[axis] = pad
    return (*before, *following)
