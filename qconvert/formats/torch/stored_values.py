"""Stored values of PyTorch's files as data: tensors with their quantizations, types, and objects of classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qconvert.graph import Array

__all__ = ["ScriptObject", "StoredTensor", "TorchType", "WrappedTensor"]


@dataclass(frozen=True, slots=True)
class TorchType:
    """A torch.dtype, by its canonical name or, for the quantized ones, by PyTorch's."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        data: its stored values; of a quint4x2, the packed bytes, flat.
        dtype: its canonical type, or PyTorch's name of a quantized one.
        shape: its sizes.
        scales: float64, one or one for each index along `axis`; None for plain numbers.
        zero_points: int64, or float32 where the type has real ones; None likewise.
        axis: that the scales run along; None for one scale.
    """

    data: Array
    dtype: str
    shape: tuple[int, ...]
    scales: Array | None = None
    zero_points: Array | None = None
    axis: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WrappedTensor:
    """A tensor of a class that keeps others inside, such as torchao's quantized weights.

    Attributes:
        class_name: with its package.
        shape: as its users see it.
        parts: what it keeps, by its own names: tensors, and what says how they are to be taken.
    """

    class_name: str
    shape: tuple[int, ...]
    parts: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class ScriptObject:
    """An object of a class of TorchScript, or of one that PyTorch brings.

    Attributes:
        class_name: with its package, such as "__torch__.torch.classes.quantized.Conv2dPackedParamsBase".
        arguments: what it is made of.
        state: what it was given: its attributes by name, or a tuple for a class that packs itself.
    """

    class_name: str
    arguments: tuple[Any, ...] = ()
    state: Any = field(default_factory=dict)
