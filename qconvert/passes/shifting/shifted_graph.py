"""A graph whose activations lose their zero points, while it is rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, Tensor, numpy_dtype
from qconvert.rewriting import Rewriter

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
