"""Checks an .onnx file that was just written, as reading does, and the order of its nodes.

No shape is inferred and no large constant is read, so that it takes a small part of the time of writing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.files import map_file
from qconvert.formats.onnx.container import parse_proto
from qconvert.formats.onnx.verify import node_label

__all__ = ["check"]


def check(path: Path) -> Any:
    """Checks the file at `path`; its external data lie next to it. Returns its onnx.ModelProto, without large constants.

    Raises:
        InvalidModelError: names, order, constants or operators contradict each other or their operator sets; it names the node.
    """
    proto = parse_proto(map_file(path), path.parent)
    graph = proto.graph
    ready = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    names: set[str] = set()
    for node in graph.node:
        if node.name and node.name in names:
            raise InvalidModelError("has the same name as another node", where=node_label(node), rule="duplicate-name")
        names.add(node.name)
        _require_ready(node, node.input, ready)
        ready.update(node.output)
    outputs = [value.name for value in graph.output]
    if len(set(outputs)) != len(outputs):
        raise InvalidModelError("the model has the same output twice", rule="duplicate-output")
    return proto


def _require_ready(node: Any, inputs: Any, ready: set[str]) -> None:
    for name in inputs:
        if name and name not in ready:
            raise InvalidModelError(f"reads {name!r} before it is written", where=node_label(node), rule="not-computed")
