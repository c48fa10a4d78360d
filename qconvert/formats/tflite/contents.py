"""What a .tflite file says of itself, for `qconvert inspect`: its own operators, before anything is made of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from qconvert.files import map_file
from qconvert.formats.tflite.operations import indices, operator_names
from qconvert.formats.tflite.schema import root
from qconvert.formats.tflite.signatures import signature_keys
from qconvert.formats.tflite.verify import verify

__all__ = ["ListedOperator", "contents", "listed_operators"]


class ListedOperator(NamedTuple):
    """An operator as a file has it: its name, a custom one's own, and the names of the tensors that it reads and writes; "" for none."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def contents(path: Path) -> dict[str, Any]:
    """Schema version, description and subgraphs, and the operators of all subgraphs with their counts.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no TFLite file, or is damaged.
    """
    model = _read_root(path)
    found = Counter(name for subgraph in model.subgraphs or () for name in operator_names(model, subgraph))
    return {
        "schema version": model.version,
        "producer": (model.description or b"").decode("utf-8", "replace"),
        **({"subgraphs": len(model.subgraphs)} if len(model.subgraphs or ()) > 1 else {}),
        **({"signatures": signature_keys(model)} if model.signatureDefs else {}),
        "operators": dict(found.most_common()),
    }


def listed_operators(path: Path) -> tuple[ListedOperator, ...]:
    """The operators of all subgraphs in order, those that qconvert does not read too.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no TFLite file, or is damaged.
    """
    model = _read_root(path)
    found = []
    for place, subgraph in enumerate(model.subgraphs or ()):
        names = [(tensor.name or b"").decode("utf-8", "replace") for tensor in subgraph.tensors or ()]
        for name, operation in zip(operator_names(model, subgraph), subgraph.operators or (), strict=True):
            sides = (indices(side, names, f"{name} of subgraph {place}") for side in (operation.inputs, operation.outputs))
            found.append(ListedOperator(name, *map(tuple, sides)))
    return tuple(found)


def _read_root(path: Path) -> Any:
    """The root of a file, which was verified first."""
    data = map_file(path)
    verify(data)
    return root(data)
