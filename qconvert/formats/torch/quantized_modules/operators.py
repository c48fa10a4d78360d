"""Operators as quantized modules and calls on bytes: layers with packed weights, sums, products, activations, normalizations, pools and
concatenations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.formats.torch.quantized_modules.builder import Layer, ModuleBuilder, ModuleFunction
from qconvert.formats.torch.writers.elementwise import bounds_of
from qconvert.formats.torch.writers.layer_parts import is_symmetric, pad_data, pads_of
from qconvert.formats.torch.writers.norm import axes_of
from qconvert.formats.torch.writers.pool_resize import known_sizes, nearest_operator
from qconvert.formats.torch.writers.sizes import sizes_of
from qconvert.graph import Array, Op, Quantization

__all__ = ["WRITERS", "_ELEMENTWISE", "_JOINS", "_NORM", "_POOL", "write_reinterpret"]


def _binary(operator: str) -> ModuleFunction:
    """quantized::add and mul, with a Relu."""

    def write(op: Op, b: ModuleBuilder) -> None:
        name = f"quantized.{operator}_relu" if b.has_relu(op) else f"quantized.{operator}"
        b.close(op, b.call(name, *(b.stored_value(each) for each in op.inputs), *b.quantization_of(op.outputs[0])))

    return write


def write_hard_swish(op: Op, b: ModuleBuilder) -> None:
    """HardSwish."""
    b.set_node(op.outputs[0], b.layer(op, Layer("Hardswish", b.quantization_of(op.outputs[0])), b.stored_value(op.inputs[0])))


def write_leaky_relu(op: Op, b: ModuleBuilder) -> None:
    """LeakyRelu."""
    layer = Layer("LeakyReLU", (*b.quantization_of(op.outputs[0]), float(op["alpha"])))
    b.set_node(op.outputs[0], b.layer(op, layer, b.stored_value(op.inputs[0])))


def write_elu(op: Op, b: ModuleBuilder) -> None:
    """Elu."""
    layer = Layer("ELU", (*b.quantization_of(op.outputs[0]), float(op["alpha"])))
    b.set_node(op.outputs[0], b.layer(op, layer, b.stored_value(op.inputs[0])))


def write_celu(op: Op, b: ModuleBuilder) -> None:
    """Celu."""
    b.set_node(op.outputs[0], b.call("quantized.celu", b.stored_value(op.inputs[0]), *b.quantization_of(op.outputs[0]), float(op["alpha"])))


def _write_fixed_activation(operator: str) -> ModuleFunction:
    """An activation whose kernels fix the quantization of the result."""
    return lambda op, b: b.set_node(op.outputs[0], b.aten(operator, b.stored_value(op.inputs[0])))


def write_relu(op: Op, b: ModuleBuilder) -> None:
    """Relu of stored integers."""
    b.set_node(op.outputs[0], b.aten("relu", b.stored_value(op.inputs[0])))


def write_clip(op: Op, b: ModuleBuilder) -> None:
    """Clip of stored integers between numbers, which are rounded to the quantization."""
    low, high = bounds_of(op, b)
    scale, point = b.quantization_of(op.inputs[0])
    limits = float((0 - point) * scale) if low is None else low, float((255 - point) * scale) if high is None else high
    b.set_node(op.outputs[0], b.clamp(b.stored_value(op.inputs[0]), *limits))


def write_softmax(op: Op, b: ModuleBuilder) -> None:
    """Softmax along one axis."""
    b.set_node(
        op.outputs[0], b.layer(op, Layer("Softmax", (int(op["axis"]), *b.quantization_of(op.outputs[0]))), b.stored_value(op.inputs[0]))
    )


_ELEMENTWISE: Mapping[str, ModuleFunction] = {
    "Add": _binary("add"),
    "Mul": _binary("mul"),
    "HardSwish": write_hard_swish,
    "LeakyRelu": write_leaky_relu,
    "Elu": write_elu,
    "Celu": write_celu,
    "Sigmoid": _write_fixed_activation("sigmoid"),
    "Tanh": _write_fixed_activation("tanh"),
    "HardSigmoid": _write_fixed_activation("hardsigmoid"),
    "Relu": write_relu,
    "Clip": write_clip,
    "Softmax": write_softmax,
}


def write_batch_norm(op: Op, b: ModuleBuilder) -> None:
    """BatchNormalization by its stored mean and variance."""
    values = [b.real_vector(name) for name in op.inputs[1:]]
    parameters = dict(zip(("weight", "bias", "running_mean", "running_var"), values, strict=True))
    arguments = (len(values[0]), float(op["epsilon"]))
    layer = Layer(f"BatchNorm{b.rank(op) - 2}d", arguments, b.quantization_of(op.outputs[0]), parameters=parameters)
    b.close(op, b.layer(op, layer, b.stored_value(op.inputs[0])))


def _vector(b: ModuleBuilder, name: str, sizes: list[int], default: float) -> Array:
    """The float values of a parameter, or the default where it is left out."""
    return b.real_vector(name) if name else np.full(sizes, default, np.float32)


def write_layer_norm(op: Op, b: ModuleBuilder) -> None:
    """LayerNormalization over the axes from `axis` on."""
    sizes = [int(size) for size in b.shape(op, op.inputs[0])[int(op["axis"]) % b.rank(op) :]]
    names = (*op.inputs[1:3], "", "")[:2]
    values = [_vector(b, name, sizes, value) for name, value in zip(names, (1.0, 0.0), strict=True)]
    layer = Layer("LayerNorm", (sizes, *values, *b.quantization_of(op.outputs[0]), float(op["epsilon"])))
    b.set_node(op.outputs[0], b.layer(op, layer, b.stored_value(op.inputs[0])))


def write_group_norm(op: Op, b: ModuleBuilder) -> None:
    """GroupNormalization."""
    values = [b.real_vector(name) for name in op.inputs[1:3]]
    arguments = (int(op["num_groups"]), len(values[0]), *values, *b.quantization_of(op.outputs[0]), float(op["epsilon"]))
    b.set_node(op.outputs[0], b.layer(op, Layer("GroupNorm", arguments), b.stored_value(op.inputs[0])))


def write_instance_norm(op: Op, b: ModuleBuilder) -> None:
    """InstanceNormalization."""
    values = [b.real_vector(name) for name in op.inputs[1:3]]
    arguments = (len(values[0]), *values, *b.quantization_of(op.outputs[0]), float(op["epsilon"]))
    b.set_node(op.outputs[0], b.layer(op, Layer(f"InstanceNorm{b.rank(op) - 2}d", arguments), b.stored_value(op.inputs[0])))


_NORM: Mapping[str, ModuleFunction] = {
    "BatchNormalization": write_batch_norm,
    "LayerNormalization": write_layer_norm,
    "GroupNormalization": write_group_norm,
    "InstanceNormalization": write_instance_norm,
}


def _window(op: Op, b: ModuleBuilder) -> tuple[list[int], list[int], list[int], bool]:
    """Kernel, dilations and pads of a pool, and whether PyTorch can state the pads."""
    kernel = [int(size) for size in op["kernel_shape"]]
    dilations = [int(step) for step in op["dilations"]] if op.kind == "MaxPool" and op["dilations"] else [1] * len(kernel)
    pads = pads_of(op, b, kernel, dilations)
    fits = is_symmetric(pads) and all(2 * pad <= size for pad, size in zip(pads, kernel, strict=False))
    return kernel, dilations, pads, fits


def write_max_pool(op: Op, b: ModuleBuilder) -> None:
    """MaxPool; padding that PyTorch cannot state is added before, with the smallest integer."""
    kernel, dilations, pads, fits = _window(op, b)
    node = b.stored_value(op.inputs[0]) if fits else pad_data(op, b, pads, float("-inf"))
    padding = pads[: len(kernel)] if fits else [0] * len(kernel)
    strides = [int(step) for step in op["strides"]]
    b.close(op, b.aten(f"max_pool{len(kernel)}d", node, kernel, strides, padding, dilations, bool(op["ceil_mode"])))


def write_average_pool(op: Op, b: ModuleBuilder) -> None:
    """AveragePool."""
    kernel, _, pads, _ = _window(op, b)
    strides = [int(step) for step in op["strides"]]
    sizes = (kernel, strides, pads[: len(kernel)], False, bool(op["count_include_pad"]))
    b.close(op, b.aten(f"avg_pool{len(kernel)}d", b.stored_value(op.inputs[0]), *sizes))


def write_global_average(op: Op, b: ModuleBuilder) -> None:
    """GlobalAveragePool."""
    spatial = b.rank(op) - 2
    b.close(op, b.aten(f"adaptive_avg_pool{spatial}d", b.stored_value(op.inputs[0]), [1] * spatial))


def write_mean(op: Op, b: ModuleBuilder) -> None:
    """ReduceMean over constant axes."""
    b.close(op, b.aten("mean.dim", b.stored_value(op.inputs[0]), axes_of(op, b), bool(op["keepdims"])))


def write_nearest(op: Op, b: ModuleBuilder) -> None:
    """Resize that repeats elements."""
    name = nearest_operator(op, known_sizes(op, b))
    if name is None:
        raise b.unsupported_error(op, f"{op['coordinate_transformation_mode']} places and {op['nearest_mode']}", rule="form-not-covered")
    b.set_node(op.outputs[0], b.aten(f"{name}{b.rank(op) - 2}d", b.stored_value(op.inputs[0]), sizes_of(b, op.inputs[1])))


_POOL: Mapping[str, ModuleFunction] = {
    "MaxPool": write_max_pool,
    "AveragePool": write_average_pool,
    "GlobalAveragePool": write_global_average,
    "ReduceMean": write_mean,
    "Resize": write_nearest,
}


def write_concat(op: Op, b: ModuleBuilder) -> None:
    """Concat of bytes: moved where all have one quantization, else rounded onto the result's."""
    result = b.tensor(op.outputs[0])
    if all(b.tensor(name).shares_quantization(result) for name in op.inputs):
        b.close(op, b.aten("cat", [b.stored_value(each) for each in op.inputs], int(op["axis"])))
        return
    name = "quantized.cat_relu" if b.has_relu(op) else "quantized.cat"
    b.close(op, b.call(name, [b.stored_value(each) for each in op.inputs], int(op["axis"]), *b.quantization_of(op.outputs[0])))


