"""assign_layout: spatial operators get the layout that the target wants, with the fewest Transposes.

Images and volumes are one after the other. Every tensor of rank 4 (or 5) gets a label: stored as in the source, or transposed. A
Transpose is needed wherever an operator wants the other label than the one its input has; one serves all such readers. The labelling
with the fewest (then smallest) Transposes is a minimum cut: operators are nodes, tensors are edges, fixed operators are tied to a side.
The reduction of "paid once, whichever readers differ" to edges is the usual one for such terms (Boykov and Kolmogorov, 2004, section 3).

A graph in channels first, for a target that wants channels last (Relu and Add have no layout, Reshape pins the source's):

    x (1,3,8,8) -> Conv -> a (1,4,8,8) -> Relu -> b (1,4,8,8) -> Conv -> c (1,4,8,8) -> Reshape -> y (1,256)
becomes
    x (1,3,8,8) -> Transpose -> x/channels_last (1,8,8,3) -> Conv -> a (1,8,8,4) -> Relu -> b (1,8,8,4)
                -> Conv -> c (1,8,8,4) -> Transpose -> c/source_layout (1,4,8,8) -> Reshape -> y (1,256)
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.graph import Array, Graph, Names, Op, Quantization, Tensor
from qconvert.graph.kinds.layout import permutation
from qconvert.graph.metadata import TRANSPOSED, transposed_names
from qconvert.passes.layout.minimum_cut import INFINITE, FlowGraph
from qconvert.passes.layout.rewrite import permuted_op, permuted_tensor
from qconvert.passes.layout.roles import Role, data_inputs, role
from qconvert.plugins import Target

__all__ = ["run"]

_IMAGES = 4  # the rank that --io-layout is about
_RANKS = (_IMAGES, 5)
_TRANSPOSE_COST = 2**40  # one Transpose costs more than any amount of data


def run(graph: Graph, target: Target, *, io_layout: str = "") -> tuple[Graph, tuple[str, ...]]:
    """Rewrites the whole graph for target.layout.

    Args:
        graph: in the source's layout.
        target: whose layout is wanted; "" changes nothing.
        io_layout: "nchw" or "nhwc" if graph inputs and outputs of rank 4 shall have that layout; "" keeps the source's.
    """
    wanted = target.layout
    other = [op for op in graph.ops if op.attributes.get("data_format", wanted) != wanted]
    if not wanted or not other:
        return graph, ()
    for rank in [rank for rank in _RANKS if any(graph[op.inputs[0]].rank == rank for op in other)]:
        io_label = int(rank == _IMAGES and {"nchw": "channels_first", "nhwc": "channels_last"}.get(io_layout) == wanted)
        perm = permutation(wanted, rank)
        graph = _as_transposes(graph, perm)
        graph = _Rewriter(graph, wanted, perm, _Labels(graph, wanted, perm, io_label), io_label).run()
    added = sum(op.kind == "Transpose" for op in graph.ops)
    moved = sum("data_format" in op.attributes for op in graph.ops)
    return graph, (f"{moved} spatial operators are {wanted}; {added} Transposes in the graph",)


def _as_transposes(graph: Graph, perm: Sequence[int]) -> Graph:
    """A Reshape that is a change of layout which moves no data, such as this pass inserts, as the Transpose that it stands for."""
    back = tuple(int(axis) for axis in np.argsort(perm))

    def changed(op: Op) -> Op:
        if op.kind != "Reshape":
            return op
        source, result = (graph[name].shape for name in (op.inputs[0], op.outputs[0]))
        if source is None or result is None or not len(source) == len(result) == len(perm) or source == result:
            return op
        for order in (back, tuple(perm)):
            if tuple(source[axis] for axis in order) == result and _is_trivial(graph[op.inputs[0]], order):
                return Op("Transpose", op.inputs[:1], op.outputs, {"perm": order}, op.source)
        return op

    return graph.evolve(ops=[changed(op) for op in graph.ops])


def _is_trivial(tensor: Tensor, perm: Sequence[int]) -> bool:
    """Whether changing the layout moves no data: one channel, or one position in space."""
    if tensor.shape is None:
        return False
    order = [axis for axis in perm if tensor.shape[axis] != 1]
    return order == sorted(order)


def _cost(tensor: Tensor, perm: Sequence[int]) -> int:
    if _is_trivial(tensor, perm):
        return 1
    return _TRANSPOSE_COST + math.prod(size for size in tensor.shape or () if isinstance(size, int))


class _Labels:
    """The label of every operator: 0 as in the source, 1 transposed. A source's Transpose has one for each side."""

    def __init__(self, graph: Graph, wanted: str, perm: tuple[int, ...], io_label: int) -> None:
        self.roles = {id(op): role(graph, op, wanted, len(perm)) for op in graph.ops}
        self._flow = FlowGraph()
        self._perm = perm
        self._reads: dict[int, int] = {}
        self._writes: dict[int, int] = {}
        for op in graph.ops:
            self._add_operator(graph, op)
        self._add_tensors(graph, io_label)
        found = self._flow.labels()
        self.reads = {key: found[node] for key, node in self._reads.items()}
        self.writes = {key: found[node] for key, node in self._writes.items()}

    def _add_operator(self, graph: Graph, op: Op) -> None:
        kind = self.roles[id(op)]
        if kind is Role.TRANSPOSE:
            self._add_transpose(graph, op)
            return
        node = self._flow.node() if kind is Role.FREE else kind.value
        self._reads[id(op)] = self._writes[id(op)] = node

    def _add_transpose(self, graph: Graph, op: Op) -> None:
        """A Transpose that makes, or undoes, the wanted layout costs nothing if its other side carries the wanted label."""
        back = tuple(int(axis) for axis in np.argsort(self._perm))
        self._reads[id(op)] = self._writes[id(op)] = 0
        cost = _cost(graph[op.inputs[0]], self._perm)
        if op["perm"] == back:
            self._writes[id(op)] = node = self._flow.node()
            self._flow.edge(node, 1, cost)
        elif op["perm"] == self._perm:
            self._reads[id(op)] = node = self._flow.node()
            self._flow.edge(node, 1, cost)

    def _add_tensors(self, graph: Graph, io_label: int) -> None:
        producers, consumers = graph.producers(), graph.consumers()
        for tensor in graph.tensors.values():
            if tensor.rank != len(self._perm) or tensor.is_constant:
                continue
            producer = producers.get(tensor.name)
            writer = io_label if producer is None else self._writes[id(producer)]
            readers = {self._reads[id(op)] if tensor.name in data_inputs(graph, op) else 0 for op in consumers.get(tensor.name, [])}
            if tensor.name in graph.public:
                readers.add(io_label)
            self._pay_once(writer, readers - {writer}, _cost(tensor, self._perm))

    def _pay_once(self, writer: int, readers: set[int], cost: int) -> None:
        """`cost` if any reader's label differs from the writer's, however many do."""
        if len(readers) == 1:
            (reader,) = readers
            self._flow.edge(writer, reader, cost)
            self._flow.edge(reader, writer, cost)
        elif readers:
            any_one, any_zero = self._flow.node(), self._flow.node()
            self._flow.edge(writer, any_one, cost)
            self._flow.edge(any_zero, writer, cost)
            for reader in readers:
                self._flow.edge(any_one, reader, INFINITE)
                self._flow.edge(reader, any_zero, INFINITE)


