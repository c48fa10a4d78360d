"""Operators as quantized modules and calls of quantized operators: layers with packed weights, sums, products, activations,
normalizations and concatenations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qconvert.formats.torch.quantized_modules.builder import Layer, ModuleBuilder, ModuleFunction
from qconvert.formats.torch.writers.elementwise import bounds_of
from qconvert.formats.torch.writers.layer_parts import is_symmetric, pad_data, pads_of
from qconvert.formats.torch.writing import WriteFunction
from qconvert.graph import Array, Op, Quantization
from qconvert.kernels import KERNELS
from qconvert.rewriting.lowering import with_conditions_of


def _binary(operator: str) -> ModuleFunction:
    """quantized::add and mul, with a Relu."""

    def write(op: Op, b: ModuleBuilder) -> None:
        name = f"quantized.{operator}_relu" if b.has_relu(op) else f"quantized.{operator}"
        b.close(op, b.call(name, *b.stored_values(op), *b.output_qparams(op)))

    return write


def _layer(kind: str, *attributes: str) -> ModuleFunction:
    """A layer of the quantization of its result, and of attributes that are numbers."""
    return _of_layer(lambda op, b: Layer(kind, (*b.output_qparams(op), *(float(op[name]) for name in attributes))))


def _of_layer(make: Callable[[Op, ModuleBuilder], Layer]) -> ModuleFunction:
    """A layer of the data."""
    return lambda op, b: b.close(op, b.layer(op, make(op, b), b.stored_input(op)))


def write_clip(op: Op, b: ModuleBuilder) -> None:
    """Clip of stored integers between numbers, which are rounded to the quantization."""
    low, high = bounds_of(op, b)
    scale, point = b.output_qparams(op)
    limits = float((0 - point) * scale) if low is None else low, float((255 - point) * scale) if high is None else high
    b.store(op, b.clamp(b.stored_input(op), *limits))


def make_batch_norm(op: Op, b: ModuleBuilder) -> Layer:
    """BatchNormalization by its stored mean and variance."""
    values = [b.real_vector(name) for name in op.inputs[1:]]
    parameters = dict(zip(("weight", "bias", "running_mean", "running_var"), values, strict=True))
    return Layer(f"BatchNorm{b.rank(op) - 2}d", (len(values[0]), float(op["epsilon"])), b.output_qparams(op), parameters=parameters)


def make_layer_norm(op: Op, b: ModuleBuilder) -> Layer:
    """LayerNormalization over the axes from `axis` on."""
    sizes = [int(size) for size in b.shape(op)[op["axis"] % b.rank(op) :]]
    names = op.input(1), op.input(2)
    values = [b.real_vector(name) if name else np.full(sizes, value, np.float32) for name, value in zip(names, (1.0, 0.0), strict=True)]
    return Layer("LayerNorm", (sizes, *values, *b.output_qparams(op), float(op["epsilon"])))


def _norm_arguments(op: Op, b: ModuleBuilder) -> tuple[Any, ...]:
    """How many channels there are, their factors and summands, the quantization of the result, and epsilon."""
    values = [b.real_vector(name) for name in op.inputs[1:3]]
    return len(values[0]), *values, *b.output_qparams(op), float(op["epsilon"])


def write_concat(op: Op, b: ModuleBuilder) -> None:
    """Concat of bytes: moved where all have one quantization, else rounded onto the result's."""
    result = b.result(op)
    if all(b.tensor(name).shares_quantization(result) for name in op.inputs):
        b.close(op, b.aten("cat", b.stored_values(op), op["axis"]))
        return
    name = "quantized.cat_relu" if b.has_relu(op) else "quantized.cat"
    b.close(op, b.call(name, b.stored_values(op), op["axis"], *b.output_qparams(op)))


def write_reinterpret(op: Op, b: ModuleBuilder) -> None:
    """Reinterpret: the same integers under another quantization, or none."""
    source, result = b.operand(op), b.result(op)
    node = b.aten("int_repr", b.stored_value(source.name)) if source.is_quantized else b.stored_value(source.name)
    b.set_node(result.name, node if result.quantization is None else b.make_quantized_tensor(node, result))


def _shift_to_int8(data: Array, quantization: Quantization) -> tuple[Array, Quantization]:
    """Weights as qint8: unsigned ones move by 128 with their zero points, which PyTorch's kernels take other than 0 too."""
    if data.dtype == np.uint8:
        return (data.astype(np.int16) - 128).astype(np.int8), quantization.shift_zero_point(-128)
    return data, quantization


def _bias(op: Op, b: ModuleBuilder) -> Array | None:
    return b.real_vector(op.inputs[2]) if op.has(2) else None


