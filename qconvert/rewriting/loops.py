"""Loop and Scan of ONNX as Whiles, for formats that have no other loops.

A While carries what they carry, the number of the turn, and the stack of each of their results, which it has as a whole from the first turn
on: a turn writes its place. Where nobody knows beforehand how many turns there will be, the stack grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from qconvert.arithmetic.storage import numpy_dtype
from qconvert.errors import UnsupportedError
from qconvert.graph.names import Names
from qconvert.graph.schema import Graph, Op, Tensor
from qconvert.operators.control import scan_axes
from qconvert.operators.shapes_and_functions import infer
from qconvert.operators.sizes import Size
from qconvert.rewriting.control_flow import copy_duplicates, prefix_of, replace_kind, skip_identities, trip_count
from qconvert.rewriting.rewriter import Rewriter

#: Ends of a Slice that goes as far as there is anything, forwards and backwards.
_FAR, _FAR_BACK = (int(limit) for limit in (np.iinfo(np.int64).max, np.iinfo(np.int64).min))


def loops_to_whiles(graph: Graph) -> Graph:
    """Return the graph with a While in the place of every Loop and Scan, in its functions too.

    Raises:
        UnsupportedError: the size of what each turn gives is dynamic.
    """
    return replace_kind(replace_kind(graph, "Loop", _from_loop), "Scan", _from_scan)


class _While:
    """A While that is made of another loop.

    Args:
        outer: the graph around it.
        op: the loop.
        function: the loop's body.
        turns: the type of the number of the turn.
        inside: its name in the body; "" where the body does not take it.
    """

    def __init__(self, outer: Rewriter, op: Op, function: Graph, turns: str, inside: str = "") -> None:
        self.outer, self.op, self.function = outer, op, function
        self.body = Rewriter(function)
        self._carried: list[tuple[str, str, str, str]] = []
        number = function[inside] if inside else Tensor("", turns, ())
        self.turn = inside or self.body.add("turn", number)
        shape, dtype = number.static_shape or (), numpy_dtype(number.dtype)
        start = outer.constant(f"{self.prefix}/turn", np.zeros(shape, dtype))
        following = self.body.add("next", number)
        self.body.append(Op("Add", (self.turn, self.body.constant("one", np.ones(shape, dtype))), (following,)))
        self.carry(start, self.turn, following)

    @property
    def prefix(self) -> str:
        return prefix_of(self.op)

    def carry(self, given: str, inside: str, after: str = "", result: str = "") -> None:
        """Carry one value more.

        Args:
            given: what the While takes.
            inside: the input of its functions.
            after: the output of its body; "" for a value that no turn changes.
            result: what the While gives; "" where nobody reads it.
        """
        self._carried.append((given, inside, after or inside, result))

    def capture(self, given: str, inside: str) -> None:
        """A value from outside, which the body reads; a constant is one of the body."""
        tensor = self.outer[given]
        if tensor.data is None:
            self.carry(given, inside)
        else:
            self.body.define(replace(self.body[inside], shape=tensor.shape, data=tensor.data))

    def element(self, sequence: str, inside: str) -> None:
        """What the body takes of a sequence at each turn."""
        whole = self.body.add(f"{inside}/all", self.body[inside], shape=self.outer[sequence].shape)
        self.body.emit(Op("Gather", (whole, self.turn), (inside,), {"axis": 0}))
        self.carry(sequence, whole)

    def stack(self, value: str, result: str, sizes: Sequence[Size], dims: str) -> None:
        """The stack of what each turn gives, which has `dims` (a tensor), known as `sizes`."""
        inner = self.body[value]
        first = self._emit_zeros(inner, sizes, dims)
        whole, written = (self.body.add(f"{value}/{word}", inner, shape=tuple(sizes)) for word in ("all", "written"))
        start = self.place(len(sizes))
        self.body.append(Op("DynamicUpdateSlice", (whole, self.row(value), start), (written,)))
        self.carry(first, whole, written, result)

    def grow_stack(self, value: str, result: str, sizes: Sequence[Size], dims: str) -> Op:
        """Return the stack of what each turn gives, one longer after each turn, which has `dims` (a tensor) at first, known as `sizes`.

        It begins with a row that nobody wants, since LiteRT's WHILE carries nothing that is empty (measured). The operator that takes that
        away again is returned, to stand after the While.
        """
        inner, outer = self.body[value], self.outer
        first = self._emit_zeros(inner, sizes, dims)
        names = [f"{value}/{word}" for word in ("so far", "longer")]
        whole, longer = (self.body.add(name, inner, shape=(name, *sizes[1:])) for name in names)
        self.body.append(Op("Concat", (whole, self.row(value)), (longer,), {"axis": 0}))
        stack = outer.add(f"{result}/stack", outer[result], shape=(f"{result}/rows", *sizes[1:]))
        self.carry(first, whole, longer, stack)
        bounds = [outer.constant(f"{result}/{word}", [bound]) for word, bound in (("second", 1), ("end", _FAR), ("axis", 0))]
        return self.op.derive("Slice", (stack, *bounds), (result,))

    def _emit_zeros(self, like: Tensor, sizes: Sequence[Size], dims: str) -> str:
        zero = self.outer.add(f"{self.prefix}/nothing", like, shape=(), data=np.zeros((), numpy_dtype(like.dtype)))
        return self.outer.compute("Expand", (zero, dims), f"{self.prefix}/first", replace(like, shape=tuple(sizes)), self.op.source)

    def row(self, value: str) -> str:
        """Return a value of the body with an axis of 1 in front."""
        value = skip_identities(self.body.producers, value)
        tensor = self.body[value]
        row = self.body.add(f"{value}/row", tensor, shape=(1, *(tensor.shape or ())))
        self.body.append(Op("Unsqueeze", (value, self.body.constant("axis", [0])), (row,)))
        return row

    def place(self, rank: int) -> str:
        """Return where in a stack of that rank the turn's row begins."""
        turn = self.body[self.turn]
        flat = self.body.add("turn/flat", turn, shape=(1,))
        self.body.append(Op("Reshape", (self.turn, self.body.constant("flat", [1])), (flat,)))
        if rank == 1:
            return flat
        start = self.body.add("turn/place", turn, shape=(rank,))
        zeros = self.body.constant("turn/zeros", np.zeros(rank - 1, numpy_dtype(turn.dtype)))
        self.body.append(Op("Concat", (flat, zeros), (start,), {"axis": 0}))
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
            number = self.outer[limit]
            inner = self.body.add("limit", number, data=number.data)
            if number.data is None:
                self.carry(limit, inner)
        given, inside, after, results = zip(*self._carried, strict=True)
        condition = self._condition(inner, go, inside)
        body = self.body.finish(prune=True, inputs=inside, outputs=copy_duplicates(after, (), self.body.copy))
        attributes = {}
        for word, graph in (("body", body), ("condition", condition)):
            attributes[word] = names.fresh(f"{self.op['body']}/{word}")
            functions[attributes[word]] = graph
        self.outer.remove(self.op)
        self.outer.emit(self.op.derive("While", given, results, **attributes))

    def _condition(self, limit: str, go: str, inside: tuple[str, ...]) -> Graph:
        tensors = {name: self.body[name] for name in inside}
        graph = Graph(f"{self.function.name}/condition", tensors, (), inside, (go,) if go else ())
        if not limit:
            return graph
        rewriter, is_below = Rewriter(graph), Tensor("", "bool", tensors[self.turn].shape)
        if limit not in tensors:
            rewriter.define(self.body[limit])
        end = rewriter.compute("Less", (self.turn, limit), "below", is_below)
        if go:
            end = rewriter.compute("And", (go, end), "goes on", is_below)
        return rewriter.finish(outputs=(end,))


