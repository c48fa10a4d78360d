"""Weights of operators on plain tensors: constants, or what dequantizes constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.formats.torch.reading import Call
from qconvert.graph import Array, Op, Quantization

__all__ = ["find_dequantized_source", "is_constant", "rearrange_constant"]

#: Tensors that lead to one, beyond which it counts as computed: each operator that asks looks at so many.
_MOST = 256
#: Movements between a constant and an operator that reads it in another order.
_MOST_MOVES = 4


def is_constant(c: Call, name: str) -> bool:
    """Whether a tensor is made of constants alone, by a few operators, so that it is the same at each run."""
    waiting, seen = [name], {name}
    while waiting:
        each = waiting.pop()
        if c.lookup(each).data is not None:
            continue
        op = c.producer(each)
        if op is None or not op.inputs or len(seen) > _MOST:
            return False
        new = {other for other in op.inputs if other} - seen
        seen |= new
        waiting += new
    return True


def rearrange_constant(c: Call, name: str, move: Callable[[Array], Array], turn: Callable[[Quantization], Quantization]) -> str | None:
    """Constant weights with their elements in another order; None if they are no constant, and do not come from one.

    Args:
        c: the call.
        name: of the weights, constants or dequantized ones.
        move: gives the new order.
        turn: gives the quantization of a quantized constant in that order.
    """
    tensor, op = c.lookup(name), c.producer(name)
    if tensor.data is not None:
        quantization = None if tensor.quantization is None else turn(tensor.quantization)
        return c.variant_of(name, "outputs_first", np.ascontiguousarray(move(tensor.data)), quantization)
    if op is None or op.kind != "Dequantize":
        return None
    stored = rearrange_constant(c, op.inputs[0], move, turn)
    return None if stored is None else c.emit("Dequantize", [stored], dtype=tensor.dtype, quantization=None, hint="weights").name


def find_dequantized_source(c: Call, name: str, move: Callable[[Array], Array]) -> str | None:
    """The dequantized constant before transpositions and reshapes that `move` undoes; None if there is none."""
    moves: list[Op] = []
    op = c.producer(name)
    while op is not None and op.kind in ("Transpose", "Reshape") and len(moves) < _MOST_MOVES:
        moves.append(op)
        op = c.producer(op.inputs[0])
    stored = c.lookup(op.inputs[0]).data if op is not None and op.kind == "Dequantize" and moves else None
    if op is None or stored is None:
        return None
    places = wanted = np.arange(stored.size).reshape(stored.shape)
    for step in reversed(moves):
        shape = c.lookup(step.outputs[0]).static_shape
        if shape is None:
            return None
        places = places.transpose(step["perm"]) if step.kind == "Transpose" else places.reshape(shape)
    return op.outputs[0] if np.array_equal(move(places), wanted) else None
