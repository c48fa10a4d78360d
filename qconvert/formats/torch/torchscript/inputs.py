"""The arguments of `forward`: which are tensors, and their shapes and types, by what the user says, a trace, or annotations.

Where none of these states a shape, it is guessed: the first layer that reads an input says its rank and its channels.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qconvert.errors import OptionError, QConvertError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.session import GivenInputs, Input, quantization_of
from qconvert.formats.torch.stored_values import QUANTIZED, StoredTensor
from qconvert.formats.torch.torchscript.code import Method
from qconvert.formats.torch.values import EndlessError, Ref, leaves, map_leaves
from qconvert.graph import Op, Shape
from qconvert.operators import kind_of, output_axis
from qconvert.operators.properties import Suits
from qconvert.operators.sizes import Shapes

_TENSOR = ast.Name("Tensor")
_REMEDY = "Save the model by torch.jit.trace, which notes its inputs, or by torch.export.save."


def inputs_of(method: Method, traced: Sequence[Any], given: GivenInputs) -> list[Any]:
    """The arguments of `forward`: an Input for each tensor, lists, tuples and dictionaries of them, None for what is left out.

    Args:
        method: the model's `forward`.
        traced: the inputs of the trace that the file was made by, if it was.
        given: what the user says.

    Raises:
        OptionError: the user states an input that is not there.
        UnsupportedError: an argument is no tensor and has no default.
    """
    node = method.node.args
    names = [*node.posonlyargs, *node.args][1:]
    defaults = [None] * (len(names) - len(node.defaults)) + list(node.defaults)
    inputs = _Inputs(given)
    found: list[Any] = []
    for index, (argument, default) in enumerate(zip(names, defaults, strict=True)):
        example = traced[index] if index < len(traced) else None
        optional = (isinstance(default, ast.Constant) and default.value is None) or _text(argument).startswith("Optional[")
        if example is None and optional and given.of(argument.arg, inputs.count).shape is None:
            found.append(None)
        elif (
            default is not None and not any(isinstance(leaf, StoredTensor) for leaf in leaves(example)) and "Tensor" not in _text(argument)
        ):
            found.append(_literal(default))
        else:
            found.append(inputs.build(argument.arg, argument.annotation or _TENSOR, example))
    given.require_used()
    if not any(isinstance(leaf, Input) for leaf in leaves(found)):
        raise OptionError("the method 'forward' takes no tensors", rule="no-inputs")
    return found


def _text(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation or _TENSOR)


def _literal(node: ast.expr) -> Any:
    """The value of a default; None for one that is no literal."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


class _Inputs:
    """Inputs as they are made, one after the other.

    Attributes:
        count: of the tensors so far.
    """

    def __init__(self, given: GivenInputs) -> None:
        self._given = given
        self.count = 0

    def _tensor(self, name: str, example: StoredTensor | None) -> Input:
        stated = self._given.of(name, self.count)
        self.count += 1
        if example is None:
            return stated
        shape = example.shape if stated.shape is None else stated.shape
        if stated.dtype:
            return replace(stated, shape=shape)
        return Input(name, shape, QUANTIZED.get(example.dtype, example.dtype), quantization_of(example, name))

    def build(self, name: str, kind: ast.expr, example: Any = None) -> Any:
        """A tensor, or tensors in lists, tuples and dictionaries, named after their places: those of an example, or of an annotation.

        Args:
            name: of the argument.
            kind: its annotation.
            example: of the trace; None if there is none.
        """
        if isinstance(example, (list, tuple)):
            made = [self.build(f"{name}_{index}", _TENSOR, item) for index, item in enumerate(example)]
            return made if isinstance(example, list) else tuple(made)
        if isinstance(example, dict):
            return {key: self.build(f"{name}_{key}", _TENSOR, item) for key, item in example.items()}
        if isinstance(example, (bool, int, float, str)):
            return example
        if isinstance(example, StoredTensor) or (isinstance(kind, ast.Name) and kind.id == "Tensor"):
            return self._tensor(name, example if isinstance(example, StoredTensor) else None)
        form, parts = _split_type(kind)
        if form == "Optional":
            return self.build(name, parts[0])
        if form == "Tuple":
            return tuple(self.build(f"{name}_{index}", part) for index, part in enumerate(parts))
        text = ast.unparse(kind)[:80]
        if form == "List" or (form == "Dict" and ast.unparse(parts[0]) == "str"):
            keys = self._given.members(name, self.count)
            if not keys or (form == "List" and keys != [str(index) for index in range(len(keys))]):
                first, second = (f"{name}_{key}" for key in (("0", "1") if form == "List" else ("first", "second")))
                raise OptionError(
                    f"the input {name!r} is {text}; the file does not state how many tensors it has or what they are called",
                    remedy=f"State the shape of each: --input-shape '{first}=1,3,224,224; {second}=1,3,224,224'.",
                    rule="input-not-stated",
                )
            found = {key: self.build(f"{name}_{key}", parts[-1]) for key in keys}
            return found if form == "Dict" else list(found.values())
        raise UnsupportedError(
            f"the input is {text}, for which the file has no example; such inputs are not covered",
            where=name,
            remedy=_REMEDY,
            rule="input-not-stated",
        )


def _split_type(kind: ast.expr) -> tuple[str, list[ast.expr]]:
    """The name of a type with others in brackets, and these; "" for every other type."""
    if not isinstance(kind, ast.Subscript) or not isinstance(kind.value, ast.Name):
        return "", []
    parts = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
    return (kind.value.id if len(parts) == {"Dict": 2}.get(kind.value.id, len(parts)) else ""), parts


def arguments(inputs: Any, draft: Draft, guesses: Guesses) -> Any:
    """The arguments of `forward` with each Input as a tensor of the graph; Inputs without a shape get the guessed one."""

    def add_input(item: Any) -> Any:
        if not isinstance(item, Input):
            return item
        shape, dtype = guesses.get(item.name, (None, "float32"))
        draft.add_exactly(item.name, item.dtype or dtype, shape if item.shape is None else item.shape, None, item.quantization)
        return Ref(item.name)

    return map_leaves(inputs, add_input)


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
