"""Stored values of one side as the other stores them: another integer type, real numbers, another layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qconvert.graph import Array, Graph, Tensor, integer_range
from qconvert.graph.metadata import TRANSPOSED
from qconvert.plugins import Pieces

__all__ = ["Exchange", "transposed"]

#: From a layout to the other.
_PERMUTATIONS = {"channels_first": (0, 3, 1, 2), "channels_last": (0, 2, 3, 1)}


@dataclass(frozen=True, slots=True)
class Exchange:
    """Between the source's tensors and the pieces of the result.

    Attributes:
        pieces: the result's.
        transposed: names whose layout is not the source's although their shape does not show it.
        layout: the data_format of the result's files.
    """

    pieces: Pieces
    transposed: frozenset[str]
    layout: str

    def to_result(self, tensor: Tensor, data: Array) -> Array:
        """The source's stored values as the result stores them.

        Zero points do not take part on purpose: a result whose zero point is wrong must not be fed as if it were right.
        """
        moved = _shifted(tensor, data, tensor.dtype, self.pieces.dtypes[tensor.name])
        shape = self.pieces.shapes[tensor.name]
        if moved.ndim != 4 or shape is None or len(shape) != 4 or self.layout not in _PERMUTATIONS:
            return moved
        permuted = moved.transpose(_PERMUTATIONS[self.layout])
        if tensor.name in self.transposed or (not _fits(moved.shape, shape) and _fits(permuted.shape, shape)):
            return permuted
        return moved

    def to_source(self, tensor: Tensor, data: Array, like: Array) -> Array:
        """What the result computed, in the layout and storage of the source's values `like`."""
        turns = self.layout in _PERMUTATIONS and (tensor.name in self.transposed or data.shape != like.shape)
        if data.ndim == 4 == like.ndim and turns:
            back = data.transpose(np.argsort(_PERMUTATIONS[self.layout]))
            data = back if back.shape == like.shape else data
        return _shifted(tensor, data, self.pieces.dtypes[tensor.name], tensor.dtype)


def transposed(graph: Graph) -> frozenset[str]:
    """The names that a result's own metadata say are in another layout than in its source."""
    return frozenset(_names(graph.metadata))


def _names(metadata: Mapping[str, str]) -> list[str]:
    try:
        found = json.loads(metadata.get(TRANSPOSED, "[]"))
    except ValueError:
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _shifted(tensor: Tensor, data: Array, have: str, want: str) -> Array:
    """Stored values moved by 128 between int8 and uint8, or as real numbers where only one side has floats there, and back."""
    if tensor.quantization is not None and have != want and "float32" in (have, want):
        scale, zero_point = float(tensor.quantization.scale[0]), int(tensor.quantization.zero_point[0])
        if want == "float32":
            return np.asarray((data.astype(np.float64) - zero_point) * scale, np.float32)
        low, high = integer_range(want)
        return np.asarray(np.clip(np.rint(data.astype(np.float64) / scale) + zero_point, low, high).astype(want))
    offset = {("int8", "uint8"): 128, ("uint8", "int8"): -128}.get((have, want), 0)
    return np.asarray((data.astype(np.int16) + offset).astype(want) if offset else data)


def _fits(actual: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return all(w is None or w in (0, a) for a, w in zip(actual, wanted, strict=True))
