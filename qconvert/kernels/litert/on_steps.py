"""What references of LiteRT's kernels share: most compute on steps, stored integers less their zero points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization
from qconvert.kernels.kernel import Integers, quantizations_of
from qconvert.operators import kind_of


def on_steps(operands: int = 1) -> Callable[[Callable[..., Array | None]], Callable[..., Integers | None]]:
    """Return a decorator that makes a reference of a function (operator, steps of the data, their quantizations, quantization of the
    result, options by name) -> steps of the result, None where they are not known.

    The reference knows integers where data and result have one type and one scale each.

    Args:
        operands: how many inputs are data, the first ones.
    """

    def decorate(compute: Callable[..., Array | None]) -> Callable[..., Integers | None]:
        @wraps(compute)
        def reference(graph: Graph, op: Op, stored: Sequence[Any], **options: Any) -> Integers | None:
            types = {graph[name].dtype for name in (*op.inputs[:operands], op.outputs[0])}
            if len(types) > 1 or any(value is None for value in stored[:operands]):
                return None
            quantizations = quantizations_of(graph, op, operands)
            if not quantizations:
                return None
            *given, output = quantizations
            steps = [np.asarray(value, np.int64) - item.point for value, item in zip(stored, given, strict=False)]
            found = compute(op, steps, given, output, **options)
            return None if found is None else Integers.clip_to_limits(graph, op, found + output.point)

        return reference

    return decorate


def slope_of(op: Op) -> float:
    """Return the factor of negative values of a LeakyRelu; 1 for what has none, such as a Requantize."""
    return float(op["alpha"]) if "alpha" in kind_of(op).attributes else 1.0


def quantizations_of_16_bits(graph: Graph, op: Op, stored: Sequence[Any]) -> tuple[Quantization, Quantization] | None:
    """Return the quantizations of data and result, if there are data and both are int16 with one scale."""
    quantizations = quantizations_of(graph, op)
    is_known = quantizations and stored[0].size and graph[op.inputs[0]].dtype == graph[op.outputs[0]].dtype == "int16"
    return (quantizations[0], quantizations[1]) if is_known else None


def to_integers(found: tuple[Array, bool]) -> Integers:
    """Return the integers of a kernel that computes all elements alike, with the fault if something overflows."""
    return Integers((found[0],), "overflows" if found[1] else "")
