"""The walk through a network's operators, each of which takes another number of samples, has its stated sizes mended, or is named.
Functions that operators run are walked through likewise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qconvert.conversion.adapting.samples import Place, Samples
from qconvert.errors import InvalidGraphError
from qconvert.graph import Graph, Op, Shape
from qconvert.graph.names import Names
from qconvert.operators import FunctionCall, Port, kind_of
from qconvert.operators.properties import MIXES
from qconvert.operators.shapes_and_functions import in_function, merge_shapes, named_states, output_shapes, rename_functions

#: The end of a Slice that takes all.
_FAR = 2**31 - 1


def adapt_op(samples: Samples, op: Op) -> Op:
    """The operator with sizes, or constants, for the new number of samples."""
    data = op.inputs[0] if op.inputs else ""
    if op.kind == "Reshape" and data in samples.places:
        return _adapt_reshape(samples, op, data, samples.places[data])
    if op.kind == "Slice" and data in samples.places:
        return _adapt_slice(samples, op, samples.places[data].axis)
    placed = next((name for name in op.inputs if name in samples.places), "")
    return _repeat_constants(samples, op, kind_of(op).samples.rows(op, samples.places[placed].axis)) if placed else op


def _adapt_reshape(samples: Samples, op: Op, data: str, place: Place) -> Op:
    """A Reshape with the samples along an axis of their own in its result, or joined with the axes before them.

    A single sample may also stand along any axis of size 1, by Transposes: converters write a Reshape for a Transpose of size-1 axes.
    """
    before, given = samples.graph[op.name].static_shape, samples.graph[data].static_shape
    if before is None or given is None:
        return op
    whole = math.prod(given[: place.axis]) * place.before
    own, joined, turned = list[int](), list[int](), list[int]()
    for axis, size in enumerate(before):
        outer = math.prod(before[:axis])
        if outer and whole % outer == 0 and size and size % (whole // outer * samples.old) == 0:
            (own if size == samples.old and outer == whole else joined).append(axis)
        elif size == samples.old == 1 and place.before == 1:
            turned.append(axis)
    fitting = [*own, *joined, *turned]
    if not fitting:
        raise samples.batch_error(op, f"gives {op.name!r} the shape {before}, which has no batch axis")
    choice = samples.choices.of((samples.within, op.name), len(fitting))
    axis = fitting[choice]
    if choice >= len(own) + len(joined):
        return _reshape_each_sample(samples, op, data, place.axis, axis)
    wanted = tuple(int(samples.scale_size(size)) if i == axis else size for i, size in enumerate(before))
    try:
        (found,) = output_shapes(samples.tensors, op, samples.integers)
    except InvalidGraphError:
        found = None
    return op if found == wanted else samples.with_constant(op, 1, np.array(wanted, np.int64))


def _reshape_each_sample(samples: Samples, op: Op, data: str, axis: int, to: int) -> Op:
    """A Reshape of each sample by itself: of samples along the first axis, to and from where Transposes bring them."""
    given, wanted = samples.tensors[data].shape or (), samples.graph[op.name].static_shape or ()
    if axis:
        perm = (axis, *(other for other in range(len(given)) if other != axis))
        data = _insert_before(samples, op.derive("Transpose", (data,), (), perm=perm), tuple(given[other] for other in perm))
    alone = (samples.new, *wanted[:to], *wanted[to + 1 :])
    sizes = samples.add_constant(op.inputs[1] if op.has(1) else data, np.array(alone, np.int64), None)
    if to == 0:
        return Op("Reshape", (data, sizes), op.outputs, op.attributes, op.source)
    data = _insert_before(samples, op.derive("Reshape", (data, sizes), ()), alone)
    return op.derive("Transpose", (data,), op.outputs, perm=(*range(1, to + 1), 0, *range(to + 1, len(alone))))


def _insert_before(samples: Samples, op: Op, shape: Shape) -> str:
    """Adds an operator in front whose result has the samples first; the result's name is returned."""
    name = samples.new_tensor(op.inputs[0], shape, 0)
    samples.ops.append(replace(op, outputs=(name,)))
    return name


