"""Layers with packed weights: convolutions and linear layers, and products of two tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.formats.torch.quantized_modules.builder import Layer, ModuleBuilder, ModuleFunction
from qconvert.formats.torch.writers.windows import is_symmetric, pad_data, pads_of
from qconvert.graph import Array, Op, Quantization

__all__ = ["WRITERS"]


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
    "Conv": write_conv,
    "Gemm": write_gemm,
    "MatMul": write_matmul,
}
