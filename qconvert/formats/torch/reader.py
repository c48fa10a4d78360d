"""Reads PyTorch's files into the canonical graph, by the container that the content shows, and the module of each tensor, where a file
states it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.session import GivenInputs
from qconvert.formats.torch.unpickler import READABLE, unpickle_entry
from qconvert.graph import Graph

_NEEDS_GRAPH = (
    "Give a graph of the network without quantization, whose modules have the same names: --graph float.pt2, written by\n"
    "    import torch\n"
    "    program = torch.export.export(float_model.eval(), example_inputs)  # before it is fused and prepared\n"
    "    torch.export.save(program, 'float.pt2')  # or torch.onnx.export(float_model, example_inputs, 'float.onnx')"
)
_OTHER_TOOLS = "A checkpoint of another tool needs no graph: --to gptq-v2, awq, mlx …; `qconvert diff` compares two checkpoints."
_SAVED_AGAIN = (
    "Save it again with the PyTorch of today:\n"
    "    import torch\n"
    "    torch.save(torch.load('old.pth', weights_only=True), 'new.pth')  # a state_dict\n"
    "    torch.jit.save(torch.jit.load('old.pt'), 'new.pt')  # a TorchScript model, if you trust it: loading runs its code"
)
#: Files of PyTorch that are no zip archives: place and bytes of their mark, what they are, and the remedy.
_CONTAINERS = (
    (0, b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", "a pickle of PyTorch before 1.6", _SAVED_AGAIN),
    (0, b"\x80", "a bare pickle, which runs what it says", READABLE),
    (4, b"PTMF", "a flatbuffer of the lite interpreter", _SAVED_AGAIN),
    (4, b"ET", "a program of ExecuTorch, lowered for a device", READABLE),
)


def read(path: Path, options: Mapping[str, Any], *, again: bool = False) -> Graph:
    """The canonical graph of a TorchScript or torch.export file.

    Args:
        path: of the file.
        options: "input_shape", see GivenInputs; "engine", see formats/torch/engines.py.
        again: whether operators that the writer decomposed stay as they are.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is damaged, or no file of PyTorch.
        UnsupportedError: it holds no graph, or what is not covered.
    """
    from qconvert.checkpoints.safetensors import is_safetensors
    from qconvert.checkpoints.source import CheckpointSource
    from qconvert.formats.torch.engines import set_engine_arithmetic
    from qconvert.formats.torch.export.reader import read as read_program
    from qconvert.formats.torch.notes import read_notes, with_notes
    from qconvert.formats.torch.torchscript.reader import read as read_torchscript

    if is_safetensors(path):
        layers = CheckpointSource.of(path).layers  # a graph does not help where they are not covered
        remedy = f"{_NEEDS_GRAPH}\n{_OTHER_TOOLS}" if layers else _NEEDS_GRAPH
        raise UnsupportedError("the file holds tensors and no graph", remedy=remedy, rule="graph-missing")
    archive = open_archive(path)
    stated = str(options.get("input_shape", ""))
    given = GivenInputs(stated)
    try:
        with np.errstate(all="ignore"):  # numbers beyond a type are what the file says; what cannot be is refused by name
            if not holds_graph(archive):
                raise _without_graph(archive)
            notes = read_notes(archive)
            if notes is not None and again:
                notes = replace(notes, decomposed=())
            if not _is_torchscript(archive):
                return with_notes(read_program(archive, path.stem, given, notes), notes)
            if notes is not None and not stated:
                given = GivenInputs(notes.inputs)
            graph = read_torchscript(archive, path.stem, given)
            if notes is None or options.get("engine", ""):  # what qconvert wrote means the operators, not one engine's roundings
                graph = set_engine_arithmetic(graph, options.get("engine", ""))
            return with_notes(graph, notes)
    except RecursionError as error:
        raise InvalidModelError("the values are nested too deeply", rule="nested-too-deeply") from error


def _is_torchscript(archive: Archive) -> bool:
    return "constants.pkl" in archive or any(name.startswith("code/") for name in archive)


def holds_graph(archive: Archive) -> bool:
    """Whether an archive is of TorchScript or torch.export."""
    from qconvert.formats.torch.export.reader import program_entry

    return _is_torchscript(archive) or bool(program_entry(archive))


def open_archive(path: Path) -> Archive:
    """The archive in a file.

    Raises:
        InvalidModelError, UnsupportedError: it is none; the error says what the file is instead.
    """
    try:
        archive = Archive(path)
    except InvalidModelError as error:
        raise _other_container(path) or error from error
    order = archive.text("byteorder").strip() if "byteorder" in archive else "little"
    if order != "little":
        raise UnsupportedError(
            f"the byte order of the file is {order[:20]!r}; little is covered", remedy=_SAVED_AGAIN, rule="byte-order-not-covered"
        )
    return archive


def _other_container(path: Path) -> QConvertError | None:
    """The error for a file of PyTorch that is no zip archive; None if it is none of these."""
    with path.open("rb") as file:
        start = file.read(16)
    found = [(what, remedy) for place, mark, what, remedy in _CONTAINERS if start[place:].startswith(mark)]
    return (
        UnsupportedError(f"the file is {found[0][0]}, which is not covered", remedy=found[0][1], rule="container-not-covered")
        if found
        else None
    )


def _without_graph(archive: Archive) -> QConvertError:
    """The error for an archive without a graph. It states the contents, by the names in the pickle."""
    reason, remedy = "the file holds no graph", READABLE
    inner = [name for name in archive if name.endswith((".pt", ".pt2", ".ptl", ".pth"))]
    if "data.pkl" not in archive:
        remedy = f"The archive contains {inner[0]}: extract and read that file." if inner else READABLE
    elif isinstance(found := unpickle_entry(archive), dict):
        reason = f"the file holds a dictionary with {len(found)} entries, such as a state_dict, and no graph"
        remedy = _NEEDS_GRAPH
    return UnsupportedError(reason, remedy=remedy, rule="graph-missing")


_STACK = "nn_module_stack"


def modules(path: Path) -> dict[str, str]:
    """Tensor -> path of the module that computes it, such as "features.0", by the stacks of modules that torch.export writes.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is damaged.
    """
    from qconvert.formats.torch.export.reader import program_entry

    archive = Archive(path)
    entry = program_entry(archive)
    if not entry:
        return {}
    try:
        nodes = json.loads(archive.text(entry))["graph_module"]["graph"]["nodes"]
        return dict(_pairs(nodes))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise InvalidModelError(f"the program {entry} is damaged: {type(error).__name__} {error}", rule="damaged-program") from error


def _pairs(nodes: list[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        stack = str(node.get("metadata", {}).get(_STACK, ""))
        if not stack:
            continue
        module = stack.rpartition(";")[2].split(",")[1]
        for output in node["outputs"]:
            for value in output.values():
                if isinstance(value, dict) and isinstance(value.get("name"), str):
                    yield value["name"], module
