"""What one PyTorch model keeps while it is read: the state that all its calls share, its constants as tensors of the graph, and its
results as outputs; and shapes and types of inputs that the user states, such as "x=1,3,224,224; y=1,10:int64; z=1,8:quint8(0.02,128)".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import DTYPES
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError
from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.stored_values import FLOAT_QPARAMS_STORAGES, QUANTIZED, StoredTensor
from qconvert.formats.torch.values import Ref, Uncomputed, leaves
from qconvert.graph import Quantization, Shape, integer_range
from qconvert.graph.metadata import OBSERVED_SCALES, SOURCE_FORMAT, SOURCE_PRODUCER, TRAINED_SCALES
from qconvert.plugins.options import parse_input_shapes


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


_SCALED = re.compile(r"(\w+)\(([^,()]+),([^,()]+)\)")


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the user of a model gives, and what the user, or a trace, says of it.

    Attributes:
        name: of it.
        shape: None if nobody says it.
        dtype: its storage type; "" if nobody says it.
        quantization: its scale and zero point; None for a plain tensor.
    """

    name: str
    shape: Shape | None = None
    dtype: str = ""
    quantization: Quantization | None = None


class GivenInputs:
    """The option --input-shape.

    Args:
        text: as parse_input_shapes() takes it. The type of a quantized tensor has its scale and zero point in brackets,
            "x=1,3,224,224:quint8(0.02,128)".

    Raises:
        OptionError: it is no such text.
    """

    def __init__(self, text: str) -> None:
        #: By name or place.
        self._stated: dict[str | int, Input] = {}
        self._used: set[str | int] = set()
        for key, (shape, kind) in parse_input_shapes(text).items():
            self._stated[key] = Input("", shape, *_type(kind))

    def of(self, name: str, index: int) -> Input:
        """The input of a name with what the user says of it, by its name or its place."""
        key = name if name in self._stated else index
        self._used.add(key)
        return replace(self._stated.get(key, Input(name)), name=name)

    def members(self, name: str, index: int) -> list[str]:
        """Return the names of the tensors stated for an argument that is a list or a dictionary of tensors.

        Args:
            name: of the argument. Its tensors are called name_0, name_1, …, or name_key.
            index: the place of its first tensor. Shapes without a name from there on are those of a list.
        """
        named = [key.removeprefix(f"{name}_") for key in self._stated if isinstance(key, str) and key.startswith(f"{name}_")]
        return named or [str(place) for place in range(sum(isinstance(key, int) for key in self._stated) - index)]

    def require_used(self) -> None:
        """Raises OptionError if a shape was stated for an input that is not there."""
        left = sorted((key for key in self._stated if key not in self._used), key=lambda key: isinstance(key, int))
        if left:
            raise OptionError(f"--input-shape names inputs that the model does not have: {', '.join(map(str, left))}", rule="unknown-input")


def _type(text: str) -> tuple[str, Quantization | None]:
    """The storage type that follows a colon, and the scale and zero point in its brackets."""
    if match := _SCALED.fullmatch(text):
        dtype = QUANTIZED.get(match[1], "")
        try:
            scale, zero_point = float(match[2]), int(match[3])
        except ValueError:
            scale, zero_point = math.nan, 0
        with np.errstate(over="ignore"):
            is_positive = 0 < float(np.float32(scale)) < math.inf
        if match[1] in ("quint8", "qint8", "qint32") and is_positive:
            low, high = integer_range(dtype)
            if low <= zero_point <= high:
                return dtype, Quantization.per_tensor(scale, zero_point)
    elif not text or text in DTYPES:
        return text, None
    raise OptionError(
        f"--input-shape has the type {text!r}",
        remedy=(
            "Write a type such as uint8 or float32, or quint8(0.02,128) or qint8(0.02,0), with a scale above 0 and a zero point of the "
            "type."
        ),
        rule="malformed-type",
    )
