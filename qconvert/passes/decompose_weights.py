"""decompose_weights: integer weights of operators in float are written as Cast, Sub and Mul, which onnxruntime computes once.

onnxruntime folds operators on constants when it loads a model, but leaves every DequantizeLinear alone for the sake of QDQ patterns
(constant_folding.cc), and so computes all weights again with each run: five times the latency of a MobileNet v2 (measured). The file keeps
the integers and the scales; the float values are the same, (q - zero point) * scale in one rounding. absorb_quantization reads the three
operators as the Dequantize that they are, by dequantized_casts().
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qconvert.arithmetic.storage import fits_dtype
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.operators import kind_of, output_axis
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Match, Pattern, Rewriter, find_matches

#: Types whose differences float32 holds exactly. Blocks of 4 bits stay: onnxruntime has kernels for them as they are.
DECOMPOSED_TYPES = ("int8", "uint8", "int16", "uint16")
_CAST = Pattern("Cast", "weights", attributes={"to": "float32"})
_PLAIN = {"activation": ""}
_SHIFTED = Pattern("Mul", Pattern("Sub", _CAST, "zero_point", attributes=_PLAIN), "scale", name="last", any_order=True, attributes=_PLAIN)
_SCALED = Pattern("Mul", _CAST, "scale", name="last", any_order=True, attributes=_PLAIN)


def decompose_weights(graph: Graph, target: Target | None, *, form: str = "") -> PassResult:
    """Write each Dequantize of a constant that nothing else reads as such operators; QONNX has a node of its own for it."""
    if form == "qonnx":
        return graph, ()
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("Dequantize"):
        if _is_decomposed(rewriter, op) and not (form == "qoperator" and _is_multiplied_in_blocks(rewriter, op)):
            rewriter.replace(op, *_decompose_dequantize(rewriter, op))
    noun = "constant of integers is" if rewriter.replaced == 1 else "constants of integers are"
    return rewriter.finish_with(lambda count: f"{count} {noun} converted to float by Cast and Mul, once, when onnxruntime loads the file")


def _is_decomposed(rewriter: Rewriter, op: Op) -> bool:
    graph, readers = rewriter.graph, rewriter.readers
    tensor, result = graph[op.inputs[0]], graph[op.name]
    q = tensor.quantization
    if not tensor.is_constant or tensor.dtype not in DECOMPOSED_TYPES or result.dtype != "float32" or q is None or q.block_size:
        return False
    if any(kind_of(reader).spreads for reader in readers[result.name]):
        return False  # ONNX has its weights in another order, and the integers are turned, not what is computed of them
    return len(readers[tensor.name]) == 1 and tensor.name not in graph.public and result.name not in graph.public


#: Of MatMulNBits.
_SMALLEST_BLOCK = 16


def _is_multiplied_in_blocks(rewriter: Rewriter, op: Op) -> bool:
    """Whether weights are those of products alone that MatMulNBits computes from the integers: its blocks divide their rows."""
    weights = rewriter.graph[op.inputs[0]]
    readers = rewriter.readers[op.name]
    if weights.dtype not in ("int8", "uint8") or weights.rank != 2 or weights.static_shape is None:
        return False
    return all(
        kind_of(reader).is_matrix_product
        and reader.inputs[1] == op.name
        and weights.static_shape[1 - output_axis(reader, 2)] % _SMALLEST_BLOCK == 0
        for reader in readers
    )


def _decompose_dequantize(rewriter: Rewriter, op: Op) -> Iterator[Op]:
    """Yield Cast, Sub if there are zero points, and Mul."""
    weights, result = rewriter[op.inputs[0]], rewriter[op.name]
    quantization = weights.require_quantization()

    def constant(values: Array, suffix: str) -> str:
        """Add scales or zero points in float32, along the weights' axis."""
        shape = [] if quantization.axis is None else [-1 if axis == quantization.axis else 1 for axis in range(weights.rank or 0)]
        return rewriter.constant(f"{weights.name}/{suffix}", values.astype(np.float32).reshape(shape))

    rewriter.define(replace(weights, quantization=None), shift=0)
    value = rewriter.add(f"{result.name}/cast", result)
    yield op.derive("Cast", (weights.name,), (value,), to=result.dtype)
    if not quantization.is_symmetric:
        shifted = rewriter.add(f"{result.name}/shifted", result)
        yield op.derive("Sub", (value, constant(quantization.zero_point, "zero_point")), (shifted,))
        value = shifted
    yield op.derive("Mul", (value, constant(quantization.scale, "scale")), op.outputs)


def dequantized_casts(graph: Graph) -> Graph:
    """Put a Dequantize in the place of Cast, Sub and Mul on a constant of 8 or 16 bits, if nothing else reads it or what is between.

    (q - zero point) * scale, with scale and zero point constant, alone or along one axis: what remains has to be a quantization, that is
    finite positive scales and zero points within the integers' type. float32 holds q - zero point exactly, so one product is rounded in
    either form.
    """
    rewriter = Rewriter(graph)
    for match in (*find_matches(graph, _SHIFTED), *find_matches(graph, _SCALED)):
        weights = graph[match.tensors["weights"]]
        quantization = _quantization(graph, match, weights) if rewriter.is_read_once(weights.name) else None
        if quantization is None:
            continue
        for op in match.ops:
            rewriter.remove(op)
        stored, last = rewriter.define(replace(weights, quantization=quantization), shift=0), match.named["last"]
        rewriter.replace(last, last.derive("Dequantize", (stored,), last.outputs))
    return rewriter.finish()


def _quantization(graph: Graph, match: Match, weights: Tensor) -> Quantization | None:
    """Return what the constants next to the weights say; None if they are no scale and zero point, or the weights no plain integers."""
    if weights.is_quantized or not weights.is_constant or weights.dtype not in DECOMPOSED_TYPES:
        return None
    factor = _float_constant(graph, match.tensors["scale"])
    shift = _float_constant(graph, match.tensors["zero_point"]) if "zero_point" in match.tensors else np.zeros((), np.float32)
    shape = graph[match.named["last"].outputs[0]].static_shape
    if factor is None or shift is None or weights.static_shape is None or shape != weights.static_shape:
        return None
    axis = _axis(weights.static_shape, factor, shift)
    if axis is None:
        return None
    if not fits_dtype(shift, weights.dtype) or not (np.isfinite(factor) & (factor > 0)).all():
        return None
    return Quantization.of_channels(factor, shift, axis)


def _float_constant(graph: Graph, name: str) -> Array | None:
    tensor = graph[name]
    return tensor.data if tensor.dtype == "float32" and not tensor.is_quantized else None


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
