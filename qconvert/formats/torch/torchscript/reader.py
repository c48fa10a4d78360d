"""Reads TorchScript archives: traced, scripted, frozen and mobile-optimised models."""

from __future__ import annotations

from typing import Any

from qconvert.errors import InvalidModelError, OptionError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.calls import Calls
from qconvert.formats.torch.constants import Constants
from qconvert.formats.torch.dtypes import QUANTIZED, SCALAR_TYPES
from qconvert.formats.torch.given_inputs import GivenInputs
from qconvert.formats.torch.ops import OPERATORS
from qconvert.formats.torch.outputs import flattened
from qconvert.formats.torch.pickled import ScriptObject, StoredTensor, unpickled
from qconvert.formats.torch.reading import Session
from qconvert.formats.torch.torchscript.code import Code
from qconvert.formats.torch.torchscript.interpreter import Interpreter
from qconvert.formats.torch.values import Ref
from qconvert.graph import Graph
from qconvert.graph.metadata import SOURCE_FORMAT, SOURCE_PRODUCER

__all__ = ["read"]


def read(archive: Archive, name: str, given: GivenInputs) -> Graph:
    """The graph of a TorchScript model.

    Args:
        archive: the model's.
        name: of the graph.
        given: shapes of inputs, as the user states them.

    Raises:
        InvalidModelError, UnsupportedError: see Interpreter.
    """
    model = unpickled(archive.read("data.pkl"), lambda key: archive.storage(f"data/{key}"), "data.pkl")
    if not isinstance(model, ScriptObject):
        raise InvalidModelError("its data.pkl holds no module")
    draft = Draft()
    constants = Constants(draft)
    session = Session(draft, constants, SCALAR_TYPES)
    code = Code(archive)
    interpreter = Interpreter(code, Calls(session, OPERATORS), constants, _constants(archive))
    method = code.method(model.class_name, "forward")
    if method is None:
        raise InvalidModelError(f"its class {model.class_name} has no method 'forward'")
    names = [argument.arg for argument in method.node.args.args[1:]]
    annotations = [argument.annotation for argument in method.node.args.args[1:]]
    inputs = _inputs(names, annotations, _traced(archive), given, draft)
    result = interpreter.run(model, "forward", inputs)
    outputs = flattened(result, constants)
    outputs = draft.distinct(outputs)
    draft.prune(outputs)
    metadata = {SOURCE_FORMAT: "torch", SOURCE_PRODUCER: "TorchScript"}
    graph = Graph(
        name, draft.tensors, (), tuple(value.name for value in inputs if isinstance(value, Ref)), tuple(outputs), metadata=metadata
    )
    return graph.evolve(ops=draft.ops)


def _constants(archive: Archive) -> list[Any]:
    """What the code calls CONSTANTS."""
    if "constants.pkl" not in archive:
        return []
    found = unpickled(archive.read("constants.pkl"), lambda key: archive.storage(f"constants/{key}"), "constants.pkl")
    if not isinstance(found, (list, tuple)):
        raise InvalidModelError("its constants.pkl holds no list")
    return list(found)


def _traced(archive: Archive) -> list[Any]:
    """The inputs that a trace was made with."""
    if "traced_inputs.pkl" not in archive:
        return []
    found = unpickled(archive.read("traced_inputs.pkl"), lambda key: archive.storage(f"traced_inputs/{key}"), "traced_inputs.pkl")
    values = found.get("forward") if isinstance(found, dict) else found
    return list(values) if isinstance(values, (list, tuple)) else []


def _inputs(names: list[str], annotations: list[Any], traced: list[Any], given: GivenInputs, draft: Draft) -> list[Any]:
    """The arguments of `forward`: tensors whose shape the user, or the file, says."""
    found: list[Any] = []
    for index, name in enumerate(names):
        example = traced[index] if index < len(traced) and isinstance(traced[index], StoredTensor) else None
        shape = given.shape(name, index) or (example.shape if example is not None else None)
        dtype = "float32" if example is None else QUANTIZED.get(example.dtype, example.dtype)
        draft.add_exactly(name, given.dtype(name, index) or dtype, shape)
        found.append(Ref(name))
    given.require_used()
    if not found:
        raise OptionError("its method 'forward' takes no inputs")
    return found
