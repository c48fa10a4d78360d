"""qconvert's notes after the weights in a .bin file, where ncnn reads no more: metadata, outputs, names and quantizations.

ncnn has neither types nor quantizations of blobs, and no names with blanks. A noted quantization counts only if it agrees with the layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qconvert.plugin import NotedTensor
from qconvert_ncnn.container import Layer

_MARK = b"qconvert:"
_MOST = 2**26


@dataclass(slots=True)
class Notes:
    """The notes of a file.

    Attributes:
        quantizations: blob -> its quantized tensor.
        names: blob -> the tensor's name, if it differs.
        outputs: blobs, in order.
        metadata: of the graph.
    """

    quantizations: dict[str, NotedTensor] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        """Return the notes as bytes of the file."""
        quantizations = {name: item.note() for name, item in self.quantizations.items()}
        return (
            _MARK
            + json.dumps({"quantizations": quantizations, "names": self.names, "outputs": self.outputs, "metadata": self.metadata}).encode()
        )

    @classmethod
    def of(cls, data: bytes) -> Notes | None:
        """Read the notes of a file, without malformed ones; None if the bytes are no notes."""
        if data and not data.startswith(_MARK):
            return None
        found = cls()
        try:
            text = json.loads(data[len(_MARK) :][:_MOST] or "{}")
        except (ValueError, RecursionError):
            return None
        text = text if isinstance(text, dict) else {}
        for name, item in _mapping(text.get("quantizations")).items():
            noted = NotedTensor.of(item)
            if noted is not None:
                found.quantizations[name] = noted
        found.names = {name: value for name, value in _mapping(text.get("names")).items() if isinstance(value, str) and value}
        listed = text.get("outputs")
        found.outputs = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        found.metadata = {name: value for name, value in _mapping(text.get("metadata")).items() if isinstance(value, str)}
        return found


def find_outputs(layers: Sequence[Layer], notes: Notes) -> tuple[str, ...]:
    """Return the output blobs: the noted ones, if no layer reads them; else all blobs that no layer reads, except inputs."""
    read = {name for layer in layers for name in layer.inputs}
    computed = {name: layer.kind for layer in layers for name in layer.outputs if name not in read}
    if notes.outputs and computed.keys() >= {*notes.outputs} and len({*notes.outputs}) == len(notes.outputs):
        return tuple(notes.outputs)
    return tuple(name for name, kind in computed.items() if kind != "Input") or tuple(computed)


def data_name(blob: str) -> str:
    """Return the reader's name for the integers to which int8 layers round a blob; a note may replace it."""
    return f"{blob}/data"


def _mapping(item: Any) -> Mapping[str, Any]:
    return item if isinstance(item, dict) else {}
