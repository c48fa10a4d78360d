"""Averages that round ties away from the stored zero, as TFLite's do: away from 0 on shifted values. A factor a little above 1 rounds ties
so and takes no other value across a half."""

from __future__ import annotations

import math

import numpy as np

from qconvert.graph import Graph, Op
from qconvert.passes.shifting.shifted_graph import Shifting
from qconvert.rewriting import Rewriter

__all__ = ["NUDGE", "is_ties_away_average", "join_averages", "shift_average"]

#: Shifts a tie of 128 steps by 2**-9 of one: less than the difference of two averages of up to 128 integers, more than the error of
#: float32 sums of as many.
NUDGE = float(np.float32(1 + 2.0**-16))
_MOST = 128


def is_ties_away_average(graph: Graph | Rewriter, op: Op) -> bool:
    """Whether an operator is such an average of integers, to the quantization that these have, without padding."""
    if op.kind != "AveragePool" or op["arithmetic"] != "ties_away" or any(op["pads"]) or op.attributes.get("activation"):
        return False
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    is_plain = op["auto_pad"] == "NOTSET" and not op["ceil_mode"] and math.prod(op["kernel_shape"]) <= _MOST
    has_point = data.dtype == "int8" and data.quantization is not None and not data.quantization.is_symmetric
    return is_plain and has_point and data.shares_quantization(result)


def join_averages(graph: Graph) -> Graph:
    """Put such averages on integers that ran in float between Dequantize and Quantize."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        before, after = rewriter.producers.get(op.inputs[0]) if op.kind == "AveragePool" else None, rewriter.readers.get(op.name, ())
        if before is None or before.kind != "Dequantize" or [item.kind for item in after] != ["Quantize"]:
            continue
        made = Op(op.kind, before.inputs, after[0].outputs, op.attributes, op.source)
        if op.name not in graph.public and is_ties_away_average(graph, made):
            rewriter.replace(after[0], made)
            rewriter.remove(op)
    for op in rewriter if rewriter.is_changed else ():
        readers = rewriter.readers.get(op.name, ())
        if op.kind == "Dequantize" and op.name not in graph.public and all(map(rewriter.is_replaced, readers)):
            rewriter.remove(op)
    return rewriter.finish()


def shift_average(s: Shifting, op: Op) -> None:
    """Emit the average of shifted float values, and the factor."""
    attributes = {key: value for key, value in op.attributes.items() if key != "arithmetic"}
    name = op.outputs[0]
    value = s.real(op.inputs[0], op.source)
    value = s.compute("AveragePool", (value,), f"{name}/average", name, op.source, **attributes)
    factor = s.rewriter.constant(f"{name}/away", NUDGE)
    value = s.compute("Mul", (value, factor), f"{name}/away_from_zero", name, op.source)
    s.quantize(value, name, op.source)
