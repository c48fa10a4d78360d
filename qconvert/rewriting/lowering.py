"""Lowering: operators that a format or a runtime lacks, written with others by the formulas of operators/formulas/.

An operator of a formula reads a quantized tensor as its float values, and rounds once onto a quantized result, as every canonical operator
does. So the first operators of a formula read the quantized tensors, what is between is float, and the last one writes the result. Data
movement keeps stored integers: forwards from a quantized operand, backwards from a quantized result.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from qconvert.arithmetic.storage import Array, canonical_dtype, fits_dtype, numpy_dtype
from qconvert.errors import QConvertError, UnsupportedError
from qconvert.graph import Graph, Names, Op, Tensor
from qconvert.graph.activations import ACTIVATIONS
from qconvert.operators import KINDS, Kind, kind_of
from qconvert.operators.formulas import Formula, formulas_of
from qconvert.operators.shapes_and_functions import all_graphs, merge_shapes, needed_ops, output_shapes
from qconvert.operators.typing import stated_output_type
from qconvert.operators.values import Values, apply
from qconvert.rewriting.rewriter import Rewriter
from qconvert.rules.validation.quantization import moved_quantization

#: Why a format or a runtime does not take an operator, given the tensors that it names; "" if it does.
Legal = Callable[[Mapping[str, Tensor], Op], str]


class Scope(NamedTuple):
    """Where an operator is to be written.

    Attributes:
        tensors: those that it names, and others.
        version: of the format, as its writers count it.
        metadata: of the graph.
    """

    tensors: Mapping[str, Tensor]
    version: int = 0
    metadata: Mapping[str, str] = MappingProxyType({})


#: The reason why a writer does not take an operator; "" if it does.
Condition = Callable[[Op, Scope], str]


@dataclass(frozen=True, slots=True)
class Conditional:
    """A writer that does not take every operator of its kind.

    Attributes:
        write: writes the operator.
        lacks: why it does not take one.
    """

    write: Callable[..., Any]
    lacks: Condition

    def __call__(self, *arguments: Any) -> Any:
        return self.write(*arguments)


def conditions(lacks: Condition) -> Callable[[Callable[..., Any]], Conditional]:
    """Decorate a writer that does not take every operator of its kind: what it does not take is lowered."""
    return lambda write: Conditional(write, lacks)


def with_conditions_of(other: Any, write: Callable[..., Any]) -> Callable[..., Any]:
    """Return a writer with the conditions of another one, which it calls for some operators."""
    return Conditional(write, other.lacks) if isinstance(other, Conditional) else write


def since(version: int) -> Condition:
    """Return the condition that a format has a kind from a version on."""
    return lambda op, scope: "" if scope.version >= version else f"{op.kind} needs version {version}, not {scope.version}"


def legality(
    writers: Mapping[str, Any], version: int = 0, metadata: Mapping[str, str] | None = None, also: Collection[str] = (), layout: str = ""
) -> Legal:
    """Return what says which operators a format takes.

    Args:
        writers: kind -> the function that writes it, perhaps a Conditional.
        version, metadata: see Scope.
        also: further kinds that are dealt with elsewhere.
        layout: the data_format of the format's operators, which the layout pass gives them; "" where writers take any.
    """

    def legal(tensors: Mapping[str, Tensor], op: Op) -> str:
        kind = op.kind
        write = writers.get(kind)
        if write is None:
            unheld = ", and no formula of it holds for these operands and attributes" if formulas_of(op) else ""
            return "" if kind in also else f"has no {kind}{unheld}"
        if layout and op.attributes.get("data_format", layout) != layout:
            return f"{op['data_format']} data (the layout pass has not run)"
        return write.lacks(op, Scope(tensors, version, metadata or {})) if isinstance(write, Conditional) else ""

    return legal


def require_legal(graph: Graph, legal: Legal, format: str) -> None:
    """Raise UnsupportedError for an operator that a writer does not take and that no formula could be put in the place of."""
    for _, inner in all_graphs(graph):
        for op in inner.ops:
            if reason := legal(inner.tensors, op):
                raise legality_error(op, reason, format)


def legality_error(op: Op, reason: str, format: str) -> UnsupportedError:
    """Return the error for one operator."""
    return UnsupportedError(f"{op.kind} cannot be written to {format}: {reason}", where=op.location, rule="variant-not-writable")


@dataclass(frozen=True, eq=False)
class Symbol(Values):
    """A tensor while a formula runs: types, shapes and constants are known, values are not."""

    emission: Emission
    name: str

    @property
    def tensor(self) -> Tensor:
        return self.emission.tensor(self.name)

    @property
    def shape(self) -> tuple[int | str, ...] | None:
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        return self.emission.real if self.tensor.is_quantized else self.tensor.dtype

    @property
    def constant(self) -> Array | None:
        return None if self.tensor.is_quantized else self.tensor.data

    def apply(self, kind: str, operands: Sequence[Any], attributes: Mapping[str, Any], outputs: int) -> Any:
        return self.emission.emit(kind, operands, attributes, outputs)


@dataclass(eq=False)
class Emission:
    """The operators that one formula becomes.

    Attributes:
        given: the tensors of the graph around it.
        real: the type of float values between quantized tensors.
        source: of the operators.
        hint: what names of tensors begin with.
        tensors: those that were added.
        ops: in their order.
    """

    given: Mapping[str, Tensor]
    real: str
    source: str
    hint: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    _names: Names = field(init=False)

    def __post_init__(self) -> None:
        self._names = Names(self.tensors, self.given)

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name] if name in self.tensors else self.given[name]

    def emit(self, kind: str, operands: Sequence[Any], attributes: Mapping[str, Any], outputs: int) -> Any:
        """Add an operator on symbols, arrays and numbers; return a Symbol, or a list of them."""
        spec = KINDS[kind]
        data = [item for place, item in enumerate(operands) if item is not None and spec.role(place) != "index"]
        dtype = next((item.dtype for item in data if isinstance(item, Symbol)), "")
        if not dtype:  # arrays that are made where only sizes or conditions are known say their type, Python's numbers do not
            dtype = next((canonical_dtype(item.dtype) for item in data if isinstance(item, np.ndarray)), self.real)
        names = tuple(self._name(item, spec.role(place), dtype) for place, item in enumerate(operands))
        results = tuple(self.add(Tensor(f"{self.hint}/{kind.lower()}", "", None)) for _ in range(outputs))
        op = Op(kind, names, results, attributes, self.source)
        read = {name: self.tensor(name) for name in names if name}
        kept = _kept_type(spec, op, read) or Tensor("", dtype, None)
        for place, (name, shape) in enumerate(zip(results, output_shapes(read, op), strict=True)):
            stated = stated_output_type(spec, attributes, place)
            like = Tensor("", stated, None) if stated else kept
            if spec.rule == "move" and like.is_quantized:
                like = replace(like, quantization=moved_quantization(read, op, like, shape))
                if not like.is_quantized:  # scales along an axis that the result does not have: it is moved in float
                    return self.emit(kind, [self._dequantize(item) for item in operands], attributes, outputs)
            self.tensors[name] = replace(like, name=name, shape=merge_shapes(name, shape, None), data=None)
        self.ops.append(op)
        symbols = [Symbol(self, name) for name in results]
        return symbols if outputs > 1 else symbols[0]

    def _dequantize(self, item: Any) -> Any:
        return self.emit("Dequantize", [item], {}, 1) if isinstance(item, Symbol) and item.tensor.is_quantized else item

    def _name(self, item: Any, role: str, dtype: str) -> str:
        """Return the name of an operand; of a number or an array a constant of the type that the others have."""
        if item is None:
            return ""
        if isinstance(item, Symbol):
            return item.name
        data = np.asarray(item)
        if role != "index" and data.dtype.kind in "iuf":
            if "int" in dtype and not fits_dtype(data, dtype):
                raise UnsupportedError(f"has {item} next to {dtype}", rule="operand-types")
            data = data.astype(numpy_dtype(dtype))
        for tensor in self.tensors.values():
            if tensor.data is not None and tensor.dtype == canonical_dtype(data.dtype) and np.array_equal(tensor.data, data):
                return tensor.name
        return self.add(Tensor(f"{self.hint}/constant", canonical_dtype(data.dtype), data.shape, data))

    def add(self, tensor: Tensor) -> str:
        """Add a tensor under its name or, if that is taken, a similar one, which is returned."""
        name = self._names.fresh(tensor.name)
        self.tensors[name] = replace(tensor, name=name)
        return name

    def finish(self, op: Op, results: Sequence[Symbol]) -> None:
        """Let the results be the outputs of the operator, with its fused activation."""
        activation = str(op.attributes.get("activation", ""))
        if activation:
            results = [self._apply_activation(results[0], activation), *results[1:]]
        taken: set[str] = set()
        for name, symbol in zip(op.outputs, results, strict=False):
            if not name:
                continue
            made = [place for place, item in enumerate(self.ops) if symbol.name in item.outputs]
            if symbol.tensor.is_quantized and not symbol.tensor.shares_quantization(self.given[name]):  # what was moved alone
                kind = "Requantize" if self.given[name].is_quantized else "Dequantize"
                self.ops.append(Op(kind, (symbol.name,), (name,), {}, self.source))
            elif symbol.dtype != self.given[name].dtype and "int" in symbol.dtype and "int" in self.given[name].dtype:  # of indices
                self.ops.append(Op("Cast", (symbol.name,), (name,), {"to": self.given[name].dtype}, self.source))
            elif not made or symbol.name in taken:
                self.ops.append(Op("Identity", (symbol.name,), (name,), {}, self.source))
            else:
                del self.tensors[symbol.name]
                self.ops = [item.with_names({symbol.name: name}) for item in self.ops]
            self.tensors[name] = self.given[name]
            taken.add(symbol.name)
        self.ops = needed_ops(self.ops, op.outputs)  # not what only absent outputs need
        named = {*op.outputs, *(name for item in self.ops for name in item.names)}
        for name in self.tensors.keys() - named:
            del self.tensors[name]
        self._keep_quantization_of_results(op)

    def _apply_activation(self, symbol: Symbol, activation: str) -> Symbol:
        low, high = ACTIVATIONS[activation]
        found: Symbol = self.emit("Relu", [symbol], {}, 1) if (low, high) == (0.0, None) else self.emit("Clip", [symbol, low, high], {}, 1)
        return found

    def _keep_quantization_of_results(self, op: Op) -> None:
        """What is moved into a quantized result is quantized like it; a value that others read too is so after a Quantize."""
        for place in reversed(range(len(self.ops))):
            item = self.ops[place]
            like = self.tensor(item.name)
            if kind_of(item).rule != "move" or not like.is_quantized:
                continue
            if like.per_tensor is None:
                self._quantize_after(place)
                continue
            stored: dict[str, str] = {}
            for name in kind_of(item).moved_inputs(item):
                if name not in self.tensors or name in op.outputs or self.tensors[name].data is not None:
                    continue
                moved = replace(self.tensors[name], dtype=like.dtype, quantization=like.quantization)
                if like.quantization == self.tensors[name].quantization or not any(
                    name in other.inputs for other in self.ops if other is not item
                ):
                    self.tensors[name] = moved
                elif name not in stored:
                    stored[name] = self.add(replace(moved, name=f"{name}/quantized"))
            made = [Op("Quantize", (name,), (result,), {}, self.source) for name, result in stored.items()]
            self.ops[place : place + 1] = [*made, item.with_names(stored)]

    def _quantize_after(self, place: int) -> None:
        """Let an operator that moves float values into results with scales along an axis write floats, which are quantized after it."""
        item = self.ops[place]
        if self.tensor(kind_of(item).moved_inputs(item)[0]).is_quantized:
            return
        floats = {
            name: self.add(Tensor(f"{name}/float", self.real, self.tensor(name).shape)) for name in kind_of(item).results_of(item) if name
        }
        made = [Op("Quantize", (real,), (name,), {}, self.source) for name, real in floats.items()]
        self.ops[place : place + 1] = [item.with_names(floats), *made]


def _kept_type(kind: Kind, op: Op, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Return a tensor of the type that an operator keeps, which moves elements, or chooses some of one quantization; None of others."""
    if kind.rule == "move":
        return tensors[kind.moved_inputs(op)[0]]
    chosen = [tensors[name] for name in kind.data(op) if tensors[name].dtype != "bool"] if kind.chooses else []
    is_shared = bool(chosen) and chosen[0].is_quantized and all(chosen[0].shares_quantization(other) for other in chosen[1:])
    return chosen[0] if is_shared else None


