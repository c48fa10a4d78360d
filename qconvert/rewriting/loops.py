"""Loop and Scan of ONNX as Whiles, for formats that have no other loops.

A While carries what they carry, the number of the turn, and the stack of each of their results, which it has as a whole from the first turn
on: a turn writes its place. Where nobody knows beforehand how many turns there will be, the stack grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from qconvert.arithmetic.storage import numpy_dtype
from qconvert.errors import UnsupportedError
from qconvert.graph.names import Names
from qconvert.graph.schema import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.control import scan_axes
from qconvert.operators.shapes_and_functions import infer, needed_ops
from qconvert.operators.sizes import Size
from qconvert.rewriting.control_flow import Inlining, copy_duplicates, prefix_of, replace_kind, skip_identities, trip_count

__all__ = ["loops_to_whiles"]

#: Ends of a Slice that goes as far as there is anything, forwards and backwards.
_FAR, _FAR_BACK = (int(limit) for limit in (np.iinfo(np.int64).max, np.iinfo(np.int64).min))


def loops_to_whiles(graph: Graph) -> Graph:
    """Return the graph with a While in the place of every Loop and Scan, in its functions too.

    Raises:
        UnsupportedError: the size of what each turn gives is dynamic.
    """
    return replace_kind(replace_kind(graph, "Loop", _from_loop), "Scan", _from_scan)


@dataclass
class _Carried:
    """What a While carries: four names for each value.

    Attributes:
        given: what the While takes.
        inside: the input of its functions.
        after: the output of its body.
        results: what it gives; "" where nobody reads it.
    """

    given: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def add(self, given: str, inside: str, after: str = "", result: str = "") -> None:
        """One value more; without `after`, one that no turn changes."""
        for place, name in ((self.given, given), (self.inside, inside), (self.after, after or inside), (self.results, result)):
            place.append(name)


class _While:
    """A While that is made of another loop.

    Args:
        outer: the graph around it.
        op: the loop.
        function: the loop's body.
        turns: the type of the number of the turn.
        inside: its name in the body; "" where the body does not take it.
    """

    def __init__(self, outer: Inlining, op: Op, function: Graph, turns: str, inside: str = "") -> None:
        self.outer, self.op, self.function = outer, op, function
        self.body = Inlining(function)
        self.carried = _Carried()
        self.turn = inside or self.body.add(Tensor("turn", turns, ()))
        self._after: list[Op] = []  # of the body, after the loop's own operators
        self._first: list[Op] = []
        self._makers = function.producers()
        number = function[inside] if inside else Tensor("", turns, ())
        start = outer.add(self._number(number, 0), f"{self.prefix}/turn")
        following = self.body.add(replace(number, data=None), "next")
        self._after.append(Op("Add", (self.turn, self.body.add(self._number(number, 1), "one")), (following,)))
        self.carried.add(start, self.turn, following)

    @property
    def prefix(self) -> str:
        return prefix_of(self.op)

    @staticmethod
    def _number(like: Tensor, value: int) -> Tensor:
        shape = like.static_shape or ()
        return Tensor("", like.dtype, shape, np.full(shape, value, numpy_dtype(like.dtype)))

    def capture(self, given: str, inside: str) -> None:
        """A value from outside, which the body reads; a constant is one of the body."""
        tensor = self.outer.tensors[given]
        if tensor.data is None:
            self.carried.add(given, inside)
        else:
            self.body.tensors[inside] = replace(self.body.tensors[inside], shape=tensor.shape, data=tensor.data)

    def element(self, sequence: str, inside: str) -> None:
        """What the body takes of a sequence at each turn."""
        outer, own = self.outer.tensors[sequence], self.body.tensors[inside]
        whole = self.body.add(replace(own, shape=outer.shape, data=None), f"{inside}/all")
        self._first.append(Op("Gather", (whole, self.turn), (inside,), {"axis": 0}))
        self.carried.add(sequence, whole)

    def stack(self, value: str, result: str, sizes: Sequence[Size], dims: str) -> None:
        """The stack of what each turn gives, which has `dims` (a tensor), known as `sizes`."""
        inner = self.body.tensors[value]
        first = self._emit_zeros(inner, sizes, dims)
        whole = self.body.add(replace(inner, shape=tuple(sizes), data=None), f"{value}/all")
        written = self.body.add(replace(inner, shape=tuple(sizes), data=None), f"{value}/written")
        start = self.place(len(sizes))
        self._after.append(Op("DynamicUpdateSlice", (whole, self.row(value), start), (written,)))
        self.carried.add(first, whole, written, result)

    def grow_stack(self, value: str, result: str, sizes: Sequence[Size], dims: str) -> Op:
        """Return the stack of what each turn gives, one longer after each turn, which has `dims` (a tensor) at first, known as `sizes`.

        It begins with a row that nobody wants, since LiteRT's WHILE carries nothing that is empty (measured). The operator that takes that
        away again is returned, to stand after the While.
        """
        inner, outer = self.body.tensors[value], self.outer
        first = self._emit_zeros(inner, sizes, dims)
        words = ("so far", "longer")
        whole, longer = (
            self.body.add(replace(inner, shape=(f"{value}/{word}", *sizes[1:]), data=None), f"{value}/{word}") for word in words
        )
        self._after.append(Op("Concat", (whole, self.row(value)), (longer,), {"axis": 0}))
        stack = outer.add(replace(outer.tensors[result], shape=(f"{result}/rows", *sizes[1:]), data=None), f"{result}/stack")
        self.carried.add(first, whole, longer, stack)
        bounds = [outer.integers([bound], f"{result}/{word}") for word, bound in (("second", 1), ("end", _FAR), ("axis", 0))]
        return Op("Slice", (stack, *bounds), (result,), {}, self.op.source)

    def _emit_zeros(self, like: Tensor, sizes: Sequence[Size], dims: str) -> str:
        zero = self.outer.add(replace(like, shape=(), data=np.zeros((), numpy_dtype(like.dtype))), f"{self.prefix}/nothing")
        first = self.outer.add(replace(like, shape=tuple(sizes), data=None), f"{self.prefix}/first")
        self.outer.ops.append(Op("Expand", (zero, dims), (first,), {}, self.op.source))
        return first

    def row(self, value: str) -> str:
        """Return a value of the body with an axis of 1 in front."""
        value = skip_identities(self._makers, value)
        tensor = self.body.tensors[value]
        row = self.body.add(replace(tensor, shape=(1, *(tensor.shape or ())), data=None), f"{value}/row")
        self._after.append(Op("Unsqueeze", (value, self.body.integers([0], "axis")), (row,)))
        return row

    def place(self, rank: int) -> str:
        """Return where in a stack of that rank the turn's row begins."""
        dtype = self.body.tensors[self.turn].dtype
        flat = self.body.add(Tensor("", dtype, (1,)), "turn/flat")
        self._after.append(Op("Reshape", (self.turn, self.body.integers([1], "flat")), (flat,)))
        zeros = Tensor("", dtype, (rank - 1,), np.zeros(rank - 1, numpy_dtype(dtype)))
        if rank == 1:
            return flat
        start = self.body.add(Tensor("", dtype, (rank,)), "turn/place")
        self._after.append(Op("Concat", (flat, self.body.add(zeros, "turn/zeros")), (start,), {"axis": 0}))
        return start

    def write(self, limit: str, go: str, functions: dict[str, Graph], names: Names) -> None:
        """Add the While, and file its functions.

        Args:
            limit: how many turns there are at most; "" for any number.
            go: the condition, one of what is carried; "" for one that is always true.
            functions: of the network.
            names: of those.
        """
        inner = ""
        if limit:
            inner = self.body.add(self.outer.tensors[limit], "limit")
            if self.outer.tensors[limit].data is None:
                self.carried.add(limit, inner)
        condition = self._condition(inner, go)
        read = {*self.carried.after, *(name for op in (*self.function.ops, *self._after) for name in op.inputs)}
        kept = [op for op in self.function.ops if not kind_of(op).copies or op.outputs[0] in read]
        self.body.ops = needed_ops([*self._first, *kept, *self._after], self.carried.after)
        after = copy_duplicates(self.carried.after, (), self.body.copy)
        body = self.function.evolve(tensors=self.body.tensors.values(), ops=self.body.ops, inputs=tuple(self.carried.inside), outputs=after)
        attributes = {}
        for word, graph in (("body", body), ("condition", condition)):
            attributes[word] = names.fresh(f"{self.op['body']}/{word}")
            functions[attributes[word]] = graph
        self.outer.ops.append(Op("While", tuple(self.carried.given), tuple(self.carried.results), attributes, self.op.source))

    def _condition(self, limit: str, go: str) -> Graph:
        inside = tuple(self.carried.inside)
        tensors = {name: self.body.tensors[name] for name in inside}
        graph = Graph(f"{self.function.name}/condition", tensors, (), inside, (go,) if go else ())
        if not limit:
            return graph
        new = Inlining(graph)
        turn = tensors[self.turn]
        last = limit if limit in tensors else new.add(self.body.tensors[limit], limit)
        below = new.add(Tensor("below", "bool", turn.shape))
        ops, end = [Op("Less", (self.turn, last), (below,))], below
        if go:
            end = new.add(Tensor("goes on", "bool", turn.shape))
            ops.append(Op("And", (go, below), (end,)))
        return graph.evolve(tensors=new.tensors.values(), ops=ops, outputs=(end,))


