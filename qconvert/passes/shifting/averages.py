"""Averages whose ties go away from the stored zero, as TFLite's do: on shifted values that is away from zero, so a factor a little above 1
takes ties there and moves nothing else over a half."""

from __future__ import annotations

import math

import numpy as np

from qconvert.graph import Graph, Op
from qconvert.passes.shifting.walk import Shifting

__all__ = ["NUDGE", "averages_away", "joined_averages", "shift_average"]

#: Moves a tie of 128 steps by 2**-9 of one, which is less than what tells two averages of up to 128 integers apart, and more than what
#: float32 sums of as many are off.
NUDGE = float(np.float32(1 + 2.0**-16))
_MOST = 128


def averages_away(graph: Graph, op: Op) -> bool:
    """Whether an operator is such an average of integers, onto the grid that these have, without padding."""
    if op.kind != "AveragePool" or op["arithmetic"] != "ties_away" or any(op["pads"]) or op.attributes.get("activation"):
        return False
    data, result = graph[op.inputs[0]], graph[op.outputs[0]]
    is_plain = op["auto_pad"] == "NOTSET" and not op["ceil_mode"] and math.prod(op["kernel_shape"]) <= _MOST
    has_point = data.dtype == "int8" and data.quantization is not None and not data.quantization.is_symmetric
    return is_plain and has_point and data.shares_grid(result)


def joined_averages(graph: Graph) -> Graph:
    """The graph with such averages on integers that ran on real values between Dequantize and Quantize."""
    producers, readers = graph.producers(), graph.consumers()
    joined: dict[int, Op] = {}
    gone: set[str] = set()
    for op in graph.ops:
        before, behind = producers.get(op.inputs[0]) if op.inputs else None, readers.get(op.outputs[0], []) if op.outputs else []
        if op.kind != "AveragePool" or before is None or before.kind != "Dequantize" or [item.kind for item in behind] != ["Quantize"]:
            continue
        made = Op(op.kind, before.inputs, behind[0].outputs, op.attributes, op.source)
        if op.outputs[0] not in graph.public and averages_away(graph, made):
            joined[id(behind[0])] = made
            gone.add(op.outputs[0])
    if not joined:
        return graph
    kept = [joined.get(id(op), op) for op in graph.ops if gone.isdisjoint(op.outputs)]
    read = {name for op in kept for name in op.inputs} | graph.public
    return graph.evolve(ops=[op for op in kept if op.kind != "Dequantize" or op.outputs[0] in read])


def shift_average(s: Shifting, op: Op) -> None:
    """Appends the average of shifted real values, and the factor."""
    attributes = {key: value for key, value in op.attributes.items() if key != "arithmetic"}
    shape = s.graph[op.outputs[0]].shape
    value = s.real(op.inputs[0], op.source)
    value = s.emit("AveragePool", (value,), s.add(f"{op.outputs[0]}/average", "float32", shape), op.source, **attributes)
    factor = s.constant(f"{op.outputs[0]}/away", NUDGE)
    value = s.emit("Mul", (value, factor), s.add(f"{op.outputs[0]}/away_from_zero", "float32", shape), op.source)
    s.quantize(value, op.outputs[0], op.source)
