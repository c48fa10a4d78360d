"""apply_encodings: scales that stand next to a model without quantization make a quantized model of it.

Values are rounded where entries say, literally, with Quantize and Dequantize; absorb_quantization then makes quantized operators of all
that have their quantizations, and float_bias_to_int32 puts biases at input scale * weight scale. Quantizations are carried on through
operators that keep them, where the option fill says so. What lacks an entry stays real and is named.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from qconvert.arithmetic import quantize
from qconvert.encodings import Encoding, Encodings, QParams, weights_quantization
from qconvert.errors import InvalidModelError, UnsupportedError, format_count, format_verb, quote_some
from qconvert.graph import Array, Graph, Op, Tensor, count_kinds, numpy_dtype
from qconvert.operators import kind_of
from qconvert.passes.absorb_quantization import absorb_quantization
from qconvert.passes.encoding_entries import Matched, drop_unrounded, fit_encoding, match_entries, normalize, split_limits
from qconvert.passes.weights_and_biases import float_bias_to_int32
from qconvert.plugins import Change, PassResult, Target, read_encodings
from qconvert.plugins.options import json_object
from qconvert.rewriting import Rewriter

_SHOWN = 5


def apply_encodings(
    graph: Graph,
    target: Target | None,
    *,
    encodings: str = "",
    encodings_options: str = "{}",
    fill: str = "none",
    range_dtype: str = "int8",
) -> PassResult:
    """Apply the encodings of a file; without one nothing changes."""
    if not encodings:
        return graph, ()
    found = read_encodings(Path(encodings), options=json_object("encodings_options", encodings_options))
    return quantize_by_encodings(graph, found, fill=fill, range_dtype=range_dtype)


def quantize_by_encodings(graph: Graph, encodings: Encodings, *, fill: str = "none", range_dtype: str = "int8") -> PassResult:
    """Return the graph with quantized operators wherever the encodings give quantizations.

    Args:
        graph: in float, all or in part.
        encodings: by the names of its tensors and operators.
        fill: "infer" carries quantizations through operators that keep them: data movement, pooling, Relu.
        range_dtype: the type of activations whose entry is a range.

    Raises:
        InvalidModelError: an entry is of nothing in the graph, or does not fit its tensor.
        UnsupportedError: the graph has functions.
    """
    if graph.functions:
        raise UnsupportedError("the graph has functions; encodings require a graph without them", rule="has-functions")
    before = len(graph.ops)
    encodings, inner = drop_unrounded(graph, encodings)
    graph, renamed = normalize(graph, encodings)
    work = _Encoding(graph, match_entries(graph, encodings, renamed), range_dtype)
    filled = propagate_quantizations(graph, work.quantizations) if fill == "infer" else []
    derived = work.derive_weights() if encodings.weights == "max-abs" else []
    changed, _ = absorb_quantization(work.insert_qdq(), None)
    changed, biases = float_bias_to_int32(changed, None)
    changed = Rewriter(changed).finish(prune=True)
    notes: list[Change | str] = [*encodings.notes, _summary(work, encodings, filled, derived), *biases]
    if renamed:
        notes.append(f"{before - len(graph.ops)} BatchNormalizations are folded into the weights before them, whose scales the file states")
    if inner:
        notes.append(
            f"{format_count(inner, 'tensor')} before a normalization or a Relu {format_verb(inner, 'are')} not quantized: "
            "the runtime fuses both"
        )
    notes += _describe_float_ops(changed)
    return changed, tuple(notes)


def insert_qdq(graph: Graph, encodings: Encodings) -> Graph:
    """Return the graph with a Quantize and a Dequantize after each tensor that has a quantization, and float biases: to measure what
    quantizations cost."""
    return _Encoding(graph, match_entries(graph, encodings), "int8").insert_qdq()


class _Encoding(Rewriter):
    """The quantizations of a graph's tensors, and the graph that is rounded on them.

    Attributes:
        quantizations: of tensors that are computed, and of inputs.
    """

    def __init__(self, graph: Graph, found: Matched, range_dtype: str) -> None:
        super().__init__(graph)
        self._dtype = range_dtype
        self.quantizations: dict[str, QParams] = {}
        self._constants: dict[str, tuple[QParams, Array | None]] = {}
        for name, encoding in found.tensors.items():
            self._take(name, encoding)
        self._operands: dict[tuple[str, int], tuple[QParams, Array | None]] = {}
        for (result, index), encoding in found.operands.items():
            op = self.producers[result]
            tensor = self._require_float(op.inputs[index])
            self._operands[result, index] = fit_encoding(encoding, tensor, op, index, range_dtype)

    def _require_float(self, name: str) -> Tensor:
        """Return a tensor that an entry is of: it holds float values."""
        tensor = self.graph[name]
        if tensor.dtype == "float32" and not tensor.is_quantized:
            return tensor
        what = "is quantized already" if tensor.is_quantized else f"is {tensor.dtype}, not float32"
        raise InvalidModelError(
            f"{what}; an encoding requires a float32 tensor",
            where=repr(name),
            remedy="Apply encodings to a model without quantization.",
            rule="not-a-float-tensor",
        )

    def _take(self, name: str, encoding: Encoding) -> None:
        tensor = self._require_float(name)
        op = next(iter(self.readers[name]), None)
        index = op.inputs.index(name) if op is not None else 0
        quantization, integers = fit_encoding(encoding, tensor, op, index, self._dtype)
        if tensor.is_constant:
            self._constants[name] = quantization, integers
        else:
            self.quantizations[name] = quantization

    def derive_weights(self) -> list[str]:
        """Put weights without an entry, of layers whose data have one, on int8 quantizations; return their names."""
        made = []
        for op in self.graph.ops:
            if not kind_of(op).sums_products or (op.name, 1) in self._operands:
                continue
            if op.inputs[0] not in self.quantizations and (op.name, 0) not in self._operands:
                continue
            tensor = self.graph[op.inputs[1]]
            if tensor.data is None or tensor.dtype != "float32" or tensor.name in self._constants or (tensor.rank or 0) < 2:
                continue
            self._constants[tensor.name] = weights_quantization(tensor, op), None
            made.append(tensor.name)
        return made

    def insert_qdq(self) -> Graph:
        """Return the graph with a Quantize and a Dequantize after each tensor that has a quantization."""
        real = dict[str, str]()
        for name, (quantization, integers) in self._constants.items():
            real[name] = self._constant(name, quantization, integers)
        for name in self.graph.inputs:
            if name in self.quantizations:
                real[name] = self._emit_qdq(name, name, self.quantizations[name], keeps_name=False)
        for op in self:
            inputs = [real.get(name, name) for name in op.inputs]
            for index in range(len(inputs)):
                if (op.name, index) in self._operands:
                    inputs[index] = self._operand(op, index, inputs[index])
            graded = [name for name in op.outputs if name in self.quantizations]
            computed = {name: self.add(f"{name}/computed", self.graph[name]) for name in graded}
            self.remove(op)  # what rounds its results stands after its new form
            self.emit(replace(op, inputs=tuple(inputs), outputs=tuple(computed.get(name, name) for name in op.outputs)))
            for name in graded:
                real[name] = self._emit_qdq(name, computed[name], self.quantizations[name], keeps_name=name in self.graph.public)
        return self.finish()

    def _constant(self, name: str, quantization: QParams, integers: Array | None) -> str:
        """Store the integers of a constant under its name; return the name of its float values."""
        stored = self.fresh(f"{name}/quantized") if name in self.graph.public else name
        return self._emit_dequantize(name, replace(self._quantize_constant(self.graph[name], quantization, integers), name=stored))

    def _emit_dequantize(self, name: str, stored: Tensor) -> str:
        """Emit a Dequantize of the integers of a constant; return the name of its float values."""
        self.define(stored)
        return self.compute("Dequantize", (stored.name,), f"{name}/real", self.graph[name])

    def _quantize_constant(self, tensor: Tensor, quantization: QParams, integers: Array | None) -> Tensor:
        assert tensor.data is not None
        if not np.isfinite(tensor.data).all():
            raise InvalidModelError("holds NaN or infinity, which cannot be quantized", where=repr(tensor.name), rule="not-finite")
        data = quantize(tensor.data, quantization.quantization, quantization.dtype) if integers is None else integers
        return replace(
            tensor,
            dtype=quantization.dtype,
            data=data.astype(numpy_dtype(quantization.dtype), copy=False),
            quantization=quantization.quantization,
        )

    def _operand(self, op: Op, index: int, name: str) -> str:
        """Round one operator's input for it alone; return the name of its float values."""
        quantization, integers = self._operands[op.name, index]
        tensor = self.graph[op.inputs[index]]
        if not tensor.is_constant:
            return self._emit_qdq(f"{tensor.name}/{op.name}", name, quantization, keeps_name=False, like=tensor)
        stored = self.fresh(f"{tensor.name}/quantized")
        if self.is_read_once(tensor.name):
            self.relate(tensor.name, stored)
        return self._emit_dequantize(tensor.name, replace(self._quantize_constant(tensor, quantization, integers), name=stored))

    def _emit_qdq(self, name: str, computed: str, quantization: QParams, *, keeps_name: bool, like: Tensor | None = None) -> str:
        """Round a tensor; return the name of its float values after that.

        The integers have the tensor's name, but where outside it is seen as real: there `keeps_name` gives that to the float values.
        """
        tensor = like or self.graph[name]
        on, limits = split_limits(quantization)
        if limits:
            bounds = [self.constant(f"{name}/limit", bound) for bound in limits]
            computed = self.compute("Clip", (computed, *bounds), f"{name}/limited", tensor)
        taken = keeps_name or name in self.graph.inputs or like is not None
        stored = self.fresh(f"{name}/quantized") if taken else name
        self.define(replace(tensor, name=stored, dtype=quantization.dtype, quantization=on))
        real = name if keeps_name else self.add(f"{name}/real", tensor)
        self.emit(Op("Quantize", (computed,), (stored,)))
        self.emit(Op("Dequantize", (stored,), (real,)))
        return real

    def counts(self) -> tuple[int, int]:
        """Return how many activations and constants have a quantization."""
        names = {self.producers[result].inputs[index] for result, index in self._operands}
        constants = {name for name in names if self.graph[name].is_constant} | self._constants.keys()
        return len(self.quantizations.keys() | names - constants), len(constants)


