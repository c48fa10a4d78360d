"""What the metadata of an ONNX file note: operators that are decomposed into several nodes, and quantizations that no node states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qconvert.arithmetic.kernels import dequantize_float32
from qconvert.formats.reading.notes import Stated, quantization_of, restore_operators, stated_quantization
from qconvert.graph import Array, Graph, Op, Quantization, Tensor, integer_range
from qconvert.graph.metadata import RELABELLED, read_entry
from qconvert.operators import is_dynamic, kind_of


def apply_noted_quantizations(graph: Graph, labelled: Graph, ops: Sequence[Op]) -> Graph:
    """The graph with the quantizations that operators need.

    Args:
        graph: as read, with `ops` in it.
        labelled: its tensors with the quantizations that notes state.
        ops: the operators that were noted.
    """
    return _Quantizations(graph, labelled, ops).result()


class _Quantizations:
    """The operators one after the other, with what stands between those with quantizations and those on plain integers."""

    def __init__(self, graph: Graph, labelled: Graph, ops: Sequence[Op]) -> None:
        self._graph = graph
        self._noted = {id(op) for op in ops}
        # Data movement is the same with any quantization; it takes that of its data.
        self._fixed = {id(op) for op in ops if kind_of(op).rule != "move"}
        given = {name for op in ops if id(op) in self._fixed for name in op.names if name}
        self._found = {
            name: quantization for name in given if graph[name].quantization is None and (quantization := labelled[name].quantization)
        }
        self._added: dict[str, Tensor] = {}
        self._names = graph.names(self._added)
        self._plain: dict[str, str] = {}  # tensor with a quantization -> the same integers without one
        self._whole: dict[str, str] = {}  # from right to left, also for those that the reader made
        self._same: dict[str, str] = {}  # a Reinterpret's result -> its input, where both have one quantization now
        self._ops: list[Op] = []

    def result(self) -> Graph:
        for op in reversed(self._graph.ops):
            self._look_back(op)
        for op in self._graph.ops:
            if id(op) in self._fixed:
                self._append(op)
            else:
                self._settle(op)
        known = [replace(self._graph[name], quantization=quantization) for name, quantization in self._found.items()]
        return self._graph.evolve(tensors=[*known, *self._added.values()], ops=self._ops)

    def _append(self, op: Op) -> None:
        self._ops.append(op.with_names(self._same))

    def _quantization(self, name: str) -> Quantization | None:
        return self._found.get(name) or self._tensor(name).quantization

    def _tensor(self, name: str) -> Tensor:
        return self._added[name] if name in self._added else self._graph[name]

    def _look_back(self, op: Op) -> None:
        """Gives the data of a movement the quantization that is noted for its result."""
        data, results = kind_of(op).moved_inputs(op), kind_of(op).results_of(op)
        if id(op) in self._fixed or kind_of(op).rule != "move" or len(data) != 1 or len(results) != 1:
            return
        quantization = self._found.get(results[0])
        if quantization is not None and quantization.is_per_tensor and self._quantization(data[0]) is None:
            self._found[data[0]] = quantization

    def _settle(self, op: Op) -> None:
        kind = kind_of(op)
        touched = any(name in self._found for name in op.names)
        if kind.rule == "relabel":
            self._relabel(op)
        elif (kind.rule == "move" or kind.chooses) and (touched or id(op) in self._noted):
            self._move(op)
        elif op.kind == "Clip" and touched and self._clip(op):
            return
        elif touched and not (kind.reads_shape or kind.ranks or op.kind == "Cast"):  # which give the same numbers with any quantization
            self._write(op, {}, [name for name in op.outputs if name in self._found], None)
        else:
            self._append(op)

    def _relabel(self, op: Op) -> None:
        (name,), (result,) = op.inputs, op.outputs
        if self._quantization(name) == self._quantization(result) and result not in self._graph.public:
            self._same[result] = self._same.get(name, name)
            return
        if self._quantization(result) is None:
            self._whole[result] = name
            self._plain.setdefault(name, result)
        self._append(op)

    def _move(self, op: Op) -> None:
        """Data movement of integers, with the one quantization that its data have; without any if they have several."""
        moved = kind_of(op).moved_inputs(op)
        results = [name for name in kind_of(op).results_of(op) if name]
        sources = [self._whole.get(name, name) for name in moved]
        quantizations = self._distinct(name for name in sources if self._tensor(name).data is None) or self._distinct(sources)
        quantization = (
            quantizations[0] if len(quantizations) == 1 and (quantizations[0] is None or quantizations[0].is_per_tensor) else None
        )
        ends = [name for name in results if self._quantization(name) not in (None, quantization)]
        if kind_of(op).copies and ends:
            self._append(replace(op, kind="Reinterpret"))
            return
        for name in results:
            if quantization is not None and self._quantization(name) is None:
                self._found[name] = quantization
        chosen = {name: self._with_label(source, quantization) for name, source in zip(moved, sources, strict=True)}
        self._write(op, chosen, ends, quantization)

    def _clip(self, op: Op) -> bool:
        """A Clip of integers by constants, with the quantization of its data with real bounds; whether it is one whose plain result nobody
        sees."""
        source, (result,) = self._whole.get(op.inputs[0], op.inputs[0]), op.outputs
        quantization, bounds = self._quantization(source), [self._graph.constant(name) for name in op.inputs[1:]]
        known = all(bound is not None or not name for bound, name in zip(bounds, op.inputs[1:], strict=True))
        if (
            quantization is None
            or not quantization.is_per_tensor
            or not known
            or result in self._graph.public
            or self._quantization(result) not in (None, quantization)
        ):
            return False
        limits = ["" if bound is None else self._bound(result, bound, quantization) for bound in bounds]
        self._found[result] = quantization
        self._append(replace(op, inputs=(source, *limits)))
        return True

    def _bound(self, result: str, bound: Array, quantization: Quantization) -> str:
        """The float value of an integer bound, a name of a new constant; "" where it is an end of the type."""
        stored = int(bound.reshape(-1)[0])
        if stored in integer_range(self._tensor(result).dtype):
            return ""
        name = self._names.fresh(f"{result}/bound")
        self._added[name] = Tensor(name, "float32", (), dequantize_float32(stored, quantization))
        return name

    def _distinct(self, names: Iterable[str]) -> list[Quantization | None]:
        found: list[Quantization | None] = []
        for name in names:
            if (quantization := self._quantization(name)) not in found:
                found.append(quantization)
        return found

    def _with_label(self, name: str, quantization: Quantization | None) -> str:
        """The integers of a tensor with a quantization, or without one; a constant may be on another."""
        if self._quantization(name) == quantization:
            return name
        return self._without_label(name) if quantization is None else self._add_copy(name, "moved", quantization)

    def _without_label(self, name: str) -> str:
        if name not in self._plain:
            self._plain[name] = plain = self._add_copy(name, "plain", None)
            self._whole[plain] = name
            if self._tensor(name).data is None:
                self._append(Op("Reinterpret", (name,), (plain,)))
        return self._plain[name]

    def _add_copy(self, name: str, suffix: str, quantization: Quantization | None) -> str:
        fresh = self._names.fresh(f"{name}/{suffix}")
        self._added[fresh] = replace(self._tensor(name), name=fresh, quantization=quantization)
        return fresh

    def _write(self, op: Op, chosen: Mapping[str, str], ends: Sequence[str], quantization: Quantization | None) -> None:
        """Appends an operator that reads the inputs chosen, others without a noted quantization; a Reinterpret gives each of the results
        `ends` its own quantization."""
        inputs = tuple(chosen[name] if name in chosen else self._without_label(name) if name in self._found else name for name in op.inputs)
        stored = {name: self._add_copy(name, "stored", quantization) for name in ends}
        self._append(replace(op, inputs=inputs, outputs=tuple(stored.get(name, name) for name in op.outputs)))
        self._ops += [Op("Reinterpret", (new,), (name,)) for name, new in stored.items()]


#: Nodes around an operator that say how values are stored, or nothing.
_STORAGE = frozenset(("QuantizeLinear", "DequantizeLinear", "Identity"))

#: Nodes that a fused activation becomes.
_ACTIVATIONS = frozenset(("Relu", "Clip"))

#: Kinds that are found again without a note, whatever nodes they become, as are layers and conversions between quantizations.
_RECOGNIZED = frozenset(("Clip", "Cast", "Identity", "Pad"))


def is_decomposed(op: Op, nodes: Sequence[str]) -> bool:
    """Whether the nodes, by their operators, that were written for `op` are others than the one that ONNX has for it."""
    if is_dynamic(op):  # DynamicQuantizeLinear and an integer product are found without a note (passes/dynamic_range.py)
        return op["arithmetic"] != "dynamic_tensor" or "Scan" in nodes
    core = [name for name in nodes if name not in _STORAGE]
    if op.attributes.get("activation") and core and core[-1] in _ACTIVATIONS:
        core.pop()
    rule = kind_of(op).rule
    if op.kind in _RECOGNIZED or kind_of(op).has_weights or rule in ("relabel", "opaque") or (rule == "convert" and "Round" not in core):
        return False
    return core != [op.kind] or op.kind == "Sum"  # whose own node is read as several operators


def with_decomposed(graph: Graph, rewritten: Callable[[Graph], Graph]) -> Graph:
    """The graph with the operators that its metadata note in place of the nodes that they are decomposed into; see restore_operators()."""
    return restore_operators(graph, rewritten, _stored_elsewhere, apply_noted_quantizations)


def _stored_elsewhere(graph: Graph, op: Op) -> list[Tensor]:
    """The constants of an operator that stand in the body of a loop, or in another form."""
    listed = [tensor for name in op.inputs if name and name not in graph.tensors for tensor in _in_functions(graph, name)]
    return [*listed, *_turned_weights(graph, op)]


def _in_functions(graph: Graph, name: str) -> list[Tensor]:
    found = (function.tensors.get(name) for function in graph.functions.values())
    return [tensor for tensor in found if tensor is not None and tensor.is_constant][:1]


def _turned_weights(graph: Graph, op: Op) -> list[Tensor]:
    """The weights of a product that rounds its data when it runs, of which the file has the columns as rows."""
    name = op.inputs[1] if is_dynamic(op) and len(op.inputs) > 1 else ""
    stored = graph.tensors.get(turned_name(name))
    if not name or name in graph.tensors or stored is None or stored.data is None or stored.data.ndim < 2:
        return []
    data = stored.data.swapaxes(-1, -2)
    return [Tensor(name, stored.dtype, data.shape, data)]


def turned_name(weights: str) -> str:
    """What a file calls weights whose columns are rows."""
    return f"{weights}/turned"


def relabelled_notes(*graphs: Graph) -> dict[str, Stated | None]:
    """The notes for the results of every Reinterpret: [scale, zero point], [scales, zero points, axis] along an axis, None for plain
    integers."""
    quantizations = {op.outputs[0]: graph[op.outputs[0]].quantization for graph in graphs for op in graph.of_kind("Reinterpret")}
    return {
        name: None if quantization is None else stated_quantization(replace(quantization, quant_min=None, quant_max=None))
        for name, quantization in quantizations.items()
        if quantization is None or not quantization.block_size
    }


def read_relabelled_notes(metadata: Mapping[str, str]) -> dict[str, Quantization | None]:
    """What the entry says, by tensor.

    Raises:
        InvalidModelError: it is not a map of names to scales and zero points.
    """

    def read(notes: Any) -> dict[str, Quantization | None]:
        return {str(name): None if note is None else quantization_of(note) for name, note in notes.items()}

    return read_entry(metadata, RELABELLED, read, "a map of names to scales and zero points") or {}
