"""--batch: another number of samples in each run, along the first axis of every input, and what follows from it.

A walk through the operators keeps, for each tensor, the axis along which samples stand. Sizes that a file states as numbers, of a Reshape
or a Slice, are mended; an operator that would mix samples, or lose some, is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from qconvert.conversion.adapting.apart import APART, RECURRENT, RESHAPES
from qconvert.errors import InvalidGraphError, OptionError
from qconvert.evaluate.known_sizes import KnownSizes
from qconvert.graph import Array, Graph, Op, Shape, Tensor
from qconvert.graph.shapes import UNKNOWN, merged, output_shapes
from qconvert.graph.sizes import Size

__all__ = ["UNSIZED", "rebatched", "with_batch"]

#: Rules of kinds whose results have shapes that the operator alone does not say.
UNSIZED = ("control", "opaque", "state")
_FAR = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Place:
    """Where samples stand: along an axis, of which each sample has so many parts in front of the next one's; `before` is how often all
    samples come one behind the other along the axis."""

    axis: int
    before: int = 1


def with_batch(graph: Graph, number: int) -> Graph:
    """The graph for so many samples in each run.

    Args:
        graph: whose inputs have samples along their first axis, or along that whose open size is called "batch"; inputs without axes are
            left alone.
        number: of samples, at least 1.

    Raises:
        OptionError: inputs have different first sizes, or an operator mixes or loses samples, or does not take more; it is named.
    """
    from qconvert.conversion.adapting.shapes import settled

    if number > _FAR:
        raise OptionError(f"a batch of {number} is none", remedy="Write --batch 4.")
    firsts: dict[str, Size] = {}
    axes: dict[str, int] = {}
    for name in graph.inputs:
        shape = graph[name].shape
        if shape is None:
            raise OptionError(f"the input {name!r} has no known axes", remedy="Say which: --input-shape.")
        if shape:
            axes[name] = next((axis for axis, size in enumerate(shape) if _is_called_batch(size)), 0)
            firsts[name] = shape[axes[name]]
    if not firsts:
        raise OptionError("no input has an axis for a batch")
    sizes = list(dict.fromkeys(size for size in firsts.values() if isinstance(size, int)))
    if len(sizes) > 1:
        listed = ", ".join(f"{name!r} {size}" for name, size in firsts.items())
        raise OptionError(f"inputs have different first sizes: {listed}", remedy="Say which are the batch: --input-shape name=4,224,224,3.")
    old = sizes[0] if sizes else number
    symbols = {size: old for size in firsts.values() if isinstance(size, str)}
    try:
        graph = settled(graph, symbols, {})
    except InvalidGraphError as error:
        raise OptionError(f"the model does not take a batch of {old}: {error.reason}", where=error.where) from error
    return rebatched(graph, axes, old, number)


def rebatched(graph: Graph, inputs: Mapping[str, int], old: int, new: int) -> Graph:
    """The graph with `new` instead of `old` samples along an axis of some inputs.

    Raises:
        OptionError: see with_batch().
    """
    return graph if old == new else _Walk(graph, inputs, old, new).result()


def _is_called_batch(size: Size) -> bool:
    """Whether an open size is the number of samples by its name, wherever it stands."""
    return isinstance(size, str) and size.lower().startswith("batch")


class _Walk:
    """The operators in their order, with shapes worked out anew.

    Args:
        graph: for `old` samples.
        inputs: those that have samples, and along which axis.
        old, new: numbers of samples.
    """

    def __init__(self, graph: Graph, inputs: Mapping[str, int], old: int, new: int) -> None:
        self._graph, self._old, self._new = graph, old, new
        self._tensors = dict(graph.tensors)
        self._producers = graph.producers()
        self._known = KnownSizes(self._tensors, self._producers)
        self._places: dict[str, _Place] = {}
        self._touched = set(inputs)
        self._names = graph.names(self._tensors)
        self._states: dict[str, tuple[Tensor, int]] = {}
        for op in graph.ops:
            if op.kind == "ReadState" and (found := self._state(op)) is not None:
                self._states[str(op["state"])] = found
        for name, axis in inputs.items():
            self._begin(name, axis)
        for op in graph.ops:
            if op.kind == "ReadState" and op["state"] in self._states:
                self._begin(op.outputs[0], self._states[op["state"]][1])

    def _begin(self, name: str, axis: int) -> None:
        """Samples of a tensor that no operator computes stand along this axis."""
        shape = self._graph[name].shape or ()
        self._tensors[name] = replace(self._graph[name], shape=(*shape[:axis], self._scaled(shape[axis]), *shape[axis + 1 :]))
        self._places[name] = _Place(axis)
        self._touched.add(name)

    def result(self) -> Graph:
        ops = [self._passed(op) for op in self._graph.ops]
        states = {name: self._states[name][0] if name in self._states else state for name, state in self._graph.states.items()}
        return self._graph.evolve(tensors=self._tensors.values(), ops=ops, states=states)

    def _state(self, op: Op) -> tuple[Tensor, int] | None:
        """The state that is read, with rows for each sample, and their axis; None if it has no rows for the old number."""
        state, places = self._graph.states[str(op["state"])], set[int]()
        for reader in self._graph.ops:
            if reader.kind in RECURRENT and op.outputs[0] in reader.inputs[5:7]:
                places.add(0 if reader["layout"] else 1)
        axis = places.pop() if len(places) == 1 else 0
        shape, data = state.static_shape, state.data
        if shape is None or data is None or len(shape) < 2 or shape[axis] != self._old:
            return None
        first = data.take([0], axis)
        if self._old > 1 and (data != first).any():
            return None
        values = np.repeat(first, self._new, axis)
        return replace(state, shape=values.shape, data=values), axis

    def _scaled(self, size: Size) -> Size:
        return int(size) // self._old * self._new

    def _passed(self, op: Op) -> Op:
        """The operator, mended if need be; the shapes and places of its results are worked out."""
        if self._touched.isdisjoint(op.inputs):
            return op
        if op.kind == "WriteState":
            return self._written(op)
        try:
            op = self._mended(op)
            shapes = output_shapes(self._tensors, op, self._integers)
        except InvalidGraphError as error:
            raise self._refused(op, f"does not take {self._new} samples: {error.reason}") from error
        self._touched.update(filter(None, op.outputs))
        placed = [name for name in op.inputs if name in self._places]
        if placed and op.kind not in ("Shape", "Rank"):
            self._require_apart(op)
        results = []
        for name, shape in zip(op.outputs, shapes, strict=True):
            if name:
                results.append(name)
                self._tensors[name] = replace(self._tensors[name], shape=merged(name, shape, None))
        if op.kind not in ("Shape", "Rank"):
            for name in results:
                self._place(op, name, bool(placed))
        return op

    def _written(self, op: Op) -> Op:
        """A WriteState whose value has the shape of the state."""
        name = op.inputs[0]
        is_whole = op["state"] in self._states and self._places.get(name) == _Place(self._states[op["state"]][1])
        if not is_whole and (name in self._places or op["state"] in self._states):
            raise self._refused(op, f"keeps {name!r} from one run to the next, which has no row for each sample")
        return op

    def _integers(self, name: str) -> list[Size] | None:
        forms = self._known.get(name)
        return None if forms is None else [UNKNOWN if (size := self._known.named(form)) is None else size for form in forms]

    def _refused(self, op: Op, reason: str) -> OptionError:
        remedy = "--between converts the part of the network without it."
        return OptionError(f"--batch: this operator {reason}", where=f"{op.source} {op}".strip(), remedy=remedy)

    def _require_apart(self, op: Op) -> None:
        """Raises where an operator computes across samples, or is not known not to."""
        apart = APART.get(op.kind)
        if apart is None:
            raise self._refused(op, "is not known to keep samples apart")
        for index, name in enumerate(op.inputs):
            place = self._places.get(name)
            if place is not None and not apart(op, index, place.axis, len(self._graph[name].shape or ())):
                raise self._refused(op, f"computes along axis {place.axis} of {name!r}, where samples stand")

    def _place(self, op: Op, name: str, is_placed: bool) -> None:
        """Finds where the samples stand in a result."""
        before, after = self._graph[name].shape, self._tensors[name].shape
        if before is None or after is None or len(before) != len(after):
            raise self._refused(op, f"gives {name!r} a shape that is known only at run time")
        pairs = enumerate(zip(before, after, strict=True))
        differing = [axis for axis, (a, b) in pairs if a != b and not (isinstance(a, str) and isinstance(b, str))]
        if not is_placed:  # integers made of sizes, or data made as large as these say
            if len(differing) == 1 and isinstance(before[differing[0]], int) and self._fits(before, after, differing[0]):
                self._places[name] = _Place(differing[0])
            elif differing:
                raise self._refused(op, f"gives {name!r} the shape {after} instead of {before}")
            return
        if len(differing) != 1 or not self._fits(before, after, differing[0]):
            reason = f"gives {name!r} the shape {after} instead of {before}" if differing else f"gives {name!r} no axis for samples"
            raise self._refused(op, reason)
        self._places[name] = _Place(differing[0], self._before(op, name, differing[0]))

    def _fits(self, before: Shape, after: Shape, axis: int) -> bool:
        """Whether a size has become so many times as large as the batch."""
        a, b = before[axis], after[axis]
        return isinstance(a, int) and isinstance(b, int) and a % self._old == 0 and b * self._old == a * self._new

    def _before(self, op: Op, name: str, axis: int) -> int:
        """How often all samples stand along the axis of a result; see _Place."""
        given = {self._places[item].before for item in op.inputs if item in self._places}
        first = next(item for item in op.inputs if item in self._places)
        place = self._places[first]
        shape, old = self._graph[name].static_shape, self._graph[first].static_shape
        if shape is None or old is None:
            if given == {1} and op.kind not in RESHAPES:
                return 1
            raise self._refused(op, f"gives {name!r} a shape that is known only at run time")
        if op.kind in RESHAPES:
            whole = math.prod(old[: place.axis]) * place.before
            outer = math.prod(shape[:axis])
            inner = whole // outer if outer else 0
            if not outer or whole % outer or not inner or shape[axis] % (inner * self._old):
                raise self._refused(op, f"gives {name!r} the shape {shape}, in which samples have no axis")
            return inner
        if op.kind in ("SpaceToBatch", "BatchToSpace"):
            a, b = old[0], shape[0]
            times, rest = divmod(place.before * b, a)
            if rest or not times:
                raise self._refused(op, "mixes samples with blocks of the picture")
            return times
        if len(given) == 1 and old[place.axis] == shape[axis]:
            return place.before
        raise self._refused(op, f"gives {name!r} the samples in an order that is not known")

    def _mended(self, op: Op) -> Op:
        """The operator with sizes, or constants, for the new number of samples."""
        data = op.inputs[0] if op.inputs else ""
        if op.kind == "Reshape" and data in self._places:
            return self._reshaped(op, data, self._places[data])
        if op.kind == "Slice" and data in self._places:
            return self._sliced(op, self._places[data].axis)
        placed = next((name for name in op.inputs if name in self._places), "")
        if op.kind in ("Concat", "Pack") and placed:
            return self._repeated(op, dict.fromkeys(range(len(op.inputs)), self._places[placed].axis))
        if op.kind in RECURRENT and placed == data:
            axis = 0 if op["layout"] else 1
            return self._repeated(op, {4: 0, 5: axis, 6: axis})
        if op.kind == "IntegerLSTM" and placed == data:
            return self._repeated(op, {1: 0, 2: 0})
        return op

    def _reshaped(self, op: Op, data: str, place: _Place) -> Op:
        """A Reshape whose result has the samples along an axis of their own, or with what stood in front of them."""
        before, given = self._graph[op.outputs[0]].static_shape, self._graph[data].static_shape
        if before is None or given is None:
            return op
        whole = math.prod(given[: place.axis]) * place.before
        fitting = []
        for axis, size in enumerate(before):
            outer = math.prod(before[:axis])
            if outer and whole % outer == 0 and size and size % (whole // outer * self._old) == 0:
                fitting.append((axis, size == self._old and outer == whole))
        if not fitting:
            raise self._refused(op, f"gives {op.outputs[0]!r} the shape {before}, in which samples have no axis")
        axis = next((axis for axis, is_own in fitting if is_own), fitting[0][0])
        wanted = tuple(int(self._scaled(size)) if i == axis else size for i, size in enumerate(before))
        try:
            (found,) = output_shapes(self._tensors, op, self._integers)
        except InvalidGraphError:
            found = None
        return op if found == wanted else self._with_constant(op, 1, np.array(wanted, np.int64))

    def _sliced(self, op: Op, axis: int) -> Op:
        """A Slice of all samples, whose end is their number."""
        starts, ends, axes = (self._integers(name) for name in op.inputs[1:4])
        steps = self._integers(op.inputs[4]) if op.has(4) else None
        rank = len(self._graph[op.inputs[0]].shape or ())
        if starts is None or ends is None or axes is None:
            return op
        for index, item in enumerate(axes):
            is_whole = starts[index] == 0 and ends[index] == self._graph[op.inputs[0]].shape[axis]  # type: ignore[index]
            if isinstance(item, int) and item % rank == axis and is_whole and (steps is None or steps[index] == 1):
                if any(isinstance(end, str) for end in ends):
                    return op
                values = [_FAR if place == index else int(end) for place, end in enumerate(ends)]
                return self._with_constant(op, 2, np.array(values, np.int64))
        return op

    def _repeated(self, op: Op, axes: Mapping[int, int]) -> Op:
        """The operator with constants for one sample repeated for each."""
        for index, axis in axes.items():
            name = op.inputs[index] if op.has(index) else ""
            if not name or name in self._places:
                continue
            tensor = self._graph[name]
            own = op["axis"] if op.kind == "Concat" else None
            if tensor.shape is None or axis >= len(tensor.shape) or (own is not None and own % len(tensor.shape) == axis):
                continue
            if tensor.data is None or self._old != 1 or tensor.shape[axis] != 1:
                raise self._refused(op, f"joins samples with {name!r}, which is not one for each")
            op = self._with_constant(op, index, np.repeat(tensor.data, self._new, axis), tensor)
        return op

    def _with_constant(self, op: Op, index: int, values: Array, like: Tensor | None = None) -> Op:
        name = self._names.fresh(f"{op.inputs[index]}/batch")
        tensor = Tensor(name, "int64", values.shape, values) if like is None else replace(like, name=name, shape=values.shape, data=values)
        self._tensors[name] = tensor
        return replace(op, inputs=tuple(name if place == index else other for place, other in enumerate(op.inputs)))