def _adapt_slice(samples: Samples, op: Op, axis: int) -> Op:
    """A Slice of all samples, whose end is their number."""
    starts, ends, axes = (samples.integers(name) for name in op.inputs[1:4])
    steps = samples.integers(op.inputs[4]) if op.has(4) else None
    rank = len(samples.graph[op.inputs[0]].shape or ())
    if starts is None or ends is None or axes is None:
        return op
    for index, item in enumerate(axes):
        is_whole = starts[index] == 0 and ends[index] == samples.graph[op.inputs[0]].shape[axis]  # type: ignore[index]
        if isinstance(item, int) and item % rank == axis and is_whole and (steps is None or steps[index] == 1):
            if any(isinstance(end, str) for end in ends):
                return op
            values = [_FAR if place == index else int(end) for place, end in enumerate(ends)]
            return samples.with_constant(op, 2, np.array(values, np.int64))
    return op


def _repeat_constants(samples: Samples, op: Op, axes: Mapping[int, int]) -> Op:
    """The operator with constants for one sample repeated for each."""
    for index, axis in axes.items():
        name = op.inputs[index] if op.has(index) else ""
        if not name or name in samples.places:
            continue
        tensor = samples.graph[name]
        if tensor.shape is None or axis >= len(tensor.shape) or not kind_of(op).samples.is_separate(op, index, axis, len(tensor.shape)):
            continue
        op = samples.with_repeated(op, index, axis)
    return op


#: Where samples stand in the inputs, or outputs, of a function, in order.
_Places = list[Place | None]


def adapt_control_op(walk: Walk, op: Op) -> Op:
    """An operator that runs functions, with functions for the new number of samples; the places of its results are noted.

    What goes from turn to turn has its samples where they are in the first turn; a value that has none there, such as zeros, gets them
    where the function puts them.

    Raises:
        OptionError: it has one condition for all samples, carries them in an order that changes, or a function mixes them.
    """
    if named_states(walk.graph, [op]):
        raise walk.batch_error(op, "runs functions with states, and is not known to keep samples separate")
    found = list(kind_of(op).calls(op))
    offset = len(op.inputs) - len(found[0].inputs)
    if any(name in walk.places for name in kind_of(op).inputs_with_role(op, "index", "condition")):
        raise walk.batch_error(op, "has one condition for all samples")
    places = [_place_in_function(walk, op, port) for port in found[0].inputs]
    begun = list(places)
    for _, index in found[-1].carried:
        if places[index] is None and (axis := walk.axis_of_new(op, index + offset)) is not None:
            places[index] = Place(axis)
    while True:
        made = [_walk_function(walk, call, places) for call in found]
        results = [[inner.places.get(name) for name in inner.graph.outputs] for inner in made]
        if not _propagate_carried(walk, op, found, results, places):
            break
    for call, inner, result in zip(found, made, results, strict=True):
        _align_outputs(walk, op, call, inner, result, results)
    for index, (before, place) in enumerate(zip(begun, places, strict=True)):
        if before is None and place is not None:
            op = walk.with_repeated(op, index + offset, place.axis)
    names = {
        call.function: _add_function(walk.functions, call.function, inner.build_graph()) for call, inner in zip(found, made, strict=True)
    }
    _place_results(walk, op, found[-1].outputs, results[-1])
    return rename_functions(op, names)


def _place_in_function(walk: Walk, op: Op, port: Port) -> Place | None:
    """Where the samples of what a function is given stand in it."""
    place = walk.places.get(port.tensor) if port.tensor else None
    if place is None or port.axis is None:
        return place
    if place.axis == port.axis:
        raise walk.batch_error(op, f"iterates over the samples of {port.tensor!r}")
    return replace(place, axis=place.axis - (place.axis > port.axis))


def _walk_function(walk: Walk, call: FunctionCall, places: Sequence[Place | None]) -> Walk:
    inputs = walk.graph.functions[call.function].inputs
    known = {name: place for name, place in zip(inputs, places, strict=True) if place is not None}
    touched = [name for name, port in zip(inputs, call.inputs, strict=True) if port.tensor in walk.touched]
    inner = walk.inner(call.function, known, touched)
    inner.result()
    return inner