class Lowered(NamedTuple):
    """A graph without operators that are not legal and have a formula.

    Attributes:
        graph: the graph.
        whole: id of an operator that was emitted -> the operator that it is a part of.
        reasons: id of an operator that was lowered -> why it was not legal.
    """

    graph: Graph
    whole: Mapping[int, Op]
    reasons: Mapping[int, str]


def lower(
    graph: Graph, legal: Legal, *, real: Callable[[Graph, Op], str] = lambda graph, op: "float32", prefers: Sequence[Formula] = ()
) -> Lowered:
    """Put formulas in the place of operators that are not legal; what has no formula that helps stays.

    An operator of a formula that is not legal is lowered in its turn, by formulas other than those being expanded: so it terminates.

    Args:
        graph: with its functions, which are lowered too.
        legal: says why an operator is not.
        real: the type of the float values between the operators that one becomes, where its tensors are quantized.
        prefers: formulas that are tried before those of all formats, whether or not they are among these.
    """
    whole: dict[int, Op] = {}
    reasons: dict[int, str] = {}
    functions = {name: lower(inner, legal, real=real, prefers=prefers) for name, inner in graph.functions.items()}
    for item in functions.values():
        whole.update(item.whole)
        reasons.update(item.reasons)
    if any(functions[name].graph is not inner for name, inner in graph.functions.items()):
        graph = replace(graph, functions={name: item.graph for name, item in functions.items()})
    rewriter = Rewriter(graph)
    for op in rewriter:
        if reason := legal(graph.tensors, op):
            found = lower_op(graph.tensors, op, legal, real(graph, op), prefers)
            if found is None:
                continue
            rewriter.replace(op, *found.ops)
            for tensor in found.tensors.values():
                if tensor.name not in op.outputs:
                    rewriter.define(tensor)
            whole.update((id(part), op) for part in found.ops)
            reasons[id(op)] = reason
    return Lowered(rewriter.finish(), whole, reasons)


