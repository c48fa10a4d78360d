"""A graph whose activations lose their zero points, while it is rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Op, Quantization, Shape, Tensor, numpy_dtype

__all__ = ["Shifting"]

#: Real types of 16 bits.
_SHORT = ("float16", "bfloat16")


class Shifting:
    """Operators and tensors of the new graph, and what stands for a tensor of the old one.

    Args:
        graph: the old one.
        points: the zero points that go, by tensor.
        held: tensors that stay as they are; those among `points` have a twin with the zero point 0, and a Reinterpret between.

    Attributes:
        graph: the old one.
        ops: in order, of the new one.
        counts: what was done, by words for it.
        biases: those that took shifts in, and whether they were there before.
    """

    def __init__(self, graph: Graph, points: Mapping[str, int], held: Collection[str]) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self.counts: Counter[str] = Counter()
        self.biases: dict[str, bool] = {}
        self._points = points
        self._readers = graph.consumers()
        self._tensors: dict[str, Tensor] = {}
        self._names = graph.names(self._tensors)
        self._padded: dict[tuple[str, tuple[int, ...]], str] = {}
        self._shifted = dict[str, int]()
        self._twins: dict[str, str] = {}
        for name in points:
            if name in held:
                self._twins[name] = self._names.fresh(f"{name}/shifted")
            self._label(name, self._twins.get(name, name))

    def _label(self, name: str, new: str) -> None:
        tensor = self.graph[name]
        assert tensor.quantization is not None
        grid = replace(tensor.quantization, zero_point=np.zeros_like(tensor.quantization.zero_point))
        self._tensors[new] = replace(tensor, name=new, quantization=grid)
        self._shifted[new] = self._points[name]

    def __getitem__(self, name: str) -> str:
        """What stands for a tensor where its shift is known: its twin, or itself."""
        return self._twins.get(name, name)

    def shift(self, name: str) -> float:
        """By how much the real values of a tensor are larger than they were; 0 where they are not."""
        grid = self.graph[name].quantization
        return float(grid.scale[0]) * self._points[name] if name in self._points and grid is not None else 0.0

    def tensor(self, name: str) -> Tensor:
        """A tensor of the new graph, or of the old one."""
        return self._tensors.get(name) or self.graph[name]

    def symmetric(self, name: str) -> Quantization:
        """The grid of what stands for a tensor."""
        found = self.tensor(self[name]).quantization
        assert found is not None
        return found

    def grid(self, name: str) -> Quantization:
        """The old grid of a tensor."""
        found = self.graph[name].quantization
        assert found is not None
        return found

    def add(self, wanted: str, dtype: str, shape: Shape | None, grid: Quantization | None = None) -> str:
        """A new tensor; returns its name."""
        name = self._names.fresh(wanted)
        self._tensors[name] = Tensor(name, dtype, shape, None, grid)
        return name

    def constant(self, wanted: str, value: object, dtype: str = "float32") -> str:
        """A new constant; returns its name."""
        data = np.asarray(value).astype(numpy_dtype(dtype))
        name = self.add(wanted, dtype, data.shape)
        self._tensors[name] = replace(self._tensors[name], data=data)
        return name

    def bias(self, old: str, channels: Array, result: str) -> str:
        """A bias of real values, in place of an old one where nobody else reads that.

        Args:
            old: its name; "" if there was none.
            channels: the values.
            result: of the operator that reads it.
        """
        new = Tensor(old, "float32", channels.shape, channels.astype(np.float32))
        if not old or len(self._readers[old]) > 1 or old in self.graph.public:
            new = replace(new, name=self._names.fresh(f"{old or result}/shifted_bias"))
        self._tensors[new.name] = new
        self.biases[new.name] = bool(old)
        return new.name

    def emit(self, kind: str, inputs: tuple[str, ...], output: str, source: str = "", **attributes: object) -> str:
        """Appends an operator with one result; returns the result."""
        self.ops.append(Op(kind, inputs, (output,), attributes, source))  # type: ignore[arg-type]
        return output

    def plus(self, value: str, amount: float, source: str = "", result: str = "") -> str:
        """A real value and a constant added; the value itself if that is 0 and nothing else is asked for.

        Args:
            value: the name of a tensor, old or new.
            amount: the constant.
            source: where the operator comes from.
            result: the name of the sum; by default a new one.
        """
        if not amount and not result:
            return value
        value = self._wide(value, source) if amount else value
        tensor = self._tensors.get(value) or self.graph[value]
        short = bool(amount and result) and self.graph[result].dtype in _SHORT
        total = self.add(f"{result}/float32", "float32", tensor.shape) if short else result
        total = total or self.add(f"{value}/moved", tensor.dtype, tensor.shape)
        if not amount:
            return self.emit("Identity", (value,), total, source)
        kind = "Add" if amount > 0 else "Sub"
        self.emit(kind, (value, self.constant(f"{value}/shift", abs(amount), tensor.dtype)), total, source)
        return self.emit("Cast", (total,), result, source, to=self.graph[result].dtype) if short else total

    def _wide(self, value: str, source: str) -> str:
        """Real values of 16 bits in float32: a shift in 16 would cost them bits that a step of the grid needs."""
        tensor = self._tensors.get(value) or self.graph[value]
        if tensor.dtype not in _SHORT:
            return value
        return self.emit("Cast", (value,), self.add(f"{value}/float32", "float32", tensor.shape), source, to="float32")

    def real(self, name: str, source: str = "") -> str:
        """The real values of what stands for a tensor, shifted if that is."""
        return self.emit("Dequantize", (self[name],), self.add(f"{name}/shifted_value", "float32", self.graph[name].shape), source)

    def quantize(self, value: str, name: str, source: str = "") -> None:
        """Real values, shifted as the result is, onto its grid."""
        self.emit("Quantize", (value,), self[name], source)
        self.finish(name)

    def finish(self, name: str) -> None:
        """Behind what wrote the twin of a tensor: the tensor itself."""
        if name in self._twins:
            self.emit("Reinterpret", (self._twins[name],), name)

    def settle(self, name: str) -> None:
        """Behind what wrote a tensor that has a twin: the twin."""
        if name in self._twins:
            self.emit("Reinterpret", (name,), self._twins[name])

    def padded(self, name: str, amounts: tuple[int, ...]) -> str:
        """What stands for a tensor, with real zero around it.

        Args:
            name: of the tensor.
            amounts: what is added in front of each axis, and then behind.
        """
        if not any(amounts):
            return self[name]
        if (name, amounts) in self._padded:
            return self._padded[name, amounts]
        shape = self.graph[name].shape
        assert shape is not None
        more = [before + after for before, after in zip(amounts[: len(shape)], amounts[len(shape) :], strict=True)]
        sizes = tuple(size + extra if isinstance(size, int) else size if not extra else f"{size}+{extra}"
                      for size, extra in zip(shape, more, strict=True))  # fmt: skip
        value, wide = self.real(name), self.add(f"{name}/padded_value", "float32", sizes)
        zero = self.constant(f"{name}/zero", self.shift(name))
        self.emit("Pad", (value, self.constant(f"{name}/pads", amounts, "int64"), zero), wide)
        new = self._tensors[self[name]]
        result = self.add(f"{name}/padded", new.dtype, sizes, new.quantization)
        self._shifted[result] = self._points[name]
        self.counts["have real zero around them, as convolutions padded them"] += 1
        self._padded[name, amounts] = self.emit("Quantize", (wide,), result)
        return result

    def result(self) -> tuple[Graph, dict[str, int]]:
        """The new graph, and the zero points that went, by the names of the tensors in it."""
        read = {name for op in self.ops for name in op.inputs} | self.graph.public
        ends = {*self._twins, *self._twins.values()}
        ops = [op for op in self.ops if not (op.kind == "Reinterpret" and op.outputs[0] in ends and op.outputs[0] not in read)]
        changed = self.graph.evolve(tensors=self._tensors.values(), ops=ops)
        return changed, {name: point for name, point in self._shifted.items() if name in changed.tensors}