def _from_scan(new: Inlining, op: Op, functions: dict[str, Graph], names: Names) -> None:
    """Add the While that a Scan is: as many turns as its sequences are long. Sequences run along their first axis, and forwards."""
    count, scanned = int(op["carried"]), int(op["num_scan_inputs"])
    function = functions[str(op["body"])]
    loop = _While(new, op, function, "int32")
    for index in range(count):
        loop.carried.add(op.inputs[index], function.inputs[index], function.outputs[index], op.outputs[index])
    ways = zip(*(scan_axes(op, f"scan_input_{word}", scanned) for word in ("axes", "directions")), strict=True)
    sequences = [_orient_sequence(new, op, name, *way) for name, way in zip(op.inputs[count : count + scanned], ways, strict=True)]
    for sequence, inside in zip(sequences, function.inputs[count:], strict=False):
        loop.element(sequence, inside)
    for given, inside in zip(op.inputs[count + scanned :], function.inputs[count + scanned :], strict=True):
        loop.capture(given, inside)
    known = [shape[0] for name in sequences if (shape := new.tensors[name].shape) and isinstance(shape[0], int)]
    length = _Length.known(new, loop, known[0]) if known else _Length.of_sequence(new, loop, sequences[0])
    sources = _sources(new, function, (*op.inputs[:count], *sequences, *op.inputs[count + scanned :]), range(count, count + scanned))
    results = op.outputs[count:]
    axes, directions = (scan_axes(op, f"scan_output_{word}", len(results)) for word in ("axes", "directions"))
    finished: list[tuple[str, str, int, int]] = []
    for value, result, axis, way in zip(function.outputs[count:], results, axes, directions, strict=True):
        if not result:
            continue
        rank = len(function[value].shape or ()) + 1
        stack = result
        if axis % rank or way:
            stack = new.add(replace(new.tensors[result], shape=None, data=None), f"{result}/stack")
            finished.append((stack, result, axis % rank, way))
        sizes, dims = _emit_stack_sizes(loop, value, length.size, length.flat, sources)
        loop.stack(value, stack, sizes, dims)
        new.tensors[stack] = replace(new.tensors[stack], shape=tuple(sizes))
    loop.write(length.limit, "", functions, names)
    for stack, result, axis, way in finished:
        _orient_stack(new, op, stack, result, axis, way)


