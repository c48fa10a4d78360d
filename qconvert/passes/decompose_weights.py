"""decompose_weights: integer weights of operators in float are written as Cast, Sub and Mul, which onnxruntime computes once.

onnxruntime folds operators on constants when it loads a model, but leaves every DequantizeLinear alone for the sake of QDQ patterns
(constant_folding.cc), and so computes all weights again with each run: five times the latency of a MobileNet v2 (measured). The
file keeps the integers and the scales; the float values are the same, (q - zero point) * scale in one rounding. absorb_quantization reads
the three operators as the Dequantize that they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter

__all__ = ["SPELLED_TYPES", "run"]

#: Types whose differences float32 holds exactly. Blocks of 4 bits stay: onnxruntime has kernels for them as they are.
SPELLED_TYPES = ("int8", "uint8", "int16", "uint16")


def run(graph: Graph, target: Target | None, *, form: str = "") -> tuple[Graph, tuple[str, ...]]:
    """Write each Dequantize of a constant that nothing else reads as such operators; QONNX has a node of its own for it."""
    if form == "qonnx":
        return graph, ()
    rewriter = Rewriter(graph)
    count = 0
    for op in rewriter:
        if _is_decomposed(rewriter, op):
            rewriter.replace(op, *_decompose_dequantize(rewriter, op))
            count += 1
    if not count:
        return graph, ()
    noun = "constant of integers is" if count == 1 else "constants of integers are"
    return rewriter.finish(), (f"{count} {noun} converted to float by Cast and Mul, once, when onnxruntime loads the file",)


def _is_decomposed(rewriter: Rewriter, op: Op) -> bool:
    if op.kind != "Dequantize":
        return False
    graph, readers = rewriter.graph, rewriter.readers
    tensor, result = graph[op.inputs[0]], graph[op.outputs[0]]
    q = tensor.quantization
    if not tensor.is_constant or tensor.dtype not in SPELLED_TYPES or result.dtype != "float32" or q is None or q.block_size:
        return False
    if any(reader.kind == "ConvTranspose" for reader in readers.get(result.name, ())):
        return False  # ONNX has its weights in another order, and the integers are turned, not what is computed of them
    return len(readers[tensor.name]) == 1 and tensor.name not in graph.public and result.name not in graph.public


def _decompose_dequantize(rewriter: Rewriter, op: Op) -> Iterator[Op]:
    """Yield Cast, Sub if there are zero points, and Mul."""
    weights, result = rewriter[op.inputs[0]], rewriter[op.outputs[0]]
    quantization = weights.quantization
    assert quantization is not None

    def constant(values: Array, suffix: str) -> str:
        """Add scales or zero points in float32, along the weights' axis."""
        shape = [] if quantization.axis is None else [-1 if axis == quantization.axis else 1 for axis in range(weights.rank or 0)]
        return rewriter.constant(f"{weights.name}/{suffix}", values.astype(np.float32).reshape(shape))

    rewriter.define(replace(weights, quantization=None), shift=0)
    value = rewriter.add(f"{result.name}/cast", result)
    yield Op("Cast", (weights.name,), (value,), {"to": result.dtype}, op.source)
    if not quantization.is_symmetric:
        shifted = rewriter.add(f"{result.name}/shifted", result)
        yield Op("Sub", (value, constant(quantization.zero_point, "zero_point")), (shifted,), {}, op.source)
        value = shifted
    yield Op("Mul", (value, constant(quantization.scale, "scale")), op.outputs, {}, op.source)
