"""What a .tflite file says of itself, for `qconvert inspect`: its own operators, before anything is made of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from qconvert.files import map_file
from qconvert.formats.tflite.entries import keys
from qconvert.formats.tflite.operations import operator_names
from qconvert.formats.tflite.schema import root
from qconvert.formats.tflite.verify import verify

__all__ = ["contents"]


def contents(path: Path) -> dict[str, Any]:
    """Schema version, description and subgraphs, and the operators of all subgraphs with their counts.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no TFLite file, or is damaged.
    """
    data = map_file(path)
    verify(data)
    model = root(data)
    found = Counter(name for subgraph in model.subgraphs or () for name in operator_names(model, subgraph))
    return {
        "schema version": model.version,
        "producer": (model.description or b"").decode("utf-8", "replace"),
        **({"subgraphs": len(model.subgraphs)} if len(model.subgraphs or ()) > 1 else {}),
        **({"signatures": keys(model)} if model.signatureDefs else {}),
        "operators": dict(found.most_common()),
    }
