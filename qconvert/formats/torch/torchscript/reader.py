"""Reads TorchScript archives: traced, scripted, frozen and mobile-optimised models."""

from __future__ import annotations

import json
from typing import Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.finishing import finish_graph
from qconvert.formats.torch.session import GivenInputs, Input, Session, flatten_outputs
from qconvert.formats.torch.stored_values import SCALAR_TYPES, ScriptObject
from qconvert.formats.torch.torchscript.code import Code, Method
from qconvert.formats.torch.torchscript.inputs import Guesses, arguments, guess_shapes, inputs_of
from qconvert.formats.torch.torchscript.interpreter import Budget, Interpreter
from qconvert.formats.torch.unpickler import unpickle, unpickle_entry
from qconvert.formats.torch.values import EndlessError, Ref, leaves
from qconvert.graph import Array, Graph
from qconvert.graph.metadata import GUESSED_SHAPES

#: Version of archives that PyTorch 2.13 still reads (caffe2/serialize/versions.h, kMaxSupportedFileFormatVersion).
_NEWEST = 10
#: Steps that any code may take, and the most further ones: one for each byte of it and of the objects that it works on.
_STEPS, _MOST_FURTHER = 120_000, 2**20


def read(archive: Archive, name: str, given: GivenInputs) -> Graph:
    """The graph of a TorchScript model; see read_named()."""
    return read_named(archive, name, given)[0]


def read_named(archive: Archive, name: str, given: GivenInputs) -> tuple[Graph, dict[str, str]]:
    """The graph of a TorchScript model, and variables of its method `forward` -> the tensors that they are.

    Args:
        archive: the model's.
        name: of the graph.
        given: shapes of inputs, as the user states them.

    Raises:
        InvalidModelError, UnsupportedError: see Interpreter.
    """
    script = _Script(archive)
    inputs = inputs_of(script.forward, _read_traced_inputs(archive), given)
    unknown = [item.name for item in leaves(inputs) if isinstance(item, Input) and item.shape is None]
    outputs, guesses = _read_with_guesses(script, inputs, unknown)
    metadata = {}
    if guesses:
        metadata[GUESSED_SHAPES] = json.dumps([f"{key}: {', '.join(map(str, shape))}" for key, (shape, _) in guesses.items()])
    names = [item.name for item in leaves(inputs) if isinstance(item, Input)]
    graph = finish_graph(script.session, name, names, outputs, "TorchScript", metadata=metadata)
    return graph, {key: value.name for key, value in script.variables.items() if isinstance(value, Ref)}


def _read_with_guesses(script: _Script, inputs: list[Any], unknown: list[str]) -> tuple[list[str], Guesses]:
    """Read the model with the first guess of unknown shapes that works; without a guess if none does."""
    refused: UnsupportedError | None = None
    for guesses in guess_shapes(unknown, lambda draft, tried: script.run_forward(inputs, draft, tried)) if unknown else ():
        draft = Draft()
        try:
            return script.run_forward(inputs, draft, guesses), guesses
        except UnsupportedError as error:
            refused = refused or error
        except EndlessError:
            raise
        except InvalidModelError:
            continue
    draft = Draft()
    try:
        return script.run_forward(inputs, draft, {}), {}
    except UnsupportedError as error:
        raise refused or error from error


class _Script:
    """A model and its code, to be followed once or several times."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        _verify_version(archive)
        self._code = Code(archive)
        model = self._model()
        method = self._code.method(model.class_name, "forward")
        if method is None:
            raise InvalidModelError(f"the class {model.class_name} has no method 'forward'", rule="forward-missing")
        self.forward: Method = method
        size = sum(archive.size(name) for name in archive if name == "data.pkl" or name.startswith("code/"))
        self.session = Session(Draft(), SCALAR_TYPES)
        self._most = _STEPS + min(size, _MOST_FURTHER)
        self.variables: dict[str, Any] = {}

    def run_forward(self, inputs: list[Any], draft: Draft, guesses: Guesses) -> list[str]:
        """Follows `forward`; the names of its outputs."""
        self.session = Session(draft, SCALAR_TYPES)
        interpreter = Interpreter(self._code, self.session, self._constants(), Budget(self._most))
        result = interpreter.run(self._model(), "forward", arguments(inputs, draft, guesses))
        self.variables = interpreter.variables
        return flatten_outputs(result, self.session.constants)

    def _model(self) -> ScriptObject:
        """The objects of the file, again, since methods may change them."""
        model = unpickle_entry(self._archive)
        if not isinstance(model, ScriptObject):
            raise InvalidModelError("data.pkl does not hold a module", rule="malformed-entry")
        return model

    def _constants(self) -> list[Any]:
        """The tensors that the code names CONSTANTS."""
        if "constants.pkl" not in self._archive:
            return []

        def storage(key: str) -> Array:
            """Files of the lite interpreter share storages with other pickles and call them 12.storage."""
            name = f"constants/{key}"
            return self._archive.storage(name if name in self._archive else f"{name}.storage")

        found = unpickle(self._archive.read("constants.pkl"), storage, "constants.pkl")
        if not isinstance(found, (list, tuple)):
            raise InvalidModelError("constants.pkl does not hold a list", rule="malformed-entry")
        return list(found)


def _verify_version(archive: Archive) -> None:
    """Raises UnsupportedError for an archive of a version that this PyTorch does not load."""
    if "model.json" in archive and "data.pkl" not in archive:
        raise UnsupportedError(
            "the file is a TorchScript archive of PyTorch before 1.4, whose objects are in model.json",
            remedy=(
                "PyTorch 2 does not load such files either. If you trust the file, load it in PyTorch 1.4 to 1.13 and save it again: "
                "torch.jit.save."
            ),
            rule="version-not-covered",
        )
    text = archive.text("version").strip() if "version" in archive else ""
    if text and not (text.isascii() and text.isdecimal()):
        raise InvalidModelError(f"the version is {text[:20]!r}, not a number", rule="malformed-version")
    if len(text) > 4 or int(text or 0) > _NEWEST:
        raise UnsupportedError(
            f"the archive has version {text[:20]} of TorchScript; versions up to {_NEWEST} are covered", rule="version-not-covered"
        )


def _read_traced_inputs(archive: Archive) -> list[Any]:
    """The inputs that a trace was made with: shapes and types alone, since PyTorch does not write their values."""
    if "traced_inputs.pkl" not in archive:
        return []
    found = unpickle(archive.read("traced_inputs.pkl"), None, "traced_inputs.pkl")
    values = found.get("forward") if isinstance(found, dict) else found
    return list(values) if isinstance(values, (list, tuple)) else []