def lower_op(
    tensors: Mapping[str, Tensor],
    op: Op,
    legal: Legal,
    real: str = "float32",
    prefers: Sequence[Formula] = (),
    within: tuple[Formula, ...] = (),
) -> Emission | None:
    """Return what one operator becomes by the first of its formulas of which all is legal in the end; None if there is none."""
    formulas = formulas_of(op, prefers)
    if not set(formulas).isdisjoint(within[:-1]):  # a way around, such as Erf by a Gelu that is computed by an Erf, loses digits
        return None
    for formula in formulas:
        if not formula.is_emitted or formula in within:
            continue
        found = emit_formula(tensors, op, formula, real)
        if found is None:
            continue
        added, ops = dict(found.tensors), list[Op]()
        around = ChainMap(added, tensors)  # type: ignore[arg-type]  # which is only read through
        for part in found.ops:
            if not legal(around, part):
                ops.append(part)
                continue
            inner = lower_op(around, part, legal, real, prefers, (*within, formula))
            if inner is None:
                break
            ops += inner.ops
            added |= inner.tensors
        else:
            return Emission(tensors, real, op.source, found.hint, added, ops)
    return None


def emit_formula(tensors: Mapping[str, Tensor], op: Op, formula: Formula, real: str) -> Emission | None:
    """Return the operators of one formula; None if it does not hold."""
    attributes = formula.attributes(op)
    if attributes is None:
        return None
    emission = Emission(tensors, real, op.source, op.name)
    try:
        operands = [Symbol(emission, name) if name else None for name in op.inputs]
        if formula.in_float:
            operands = [apply("Dequantize", item) if item is not None and item.tensor.is_quantized else item for item in operands]
        found = formula.function(*operands, **attributes)
    except QConvertError:  # shapes or types that do not fit
        return None
    results = list(found) if isinstance(found, tuple) else [found]
    if not all(isinstance(item, Symbol) for item in results):
        return None
    emission.finish(op, results)
    return emission
