"""The canonical graph while a reader builds it, and one operator of the file as the read functions of every format see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic.polynomials import number
from qconvert.errors import InvalidModelError, UnsupportedError, format_count, format_some, format_verb
from qconvert.evaluate.known_values import KnownValues
from qconvert.graph import Array, Graph, Names, Op, Producers, Quantization, Shape, Signature, Tensor, canonical_dtype
from qconvert.graph.metadata import ASSUMED
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import merge_shapes, needed_ops, output_shapes
from qconvert.operators.sizes import UNKNOWN, Shapes, failure, is_compatible


class Draft:
    """The canonical graph while it grows: tensors by name and operators in order.

    Args:
        reserved: names that the file gives to values; no other tensor gets one of them.
        outer: of a function, the draft of the graph that names it.

    Attributes:
        depth: how many graphs stand around this one.
    """

    def __init__(self, reserved: Collection[str] = (), outer: Draft | None = None) -> None:
        self._outer = outer
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.producers = Producers()
        self.readers: dict[str, list[Op]] = {}
        #: Tensors whose stated scales no kernel uses: scales and zero points as the file has them.
        self.ignored_scales: dict[str, list[tuple[float, int]]] = {}
        #: Tensors whose stated scales mean nothing, and why: they may be moved, but nothing can compute on them.
        self.unsound: dict[str, str] = {}
        #: Tensors of integers that have a quantization of their own, or on none, whatever their integers were on before.
        self.relabelled: Mapping[str, Quantization | None] = {} if outer is None else outer.relabelled
        #: Tensors of complex numbers, which are two real parts along a last axis here.
        self.complex: set[str] = set()
        #: What is known of values before the model runs.
        self.known = KnownValues(self.tensors, self.producers)
        self._variants: dict[tuple[str, str], str] = {}
        self._names = Names(self.tensors, reserved)
        self._positions: dict[int, int] = {}  # id of each operator -> where it stands
        #: What lives from one run to the next, by name: see Graph.states.
        self.states: dict[str, Tensor] = {}
        #: Tensors that an operator keeps from one run to the next (TFLite's is_variable).
        self.variables: set[str] = set()
        #: Operators of the file, by their sources, that compute other shapes than it states for their outputs.
        self.misstated: dict[str, None] = {} if outer is None else outer.misstated
        #: Constants that the file stores without their zeros.
        self.densified: list[str] = []
        #: Functions that operators name, by name; the drafts of functions share it.
        self.functions: dict[str, Graph] = {} if outer is None else outer.functions

    @property
    def outermost(self) -> Draft:
        """The draft of the graph that no other stands around; an attribute would keep each draft until the next garbage collection."""
        return self if self._outer is None else self._outer.outermost

    def add(self, wanted: str, dtype: str, shape: Shape | None, data: Array | None = None, quantization: Quantization | None = None) -> str:
        """Adds a tensor under `wanted`, or that with a number if the name is taken; returns its name."""
        name = self._names.fresh(wanted)
        self.tensors[name] = Tensor(name, dtype, shape, data, quantization)
        return name

    def add_exactly(
        self, name: str, dtype: str, shape: Shape | None, data: Array | None = None, quantization: Quantization | None = None
    ) -> None:
        """Adds the tensor that the file calls `name`."""
        self.tensors[name] = Tensor(name, dtype, shape, data, quantization)

    def check_op(self, op: Op) -> Op:
        """The operator, if its kind allows its inputs, outputs and attributes; shape rules rely on that.

        Raises:
            InvalidGraphError: it does not.
        """
        for rule, reason in kind_of(op).problems(op):
            raise failure(op, reason, rule=rule)
        return op

    def shapes(self, op: Op) -> Shapes:
        """The shapes that the operator gives its outputs, as far as they are known before the model runs."""
        return output_shapes(self.tensors, op, self.known.sizes.dimensions)

    def append(self, op: Op, shapes: Shapes | None = None) -> None:
        """Appends an operator. Its outputs have the shapes that it gives them, and what these leave open is as the file states it.

        LiteRT and onnxruntime compute shapes again, whatever a file states of them.

        Args:
            op: that check_op() allows where `shapes` are given.
            shapes: what shapes() says of it; None where that was not asked.
        """
        if shapes is None:
            shapes = self.shapes(self.check_op(op))
        self._positions[id(op)] = len(self.ops)
        self.ops.append(op)
        self.producers.update((name, op) for name in op.outputs if name)
        for name in filter(None, op.inputs):
            self.readers.setdefault(name, []).append(op)
        for name, shape in zip(op.outputs, shapes, strict=True):
            if not name:
                continue
            stated = self.tensors[name].shape
            if not is_compatible(stated, shape):
                self.misstated[op.source] = None
                stated = None
            if stated is None or UNKNOWN in stated:
                self.tensors[name] = replace(self.tensors[name], shape=merge_shapes(name, shape, stated))

    def assumption_note(self) -> dict[str, str]:
        """The metadata entry that says of what the file states its operators compute something else; none where there is nothing."""
        if not self.misstated:
            return {}
        count, some = len(self.misstated), format_some([*self.misstated], 3)
        operators = f"{format_count(count, 'operator')} ({some}) {format_verb(count, 'are')}"
        return {ASSUMED: json.dumps([f"the result of {operators} of another shape than the file states; read as the operator computes it"])}

    def withdraw(self, count: int, functions: int) -> None:
        """Takes the operators after the first `count` back, and the functions after the first `functions`."""
        for name in list(self.functions)[functions:]:
            del self.functions[name]
        for op in reversed(self.ops[count:]):
            del self._positions[id(op)]
            for name in filter(None, op.inputs):
                self.readers[name].pop()
            for name in op.outputs:
                self.producers.pop(name, None)
        del self.ops[count:]

    def exchange(self, op: Op, new: Op) -> None:
        """Puts `new`, with the same outputs and the same inputs but for constants, in the place of an operator."""
        position = self._positions.pop(id(op))
        for name in filter(None, op.inputs):
            self.readers[name] = [new if other is op else other for other in self.readers[name]]
        self._positions[id(new)] = position
        self.ops[position] = new
        self.producers.update((name, new) for name in new.outputs if name)

    def variant(self, name: str, key: str, data: Array, quantization: Quantization | None) -> str:
        """A constant that is another form of the constant `name`, made once for each `key`."""
        if (name, key) not in self._variants:
            self._variants[name, key] = self.add(f"{name}/{key}", canonical_dtype(data.dtype), data.shape, data, quantization)
        return self._variants[name, key]

    def variant_of(self, name: str, key: str, make: Callable[[], Array]) -> str:
        """The same without a quantization, computed only if it is not there yet."""
        return self._variants.get((name, key)) or self.variant(name, key, make(), None)

    def fold_constant(self, name: str) -> str:
        """The tensor `name` as a constant where its value is known before the model runs, else as it is."""
        data = None if self.tensors[name].data is not None else self.known.get(name)
        return name if data is None else self.variant(name, "folded", data, None)

    def prune(self, outputs: Collection[str]) -> None:
        """Drops the operators that no output depends on."""
        self.ops = needed_ops(self.ops, outputs)

    def distinct(self, outputs: Sequence[str]) -> list[str]:
        """Names of graph outputs, each once: a tensor that the file gives out again is given out as an Identity of it."""
        found: dict[str, None] = {}
        for name in outputs:
            if name in found:
                tensor = self.tensors[name]
                name = self.add(name, tensor.dtype, tensor.shape, None, tensor.quantization)
                self.append(Op("Identity", (tensor.name,), (name,)))
            found[name] = None
        return list(found)

    def _settle_names(self, outputs: Collection[str]) -> None:
        """Gives the name of a constant that no operator, and no output of the graph, uses any more to its first variant."""
        used = {name for op in self.ops for name in op.names}.union(outputs)
        renamed: dict[str, str] = {}
        given: set[str] = set()
        for (original, _), variant in self._variants.items():
            if original not in used and original not in given and variant in used:
                renamed[variant] = original
                given.add(original)
                self.tensors[original] = replace(self.tensors.pop(variant), name=original)
        if renamed:
            self.ops = [op.with_names(renamed) for op in self.ops]

    def finish(self, name: str, inputs: Iterable[str], outputs: Sequence[str], metadata: Mapping[str, str], **fields: Any) -> Graph:
        """The graph of what was read, without the operators that no output, nor one of a signature, depends on.

        Args:
            name, inputs, outputs, metadata, fields: of the graph.
        """
        signatures: Iterable[Signature] = fields.get("signatures", ())
        self.prune({*outputs, *(result for found in signatures if not found.function for result in found.outputs.values())})
        self._settle_names(outputs)
        graph = Graph(name, self.tensors, (), tuple(inputs), tuple(outputs), metadata=metadata, **fields)
        return graph.evolve(ops=self.ops)


class OperatorReading:
    """One operator of a file that is being read.

    Attributes:
        draft: the graph that it is read into.
        source: its type with its name or position, for messages.
        inputs: names of its inputs; "" for an absent one.
        outputs: names of its outputs.
    """

    def __init__(self, draft: Draft, kind: str, source: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self.draft = draft
        self._kind = kind
        self.source = source
        self.inputs = inputs
        self.outputs = outputs

    def has(self, index: int) -> bool:
        """Whether input `index` is there."""
        return index < len(self.inputs) and bool(self.inputs[index])

    def input(self, index: int) -> str:
        """The name of input `index`; raises InvalidModelError if it is absent."""
        if not self.has(index):
            raise self.invalid(f"input {index} is missing", rule="input-missing")
        return self.inputs[index]

    def tensor(self, index: int = 0) -> Tensor:
        """The canonical tensor of input `index`."""
        return self.draft.tensors[self.input(index)]

    def lookup(self, name: str) -> Tensor:
        """The canonical tensor called `name`."""
        return self.draft.tensors[name]

    def producer(self, name: str, *kinds: str) -> Op | None:
        """The operator that computes the tensor called `name`, of one of `kinds` if these are given; None if there is none."""
        return self.draft.producers.find(name, *kinds)

    def axis(self, value: int, rank: int) -> int:
        """A possibly negative axis as one from 0 to rank - 1."""
        if not -rank <= value < rank:
            raise self.invalid(f"axis {value} is outside of a tensor of rank {rank}", rule="axis-out-of-range")
        return value % rank

    def constant_sizes(self, data: str, sizes: str) -> list[int] | None:
        """The sizes of a Reshape of `data` as a constant, where `sizes` are computed at run time: 0 copies a size, one -1 is what is left.

        None if a constant cannot say them, or if not even their number is known.
        """
        known = self.draft.known.sizes
        forms, shape = known.get(sizes), self.draft.tensors[data].shape
        if forms is None or shape is None or 0 in shape:
            return None
        numbers = [number(form) for form in forms]
        open_axes = [axis for axis, value in enumerate(numbers) if value is None]
        copied = [axis for axis in open_axes if axis < len(shape) and known.size(shape[axis]) == forms[axis]]
        if 0 in numbers or numbers.count(-1) > 1:
            return None
        others = [axis for axis in open_axes if axis not in copied]
        rest = others if len(open_axes) != 1 or -1 in numbers else open_axes
        if len(rest) + numbers.count(-1) > 1:
            return None
        return [-1 if axis in rest else 0 if value is None else value for axis, value in enumerate(numbers)]

    def const(self, data: Any, hint: str = "constant", quantization: Quantization | None = None) -> str:
        """Adds a constant named after the first output and `hint`; returns its name."""
        array = np.asarray(data)
        return self.draft.add(f"{self.outputs[0]}/{hint}", canonical_dtype(array.dtype), array.shape, array, quantization)

    def list64(self, values: Iterable[int], hint: str) -> str:
        """Adds a list of int64: a shape, axes, pads …"""
        return self.const(np.array(list(values), np.int64), hint)

    def variant(self, index: int, key: str, data: Array, quantization: Quantization | None) -> str:
        """Constant input `index` in canonical form: `data` in another order of axes or another type.

        The variant takes over the constant's name if nothing else uses the original; `key` says what was changed.
        """
        return self.draft.variant(self.input(index), key, data, quantization)

    def unsupported_error(self, what: str, *, rule: str = "variant-not-covered") -> UnsupportedError:
        """Return the error for something that the format allows and qconvert does not cover."""
        return UnsupportedError(f"{self._kind} with {what} is not covered", where=self._where(), rule=rule)

    def invalid(self, what: str, *, remedy: str = "", rule: str = "invalid-operator") -> InvalidModelError:
        """Return the error for something that the format does not allow."""
        return InvalidModelError(what, remedy=remedy, where=self._where(), rule=rule)

    def _where(self) -> str:
        return f"{self.source} ({self.outputs[0]!r})" if self.outputs else self.source
