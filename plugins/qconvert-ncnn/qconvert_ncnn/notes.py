"""qconvert's notes after the weights in a .bin file, where ncnn reads no more: metadata, outputs, names and quantizations.

ncnn has neither types nor quantizations of blobs, and no names with blanks. A noted quantization counts only if it agrees with the layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.plugin import Quantization, integer_range
from qconvert_ncnn.container import Layer

_MARK = b"qconvert:"
_MOST = 2**26


@dataclass(frozen=True, slots=True)
class Noted:
    """The tensor of a blob: its name, its storage type and its quantization."""

    name: str
    dtype: str
    quantization: Quantization

    @property
    def steps(self) -> tuple[int, int]:
        """The smallest and the largest step from zero."""
        low, high = self.quantization.limits(self.dtype)
        return low - self.quantization.point, high - self.quantization.point

    @property
    def scale(self) -> np.float32:
        return np.float32(self.quantization.step)


@dataclass(slots=True)
class Notes:
    """The notes of a file.

    Attributes:
        quantizations: blob -> its quantized tensor.
        names: blob -> the tensor's name, if it differs.
        outputs: blobs, in order.
        metadata: of the graph.
    """

    quantizations: dict[str, Noted] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        """Return the notes as bytes of the file."""
        quantizations = {name: _document(item) for name, item in self.quantizations.items()}
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
            noted = _parse_note(item)
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


def _document(item: Noted) -> list[Any]:
    q = item.quantization
    return [item.name, item.dtype, q.step.hex(), q.point, q.quant_min, q.quant_max]


def _mapping(item: Any) -> Mapping[str, Any]:
    return item if isinstance(item, dict) else {}


def _parse_note(item: Any) -> Noted | None:
    try:
        name, dtype, scale, point, low, high = item
        smallest, largest = integer_range(dtype)
        number = np.array([float.fromhex(scale)], np.float32)
        limits = smallest if low is None else low, largest if high is None else high
        sound = isinstance(name, str) and all(isinstance(value, int) for value in (point, *limits))
        fits = sound and smallest <= limits[0] <= limits[1] <= largest and abs(point) <= 2**31
        if not fits or not (np.isfinite(number).all() and number[0] > 0):
            return None
        return Noted(name, dtype, Quantization(number, np.array([point]), None, 0, low, high))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