def write_conv(op: Op, b: ModuleBuilder) -> None:
    """Conv of one, two or three axes, with a Relu; padding that differs on both sides, or leads to a wrong kernel, is added before."""
    weights = b.operand(op, 1)
    assert weights.data is not None and weights.quantization is not None
    outputs, inputs, *kernel = weights.data.shape
    spatial, relu, group = len(kernel), b.has_relu(op), op["group"]
    pads = pads_of(op, b, kernel, op["dilations"])
    inside = is_symmetric(pads) and not _can_saturate(op, weights.data, pads)
    node = b.stored_input(op) if inside else pad_data(op, b, pads, None)
    padding = pads[:spatial] if inside else [0] * spatial
    sizes = [_size(part) for part in (kernel, op["strides"], padding, op["dilations"])]
    arguments = (inputs * group, outputs, *sizes, group)
    held = _shift_to_int8(weights.data, weights.quantization)
    layer = Layer(f"Conv{'ReLU' if relu else ''}{spatial}d", arguments, b.output_qparams(op), held, _bias(op, b), fused=relu)
    b.close(op, b.layer(op, layer, node))


def _can_saturate(op: Op, weights: Array, pads: list[int]) -> bool:
    """Whether fbgemm's kernel for depthwise convolutions would lose products: it adds two in 16 bits on any CPU.

    It is taken where a layer's own padding is half of its kernel (FbgemmConv.cc, takeDepthWiseFastPath); the others are exact on CPUs
    with VNNI. Two weights of one sign saturate next to the largest data, 255, where they sum up to more than 128.
    """
    outputs, inputs, *kernel = weights.shape
    usual = all(2 * pad == size - 1 for pad, size in zip(pads, kernel, strict=False)) and all(step == 1 for step in op["dilations"])
    if len(kernel) < 2 or inputs != 1 or op["group"] % 8 or not usual:
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
    weights = b.operand(op, 1)
    assert weights.data is not None and weights.quantization is not None
    _linear(op, b, weights.data, weights.quantization)


def _linear(op: Op, b: ModuleBuilder, data: Array, quantization: Quantization) -> None:
    relu = b.has_relu(op)
    arguments = (data.shape[1], data.shape[0])
    kind = "LinearReLU" if relu else "Linear"
    layer = Layer(kind, arguments, b.output_qparams(op), _shift_to_int8(data, quantization), _bias(op, b), fused=relu)
    b.close(op, b.layer(op, layer, b.stored_input(op)))


def write_matmul(op: Op, b: ModuleBuilder) -> None:
    """MatMul: a linear layer where its second operand is constant, whose rows are then the outputs."""
    right = b.operand(op, 1)
    quantization = right.quantization
    if right.data is not None and right.rank == 2 and quantization is not None and not op["trans_a"]:
        data = right.data if op["trans_b"] else right.data.T
        _linear(op, b, data, quantization.with_axis(0) if quantization.axis is not None else quantization)
        return
    operands = [
        b.aten("transpose.int", b.stored_value(name), -2, -1) if op[flag] else b.stored_value(name)
        for name, flag in zip(op.inputs, ("trans_a", "trans_b"), strict=True)
    ]
    b.close(op, b.call("quantized.matmul", *operands, *b.output_qparams(op)))


WRITERS: Mapping[str, ModuleFunction] = {
    "Add": _binary("add"),
    "Mul": _binary("mul"),
    "HardSwish": _layer("Hardswish"),
    "LeakyRelu": _layer("LeakyReLU", "alpha"),
    "Elu": _layer("ELU", "alpha"),
    "Celu": lambda op, b: b.store(op, b.call("quantized.celu", b.stored_input(op), *b.output_qparams(op), float(op["alpha"]))),
    "Clip": write_clip,
    "Softmax": _of_layer(lambda op, b: Layer("Softmax", (op["axis"], *b.output_qparams(op)))),
    "BatchNormalization": _of_layer(make_batch_norm),
    "LayerNormalization": _of_layer(make_layer_norm),
    "GroupNormalization": _of_layer(lambda op, b: Layer("GroupNorm", (op["num_groups"], *_norm_arguments(op, b)))),
    "InstanceNormalization": _of_layer(lambda op, b: Layer(f"InstanceNorm{b.rank(op) - 2}d", _norm_arguments(op, b))),
    "Concat": write_concat,
    "Conv": write_conv,
    "Gemm": write_gemm,
    "MatMul": write_matmul,
}
_KERNELS = KERNELS["torch:modules"]


def module_writers(real: Mapping[str, WriteFunction]) -> Mapping[str, ModuleFunction]:
    """The write functions of modules, by kind, next to those in float."""
    chosen = {kind: _choose_writer(WRITERS.get(kind), real[kind]) for kind, _ in _KERNELS if kind in real}
    return {**real, **chosen, "Reinterpret": write_reinterpret}


def _choose_writer(write: ModuleFunction | None, real: WriteFunction) -> ModuleFunction:
    def choose(op: Op, b: ModuleBuilder) -> None:
        is_float = _KERNELS.find_kernel(b.graph, op, "uint8")[0] is None
        b.on_bytes = write is None and not is_float
        (real if is_float or write is None else write)(op, b)
        b.on_bytes = False

    return with_conditions_of(real, choose)
