"""gemm_to_conv: a Gemm of quantized rows becomes a convolution over one position, between two Reshapes. Exact: the same sums of products.

For runtimes whose integer kernels are those of convolutions alone. Gemms whose bias is no row, or whose weights are no constants, stay.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.graph import Attribute, Graph, Op, Quantization, Tensor
from qconvert.operators import is_dynamic
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter


def run(graph: Graph, target: Target | None) -> PassResult:
    """Change every Gemm with quantized data and constant weights; what else reads these reads them as before."""
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("Gemm"):
        bias = _row(graph, op)
        if bias is not None:
            _replace_gemm(rewriter, op, bias)
    return rewriter.finish_with("{} Gemm are 1x1 convolutions".format)


def _replace_gemm(rewriter: Rewriter, op: Op, bias: Tensor) -> None:
    """Put a Conv between two Reshapes in the place of a Gemm, whose bias is a row."""
    data, weights, result = (rewriter.graph[name] for name in (*op.inputs[:2], op.name))
    assert weights.data is not None
    outputs, inputs = weights.data.shape
    kernel = replace(weights, shape=(outputs, inputs, 1, 1), data=weights.data.reshape(outputs, inputs, 1, 1))
    rows = (data.shape or ("?",))[0]
    sizes = rewriter.constant(f"{data.name}/sizes", [-1, inputs, 1, 1])
    wide = replace(data, shape=(rows, inputs, 1, 1))
    spread = rewriter.compute("Reshape", (data.name, sizes), f"{data.name}/position", wide, op.source)
    found = rewriter.add(f"{result.name}/position", result, shape=(rows, outputs, 1, 1))
    operands = (spread, _constant(rewriter, kernel), *([_constant(rewriter, bias)] if bias.name else []))
    attributes: dict[str, Attribute] = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "group": 1}
    attributes |= {"data_format": "channels_first", **{name: op.attributes[name] for name in ("activation",) if name in op.attributes}}
    rewriter.replace(
        op,
        op.derive("Conv", operands, (found,), **attributes),
        op.derive("Reshape", (found, rewriter.constant(f"{result.name}/sizes", [-1, outputs])), op.outputs),
    )


def _row(graph: Graph, op: Op) -> Tensor | None:
    """Return the bias of a Gemm that is changed, as a row; a tensor without a name if it has none; None where the Gemm stays."""
    if is_dynamic(op):
        return None
    data, weights, result = (graph[name] for name in (*op.inputs[:2], op.name))
    if weights.data is None or weights.quantization is None or data.quantization is None or data.rank != 2 or result.rank != 2:
        return None
    if weights.quantization.block_size or weights.quantization.axis not in (None, 0):
        return None
    if not op.has(2):
        return Tensor("", "int32", ())
    bias, count = graph[op.inputs[2]], len(weights.data)
    if bias.data is None or bias.data.size not in (1, count) or bias.data.shape[-1:] not in ((count,), (1,), ()):
        return None
    row = np.broadcast_to(bias.data.reshape(-1), (count,))
    q = bias.quantization
    if q is not None and q.axis is not None:
        if q.scale.size not in (1, count):
            return None
        repeated = [np.broadcast_to(values.reshape(-1), (count,)) for values in (q.scale, q.zero_point)]
        q = Quantization(repeated[0], repeated[1], 0)
    return replace(bias, shape=(count,), data=row, quantization=q)


def _constant(rewriter: Rewriter, tensor: Tensor) -> str:
    """Return the name of a constant in its new shape: its own where nothing else reads it."""
    old = rewriter.graph[tensor.name]
    if old.shape == tensor.shape and old.quantization == tensor.quantization:
        return tensor.name
    if not rewriter.is_read_once(tensor.name):
        return rewriter.add(f"{tensor.name}/position", tensor, data=tensor.data)
    if old.data is None or tensor.data is None or old.data.size != tensor.data.size:
        rewriter.forget((tensor.name,))
    return rewriter.define(tensor)
