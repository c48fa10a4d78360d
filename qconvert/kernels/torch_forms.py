"""Which kernels' roundings of PyTorch's engines have a form in operators that every runtime rounds alike, and whether it is exact
(rewriting/torch_forms.py writes them)."""

from __future__ import annotations

import math
from typing import NamedTuple

from qconvert.arithmetic import (
    ADDITIONS,
    FLOAT_MEAN,
    TORCH_AVERAGES,
    averaging_scale,
    has_addition,
    has_xnnpack_add,
    is_same_addition,
    is_same_average,
    xnnpack_add,
)
from qconvert.arithmetic.additions import Quantizations
from qconvert.arithmetic.storage import Quantization, integer_range
from qconvert.graph.schema import Graph, Op
from qconvert.operators import has_onnx_addition, kind_of

#: The `arithmetic` of interpolations, of roundings of float values to a quantization, and of means of these, as PyTorch computes them.
TORCH_ROUNDINGS = ("torch", "fused", "reciprocal", FLOAT_MEAN)


def has_torch_form(op: Op) -> bool:
    """Whether an operator rounds as one of PyTorch's engines does, in a way that TorchForms writes."""
    arithmetic = op.attributes.get("arithmetic")
    return arithmetic in TORCH_ROUNDINGS or arithmetic in TORCH_AVERAGES


def has_quantize_form(op: Op, runtime: str) -> bool:
    """Whether a Quantize has an arithmetic that is not that of the runtime's own operator."""
    return op["arithmetic"] not in ("", "reciprocal" if runtime == "tflite" else "divided")


def addition_quantizations(graph: Graph, op: Op, arithmetic: str) -> tuple[Quantizations, Quantization] | None:
    """Return the quantizations of the inputs and of the result of an addition of 8-bit data; None where that kernel has none."""
    tensors = [graph[name] for name in op.names]
    found = [tensor.quantization for tensor in tensors if tensor.quantization is not None]
    if {tensor.dtype for tensor in tensors} not in ({"int8"}, {"uint8"}) or len(found) != 3:
        return None
    quantizations = (found[0], found[1]), found[2]
    return quantizations if has_addition(arithmetic, *quantizations) else None


def adds_as_litert(graph: Graph, op: Op, arithmetic: str) -> bool:
    """Whether LiteRT's default kernel gives the sums of the kernel `arithmetic` for all pairs of inputs."""
    found = addition_quantizations(graph, op, arithmetic)
    dtype = graph[op.name].dtype
    return found is not None and has_xnnpack_add(*found) and is_same_addition(arithmetic, xnnpack_add, *found, dtype)


def rounds_alike(graph: Graph, op: Op, other: str) -> bool:
    """Whether an addition or an average gives the integers of another of ADDITIONS or TORCH_AVERAGES for all data."""
    own, tensors = str(op["arithmetic"]), [graph[name] for name in op.names if not graph[name].is_constant]
    quantizations = [found for tensor in tensors if (found := tensor.per_tensor) is not None]
    if {tensor.dtype for tensor in tensors} not in ({"int8"}, {"uint8"}) or len(quantizations) != len(tensors):
        return False
    if not kind_of(op).averages:
        if len(quantizations) != 3:
            return False
        inputs, result = (quantizations[0], quantizations[1]), quantizations[2]
        return all(has_addition(name, inputs, result) for name in (own, other)) and is_same_addition(
            own, ADDITIONS[other], inputs, result, tensors[0].dtype
        )
    window = _window(graph, op)
    if window is None or not {own, other}.issubset(TORCH_AVERAGES):
        return False
    return is_same_average(own, other, quantizations[0], window.counted, tensors[0].dtype)


