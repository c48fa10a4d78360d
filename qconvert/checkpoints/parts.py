"""The tensors of one layer of a checkpoint, by the names that its tool gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.errors import InvalidModelError, UnsupportedError

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of a layer.

    Attributes:
        layer: its path, such as "model.layers.0.mlp.down_proj".
        tensors: by their names below it, such as "qweight".
    """

    layer: str
    tensors: Mapping[str, Array]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def dtype(self, name: str) -> str:
        """The type of a tensor; "" if there is none of this name."""
        found = self.tensors.get(name)
        return "" if found is None else found.dtype.name

    def words(self, name: str) -> Array:
        """A tensor of packed words: int32 or uint32 with two axes, as uint32."""
        found = self.tensors.get(name)
        if found is not None and found.ndim == 3:
            raise UnsupportedError("experts in one tensor are not covered", where=repr(self.layer), rule="blocks-not-covered")
        if found is None or found.dtype not in (np.int32, np.uint32) or found.ndim != 2 or not found.size:
            raise self.tensor_error(name, "int32 with 2 axes")
        return found.view(np.uint32)

    def matrix(self, name: str, dtype: str) -> Array:
        """A tensor of two axes and one type."""
        found = self.tensors.get(name)
        if found is None or found.dtype.name != dtype or found.ndim != 2 or not found.size:
            raise self.tensor_error(name, f"{dtype} with 2 axes")
        return found

    def scales(self, name: str) -> Array:
        """Floats with two axes, all of them finite; a block of zeros may have a scale of 0, and one of -8 to 7 a negative scale."""
        found = self.tensors.get(name)
        if found is None or found.ndim != 2 or not found.size or not is_float(found):
            raise self.tensor_error(name, "a tensor of floats with 2 axes")
        if not np.isfinite(found.astype(np.float32)).all():
            raise InvalidModelError(f"{name} has a scale that is not finite", where=repr(self.layer), rule="scale-not-finite")
        return found

    def number(self, name: str) -> Array:
        """One float32 that is finite and not 0, as [1, 1]."""
        found = self.tensors.get(name)
        if found is None or found.size != 1 or not is_float(found) or not np.isfinite(found.astype(np.float32)).all() or not found.any():
            raise InvalidModelError(f"{name} is missing, 0 or not finite", where=repr(self.layer), rule="scale-not-finite")
        return found.astype(np.float32).reshape(1, 1)

    def tensor_error(self, name: str, wanted: str) -> InvalidModelError:
        """The error of a tensor that is missing or of another type."""
        found = self.tensors.get(name)
        what = "missing" if found is None else f"{found.dtype} of shape {list(found.shape)}"
        return InvalidModelError(f"{name} is {what}; {wanted} is required", where=repr(self.layer), rule="wrong-type")

    def shapes_error(self, *names: str) -> InvalidModelError:
        """The error of tensors whose shapes do not fit each other."""
        shapes = ", ".join(f"{name} {list(self.tensors[name].shape)}" for name in names if name in self.tensors)
        return InvalidModelError(f"{shapes} do not fit each other", where=repr(self.layer), rule="blocks-do-not-fit")


def is_float(numbers: Array) -> bool:
    """Whether numbers are floats, those of ml_dtypes among them."""
    return numbers.dtype.kind == "f" or numbers.dtype.name in ("bfloat16", "float8_e4m3fn")
