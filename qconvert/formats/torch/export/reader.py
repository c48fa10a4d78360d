"""Reads torch.export archives (.pt2): nodes one by one, in the order of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.calls import Calls
from qconvert.formats.torch.constants import Constants
from qconvert.formats.torch.dtypes import EXPORT
from qconvert.formats.torch.export.document import Node, Program, SizeName, TensorName, parsed
from qconvert.formats.torch.export.weights import stored_tensors
from qconvert.formats.torch.given_inputs import GivenInputs
from qconvert.formats.torch.ops import OPERATORS
from qconvert.formats.torch.outputs import flattened
from qconvert.formats.torch.pickled import StoredTensor
from qconvert.formats.torch.reading import Session
from qconvert.formats.torch.values import Ref
from qconvert.graph import Graph
from qconvert.graph.metadata import SOURCE_FORMAT, SOURCE_PRODUCER

__all__ = ["PROGRAM", "read"]

#: Where the program stands in an archive of today.
PROGRAM = "models/model.json"


def read(archive: Archive, name: str, given: GivenInputs) -> Graph:
    """The graph of a torch.export program.

    Args:
        archive: the file's.
        name: of the graph.
        given: shapes of inputs, as the user states them.

    Raises:
        InvalidModelError: the file is damaged.
        UnsupportedError: it has operators that are not covered, or changes its buffers.
    """
    program = parsed(archive.text(PROGRAM))
    draft = Draft()
    constants = Constants(draft)
    values, inputs = _inputs(program, stored_tensors(archive), draft, constants, given)
    calls = Calls(Session(draft, constants, EXPORT), OPERATORS)
    for node in program.nodes:
        _follow(node, calls, values)
    outputs = draft.distinct(flattened(_outputs(program, values), constants))
    draft.prune(outputs)
    metadata = {SOURCE_FORMAT: "torch", SOURCE_PRODUCER: f"torch.export {program.torch_version}".strip()}
    graph = Graph(name, draft.tensors, (), tuple(inputs), tuple(outputs), metadata=metadata)
    return graph.evolve(ops=draft.ops)


def _inputs(
    program: Program, stored: Mapping[str, StoredTensor], draft: Draft, constants: Constants, given: GivenInputs
) -> tuple[dict[str, Any], list[str]]:
    """The values of the program's inputs by name, and the names of those that the user gives."""
    values: dict[str, Any] = {}
    names: list[str] = []
    for kind, argument, target in program.inputs:
        if kind == "user_input" and isinstance(argument, TensorName):
            dtype, sizes = program.tensors[argument.name]
            shape = given.shape(argument.name, len(names)) or sizes
            draft.add_exactly(argument.name, given.dtype(argument.name, len(names)) or dtype, shape)
            values[argument.name] = Ref(argument.name)
            names.append(argument.name)
        elif isinstance(argument, TensorName):
            if target not in stored:
                raise InvalidModelError("the archive does not hold it", where=target)
            constants.place(stored[target], target)
            values[argument.name] = stored[target]
    given.require_used()
    return values, names


def _follow(node: Node, calls: Calls, values: dict[str, Any]) -> None:
    """Reads one node and notes what it computes."""
    arguments = {name: _resolved(value, values, node) for name, value in node.arguments.items()}
    positional = [arguments.pop(str(index)) for index in range(len(arguments)) if str(index) in arguments]
    result = calls.call(node.target, positional, arguments, f"({node.name})", node.name)
    outputs = [result] if len(node.outputs) == 1 and not isinstance(node.outputs[0], list) else result
    wanted = node.outputs[0] if len(node.outputs) == 1 and isinstance(node.outputs[0], list) else node.outputs
    for name, value in zip(wanted, outputs if isinstance(outputs, (list, tuple)) else [outputs], strict=False):
        if name is not None:
            values[name.name if isinstance(name, (TensorName, SizeName)) else str(name)] = value


def _resolved(value: Any, values: Mapping[str, Any], node: Node) -> Any:
    """An argument with the values that its names stand for."""
    if isinstance(value, (TensorName, SizeName)):
        if value.name not in values:
            raise InvalidModelError(f"it uses {value.name!r} before it is computed", where=node.name)
        return values[value.name]
    if isinstance(value, list):
        return [_resolved(item, values, node) for item in value]
    return value


def _outputs(program: Program, values: Mapping[str, Any]) -> list[Any]:
    """What the program gives to the user."""
    found: list[Any] = []
    for kind, argument, target in program.outputs:
        if kind == "user_output" and isinstance(argument, TensorName):
            found.append(values[argument.name])
        elif kind == "buffer_mutation":
            raise UnsupportedError("a program that changes its buffers is not covered", where=target)
    return found
