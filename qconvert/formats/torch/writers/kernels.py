"""Operators with the integers of a source's kernels (the attribute `arithmetic`), in int64, where PyTorch shifts as they do."""

from __future__ import annotations

import math

import numpy as np

from qconvert.arithmetic import (
    ADDITIONS,
    FLOAT_MEAN,
    INTEGER_FACTORS,
    PAIR_BITS,
    TORCH_AVERAGES,
    effective_scale,
    has_addition,
    pair_factors,
    quantize,
    quantize_multiplier,
    rounds_pairs_once,
    short_multipliers,
    tflite_hard_swish,
    tflite_mean_multiplier,
)
from qconvert.formats.torch.program import Node
from qconvert.formats.torch.writing import Builder
from qconvert.graph import Array, Op, Quantization, Tensor, integer_range
from qconvert.graph.activations import activation_bounds
from qconvert.kernels.litert.forms import xnnpack_reduction_form
from qconvert.operators import kind_of, reduced_count


def finish_stored(op: Op, b: Builder, steps: Node, offset: int = 0) -> None:
    """Ends an operator with integers, plus an offset, clipped to the limits of the quantization and of a fused activation."""
    tensor = b.result(op)
    quantization = tensor.require_quantization()
    bounds = activation_bounds(op)
    limits = [
        int(limit if bound is None else quantize(np.array(bound), quantization, tensor.dtype))
        for bound, limit in zip(bounds, b.limits(tensor), strict=True)
    ]
    b.note_operator()
    b.set_node(tensor.name, b.cast(b.aten("clamp", _add_offset(steps, offset), *limits), tensor.dtype))


def write_kernel_binary(op: Op, b: Builder) -> bool:
    """Writes an Add, Sub or Mul with the integers of the kernel that it names; False if it names none, or lacks a quantization."""
    tensors = [b.tensor(name) for name in op.names]
    first, second, output = (tensor.quantization for tensor in tensors)
    if not b.wide or not op["arithmetic"] or first is None or second is None or output is None:
        return False
    if op["arithmetic"] in ADDITIONS:
        return _write_add(op, b, tensors, (first, second), output)
    sign = kind_of(op).sum_sign
    *factors, last = pair_factors(sign, (first, second), output)
    x, y = (b.cast(b.stored_value(tensor.name), "int64") for tensor in tensors[:2])
    if sign:
        once = rounds_pairs_once(sign, tensors[0].shape, tensors[1].shape)
        x, y = (
            _rescale_once(b, node, factor) if once else _rescale_twice(b, node * 2**PAIR_BITS, factor)
            for node, factor in zip((x, y), factors, strict=True)
        )
    total = b.aten(f"{op.kind.lower()}.Tensor", x, y)
    finish_stored(op, b, _rescale_twice(b, total, last))
    return True


def _write_add(op: Op, b: Builder, tensors: list[Tensor], quantizations: tuple[Quantization, Quantization], output: Quantization) -> bool:
    """Writes an Add with the integers of its kernel; False if the kernel does not take these quantizations."""
    name, point = op["arithmetic"], output.point
    if not has_addition(name, quantizations, output):
        return False
    if name not in INTEGER_FACTORS:
        sides = [_fused_reals(b, tensor, quantization) for tensor, quantization in zip(tensors, quantizations, strict=False)]
        steps = b.aten("add.Tensor", *sides) * float(np.float32(1) / output.scale[0])
        finish_stored(op, b, b.aten("round", steps), point)
        return True
    multipliers, shift = INTEGER_FACTORS[name](quantizations, output)
    sides = [_steps(b, tensor) * multiplier for tensor, multiplier in zip(tensors, multipliers, strict=False)]
    total = b.aten("add.Tensor", *sides)
    if name == "xnnpack":
        finish_stored(op, b, _shift_half_up(b, total, shift), point)
        return True
    away = _shift_half_up(b, b.aten("abs", total), shift) * b.aten("sign", total)
    finish_stored(op, b, away, point)
    return True


