"""Another quantization for one tensor of a graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import accumulator_quantization
from qconvert.arithmetic.rounding import quantize
from qconvert.arithmetic.storage import Quantization
from qconvert.errors import OptionError
from qconvert.graph.schema import Graph, Op, Tensor
from qconvert.operators import kind_of


def with_quantization(graph: Graph, name: str, quantization: Quantization) -> Graph:
    """Return a copy of a graph in which a tensor has another quantization of its storage type.

    The integers of a constant become those of its float values with the new quantization, rounded half to even. Integer biases of operators
    that read the tensor next to quantized data or weights move to the product of the two scales. What a move (Reshape, Concat) gives out
    keeps its quantization: where that must be the same, validate() says so.

    Args:
        graph: that has the tensor.
        name: of a quantized tensor.
        quantization: its new quantization.

    Raises:
        OptionError: there is no such tensor, it is not quantized, or a bias does not fit its new quantization.
    """
    tensor = graph.tensors.get(name)
    if tensor is None:
        raise OptionError("is not a tensor of the graph", where=repr(name), rule="unknown-tensor")
    if tensor.quantization is None:
        raise OptionError("is not quantized", where=repr(name), rule="not-quantized")
    changed = {name: _requantize_exactly(tensor, quantization)}
    for op in graph.ops:
        bias = quantized_bias(graph, op)
        if bias is None or not bias.is_quantized or name not in op.inputs[:2]:
            continue
        data, weights = (changed.get(given, graph[given]).require_quantization() for given in op.inputs[:2])
        found = _requantize_exactly(bias, accumulator_quantization(data, weights, (bias.rank or 1) - 1))
        if bias.name in changed and changed[bias.name] != found:
            raise OptionError(
                "is the bias of operators whose accumulators would have different scales",
                where=repr(bias.name),
                rule="bias-scales-differ",
            )
        changed[bias.name] = found
    return graph.evolve(tensors=changed.values())


def is_quantized(graph: Graph, op: Op) -> bool:
    """Whether data and weights of a linear operator are quantized, so that products have a scale."""
    return graph[op.inputs[0]].is_quantized and graph[op.inputs[1]].is_quantized


def quantized_bias(graph: Graph, op: Op) -> Tensor | None:
    """Return the constant bias of a quantized linear operator."""
    if not kind_of(op).sums_products or not op.has(2) or not is_quantized(graph, op):
        return None
    bias = graph[op.inputs[2]]
    return bias if bias.is_constant else None


def requantize_tensor(tensor: Tensor, quantization: Quantization, dtype: str = "") -> Tensor:
    """Return a quantized tensor with another quantization, by default of its type; of a constant the float values, rounded."""
    dtype = dtype or tensor.dtype
    data = None if tensor.data is None else quantize(tensor.float_values(), quantization, dtype)
    return replace(tensor, dtype=dtype, data=data, quantization=quantization)


def _requantize_exactly(tensor: Tensor, quantization: Quantization) -> Tensor:
    """Return a quantized tensor with another quantization, which holds the values of a bias."""
    back = requantize_tensor(tensor, quantization)
    if tensor.dtype != "int32" or tensor.data is None:
        return back
    half_step = np.abs(quantization.scale.astype(np.float64)) * 0.5001  # of channels along the last axis, and what float64 adds
    if (np.abs(back.float_values() - tensor.float_values()) > half_step).any():
        raise OptionError(
            f"does not fit {tensor.dtype} with its new scale and zero point", where=repr(tensor.name), rule="integers-too-large"
        )
    return back
