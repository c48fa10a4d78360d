"""The arguments of `forward`: which are tensors, and their shapes and types, by what the user says, a trace, or annotations."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qconvert.errors import OptionError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.dtypes import QUANTIZED
from qconvert.formats.torch.given_inputs import GivenInputs
from qconvert.formats.torch.stored import StoredTensor
from qconvert.formats.torch.torchscript.code import Method
from qconvert.formats.torch.values import Ref, leaves
from qconvert.graph import Shape

__all__ = ["Input", "arguments", "inputs_of"]

_REMEDY = "Save the model by torch.jit.trace, which notes its inputs, or by torch.export.save."


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the user of a model gives.

    Attributes:
        name: of it.
        shape: None if nobody says it.
        dtype: its storage type; "" if nobody says it.
    """

    name: str
    shape: Shape | None
    dtype: str


def inputs_of(method: Method, traced: Sequence[Any], given: GivenInputs) -> list[Any]:
    """What `forward` is called with: an Input for each tensor, lists, tuples and dictionaries of them, None for what is left out.

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
        dtype = "" if example is None else QUANTIZED.get(example.dtype, example.dtype)
        shape = given.shape(name, count)
        stated = given.dtype(name, count)
        count += 1
        return Input(name, shape if shape is not None else None if example is None else example.shape, stated or dtype)

    found: list[Any] = []
    for index, (argument, default) in enumerate(zip(names, defaults, strict=True)):
        example = traced[index] if index < len(traced) else None
        optional = (isinstance(default, ast.Constant) and default.value is None) or _text(argument).startswith("Optional[")
        if example is None and optional and given.shape(argument.arg, count) is None:
            found.append(None)
        elif (
            default is not None and not any(isinstance(leaf, StoredTensor) for leaf in leaves(example)) and "Tensor" not in _text(argument)
        ):
            found.append(ast.literal_eval(default) if _literal(default) else None)
        else:
            found.append(_structured(argument.arg, _text(argument), example, tensor, method))
    given.require_used()
    if not any(isinstance(leaf, Input) for leaf in leaves(found)):
        raise OptionError("its method 'forward' takes no tensors")
    return found


def _text(argument: ast.arg) -> str:
    return "Tensor" if argument.annotation is None else ast.unparse(argument.annotation)


def _literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _structured(name: str, kind: str, example: Any, tensor: Callable[[str, StoredTensor | None], Input], method: Method) -> Any:
    """A tensor, or tensors in lists, tuples and dictionaries, named after their places."""
    if isinstance(example, (list, tuple)):
        made = [_structured(f"{name}_{index}", "Tensor", item, tensor, method) for index, item in enumerate(example)]
        return made if isinstance(example, list) else tuple(made)
    if isinstance(example, dict):
        return {key: _structured(f"{name}_{key}", "Tensor", item, tensor, method) for key, item in example.items()}
    if isinstance(example, (bool, int, float, str)):
        return example
    if isinstance(example, StoredTensor) or kind in ("Tensor", "Optional[Tensor]"):
        return tensor(name, example if isinstance(example, StoredTensor) else None)
    if kind.startswith("Tuple[") and kind.count("[") == 1:
        parts = [part.strip() for part in kind[6:-1].split(",") if part.strip()]
        return tuple(_structured(f"{name}_{index}", part, None, tensor, method) for index, part in enumerate(parts))
    raise UnsupportedError(f"an input that is {kind[:80]}, of which the file has no example, is not covered", where=name, remedy=_REMEDY)


def arguments(inputs: Any, draft: Draft, guesses: Mapping[str, tuple[Shape, str]]) -> Any:
    """The same with each Input as a tensor of the graph; those without a shape get the guessed one."""
    if isinstance(inputs, Input):
        shape, dtype = guesses.get(inputs.name, (None, "float32"))
        draft.add_exactly(inputs.name, inputs.dtype or dtype, shape if inputs.shape is None else inputs.shape)
        return Ref(inputs.name)
    if isinstance(inputs, list):
        return [arguments(item, draft, guesses) for item in inputs]
    if isinstance(inputs, tuple):
        return tuple(arguments(item, draft, guesses) for item in inputs)
    if isinstance(inputs, dict):
        return {key: arguments(item, draft, guesses) for key, item in inputs.items()}
    return inputs
