"""Weights of operators on plain tensors: constants, or what dequantizes constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.formats.torch.reading import Call
from qconvert.graph import Array, Quantization

__all__ = ["is_constant", "rearranged"]

_DEEPEST = 16


def is_constant(c: Call, name: str, depth: int = _DEEPEST) -> bool:
    """Whether a tensor is made of constants alone, so that it is the same at each run."""
    if c.lookup(name).data is not None:
        return True
    op = c.producer(name)
    return op is not None and depth > 0 and bool(op.inputs) and all(is_constant(c, each, depth - 1) for each in op.inputs if each)


def rearranged(c: Call, name: str, move: Callable[[Array], Array], grid: Callable[[Quantization], Quantization]) -> str | None:
    """Constant weights with their elements in another order; None if they are no constant, and do not come from one.

    Args:
        c: the call.
        name: of the weights, constants or dequantized ones.
        move: gives the new order.
        grid: gives the grid of a quantized constant in that order.
    """
    tensor, op = c.lookup(name), c.producer(name)
    if tensor.data is not None:
        quantization = None if tensor.quantization is None else grid(tensor.quantization)
        return c.variant_of(name, "outputs_first", np.ascontiguousarray(move(tensor.data)), quantization)
    if op is None or op.kind != "Dequantize":
        return None
    stored = rearranged(c, op.inputs[0], move, grid)
    return None if stored is None else c.emit("Dequantize", [stored], dtype=tensor.dtype, grid=None, hint="weights").name