def _from_loop(new: Inlining, op: Op, functions: dict[str, Graph], names: Names) -> None:
    """Add the While that a Loop is: as many turns as its count says, as long as the condition of the turn before is true."""
    count = int(op["carried"])
    function = functions[str(op["body"])]
    turn, before, *rest = function.inputs
    loop = _While(new, op, function, "int64", turn)
    turns = trip_count(new.tensors, op, function)
    always, limit = turns is not None, op.inputs[0]
    if turns is not None:
        if math.isfinite(turns):
            limit = new.add(Tensor("", "int64", (), np.array(turns, np.int64)), f"{loop.prefix}/turns")
        loop.body.tensors[before] = replace(loop.body.tensors[before], data=np.ones(function[before].static_shape or (), np.bool_))
    else:
        go = op.inputs[1] or new.add(Tensor("", "bool", (), np.array(True)), f"{loop.prefix}/go")
        loop.carried.add(go, before, function.outputs[0])
    for index in range(count):
        loop.carried.add(op.inputs[2 + index], rest[index], function.outputs[1 + index], op.outputs[index])
    for given, inside in zip(op.inputs[2 + count :], rest[count:], strict=True):
        loop.capture(given, inside)
    length = _Length.of_count(new, loop, limit) if always and limit else None
    sources = _sources(new, function, ("", "", *op.inputs[2:]), range(0))
    following: list[Op] = []
    for value, result in zip(function.outputs[1 + count :], op.outputs[count:], strict=True):
        if not result:
            continue
        if length is not None:
            loop.stack(value, result, *_emit_stack_sizes(loop, value, length.size, length.flat, sources))
        else:
            one = new.integers([1], f"{loop.prefix}/one")
            following.append(loop.grow_stack(value, result, *_emit_stack_sizes(loop, value, 1, one, sources)))
    loop.write(limit, "" if always else before, functions, names)
    new.ops += following


