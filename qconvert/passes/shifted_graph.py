"""A graph whose activations lose their zero points, while it is rewritten.

uint8 inputs and outputs of a graph whose quantized values are signed: they become plain numbers, a multiplication and a rounding; and
such plain numbers get a scale and a zero point again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range, numpy_dtype
from qconvert.operators import kind_of
from qconvert.passes.stored_types import shift_to_dtype
from qconvert.plugins import Target
from qconvert.rewriting import Pattern, Rewriter

#: Real types of 16 bits.
_SHORT = ("float16", "bfloat16")


class Shifting(Rewriter):
    """What stands for the tensors of a graph while their zero points go. All operators are emitted.

    Args:
        graph: what is rewritten.
        points: the zero points that go, by tensor.
        held: tensors that stay as they are; those among `points` have a twin with the zero point 0, and a Reinterpret between.

    Attributes:
        source: of the visited operator, which its replacements take over.
        counts: what was done, by words for it.
        biases: those that took shifts in, and whether they were there before.
    """

    def __init__(self, graph: Graph, points: Mapping[str, int], held: Collection[str]) -> None:
        super().__init__(graph)
        self.source = ""
        self.counts: Counter[str] = Counter()
        self.biases: dict[str, bool] = {}
        self._points = points
        self._padded: dict[tuple[str, tuple[int, ...]], str] = {}
        self._shifted = dict[str, int]()
        self._twins: dict[str, str] = {}
        for name, point in points.items():
            quantization = self.quantization(name)
            quantization = replace(quantization, zero_point=np.zeros_like(quantization.zero_point))
            if name in held:
                self._twins[name] = self.add(f"{name}/shifted", self.graph[name], data=self.graph[name].data, quantization=quantization)
            else:
                self.define(replace(self.graph[name], quantization=quantization), shift=0)
            self._shifted[self.twin(name)] = point

    def twin(self, name: str) -> str:
        """Return what stands for a tensor where its shift is known: its twin, or itself."""
        return self._twins.get(name, name)

    def shift(self, name: str) -> float:
        """Return by how much the float values of a tensor are larger than they were; 0 where they are not."""
        return self.quantization(name).step * self._points[name] if name in self._points else 0.0

    def quantization(self, name: str) -> Quantization:
        """Return the old quantization of a tensor."""
        return self.graph[name].require_quantization()

    def bias(self, old: str, channels: Array, result: str) -> str:
        """Define a bias of float values, in place of an old one where nobody else reads that. Return its name.

        Args:
            old: its name; "" if there was none.
            channels: the values.
            result: of the operator that reads it.
        """
        new = Tensor("", "float32", channels.shape, channels.astype(np.float32))
        name = self.replace_constant(old, new, f"{old or result}/shifted_bias")
        self.biases[name] = bool(old)
        return name

    def write(self, kind: str, inputs: tuple[str, ...], output: str, **attributes: Any) -> str:
        """Emit an operator with one result; return the result."""
        self.emit(Op(kind, inputs, (output,), attributes, self.source))
        return output

    def compute_float(self, kind: str, inputs: tuple[str, ...], wanted: str, like: str, **attributes: Any) -> str:
        """Emit an operator with a new float32 result of the shape of another tensor; return the result."""
        return self.compute(kind, inputs, wanted, Tensor("", "float32", self[like].shape), self.source, **attributes)

    def plus(self, value: str, amount: float, result: str = "") -> str:
        """Add a constant to a float value; return the value itself if the constant is 0 and no result is given.

        Args:
            value: the name of a tensor, old or new.
            amount: the constant.
            result: the name of the sum; by default a new one.
        """
        if not amount and not result:
            return value
        value = self._wide(value) if amount else value
        tensor = self[value]
        short = bool(amount and result) and self.graph[result].dtype in _SHORT
        total = self.add(f"{result}/float32", tensor, dtype="float32") if short else result
        total = total or self.add(f"{value}/moved", tensor)
        if not amount:
            return self.write("Identity", (value,), total)
        constant = self.constant(f"{value}/shift", np.array(abs(amount), numpy_dtype(tensor.dtype)))
        self.write("Add" if amount > 0 else "Sub", (value, constant), total)
        return self.write("Cast", (total,), result, to=self.graph[result].dtype) if short else total

    def _wide(self, value: str) -> str:
        """Cast float values of 16 bits to float32: a shift in 16 would cost them bits that a step of the quantization needs."""
        short = self[value].dtype in _SHORT
        return self.compute_float("Cast", (value,), f"{value}/float32", value, to="float32") if short else value

    def dequantize_shifted(self, name: str) -> str:
        """Dequantize what stands for a tensor; its float values are shifted if that is."""
        return self.compute_float("Dequantize", (self.twin(name),), f"{name}/shifted_value", name)

    def quantize(self, value: str, name: str) -> None:
        """Quantize float values, shifted as the result is, to its quantization."""
        self.write("Quantize", (value,), self.twin(name))
        self.give_out(name)

    def give_out(self, name: str) -> None:
        """Give a tensor the integers of its twin, after what wrote the twin."""
        if name in self._twins:
            self.emit(Op("Reinterpret", (self._twins[name],), (name,)))

    def settle(self, name: str) -> None:
        """Give the twin of a tensor its integers, after what wrote the tensor."""
        if name in self._twins:
            self.emit(Op("Reinterpret", (name,), (self._twins[name],)))

    def pad_with_zero(self, name: str, amounts: tuple[int, ...]) -> str:
        """Put real zero around what stands for a tensor.

        Args:
            name: of the tensor.
            amounts: what is added before each axis, and then after.
        """
        if not any(amounts):
            return self.twin(name)
        if (name, amounts) in self._padded:
            return self._padded[name, amounts]
        shape = self.graph[name].shape
        assert shape is not None
        more = [before + after for before, after in zip(amounts[: len(shape)], amounts[len(shape) :], strict=True)]
        sizes = tuple(size + extra if isinstance(size, int) else size if not extra else f"{size}+{extra}"
                      for size, extra in zip(shape, more, strict=True))  # fmt: skip
        value = self.dequantize(self.twin(name), f"{name}/shifted_value")
        wide = self.add(f"{name}/padded_value", self[value], shape=sizes)
        zero = self.constant(f"{name}/zero", self.shift(name))
        self.emit(Op("Pad", (value, self.constant(f"{name}/pads", amounts), zero), (wide,)))
        result = self.add(f"{name}/padded", self[self.twin(name)], shape=sizes)
        self._shifted[result] = self._points[name]
        self.counts["are padded with zero, as convolutions padded them"] += 1
        self.emit(Op("Quantize", (wide,), (result,)))
        self._padded[name, amounts] = result
        return result

    def without_unread(self, graph: Graph) -> tuple[Graph, dict[str, int]]:
        """Return the rewritten graph without twins that nothing reads, and the zero points that went, by the names of its tensors."""
        rewriter, ends = Rewriter(graph), {*self._twins, *self._twins.values()} - graph.public
        for op in rewriter.of_kind("Reinterpret"):
            if op.name in ends and op.name not in rewriter.readers:
                rewriter.remove(op)
        changed = rewriter.finish()
        return changed, {name: point for name, point in self._shifted.items() if name in changed}


_QUANTIZED_TWICE = Pattern("Requantize", Pattern("Quantize", "real"))
_DEQUANTIZED_TWICE = Pattern("Dequantize", Pattern("Requantize", "stored"))
#: The steps of float values that are rounded, limited and stored.
_STORED = Pattern("Cast", Pattern("Clip", Pattern("Round", "steps"), *integer_range("uint8")))


def runs_in_float(tensor: Tensor, target: Target | None) -> bool:
    """Whether the target has no Quantize and Dequantize of a tensor's type, but plain numbers of it."""
    taken = target.storage.activation_dtypes if target is not None else ()
    return tensor.dtype == "uint8" and tensor.per_tensor is not None and bool(taken) and "uint8" not in taken