def _summary(work: _Encoding, encodings: Encodings, filled: list[str], derived: list[str]) -> Change:
    source = f" of {encodings.origin}" if encodings.origin else ""
    activations, constants = work.counts()
    text = f"scales{source}: {format_count(activations, 'activation')} and {format_count(constants, 'constant')} are quantized"
    if filled:
        text += f"; {len(filled)} of them inferred from neighbouring tensors"
    if derived:
        text += f"; {format_count(len(derived), 'weight', 'have')} the scale max|w| / 127 of each channel, because the file gives none"
    return Change(text)


def _describe_float_ops(graph: Graph) -> list[str]:
    """Name operators that stay in float, and which of their tensors have no quantization."""
    stay: list[Op] = []
    lacking: dict[str, None] = {}
    for op in graph.ops:
        if kind_of(op).rule not in ("real", "move"):
            continue
        real = [name for name in (*kind_of(op).data(op), *kind_of(op).results_of(op)) if name and graph[name].dtype == "float32"]
        if real:
            stay.append(op)
            lacking.update(dict.fromkeys(real))
    if not stay:
        return []
    counted = ", ".join(f"{count} {kind}" for kind, count in count_kinds(stay).most_common())
    return [f"{counted} stay in float, because these tensors have no scale: {quote_some(lacking, _SHOWN)}"]


