"""Convolutions, linear layers and products of matrices, in float."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.formats.torch.program import Node
from qconvert.formats.torch.writers.layer_parts import (
    integer_sum,
    is_symmetric,
    pad_conv_data,
    pads_of,
    real_data,
    round_data,
    sum_as_tflite,
    torch_pads,
)
from qconvert.formats.torch.writing import Builder, WriteFunction, with_note
from qconvert.graph import Op
from qconvert.operators import is_dynamic
from qconvert.operators.sizes import swapped_weights


def _bias(op: Op, b: Builder) -> Any:
    """The bias's float values. PyTorch has no dequantize of int64: such a bias becomes int32, or float32 if it is too large."""
    if not op.has(2):
        return None
    bias = b.operand(op, 2)
    if bias.dtype != "int64" or bias.data is None or bias.quantization is None:
        return b.float_value(bias.name)
    if abs(bias.data).max(initial=0) < 2**31:
        return b.dequantize(b.buffer(bias.data.astype(np.int32), f"{bias.name}/int32"), replace(bias, dtype="int32"))
    real = bias.data * bias.quantization.scale.astype(np.float64)
    return b.buffer(real.astype(np.float32), f"{bias.name}/float32")


def write_conv(op: Op, b: Builder) -> None:
    """Conv of one, two or three axes; padding that differs on both sides is added to the stored integers before."""
    spatial = b.rank(op) - 2
    data, pads = pad_conv_data(op, b, spatial)
    sizes = (op["strides"], pads, op["dilations"], op["group"])

    def emit_conv(x: Node, w: Node, bias: Node | None) -> Node:
        return b.aten(f"conv{spatial}d", x, w, bias, *sizes)

    if b.wide and op["arithmetic"] == "tflite" and sum_as_tflite(op, b, data, emit_conv):
        return
    _finish_sum(op, b, data, emit_conv, 1, _length(op, b))


def _finish_sum(op: Op, b: Builder, data: Node, made: Callable[[Node, Node, Node | None], Node], axis: int, length: int) -> None:
    """Ends a sum of products: of integers where these are exact, else of float values; see integer_sum()."""
    real = integer_sum(op, b, data, made, axis, length)
    b.finish(op, made(_data(op, b, data), b.float_input(op, 1), _bias(op, b)) if real is None else real)


def _data(op: Op, b: Builder, node: Node) -> Node:
    """Real data, which an operator of dynamic range rounds."""
    if not is_dynamic(op):
        return real_data(op, b, node)
    return round_data(op, b, node, b.rank(op), [size for size in b.shape(op, 1)[2:] if isinstance(size, int)])


def _length(op: Op, b: Builder) -> int:
    """How many products a sum of a layer has at most."""
    return math.prod(size if isinstance(size, int) else 2**24 for size in b.shape(op, 1)[1:])


def write_conv_transpose(op: Op, b: Builder) -> None:
    """ConvTranspose, whose weights PyTorch has as I,O/group,spatial; cropping that differs on both sides is a slice after it."""
    spatial, pads = b.rank(op) - 2, op["pads"]
    begins, ends = pads[:spatial], pads[spatial:]
    less = [min(pair) for pair in zip(begins, ends, strict=True)]
    extra = op["output_padding"] if is_symmetric(pads) else [0] * spatial
    sizes = (op["strides"], less, extra, op["group"], op["dilations"])
    operator = f"conv_transpose{spatial}d" + (".input" if spatial > 1 else "")

    def emit_conv_transpose(x: Node, w: Node, bias: Node | None) -> Node:
        return b.aten(operator, x, _transpose_weights(op, b, w), bias, *sizes)

    real = integer_sum(op, b, b.stored_input(op), emit_conv_transpose, 1, _length(op, b))
    if real is None:
        data = _data(op, b, b.stored_input(op))
        real = b.aten(operator, data, _float_weights(op, b), _bias(op, b), *sizes)
    node = real
    if not is_symmetric(pads):
        shape = b.shape(op, op.outputs[0])
        for axis, (begin, least) in enumerate(zip(begins, less, strict=True)):
            (size,) = b.known_sizes(op, shape[2 + axis : 3 + axis], "different cropping on both sides of an axis of unknown size")
            node = b.aten("slice.Tensor", node, 2 + axis, begin - least, begin - least + size)
    b.finish(op, node)


