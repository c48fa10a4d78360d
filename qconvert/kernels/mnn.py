"""The kernels of MNN 3.6.1 on CPUs: int8 convolutions scale a sum in float32 (arithmetic/kernels.py), all else computes in float32.

Kernels of integers that are inexact are not used (isolate_inexact_operators() in formats/mnn/float_network.py): an average over a window
multiplies by a rounded reciprocal and truncates, a linear Resize truncates each weight to 7 bits (MNNBilinearSampleC8, ResizeFunction.cpp),
and a maximum compares integers as if they had no sign on CPUs with AVX-512.

A depthwise kernel adds the zero point of its result to the sum as an integer, which truncates up to one unit of the sum (measured with
MNN 3.6.1, docs/mnn.md; formats/mnn/float_network.py makes it half a unit).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qconvert.arithmetic import LEAST_MNN_SCALE, compensate_mnn_bias, dequantize, mnn_convolution, mnn_depthwise
from qconvert.graph import Array, Graph, Op
from qconvert.kernels import KERNELS
from qconvert.kernels.float_arithmetic import compute_in_float32
from qconvert.kernels.kernel import IN_ANY_ORDER, Integers, Kernel, quantizations_of
from qconvert.kernels.products import accumulate_products
from qconvert.kernels.tolerances import Found
from qconvert.kernels.torch import IN_FLOAT, few_roundings, program
from qconvert.operators import kind_of

#: Units of the sum of products that a depthwise kernel truncates.
_CUT_OFF = 1.0


def is_depthwise_in_mnn(graph: Graph, op: Op) -> bool:
    """Whether a convolution has one input and one output channel a group, also with a single group (measured with MNN 3.6.1)."""
    return kind_of(op).convolves and (graph[op.inputs[1]].shape or ())[:2] == (op["group"], 1)


def _conv(graph: Graph, op: Op, exact: Array) -> Found:
    found, coarse = program(graph, op, exact)
    quantizations = quantizations_of(graph, op, 2, of_any_axis=True)
    if not is_depthwise_in_mnn(graph, op) or not quantizations:
        return found, coarse
    data, weights, result = (quantization.scale.astype(np.float64) for quantization in quantizations)
    unit = data.flat[0] * weights.reshape(-1) / result.flat[0]
    if unit.size > 1 and exact.ndim > 2 and op["data_format"] == "channels_first":
        unit = unit.reshape(-1, *(1,) * (exact.ndim - 2))
    return np.asarray(found + _CUT_OFF * unit), coarse


def _float_conv(graph: Graph, op: Op, exact: Array) -> Found:
    found, coarse = _conv(graph, op, exact)
    off = KERNELS["mnn:cpu"].tile_error(graph, op) * float(np.abs(exact).max(initial=0))
    return found + off, coarse or off > 1.0


def _conv_integers(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """A convolution of one group, or depthwise, of int8; see arithmetic.mnn_convolution(). Biases are those of the float network that MNN
    gets (formats/mnn/float_network.py)."""
    data, weights, result = (graph[name] for name in (*op.inputs[:2], op.name))
    given, factors, output = data.quantization, weights.quantization, result.quantization
    bias = stored[2] if op.has(2) else None
    if given is None or factors is None or output is None or stored[0] is None or stored[1] is None or (op.has(2) and bias is None):
        return None
    outputs, is_depthwise = stored[1].shape[0], is_depthwise_in_mnn(graph, op)
    is_known = op["activation"] in ("", "relu") and (op["group"] == 1 or is_depthwise) and op["data_format"] == "channels_first"
    is_known &= {data.dtype, weights.dtype, result.dtype} == {"int8"} and given.is_per_tensor and output.is_per_tensor
    if not is_known or data.rank != 4 or factors.zero_point.any() or factors.axis not in (None, 0) or factors.block_size:
        return None
    scales = np.broadcast_to(factors.scale, (outputs,))
    quantization = graph[op.inputs[2]].quantization if op.has(2) else None
    added = np.zeros(outputs) if bias is None else bias if quantization is None else dequantize(bias, quantization)
    total = accumulate_products(graph, replace(op, inputs=op.inputs[:2]), stored[:2]).astype(np.int64)
    sums = stored[1].astype(np.int64).reshape(outputs, -1).sum(axis=1)
    real = np.asarray(added, np.float32)
    if not is_depthwise:
        return Integers.clip_to_limits(graph, op, mnn_convolution(total, sums, real, given, scales, output))
    real, _ = compensate_mnn_bias(real, given.step, scales, output.step, output.point)
    return Integers.clip_to_limits(graph, op, mnn_depthwise(total, real, given, scales, output))


def _conv_fault(graph: Graph, op: Op) -> str:
    """A depthwise kernel adds the zero point of its result as units of the sum, in 32 bits."""
    found = quantizations_of(graph, op, 2, of_any_axis=True)
    if not is_depthwise_in_mnn(graph, op) or not found:
        return ""
    data, weights, result = (quantization.scale.astype(np.float64) for quantization in found)
    units = np.abs(found[2].zero_point).max() * result.max() / (data.min() * np.maximum(weights, LEAST_MNN_SCALE).min())
    return f"MNN adds the zero point of the result as {units:.3g} units of the sum, which 32 bits do not hold" if units >= 2.0**31 else ""


_ANY_ORDER = "MNN takes equal values in any order"


def _order_fault(graph: Graph, op: Op) -> str:
    """MNN sorts values alone: of equal ones the first index of a TopK is not the first in the result, unless it is the only one."""
    count = graph.constant(op.inputs[1])
    only_one = count is not None and count.size == 1 and int(count.flat[0]) == 1
    return _ANY_ORDER if any(op.outputs[1:2]) and not only_one else ""


_INT8 = ("int8",)
#: MNN multiplies by the reciprocal of the scale: no element of 2,000,000 differs, 46,000 of them next to ties
#: (tests/test_float_kernels.py).
_IN_FLOAT32 = partial(compute_in_float32, by_reciprocal=True)
ROWS = (
    Kernel(("ConvTranspose", "MatMul"), runs="nothing", tolerance=program),
    Kernel(("Conv",), _INT8, tolerance=_conv, fault=_conv_fault, reference=_conv_integers),
    Kernel(("Gemm",), _INT8, tolerance=program, unknown="a product that its converter may make a convolution"),
    Kernel(("AveragePool",), runs="inexact", tolerance=few_roundings, unknown=IN_ANY_ORDER),
    Kernel(("Add", "Sub", "Mul", "Relu", "Clip"), _INT8, tolerance=few_roundings, reference=_IN_FLOAT32),
    Kernel(("GlobalAveragePool",), _INT8, tolerance=few_roundings, unknown=IN_ANY_ORDER),
    Kernel(("MaxPool", "GlobalMaxPool"), runs="inexact"),
    Kernel(("Div", "LeakyRelu"), runs="float", tolerance=few_roundings, reference=_IN_FLOAT32),
    Kernel(("Conv",), runs="float", tolerance=_float_conv, unknown=IN_ANY_ORDER),
    Kernel(("Resize",), runs="inexact", lacks=lambda graph, op: "the nearest" if op["mode"] == "nearest" else "", tolerance=program,
           unknown=IN_ANY_ORDER),
    Kernel(("TopK",), runs="float", tolerance=program, fault=_order_fault, unknown=IN_ANY_ORDER),
    Kernel(("NonMaxSuppression", "SelectBoxes", "DetectionPostProcess"), runs="float", tolerance=program,
           fault=lambda graph, op: _ANY_ORDER, unknown=IN_ANY_ORDER),
    *IN_FLOAT,
)  # fmt: skip
