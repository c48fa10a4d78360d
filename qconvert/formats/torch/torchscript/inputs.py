"""The arguments of `forward`: which are tensors, and their shapes and types, by what the user says, a trace, or annotations.

Where none of these states a shape, it is guessed: the first layer that reads an input says its rank and its channels.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qconvert.errors import OptionError, QConvertError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.given_inputs import GivenInputs
from qconvert.formats.torch.session import quantization_of
from qconvert.formats.torch.stored_values import QUANTIZED, StoredTensor
from qconvert.formats.torch.torchscript.code import Method
from qconvert.formats.torch.values import EndlessError, Ref, leaves
from qconvert.graph import Op, Quantization, Shape
from qconvert.operators import kind_of

__all__ = ["Guesses", "Input", "arguments", "guess_shapes", "inputs_of"]

_Tensor = Callable[[str, StoredTensor | None], "Input"]
_TENSOR = ast.Name("Tensor")
_REMEDY = "Save the model by torch.jit.trace, which notes its inputs, or by torch.export.save."


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the user of a model gives.

    Attributes:
        name: of it.
        shape: None if nobody says it.
        dtype: its storage type; "" if nobody says it.
        quantization: its scale and zero point, if it is a quantized tensor.
    """

    name: str
    shape: Shape | None
    dtype: str
    quantization: Quantization | None


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
    count = 0

    def tensor(name: str, example: StoredTensor | None) -> Input:
        nonlocal count
        stated = given.of(name, count)
        count += 1
        shape = stated.shape if stated.shape is not None or example is None else example.shape
        if stated.dtype or example is None:
            return Input(name, shape, stated.dtype, stated.quantization)
        return Input(name, shape, QUANTIZED.get(example.dtype, example.dtype), quantization_of(example, name))

    def members(name: str) -> list[str]:
        return given.members(name, count)

    found: list[Any] = []
    for index, (argument, default) in enumerate(zip(names, defaults, strict=True)):
        example = traced[index] if index < len(traced) else None
        optional = (isinstance(default, ast.Constant) and default.value is None) or _text(argument).startswith("Optional[")
        if example is None and optional and given.of(argument.arg, count).shape is None:
            found.append(None)
        elif (
            default is not None and not any(isinstance(leaf, StoredTensor) for leaf in leaves(example)) and "Tensor" not in _text(argument)
        ):
            found.append(ast.literal_eval(default) if _literal(default) else None)
        else:
            found.append(_build_input(argument.arg, _annotation(argument), example, tensor, members))
    given.require_used()
    if not any(isinstance(leaf, Input) for leaf in leaves(found)):
        raise OptionError("the method 'forward' takes no tensors", rule="no-inputs")
    return found


def _text(argument: ast.arg) -> str:
    return "Tensor" if argument.annotation is None else ast.unparse(argument.annotation)


def _literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _annotation(argument: ast.arg) -> ast.expr:
    return _TENSOR if argument.annotation is None else argument.annotation


def _build_input(name: str, kind: ast.expr, example: Any, tensor: _Tensor, members: Callable[[str], Sequence[str]]) -> Any:
    """A tensor, or tensors in lists, tuples and dictionaries, named after their places: those of an example, or of an annotation.

    Args:
        name: of the argument.
        kind: its annotation.
        example: of the trace; None if there is none.
        tensor: makes an Input of a name and of an example.
        members: gives what follows the name of a list or dictionary in the names of its tensors, as the user states them.
    """
    if isinstance(example, (list, tuple)):
        made = [_build_input(f"{name}_{index}", _TENSOR, item, tensor, members) for index, item in enumerate(example)]
        return made if isinstance(example, list) else tuple(made)
    if isinstance(example, dict):
        return {key: _build_input(f"{name}_{key}", _TENSOR, item, tensor, members) for key, item in example.items()}
    if isinstance(example, (bool, int, float, str)):
        return example
    if isinstance(example, StoredTensor) or (isinstance(kind, ast.Name) and kind.id == "Tensor"):
        return tensor(name, example if isinstance(example, StoredTensor) else None)
    form, parts = _split_type(kind)
    if form == "Optional":
        return _build_input(name, parts[0], None, tensor, members)
    if form == "Tuple":
        return tuple(_build_input(f"{name}_{index}", part, None, tensor, members) for index, part in enumerate(parts))
    text = ast.unparse(kind)[:80]
    if form == "List" or (form == "Dict" and ast.unparse(parts[0]) == "str"):
        keys = members(name)
        if not keys or (form == "List" and keys != [str(index) for index in range(len(keys))]):
            first, second = (f"{name}_{key}" for key in (("0", "1") if form == "List" else ("first", "second")))
            raise OptionError(
                f"the input {name!r} is {text}; the file does not state how many tensors it has or what they are called",
                remedy=f"State the shape of each: --input-shape '{first}=1,3,224,224; {second}=1,3,224,224'.",
                rule="input-not-stated",
            )
        found = {key: _build_input(f"{name}_{key}", parts[-1], None, tensor, members) for key in keys}
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


def arguments(inputs: Any, draft: Draft, guesses: Mapping[str, tuple[Shape, str]]) -> Any:
    """The arguments of `forward` with each Input as a tensor of the graph; Inputs without a shape get the guessed one."""
    if isinstance(inputs, Input):
        shape, dtype = guesses.get(inputs.name, (None, "float32"))
        draft.add_exactly(inputs.name, inputs.dtype or dtype, shape if inputs.shape is None else inputs.shape, None, inputs.quantization)
        return Ref(inputs.name)
    if isinstance(inputs, list):
        return [arguments(item, draft, guesses) for item in inputs]
    if isinstance(inputs, tuple):
        return tuple(arguments(item, draft, guesses) for item in inputs)
    if isinstance(inputs, dict):
        return {key: arguments(item, draft, guesses) for key, item in inputs.items()}
    return inputs


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
