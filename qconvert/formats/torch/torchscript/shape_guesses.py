"""Shapes of inputs that neither the file nor the user states: the first layer that reads an input says its rank and its channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from qconvert.errors import QConvertError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.torchscript.inputs import Input
from qconvert.formats.torch.values import EndlessError
from qconvert.graph import Op, Shape
from qconvert.operators import kind_of

__all__ = ["Guesses", "Probe", "guess_shapes"]

#: Rank -> names of the sizes after the batch and the channels.
_SPATIAL: Mapping[int, tuple[str, ...]] = {3: ("length",), 4: ("height", "width"), 5: ("depth", "height", "width")}
#: Ranks in the order in which they are tried.
_RANKS = (4, 3, 2, 5)
#: Operators that keep the places of channels.
_THROUGH = frozenset(
    ["Quantize", "Dequantize", "Requantize", "Identity", "Cast", "Relu", "Clip", "Pad", "BatchNormalization", "Reinterpret"]
)
_ROWS = 2
_RECURRENT = ("LSTM", "GRU", "RNN")
_PAIRS = frozenset(["Add", "Sub", "Mul", "Div"])

Guesses = dict[str, tuple[Shape, str]]


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
        #: Input -> (kind of the layer, rank of its weights, its channels, axis of the input that they are along, or, of a recurrent
        #: layer, the rows).
        self.found: dict[str, tuple[str, int, int, int]] = {}

    def append(self, op: Op) -> None:
        """Appends an operator, and looks at what it reads."""
        super().append(op)
        if op.kind in ("Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", *_RECURRENT):
            self._look(op)

    def _look(self, op: Op) -> None:
        data, weights = (op.inputs[1], op.inputs[0]) if op.kind == "Gather" else op.inputs[:2]
        shape = self.tensors[weights].static_shape
        if shape is None or len(shape) < 2 or (self.tensors[weights].data is None and self.known.get(weights) is None):
            return
        group = op["group"] if op.kind == "Conv" else 1
        source = self._source(data, 1 if "Conv" in op.kind or op.kind in _RECURRENT else -1)
        if source is not None and source[0] in self._wanted and source[0] not in self.found:
            channels, rank = shape[0] if op.kind == "MatMul" else shape[1] * (group if isinstance(group, int) else 1), len(shape)
            if op.kind in _RECURRENT:  # a cell takes rows alone
                channels, rank = shape[-1], self.tensors[source[0]].rank or rank
            self.found[source[0]] = (op.kind, rank, channels, source[1])
            if set(self.found) == self._wanted:
                raise _FoundError

    def _source(self, name: str, axis: int) -> tuple[str, int] | None:
        """The input that a tensor is but for its values, and the axis that `axis` is there."""
        while (op := self.producers.get(name)) is not None:
            data = [item for item in op.inputs if item and self.tensors[item].data is None]
            if op.kind == "Transpose" and axis >= 0:
                order = op["perm"]
                axis = order[axis] if isinstance(order, tuple) and axis < len(order) and isinstance(order[axis], int) else axis
            elif op.kind == "Reshape" and axis == -1:
                data = data[:1]
            elif op.kind == "Unsqueeze" and self.tensors[op.inputs[0]].rank == _ROWS:
                data, axis = data[:1], 0  # of rows that are one step of a sequence
            elif op.kind not in _THROUGH and not (op.kind in _PAIRS and len(data) == 1):
                return None
            if not data or not kind_of(op).data(op):
                return None
            name = data[0]
        return name, axis


def guess_shapes(inputs: Sequence[Input], run: Callable[[Draft, Guesses], object]) -> Iterator[Guesses]:
    """Shapes and types for inputs without a shape, the most likely first.

    Args:
        inputs: those without a shape.
        run: follows the model with a graph to write into.
    """
    names = [item.name for item in inputs]
    for rank in _RANKS:
        probe = Probe(names)
        try:
            run(probe, {name: (tuple(f"{name}_{axis}" for axis in range(rank)), "float32") for name in names})
        except EndlessError:
            raise
        except (_FoundError, QConvertError):
            pass
        if set(probe.found) == set(names):
            kind, weights = next(iter(probe.found.values()))[:2]
            ranks = [weights] if "Conv" in kind or kind in _RECURRENT else [2, 3] if kind != "Gather" else [2, 1]
            for wanted in ranks:
                yield {name: _shape(name, found, wanted, index) for index, (name, found) in enumerate(probe.found.items())}
            return


def _shape(name: str, found: tuple[str, int, int, int], rank: int, index: int) -> tuple[Shape, str]:
    """The shape of one input; dynamic dimensions have names, which further inputs begin with their own."""
    kind, weights, channels, axis = found
    own = f"{name}_" if index else ""
    if kind == "Gather":
        return (("batch", f"{own}length")[-rank:] if rank == 1 else ("batch", f"{own}length")), "int64"
    if kind in _RECURRENT and rank == _ROWS:
        return ("batch", channels), "float32"
    if kind in _RECURRENT:  # the axis is that of the rows
        return ((f"{own}length", "batch", channels) if axis else ("batch", f"{own}length", channels)), "float32"
    if "Conv" not in kind:
        return (("batch", channels) if rank == 2 else ("batch", f"{own}length", channels)), "float32"
    sizes: list[int | str] = [f"{own}{size}" for size in _SPATIAL[weights]]
    sizes.insert(axis - 1 if axis >= 1 else 0, channels)
    return ("batch", *sizes), "float32"
