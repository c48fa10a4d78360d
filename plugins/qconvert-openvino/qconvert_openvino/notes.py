"""qconvert's notes in a file: the graph's metadata, and quantizations that the ranges of FakeQuantize do not determine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.plugin import Quantization


@dataclass(frozen=True, slots=True)
class Noted:
    """A tensor of integers: its name, its storage type and its quantization."""

    name: str
    dtype: str
    quantization: Quantization


@dataclass(slots=True)
class Notes:
    """The notes of a file: name of a FakeQuantize's result -> its tensor of integers; and the graph's metadata."""

    quantizations: dict[str, Noted] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)

    def texts(self) -> dict[str, str]:
        """Return the notes as texts of the file."""
        return {
            "quantizations": json.dumps({name: _document(item) for name, item in self.quantizations.items()}),
            "metadata": json.dumps(self.metadata),
        }

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Notes:
        """Read the notes of a file, without malformed ones."""
        found = cls()
        for name, item in _mapping(texts.get("quantizations", "")).items():
            noted = _parse_note(item)
            if noted is not None:
                found.quantizations[name] = noted
        found.metadata = {name: value for name, value in _mapping(texts.get("metadata", "")).items() if isinstance(value, str)}
        return found


def _document(item: Noted) -> list[Any]:
    q = item.quantization
    scales = [float(scale).hex() for scale in q.scale.reshape(-1)]
    return [item.name, item.dtype, scales, q.zero_point.reshape(-1).tolist(), q.axis, q.quant_min, q.quant_max]


def _mapping(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _parse_note(item: Any) -> Noted | None:
    try:
        name, dtype, scales, points, axis, low, high = item
        scale = np.array([float.fromhex(scale) for scale in scales], np.float32)
        q = Quantization(scale, np.array(points, np.int64), axis, 0, low, high)
        sound = isinstance(name, str) and isinstance(dtype, str) and scale.shape == q.zero_point.shape and scale.size > 0
        whole = all(value is None or isinstance(value, int) for value in (axis, low, high))
        return Noted(name, dtype, q) if sound and whole and np.isfinite(scale).all() and (scale > 0).all() else None
    except (TypeError, ValueError, OverflowError):
        return None
