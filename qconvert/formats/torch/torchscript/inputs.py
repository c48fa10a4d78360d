"""The arguments of `forward`: which are tensors, and their shapes and types, by what the user says, a trace, or annotations.

Where none of these states a shape, it is guessed (guessed_shapes.py).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from qconvert.errors import OptionError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.given_inputs import GivenInputs, Input
from qconvert.formats.torch.session import quantization_of
from qconvert.formats.torch.stored_values import QUANTIZED, StoredTensor
from qconvert.formats.torch.torchscript.code import Method
from qconvert.formats.torch.torchscript.guessed_shapes import Guesses
from qconvert.formats.torch.values import Ref, leaves, map_leaves

_Tensor = Callable[[str, StoredTensor | None], Input]
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
    count = 0

    def tensor(name: str, example: StoredTensor | None) -> Input:
        nonlocal count
        stated = given.of(name, count)
        count += 1
        if example is None:
            return stated
        shape = example.shape if stated.shape is None else stated.shape
        if stated.dtype:
            return replace(stated, shape=shape)
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
            found.append(_literal(default))
        else:
            found.append(_build_input(argument.arg, argument.annotation or _TENSOR, example, tensor, members))
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


def arguments(inputs: Any, draft: Draft, guesses: Guesses) -> Any:
    """The arguments of `forward` with each Input as a tensor of the graph; Inputs without a shape get the guessed one."""

    def add_input(item: Any) -> Any:
        if not isinstance(item, Input):
            return item
        shape, dtype = guesses.get(item.name, (None, "float32"))
        draft.add_exactly(item.name, item.dtype or dtype, shape if item.shape is None else item.shape, None, item.quantization)
        return Ref(item.name)

    return map_leaves(inputs, add_input)
