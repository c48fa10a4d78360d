"""The integers of operators that onnxruntime and MNN compute in float32 between Dequantize and Quantize."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic import dequantize_float32, onnxruntime_sigmoid, onnxruntime_tanh, quantize_float32
from qconvert.evaluate import evaluate_op
from qconvert.graph import Array, Graph, Op
from qconvert.kernels.kernel import Integers
from qconvert.operators import KINDS


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    """Each step is rounded (core/providers/cpu/activation/activations.h)."""
    return np.asarray(np.clip(x * np.float32(alpha) + np.float32(beta), np.float32(0), np.float32(1)))


#: Kinds of one operand whose float32 results are rounded several times, or not at all.
_FUNCTIONS: Mapping[str, Callable[[Array, Op], Array]] = {
    "Sigmoid": lambda x, op: onnxruntime_sigmoid(x),
    "Tanh": lambda x, op: onnxruntime_tanh(x),
    "HardSigmoid": lambda x, op: _hard_sigmoid(x, float(op["alpha"]), float(op["beta"])),
    "HardSwish": lambda x, op: x * _hard_sigmoid(x, 1 / 6, 0.5),
    "Quantize": lambda x, op: x,
}
#: Kinds of operators that are computed here.
IN_FLOAT32 = (*(name for name, kind in KINDS.items() if kind.rounds_once), *_FUNCTIONS)


def compute_in_float32(graph: Graph, op: Op, stored: Sequence[Any], by_reciprocal: bool = False) -> Integers | None:
    """Compute an operator of IN_FLOAT32 on data of 8 or 16 bits with one scale each; None of others, and where a result is NaN, whose
    integer C leaves open.

    Args:
        graph, op, stored: as of any reference.
        by_reciprocal: see arithmetic.quantize_float32().
    """
    result, tensors, values = graph[op.name].per_tensor, {name: graph[name] for name in op.names if name}, list[Any]()
    if result is None:
        return None
    for name, value in zip(op.inputs, stored, strict=True):
        quantization = graph[name].quantization if name else None
        if (name and value is None) or (quantization is not None and not quantization.is_per_tensor):
            return None
        if quantization is None and name and graph[name].dtype in ("float16", "bfloat16", "float64"):
            return None
        values.append(value if quantization is None else dequantize_float32(value, quantization))
        if quantization is not None:
            tensors[name] = replace(graph[name], dtype="float32", quantization=None, data=None)
    if (function := _FUNCTIONS.get(op.kind)) is not None:
        found = np.asarray(function(values[0], op))
    else:
        tensors[op.name] = replace(graph[op.name], dtype="float32", quantization=None)
        attributes = {key: float(np.float32(value)) if isinstance(value, float) else value for key, value in op.attributes.items()}
        real = replace(op, attributes={**attributes, "activation": ""} if "activation" in attributes else attributes)
        found = evaluate_op(replace(graph, tensors=tensors), real, values)[0].stored
    return None if np.isnan(found).any() else Integers.clip_to_limits(graph, op, quantize_float32(found, result, by_reciprocal))
