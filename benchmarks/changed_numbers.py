"""Small changes of the numbers of a model: what mutants of .onnx and .tflite files share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qconvert.graph import Array

#: Changes a model in place, and says how; "" where it finds nothing to change.
Change = Callable[[Any, np.random.Generator], str]


def pick(items: Sequence[Any], rng: np.random.Generator) -> Any:
    return items[int(rng.integers(len(items)))] if items else None


def change_scale(value: Any, rng: np.random.Generator) -> tuple[Any, str]:
    """A float by one place of its type, 0.1% or 10%."""
    way = int(rng.integers(4))
    if way < 2:
        return np.nextafter(value, value.dtype.type(np.inf if way else -np.inf)), "1 ulp"
    return value.dtype.type(value * (1.001, 1.1)[way - 2]), ("0.1%", "10%")[way - 2]


def change_number(data: Array, rng: np.random.Generator, place: int) -> str:
    """One element in place: an integer by one, a float as a scale."""
    flat = data.reshape(-1)
    old = flat[place]
    if data.dtype.kind == "f":
        flat[place], words = change_scale(old, rng) if old else (data.dtype.type(1e-3), "0.001")
        return f"element {place} by {words}"
    if data.dtype.kind == "b":
        flat[place] = ~old
        return f"element {place} is {flat[place]}"
    by = int(rng.choice([-1, 1]))
    flat[place] = np.clip(int(old) + by, np.iinfo(data.dtype).min, np.iinfo(data.dtype).max)
    return f"element {place} is {flat[place]}, not {old}" if flat[place] != old else ""
