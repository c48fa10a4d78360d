"""Which module of PyTorch an .onnx file says that its tensors are of: by metadata of nodes, or by their names."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from qconvert.errors import InvalidModelError
from qconvert.formats.onnx.container import unverified_proto

__all__ = ["modules"]

#: The list of scopes that torch.onnx.export(dynamo=True) writes at each node; the last is the node itself.
_SCOPES = "pkg.torch.onnx.name_scopes"
_LONGEST = 10_000


def modules(path: Path) -> dict[str, str]:
    """Tensor -> path of the module that computes it, such as "features.0"; nothing of tensors of which the file does not tell it.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no ONNX file.
    """
    model = unverified_proto(path)
    found: dict[str, str] = {}
    try:
        for node in model.graph.node:
            stated = next((item.value for item in node.metadata_props if item.key == _SCOPES), "")
            module = _module_from_scopes(stated) if stated else _module_from_name(node.name)
            if module is not None:
                found.update((name, module) for name in node.output if name)
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"a name in the file is not UTF-8: {error.reason}", rule="not-utf8") from error
    return found


def _module_from_scopes(text: str) -> str | None:
    """The module in a list of scopes as Python prints it."""
    try:
        scopes = ast.literal_eval(text) if len(text) < _LONGEST else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if not isinstance(scopes, list) or not scopes or not all(isinstance(scope, str) for scope in scopes):
        return None
    return scopes[-2] if len(scopes) > 1 else ""


def _module_from_name(name: str) -> str | None:
    """The module in a node's name of torch.onnx.export(dynamo=False): "/features/features.0/conv/Conv" stands in features.0.conv."""
    parts = name.split("/")
    if len(parts) < 2 or parts[0]:
        return None
    return _path(parts[1:-1])


def _path(parts: Sequence[str]) -> str:
    """Modules in a list are called by the list and their number, "features.0" after "features"."""
    path: list[str] = []
    before = ""
    for part in parts:
        if before and part.startswith(f"{before}."):
            path[-1] = part
        else:
            path.append(part)
        before = part
    return ".".join(path)