class _Rewriter:
    """Builds the new graph from the labels."""

    def __init__(self, graph: Graph, wanted: str, perm: tuple[int, ...], labels: _Labels, io_label: int) -> None:
        self._graph = graph
        self._wanted = wanted
        self._perm = perm
        self._rank = len(perm)
        self._back = tuple(int(axis) for axis in np.argsort(self._perm))
        self._labels = labels
        self._io_label = io_label
        self._tensors: dict[str, Tensor] = dict(graph.tensors)
        self._names = Names(self._tensors)
        self._ops: list[Op] = []
        self._stored: dict[tuple[str, int], str] = {}  # (tensor, label) -> the name under which it exists
        self._variants: dict[tuple[str, str, bytes], str] = {}

    def run(self) -> Graph:
        for name in self._graph.inputs:
            self._define(name, self._io_label if self._graph[name].rank == self._rank else 0)
        for op in self._graph.ops:
            if self._labels.roles[id(op)] is Role.TRANSPOSE:
                self._transpose(op)
            else:
                self._operator(op)
        for name in (*self._graph.outputs, *sorted(self._graph.public - set(self._graph.outputs))):
            self._deliver(name)
        turned = transposed_names(self._graph.metadata) ^ set(self._ambiguous())
        noted = [name for name in self._tensors if name in turned]
        metadata = {**self._graph.metadata, TRANSPOSED: json.dumps(noted)}
        return self._graph.evolve(tensors=self._tensors.values(), ops=self._ops, metadata=metadata)

    def _ambiguous(self) -> list[str]:
        """Tensors that changed layout although their shape stayed the same: a reader of the result could not tell."""
        moved = [name for (name, label), new in self._stored.items() if label == 1 and new == name and self._graph[name].rank == self._rank]
        return [
            name
            for name in moved
            if self._graph[name].shape == self._tensors[name].shape and not _is_trivial(self._graph[name], self._perm)
        ]

    def _define(self, name: str, label: int) -> str:
        """The name of a tensor that is about to be written with `label`; outputs keep theirs for the layout they must have."""
        tensor = self._graph[name]
        if tensor.rank != self._rank:
            self._stored[name, 0] = self._stored[name, 1] = name
            return name
        new = name
        if name in self._graph.public and label != self._io_label:
            new = self._fresh(f"{name}/{self._wanted}" if label else f"{name}/source_layout")
        self._tensors[new] = replace(permuted_tensor(tensor, self._perm) if label else tensor, name=new)
        self._stored[name, label] = new
        return new

    def _get(self, name: str, label: int) -> str:
        """The name of tensor `name` with `label`, through a Transpose if it does not exist yet."""
        tensor = self._graph.tensors[name] if name else None
        if tensor is None or tensor.is_constant or tensor.rank != self._rank:
            return name
        if (name, label) not in self._stored:
            have = self._stored[name, 1 - label]
            suffix = f"{name}/{self._wanted}" if label else f"{name}/source_layout"
            self._stored[name, label] = self._convert(name, have, label, self._fresh(suffix))
        return self._stored[name, label]

    def _convert(self, name: str, have: str, label: int, new: str) -> str:
        """Adds a Transpose, or a Reshape where no data move, from `have` to `new`."""
        tensor = self._graph[name]
        target = replace(permuted_tensor(tensor, self._perm) if label else tensor, name=new)
        self._tensors[new] = target
        symbols = [size for size in target.shape or () if isinstance(size, str)]
        if _is_trivial(tensor, self._perm) and len(symbols) <= 1:
            sizes = np.array([-1 if isinstance(size, str) else size for size in target.shape or ()], np.int64)
            self._ops.append(Op("Reshape", (have, self._constant(name, "layout_shape", sizes, None)), (new,)))
        else:
            self._ops.append(Op("Transpose", (have,), (new,), {"perm": self._perm if label else self._back}))
        return new

    def _operator(self, op: Op) -> None:
        label = self._labels.reads[id(op)]
        if op.kind == "Reshape" and self._reads_any_layout(op):
            label = 0 if (op.inputs[0], 0) in self._stored else 1
            names = [self._stored[op.inputs[0], label], *op.inputs[1:]]
            self._ops.append(replace(op, inputs=tuple(names), outputs=(self._define(op.outputs[0], 0),)))
            return
        changed = permuted_op(self._graph, op, self._perm, self._wanted, self._constant) if label else op
        data = data_inputs(self._graph, op)
        inputs = tuple(self._get(name, label * (name in data)) if name in self._graph.tensors else name for name in changed.inputs)
        outputs = tuple(self._define(name, self._labels.writes[id(op)]) for name in op.outputs)
        self._ops.append(replace(changed, inputs=inputs, outputs=outputs))

    def _reads_any_layout(self, op: Op) -> bool:
        """A Reshape of data that the layouts order alike, to sizes that do not refer to the input's."""
        tensor, sizes = self._graph[op.inputs[0]], self._graph.constant(op.inputs[1])
        known = not tensor.is_constant and tensor.rank == self._rank and sizes is not None and not (sizes == 0).any()
        return known and _is_trivial(tensor, self._perm)

    def _transpose(self, op: Op) -> None:
        """The source's Transpose composed with the labels of both sides; it vanishes if nothing is left to do."""
        have = self._get(op.inputs[0], self._labels.reads[id(op)])
        label = self._labels.writes[id(op)]
        steps = [self._back] if self._labels.reads[id(op)] else []
        steps += [tuple(op["perm"])] + ([self._perm] if label else [])
        total = tuple(range(self._rank))
        for step in steps:
            total = tuple(total[axis] for axis in step)
        new = self._define(op.outputs[0], label)
        if total != tuple(range(self._rank)):
            self._ops.append(self._turn(op, have, new, total))
        elif new in self._graph.public:
            self._ops.append(Op("Identity", (have,), (new,), {}, op.source))
        else:
            self._stored[op.outputs[0], label] = have

    def _turn(self, op: Op, have: str, new: str, perm: tuple[int, ...]) -> Op:
        """The Transpose, or a Reshape where no data move."""
        shape = self._tensors[new].shape or ()
        symbols = [size for size in shape if isinstance(size, str)]
        if not _is_trivial(self._tensors[have], perm) or len(symbols) > 1:
            return replace(op, inputs=(have,), outputs=(new,), attributes={"perm": perm})
        sizes = np.array([-1 if isinstance(size, str) else size for size in shape], np.int64)
        return Op("Reshape", (have, self._constant(op.outputs[0], "layout_shape", sizes, None)), (new,), {}, op.source)

    def _deliver(self, name: str) -> None:
        """Gives a graph output the layout that it must have, under its own name."""
        if self._graph[name].rank != self._rank or self._graph[name].is_constant:
            return
        have = self._stored.get((name, self._io_label))
        if have is None:
            self._stored[name, self._io_label] = self._convert(name, self._stored[name, 1 - self._io_label], self._io_label, name)
        elif have != name:
            self._ops.append(Op("Identity", (have,), (name,)))

    def _constant(self, name: str, key: str, data: Array, quantization: Quantization | None) -> str:
        """Another form of the constant `name`, made once for each content."""
        known = (name, key, data.tobytes() if data.size < 64 else b"")
        if known not in self._variants:
            new = self._fresh(f"{name}/{key}")
            self._tensors[new] = Tensor(new, self._tensors[name].dtype if key == "transposed" else "int64", data.shape, data, quantization)
            self._variants[known] = new
        return self._variants[known]

    def _fresh(self, wanted: str) -> str:
        return self._names.fresh(wanted)