def write_reinterpret(op: Op, b: ModuleBuilder) -> None:
    """Reinterpret: the same integers under another quantization, or none."""
    source, result = b.tensor(op.inputs[0]), b.tensor(op.outputs[0])
    node = b.aten("int_repr", b.stored_value(source.name)) if source.is_quantized else b.stored_value(source.name)
    b.set_node(result.name, node if result.quantization is None else b.make_quantized_tensor(node, result.quantization, result.name))


_JOINS: Mapping[str, ModuleFunction] = {"Concat": write_concat}


def _shift_to_int8(data: Array, quantization: Quantization) -> tuple[Array, Quantization]:
    """Weights as qint8: unsigned ones move by 128 with their zero points, which PyTorch's kernels take other than 0 too."""
    if data.dtype == np.uint8:
        return (data.astype(np.int16) - 128).astype(np.int8), quantization.shift_zero_point(-128)
    return data, quantization


def _bias(op: Op, b: ModuleBuilder) -> Array | None:
    return b.real_vector(op.inputs[2]) if op.has(2) else None


def write_conv(op: Op, b: ModuleBuilder) -> None:
    """Conv of one, two or three axes, with a Relu; padding that differs on both sides, or leads to a wrong kernel, is added before."""
    weights = b.tensor(op.inputs[1])
    assert weights.data is not None and weights.quantization is not None
    outputs, inputs, *kernel = weights.data.shape
    spatial, relu, group = len(kernel), b.has_relu(op), int(op["group"])
    pads = pads_of(op, b, kernel, op["dilations"])
    inside = is_symmetric(pads) and not _can_saturate(op, weights.data, pads)
    node = b.stored_value(op.inputs[0]) if inside else pad_data(op, b, pads, None)
    padding = pads[:spatial] if inside else [0] * spatial
    sizes = [_size(part) for part in (kernel, op["strides"], padding, op["dilations"])]
    arguments = (inputs * group, outputs, *sizes, group)
    held = _shift_to_int8(weights.data, weights.quantization)
    layer = Layer(f"Conv{'ReLU' if relu else ''}{spatial}d", arguments, b.quantization_of(op.outputs[0]), held, _bias(op, b), fused=relu)
    b.close(op, b.layer(op, layer, node))


