"""What an operator on known values gives, each operator rounded once: also where kernels' last bits are their own (see folding.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qconvert.errors import QConvertError
from qconvert.graph import Array, Graph, Op, Tensor, numpy_dtype
from qconvert.operators import KINDS
from qconvert.operators.shapes import output_shapes

__all__ = ["computed"]

#: Bytes of a result, and how many times larger it may be than what it is made of.
_LARGEST, _GROWTH, _SMALL = 64 * 2**20, 4, 2**16


def computed(op: Op, tensors: Mapping[str, Tensor], values: Sequence[Array | None]) -> list[Array] | None:
    """The outputs of an operator whose inputs are all known; None where it has no evaluation, works with quantizations, or would make too
    much.

    Args:
        op: the operator: none that sums products, none with effects.
        tensors: its inputs and outputs, by name.
        values: stored values of the inputs, in order; None for one that is absent.
    """
    from qconvert.evaluate import evaluate_op

    kind = KINDS.get(op.kind)
    if kind is None or kind.evaluate is None or kind.sums_products or kind.rule not in ("real", "move", "index", "plain"):
        return None
    named = [name for name in (*op.inputs, *op.outputs) if name]
    if any(name not in tensors or tensors[name].is_quantized for name in named):
        return None
    given = {
        name: Tensor(name, tensors[name].dtype, value.shape, value)
        for name, value in zip(op.inputs, values, strict=True)
        if value is not None
    }
    limit = min(_LARGEST, max(_SMALL, _GROWTH * sum(value.nbytes for value in values if value is not None)))
    try:
        size = 0
        for name, shape in zip(op.outputs, output_shapes(given, op), strict=True):
            if shape is None or any(isinstance(item, str) or item < 0 for item in shape):
                return None
            size += math.prod(int(item) for item in shape) * numpy_dtype(tensors[name].dtype).itemsize
        if size > limit:
            return None
        outputs = {name: tensors[name] for name in op.outputs if name}
        found = evaluate_op(Graph("", {**given, **outputs}, (op,), (), ()), op, values)
    except (QConvertError, ArithmeticError, MemoryError, KeyError, TypeError, ValueError, IndexError):
        return None
    return [np.asarray(result.stored) for result in found] if len(found) == len(op.outputs) else None
