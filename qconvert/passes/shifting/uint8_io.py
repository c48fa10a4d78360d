"""uint8 inputs and outputs of a graph whose quantized values are signed: plain numbers, a multiplication and a rounding."""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op, Tensor, integer_range
from qconvert.passes.shifting.shifted_graph import Shifting
from qconvert.passes.stored_types import shift_to_dtype
from qconvert.plugins import Target
from qconvert.rewriting import Rewriter

__all__ = ["bypass_unsigned", "from_unsigned", "runs_in_float", "to_unsigned"]


def runs_in_float(tensor: Tensor, target: Target | None) -> bool:
    """Whether the target has no Quantize and Dequantize of a tensor's type, but plain numbers of it."""
    q = tensor.quantization
    taken = target.storage.activation_dtypes if target is not None else ()
    return tensor.dtype == "uint8" and q is not None and q.is_per_tensor and bool(taken) and "uint8" not in taken


def bypass_unsigned(graph: Graph, target: Target | None) -> Graph:
    """Let conversions from and to float values that go by uint8, as float inputs and outputs of uint8 networks do, go by int8 at once,
    which has the same float values."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        middle = graph[op.inputs[0]] if op.kind in ("Requantize", "Dequantize") else None
        maker = rewriter.producers.get(middle.name) if middle is not None and runs_in_float(middle, target) else None
        if maker is None or middle is None or (maker.kind, op.kind) not in (("Quantize", "Requantize"), ("Requantize", "Dequantize")):
            continue
        other = graph[op.outputs[0] if op.kind == "Requantize" else maker.inputs[0]]
        if other.dtype == "int8" and other.quantization is not None and shift_to_dtype(middle, "int8").quantization == other.quantization:
            kind = "Quantize" if op.kind == "Requantize" else "Dequantize"
            rewriter.replace(op, replace(op, kind=kind, inputs=maker.inputs))
    return rewriter.finish(prune=rewriter.is_changed)


def from_unsigned(s: Shifting, op: Op) -> None:
    """Emit a Requantize of uint8: the integers less their middle, times the scale, which is exact in float32, then to the signed
    quantization."""
    name, result = op.inputs[0], op.outputs[0]
    own, new = s.quantization(name), s.quantization(result)
    point, same = int(own.zero_point[0]), own.scale[0] == new.scale[0]
    # The float values of the signed quantization are shifted already where both have one scale.
    off = point - (round(s.shift(result) / float(new.scale[0])) if same else 0)
    value = s.compute("Cast", (name,), f"{name}/numbers", name, op.source, to="float32")
    value = s.plus(value, -float(off), op.source)
    scale = s.rewriter.constant(f"{name}/scale", float(own.scale[0]))
    value = s.compute("Mul", (value, scale), f"{name}/value", name, op.source)
    s.quantize(value if same else s.plus(value, s.shift(result), op.source), result, op.source)


def to_unsigned(s: Shifting, op: Op) -> None:
    """Emit a Requantize to uint8: the float values in steps, moved, rounded, limited and stored."""
    name, result = op.inputs[0], op.outputs[0]
    own, new = s.quantization(name), s.quantization(result)
    value, moved = s.real(name, op.source), s.shift(name)
    same = own.scale[0] == new.scale[0]
    point = int(new.zero_point[0]) - (round(moved / float(own.scale[0])) if same else 0)
    value = value if same else s.plus(value, -moved, op.source)
    scale = s.rewriter.constant(f"{result}/scale", float(new.scale[0]))
    value = s.compute("Div", (value, scale), f"{result}/steps", result, op.source)
    value = s.compute("Round", (s.plus(value, float(point), op.source),), f"{result}/rounded", result, op.source)
    limits = zip(("lowest", "highest"), integer_range("uint8"), strict=True)
    ends = (s.rewriter.constant(f"{result}/{word}", float(end)) for word, end in limits)
    value = s.compute("Clip", (value, *ends), f"{result}/limited", result, op.source)
    s.emit("Cast", (value,), result, op.source, to="uint8")
