"""uint8 inputs and outputs of a graph whose quantized values are signed: plain numbers, a multiplication and a rounding."""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor, integer_range
from qconvert.passes import remove_dead_code
from qconvert.passes.shifting.walk import Shifting
from qconvert.passes.stored_types import shifted
from qconvert.plugins import Target

__all__ = ["around_unsigned", "from_unsigned", "is_spelled", "to_unsigned"]


def is_spelled(tensor: Tensor, target: Target | None) -> bool:
    """Whether the target has no Quantize and Dequantize of a tensor's type, but plain numbers of it."""
    q = tensor.quantization
    taken = target.activation_dtypes if target is not None else ()
    return tensor.dtype == "uint8" and q is not None and q.is_per_tensor and bool(taken) and "uint8" not in taken


def around_unsigned(graph: Graph, target: Target | None) -> Graph:
    """The graph with conversions from and to real values that go by uint8 (as float inputs and outputs of uint8 networks do) going by int8
    at once, which has the same real values."""
    producers = graph.producers()
    ops = []
    for op in graph.ops:
        middle = graph[op.inputs[0]] if op.kind in ("Requantize", "Dequantize") else None
        maker = producers.get(middle.name) if middle is not None and is_spelled(middle, target) else None
        if maker is not None and middle is not None and (maker.kind, op.kind) in (("Quantize", "Requantize"), ("Requantize", "Dequantize")):
            other = graph[op.outputs[0] if op.kind == "Requantize" else maker.inputs[0]]
            if other.dtype == "int8" and other.quantization is not None and shifted(middle, "int8").quantization == other.quantization:
                op = replace(op, kind="Quantize" if op.kind == "Requantize" else "Dequantize", inputs=maker.inputs)
        ops.append(op)
    return remove_dead_code.run(replace(graph, ops=tuple(ops)), target)[0] if ops != list(graph.ops) else graph


def from_unsigned(s: Shifting, op: Op) -> None:
    """A Requantize of uint8: the integers less their middle, times the scale, which is exact in float32, and then onto the signed grid."""
    name, result = op.inputs[0], op.outputs[0]
    own, new, shape = s.grid(name), s.grid(result), s.graph[name].shape
    point, same = int(own.zero_point[0]), own.scale[0] == new.scale[0]
    # The real values of the signed grid are shifted already where both have one scale.
    off = point - (round(s.shift(result) / float(new.scale[0])) if same else 0)
    value = s.emit("Cast", (name,), s.add(f"{name}/numbers", "float32", shape), op.source, to="float32")
    value = s.plus(value, -float(off), op.source)
    scale = s.constant(f"{name}/scale", own.scale[0])
    value = s.emit("Mul", (value, scale), s.add(f"{name}/value", "float32", shape), op.source)
    s.quantize(value if same else s.plus(value, s.shift(result), op.source), result, op.source)


def to_unsigned(s: Shifting, op: Op) -> None:
    """A Requantize to uint8: the real values in steps, moved, rounded, limited and stored."""
    name, result = op.inputs[0], op.outputs[0]
    own, new, shape = s.grid(name), s.grid(result), s.graph[result].shape
    value, moved = s.real(name, op.source), s.shift(name)
    same = own.scale[0] == new.scale[0]
    point = int(new.zero_point[0]) - (round(moved / float(own.scale[0])) if same else 0)
    value = value if same else s.plus(value, -moved, op.source)
    scale = s.constant(f"{result}/scale", new.scale[0])
    value = s.emit("Div", (value, scale), s.add(f"{result}/steps", "float32", shape), op.source)
    value = s.emit("Round", (s.plus(value, float(point), op.source),), s.add(f"{result}/rounded", "float32", shape), op.source)
    ends = (s.constant(f"{result}/{word}", end) for word, end in zip(("lowest", "highest"), integer_range("uint8"), strict=True))
    value = s.emit("Clip", (value, *ends), s.add(f"{result}/limited", "float32", shape), op.source)
    s.emit("Cast", (value,), result, op.source, to="uint8")