def _propagate_carried(walk: Walk, op: Op, found: Sequence[FunctionCall], results: Sequence[_Places], places: _Places) -> bool:
    """Whether values that go from turn to turn get samples which they had not; they are noted in `places`."""
    is_new = False
    for call, result in zip(found, results, strict=True):
        for output, index in call.carried:
            if result[output] == places[index]:
                continue
            if places[index] is not None:
                name = call.inputs[index].tensor or call.function
                raise walk.batch_error(op, f"carries the samples of {name!r} along another axis into the next iteration")
            places[index], is_new = result[output], True
    return is_new


def _align_outputs(walk: Walk, op: Op, call: FunctionCall, inner: Walk, result: _Places, results: Sequence[_Places]) -> None:
    """Sees to it that an output has samples at one place whichever function gives it, and that no question is one of samples."""
    for index, port in enumerate(call.outputs):
        place = result[index]
        if not port.tensor and port.dtype == "bool" and place is not None:
            raise walk.batch_error(op, "has one condition for all samples")
        wanted = next((other[index] for other in results if len(other) == len(result) and other[index] is not None), None)
        if op.kind != "If" or place == wanted:
            continue
        if place is not None or wanted is None or not inner.repeat_output(index, wanted):
            raise walk.batch_error(op, f"returns {port.tensor!r} with its samples along another axis in each of its functions")


def _add_function(functions: dict[str, Graph], name: str, graph: Graph) -> str:
    """Adds a function under a free name, which is returned."""
    new = Names(functions).fresh(f"{name}/batch")
    functions[new] = replace(graph, functions={}, states={})
    return new


def _place_results(walk: Walk, op: Op, ports: Sequence[Port], places: Sequence[Place | None]) -> None:
    """Notes where the samples of the operator's results stand."""
    for port, place in zip(ports, places, strict=True):
        if port.tensor and place is not None:
            axis = place.axis + (port.axis is not None and place.axis >= port.axis)
            walk.place_at(op, port.tensor, replace(place, axis=axis))


