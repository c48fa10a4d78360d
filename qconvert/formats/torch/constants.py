"""Constants of a PyTorch file as tensors of the canonical graph."""

from __future__ import annotations

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.dtypes import FLOAT_QPARAMS_STORAGES, QUANTIZED
from qconvert.formats.torch.stored_values import StoredTensor
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization

__all__ = ["Constants", "quantization_of"]


class Constants:
    """The constants of a model, each added to the graph once, when it is first used.

    Args:
        draft: the graph while it grows.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._places: dict[int, tuple[StoredTensor, str]] = {}
        self._refs: dict[int, Ref] = {}

    def place(self, stored: StoredTensor, name: str) -> None:
        """Says where in the model a constant stands; the first place is its name."""
        self._places.setdefault(id(stored), (stored, name))

    def ref(self, stored: StoredTensor, hint: str = "constant") -> Ref:
        """The constant in the graph."""
        found = self._refs.get(id(stored))
        if found is None:
            _, name = self._places.setdefault(id(stored), (stored, hint))
            if stored.dtype in FLOAT_QPARAMS_STORAGES:
                raise UnsupportedError(
                    f"a tensor of {stored.dtype}, which packs several values in a byte, is not covered here",
                    where=name,
                    rule="dtype-not-covered",
                )
            dtype = QUANTIZED.get(stored.dtype, stored.dtype)
            found = Ref(self._draft.add(name, dtype, stored.shape, stored.data, quantization_of(stored, name)))
            self._refs[id(stored)] = found
        return found

    def name(self, value: Ref | StoredTensor) -> str:
        """The name of a tensor in the graph."""
        return value.name if isinstance(value, Ref) else self.ref(value).name


def quantization_of(stored: StoredTensor, where: str) -> Quantization | None:
    """The quantization of a quantized tensor; None for plain numbers.

    PyTorch states scales in float64; its observers and kernels compute in float32, to which they are rounded.

    Raises:
        InvalidModelError: a scale is no positive number, or a zero point is outside of the type.
    """
    if stored.scales is None or stored.zero_points is None:
        return None
    scales = stored.scales.astype(np.float32)
    if not np.isfinite(scales).all() or not (scales > 0).all():
        raise InvalidModelError("a scale is not a positive number", where=where, rule="scale-not-positive")
    if stored.zero_points.dtype.kind not in "iu":
        raise UnsupportedError("a quantized tensor with float zero points is not covered here", where=where, rule="zero-point-not-integer")
    if stored.axis is None:
        return Quantization(scales.reshape(1), stored.zero_points.reshape(1).astype(np.int64))
    return Quantization(scales, stored.zero_points.astype(np.int64), stored.axis)
