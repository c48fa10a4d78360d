"""assign_layout: spatial operators get the layout that the target wants, with the fewest Transposes.

Images and volumes are one after the other. Every tensor of rank 4 (or 5) gets a label: stored as in the source, or transposed. A
Transpose is needed wherever an operator wants the other label than the one its input has; one serves all such readers. The labelling
with the fewest (then smallest) Transposes is a minimum cut (FlowGraph): operators are nodes, tensors are edges, fixed operators
are tied to a side. The reduction of "paid once, whichever readers differ" to edges is the usual one for such terms (Boykov and Kolmogorov,
2004, section 3).

A graph in channels first, for a target that wants channels last (Relu and Add have no layout, Reshape pins the source's):

    x (1,3,8,8) -> Conv -> a (1,4,8,8) -> Relu -> b (1,4,8,8) -> Conv -> c (1,4,8,8) -> Reshape -> y (1,256)
becomes
    x (1,3,8,8) -> Transpose -> x/channels_last (1,8,8,3) -> Conv -> a (1,8,8,4) -> Relu -> b (1,8,8,4)
                -> Conv -> c (1,8,8,4) -> Transpose -> c/source_layout (1,4,8,8) -> Reshape -> y (1,256)
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qconvert.errors import format_count
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import TRANSPOSED, read_names
from qconvert.operators import kind_of
from qconvert.operators.properties import Suits, permutation
from qconvert.operators.sizes import reshape_sizes
from qconvert.passes.operator_layouts import Role, data_inputs, permute_op, permute_tensor, role
from qconvert.plugins import PassResult, Target
from qconvert.rewriting import Rewriter

_IMAGES = 4  # the rank that --io-layout is about
_RANKS = (_IMAGES, 5)
_TRANSPOSE_COST = 2**40  # one Transpose costs more than any amount of data


def assign_layout(graph: Graph, target: Target, *, io_layout: str = "") -> PassResult:
    """Rewrite the whole graph for target.layout.

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
        graph = _Layout(_restore_transposes(graph, perm), target, perm, io_label).apply()
    added = sum(kind_of(op).layout.suits is Suits.TRANSPOSES for op in graph.ops)
    moved = sum("data_format" in op.attributes for op in graph.ops)
    return graph, (f"{format_count(moved, 'spatial operator')} to {wanted}; {format_count(added, 'Transpose')} in the graph",)


def _invert(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.argsort(perm))


def _restore_transposes(graph: Graph, perm: tuple[int, ...]) -> Graph:
    """Make Transposes of Reshapes that change the layout and move no data, such as this pass inserts."""
    back = _invert(perm)
    rewriter = Rewriter(graph)
    for op in rewriter.of_kind("Reshape"):
        source, result = graph[op.inputs[0]].shape, graph[op.name].shape
        if source is None or result is None or not len(source) == len(result) == len(perm) or source == result:
            continue
        for order in (back, perm):
            if tuple(source[axis] for axis in order) == result and _is_trivial(graph[op.inputs[0]], order):
                rewriter.replace(op, op.derive("Transpose", op.inputs[:1], op.outputs, perm=order))
                break
    return rewriter.finish()


def _is_trivial(tensor: Tensor, perm: Sequence[int]) -> bool:
    """Return whether changing the layout keeps the order of the data: one channel, or one position in space."""
    if tensor.shape is None:
        return False
    order = [axis for axis in perm if tensor.shape[axis] != 1]
    return order == sorted(order)


def _cost(tensor: Tensor, perm: Sequence[int]) -> int:
    if _is_trivial(tensor, perm):
        return 1
    return _TRANSPOSE_COST + _known_size(tensor)


def _other_layout_cost(result: Tensor) -> int:
    """Return what an operator's other layout costs: more than a Transpose of its data, which are fewer, and less than one of its result."""
    return _TRANSPOSE_COST + _known_size(result) // 2


def _known_size(tensor: Tensor) -> int:
    return math.prod(size for size in tensor.shape or () if isinstance(size, int))