def bypass_unsigned(graph: Graph, target: Target | None) -> Graph:
    """Let conversions from and to float values that go by uint8, as float inputs and outputs of uint8 networks do, go by int8 at once,
    which has the same float values."""
    rewriter = Rewriter(graph)
    for op in rewriter:
        for kind, pattern in (("Quantize", _QUANTIZED_TWICE), ("Dequantize", _DEQUANTIZED_TWICE)):
            match = rewriter.match(pattern, op.name)
            if match is None or not runs_in_float(middle := graph[op.inputs[0]], target):
                continue
            other = graph[match.tensors.get("stored", op.name)]
            if shift_to_dtype(middle, "int8").shares_quantization(other):
                rewriter.replace(op, replace(op, kind=kind, inputs=tuple(match.tensors.values())))
    return rewriter.finish(prune=rewriter.is_changed)


def from_unsigned(s: Shifting, op: Op) -> None:
    """Emit a Requantize of uint8: the integers less their middle, times the scale, which is exact in float32, then to the signed
    quantization."""
    name, result = op.inputs[0], op.name
    own, new = s.quantization(name), s.quantization(result)
    point, same = own.point, own.scale[0] == new.scale[0]
    # The float values of the signed quantization are shifted already where both have one scale.
    off = point - (round(s.shift(result) / new.step) if same else 0)
    value = s.compute_float("Cast", (name,), f"{name}/numbers", name, to="float32")
    value = s.plus(value, -float(off))
    scale = s.constant(f"{name}/scale", own.step)
    value = s.compute_float("Mul", (value, scale), f"{name}/value", name)
    s.quantize(value if same else s.plus(value, s.shift(result)), result)


