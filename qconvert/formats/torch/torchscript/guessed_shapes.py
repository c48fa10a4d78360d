"""Guesses of the shapes of inputs that nobody states: the first layer that reads an input says its rank and its channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from qconvert.errors import QConvertError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.values import EndlessError
from qconvert.graph import Op, Shape
from qconvert.operators import kind_of, output_axis
from qconvert.operators.properties import Suits
from qconvert.operators.sizes import Shapes

#: Input -> its shape and storage type.
Guesses = Mapping[str, tuple[Shape, str]]

#: Rank -> names of the sizes after the batch and the channels.
_SPATIAL: Mapping[int, tuple[str, ...]] = {3: ("length",), 4: ("height", "width"), 5: ("depth", "height", "width")}
#: Ranks in the order in which they are tried.
_RANKS = (4, 3, 2, 5)
_ROWS = 2


@dataclass(frozen=True, slots=True)
class _Layer:
    """What the first layer that reads an input says of the input.

    Attributes:
        shapes: by rank, the most likely first; dynamic dimensions have names.
        dtype: the input's storage type.
    """

    shapes: Mapping[int, Shape]
    dtype: str = "float32"

    def shape(self, rank: int, prefix: str) -> Shape:
        """The shape of an input of a rank; dynamic dimensions but the batch have names with the prefix."""
        sizes = self.shapes.get(rank, self.shapes[max(self.shapes)])
        return tuple(f"{prefix}{size}" if isinstance(size, str) and size != "batch" else size for size in sizes)


class _FoundError(Exception):
    """All layers that were looked for are known."""


class Probe(Draft):
    """A graph that is read only until the first layer after each input is known.

    Args:
        wanted: names of inputs.
    """

    def __init__(self, wanted: Sequence[str]) -> None:
        super().__init__()
        self._wanted = set(wanted)
        #: Input -> the layer.
        self.found: dict[str, _Layer] = {}

    def append(self, op: Op, shapes: Shapes | None = None) -> None:
        """Appends an operator, and looks at what it reads."""
        super().append(op, shapes)
        if op.outputs and self.producers.find(op.outputs[0], "Gather"):
            self._add_layer(op, op.inputs[1], op.inputs[0])
        elif weights := kind_of(op).weights:
            self._add_layer(op, op.inputs[0], op.inputs[weights[0]])

    def _add_layer(self, op: Op, data: str, weights: str) -> None:
        shape = self.tensors[weights].static_shape
        if shape is None or len(shape) < 2 or (self.tensors[weights].data is None and self.known.get(weights) is None):
            return
        kind = kind_of(op)
        name, axis = self._source(data, 1 if kind.recurs or kind.layout.suits is Suits.DECIDES else -1)
        if name not in self._wanted or name in self.found:
            return
        self.found[name] = _describe_layer(op, self.tensors[name].rank, axis, shape)
        if set(self.found) == self._wanted:
            raise _FoundError

    def _source(self, name: str, axis: int) -> tuple[str, int]:
        """The input that a tensor is but for its values, and the axis that `axis` is there; "" if it is none."""
        find = self.producers.find
        while (op := find(name)) is not None:
            kind = kind_of(op)
            data = [item for item in kind.data(op) if self.tensors[item].data is None]
            if len(data) != 1:
                return "", axis
            if kind.transposes and axis >= 0:
                order = op["perm"]
                axis = order[axis] if axis < len(order) else axis
            elif find(name, "Unsqueeze") and self.tensors[op.inputs[0]].rank == _ROWS:
                axis = 0  # of rows that are one step of a sequence
            elif kind.layout.suits is not Suits.BROADCASTS and not find(name, *_KEEPS_CHANNELS, *(["Reshape"] if axis == -1 else [])):
                return "", axis
            name = data[0]
        return name, axis


#: Operators, besides those of each element, whose result has its channels along the axis of those of the data.
_KEEPS_CHANNELS = ("Pad", "BatchNormalization")


def _describe_layer(op: Op, rank: int | None, axis: int, weights: Sequence[int]) -> _Layer:
    """What a layer says of its input.

    Args:
        op: the layer.
        rank: of the input, as it is tried.
        axis: of the input that the channels are along; of a recurrent layer, the rows.
        weights: their shape.
    """
    kind = kind_of(op)
    if not kind.weights:  # indices into a table of embeddings
        return _Layer({2: ("batch", "length"), 1: ("length",)}, "int64")
    if kind.layout.suits is Suits.DECIDES:
        sizes: list[int | str] = list(_SPATIAL.get(len(weights), ()))
        sizes.insert(max(axis - 1, 0), weights[1] * int(op["group"]))
        return _Layer({len(weights): ("batch", *sizes)})
    channels = weights[-1] if kind.recurs else weights[1 - output_axis(op, 2)]
    rows: Mapping[int, Shape] = {2: ("batch", channels), 3: ("batch", "length", channels)}
    if not kind.recurs:
        return _Layer(rows)
    own = rank or len(weights)
    return _Layer({own: ("length", "batch", channels) if axis and own != 2 else rows.get(own, rows[3])})


def guess_shapes(names: Sequence[str], run: Callable[[Draft, Guesses], object]) -> Iterator[Guesses]:
    """Shapes and types for inputs without a shape, the most likely first.

    Args:
        names: of those without a shape.
        run: follows the model with a graph to write into.
    """
    for rank in _RANKS:
        probe = Probe(names)
        try:
            run(probe, {name: (tuple(f"{name}_{axis}" for axis in range(rank)), "float32") for name in names})
        except EndlessError:
            raise
        except (_FoundError, QConvertError):
            pass
        if set(probe.found) == set(names):
            for wanted in next(iter(probe.found.values())).shapes:
                yield {
                    name: (layer.shape(wanted, f"{name}_" if place else ""), layer.dtype)
                    for place, (name, layer) in enumerate(probe.found.items())
                }
            return