def _fused_reals(b: Builder, tensor: Tensor, quantization: Quantization) -> Node:
    """q * scale - zero point * scale in float32, rounded once: the product is exact in float64."""
    low = integer_range(tensor.dtype)[0]
    stored = b.cast(_add_offset(b.cast(b.stored_value(tensor.name), "int64"), -low), "float64")
    offset = np.float32(quantization.zero_point[0] - low) * quantization.scale[0]
    real = stored * quantization.step - float(offset)
    return b.cast(real, "float32")


def finish_torch_average(op: Op, b: Builder, total: Node, sizes: list[int]) -> None:
    """Ends an average as PyTorch's kernel named by `arithmetic` rounds it (arithmetic/torch_kernels.py).

    Args:
        op: the average, of one quantization.
        b: what is written.
        total: whole steps from the zero point, summed.
        sizes: of a window.
    """
    result, name, count = b.result(op), op["arithmetic"], np.float32(math.prod(sizes))
    quantization = result.require_quantization()
    low, stored = integer_range(result.dtype)[0], quantization.point
    point = stored - low
    if name in ("fbgemm_frames", "fbgemm_means"):
        plain = b.cast(_add_offset(total, int(count) * point), "float32")
        share = np.float32(1)
        for size in sizes:
            share = share / np.float32(size)
        steps = plain / float(count) if name == "fbgemm_means" else plain * float(share)
        finish_stored(op, b, b.aten("round", steps), low)
        return
    factor = quantization.scale[0] / (quantization.scale[0] * count) if name == "qnnpack_average" else np.float32(1) / count
    wide = "float64" if name == "fbgemm_adaptive" else "float32"
    steps = b.cast(total, wide) * float(factor)
    if name in ("qnnpack_average", "fbgemm_vectors"):
        finish_stored(op, b, b.aten("round", steps), stored)
        return
    moved = b.cast(_add_offset(steps, point), "float32")
    finish_stored(op, b, b.aten("round", moved), low)


def write_xnnpack_line(op: Op, b: Builder) -> bool:
    """Writes a Requantize or LeakyRelu in whole 256ths of the ratio of the scales, ties up, as XNNPACK does; False without `arithmetic`."""
    data, result = b.operand(op), b.result(op)
    if not b.wide or not op["arithmetic"] or data.quantization is None or result.quantization is None:
        return False
    steps = _steps(b, data)
    ratio = np.float32(data.quantization.scale[0]) / np.float32(result.quantization.scale[0])
    scaled = steps * int(np.rint(256 * ratio))
    if op.kind == "LeakyRelu":
        below = steps * int(np.rint(256 * (ratio * np.float32(op["alpha"]))))
        scaled = b.aten("where.self", b.aten("lt.Scalar", steps, 0), below, scaled)
    finish_stored(op, b, _shift_half_up(b, scaled, 8), result.quantization.point)
    return True


def write_tflite_hard_swish(op: Op, b: Builder) -> bool:
    """Writes a HardSwish of 8 bits as a table of the results of TFLite's kernel; False if it names no kernel."""
    data, result = b.operand(op), b.result(op)
    if not b.wide or not op["arithmetic"] or data.quantization is None or result.quantization is None:
        return False
    low, high = integer_range(data.dtype)
    values = tflite_hard_swish(np.arange(low, high + 1), data.quantization, result.quantization, result.dtype)
    places = _add_offset(b.cast(b.stored_value(data.name), "int64"), -low)
    b.note_operator()
    b.set_node(result.name, b.aten("index.Tensor", b.buffer(values, f"{result.name}/table"), [places]))
    return True


