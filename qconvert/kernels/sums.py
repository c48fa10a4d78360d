"""The integers of kernels that reduce bytes: functions of the sum of stored integers, which is exact in any order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization
from qconvert.kernels.kernel import Integers, quantizations_of
from qconvert.operators import kind_of
from qconvert.operators.call import spatial_axes
from qconvert.operators.sizes import SAME


class Sums(NamedTuple):
    """What a reduction adds: sums of stored integers, how many each is of, and the quantizations of data and result."""

    sums: Array
    size: int
    given: Quantization
    output: Quantization


def count_summed(graph: Graph, op: Op) -> int | None:
    """Return of how many elements each result of an average or a sum is; None if not all are of as many, or sizes are not known."""
    if kind_of(op).has_windows:
        return None if any(op["pads"]) or op["ceil_mode"] or op["auto_pad"] in SAME else math.prod(op["kernel_shape"])
    sizes, counts = (graph[name].static_shape for name in (op.inputs[0], op.outputs[0]))
    return None if sizes is None or counts is None or 0 in sizes else math.prod(sizes) // math.prod(counts)


@dataclass(frozen=True, slots=True)
class SumReference:
    """The reference of a reduction, or an average over all positions, whose integers follow from the sums of stored integers alone.

    Attributes:
        integers: computes these of (graph, operator, sums); with the file of the runtime as source in its docstring.
    """

    integers: Callable[[Graph, Op, Sums], Integers | None]

    def __call__(self, graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
        """Compute the integers for stored inputs; None if the sums are not known."""
        data, result = graph[op.inputs[0]], graph[op.outputs[0]]
        quantizations = quantizations_of(graph, op)
        if not quantizations or stored[0] is None or not stored[0].size or data.dtype != result.dtype:
            return None
        if "keepdims" not in kind_of(op).attributes:
            axes, keepdims = tuple(spatial_axes(op, stored[0].ndim)), True
        else:
            listed = stored[1] if len(stored) > 1 else None
            axes, keepdims = () if listed is None else tuple(int(axis) for axis in np.asarray(listed).reshape(-1)), bool(op["keepdims"])
        sums = np.asarray(np.asarray(stored[0], np.int64).sum(axis=axes or None, keepdims=keepdims))
        return self.integers(graph, op, Sums(sums, stored[0].size // max(sums.size, 1), *quantizations))
