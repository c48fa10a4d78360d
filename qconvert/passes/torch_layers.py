"""Layers that add a real bias to an exact sum, as PyTorch's engines x86, fbgemm and onednn do; a part of match_rounding.

Integer kernels of onnxruntime and LiteRT take integers for biases. A sum of products of integers below 2^24 is exact in float32 too, in a
layer on real values: one rounding to the bias, one by the scales, as PyTorch's own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range

__all__ = ["exact_layer"]

_LARGEST = 2**24


def exact_layer(graph: Graph, op: Op) -> tuple[list[Op], list[Tensor]] | None:
    """The operators, and the tensors that they add, of a layer on steps of the data; None where its sums are not exact, or it has no bias.

    Args:
        graph: the operator's.
        op: a Conv, ConvTranspose or Gemm.
    """
    if len(op.inputs) < 3 or not op.inputs[2]:
        return None
    data, weights, bias, result = (graph[name] for name in (*op.inputs, *op.outputs))
    grids = data.quantization, weights.quantization, result.quantization
    if grids[0] is None or grids[1] is None or grids[2] is None or weights.data is None or bias.data is None:
        return None
    if bias.dtype != "float32" or bias.quantization is not None or not (grids[0].is_per_tensor and grids[2].is_per_tensor):
        return None
    if grids[1].block_size or grids[1].axis not in (None, 0) or op["activation"] not in ("", "relu") or _sum(data, weights) >= _LARGEST:
        return None
    products = grids[0].scale * grids[1].scale
    rank = (result.rank or 2) if op.kind != "Gemm" else 1
    along = (-1, *[1] * (rank - 2)) if products.size > 1 and op.kind != "Gemm" else (-1,) if products.size > 1 else ()
    tensors: list[Tensor] = []

    def add(tensor: Tensor, name: str) -> str:
        tensors.append(replace(tensor, name=f"{result.name}/{name}"))
        return tensors[-1].name

    def steps(tensor: Tensor) -> Tensor:
        return replace(tensor, quantization=replace(tensor.quantization, scale=np.ones_like(tensor.quantization.scale)))  # type: ignore

    real = Tensor("", "float32", result.shape)
    names = {
        "data": add(steps(data), "data_steps"),
        "reals": add(Tensor("", "float32", data.shape), "data_reals"),
        "weights": add(steps(weights), "weights_steps"),
        "factors": add(Tensor("", "float32", weights.shape), "weights_reals"),
        "bias": add(Tensor("", "float32", bias.shape, (bias.data / products).astype(np.float32)), "bias_steps"),
        "sum": add(real, "sum"),
        "scale": add(_constant((products / grids[2].scale).reshape(along)), "scale"),
        "scaled": add(real, "scaled"),
        "found": add(replace(result, quantization=Quantization.per_tensor(1.0, int(grids[2].zero_point[0]))), "result_steps"),
    }
    kinds = [
        Op("Reinterpret", (data.name,), (names["data"],), {}, op.source),
        Op("Dequantize", (names["data"],), (names["reals"],), {}, op.source),
        Op("Dequantize", (names["weights"],), (names["factors"],), {}, op.source),
        replace(op.with_attributes(activation=""), inputs=(names["reals"], names["factors"], names["bias"]), outputs=(names["sum"],)),
        # In this order onnxruntime does not multiply the weights in advance (conv_mul_fusion.cc), which would round them.
        Op("Mul", (names["scale"], names["sum"]), (names["scaled"],), {"activation": str(op["activation"])}, op.source),
        Op("Quantize", (names["scaled"],), (names["found"],), {}, op.source),
        Op("Reinterpret", (names["found"],), op.outputs, {}, op.source),
    ]
    return kinds, tensors


def _constant(values: np.ndarray) -> Tensor:
    return Tensor("", "float32", values.shape, np.asarray(values, np.float32))


def _sum(data: Tensor, weights: Tensor) -> int:
    """What no sum of products is beyond."""
    low, high = integer_range(data.dtype)
    assert weights.data is not None and weights.quantization is not None
    points = weights.quantization.zero_point.reshape([-1, *[1] * (weights.data.ndim - 1)])
    totals = np.abs(weights.data.astype(np.int64) - points).sum(axis=tuple(range(1, weights.data.ndim)))
    return int(totals.max(initial=0)) * (high - low)