@dataclass(frozen=True, slots=True)
class _Length:
    """How many turns a loop runs.

    Attributes:
        size: that number, or its name.
        limit: the tensor that says it, as the number of the turn is typed.
        flat: the same as one int64, for shapes.
    """

    size: Size
    limit: str
    flat: str

    @staticmethod
    def known(new: Inlining, loop: _While, size: int) -> _Length:
        limit = new.add(Tensor("", "int32", (), np.array(size, np.int32)), f"{loop.prefix}/turns")
        return _Length(size, limit, new.integers([size], f"{loop.prefix}/turns"))

    @staticmethod
    def of_sequence(new: Inlining, loop: _While, sequence: str) -> _Length:
        flat = _size_of(new, loop.prefix, sequence, 0)
        counted = new.add(Tensor("", "int64", ()), f"{loop.prefix}/turns")
        limit = new.add(Tensor("", "int32", ()), f"{loop.prefix}/turns")
        new.ops.append(Op("Reshape", (flat, new.integers([], f"{loop.prefix}/scalar")), (counted,)))
        new.ops.append(Op("Cast", (counted,), (limit,), {"to": "int32"}))
        return _Length((new.tensors[sequence].shape or (f"{loop.prefix}/turns",))[0], limit, flat)

    @staticmethod
    def of_count(new: Inlining, loop: _While, count: str) -> _Length:
        data = new.tensors[count].data
        if data is not None:
            turns = max(int(data.reshape(-1)[0]), 0)
            return _Length(turns, count, new.integers([turns], f"{loop.prefix}/turns"))
        least, flat = (new.add(Tensor("", "int64", (1,)), f"{loop.prefix}/turns") for _ in range(2))
        new.ops.append(Op("Reshape", (count, new.integers([1], f"{loop.prefix}/flat")), (least,)))
        new.ops.append(Op("Max", (least, new.integers([0], f"{loop.prefix}/none")), (flat,)))
        return _Length(f"{loop.prefix}/turns", count, flat)


def _orient_sequence(new: Inlining, op: Op, name: str, axis: int, way: int) -> str:
    """Return a sequence with the elements along its first axis, in the order of the turns."""
    shape = new.tensors[name].shape
    if shape is None:
        raise UnsupportedError(
            f"{op.kind} over {name!r} of unknown rank cannot be written as a While", where=op.location, rule="unknown-rank"
        )
    axis %= len(shape)
    if axis:
        order = (axis, *(other for other in range(len(shape)) if other != axis))
        name = _emit_transpose(new, op, name, order, "")
    return _emit_reverse(new, op, name, "") if way else name


