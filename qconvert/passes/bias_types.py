"""Biases of quantized operators as int32 and as float32.

float_bias_to_int32: float32 biases of quantized operators become int32 at input scale * weight scale.

Integer kernels add the bias to the sum of products, whose scale this is; the scale is the float32 product of the two float32 scales.
Values are divided in float32, as onnxruntime does, or in float64 for a source of other kernels, and rounded half to even (rounded_bias()).
Not exact: the note says the largest error in steps (LSB) of that scale. The bias of an operator that the target runs in float
(isolate_float) stays as it is.

int32_bias_to_float: int32 biases of quantized operators become float32.

Each is value * scale, computed in float64 and rounded once. Exact as long as the integers have at most 24 bits; above, float32 has fewer
digits than the integer. The note says how many values cannot be taken back to the same integer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.arithmetic import scale_and_zero_point
from qconvert.errors import format_count, format_verb
from qconvert.graph import Graph, Tensor
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.kernels.products import rounded_bias
from qconvert.passes.linear import BiasQuantizations
from qconvert.plugins import Change, Cost, PassResult, Target
from qconvert.rewriting.requantize import quantized_bias

#: PyTorch's engines whose layers add a real bias to the exact sum.
_REAL = ("x86", "fbgemm", "onednn")


def float_bias_to_int32(graph: Graph, target: Target | None) -> PassResult:
    """Change the constant biases of Conv, ConvTranspose and Gemm with quantized data, weights and results.

    A bias that would leave int32, or whose scale would leave float32, stays and is named. One that operators of different scales
    read is made once for each scale.
    """
    biases = BiasQuantizations(graph, "int32")
    engine = graph.metadata.get(SOURCE_KERNELS, "").removeprefix("torch:")
    notes: list[Change | str] = []
    for op in biases:
        bias = quantized_bias(graph, op)
        if bias is None or bias.dtype != "float32" or bias.is_quantized or not graph[op.name].is_quantized:
            continue
        if target is not None and target.knows_kernels and target.judge(graph, replace(op, inputs=op.inputs[:2]), final=False).isolated_for:
            continue
        new = rounded_bias(graph, op, np.float64 if engine else np.float32)
        if new is None:
            notes.append(f"the bias {bias.name!r} of {op} stays float32: it does not fit int32 at input scale * weight scale")
            continue
        biases.put(op, bias, new)
    if not biases.made:
        return graph, tuple(notes)
    found = [_cost(graph[name], new) for (name, *_), new in biases.made.items()]
    inexact, largest = sum(changed for changed, _ in found), max(error for _, error in found)
    costs = tuple(Cost(name, None, error) for (name, *_), (changed, error) in zip(biases.made, found, strict=True) if changed)
    values = sum(tensor.data.size for tensor in biases.made.values() if tensor.data is not None)
    cost = f"; {inexact} of them are not exact, by at most {largest:.3g} LSB of the sums of products" if inexact else ", equal as float32"
    if inexact and engine in _REAL:
        cost += f": these layers give the integers of PyTorch's qnnpack, not of its {engine}, which keeps biases in float (-O biases=keep)"
    note = Change(
        f"{format_count(len(biases.made), 'bias')} of {format_count(values, 'value')} {format_verb(len(biases.made), 'are')} int32{cost}",
        exact=not largest,
        costs=costs,
    )
    return biases.finish(), (note, *notes)


def _cost(old: Tensor, new: Tensor) -> tuple[int, float]:
    """Return how many values changed, as float32, and the largest change in LSB."""
    assert old.data is not None
    real = new.float_values()
    scale, _ = scale_and_zero_point(new.require_quantization(), old.data.shape)
    error = np.abs(real - old.data) / scale
    return int((real.astype(np.float32) != old.data).sum()), float(error.max(initial=0))


def int32_bias_to_float(graph: Graph, target: Target | None) -> PassResult:
    """Change the biases of Conv, ConvTranspose and Gemm with quantized data and weights. A bias that others read too is copied."""
    biases = BiasQuantizations(graph, "float32")
    for op in biases:
        bias = quantized_bias(graph, op)
        if bias is not None and bias.dtype == "int32" and bias.quantization is not None:
            biases.put(op, bias, Tensor("", "float32", bias.shape, bias.float_values().astype(np.float32)))
    if not biases.made:
        return graph, ()
    values = sum(tensor.data.size for tensor in biases.made.values() if tensor.data is not None)
    lost = sum(_count_lost_values(graph[name], tensor) for (name, *_), tensor in biases.made.items())
    words = "all of them round to the same integers" if not lost else f"{lost} of them round to another integer"
    changed = biases.finish()
    costs = tuple(Cost(tensor.name, None, None) for tensor in biases.made.values())
    return changed, (
        Change(
            f"{format_count(len(biases.made), 'bias')} of {format_count(values, 'value')} "
            f"{format_verb(len(biases.made), 'are float32')}; {words}",
            costs=costs,
        ),
    )


def _count_lost_values(bias: Tensor, real: Tensor) -> int:
    """Return how many float32 values lie nearer to another integer's."""
    assert bias.data is not None and real.data is not None
    scale, _ = scale_and_zero_point(bias.require_quantization(), bias.data.shape)
    return int((np.rint(real.data.astype(np.float64) / scale.astype(np.float64)) != bias.data).sum())
