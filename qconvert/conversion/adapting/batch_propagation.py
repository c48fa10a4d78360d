"""The walk through a network's operators, each of which takes another number of samples, or is named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from qconvert.conversion.adapting.control_flow import adapt_control_op
from qconvert.conversion.adapting.operators import adapt_op
from qconvert.conversion.adapting.samples import Place, Samples
from qconvert.errors import InvalidGraphError
from qconvert.graph import Graph, Op, Shape
from qconvert.operators import kind_of
from qconvert.operators.functions import in_function
from qconvert.operators.samples import MIXES
from qconvert.operators.shapes import merge_shapes, output_shapes

__all__ = ["Walk"]


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
        if op.kind == "WriteState":
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
            if place is not None and not samples.apart(op, index, place.axis, len(self.before(name).shape or ())):
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