class Walk(Samples):
    """The operators in their order, with shapes worked out again; see Samples."""

    def result(self) -> Graph:
        """The graph for the new number of samples. Raises OptionError, naming the operator that does not take them."""
        for op in self.graph.ops:
            self.ops.append(self._visit_op(op))  # which may put others before it
        return self.build_graph()

    def build_graph(self) -> Graph:
        """What result() gave, with what was changed since."""
        states = {name: self.states[name][0] if name in self.states else state for name, state in self.graph.states.items()}
        graph = self.graph.evolve(tensors=self.tensors.values(), ops=self.ops, states=states, outputs=tuple(self.outputs))
        return replace(graph, functions=self.functions)

    def inner(self, name: str, inputs: Mapping[str, Place], touched: Iterable[str]) -> Walk:
        """The walk through a function, whose inputs have samples there."""
        within = in_function(self.graph, name)
        return Walk(within, inputs, self.numbers, self.choices, touched=touched, within=name, functions=self.functions)

    def _visit_op(self, op: Op) -> Op:
        """The operator, mended if need be; the shapes and places of its results are worked out."""
        if self.touched.isdisjoint(op.inputs):
            return op
        if kind_of(op).has_effect:
            return self._visit_write_state(op)
        if kind_of(op).rule == "control":
            return adapt_control_op(self, op)
        try:
            op = adapt_op(self, op)
            shapes = output_shapes(self.tensors, op, self.integers)
        except InvalidGraphError as error:
            raise self.batch_error(op, f"does not take {self.new} samples: {error.reason}") from error
        self.touched.update(filter(None, op.outputs))
        placed = [name for name in op.inputs if name in self.places]
        gives_sizes = kind_of(op).reads_shape and kind_of(op).rule == "index"
        if placed and not gives_sizes:
            self._require_apart(op)
        results = []
        for name, shape in zip(op.outputs, shapes, strict=True):
            if name:
                results.append(name)
                self.tensors[name] = replace(self.tensors[name], shape=merge_shapes(name, shape, None))
        if not gives_sizes:
            for name in results:
                self._place(op, name, bool(placed))
        return op

    def _visit_write_state(self, op: Op) -> Op:
        """A WriteState whose value has the shape of the state."""
        name = op.inputs[0]
        is_whole = op["state"] in self.states and self.places.get(name) == Place(self.states[op["state"]][1])
        if not is_whole and (name in self.places or op["state"] in self.states):
            raise self.batch_error(op, f"keeps the state {name!r}, which has no row for each sample")
        return op

    def _require_apart(self, op: Op) -> None:
        """Raises where an operator computes across samples, or is not known not to."""
        samples = kind_of(op).samples
        if samples is MIXES:
            raise self.batch_error(op, "is not known to keep samples separate")
        for index, name in enumerate(op.inputs):
            place = self.places.get(name)
            if place is not None and not samples.is_separate(op, index, place.axis, len(self.before(name).shape or ())):
                raise self.batch_error(op, f"computes along axis {place.axis} of {name!r}, the batch axis")

    def _place(self, op: Op, name: str, is_placed: bool) -> None:
        """Finds where the samples stand in a result."""
        before, after = self.graph[name].shape, self.tensors[name].shape
        if before is None or after is None or len(before) != len(after):
            raise self.batch_error(op, f"gives {name!r} a dynamic shape")
        pairs = enumerate(zip(before, after, strict=True))
        differing = [axis for axis, (a, b) in pairs if a != b and not (isinstance(a, str) and isinstance(b, str))]
        if not is_placed:  # integers made of sizes, or data made as large as these say
            if len(differing) == 1 and isinstance(before[differing[0]], int) and self._fits(before, after, differing[0]):
                self.places[name] = Place(differing[0])
            elif differing:
                raise self.batch_error(op, f"gives {name!r} the shape {after} instead of {before}")
            return
        certain = [axis for axis in differing if isinstance(after[axis], int)]
        if len(certain) == 1 < len(differing) and self._fits(before, after, certain[0]):
            # The file says more sizes than can be worked out: those without samples stay what it says.
            after = tuple(after[axis] if axis not in differing or axis in certain else size for axis, size in enumerate(before))
            self.tensors[name], differing = replace(self.tensors[name], shape=after), certain
        if len(differing) != 1 or not self._fits(before, after, differing[0]):
            reason = f"gives {name!r} the shape {after} instead of {before}" if differing else f"gives {name!r} no batch axis"
            raise self.batch_error(op, reason)
        self.places[name] = Place(differing[0], self._before(op, name, differing[0]))

    def _fits(self, before: Shape, after: Shape, axis: int) -> bool:
        """Whether a size has become so many times as large as the batch."""
        a, b = before[axis], after[axis]
        return isinstance(a, int) and isinstance(b, int) and a % self.old == 0 and b * self.old == a * self.new

    def _before(self, op: Op, name: str, axis: int) -> int:
        """How often all samples stand along the axis of a result; see _Place."""
        given = {self.places[item].before for item in op.inputs if item in self.places}
        first = next(item for item in op.inputs if item in self.places)
        place = self.places[first]
        shape, old = self.graph[name].static_shape, self.before(first).static_shape
        if shape is None or old is None:
            if given == {1} and not kind_of(op).keeps_order:
                return 1
            raise self.batch_error(op, f"gives {name!r} a dynamic shape")
        if kind_of(op).keeps_order:
            whole = math.prod(old[: place.axis]) * place.before
            outer = math.prod(shape[:axis])
            inner = whole // outer if outer else 0
            if not outer or whole % outer or not inner or shape[axis] % (inner * self.old):
                raise self.batch_error(op, f"gives {name!r} the shape {shape}, which has no batch axis")
            return inner
        if op.kind in ("SpaceToBatch", "BatchToSpace"):
            a, b = old[0], shape[0]
            times, rest = divmod(place.before * b, a)
            if rest or not times:
                raise self.batch_error(op, "mixes samples with blocks of the image")
            return times
        if len(given) == 1 and old[place.axis] == shape[axis]:
            return place.before
        raise self.batch_error(op, f"returns the samples of {name!r} in an unknown order")