class _Labels:
    """The label of every operator: 0 as in the source, 1 transposed. A source's Transpose has one for each side."""

    def __init__(self, rewriter: Rewriter, target: Target, perm: tuple[int, ...], io_label: int) -> None:
        graph = rewriter.graph
        own = graph.is_from(target.format)
        preferred = {
            id(op): str(op["data_format"]) if own and kind_of(op).layout.sized else target.kernels.layout(graph, op) for op in graph.ops
        }
        self.roles = {id(op): role(graph, op, target.layout, len(perm), preferred[id(op)]) for op in graph.ops}
        self._flow = FlowGraph()
        self._perm = perm
        self._reads: dict[int, int] = {}
        self._writes: dict[int, int] = {}
        for op in graph.ops:
            self._add_operator(graph, op)
        self._add_tensors(rewriter, io_label)
        found = self._flow.labels()
        self.reads = {key: found[node] for key, node in self._reads.items()}
        self.writes = {key: found[node] for key, node in self._writes.items()}

    def _add_operator(self, graph: Graph, op: Op) -> None:
        kind = self.roles[id(op)]
        if kind is Role.TRANSPOSE:
            self._add_transpose(graph, op)
            return
        node = self._flow.node() if kind is Role.FREE else kind.value
        if kind is Role.FREE and "data_format" in op.attributes:
            self._flow.edge(0, node, _other_layout_cost(graph[op.name]))
        self._reads[id(op)] = self._writes[id(op)] = node

    def _add_transpose(self, graph: Graph, op: Op) -> None:
        """A Transpose that makes, or undoes, the wanted layout costs nothing if its other side carries the wanted label."""
        back = _invert(self._perm)
        self._reads[id(op)] = self._writes[id(op)] = 0
        cost = _cost(graph[op.inputs[0]], self._perm)
        if op["perm"] == back:
            self._writes[id(op)] = node = self._flow.node()
            self._flow.edge(node, 1, cost)
        elif op["perm"] == self._perm:
            self._reads[id(op)] = node = self._flow.node()
            self._flow.edge(node, 1, cost)

    def _add_tensors(self, rewriter: Rewriter, io_label: int) -> None:
        graph = rewriter.graph
        for tensor in graph.tensors.values():
            if tensor.rank != len(self._perm) or tensor.is_constant:
                continue
            producer = rewriter.producers.get(tensor.name)
            writer = io_label if producer is None else self._writes[id(producer)]
            reading = rewriter.readers[tensor.name]
            readers = {self._reads[id(op)] if tensor.name in data_inputs(graph, op) else 0 for op in reading}
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


