"""Tensors as views on the bytes of their storages, with every element within these, and no more in all than a file may ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.graph import Array

__all__ = ["Storages", "require_sizes"]

#: Bytes of all tensors together, if they share or repeat those of their storages: this, and so many times the storages.
_SHARED, _SHARED_TIMES = 2**24, 8


def require_sizes(offset: Any, sizes: Sequence[Any], strides: Sequence[Any]) -> None:
    """Raises ValueError for what is no place of a tensor in a storage."""
    numbers = (offset, *sizes, *strides)
    if len(sizes) != len(strides) or len(sizes) > 32 or any(type(n) is not int or not 0 <= n < 2**62 for n in numbers):
        raise ValueError(f"a tensor of sizes {tuple(sizes)} and strides {tuple(strides)} at {offset}")


class Storages:
    """The storages of a file, and how much the tensors on them take."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._stored = 0
        self._taken = 0

    def view(self, key: str, content: Array, kind: np.dtype[Any], place: tuple[Any, Any, Any], most: int | None = None) -> Array:
        """The elements of a tensor.

        Args:
            key: of the storage.
            content: its bytes.
            kind: type of its elements.
            place: of the tensor: its offset, its sizes and its strides, in elements.
            most: how many elements the file says that the storage has; None if it says nothing.

        Raises:
            ValueError: a number is no size, an element lies outside of the storage, or the tensors of the file repeat too much.
        """
        offset, sizes, strides = place[0], tuple(place[1]), tuple(place[2])
        require_sizes(offset, sizes, strides)
        if 0 in sizes:
            if math.prod(size for size in sizes if size) >= 2**40:
                raise ValueError(f"a tensor of sizes {sizes}")
            return np.zeros(sizes, kind)
        available = content.nbytes // kind.itemsize
        if content.nbytes != (available if most is None else most) * kind.itemsize:
            stated = f"whole elements of {kind.itemsize} bytes" if most is None else f"{most} elements of {kind.itemsize} bytes"
            raise ValueError(f"the storage {key!r} has {content.nbytes} bytes, and the file states {stated}")
        if key not in self._known:
            self._known.add(key)
            self._stored += content.nbytes
        self._taken += math.prod(sizes) * kind.itemsize
        if self._taken > _SHARED + _SHARED_TIMES * self._stored:
            raise ValueError(f"a tensor of shape {sizes} repeats the {available} elements of its storage")
        last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if last >= available:
            raise ValueError(f"the storage {key!r} has {available} elements, and a tensor of shape {sizes} needs {last + 1}")
        flat = content[: available * kind.itemsize].view(kind)
        return np.lib.stride_tricks.as_strided(flat[offset:], sizes, [stride * kind.itemsize for stride in strides], writeable=False)
