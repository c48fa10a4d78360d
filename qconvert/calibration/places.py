"""The plan of a calibration: the tensors of a float network that get quantizations, those that share one, and the values to observe.

What integer kernels read and write gets a quantization: the tables of targets say which kinds have one. A value after which nothing stands
but a Relu or Clip gets none, since rounding after those is the same (passes/absorb_quantization.py), and leaves the quantization more
steps. Data movement keeps stored integers, so its tensors share a quantization, and so do those of kinds of which a target demands it
(Concat, pools).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from qconvert.encodings import QParams
from qconvert.errors import UnsupportedError
from qconvert.graph import Array, Graph, Op, Quantization
from qconvert.operators import kind_of
from qconvert.plugins import Target, target_named, targets

#: What scales have to fit where no target is named: the formats between which models are carried most.
_USUAL = ("tflite", "ort-x86")
#: Constants beyond this stand for infinity, as masks have it: a quantization that holds them holds nothing else.
_ENDLESS = 1e6


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that share a quantization.

    Attributes:
        names: of all of them, in the order of the graph.
        seen: of those whose values the others take theirs from.
        constants: of those that are constants.
        fixed: the quantization that a target demands; None where data decide.
    """

    names: tuple[str, ...]
    seen: tuple[str, ...]
    constants: tuple[str, ...] = ()
    fixed: QParams | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """Constant weights.

    Attributes:
        name: of the tensor.
        axis: that of the output channels.
        layers: data and bias, or "", of each layer that reads them.
    """

    name: str
    axis: int | None
    layers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be quantized.

    Attributes:
        groups: of activations, in the order of the graph.
        weights: in the order of the graph.
        notes: what stays float and why, in words.
    """

    groups: tuple[Group, ...]
    weights: tuple[Weights, ...]
    notes: tuple[str, ...] = ()

    @property
    def observed_tensors(self) -> dict[str, int]:
        """The tensors to look at when the model runs -> the number of their group."""
        return {name: number for number, group in enumerate(self.groups) if group.fixed is None for name in group.seen}


def plan(graph: Graph, target: str = "", dtype: str = "int8") -> Plan:
    """Which tensors of a float network get quantizations of activations, of the type `dtype`.

    Args:
        graph: the network; what is quantized already stays as it is.
        target: the name of the one target that the quantizations have to suit; "" for what suits TFLite and ONNX.
        dtype: storage type of activations.

    Raises:
        UnsupportedError: no operator of the network has an integer kernel.
    """
    found = _Planner(graph, [target_named(target)] if target else [targets()[name] for name in _USUAL], dtype)
    groups = tuple(found.groups())
    if not groups:
        remedy = "Is it a network of float32 layers? `qconvert inspect` lists its operators."
        raise UnsupportedError("no operator of the network has an integer kernel", remedy=remedy, rule="no-integer-kernels")
    return Plan(groups, tuple(found.weights()), tuple(found.notes))


#: Types of 8-bit activations, of which a conversion may choose either.
_EITHER = ("int8", "uint8")


@dataclass(slots=True)
class _Planner:
    graph: Graph
    targets: Sequence[Target]
    dtype: str
    notes: list[str] = field(default_factory=list)

    def _has_kernel(self, op: Op) -> bool:
        """Whether operators of its kind have integer kernels, and do not only carry integers. 8-bit activations may be stored as either
        type, which is exact."""
        rule = kind_of(op).rule
        if rule not in ("real", "index") or all(item.kernels.lacks(op) for item in self.targets):
            return False
        listed = [item.kernels for item in self.targets if item.kernels.kinds(lambda row: True)]
        taken = {dtype for kernels in listed if kernels.rows_for(op) for dtype in kernels.types(op) or ()}
        return not taken.isdisjoint(self._types) if listed else rule == "real"

    @property
    def _types(self) -> tuple[str, ...]:
        return _EITHER if self.dtype in _EITHER else (self.dtype,)

    def groups(self) -> Iterator[Group]:
        needed, union = set[str](), _Union()
        readers = self.graph.consumers()
        for op in self.graph.ops:
            if self._has_kernel(op) and self._is_covered(op):
                needed.update(self._real((*self._operands(op), *(kind_of(op).results_of(op) if kind_of(op).rule == "real" else ()))))
            for names in self._find_tied_tensors(op):
                union.join(list(self._real(names)))
        covered = {name for name in self.graph.tensors if name in needed and not self._is_clipped(name, readers)}
        producers = self.graph.producers()
        for members in union.sets(self._sort_in_graph_order(covered)):
            found = self._group(self._sort_in_graph_order(members), producers, readers)
            if found is not None:
                yield found

    def _sort_in_graph_order(self, names: Iterable[str]) -> list[str]:
        """By where they are computed: inputs first."""
        order = {name: number for number, name in enumerate((*self.graph.inputs, *(name for op in self.graph.ops for name in op.outputs)))}
        return sorted(names, key=lambda name: (order.get(name, -1), name))

    def _group(self, names: list[str], producers: Mapping[str, Op], readers: Mapping[str, list[Op]]) -> Group | None:
        names = [name for name in names if not self._is_clipped(name, readers)]
        constants = tuple(name for name in names if self.graph[name].is_constant)
        if any(not np.isfinite(data).all() or np.abs(data).max(initial=0) > _ENDLESS for data in map(self._data, constants)):
            self.notes.append(f"{names[-1]!r} stays float, with the tensors that share its scale: a constant stands for infinity")
            return None
        carried = {name for name in names if name in producers and self._carries(producers[name], {*names})}
        seen = tuple(name for name in names if name not in carried and name not in constants)
        if not seen and not constants:
            return None
        fixed = self._find_fixed_qparams(producers.get(seen[0])) if len(seen) == 1 and not constants else None
        return Group(tuple(names), seen, constants, fixed)

    def _data(self, name: str) -> Array:
        data = self.graph[name].data
        assert data is not None
        return data

    def _is_covered(self, op: Op) -> bool:
        """Whether all that it multiplies or adds is real: weights are constants, and nothing is quantized yet."""
        spec = kind_of(op)
        weights = spec.inputs_with_role(op, "weights")
        if any(self.graph[name].data is None for name in weights):
            self.notes.append(f"{op} stays float: its weights are computed at run time")
            return False
        data = self._operands(op)
        return bool(data) and len([*self._real((*data, *weights, *op.outputs[:1]))]) >= len(data) + len(weights) + (spec.rule == "real")

    def _operands(self, op: Op) -> list[str]:
        """Its data, without factors that count as weights."""
        return [name for name in kind_of(op).data(op) if not (kind_of(op).sums_products and self.graph[name].is_constant)]

    def _real(self, names: Iterable[str]) -> Iterator[str]:
        return (name for name in names if name and self.graph[name].dtype == "float32" and not self.graph[name].is_quantized)

    def _find_tied_tensors(self, op: Op) -> Iterator[tuple[str, ...]]:
        """The tensors of an operator that have one quantization."""
        spec = kind_of(op)
        if spec.rule == "move" or self._has_one_quantization(op, "all"):
            yield (*spec.moved_inputs(op), *spec.results_of(op))
        elif self._has_one_quantization(op, "data"):
            yield tuple(spec.data(op))

    def _has_one_quantization(self, op: Op, sides: str) -> bool:
        return any(item.kernels.one_quantization(op, dtype) == sides for item in self.targets for dtype in self._types)

    def _carries(self, op: Op, names: set[str]) -> bool:
        """Whether the results of an operator hold nothing beyond the range of data that are in the group."""
        return any(
            names.issuperset(self._real(shared)) and len(shared) > 1
            for shared in self._find_tied_tensors(op)
            if set(op.outputs) & {*shared}
        )

    def _is_clipped(self, name: str, readers: Mapping[str, list[Op]]) -> bool:
        """Whether nothing but one Relu or Clip, perhaps after movements, reads a tensor."""
        while name not in self.graph.public and len(readers.get(name, [])) == 1:
            op = readers[name][0]
            spec = kind_of(op)
            if spec.clips and all(not bound or self.graph[bound].is_constant for bound in op.inputs[1:]):
                return True
            if spec.rule != "move" or len(op.outputs) != 1 or not set(spec.roles[1:]) <= {"index"}:
                return False
            name = op.name
        return False

    def _find_fixed_qparams(self, op: Op | None) -> QParams | None:
        """The quantization that a target demands of what an operator computes."""
        if op is None:
            return None
        for item in self.targets:
            found = item.kernels.fixed_qparams(op, self.dtype)
            if found is not None:
                return QParams(self.dtype, Quantization.per_tensor(*found))
        return None

    def weights(self) -> Iterator[Weights]:
        found: dict[str, Weights] = {}
        for op in self.graph.ops:
            spec = kind_of(op)
            if not self._has_kernel(op) or not spec.sums_products or not self._is_covered(op):
                continue
            for index, name in enumerate(op.inputs[:2]):
                if self.graph[name].is_constant and [*self._real((name,))]:
                    item = found.setdefault(name, Weights(name, self._axis(op, index)))
                    layer = op.inputs[1 - index], op.input(2)
                    found[name] = replace(item, layers=(*item.layers, layer))
        yield from found.values()

    def _axis(self, op: Op, index: int) -> int | None:
        """The axis along which weights may have several scales; None where one of the formats has no place for them."""
        if kind_of(op).spreads and op.attributes.get("group", 1) != 1:
            return None  # ONNX has scales along the channels of one group
        if kind_of(op).has_weights:
            return 0
        is_layer = index == 1 and self.graph[op.inputs[1]].rank == 2
        return 1 if is_layer and (self._is_rows(op) or not any(item.storage.activation_granularity for item in self.targets)) else None

    def _is_rows(self, op: Op) -> bool:
        """Whether a product with a matrix becomes a Gemm, whose weights may have several scales everywhere (passes/gemms.py)."""
        data, result = self.graph[op.inputs[0]], self.graph[op.name]
        return data.rank == 2 or ((data.rank or 0) > 2 and sum(isinstance(size, str) for size in result.shape or ("?", "?")) <= 1)


class _Union:
    """Sets of names that are joined."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def _root(self, name: str) -> str:
        while (parent := self._parent.setdefault(name, name)) != name:
            self._parent[name] = name = self._parent[parent]
        return name

    def join(self, names: Sequence[str]) -> None:
        for name in names[1:]:
            self._parent[self._root(name)] = self._root(names[0])

    def sets(self, wanted: Sequence[str]) -> Iterator[set[str]]:
        """Each set that has one of the wanted names, in their order."""
        members: dict[str, set[str]] = {}
        for name in [*self._parent, *wanted]:
            members.setdefault(self._root(name), set()).add(name)
        yield from (members[root] for root in dict.fromkeys(map(self._root, wanted)))
