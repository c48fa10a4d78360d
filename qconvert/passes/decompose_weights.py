"""decompose_weights: integer weights of operators in float are written as Cast, Sub and Mul, which onnxruntime computes once.

onnxruntime folds operators on constants when it loads a model, but leaves every DequantizeLinear alone for the sake of QDQ patterns
(constant_folding.cc), and so computes all weights again with each run: five times the latency of a MobileNet v2 (measured). The file keeps
the integers and the scales; the float values are the same, (q - zero point) * scale in one rounding. absorb_quantization reads the three
operators as the Dequantize that they are, by dequantized_casts().
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, numpy_dtype
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter

__all__ = ["DECOMPOSED_TYPES", "dequantized_casts", "run"]

#: Types whose differences float32 holds exactly. Blocks of 4 bits stay: onnxruntime has kernels for them as they are.
DECOMPOSED_TYPES = ("int8", "uint8", "int16", "uint16")


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
    if not tensor.is_constant or tensor.dtype not in DECOMPOSED_TYPES or result.dtype != "float32" or q is None or q.block_size:
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


def dequantized_casts(graph: Graph) -> Graph:
    """Put a Dequantize in the place of Cast, Sub and Mul on a constant of 8 or 16 bits, if nothing else reads it or what is between.

    (q - zero point) * scale, with scale and zero point constant, alone or along one axis: what remains has to be a quantization, that is
    finite positive scales and zero points within the integers' type. float32 holds q - zero point exactly, so one product is rounded in
    either form.
    """
    rewriter = Rewriter(graph)
    for op in rewriter:
        chain = _match_chain(rewriter, op) if _is_integer_cast(graph, op) else []
        quantization = _quantization(graph, chain) if chain else None
        if quantization is None:
            continue
        weights = rewriter.define(replace(graph[op.inputs[0]], quantization=quantization), shift=0)
        for part in chain[:-1]:
            rewriter.remove(part)
        rewriter.replace(chain[-1], Op("Dequantize", (weights,), chain[-1].outputs, {}, chain[-1].source))
    return rewriter.finish()


def _is_integer_cast(graph: Graph, op: Op) -> bool:
    """Return whether an operator is a Cast of plain integers that are constant."""
    if op.kind != "Cast" or op["to"] != "float32":
        return False
    weights = graph[op.inputs[0]]
    return weights.is_constant and not weights.is_quantized and weights.dtype in DECOMPOSED_TYPES


def _match_chain(rewriter: Rewriter, op: Op) -> list[Op]:
    """Return the Cast, the Sub if there is one, and the Mul; [] if it is no such chain."""
    found = [op]
    if not rewriter.is_read_once(op.inputs[0]):
        return []
    while rewriter.is_read_once(name := found[-1].outputs[0]):
        (reader,) = rewriter.readers[name]
        if reader.attributes.get("activation") or (reader.kind == "Sub" and (len(found) > 1 or reader.inputs[0] != name)):
            return []
        if reader.kind not in ("Sub", "Mul"):
            return []
        found.append(reader)
        if reader.kind == "Mul":
            return found
    return []


def _quantization(graph: Graph, chain: Sequence[Op]) -> Quantization | None:
    """Return what the constants of the chain say; None if they are no scale and zero point."""
    weights = graph[chain[0].inputs[0]]
    shape = graph[chain[-1].outputs[0]].static_shape
    factor = _constant_operand(graph, chain[-1], chain[-2].outputs[0])
    shift = _constant_operand(graph, chain[1], chain[0].outputs[0]) if len(chain) > 2 else np.zeros((), np.float32)
    if factor is None or shift is None or weights.static_shape is None or shape != weights.static_shape:
        return None
    axis = _axis(weights.static_shape, factor, shift)
    if axis is None:
        return None
    limits = np.iinfo(numpy_dtype(weights.dtype))
    whole = np.isfinite(shift).all() and (shift == np.rint(shift)).all() and (shift >= limits.min).all() and (shift <= limits.max).all()
    if not whole or not np.isfinite(factor).all() or not (factor > 0).all():
        return None
    count = max(factor.size, shift.size)
    scales, points = (np.broadcast_to(values.reshape(-1), (count,)) for values in (factor, shift))
    return Quantization(scales, points.astype(np.int64), axis if count > 1 else None)


def _constant_operand(graph: Graph, op: Op, name: str) -> Array | None:
    """Return the float operand next to `name`, if it is constant; None if there is none."""
    others = [graph[item] for item in op.inputs if item != name]
    is_real = len(others) == 1 and others[0].dtype == "float32" and not others[0].is_quantized
    return others[0].data if is_real else None


def _axis(shape: tuple[int, ...], *values: Array) -> int | None:
    """Return the one axis along which values run; 0 if each is one number, None if they run along several, or otherwise than the shape."""
    axes = set()
    for array in values:
        aligned = (1,) * (len(shape) - array.ndim) + array.shape
        if len(aligned) != len(shape):
            return None
        long = [axis for axis, size in enumerate(aligned) if size != 1]
        if any(aligned[axis] != shape[axis] for axis in long) or len(long) > 1:
            return None
        axes.update(long)
    return None if len(axes) > 1 else min(axes, default=0)
