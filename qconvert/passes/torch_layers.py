"""Layers that add a real bias to an exact sum, as PyTorch's engines x86, fbgemm and onednn do; a part of match_rounding.

Integer kernels of onnxruntime and LiteRT take integers for biases. A sum of products of integers below 2^24 is exact in float32 too, in a
layer in float: one rounding to the bias, one by the scales, as PyTorch's own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Op, Quantization, Tensor, integer_range
from qconvert.rewriting import Rewriter

__all__ = ["exact_layer"]

_LARGEST = 2**24


def exact_layer(rewriter: Rewriter, op: Op) -> tuple[Op, ...] | None:
    """Return the operators of a layer on steps of the data, and add their tensors; None where its sums are not exact, or it has no bias.

    Args:
        rewriter: of the operator's graph.
        op: a Conv, ConvTranspose or Gemm.
    """
    if len(op.inputs) < 3 or not op.inputs[2]:
        return None
    data, weights, bias, result = (rewriter[name] for name in (*op.inputs, *op.outputs))
    quantizations = data.quantization, weights.quantization, result.quantization
    if quantizations[0] is None or quantizations[1] is None or quantizations[2] is None or weights.data is None or bias.data is None:
        return None
    if bias.dtype != "float32" or bias.quantization is not None or not (quantizations[0].is_per_tensor and quantizations[2].is_per_tensor):
        return None
    if (
        quantizations[1].block_size
        or quantizations[1].axis not in (None, 0)
        or op["activation"] not in ("", "relu")
        or _sum(data, weights) >= _LARGEST
    ):
        return None
    products = quantizations[0].scale * quantizations[1].scale
    rank = (result.rank or 2) if op.kind != "Gemm" else 1
    along = (-1, *[1] * (rank - 2)) if products.size > 1 and op.kind != "Gemm" else (-1,) if products.size > 1 else ()

    def real(like: Tensor, hint: str) -> str:
        return rewriter.add(f"{result.name}/{hint}", like, dtype="float32", quantization=None)

    def constant(values: Array, hint: str) -> str:
        return rewriter.constant(f"{result.name}/{hint}", np.asarray(values, np.float32))

    def steps(quantization: Quantization) -> Quantization:
        return replace(quantization, scale=np.ones_like(quantization.scale))

    given = rewriter.add(f"{result.name}/data_steps", data, quantization=steps(quantizations[0]))
    reals = real(data, "data_reals")
    factors = rewriter.add(f"{result.name}/weights_steps", weights, data=weights.data, quantization=steps(quantizations[1]))
    real_factors = real(weights, "weights_reals")
    addends = constant(bias.data / products, "bias_steps")
    total = real(result, "sum")
    scale = constant((products / quantizations[2].scale).reshape(along), "scale")
    scaled = real(result, "scaled")
    whole = Quantization.per_tensor(1.0, int(quantizations[2].zero_point[0]))
    found = rewriter.add(f"{result.name}/result_steps", result, quantization=whole)
    return (
        Op("Reinterpret", (data.name,), (given,), {}, op.source),
        Op("Dequantize", (given,), (reals,), {}, op.source),
        Op("Dequantize", (factors,), (real_factors,), {}, op.source),
        replace(op.with_attributes(activation=""), inputs=(reals, real_factors, addends), outputs=(total,)),
        # In this order onnxruntime does not multiply the weights in advance (conv_mul_fusion.cc), which would round them.
        Op("Mul", (scale, total), (scaled,), {"activation": str(op["activation"])}, op.source),
        Op("Quantize", (scaled,), (found,), {}, op.source),
        Op("Reinterpret", (found,), op.outputs, {}, op.source),
    )


def _sum(data: Tensor, weights: Tensor) -> int:
    """What no sum of products is beyond."""
    low, high = integer_range(data.dtype)
    assert weights.data is not None and weights.quantization is not None
    points = weights.quantization.zero_point.reshape([-1, *[1] * (weights.data.ndim - 1)])
    totals = np.abs(weights.data.astype(np.int64) - points).sum(axis=tuple(range(1, weights.data.ndim)))
    return int(totals.max(initial=0)) * (high - low)