def _transpose_weights(op: Op, b: Builder, weights: Node) -> Node:
    """Weights O,I/group,spatial as I,O/group,spatial, when the program runs."""
    group = op["group"]
    if group == 1:
        return b.aten("transpose.int", weights, 0, 1)
    outputs, inputs, *kernel = b.known_sizes(op, b.shape(op, 1), "groups of weights of unknown size")
    split = b.aten("transpose.int", b.aten("reshape", weights, [group, outputs // group, inputs, *kernel]), 1, 2)
    return b.aten("reshape", split, [group * inputs, outputs // group, *kernel])


def _float_weights(op: Op, b: Builder) -> Any:
    """Real weights I,O/group,spatial of the canonical O,I/group,spatial."""
    weights = b.operand(op, 1)
    if b.wide or weights.data is None or weights.quantization is not None:
        return _transpose_weights(op, b, b.float_value(weights.name))
    return b.buffer(swapped_weights(weights.data, op["group"]), weights.name)


def write_gemm(op: Op, b: Builder) -> None:
    """Gemm: a linear layer; what is added and is no vector of the outputs is added after it."""
    vector = op.has(2) and b.operand(op, 2).rank == 1

    def linear(x: Node, w: Node, bias: Node | None) -> Node:
        if bias is None or vector:
            return b.aten("linear", x, w, bias)
        return b.aten("linear", x, w, None) + bias

    _finish_sum(op, b, b.stored_input(op), linear, (b.result(op).rank or 0) - 1, _length(op, b))


def write_matmul_integer(op: Op, b: Builder) -> None:
    """MatMulInteger, in int32; zero points along rows and columns are turned so that they broadcast."""
    operands = []
    for index, axis in ((0, -1), (1, -2)):
        node = b.cast(b.stored_input(op, index), "int32")
        point = op.input(index + 2)
        if point:
            zero = b.cast(b.stored_value(point), "int32")
            if b.tensor(point).rank == 1 and b.tensor(point).static_shape != (1,):
                zero = b.aten("unsqueeze", zero, axis)
            node = node - zero
        operands.append(node)
    b.note_operator()
    b.store(op, b.aten("matmul", *operands))


def write_conv_integer(op: Op, b: Builder) -> None:
    """ConvInteger: a convolution of whole numbers in float64, which holds all sums of int32."""
    spatial = b.rank(op) - 2
    pads = pads_of(op, b, b.static_shape(op, 1)[2:], op["dilations"])
    weights, data = (b.cast(b.stored_input(op, index), "float64") for index in (1, 0))
    if op.has(2):
        data = data - b.aten("reshape", b.stored_input(op, 2), [])
    if op.has(3):
        weights = weights - b.aten("reshape", b.stored_input(op, 3), [-1, *[1] * (spatial + 1)])
    if not is_symmetric(pads):
        data, pads = b.aten("constant_pad_nd", data, torch_pads(pads[:spatial], pads[spatial:]), 0.0), [0] * (2 * spatial)
    sizes = (op["strides"], pads[:spatial], op["dilations"], op["group"])
    b.note_operator()
    total = b.aten(f"conv{spatial}d", data, weights, None, *sizes)
    b.store(op, b.cast(total, "int32"))


def write_matmul(op: Op, b: Builder) -> None:
    """MatMul, with its operands turned as it says."""

    def product(x: Node, w: Node, _: Node | None) -> Node:
        sides = ((x, "trans_a"), (w, "trans_b"))
        return b.aten("matmul", *(b.aten("transpose.int", node, -2, -1) if op[flag] else node for node, flag in sides))

    shape = b.shape(op)
    length = shape[-2 if op["trans_a"] and len(shape) > 1 else -1]
    _finish_sum(op, b, b.stored_input(op), product, 0, length if isinstance(length, int) else 2**24)


WRITERS: Mapping[str, WriteFunction] = {
    "Conv": write_conv,
    "ConvTranspose": write_conv_transpose,
    "Gemm": write_gemm,
    "MatMul": write_matmul,
    "MatMulInteger": write_matmul_integer,
    "ConvInteger": write_conv_integer,
    "Einsum": with_note(lambda op, b: b.finish(op, b.aten("einsum", op["equation"].replace(" ", ""), b.float_values(op)))),
}
