"""The kernels of PyTorch 2.13: programs in float32 between dequantize and quantize, quantized modules, and those of inductor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.kernels.kernel import Integers, Kernel
from qconvert.kernels.tolerances import Found, fine, partial_sums
from qconvert.kernels.torch_modules import OBSTACLES
from qconvert.operators import kind_of

__all__ = ["INDUCTOR", "MODULES", "PROGRAM", "TRUSTED", "few_roundings", "program"]


def program(graph: Graph, op: Op, exact: Array) -> Found:
    """Return the tolerance of curves, which are coarser than float32, or of sums of products, whose terms may exceed the result."""
    if kind_of(op).sums_products:
        return 10 * fine(exact) + 2 * partial_sums(graph, op, exact, least=255.0), False
    return np.full(exact.shape, 0.01), False


def few_roundings(graph: Graph, op: Op, exact: Array) -> Found:
    """quantize multiplies by the reciprocal of the scale, another rounding of float32 (fx/_decomposed.py)."""
    return 20 * fine(exact), False


def _reorder_channels(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """qnnpack's relu6, hardtanh and clamp take data as contiguous (qclamp.cpp), but the convolution before them stores its result channels
    last, so the values are in another order. The reader fuses both into one operator."""
    if graph.metadata.get(SOURCE_KERNELS) != "torch:qnnpack" or graph[op.outputs[0]].rank != len(_TO_LAST):
        return None
    found = evaluate_op(graph, op, list(stored))[0].stored
    return Integers((found.transpose(_TO_LAST).reshape(found.shape),), "gives data stored channels last in another order")


def _not_lowered(graph: Graph, op: Op) -> str:
    """Say why inductor computes an operator in float."""
    weights = graph[op.inputs[1]]
    if not weights.is_constant or weights.dtype != "int8":
        return "weights that are not int8 constants"
    if op.kind == "Gemm" and (weights.quantization is None or weights.quantization.axis is None):
        return "weights with one scale, for which inductor does not replace linear layers"
    return ""


_TO_LAST = (0, 2, 3, 1)
_FEW = ("Add", "Sub", "Mul", "Div", "ReduceMean", "ReduceSum", "AveragePool", "GlobalAveragePool", "Requantize", "Quantize", "LeakyRelu",
        "PRelu", "Relu", "Clip", "Concat", "Resize", "HardSwish", "HardSigmoid")  # fmt: skip

#: Programs in float32.
PROGRAM = (Kernel(_FEW, runs="reals", tolerance=few_roundings), Kernel(runs="reals", tolerance=program))
#: Files that PyTorch runs itself.
TRUSTED = (
    Kernel(("Clip", "Relu"), runs="reals", tolerance=few_roundings, reference=_reorder_channels),
    Kernel(("Conv", "ConvTranspose"), runs="reals", tolerance=program, reference=_reorder_channels),
    *PROGRAM,
)
#: torch.ao.nn.quantized and the operators quantized::.
MODULES = (
    *(
        Kernel((kind,), ("uint8",), real=("bias",) if kind in ("Conv", "Gemm") else (), lacks=obstacle, tolerance=program)
        for kind, obstacle in OBSTACLES.items()
    ),
    Kernel(runs="reals", tolerance=program),
)
#: oneDNN, to which inductor with freezing lowers products of uint8 data, on x86-64; additions after a convolution become part of it.
INDUCTOR = (
    Kernel(("Conv", "Gemm"), ("uint8",), real=("bias", "result"), lacks=_not_lowered, tolerance=program),
    Kernel(runs="reals", tolerance=program),
)