def write_kernel_reduction(op: Op, b: Builder, axes: list[int]) -> bool:
    """Writes a ReduceMean or ReduceSum with the integers of the kernel that it names; False if it names none."""
    data, result = b.operand(op), b.result(op)
    given, output, count = data.quantization, result.quantization, reduced_count(b.graph, op)
    arithmetic = str(op.attributes.get("arithmetic", ""))
    if not b.wide or not arithmetic or given is None or output is None or count is None or data.dtype != result.dtype:
        return False
    if (arithmetic in TORCH_AVERAGES or arithmetic == FLOAT_MEAN) and not data.shares_quantization(result):
        return False
    if arithmetic in TORCH_AVERAGES:
        finish_torch_average(op, b, b.aten("sum.dim_IntList", _steps(b, data), axes, bool(op.attributes.get("keepdims", 1))), [count])
        return True
    if arithmetic == FLOAT_MEAN:
        low = integer_range(result.dtype)[0]
        mean = b.aten("mean.dim", b.cast(_steps(b, data), "float32") * given.step, axes, bool(op["keepdims"]))
        steps = _add_offset(b.cast(mean, "float64") * float(1 / output.scale[0]), output.point - low)
        finish_stored(op, b, b.aten("round", b.cast(steps, "float32")), low)
        return True
    total = b.aten("sum.dim_IntList", b.cast(b.stored_value(data.name), "int64"), axes, bool(op["keepdims"]))
    if arithmetic == "tflite":
        steps = _add_offset(total, -count * given.point)
        scaled = _multiply_quantized(b, steps, *tflite_mean_multiplier(given, output, count))
        finish_stored(op, b, scaled, output.point)
        return True
    factor, offset, shift = xnnpack_reduction_form(op, result.dtype, (given, output), count)
    real = b.cast(_add_offset(total, -shift * count), "float32")
    real = real * float(factor) + float(offset)
    finish_stored(op, b, b.aten("round", real), shift)
    return True


def finish_tflite_conv(op: Op, b: Builder, total: Node, quantizations: tuple[Quantization, Quantization, Quantization]) -> None:
    """Ends a convolution of 16-bit data: its sums, whole numbers with the bias among them, by 16 bits of the multiplier, ties up.

    Args:
        op: the convolution.
        b: what is written.
        total: the sums.
        quantizations: of data, weights and result.
    """
    multipliers, bits = short_multipliers(effective_scale(quantizations[0].scale, quantizations[1].scale, quantizations[2].scale))
    shape = [1, -1, *[1] * ((b.result(op).rank or 3) - 2)]

    def along(values: Array) -> Node:
        return b.buffer(np.asarray(values, np.int64).reshape(shape), f"{op.outputs[0]}/multiplier")

    scaled = b.cast(total, "int64") * along(multipliers)
    half = np.left_shift(np.int64(1), bits) >> 1
    steps = b.aten("bitwise_right_shift.Tensor", scaled + along(half), along(bits))
    finish_stored(op, b, steps, quantizations[2].point)


def _steps(b: Builder, tensor: Tensor) -> Node:
    """Stored integers less their zero point."""
    return _add_offset(b.cast(b.stored_value(tensor.name), "int64"), -tensor.require_quantization().point)


def _add_offset(node: Node, offset: int) -> Node:
    return node + offset if offset else node


def _shift_half_up(b: Builder, node: Node, bits: int) -> Node:
    """x / 2^bits, ties up."""
    return b.aten("bitwise_right_shift.Tensor_Scalar", node + (2**bits >> 1), bits) if bits else node


def _rescale_once(b: Builder, node: Node, factor: float) -> Node:
    multiplier, shift = (int(value) for value in quantize_multiplier(factor))
    return _shift_half_up(b, node * (multiplier * 2**PAIR_BITS), 31 - shift)


def _rescale_twice(b: Builder, node: Node, factor: float) -> Node:
    multiplier, shift = (int(value) for value in quantize_multiplier(factor))
    return _multiply_quantized(b, node, multiplier, shift)


def _multiply_quantized(b: Builder, node: Node, multiplier: int, shift: int) -> Node:
    """arithmetic.multiply_by_quantized_multiplier(): the high 32 bits of a product, then a shift with ties away from zero."""
    high = node * (multiplier << max(shift, 0))
    high = b.aten("clamp_max", _shift_half_up(b, high, 31), 2**31 - 1)
    if shift >= 0:
        return high
    mask = 2**-shift - 1
    rest = b.aten("bitwise_and.Scalar", high, mask)
    threshold = b.cast(b.aten("lt.Scalar", high, 0), "int64") + (mask >> 1)
    up = b.cast(b.aten("gt.Tensor", rest, threshold), "int64")
    return b.aten("bitwise_right_shift.Tensor_Scalar", high, -shift) + up
