"""What one PyTorch model keeps while it is read: the state that all its calls share, its constants as tensors of the graph, and its
results as outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.stored_values import FLOAT_QPARAMS_STORAGES, QUANTIZED, StoredTensor
from qconvert.formats.torch.values import Ref, Uncomputed, leaves
from qconvert.graph import Quantization
from qconvert.graph.metadata import OBSERVED_SCALES, SOURCE_FORMAT, SOURCE_PRODUCER, TRAINED_SCALES


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


@dataclass(slots=True)
class Session:
    """The state that all calls of one model share.

    Attributes:
        draft: the graph while it grows.
        constants: those of the file.
        scalar_types: numbers of storage types -> their names, in this container.
        trained: names of fake quantizations, whose scales are those that the file stores.
        observed: those of them whose observers are still on.
        made_bytes: of constants that calls made so far.
    """

    draft: Draft
    scalar_types: Mapping[int, str]
    trained: list[str] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    made_bytes: int = 0
    constants: Constants = field(init=False)

    def __post_init__(self) -> None:
        self.draft.known.computes = True
        self.constants = Constants(self.draft)

    def metadata(self, producer: str) -> dict[str, str]:
        """What the graph says of its source: the format, what made it, and what was read otherwise than PyTorch would convert it."""
        found = {SOURCE_FORMAT: "torch", SOURCE_PRODUCER: producer}
        lists = {TRAINED_SCALES: self.trained, OBSERVED_SCALES: self.observed}
        return found | {key: json.dumps(names) for key, names in lists.items() if names}


def flatten_outputs(result: Any, constants: Constants) -> list[str]:
    """The names of the tensors in what a program returns, in order: one, or those in tuples, lists and dictionaries.

    Raises:
        UnsupportedError: something in it is no tensor.
    """
    found = []
    for item in leaves(result):
        if isinstance(item, (Ref, StoredTensor)):
            found.append((item if isinstance(item, Ref) else constants.ref(item, "output")).name)
        elif item is not None or result is None:
            what = item.what if isinstance(item, Uncomputed) else f"{type(item).__name__}, not a tensor,"
            raise UnsupportedError(f"an output that is {what} is not covered", rule="output-not-a-tensor")
    return found