def has_exact_form(graph: Graph, op: Op, format: str) -> bool:
    """Whether files of a format have an operator in a form that gives the integers of its `arithmetic` for all data. Some of ONNX's
    additions and of what TorchForms writes have none: only a note says which kernel is meant."""
    arithmetic = op.attributes.get("arithmetic")
    if arithmetic in TORCH_AVERAGES:
        form = find_average_form(graph, op)
        return form is not None and not form[1][2]
    if arithmetic in ADDITIONS and format == "onnx":
        return has_onnx_addition(graph, op)
    if arithmetic == "torch":
        return _has_exact_weights(graph, op)
    return arithmetic != FLOAT_MEAN  # whose order of adding no form has


#: Above this ratio of sizes along one axis float32 may not hold the sums of bytes that an interpolation weighs.
_MOST_WIDENED = 64


def _has_exact_weights(graph: Graph, op: Op) -> bool:
    """Whether float32 holds the weights of an interpolation, and all its sums of bytes, so that every order of adding gives the same:
    sizes are related by powers of two."""
    before, after = (graph[name].static_shape for name in (op.inputs[0], op.name))
    if before is None or after is None or 0 in after:
        return False
    is_aligned = op["coordinate_transformation_mode"] == "align_corners"
    ratios = [(size - is_aligned, max(other - is_aligned, 1)) for size, other in zip(before, after, strict=True)]
    parts = [number // math.gcd(*ratio) for ratio in ratios for number in ratio]
    return all(not part & (part - 1) and part <= _MOST_WIDENED for part in parts)


class Window(NamedTuple):
    """The window of an average over two dimensions.

    Attributes:
        kernel, strides, pads: as those of a convolution.
        layout: channels_first or channels_last.
        channels: how many there are.
        counted: the sizes whose product PyTorch's kernel divides by: a mean over axes has one.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    layout: str
    channels: int
    counted: list[int]


def find_average_form(graph: Graph, op: Op) -> tuple[Window, tuple[int, float, int]] | None:
    """Return the window of an average that may tie, and what averaging_scale() finds for it; None where it is written as it is."""
    data, window = graph[op.inputs[0]], _window(graph, op)
    quantization = data.per_tensor
    if window is None or quantization is None or not data.shares_quantization(graph[op.name]) or math.prod(window.kernel) % 2:
        return None
    unsigned = quantization.shift_zero_point(-integer_range(data.dtype)[0])
    found = averaging_scale(str(op["arithmetic"]), unsigned, window.counted)
    return None if found is None else (window, found)


def _window(graph: Graph, op: Op) -> Window | None:
    """Return the window of an average; None where it has none."""
    data, result = graph[op.inputs[0]], graph[op.name]
    shape = data.shape
    if shape is None or len(shape) != 4 or data.dtype not in ("int8", "uint8") or result.shape is None:
        return None
    layout = place_of_channels(graph, op)
    channels = shape[3 if layout == "channels_last" else 1]
    if not layout or not isinstance(channels, int):
        return None
    if "kernel_shape" not in op.attributes:
        space = shape[1:3] if layout == "channels_last" else shape[2:]
        if any(isinstance(size, str) or not size for size in space):
            return None
        kernel = tuple(map(int, space))
        counted = list(kernel) if "data_format" in op.attributes else [math.prod(kernel)]
        return Window(kernel, (1, 1), (0, 0, 0, 0), layout, channels, counted)
    kernel, pads = tuple(op["kernel_shape"]), tuple(op["pads"])
    is_padding_counted = bool(op["count_include_pad"]) or not any(pads)
    if op["auto_pad"] != "NOTSET" or op["ceil_mode"] or op["activation"] or not is_padding_counted:
        return None
    return Window(kernel, tuple(op["strides"]), pads, layout, channels, list(kernel))


def place_of_channels(graph: Graph, op: Op) -> str:
    """Return where the channels of an average are; "" for a mean over other axes than those of space."""
    if "data_format" in op.attributes:
        return str(op["data_format"])
    axes = graph.constant(op.input(1))
    over = sorted(int(axis) % 4 for axis in axes.reshape(-1)) if axes is not None else []
    return "channels_first" if over == [2, 3] else "channels_last" if over == [1, 2] else ""
