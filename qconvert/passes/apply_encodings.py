"""apply_encodings: scales that stand beside a model without quantization make a quantized model of it.

Values are rounded where entries say, literally, with Quantize and Dequantize; absorb_quantization then makes quantized operators of all
that have their grids, and float_bias_to_int32 puts biases at input scale * weight scale. What lacks an entry stays real and is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from qconvert.arithmetic import quantize
from qconvert.encodings import Encoding, Encodings, Grid, weights_grid
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.graph import Array, Graph, Op, Tensor, numpy_dtype
from qconvert.graph.kinds import KINDS
from qconvert.passes import absorb_quantization, float_bias_to_int32, remove_dead_code
from qconvert.passes.encodings.filling import carry_on
from qconvert.passes.encodings.grids import fitted, oriented
from qconvert.passes.encodings.literal import without_limits
from qconvert.passes.encodings.matching import Matched, matched
from qconvert.passes.encodings.normalized import normalized, rounded
from qconvert.plugins import Change, Target, read_encodings
from qconvert.plugins.options import json_object

__all__ = ["applied", "literal", "run"]

_SHOWN = 5


def run(
    graph: Graph,
    target: Target | None,
    *,
    encodings: str = "",
    encodings_options: str = "{}",
    fill: str = "none",
    range_dtype: str = "int8",
) -> tuple[Graph, tuple[Change | str, ...]]:
    """Applies the encodings of a file; without one nothing changes."""
    if not encodings:
        return graph, ()
    found = read_encodings(Path(encodings), options=json_object("encodings_options", encodings_options))
    return applied(graph, found, fill=fill, range_dtype=range_dtype)


def applied(graph: Graph, encodings: Encodings, *, fill: str = "none", range_dtype: str = "int8") -> tuple[Graph, tuple[Change | str, ...]]:
    """The graph with quantized operators wherever the encodings give grids.

    Args:
        graph: on real values, all or in part.
        encodings: by the names of its tensors and operators.
        fill: "infer" carries grids through operators that keep them: data movement, pooling, Relu.
        range_dtype: the type of activations whose entry is a range.

    Raises:
        InvalidModelError: an entry is of nothing in the graph, or does not fit its tensor.
        UnsupportedError: the graph has functions.
    """
    if graph.functions:
        raise UnsupportedError("encodings are applied to graphs without functions")
    before = len(graph.ops)
    encodings, inner = rounded(graph, encodings)
    graph, renamed = normalized(graph, encodings)
    work = _Applied(graph, matched(graph, encodings, renamed), range_dtype)
    filled = carry_on(graph, work.grids) if fill == "infer" else []
    derived = work.derive_weights() if encodings.weights == "max-abs" else []
    changed, _ = absorb_quantization.run(work.literal(), None)
    changed, biases = float_bias_to_int32.run(changed, None)
    changed, _ = remove_dead_code.run(changed, None)
    notes: list[Change | str] = [*encodings.notes, _summary(work, encodings, filled, derived), *biases]
    if renamed:
        notes.append(f"{before - len(graph.ops)} BatchNormalizations are part of the weights before them, whose scales the file states")
    if inner:
        notes.append(f"{inner} tensors before a normalization or a Relu are not rounded: the runtime computes both in one")
    notes += _left(changed)
    return changed, tuple(notes)


def literal(graph: Graph, encodings: Encodings) -> Graph:
    """The graph with a Quantize and a Dequantize behind each tensor that has a grid, and real biases: for measuring what grids cost."""
    return _Applied(graph, matched(graph, encodings), "int8").literal()


class _Applied:
    """The graph that comes out, step by step.

    Attributes:
        grids: of tensors that are computed, and of inputs.
    """

    def __init__(self, graph: Graph, found: Matched, range_dtype: str) -> None:
        self._graph, self._found, self._dtype = graph, found, range_dtype
        self._tensors: dict[str, Tensor] = {}
        self._names = graph.names(self._tensors)
        self._ops: list[Op] = []
        self._first: dict[str, tuple[Op, int]] = {}
        for op in graph.ops:
            for index, name in enumerate(op.inputs):
                if name:
                    self._first.setdefault(name, (op, index))
        self.grids: dict[str, Grid] = {}
        self._constants: dict[str, tuple[Grid, Array | None]] = {}
        for name, encoding in found.tensors.items():
            self._take(name, encoding)
        self._operands: dict[tuple[str, int], tuple[Grid, Array | None]] = {}
        self._producers = graph.producers()
        for (result, index), encoding in found.operands.items():
            op = self._producers[result]
            tensor = self._real(op.inputs[index])
            integers = oriented(encoding, tensor, op, index).integers
            self._operands[result, index] = fitted(encoding, tensor, op, index, range_dtype), integers

    def _real(self, name: str) -> Tensor:
        """A tensor that an entry is of: it holds real values."""
        tensor = self._graph[name]
        if tensor.dtype == "float32" and not tensor.is_quantized:
            return tensor
        what = "is quantized already" if tensor.is_quantized else f"is {tensor.dtype}, not float32"
        raise InvalidModelError(f"{what}: it takes no encoding", where=repr(name), remedy="Encodings are of a model without quantization.")

    def _take(self, name: str, encoding: Encoding) -> None:
        tensor = self._real(name)
        op, index = self._first.get(name, (None, 0))
        grid, integers = fitted(encoding, tensor, op, index, self._dtype), oriented(encoding, tensor, op, index).integers
        if tensor.is_constant:
            self._constants[name] = grid, integers
        else:
            self.grids[name] = grid

    def _has_grid(self, op: Op, index: int) -> bool:
        return op.inputs[index] in self.grids or (op.outputs[0], index) in self._operands

    def derive_weights(self) -> list[str]:
        """Puts weights without an entry, of layers whose data have one, on int8 grids; returns their names."""
        made = []
        for op in self._graph.ops:
            if not KINDS[op.kind].sums_products or not self._has_grid(op, 0) or (op.outputs[0], 1) in self._operands:
                continue
            tensor = self._graph[op.inputs[1]]
            if tensor.data is None or tensor.dtype != "float32" or tensor.name in self._constants or (tensor.rank or 0) < 2:
                continue
            self._constants[tensor.name] = weights_grid(tensor, op), None
            made.append(tensor.name)
        return made

    def literal(self) -> Graph:
        """The graph with a Quantize and a Dequantize behind each tensor that has a grid."""
        real: dict[str, str] = {}
        for name, (grid, integers) in self._constants.items():
            real[name] = self._constant(name, grid, integers)
        for name in self._graph.inputs:
            if name in self.grids:
                real[name] = self._rounded(name, name, self.grids[name], keeps_name=False)
        for op in self._graph.ops:
            inputs = [real.get(name, name) for name in op.inputs]
            for index in range(len(inputs)):
                if (op.outputs[0], index) in self._operands:
                    inputs[index] = self._operand(op, index, inputs[index])
            graded = [name for name in op.outputs if name in self.grids]
            computed = {name: self._new(f"{name}/computed", self._graph[name]) for name in graded}
            self._ops.append(replace(op, inputs=tuple(inputs), outputs=tuple(computed.get(name, name) for name in op.outputs)))
            for name in graded:
                real[name] = self._rounded(name, computed[name], self.grids[name], keeps_name=name in self._graph.public)
        return self._graph.evolve(tensors=self._tensors.values(), ops=self._ops)

    def _new(self, name: str, tensor: Tensor, **changes: object) -> str:
        fresh = self._names.fresh(name)
        self._tensors[fresh] = replace(tensor, name=fresh, **changes)  # type: ignore[arg-type]
        return fresh

    def _constant(self, name: str, grid: Grid, integers: Array | None) -> str:
        """The integers of a constant under its name; returns the name of its real values."""
        tensor = self._graph[name]
        public = name in self._graph.public
        stored = self._new(f"{name}/quantized", tensor) if public else name
        self._tensors[stored] = replace(self._stored(tensor, grid, integers), name=stored)
        real = self._new(f"{name}/real", tensor, data=None)
        self._ops.append(Op("Dequantize", (stored,), (real,)))
        return real

    def _stored(self, tensor: Tensor, grid: Grid, integers: Array | None) -> Tensor:
        assert tensor.data is not None
        if not np.isfinite(tensor.data).all():
            raise InvalidModelError("holds NaN or infinity, which no grid does", where=repr(tensor.name))
        data = quantize(tensor.data, grid.quantization, grid.dtype) if integers is None else integers
        return replace(tensor, dtype=grid.dtype, data=data.astype(numpy_dtype(grid.dtype), copy=False), quantization=grid.quantization)

    def _operand(self, op: Op, index: int, name: str) -> str:
        """The real values of one operator's input, rounded for it alone."""
        grid, integers = self._operands[op.outputs[0], index]
        tensor = self._graph[op.inputs[index]]
        if not tensor.is_constant:
            return self._rounded(f"{tensor.name}/{op.outputs[0]}", name, grid, keeps_name=False, like=tensor)
        stored = self._new(f"{tensor.name}/quantized", self._stored(tensor, grid, integers))
        real = self._new(f"{tensor.name}/real", tensor, data=None)
        self._ops.append(Op("Dequantize", (stored,), (real,)))
        return real

    def _rounded(self, name: str, computed: str, grid: Grid, *, keeps_name: bool, like: Tensor | None = None) -> str:
        """Rounds a tensor; returns the name of its real values behind that.

        The integers have the tensor's name, but where outside it is seen as real: there `keeps_name` gives that to the real values.
        """
        tensor = like or self._graph[name]
        on, limits = without_limits(grid)
        if limits:
            bounds = [self._new(f"{name}/limit", Tensor("", "float32", (), bound)) for bound in limits]
            clipped = self._new(f"{name}/limited", tensor)
            self._ops.append(Op("Clip", (computed, *bounds), (clipped,)))
            computed = clipped
        taken = keeps_name or name in self._graph.inputs or like is not None
        stored = self._new(f"{name}/quantized", tensor) if taken else name
        self._tensors[stored] = replace(tensor, name=stored, dtype=grid.dtype, quantization=on)
        real = name if keeps_name else self._new(f"{name}/real", tensor)
        self._ops += [Op("Quantize", (computed,), (stored,)), Op("Dequantize", (stored,), (real,))]
        return real

    def counts(self) -> tuple[int, int]:
        """How many activations and constants have a grid."""
        names = {self._operand_name(result, index) for result, index in self._operands}
        constants = {name for name in names if self._graph[name].is_constant} | self._constants.keys()
        return len(self.grids.keys() | names - constants), len(constants)

    def _operand_name(self, result: str, index: int) -> str:
        return self._producers[result].inputs[index]


def _summary(work: _Applied, encodings: Encodings, filled: list[str], derived: list[str]) -> Change:
    source = f" of {encodings.origin}" if encodings.origin else ""
    activations, constants = work.counts()
    text = f"grids{source}: of {activations} activations and {constants} constants"
    if filled:
        text += f"; {len(filled)} of them inferred from neighbours"
    if derived:
        text += f"; {len(derived)} weights at max|w| / 127 of each channel, which the file leaves out"
    return Change(text)


def _left(graph: Graph) -> list[str]:
    """Operators that stay on real values, and which of their tensors have no grid."""
    kinds: Counter[str] = Counter()
    lacking: dict[str, None] = {}
    for op in graph.ops:
        if KINDS[op.kind].rule not in ("real", "move"):
            continue
        real = [name for name in (*KINDS[op.kind].data(op), *KINDS[op.kind].results_of(op)) if name and graph[name].dtype == "float32"]
        if real:
            kinds[op.kind] += 1
            lacking.update(dict.fromkeys(real))
    if not kinds:
        return []
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    some = ", ".join(map(repr, list(lacking)[:_SHOWN])) + (f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else "")
    return [f"on real values stay {counted}, since these tensors have no grid: {some}"]