def _from_scan(new: Rewriter, op: Op, functions: dict[str, Graph], names: Names) -> None:
    """Add the While that a Scan is: as many turns as its sequences are long. Sequences run along their first axis, and forwards."""
    count, scanned = int(op["carried"]), int(op["num_scan_inputs"])
    function = functions[str(op["body"])]
    loop = _While(new, op, function, "int32")
    for index in range(count):
        loop.carry(op.inputs[index], function.inputs[index], function.outputs[index], op.outputs[index])
    ways = zip(*(scan_axes(op, f"scan_input_{word}", scanned) for word in ("axes", "directions")), strict=True)
    sequences = [_orient_sequence(new, op, name, *way) for name, way in zip(op.inputs[count : count + scanned], ways, strict=True)]
    for sequence, inside in zip(sequences, function.inputs[count:], strict=False):
        loop.element(sequence, inside)
    for given, inside in zip(op.inputs[count + scanned :], function.inputs[count + scanned :], strict=True):
        loop.capture(given, inside)
    known = [shape[0] for name in sequences if (shape := new[name].shape) and isinstance(shape[0], int)]
    if known:
        length = _Length.of_count(new, loop, new.constant(f"{loop.prefix}/turns", np.array(known[0], np.int32)))
    else:
        length = _Length.of_sequence(new, loop, sequences[0])
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
            stack = new.add(f"{result}/stack", new[result], shape=None)
            finished.append((stack, result, axis % rank, way))
        sizes, dims = _emit_stack_sizes(loop, value, length.size, length.flat, sources)
        loop.stack(value, stack, sizes, dims)
        new.define(replace(new[stack], shape=tuple(sizes)))
    loop.write(length.limit, "", functions, names)
    for stack, result, axis, way in finished:
        _orient_stack(new, op, stack, result, axis, way)