def _can_saturate(op: Op, weights: Array, pads: list[int]) -> bool:
    """Whether fbgemm's kernel for depthwise convolutions would lose products: it adds two in 16 bits on any CPU.

    It is taken where a layer's own padding is half of its kernel (FbgemmConv.cc, takeDepthWiseFastPath); the others are exact on CPUs
    with VNNI. Two weights of one sign saturate next to the largest data, 255, where they sum up to more than 128.
    """
    outputs, inputs, *kernel = weights.shape
    usual = all(2 * pad == size - 1 for pad, size in zip(pads, kernel, strict=False)) and all(step == 1 for step in op["dilations"])
    if len(kernel) < 2 or inputs != 1 or int(op["group"]) % 8 or not usual:
        return False
    signed = weights.astype(np.int16) - (128 if weights.dtype == np.uint8 else 0)
    taps = np.sort(signed.reshape(outputs, -1), axis=1)
    return bool((taps[:, -2:].clip(0).sum(1) > 128).any() or (taps[:, :2].clip(None, 0).sum(1) < -128).any())


def _size(values: Any) -> Any:
    """Sizes as modules take them: a number along one axis, which they put in a tuple."""
    plain = tuple(int(value) for value in values)
    return plain[0] if len(plain) == 1 else plain


def write_gemm(op: Op, b: ModuleBuilder) -> None:
    """Gemm with a bias for each output: a linear layer, with a Relu."""
    weights = b.tensor(op.inputs[1])
    assert weights.data is not None and weights.quantization is not None
    _linear(op, b, weights.data, weights.quantization)


