"""uint8 inputs and outputs that stand in a graph as plain numbers, with a scale and a zero point again: the reverse of edges.py."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range
from qconvert.rewriting import Rewriter

__all__ = ["restore_unsigned"]

#: How far a zero point that float32 numbers were added up to may be from a whole number.
_WHOLE = 1e-3


@dataclass(frozen=True, slots=True)
class _Line:
    """A float value as factor * another one + constant, and the operator that makes that one."""

    maker: Op
    factor: float
    constant: float


def restore_unsigned(graph: Graph) -> Graph:
    """Put a Requantize in place of what brings uint8 inputs to a signed quantization, and signed values to uint8 outputs."""
    rewriter, done = Rewriter(graph), set[str]()
    for op in rewriter:
        found = _input(rewriter, op) if op.kind == "Quantize" else _output(rewriter, op)
        if found is not None and found[0].name not in done:
            tensor, source, result = found
            done.add(rewriter.define(tensor, shift=0))
            rewriter.replace(op, Op("Requantize", (source,), (result,), {}, op.source))
    return rewriter.finish(prune=rewriter.is_changed)


def _line(rewriter: Rewriter, name: str) -> _Line | None:
    """Follow a float value back through numbers that are added to it and that it is multiplied by."""
    factor, constant = 1.0, 0.0
    for _ in range(8):
        op = rewriter.producers.get(name)
        number = None if op is None or op.kind not in ("Add", "Sub", "Mul", "Div") else _number(rewriter.graph, op)
        if op is None or number is None:
            return None if op is None else _Line(op, factor, constant)
        if op.kind in ("Add", "Sub"):
            constant += factor * (number if op.kind == "Add" else -number)
        else:
            factor *= number if op.kind == "Mul" else 1 / number
        name = op.inputs[0]
    return None


def _number(graph: Graph, op: Op) -> float | None:
    """The one number that is an operator's second operand; None if it has another, or an activation."""
    data = graph.constant(op.inputs[1])
    if data is None or data.size != 1 or data.dtype != np.float32 or op.attributes.get("activation") or not data.reshape(-1)[0]:
        return None
    return float(data.reshape(-1)[0])


def _quantization(scale: float, point: float) -> Quantization | None:
    low, high = integer_range("uint8")
    if not scale > 0 or abs(point - round(point)) > _WHOLE or not low <= round(point) <= high:
        return None
    return Quantization.per_tensor(float(np.float32(scale)), round(point))


def _input(rewriter: Rewriter, op: Op) -> tuple[Tensor, str, str] | None:
    """Return the input of uint8 that a Quantize gets as numbers, with its quantization, that input, and the result."""
    line = _line(rewriter, op.inputs[0])
    if line is None or line.maker.kind != "Cast":
        return None
    graph = rewriter.graph
    tensor = graph[line.maker.inputs[0]]
    if tensor.name not in graph.inputs or tensor.dtype != "uint8" or tensor.is_quantized or len(rewriter.readers[tensor.name]) != 1:
        return None
    quantization = _quantization(line.factor, -line.constant / line.factor)
    return None if quantization is None else (replace(tensor, quantization=quantization), tensor.name, op.outputs[0])


def _output(rewriter: Rewriter, op: Op) -> tuple[Tensor, str, str] | None:
    """Return the output of uint8 that a Cast of rounded steps gives, with its quantization, the signed tensor that it is made of, and the
    result."""
    graph, producers = rewriter.graph, rewriter.producers
    if op.kind != "Cast" or op.outputs[0] not in graph.outputs or graph[op.outputs[0]].dtype != "uint8":
        return None
    clip = producers.get(op.inputs[0])
    bounds = () if clip is None or clip.kind != "Clip" else tuple(_bound(graph, name) for name in clip.inputs[1:])
    rounded = None if clip is None or bounds != integer_range("uint8") else producers.get(clip.inputs[0])
    line = None if rounded is None or rounded.kind != "Round" else _line(rewriter, rounded.inputs[0])
    if line is None or line.maker.kind != "Dequantize" or not graph[line.maker.inputs[0]].is_quantized:
        return None
    quantization = _quantization(1 / line.factor, line.constant) if line.factor else None
    return None if quantization is None else (replace(graph[op.outputs[0]], quantization=quantization), line.maker.inputs[0], op.outputs[0])


def _bound(graph: Graph, name: str) -> int | None:
    data = graph.constant(name)
    return None if data is None or data.size != 1 else int(data.reshape(-1)[0])
