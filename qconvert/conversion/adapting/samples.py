"""Where samples stand in the tensors of a network, and tensors for another number of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from qconvert.errors import OptionError
from qconvert.evaluate.known_values import KnownSizes
from qconvert.graph import Array, Graph, Op, Shape, Tensor
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import states_by_reader
from qconvert.operators.sizes import Size


@dataclass(frozen=True, slots=True)
class Place:
    """Where samples stand: along an axis, of which each sample has so many parts before the next one's; `before` is how often all
    samples come one after the other along the axis."""

    axis: int
    before: int = 1


class Choices:
    """Choices among several possible batch axes, as after some Reshapes: all combinations, one walk after the other."""

    def __init__(self) -> None:
        self._taken: dict[object, tuple[int, int]] = {}

    def of(self, key: object, count: int) -> int:
        """The choice at a place, of so many."""
        return self._taken.setdefault(key, (0, count))[0]

    def advance(self) -> bool:
        """Goes on to the next combination; False if there is none."""
        while self._taken:
            key, (number, count) = self._taken.popitem()
            if number + 1 < count:
                self._taken[key] = (number + 1, count)
                return True
        return False


class Samples:
    """The tensors of a graph, with shapes for another number of samples as far as they are known by now.

    Args:
        graph: for the old number of samples, with the functions that it runs.
        inputs: those that have samples, and where.
        numbers: of samples, old and new.
        choices: what is chosen where there is a choice.
        touched: further inputs that are made of sizes.
        within: the function that the graph is; "" for the network.
        functions: where new functions go; the network's own by default.

    Attributes:
        old, new: numbers of samples.
        tensors: all tensors, with new shapes where these are known.
        places: where samples stand, for tensors that have them.
        touched: tensors that are others than for the old number.
        ops: the operators that were mended, so far.
        states: of the network, for the new number, with the axis of the samples.
        outputs: names of the graph's outputs.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Place],
        numbers: tuple[int, int],
        choices: Choices,
        *,
        touched: Iterable[str] = (),
        within: str = "",
        functions: dict[str, Graph] | None = None,
    ) -> None:
        self.graph, self.choices, self.within = graph, choices, within
        self.old, self.new = self.numbers = numbers
        self.functions = dict(graph.functions) if functions is None else functions
        self.tensors = dict(graph.tensors)
        self.integers = KnownSizes(self.tensors, graph.producers()).dimensions
        self.places: dict[str, Place] = {}
        self.touched = {*inputs, *touched}
        self.names = graph.names(self.tensors)
        self.outputs = list(graph.outputs)
        self.ops: list[Op] = []
        self._alone: dict[str, Tensor] = {}  # tensors that are new, as they would be for the old samples
        self.states: dict[str, tuple[Tensor, int]] = {}
        for op in graph.ops if not within else ():
            if kind_of(op).reads_state and (found := self._state(op)) is not None:
                self.states[str(op["state"])] = found
        for name, place in inputs.items():
            self.begin(name, place)
        for name, state in states_by_reader(graph).items():
            if state in self.states:
                self.begin(name, Place(self.states[state][1]))

    def begin(self, name: str, place: Place) -> None:
        """Where the samples of a tensor stand that no operator computes."""
        shape, axis = self.graph[name].shape or (), place.axis
        self.tensors[name] = replace(self.graph[name], shape=(*shape[:axis], self.scale_size(shape[axis]), *shape[axis + 1 :]))
        self.places[name] = place
        self.touched.add(name)

    def _state(self, op: Op) -> tuple[Tensor, int] | None:
        """The state that is read, with rows for each sample, and their axis; None if it has no rows for the old number."""
        state, places = self.graph.states[str(op["state"])], set[int]()
        for reader in self.graph.ops:
            rows = kind_of(reader).samples.rows(reader, -1)
            places.update(axis for index, axis in rows.items() if axis >= 0 and reader.has(index) and reader.inputs[index] == op.name)
        axis = places.pop() if len(places) == 1 else 0
        values = self._repeated_values(state, axis)
        return None if values is None or values.ndim < 2 else (replace(state, shape=values.shape, data=values), axis)

    def scale_size(self, size: Size) -> Size:
        return int(size) // self.old * self.new

    def batch_error(self, op: Op, reason: str) -> OptionError:
        remedy = "Convert the part of the network without it: --subgraph."
        return OptionError(f"--batch: this operator {reason}", where=op.location, remedy=remedy, rule="batch-not-separable")

    def axis_of_new(self, op: Op, index: int) -> int | None:
        """Along which axis a value that a loop carries has samples although its first value has none; None for none."""
        shape = self.graph[op.inputs[index]].shape or ()
        axes = [axis for axis, size in enumerate(shape) if size == self.old]
        choice = self.choices.of((self.within, op.outputs, index), len(axes) + 1)
        return axes[choice - 1] if choice else None

    def before(self, name: str) -> Tensor:
        """A tensor as it is for the old samples."""
        return self._alone[name] if name in self._alone else self.graph[name]

    def new_tensor(self, like: str, shape: Shape, axis: int) -> str:
        """Adds a tensor that has the samples along an axis; its name is returned."""
        name = self.names.fresh(f"{like}/samples")
        self.tensors[name] = replace(self.tensors[like], name=name, shape=shape, data=None)
        self._alone[name] = replace(self.tensors[name], shape=(*shape[:axis], self.old, *shape[axis + 1 :]))
        self.places[name] = Place(axis)
        self.touched.add(name)
        return name

    def with_repeated(self, op: Op, index: int, axis: int) -> Op:
        """The operator with what it takes next to samples repeated for each. Raises OptionError where that is not one for each."""
        name = op.inputs[index]
        values, shape = self._repeated_values(self.graph[name], axis), self.tensors[name].static_shape
        if values is not None:
            return self.with_constant(op, index, values, self.graph[name])
        if self.graph[name].is_constant or shape is None or axis >= len(shape) or not shape[axis] == self.old == 1:
            raise self.batch_error(op, f"combines samples with {name!r}, which is not the same for each sample")
        repeats = self.add_constant(name, np.array([self.new if at == axis else 1 for at in range(len(shape))], np.int64), None)
        tiled = self.new_tensor(name, (*shape[:axis], self.new, *shape[axis + 1 :]), axis)
        self.ops.append(op.derive("Tile", (name, repeats), (tiled,)))
        return op.with_input(index, tiled)

    def _repeated_values(self, tensor: Tensor, axis: int) -> Array | None:
        """A constant for the old samples for the new ones; None if it is no constant, or differs from sample to sample."""
        data = tensor.data
        if data is None or axis >= data.ndim or data.shape[axis] != self.old:
            return None
        first = data.take([0], axis)
        return None if self.old > 1 and (data != first).any() else np.repeat(first, self.new, axis)

    def repeat_output(self, index: int, place: Place) -> bool:
        """Makes a constant that is an output one for each sample, if it can be."""
        name = self.graph.outputs[index]
        values = self._repeated_values(self.graph[name], place.axis) if place.before == 1 else None
        if values is None:
            return False
        self.outputs[index] = self.add_constant(name, values, self.graph[name])
        return True

    def with_constant(self, op: Op, index: int, values: Array, like: Tensor | None = None) -> Op:
        return op.with_input(index, self.add_constant(op.inputs[index], values, like))

    def add_constant(self, hint: str, values: Array, like: Tensor | None) -> str:
        """Adds a constant, whose name is returned."""
        name = self.names.fresh(f"{hint}/batch")
        tensor = Tensor(name, "int64", values.shape, values) if like is None else replace(like, name=name, shape=values.shape, data=values)
        self.tensors[name] = tensor
        return name

    def place_at(self, op: Op, name: str, place: Place) -> None:
        """Says where the samples of a result stand that has as many axes as before. Raises OptionError where its sizes are not known."""
        shape = self.graph[name].shape
        if shape is None or place.axis >= len(shape) or not isinstance(shape[place.axis], int):
            raise self.batch_error(op, f"gives {name!r} a dynamic shape")
        self.begin(name, place)