def _linear(op: Op, b: ModuleBuilder, data: Array, quantization: Quantization) -> None:
    relu = b.has_relu(op)
    arguments = (data.shape[1], data.shape[0])
    kind = "LinearReLU" if relu else "Linear"
    layer = Layer(kind, arguments, b.quantization_of(op.outputs[0]), _shift_to_int8(data, quantization), _bias(op, b), fused=relu)
    b.close(op, b.layer(op, layer, b.stored_value(op.inputs[0])))


def write_matmul(op: Op, b: ModuleBuilder) -> None:
    """MatMul: a linear layer where its second operand is constant, whose rows are then the outputs."""
    right = b.tensor(op.inputs[1])
    quantization = right.quantization
    if right.data is not None and right.rank == 2 and quantization is not None and not op["trans_a"]:
        data = right.data if op["trans_b"] else right.data.T
        _linear(op, b, data, quantization.with_axis(0) if quantization.axis is not None else quantization)
        return
    operands = [
        b.aten("transpose.int", b.stored_value(name), -2, -1) if op[flag] else b.stored_value(name)
        for name, flag in zip(op.inputs, ("trans_a", "trans_b"), strict=True)
    ]
    b.close(op, b.call("quantized.matmul", *operands, *b.quantization_of(op.outputs[0])))


WRITERS: Mapping[str, ModuleFunction] = {
    **_ELEMENTWISE,
    **_NORM,
    **_POOL,
    **_JOINS,
    "Conv": write_conv,
    "Gemm": write_gemm,
    "MatMul": write_matmul,
}
