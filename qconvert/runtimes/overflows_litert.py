"""What TFLite's kernels give where their 32 bits overflow (arithmetic/wrapped.py)."""

from __future__ import annotations

import numpy as np

from qconvert.arithmetic import tflite_compared, tflite_curve, tflite_divide, tflite_requantize, tflite_softmax
from qconvert.graph import Array, Graph, Op, integer_range
from qconvert.graph.activations import ACTIVATIONS, clip_range

__all__ = ["UNDEFINED_CURVE", "overflows"]

#: Scales of LOGISTIC and TANH of int16 from which on 12288 times the scale does not fit int32: C does not define what it becomes.
UNDEFINED_CURVE = 2**31 / 12288

_COMPARISONS = {"Equal": np.equal, "NotEqual": np.not_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
                "Less": np.less, "LessOrEqual": np.less_equal}  # fmt: skip


def overflows(graph: Graph, op: Op, inputs: list[Array | None]) -> Array | None:
    """See plugins.Runtime."""
    data, result = (graph.tensors.get(name) for name in (op.inputs[0] if op.inputs else "", op.outputs[0] if op.outputs else ""))
    if op.kind == "Div":
        return _divided(graph, op, inputs)
    if op.kind in _COMPARISONS:
        return _compared(graph, op, inputs)
    if op.kind not in ("Requantize", "Softmax", "Sigmoid", "Tanh") or data is None or result is None or inputs[0] is None:
        return None
    given, output = data.quantization, result.quantization
    if given is None or output is None or not (given.is_per_tensor and output.is_per_tensor):
        return None
    sixteen = (data.dtype, result.dtype) == ("int16", "int16") and inputs[0].size
    if op.kind in ("Sigmoid", "Tanh"):
        own = sixteen and float(given.scale[0]) < UNDEFINED_CURVE
        found, wraps = tflite_curve(inputs[0], float(given.scale[0]), op.kind) if own else (None, False)
    elif op.kind == "Softmax":
        found, wraps = tflite_softmax(inputs[0], float(given.scale[0]), float(op["beta"]), int(op["axis"])) if sixteen else (None, False)
    else:
        own = data.dtype != result.dtype or data.dtype == "int16"  # XNNPACK has the others
        found, wraps = tflite_requantize(inputs[0], given, output, result.dtype) if own else (None, False)
    return found if wraps else None


def _divided(graph: Graph, op: Op, inputs: list[Array | None]) -> Array | None:
    """DIV whose quotients ask for shifts that C does not define."""
    first, second = inputs
    tensors = [graph[name] for name in (*op.inputs, *op.outputs)]
    grids = [tensor.quantization for tensor in tensors if tensor.quantization is not None and tensor.quantization.is_per_tensor]
    types = {tensor.dtype for tensor in tensors}
    if first is None or second is None or len(grids) < len(tensors) or len(types) > 1 or not types < {"int8", "uint8", "int16"}:
        return None
    limits = clip_range(tensors[2], ACTIVATIONS[str(op.attributes.get("activation", ""))])
    values, divisors = np.broadcast_arrays(first, second)
    found, undefined = tflite_divide(values, divisors, grids[0], grids[1], grids[2], limits)
    return found if undefined else None


def _compared(graph: Graph, op: Op, inputs: list[Array | None]) -> Array | None:
    """Comparisons of bytes at scales from 1 on."""
    sides, undefined = [], False
    for name, stored in zip(op.inputs, inputs, strict=True):
        grid, dtype = graph[name].quantization, graph[name].dtype
        if stored is None or grid is None or not grid.is_per_tensor or dtype not in ("int8", "uint8"):
            return None
        table, defined = tflite_compared(grid, dtype)
        sides.append(table[stored.astype(np.int64) - integer_range(dtype)[0]])
        undefined = undefined or not defined
    return np.asarray(_COMPARISONS[op.kind](*sides)) if undefined else None
