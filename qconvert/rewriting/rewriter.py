"""The Rewriter: what every pass needs to change a graph, and the record of what became of each tensor."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import canonical_dtype
from qconvert.errors import UnsupportedError
from qconvert.graph import Array, Attribute, Graph, Op, Producers, Quantization, Tensor
from qconvert.graph.correspondence import GONE, Correspondence, Relation, compose
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import needed_ops
from qconvert.operators.sizes import UNKNOWN
from qconvert.rewriting.parts import Match, Pattern, match_producer

#: Operators that may come into one graph in the place of calls: functions that call others twice double at each step.
MOST_INLINED = 50_000


class Rewriter:
    """A graph while a pass rewrites it.

    A pass walks over the operators and says what takes the place of some of them; all others stay:

        rewriter = Rewriter(graph)
        for op in rewriter.of_kind("HardSwish"):
            gate = rewriter.add(f"{op.name}/gate", graph[op.inputs[0]])
            rewriter.replace(op, Op("HardSigmoid", op.inputs, (gate,)), Op("Mul", (op.inputs[0], gate), op.outputs))
        return rewriter.finish(), ("…",)

    Names are free, constants are tensors, and the correspondence of the tensors is recorded (graph/correspondence.py).

    Attributes:
        graph: the graph as it was.
        producers: the operator that writes each of its tensors; graph inputs and constants are absent.
        readers: the operators that read each tensor, in order, once for each time they read it; tensors that nothing reads are absent.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._tensors: dict[str, Tensor] = {}
        self._names = graph.names(self._tensors)
        self._instead: dict[int, tuple[Op, ...]] = {}
        self._emitted: dict[int, list[Op]] = {}  # before the operator with this index
        self._place = self._inlined = 0
        self._forwarded: dict[str, str] = {}
        self._renamed: dict[str, str] = {}
        self._relations: dict[str, Relation] = {}
        self._shared: dict[tuple[object, ...], str] = {}

    @cached_property
    def producers(self) -> Producers:
        return self.graph.producers()

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Op]]:
        return self.graph.consumers()

    def __iter__(self) -> Iterator[Op]:
        """Yield the operators of the graph that were not removed meanwhile; emit() puts operators before the one that is visited."""
        for place, op in enumerate(self.graph.ops):
            self._place = place
            if self._instead.get(id(op)) != ():
                yield op
        self._place = len(self.graph.ops)

    def of_kind(self, *kinds: str) -> Iterator[Op]:
        """Yield the operators that have one of the kinds, as the walk over all does."""
        return (op for op in self if op.kind in kinds)

    def __getitem__(self, name: str) -> Tensor:
        """Return the tensor as it is now: an added or changed one, or that of the graph."""
        return self._tensors[name] if name in self._tensors else self.graph[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or name in self.graph

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors as they are now, those that were added or changed before those of the graph."""
        return ChainMap(self._tensors, self.graph.tensors)  # type: ignore[arg-type]  # which is only read through

    def match(self, pattern: Pattern, name: str) -> Match | None:
        """Return how a pattern fits the operator that computes a tensor of the graph, whatever else reads what is between; None if it does
        not."""
        return match_producer(self.graph, self.producers, pattern, name)

    def only_reader(self, name: str, *kinds: str) -> Op | None:
        """Return the one operator, of one of the kinds if any is given, that reads the tensor, once, if no user sees it; else None."""
        readers = self.readers[name]
        is_alone = len(readers) == 1 and name not in self.graph.public
        return readers[0] if is_alone and (not kinds or readers[0].kind in kinds) else None

    def is_computed(self, name: str) -> bool:
        """Whether an operator that computes gives a tensor, or one whose elements it has; else it is an input, a constant or a state."""
        writer = self.producers.find(name)
        while writer is not None and kind_of(writer).rule == "move":
            writer = self.producers.find(writer.inputs[0])
        return writer is not None

    def is_read_once(self, name: str) -> bool:
        """Whether one operator reads the tensor, once, and no user sees it."""
        return self.only_reader(name) is not None

    # operators

    def emit(self, *ops: Op) -> None:
        """Put operators before the one that is visited: at the start before the walk, at the end after it."""
        self._emitted.setdefault(self._place, []).extend(ops)

    def append(self, *ops: Op) -> None:
        """Put operators at the end, wherever the walk is."""
        self._emitted.setdefault(len(self.graph.ops), []).extend(ops)

    def replace(self, op: Op, *ops: Op) -> None:
        """Put operators, or none, in the place of one of the graph's, visited or not."""
        self._instead[id(op)] = ops

    def remove(self, op: Op) -> None:
        """Take an operator out."""
        self._instead[id(op)] = ()

    def is_replaced(self, op: Op) -> bool:
        """Whether replace() or remove() was called with the operator."""
        return id(op) in self._instead

    def run_in_float(self, op: Op, inputs: Sequence[str], suffix: str, **attributes: Attribute) -> tuple[str, ...]:
        """Let an operator compute float values, with a Quantize after it for each quantized result; return its results.

        Args:
            op: one of the graph's.
            inputs: what it reads, in float.
            suffix: of the names of its float results.
            attributes: those that change.
        """
        results = [
            name if not self.graph.is_quantized(name) else self.add_float(f"{name}/{suffix}", self.graph[name]) for name in op.outputs
        ]
        pairs = zip(results, op.outputs, strict=True)
        quantizes = (op.derive("Quantize", (real,), (name,)) for real, name in pairs if real != name)
        self.replace(op, replace(op.with_attributes(**attributes), inputs=tuple(inputs), outputs=tuple(results)), *quantizes)
        return tuple(results)

    def inline(self, function: Graph, inputs: Sequence[str], outputs: Sequence[str], prefix: str) -> list[Op]:
        """Return the operators of a function as they stand in this graph, and add its other tensors.

        Args:
            function: the function.
            inputs: what it is given.
            outputs: what its outputs become; "" for one that nobody reads.
            prefix: stands before the names of its other tensors; "" for a region, which has them from the graph around, and
                constants that others have too.

        Raises:
            UnsupportedError: there would be more operators than any network has.
        """
        self._inlined += len(function.ops)
        if self._inlined > MOST_INLINED:
            raise UnsupportedError(
                f"inlining the functions that are called would give more than {MOST_INLINED:,} operators", rule="too-many-operators"
            )
        names = dict(zip(function.inputs, inputs, strict=True))
        written = {name for op in function.ops for name in op.outputs}
        ends = [pair for pair in zip(function.outputs, outputs, strict=True) if pair[1]]
        names |= {name: outer for name, outer in ends if name in written}
        names |= {name: self._add_inner(tensor, prefix) for name, tensor in function.tensors.items() if name not in names}
        ops = [op.with_names(names) for op in function.ops]
        return ops + [Op("Identity", (names[name],), (outer,)) for name, outer in ends if names[name] != outer]

    def _add_inner(self, tensor: Tensor, prefix: str) -> str:
        """Add a tensor of a function, if the graph does not have it; return its name in the graph."""
        known = self[tensor.name] if not prefix and tensor.is_constant and tensor.name in self else None
        if known is not None and known.data is tensor.data and known.shares_quantization(tensor):
            return tensor.name
        return self.add(f"{prefix}/{tensor.name}" if prefix else tensor.name, tensor, data=tensor.data)

    # tensors

    def add(self, wanted: str, like: Tensor, **changes: Any) -> str:
        """Add a tensor under a new name and return the name.

        Args:
            wanted: the name; a number is appended if it is taken.
            like: a tensor whose type, shape and quantization it has, but not its data.
            changes: other fields of it, such as shape=(1, 4).
        """
        name = self._names.fresh(wanted)
        self._tensors[name] = replace(like, **{"name": name, "data": None, **changes})
        return name

    def compute(self, kind: str, inputs: Sequence[str], wanted: str, like: Tensor, source: str = "", **attributes: Attribute) -> str:
        """Put an operator with a new result before the one that is visited, and return the name of the result.

        Args:
            kind, inputs, attributes: of the operator.
            wanted, like: the name of the result, and a tensor whose type, shape and quantization it has; see add().
            source: where the operator comes from.
        """
        name = self.add(wanted, like)
        self.emit(Op(kind, tuple(inputs), (name,), attributes, source))
        return name

    def compute_plain(self, kind: str, inputs: Sequence[str], like: Tensor, dtype: str, source: str = "", **attributes: Attribute) -> str:
        """Put an operator of plain numbers before the one that is visited, and return the name of its result; see compute().

        Args:
            kind, inputs, source, attributes: of the operator.
            like: gives the result its shape, and its name the first part.
            dtype: of the result.
        """
        return self.compute(kind, inputs, f"{like.name}/{kind.lower()}", Tensor("", dtype, like.shape), source, **attributes)

    def add_float(self, wanted: str, like: Tensor) -> str:
        """Add a tensor of float32 with the shape of another under a new name and return the name; see add()."""
        return self.add(wanted, like, dtype="float32", quantization=None)

    def constant(self, wanted: str, data: Array | Sequence[int] | float, dtype: str = "", quantization: Quantization | None = None) -> str:
        """Add a constant under a new name and return the name.

        Args:
            wanted: the name; a number is appended if it is taken.
            data: its stored values; a list is int64, a number float32.
            dtype: the storage type, if numpy has none of its own for it.
            quantization: of integers.
        """
        if not isinstance(data, np.ndarray):
            data = np.array(data, np.float32 if isinstance(data, float) else np.int64)
        name = self._names.fresh(wanted)
        self._tensors[name] = Tensor(name, dtype or canonical_dtype(data.dtype), data.shape, data, quantization)
        return name

    def shared_constant(self, wanted: str, data: Array, dtype: str = "", quantization: Quantization | None = None) -> str:
        """Return the name of a constant that this has added before with the same content, or else what constant() gives."""
        key = (dtype or data.dtype.name, data.shape, data.tobytes(), quantization and quantization.key)
        if key not in self._shared:
            self._shared[key] = self.constant(wanted, np.asarray(data), dtype, quantization)
        return self._shared[key]

    def clip(self, data: str, bounds: Sequence[float | None], result: str, source: str = "") -> Op:
        """Return a Clip, whose bounds are added as constants; where a bound is None it has none.

        Args:
            data: the tensor that is clipped.
            bounds: the lower and the upper one.
            result: the tensor that it gives, with whose name those of the bounds begin.
            source: where it comes from.
        """
        pairs = zip(("lowest", "highest"), bounds, strict=True)
        names = ["" if bound is None else self.constant(f"{result}/{word}", float(bound)) for word, bound in pairs]
        return Op("Clip", (data, *names), (result,), {}, source)

    def pad(self, data: Tensor, widths: Sequence[int], result: str, source: str = "") -> str:
        """Put a Pad with zero before the operator that is visited, and return the name of what it gives.

        Args:
            data: the tensor that is padded.
            widths: before each of its axes, then after each.
            result: with whose name those of the new tensors begin.
            source: where it comes from.
        """
        sides = zip(data.shape or (), widths[: len(widths) // 2], widths[len(widths) // 2 :], strict=True)
        shape = tuple(size + low + high if isinstance(size, int) else size if not (low or high) else UNKNOWN for size, low, high in sides)
        amounts = self.constant(f"{result}/pads", list(widths))
        return self.compute("Pad", (data.name, amounts), f"{result}/padded", replace(data, shape=shape), source)

    def copy(self, name: str) -> str:
        """Append an Identity of a tensor, and return the name of what it gives."""
        copy = self.add(f"{name}/kept", self[name])
        self.append(Op("Identity", (name,), (copy,)))
        return copy

    def dequantize(self, name: str, wanted: str, source: str = "") -> str:
        """Put a Dequantize before the operator that is visited, and return the name of what it gives.

        Args:
            name: of the tensor.
            wanted: the name of its float values; a number is appended if it is taken.
            source: where the operator comes from.
        """
        return self.compute("Dequantize", (name,), wanted, replace(self[name], dtype="float32", quantization=None), source)

    def fresh(self, wanted: str) -> str:
        """Return a name that is free; define() gives it a tensor."""
        return self._names.fresh(wanted)

    def define(self, tensor: Tensor, *, permutation: tuple[int, ...] = (), shift: int | None = None) -> str:
        """Give the tensor's name this tensor: a new one, or one of the graph with another type, shape or quantization. Return the name.

        Args:
            tensor: what the name stands for from now on.
            permutation: of the axes, where they are in another order than before.
            shift: what was added to the stored integers, where the float values move (see Relation).
        """
        self._tensors[tensor.name] = tensor
        if permutation or shift is not None:
            self._relations[tensor.name] = Relation(tensor.name, permutation, shift)
        return tensor.name

    def replace_constant(self, old: str, tensor: Tensor, wanted: str) -> str:
        """Add a constant with other values than an old one has, under the name of that where one operator alone reads it; return the name.

        Args:
            old: the name of the old one; "" if there is none.
            tensor: the new one.
            wanted: its name if the old one stays.
        """
        if not old or not self.is_read_once(old):
            return self.add(wanted, tensor, data=tensor.data)
        self.forget((old,))
        return self.define(replace(tensor, name=old))

    def forward(self, name: str, other: str) -> None:
        """Let every operator that reads the tensor `name` read `other`, which has the same stored values."""
        self._forwarded[name] = other

    def rename(self, name: str, new: str) -> None:
        """Give a tensor, whoever writes and reads it, another name, for which a tensor is there already."""
        self._renamed[name] = new

    def resolve(self, name: str) -> str:
        """Return the name of the tensor that readers of `name` read, as forward() and rename() say so far."""
        while name in self._forwarded or name in self._renamed:
            name = self._forwarded[name] if name in self._forwarded else self._renamed[name]
        return name

    def relate(self, name: str, other: str, *, permutation: tuple[int, ...] = (), shift: int | None = None) -> None:
        """Record that the values of the graph's tensor `name` are those of `other` from now on."""
        self._relations[name] = Relation(other, permutation, shift)

    def forget(self, names: Iterable[str]) -> None:
        """Record that tensors keep their names and not their values."""
        self._relations.update((name, GONE) for name in names)

    # result

    @property
    def replaced(self) -> int:
        """How many operators of the graph have others in their place, as replace() says so far."""
        return sum(map(bool, self._instead.values()))

    @property
    def is_changed(self) -> bool:
        return bool(self._instead or self._emitted or self._tensors or self._forwarded or self._renamed)

    def finish(self, *, prune: bool | Callable[[Op], bool] = False, **changes: Any) -> Graph:
        """Return the rewritten graph, without the tensors that nothing names any more; the graph itself if nothing was changed.

        Args:
            prune: whether operators whose results nothing needs go too; a predicate says which of them.
            changes: other fields of the graph, such as metadata.
        """
        if not (self.is_changed or prune or changes):
            return self.graph
        ops = [new for index, op in enumerate(self.graph.ops) for new in (*self._emitted.get(index, ()), *self._instead.get(id(op), (op,)))]
        ops += self._emitted.get(len(self.graph.ops), ())
        if self._forwarded or self._renamed:
            ops = [self._with_names(op) for op in ops]
        graph = self.graph.evolve(tensors=self._tensors.values(), ops=ops, **changes)
        converted = {op.name: op.inputs[0] for op in ops if kind_of(op).dequantizes or kind_of(op).copies} if prune else {}
        if prune:
            graph = graph.evolve(ops=needed_ops(graph.ops, graph.public, None if prune is True else prune))
        if not (self.is_changed or changes) and (len(graph.ops), len(graph.tensors)) == (len(self.graph.ops), len(self.graph.tensors)):
            return self.graph
        return replace(graph, correspondence=compose(self.graph.correspondence, self._correspondence(graph, converted)))

    def finish_with(
        self, note: Callable[[int], str], count: int | None = None, *, prune: bool | Callable[[Op], bool] = False
    ) -> tuple[Graph, tuple[str, ...]]:
        """Return the rewritten graph and a note, or the graph itself and none if nothing was done.

        Args:
            note: gives, for the number of changes, what was done.
            count: that number; by default how many operators were replaced.
            prune: see finish().
        """
        count = self.replaced if count is None else count
        return (self.finish(prune=prune), (note(count),)) if count else (self.graph, ())

    def _with_names(self, op: Op) -> Op:
        inputs = tuple(self.resolve(name) for name in op.inputs)
        outputs = tuple(self._renamed.get(name, name) for name in op.outputs)
        return op if (inputs, outputs) == (op.inputs, op.outputs) else replace(op, inputs=inputs, outputs=outputs)

    def _correspondence(self, graph: Graph, converted: Mapping[str, str]) -> Correspondence:
        """Return what became of the tensors of the graph: those that were renamed or related, and those that are gone.

        Args:
            graph: the rewritten one.
            converted: result -> the input of its Dequantize or Identity, with the values of a result that was pruned.
        """
        found = dict(self._relations)
        renamed = (*self._forwarded, *self._renamed)
        found |= {name: Relation(self.resolve(name)) for name in renamed if name in self.graph and name not in found}
        for name in self.graph.tensors:
            if name not in graph and name not in found:
                source = name
                while source in converted and source not in graph:
                    source = converted[source]
                found[name] = GONE if source in self._relations else Relation(source)
        return {name: item if item.tensor in graph else GONE for name, item in found.items()}