def propagate_quantizations(graph: Graph, quantizations: MutableMapping[str, QParams]) -> list[str]:
    """Give tensors without a quantization that of their neighbours, until nothing changes; return their names.

    Forwards, results of operators whose data all have one quantization; backwards, the data of data movement and of Concat, such as the
    result of a layer that is only moved.
    """
    given: list[str] = []
    before = -1
    while before != len(given):
        before = len(given)
        for op in graph.ops:
            if (kind := kind_of(op)).keeps_range:
                data = [name for name in kind.data(op) if _is_float_activation(graph, name)]
                given += _propagate(graph, quantizations, data, kind.results_of(op))
        for op in reversed(graph.ops):
            if (kind := kind_of(op)).rule == "move" or (kind.chooses and kind.keeps_range):
                given += _propagate(graph, quantizations, list(filter(None, kind.results_of(op))), kind.data(op))
    return given


def _is_float_activation(graph: Graph, name: str) -> bool:
    return graph[name].dtype == "float32" and not graph[name].is_constant


def _propagate(graph: Graph, quantizations: MutableMapping[str, QParams], given: Sequence[str], taken: Iterable[str]) -> list[str]:
    """Give float activations the one quantization that others have, if they lack one; return their names."""
    held = [quantizations.get(name) for name in given]
    first = held[0] if held else None
    if first is None or first.quantization.axis is not None or any(item != first for item in held):
        return []
    new = [name for name in dict.fromkeys(taken) if name and name not in quantizations and _is_float_activation(graph, name)]
    quantizations.update(dict.fromkeys(new, first))
    return new
