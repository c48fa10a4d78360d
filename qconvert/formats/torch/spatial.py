"""Linear functions of positions: each axis of space times a matrix. Averages of uneven windows and interpolations are such functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from qconvert.formats.torch.reading import Call
from qconvert.formats.torch.values import Ref
from qconvert.graph import Array

__all__ = ["multiply_axes"]

#: The most elements of a matrix that maps all positions at once.
_LARGEST = 2**22


def multiply_axes(c: Call, name: str, matrices: Sequence[Array]) -> Ref:
    """Data of channels and space, each axis of which a matrix (new size, size) maps.

    A quantized tensor keeps its quantization and is rounded once, so all positions are mapped by one matrix; float values axis by axis.
    """
    tensor = c.lookup(name)
    sizes = [matrix.shape[0] for matrix in matrices]
    whole = math.prod(matrix.size for matrix in matrices)
    if tensor.is_quantized and whole > _LARGEST:
        raise c.unsupported_error(f"positions that {whole} numbers map", rule="form-not-covered")
    dtype = np.float64 if tensor.dtype == "float64" else np.float32
    steps = [functools.reduce(np.kron, matrices)] if tensor.is_quantized or whole <= 2**16 else list(matrices)
    if len(steps) == 1:
        flat = c.emit("Reshape", [name, c.list64([0, 0, -1], "positions")], hint="flat")
        result = c.emit("MatMul", [flat.name, c.const(steps[0].T.astype(dtype), "weights")], hint="mapped")
        return c.emit("Reshape", [result.name, c.list64([0, 0, *sizes], "shape")])
    result = Ref(name)
    for axis, matrix in enumerate(steps):
        result = _multiply_axis(c, result, matrix.astype(dtype), axis, len(steps))
    return result


def _multiply_axis(c: Call, data: Ref, matrix: Array, axis: int, count: int) -> Ref:
    """One axis of space times a matrix; the last is a product with rows, another one with columns of the two last axes."""
    hint = "" if axis == count - 1 else f"axis{axis}"
    if axis == count - 1:
        return c.emit("MatMul", [data.name, c.const(np.ascontiguousarray(matrix.T), f"weights{axis}")], quantization=None, hint=hint)
    order = [*range(count + 2)]
    order[2 + axis], order[-1] = order[-1], order[2 + axis]
    turned = c.emit("Transpose", [data.name], quantization=None, hint=f"turned{axis}", perm=tuple(order))
    weights = c.const(np.ascontiguousarray(matrix.T), f"weights{axis}")
    result = c.emit("MatMul", [turned.name, weights], quantization=None, hint=f"mapped{axis}")
    return c.emit("Transpose", [result.name], quantization=None, hint=hint, perm=tuple(order))