def _orient_stack(new: Inlining, op: Op, stack: str, result: str, axis: int, way: int) -> None:
    """The stack of a Scan's results, the last one first where it says so, along the axis that it says."""
    if way:
        stack = _emit_reverse(new, op, stack, "" if axis else result)
    if axis:
        rank = len(new.tensors[stack].shape or ())
        _emit_transpose(new, op, stack, (*range(1, axis + 1), 0, *range(axis + 1, rank)), result)


def _emit_transpose(new: Inlining, op: Op, name: str, order: Sequence[int], result: str) -> str:
    tensor = new.tensors[name]
    shape = tuple((tensor.shape or ())[axis] for axis in order)
    result = result or new.add(replace(tensor, shape=shape, data=None), f"{name}/turned")
    new.ops.append(Op("Transpose", (name,), (result,), {"perm": tuple(order)}, op.source))
    return result


def _emit_reverse(new: Inlining, op: Op, name: str, result: str) -> str:
    result = result or new.add(replace(new.tensors[name], data=None), f"{name}/reversed")
    bounds = [new.integers([value], f"{name}/{word}") for word, value in (("last", -1), ("first", _FAR_BACK), ("axis", 0), ("step", -1))]
    new.ops.append(Op("Slice", (name, *bounds), (result,), {}, op.source))
    return result


def _sources(new: Inlining, function: Graph, given: Sequence[str], elements: range) -> Mapping[str, tuple[str, int]]:
    """Return where in the graph around it the sizes that the body names are found: size -> tensor and axis."""
    found: dict[str, tuple[str, int]] = {}
    for index, (outer, inside) in enumerate(zip(given, function.inputs, strict=True)):
        if outer:
            shift = int(index in elements)  # an element lacks the first axis of its sequence
            found.update((size, (outer, axis + shift)) for axis, size in enumerate(function[inside].shape or ()) if isinstance(size, str))
            around = (new.tensors[outer].shape or ())[shift:]
            found.update((size, (outer, axis + shift)) for axis, size in enumerate(around) if isinstance(size, str))
    return found


def _emit_stack_sizes(loop: _While, value: str, length: Size, flat: str, sources: Mapping[str, tuple[str, int]]) -> tuple[list[Size], str]:
    """Return the sizes of the stack of a value, of a length that the tensor `flat` says, and the tensor that holds them."""
    # A file may call the size of a result otherwise than its operators do.
    shapes = (graph[value].shape for graph in (loop.function, infer(loop.function)))
    shape = next((one for one in shapes if one is not None and all(isinstance(size, int) or size in sources for size in one)), None)
    if shape is None:
        what = f"{loop.op.kind} that stacks {value!r}, which has a dynamic dimension, cannot be written as a While"
        raise UnsupportedError(what, where=loop.op.location, rule="dynamic-dimension")
    new, parts = loop.outer, [flat]
    if all(isinstance(size, int) for size in (length, *shape)):
        numbers = [int(size) for size in (length, *shape)]
        return list(numbers), new.integers(numbers, f"{loop.prefix}/sizes")
    for size in shape:
        parts.append(new.integers([size], f"{loop.prefix}/size") if isinstance(size, int) else _size_of(new, loop.prefix, *sources[size]))
    dims = new.add(Tensor("", "int64", (len(parts),)), f"{loop.prefix}/sizes")
    new.ops.append(Op("Concat", tuple(parts), (dims,), {"axis": 0}, loop.op.source))
    return [length, *shape], dims


def _size_of(new: Inlining, prefix: str, name: str, axis: int) -> str:
    """Return a size of a tensor, as one int64."""
    sizes = new.add(Tensor("", "int64", (len(new.tensors[name].shape or ()),)), f"{prefix}/shape")
    new.ops.append(Op("Shape", (name,), (sizes,)))
    one = new.add(Tensor("", "int64", (1,)), f"{prefix}/size")
    new.ops.append(Op("Gather", (sizes, new.integers([axis], f"{prefix}/axis")), (one,), {"axis": 0}))
    return one
