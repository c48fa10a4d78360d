"""Stored values of PyTorch's files as data: storage types by number and name, tensors with their quantizations, and objects of classes.
Tensors are views on the bytes of their storages and stay within these. Values of a pickle are refused that are larger than they look:
lists may stand in themselves, or double with every level. Sources: c10/core/ScalarType.h; torch/_export/serde/schema.py (ScalarType).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.graph import Array

#: c10::ScalarType, as TorchScript's code and pickles number types.
SCALAR_TYPES: Mapping[int, str] = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 9: "complex64", 11: "bool",
    12: "qint8", 13: "quint8", 14: "qint32", 15: "bfloat16", 16: "quint4x2", 17: "quint2x4",
    23: "float8e5m2", 24: "float8e4m3fn", 25: "float8e5m2fnuz", 26: "float8e4m3fnuz", 27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip
#: The numbering of the JSON in a .pt2 file.
EXPORT: Mapping[int, str] = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64", 10: "complex64", 12: "bool",
    13: "bfloat16", 28: "uint16", 29: "float8e4m3fn", 30: "float8e5m2", 31: "float8e4m3fnuz", 32: "float8e5m2fnuz",
}  # fmt: skip
#: Types that carry a scale and a zero point, and what they store.
QUANTIZED: Mapping[str, str] = {"qint8": "int8", "quint8": "uint8", "qint32": "int32", "quint4x2": "uint8", "quint2x4": "uint8"}
#: torch.float32 and so on, as pickles of dtypes name them; "half" and the like are other names of the same.
NAMES: Mapping[str, str] = {
    **{name: name for name in (*SCALAR_TYPES.values(), *QUANTIZED) if not name.startswith("float8")},
    "half": "float16", "float": "float32", "double": "float64", "short": "int16", "int": "int32", "long": "int64",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)},
    "float8_e5m2": "float8e5m2", "float8_e4m3fn": "float8e4m3fn", "float8_e5m2fnuz": "float8e5m2fnuz", "float8_e4m3fnuz": "float8e4m3fnuz",
}  # fmt: skip
#: Classes of storages in pickles.
STORAGES: Mapping[str, str] = {
    "ByteStorage": "uint8", "CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32", "LongStorage": "int64",
    "HalfStorage": "float16", "FloatStorage": "float32", "DoubleStorage": "float64", "BoolStorage": "bool", "BFloat16Storage": "bfloat16",
    "ComplexFloatStorage": "complex64", "QInt8Storage": "qint8", "QUInt8Storage": "quint8", "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4", "UntypedStorage": "uint8",
}  # fmt: skip
#: Storages with fewer bytes than elements, and how many elements a byte holds.
FLOAT_QPARAMS_STORAGES: Mapping[str, int] = {"quint4x2": 2, "quint2x4": 4}


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


#: Items of a value written out, and lists within each other. The largest real data.pkl seen has 60,000.
_MOST_ITEMS, _DEEPEST = 2**22, 200


def require_finite(value: Any, what: str) -> None:
    """Raises InvalidModelError for a value that is endless, too deep or too large once everything that it shares is written out.

    Args:
        value: lists, tuples, dictionaries, and objects, each of which is looked at once.
        what: it is, for messages.
    """
    objects, seen = [value], {id(value)}
    sizes: dict[int, int] = {}
    inside: set[int] = set()

    def measure(item: Any) -> int:
        """How many items a value has, written out; the innermost first."""
        if isinstance(item, (ScriptObject, WrappedTensor)) and id(item) not in seen:
            seen.add(id(item))
            objects.append(item)
        if not isinstance(item, (list, tuple, dict)):
            return 1
        if id(item) in sizes:
            return sizes[id(item)]
        if id(item) in inside or len(inside) >= _DEEPEST:
            raise InvalidModelError(
                f"the pickle {what} has lists that contain themselves, or are nested too deeply", rule="nested-too-deeply"
            )
        inside.add(id(item))
        sizes[id(item)] = 1 + sum(map(measure, item.values() if isinstance(item, dict) else item))
        inside.discard(id(item))
        if sizes[id(item)] > _MOST_ITEMS:
            raise InvalidModelError(
                f"the pickle {what} has lists that share each other, with more than {_MOST_ITEMS} items once expanded",
                rule="too-many-items",
            )
        return sizes[id(item)]

    while objects:
        top = objects.pop()
        if isinstance(top, ScriptObject):
            measure([top.state, top.arguments])
        else:
            measure(list(top.parts.values()) if isinstance(top, WrappedTensor) else top)
