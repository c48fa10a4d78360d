"""Tolerances of ncnn's arithmetic, relative to the exact value."""

from __future__ import annotations

import numpy as np

from qconvert.plugin import Array, Graph, Op, dequantize, partial_sums

#: Roundings to float32 between an exact sum and a result: scales, their inverses, their product, the bias.
_FEW, _LEAST = 64 * 2.0**-24, 1e-3
#: Kernels of depthwise convolutions over 8 channels at once multiply by an approximate reciprocal of the scales (AVX's rcpps), which is
#: off by up to 1.5 * 2^-12 (measured with 1.0.20261020: 2e-4).
_RECIPROCAL = 1.5 * 2.0**-12


def tolerance(graph: Graph, op: Op, exact: Array) -> tuple[Array, bool]:
    """See qconvert.plugin.Kernel."""
    found = np.maximum(_LEAST, np.abs(exact) * _FEW) + 2 * partial_sums(graph, op, exact, least=255.0)
    if op.kind == "Conv" and op["group"] > 1 and graph[op.inputs[0]].is_quantized:
        return found + _sums(graph, op, exact) * _RECIPROCAL, True
    return found, False


def _sums(graph: Graph, op: Op, exact: Array) -> Array:
    """Return the exact values without their biases, in steps: the factors of the reciprocal."""
    bias = graph.constant(op.inputs[2]) if op.has(2) else None
    if bias is None:
        return np.abs(exact)
    q, result = graph[op.inputs[2]].quantization, graph[op.outputs[0]].quantization
    step = 1.0 if result is None else float(result.scale.reshape(-1)[0])
    real = (bias.astype(np.float64) if q is None else dequantize(bias, q)).reshape(-1) / step
    if op["data_format"] == "channels_first":
        real = real.reshape(-1, *(1,) * (exact.ndim - 2))
    point = 0 if result is None else int(result.zero_point.reshape(-1)[0])
    return np.asarray(np.abs(exact - point - real))
