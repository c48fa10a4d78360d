"""What an .onnx file says of itself, for `qconvert inspect`: its own nodes, before anything is made of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError
from qconvert.formats.onnx.container import unverified_proto

__all__ = ["contents"]


def contents(path: Path) -> dict[str, Any]:
    """IR version, opsets and producer, and the operator types of all graphs in the file with their counts.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no ONNX file.
    """
    model = unverified_proto(path)
    try:
        return {
            "ir version": model.ir_version,
            "opset": ", ".join(f"{item.domain} {item.version}".strip() for item in model.opset_import),
            "producer": f"{model.producer_name} {model.producer_version}".strip(),
            **({"functions": len(model.functions)} if model.functions else {}),
            "operators": dict(_operators(model).most_common()),
        }
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"a name in the file is not UTF-8: {error.reason}", rule="not-utf8") from error


def _operators(model: Any) -> Counter[str]:
    """The operator types of the graph, of graphs in attributes and of functions; those of other domains with the domain."""
    found: Counter[str] = Counter()
    waiting = [model.graph, *model.functions]
    while waiting:
        for node in waiting.pop().node:
            found[node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"] += 1
            for attribute in node.attribute:
                waiting += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    return found
