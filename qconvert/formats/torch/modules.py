"""The module of each tensor, as files of PyTorch state it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.torch.archive import Archive

__all__ = ["modules"]

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
