"""The entries of a state_dict by their names, and how they are taken out until none is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.torch.session import quantization_of
from qconvert.formats.torch.stored_values import FLOAT_QPARAMS_STORAGES, QUANTIZED, StoredTensor
from qconvert.graph import Array, Quantization, Tensor, integer_range

#: What a normalization has, in the order of its formula.
STATISTICS = ("weight", "bias", "running_mean", "running_var")


@dataclass(slots=True)
class Entries:
    """The entries that nobody has taken yet.

    Attributes:
        values: by name: tensors, tuples, and what else modules keep.
        used: names of those that were taken.
    """

    values: Mapping[str, Any]
    used: set[str] = field(default_factory=set)

    def unused_names(self) -> list[str]:
        """Names of those that nobody has taken, in the file's order."""
        return [name for name in self.values if name not in self.used]

    def modules_with(self, suffix: str) -> list[str]:
        """The modules that have an entry of this name left, in the file's order; "" is the network itself."""
        ending = f".{suffix}"
        return [name[: -len(ending)] for name in self.unused_names() if name == suffix or (name.endswith(ending) and name != ending)]

    def take(self, module: str, name: str) -> Any:
        """An entry of a module; None if there is none."""
        key = entry_name(module, name)
        self.used.add(key)
        return self.values.get(key)

    def tensor(self, module: str, name: str) -> StoredTensor | None:
        """The same of one that has to be a plain or quantized tensor."""
        value = self.take(module, name)
        if value is None or isinstance(value, StoredTensor):
            return value
        raise InvalidModelError(f"the entry is a {type(value).__name__}, not a tensor", where=f"{module}.{name}", rule="wrong-type")

    def numbers(self, module: str, name: str) -> Array | None:
        """The same of one that has to hold plain numbers."""
        found = self.tensor(module, name)
        if found is None:
            return None
        if found.scales is not None or found.dtype in FLOAT_QPARAMS_STORAGES or np.asarray(found.data).dtype.kind not in "fiubV":
            raise InvalidModelError("the entry does not hold plain numbers", where=f"{module}.{name}", rule="wrong-type")
        return np.asarray(found.data)

    def statistics(self, module: str, weight: Array) -> dict[str, Array]:
        """The factors, summands, means and variances of the normalization in a module with these weights; none if it has none."""
        norm = entry_name(module, "bn")
        self.take(norm, "num_batches_tracked")
        found = {name: value for name in STATISTICS if (value := self.numbers(norm, name)) is not None}
        if found and (len(found) != 4 or any(value.shape != weight.shape[:1] for value in found.values())):
            raise InvalidModelError(
                f"the statistics of a normalization do not fit weights of shape {weight.shape}", where=module, rule="counts-differ"
            )
        return found

    def layer(self, module: str) -> tuple[Array, Array | None, dict[str, Array]]:
        """The weights, in float32, the bias and the statistics of the normalization of a module."""
        weight, bias = self.numbers(module, "weight"), self.numbers(module, "bias")
        if weight is None:
            raise InvalidModelError("a fake quantization of weights has no weights", where=module, rule="weights-missing")
        norm = self.statistics(module, weight)
        if bias is not None and bias.shape != weight.shape[:1]:
            raise InvalidModelError(
                f"a bias of shape {bias.shape} does not fit weights of shape {weight.shape}", where=module, rule="counts-differ"
            )
        return weight.astype(np.float32), bias, norm

    def number(self, module: str, name: str) -> float | None:
        """The same of one number."""
        found = self.numbers(module, name)
        if found is None:
            return None
        if found.size != 1:
            raise InvalidModelError(
                f"the entry holds {found.size} numbers; one is required", where=f"{module}.{name}", rule="not-per-tensor"
            )
        return float(found.reshape(()).item())


def norm_numbers(norm: Mapping[str, Array]) -> tuple[Array, Array, Array, Array]:
    """The factors, summands, means and variances of a normalization."""
    return norm["weight"], norm["bias"], norm["running_mean"], norm["running_var"]


def entry_name(module: str, name: str) -> str:
    """The name of an entry of a module; "" is the network itself."""
    return f"{module}.{name}" if module else name


def sort_by_number(listed: Mapping[str, list[tuple[int, QParams | None]]]) -> dict[str, tuple[QParams, ...]]:
    """Quantizations by their numbers; of those that are off, none."""
    return {path: tuple(item for _, item in sorted(items, key=lambda pair: pair[0]) if item is not None) for path, items in listed.items()}


def parent(module: str) -> str:
    """The module that a module stands in."""
    return module.rpartition(".")[0]


def quantization(scale: Any, zero_point: Any, where: str, dtype: str = "", low: int | None = None, high: int | None = None) -> QParams:
    """The quantization of one scale and one zero point.

    Args:
        scale, zero_point: numbers, or arrays of one.
        where: the module, for messages.
        dtype: the storage type; by default uint8, or int8 where the zero point is negative.
        low, high: its limits, where these are not the type's.

    Raises:
        InvalidModelError: they are no quantization.
    """
    scales, points = np.asarray(scale, np.float64), np.asarray(zero_point, np.float64)
    if scales.size != 1 or points.size != 1:
        raise InvalidModelError(
            f"there are {scales.size} scales and {points.size} zero points; one of each is required", where=where, rule="not-per-tensor"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        real, point = float(np.float32(scales.reshape(()))), float(points.reshape(()))
    dtype = dtype or ("int8" if point < 0 else "uint8")
    lowest, highest = integer_range(dtype)
    if not (np.isfinite(real) and real > 0 and point == np.rint(point) and lowest <= point <= highest):
        raise InvalidModelError(
            f"scale {real} and zero point {point:g} do not quantize to {dtype}", where=where, rule="quantization-outside-type"
        )
    made = Quantization.per_tensor(real, int(point))
    return QParams(dtype, made.with_limits(dtype, lowest if low is None else low, highest if high is None else high))


def plain_tensor(stored: StoredTensor, name: str) -> Tensor:
    """A tensor of the file as one of a graph."""
    if stored.dtype in FLOAT_QPARAMS_STORAGES:
        raise UnsupportedError(
            f"a tensor of {stored.dtype}, which packs several values in a byte, is not covered in a state_dict",
            where=name,
            rule="dtype-not-covered",
        )
    return Tensor(name, QUANTIZED.get(stored.dtype, stored.dtype), stored.shape, stored.data, quantization_of(stored, name))


def take_rest(entries: Entries) -> dict[str, Tensor]:
    """Takes all that is left; returns the tensors of it by name, without the counters of normalizations."""
    tensors: dict[str, Tensor] = {}
    for name in entries.unused_names():
        value = entries.values[name]
        entries.used.add(name)
        if isinstance(value, StoredTensor) and not name.endswith("num_batches_tracked"):
            tensors[name] = plain_tensor(value, name)
    return tensors