class _Layout(Rewriter):
    """The rewriting that the labels ask for."""

    def __init__(self, graph: Graph, target: Target, perm: tuple[int, ...], io_label: int) -> None:
        super().__init__(graph)
        self._wanted = target.layout
        self._perm = perm
        self._rank = len(perm)
        self._back = _invert(perm)
        self._labels = _Labels(self, target, perm, io_label)
        self._io_label = io_label
        self._stored: dict[tuple[str, int], str] = {}  # (tensor, label) -> the name under which it exists
        self._variants: dict[tuple[str, str, bytes], str] = {}

    def apply(self) -> Graph:
        for name in self.graph.inputs:
            self._define(name, self._io_label if self.graph[name].rank == self._rank else 0)
        for op in self:
            if self._labels.roles[id(op)] is Role.TRANSPOSE:
                self._transpose(op)
            else:
                self._operator(op)
        for name in (*self.graph.outputs, *sorted(self.graph.public - set(self.graph.outputs))):
            self._deliver(name)
        turned = read_names(self.graph.metadata, TRANSPOSED) ^ self._ambiguous()
        noted = [name for name in self.graph.tensors if name in turned]
        return self.finish(metadata={**self.graph.metadata, TRANSPOSED: json.dumps(noted)})

    def _ambiguous(self) -> set[str]:
        """Return tensors that changed layout although their shape stayed the same: a reader of the result could not tell."""
        moved = [name for (name, label), new in self._stored.items() if label == 1 and new == name and self.graph[name].rank == self._rank]
        return {name for name in moved if self.graph[name].shape == self[name].shape and not _is_trivial(self.graph[name], self._perm)}

    def _define(self, name: str, label: int) -> str:
        """Return the name of a tensor that is about to be written with `label`; outputs keep theirs for the layout they must have."""
        tensor = self.graph[name]
        if tensor.rank != self._rank:
            self._stored[name, 0] = self._stored[name, 1] = name
            return name
        new = name
        if name in self.graph.public and label != self._io_label:
            new = self._fresh_variant(name, label)
        self._stored[name, label] = self._add(name, label, new)
        return new

    def _fresh_variant(self, name: str, label: int) -> str:
        return self.fresh(f"{name}/{self._wanted if label else 'source_layout'}")

    def _add(self, name: str, label: int, new: str) -> str:
        """Give the name `new` to the tensor `name` with `label`."""
        tensor = self.graph[name]
        found = replace(permute_tensor(tensor, self._perm) if label else tensor, name=new)
        return self.define(found, permutation=self._perm if label and new == name else ())

    def _get(self, name: str, label: int) -> str:
        """Return the name of the tensor `name` with `label`, through a Transpose if it does not exist yet."""
        tensor = self.graph.tensors[name] if name else None
        if tensor is None or tensor.is_constant or tensor.rank != self._rank:
            return name
        if (name, label) not in self._stored:
            have = self._stored[name, 1 - label]
            self._stored[name, label] = self._convert(name, have, label, self._fresh_variant(name, label))
        return self._stored[name, label]

    def _convert(self, name: str, have: str, label: int, new: str) -> str:
        """Emit a Transpose, or a Reshape where no data move, from `have` to `new`."""
        self._add(name, label, new)
        self.emit(self._turn(name, have, new, self._perm if label else self._back))
        return new

    def _operator(self, op: Op) -> None:
        label = self._labels.reads[id(op)]
        if op.kind == "Reshape" and self._reads_any_layout(op):
            label = 0 if (op.inputs[0], 0) in self._stored else 1
            names = [self._stored[op.inputs[0], label], *op.inputs[1:]]
            self.replace(op, replace(op, inputs=tuple(names), outputs=(self._define(op.name, 0),)))
            return
        changed = permute_op(self.graph, op, self._perm, self._wanted, self._constant) if label else op
        data = data_inputs(self.graph, op)
        inputs = tuple(self._get(name, label * (name in data)) if name in self.graph.tensors else name for name in changed.inputs)
        outputs = tuple(self._define(name, self._labels.writes[id(op)]) for name in op.outputs)
        self.replace(op, replace(changed, inputs=inputs, outputs=outputs))

    def _reads_any_layout(self, op: Op) -> bool:
        """Return whether an operator is a Reshape of data that the layouts order alike, to sizes that do not refer to the input's."""
        tensor, sizes = self.graph[op.inputs[0]], self.graph.constant(op.inputs[1])
        known = not tensor.is_constant and tensor.rank == self._rank and sizes is not None and not (sizes == 0).any()
        return known and _is_trivial(tensor, self._perm)

    def _transpose(self, op: Op) -> None:
        """Compose the source's Transpose with the labels of both sides; it vanishes if nothing is left to do."""
        have = self._get(op.inputs[0], self._labels.reads[id(op)])
        label = self._labels.writes[id(op)]
        steps = [self._back] if self._labels.reads[id(op)] else []
        steps += [tuple(op["perm"])] + ([self._perm] if label else [])
        total = tuple(range(self._rank))
        for step in steps:
            total = tuple(total[axis] for axis in step)
        new = self._define(op.name, label)
        if total != tuple(range(self._rank)):
            self.replace(op, self._turn(op.name, have, new, total, op.source))
        elif new in self.graph.public:
            self.replace(op, op.derive("Identity", (have,), (new,)))
        else:
            self.remove(op)
            self.relate(op.name, have, permutation=self._perm if label else ())
            self._stored[op.name, label] = have

    def _turn(self, name: str, have: str, new: str, perm: tuple[int, ...], source: str = "") -> Op:
        """Return the Transpose of a form of the tensor `name` to another, or a Reshape where no data move."""
        shape = self[new].shape or ()
        symbols = [size for size in shape if isinstance(size, str)]
        if not _is_trivial(self[have], perm) or len(symbols) > 1:
            return Op("Transpose", (have,), (new,), {"perm": perm}, source)
        sizes = np.array(reshape_sizes(shape), np.int64)
        return Op("Reshape", (have, self._constant(name, "layout_shape", sizes, None)), (new,), {}, source)

    def _deliver(self, name: str) -> None:
        """Give a graph output the layout that it must have, under its own name."""
        if self.graph[name].rank != self._rank or self.graph[name].is_constant:
            return
        have = self._stored.get((name, self._io_label))
        if have is None:
            self._stored[name, self._io_label] = self._convert(name, self._stored[name, 1 - self._io_label], self._io_label, name)
        elif have != name:
            self.emit(Op("Identity", (have,), (name,)))

    def _constant(self, name: str, key: str, data: Array, quantization: Quantization | None) -> str:
        """Return another form of the constant `name`, made once for each content."""
        known = (name, key, data.tobytes() if data.size < 64 else b"")
        if known not in self._variants:
            tensor = self.graph[name]
            is_turned = key == "transposed"
            self._variants[known] = self.constant(f"{name}/{key}", data, tensor.dtype if is_turned else "int64", quantization)
            if is_turned and tensor.rank == self._rank and self.is_read_once(name):
                self.relate(name, self._variants[known], permutation=self._perm)
        return self._variants[known]


