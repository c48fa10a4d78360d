"""Guesses of the shapes of inputs that nobody states: the first layer that reads an input says its rank and its channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from qconvert.errors import QConvertError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.values import EndlessError
from qconvert.graph import Op, Shape
from qconvert.operators import kind_of
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
    """The first layer that reads an input.

    Attributes:
        op: its operator.
        rank: of its weights; of a recurrent layer, that of the input.
        channels: of its data.
        axis: of the input that the channels are along; of a recurrent layer, the rows.
    """

    op: Op
    rank: int
    channels: int
    axis: int

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks that the input may have, the most likely first."""
        if _is_embedding(self.op):
            return 2, 1
        return (self.rank,) if _is_convolution(self.op) or _is_recurrent(self.op) else (2, 3)

    def shape(self, rank: int, prefix: str) -> Shape:
        """The shape of an input of a rank; dynamic dimensions but the batch have names with the prefix."""
        length = f"{prefix}length"
        if _is_embedding(self.op):
            return (length,) if rank == 1 else ("batch", length)
        if _is_convolution(self.op):
            sizes: list[int | str] = [f"{prefix}{size}" for size in _SPATIAL[self.rank]]
            sizes.insert(max(self.axis - 1, 0), self.channels)
            return "batch", *sizes
        if rank == _ROWS:
            return "batch", self.channels
        is_time_first = _is_recurrent(self.op) and self.axis
        return (length, "batch", self.channels) if is_time_first else ("batch", length, self.channels)


def _is_embedding(op: Op) -> bool:
    return op.kind == "Gather"


def _is_recurrent(op: Op) -> bool:
    return kind_of(op).recurs


def _is_convolution(op: Op) -> bool:
    return kind_of(op).layout.suits is Suits.DECIDES


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
        if _is_embedding(op):
            self._add_layer(op, op.inputs[1], op.inputs[0])
        elif weights := kind_of(op).weights:
            self._add_layer(op, op.inputs[0], op.inputs[weights[0]])

    def _add_layer(self, op: Op, data: str, weights: str) -> None:
        shape = self.tensors[weights].static_shape
        if shape is None or len(shape) < 2 or (self.tensors[weights].data is None and self.known.get(weights) is None):
            return
        name, axis = self._source(data, 1 if _is_convolution(op) or _is_recurrent(op) else -1)
        if name not in self._wanted or name in self.found:
            return
        rank, channels = len(shape), shape[1]
        if _is_recurrent(op):  # a cell takes rows alone
            rank, channels = self.tensors[name].rank or rank, shape[-1]
        elif "group" in kind_of(op).attributes:
            channels *= int(op["group"])
        elif op.kind == "MatMul":
            channels = shape[0]
        self.found[name] = _Layer(op, rank, channels, axis)
        if set(self.found) == self._wanted:
            raise _FoundError

    def _source(self, name: str, axis: int) -> tuple[str, int]:
        """The input that a tensor is but for its values, and the axis that `axis` is there; "" if it is none."""
        while (op := self.producers.get(name)) is not None:
            kind = kind_of(op)
            data = [item for item in kind.data(op) if self.tensors[item].data is None]
            if len(data) != 1:
                return "", axis
            if kind.transposes and axis >= 0:
                order = op["perm"]
                axis = order[axis] if axis < len(order) else axis
            elif op.kind == "Unsqueeze" and self.tensors[op.inputs[0]].rank == _ROWS:
                axis = 0  # of rows that are one step of a sequence
            elif not _keeps_channels(op) and not (op.kind == "Reshape" and axis == -1):
                return "", axis
            name = data[0]
        return name, axis


def _keeps_channels(op: Op) -> bool:
    """Whether the channels of an operator's result are along the axis of those of its data."""
    return kind_of(op).layout.suits is Suits.BROADCASTS or op.kind in ("Pad", "BatchNormalization")


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
            for wanted in next(iter(probe.found.values())).ranks:
                yield {
                    name: (layer.shape(wanted, f"{name}_" if place else ""), "int64" if _is_embedding(layer.op) else "float32")
                    for place, (name, layer) in enumerate(probe.found.items())
                }
            return
