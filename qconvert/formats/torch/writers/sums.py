"""Sums of products as integers, and their float values in float64: what a product with quantizations means, bit for bit.

Data and weights become whole numbers, zero points taken off, in float32: below 2^24 each part of their sums is exact in whatever order it
is made, and PyTorch's float32 kernels are the fast ones. Longer sums are made in float64. The sum times both scales, in float64, is the
float value. On float values float32 would round the products, and one result in some 100,000 falls on the other side of a tie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic import is_accumulator_scale
from qconvert.formats.torch.nodes import Node
from qconvert.formats.torch.writers.kernels import finish_tflite_conv
from qconvert.formats.torch.writing import Builder
from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range
from qconvert.operators import kind_of

__all__ = ["computes_on_quantizations", "integer_sum", "subtract_zero_point", "sum_as_tflite"]

_EXACT_IN_FLOAT32 = 2.0**24
_TYPES = ("int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2")


def computes_on_quantizations(graph: Graph, op: Op) -> bool:
    """Whether an operator computes float values of integers with quantizations, or rounds float values onto one."""
    if kind_of(op).rule not in ("real", "index", "convert") or op.kind == "Dequantize":
        return False
    quantizations = [graph[name].quantization for name in (*op.inputs, *op.outputs) if name]
    return any(quantization is not None for quantization in quantizations) and not any(
        quantization is not None and quantization.block_size for quantization in quantizations
    )


def integer_sum(op: Op, b: Builder, data: Node, made: Callable[[Node, Node, Node | None], Node], axis: int, length: int) -> Node | None:
    """The float values, in float64, of a sum of products; None if it has no exact integers.

    Args:
        op: a Conv, ConvTranspose, Gemm or MatMul.
        b: what is written.
        data: the node of its stored data, perhaps padded.
        made: writes the operator of data, weights and bias, or None for no bias.
        axis: of the result, along which the weights' scales run.
        length: how many products a sum has at most.
    """
    x, w = b.tensor(op.inputs[0]), b.tensor(op.inputs[1])
    quantizations = x.quantization, w.quantization
    if (
        not b.wide
        or quantizations[0] is None
        or quantizations[1] is None
        or not (_fits(x, None) and _fits(w, 0 if kind_of(op).has_weights else None))
    ):
        return None
    bias = b.tensor(op.inputs[2]) if op.has(2) else None
    scale = quantizations[0].scale.astype(np.float64) * quantizations[1].scale.astype(np.float64)
    joins = bias is not None and bias.quantization is not None and is_accumulator_scale(bias.quantization.scale, scale)
    largest = _largest(x, w, length) + (_magnitude(bias) if bias is not None and joins else 0)
    dtype = "float32" if largest < _EXACT_IN_FLOAT32 else "float64"
    b.note_operator()
    steps = subtract_zero_point(b, data, dtype, quantizations[0], 0)
    weights = subtract_zero_point(b, b.stored_value(w.name), dtype, quantizations[1], w.rank or 0)
    joined = b.aten("to.dtype", b.stored_value(bias.name), b.dtype(dtype)) if bias is not None and joins else None
    total = made(steps, weights, joined)
    shape = [-1 if place == axis else 1 for place in range(_rank(op, b))]
    real = b.aten("mul.Tensor", total, b.buffer(scale.reshape(shape if scale.size > 1 else [1] * len(shape)), f"{op.outputs[0]}/factor"))
    if bias is None or joins:
        return real
    along = b.real(bias.name)
    return b.aten("add.Tensor", real, b.aten("reshape", along, shape) if len(shape) - axis > 1 else along)


def sum_as_tflite(op: Op, b: Builder, data: Node, made: Callable[[Node, Node, Node | None], Node]) -> bool:
    """Writes a convolution of 16-bit data with the integers of TFLite's kernel; False where quantizations are missing.

    Args:
        op: the Conv.
        b, data, made: as in integer_sum().
    """
    x, w, y = (b.tensor(name) for name in (*op.inputs[:2], *op.outputs))
    if x.quantization is None or w.quantization is None or y.quantization is None:
        return False
    bias = b.aten("to.dtype", b.stored_value(op.inputs[2]), b.dtype("float64")) if op.has(2) else None
    weights = subtract_zero_point(b, b.stored_value(w.name), "float64", w.quantization, w.rank or 0)
    total = made(subtract_zero_point(b, data, "float64", x.quantization, 0), weights, bias)
    finish_tflite_conv(op, b, total, (x.quantization, w.quantization, y.quantization))
    return True


def subtract_zero_point(b: Builder, node: Node, dtype: str, quantization: Quantization, rank: int) -> Node:
    """Stored integers less their zero point, as float32 or float64.

    Args:
        b: what is written.
        node: the integers.
        dtype: the type.
        quantization: theirs.
        rank: of them, where scales may run along their first axis.
    """
    real = b.aten("to.dtype", node, b.dtype(dtype))
    points = np.unique(quantization.zero_point)
    if points.size == 1:
        return real if points[0] == 0 else b.aten("sub.Tensor", real, float(points[0]))
    along = quantization.zero_point.astype(dtype).reshape([-1, *[1] * (rank - 1)])
    return b.aten("sub.Tensor", real, b.buffer(along, f"{node.name}/zero_points"))


def _rank(op: Op, b: Builder) -> int:
    rank = b.tensor(op.outputs[0]).rank
    if rank is None:
        raise b.unsupported_error(op, "a result of unknown rank", rule="unknown-size")
    return rank


def _fits(tensor: Tensor, axis: int | None) -> bool:
    """Whether a tensor has few bits, and one scale or one for each index of an axis."""
    quantization = tensor.quantization
    return quantization is not None and tensor.dtype in _TYPES and not quantization.block_size and quantization.axis in (None, axis)


def _magnitude(tensor: Tensor) -> float:
    """The largest magnitude of the whole numbers that a tensor may hold."""
    if tensor.data is not None and tensor.data.size:
        ends: Any = int(tensor.data.min()), int(tensor.data.max())
    else:
        ends = integer_range(tensor.dtype)
    points = tensor.quantization.zero_point if tensor.quantization is not None else np.zeros(1, np.int64)
    return float(max(abs(ends[0] - int(points.max())), abs(ends[1] - int(points.min()))))


def _largest(x: Tensor, w: Tensor, length: int) -> float:
    """More than any part of a sum of products."""
    if w.data is not None and w.quantization is not None and w.quantization.axis in (None, 0) and w.data.ndim > 1:
        points = w.quantization.zero_point.reshape([-1, *[1] * (w.data.ndim - 1)])
        sizes = np.abs(w.data.astype(np.int64) - points)
        if length == np.prod(w.data.shape[1:]):
            return _magnitude(x) * float(sizes.sum(axis=tuple(range(1, w.data.ndim))).max(initial=0))
        return _magnitude(x) * length * float(sizes.max(initial=0))
    return _magnitude(x) * _magnitude(w) * length