def to_unsigned(s: Shifting, op: Op) -> None:
    """Emit a Requantize to uint8: the float values in steps, moved, rounded, limited and stored."""
    name, result = op.inputs[0], op.name
    own, new = s.quantization(name), s.quantization(result)
    value, moved = s.dequantize_shifted(name), s.shift(name)
    same = own.scale[0] == new.scale[0]
    point = new.point - (round(moved / own.step) if same else 0)
    value = value if same else s.plus(value, -moved)
    scale = s.constant(f"{result}/scale", new.step)
    value = s.compute_float("Div", (value, scale), f"{result}/steps", result)
    value = s.compute_float("Round", (s.plus(value, float(point)),), f"{result}/rounded", result)
    limits = zip(("lowest", "highest"), integer_range("uint8"), strict=True)
    ends = (s.constant(f"{result}/{word}", float(end)) for word, end in limits)
    value = s.compute_float("Clip", (value, *ends), f"{result}/limited", result)
    s.write("Cast", (value,), result, to="uint8")


#: How far a zero point that float32 numbers were added up to may be from a whole number.
_WHOLE = 1e-3


class _Line(NamedTuple):
    """A float value as factor * another one + constant, and the operator that makes that one."""

    maker: Op
    factor: float
    constant: float


def restore_unsigned(graph: Graph) -> Graph:
    """Put a Requantize in place of what brings uint8 inputs to a signed quantization, and signed values to uint8 outputs."""
    rewriter, done = Rewriter(graph), set[str]()
    for op in rewriter:
        found = _input(rewriter, op) if kind_of(op).quantizes else _output(rewriter, op)
        if found is not None and found[0].name not in done:
            tensor, source, result = found
            done.add(rewriter.define(tensor, shift=0))
            rewriter.replace(op, op.derive("Requantize", (source,), (result,)))
    return rewriter.finish(prune=rewriter.is_changed)


def _line(rewriter: Rewriter, name: str) -> _Line | None:
    """Follow a float value back through numbers that are added to it and that it is multiplied by."""
    factor, constant = 1.0, 0.0
    for _ in range(8):
        op = rewriter.producers.get(name)
        if op is None:
            return None
        affine = kind_of(op).affine
        number = _number(rewriter.graph, op) if affine is not None else None
        step = affine(1, number) if affine is not None and number is not None else None
        if step is None:
            return _Line(op, factor, constant)
        by, added = step
        factor, constant, name = factor * by, constant + factor * added, op.inputs[0]
    return None


def _number(graph: Graph, op: Op) -> float | None:
    """Return the one number that is an operator's second operand; None if it has another, or an activation."""
    data = graph.constant(op.inputs[1])
    if data is None or data.size != 1 or data.dtype != np.float32 or op.attributes.get("activation") or not data.flat[0]:
        return None
    return float(data.flat[0])


def _quantization(scale: float, point: float) -> Quantization | None:
    low, high = integer_range("uint8")
    if not scale > 0 or abs(point - round(point)) > _WHOLE or not low <= round(point) <= high:
        return None
    return Quantization.per_tensor(float(np.float32(scale)), round(point))


def _input(rewriter: Rewriter, op: Op) -> tuple[Tensor, str, str] | None:
    """Return the input of uint8 that a Quantize gets as numbers, with its quantization, that input, and the result."""
    line = _line(rewriter, op.inputs[0])
    if line is None or not kind_of(line.maker).casts:
        return None
    graph = rewriter.graph
    tensor = graph[line.maker.inputs[0]]
    if tensor.name not in graph.inputs or tensor.dtype != "uint8" or tensor.is_quantized or len(rewriter.readers[tensor.name]) != 1:
        return None
    quantization = _quantization(line.factor, -line.constant / line.factor)
    return None if quantization is None else (replace(tensor, quantization=quantization), tensor.name, op.name)


def _output(rewriter: Rewriter, op: Op) -> tuple[Tensor, str, str] | None:
    """Return the output of uint8 that a Cast of rounded steps gives, with its quantization, the signed tensor that it is made of, and the
    result."""
    graph, match = rewriter.graph, rewriter.match(_STORED, op.name)
    if match is None or op.name not in graph.outputs or graph[op.name].dtype != "uint8":
        return None
    line = _line(rewriter, match.tensors["steps"])
    if line is None or not kind_of(line.maker).dequantizes or not graph[line.maker.inputs[0]].is_quantized:
        return None
    quantization = _quantization(1 / line.factor, line.constant) if line.factor else None
    return None if quantization is None else (replace(graph[op.name], quantization=quantization), line.maker.inputs[0], op.name)