def _from_loop(new: Rewriter, op: Op, functions: dict[str, Graph], names: Names) -> None:
    """Add the While that a Loop is: as many turns as its count says, as long as the condition of the turn before is true."""
    count = int(op["carried"])
    function = functions[str(op["body"])]
    turn, before, *rest = function.inputs
    loop = _While(new, op, function, "int64", turn)
    turns = trip_count(new, op, function)
    always, limit = turns is not None, op.inputs[0]
    if turns is not None:
        if math.isfinite(turns):
            limit = new.constant(f"{loop.prefix}/turns", np.array(turns, np.int64))
        loop.body.define(replace(function[before], data=np.ones(function[before].static_shape or (), np.bool_)))
    else:
        go = op.inputs[1] or new.constant(f"{loop.prefix}/go", np.array(True))
        loop.carry(go, before, function.outputs[0])
    for index in range(count):
        loop.carry(op.inputs[2 + index], rest[index], function.outputs[1 + index], op.outputs[index])
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
            one = new.constant(f"{loop.prefix}/one", [1])
            following.append(loop.grow_stack(value, result, *_emit_stack_sizes(loop, value, 1, one, sources)))
    loop.write(limit, "" if always else before, functions, names)
    new.emit(*following)


class _Length(NamedTuple):
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
    def of_sequence(new: Rewriter, loop: _While, sequence: str) -> _Length:
        flat, turns = _size_of(new, loop.prefix, sequence, 0), f"{loop.prefix}/turns"
        counted = new.compute("Reshape", (flat, new.constant(f"{loop.prefix}/scalar", [])), turns, Tensor("", "int64", ()))
        limit = new.compute("Cast", (counted,), turns, Tensor("", "int32", ()), to="int32")
        return _Length((new[sequence].shape or (turns,))[0], limit, flat)

    @staticmethod
    def of_count(new: Rewriter, loop: _While, count: str) -> _Length:
        data, name, one = new[count].data, f"{loop.prefix}/turns", Tensor("", "int64", (1,))
        if data is not None:
            turns = max(int(data.reshape(-1)[0]), 0)
            return _Length(turns, count, new.constant(name, [turns]))
        least = new.compute("Reshape", (count, new.constant(f"{loop.prefix}/flat", [1])), name, one)
        return _Length(name, count, new.compute("Max", (least, new.constant(f"{loop.prefix}/none", [0])), name, one))


def _orient_sequence(new: Rewriter, op: Op, name: str, axis: int, way: int) -> str:
    """Return a sequence with the elements along its first axis, in the order of the turns."""
    shape = new[name].shape
    if shape is None:
        raise UnsupportedError(
            f"{op.kind} over {name!r} of unknown rank cannot be written as a While", where=op.location, rule="unknown-rank"
        )
    axis %= len(shape)
    if axis:
        order = (axis, *(other for other in range(len(shape)) if other != axis))
        name = _emit_transpose(new, op, name, order, "")
    return _emit_reverse(new, op, name, "") if way else name


def _orient_stack(new: Rewriter, op: Op, stack: str, result: str, axis: int, way: int) -> None:
    """The stack of a Scan's results, the last one first where it says so, along the axis that it says."""
    if way:
        stack = _emit_reverse(new, op, stack, "" if axis else result)
    if axis:
        rank = len(new[stack].shape or ())
        _emit_transpose(new, op, stack, (*range(1, axis + 1), 0, *range(axis + 1, rank)), result)


def _emit_transpose(new: Rewriter, op: Op, name: str, order: tuple[int, ...], result: str) -> str:
    shape = new[name].shape or ()
    result = result or new.add(f"{name}/turned", new[name], shape=tuple(shape[axis] for axis in order))
    new.emit(op.derive("Transpose", (name,), (result,), perm=order))
    return result


def _emit_reverse(new: Rewriter, op: Op, name: str, result: str) -> str:
    result = result or new.add(f"{name}/reversed", new[name])
    bounds = [new.constant(f"{name}/{word}", [value]) for word, value in (("last", -1), ("first", _FAR_BACK), ("axis", 0), ("step", -1))]
    new.emit(op.derive("Slice", (name, *bounds), (result,)))
    return result


def _sources(new: Rewriter, function: Graph, given: Sequence[str], elements: range) -> Mapping[str, tuple[str, int]]:
    """Return where in the graph around it the sizes that the body names are found: size -> tensor and axis."""
    found: dict[str, tuple[str, int]] = {}
    for index, (outer, inside) in enumerate(zip(given, function.inputs, strict=True)):
        if outer:
            shift = int(index in elements)  # an element lacks the first axis of its sequence
            found.update((size, (outer, axis + shift)) for axis, size in enumerate(function[inside].shape or ()) if isinstance(size, str))
            around = (new[outer].shape or ())[shift:]
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
        return list(numbers), new.constant(f"{loop.prefix}/sizes", numbers)
    for size in shape:
        parts.append(new.constant(f"{loop.prefix}/size", [size]) if isinstance(size, int) else _size_of(new, loop.prefix, *sources[size]))
    return [length, *shape], new.compute(
        "Concat", tuple(parts), f"{loop.prefix}/sizes", Tensor("", "int64", (len(parts),)), loop.op.source, axis=0
    )


def _size_of(new: Rewriter, prefix: str, name: str, axis: int) -> str:
    """Return a size of a tensor, as one int64."""
    sizes = new.compute("Shape", (name,), f"{prefix}/shape", Tensor("", "int64", (len(new[name].shape or ()),)))
    place = new.constant(f"{prefix}/axis", [axis])
    return new.compute("Gather", (sizes, place), f"{prefix}/size", Tensor("", "int64", (1,)), axis=0)
