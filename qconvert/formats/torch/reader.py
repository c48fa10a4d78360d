"""Reads PyTorch's files into the canonical graph; which container a file is tells its content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.formats.torch.archive import Archive
from qconvert.formats.torch.given_inputs import GivenInputs
from qconvert.graph import Graph

__all__ = ["read"]

_READABLE = (
    "Save it so that it can be read without running anything:\n"
    "    import torch\n"
    "    program = torch.export.export(model.eval(), example_inputs)\n"
    "    torch.export.save(program, 'model.pt2')"
)


def read(path: Path, options: Mapping[str, Any]) -> Graph:
    """The canonical graph of a TorchScript or torch.export file.

    Args:
        path: of the file.
        options: "input_shape", see GivenInputs.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is damaged, or no file of PyTorch.
        UnsupportedError: it holds no graph, or what is not covered.
    """
    from qconvert.formats.torch.export.reader import program_entry
    from qconvert.formats.torch.export.reader import read as read_program
    from qconvert.formats.torch.notes import with_notes
    from qconvert.formats.torch.torchscript.reader import read as read_torchscript

    archive = Archive(path)
    given = GivenInputs(options.get("input_shape", ""))
    if "constants.pkl" in archive or any(name.startswith("code/") for name in archive):
        return read_torchscript(archive, path.stem, given)
    if program_entry(archive):
        return with_notes(read_program(archive, path.stem, given), archive)
    raise UnsupportedError("the file holds no graph", remedy=_READABLE)