#: The capacity of an edge that no cut takes.
INFINITE = 2**62


class FlowGraph:
    """The labelling of least cost of a graph, as a minimum cut, by Dinic's algorithm (E. A. Dinic, 1970).

    Nodes are numbers; node 0 is the source side (label 0) and node 1 the sink side (label 1).
    """

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # for each node, indices into the lists below
        self._head: list[int] = []
        self._capacity: list[int] = []

    def node(self) -> int:
        """Add a node."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge, which costs `capacity` when `tail` gets label 0 and `head` label 1."""
        for node, other, size in ((tail, head, capacity), (head, tail, 0)):
            self._edges[node].append(len(self._head))
            self._head.append(other)
            self._capacity.append(size)

    def labels(self) -> list[int]:
        """Return the label, 0 or 1, of each node in a labelling of least cost; nodes that may have either get 1."""
        while True:
            level = self._levels()
            if level[1] < 0:
                return [0 if found >= 0 else 1 for found in level]
            position = [0] * len(self._edges)
            while self._push(level, position):
                pass

    def _levels(self) -> list[int]:
        level = [-1] * len(self._edges)
        level[0] = 0
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for index in self._edges[node]:
                head = self._head[index]
                if self._capacity[index] and level[head] < 0:
                    level[head] = level[node] + 1
                    queue.append(head)
        return level

    def _push(self, level: list[int], position: list[int]) -> int:
        """Send flow along one path of the level graph; return how much. Iterative, since models are deep."""
        path: list[int] = []
        node = 0
        while node != 1:
            if position[node] < len(self._edges[node]):
                index = self._edges[node][position[node]]
                if self._capacity[index] and level[self._head[index]] == level[node] + 1:
                    path.append(index)
                    node = self._head[index]
                else:
                    position[node] += 1
            elif path:
                node = self._head[path.pop() ^ 1]
                position[node] += 1
            else:
                return 0
        amount = min(self._capacity[index] for index in path)
        for index in path:
            self._capacity[index] -= amount
            self._capacity[index ^ 1] += amount
        return amount
