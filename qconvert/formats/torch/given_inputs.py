"""Shapes and types of inputs that the user states: "1,3,224,224", or "x=1,3,224,224; y=1,10:int64; z=1,8:quint8(0.02,128)"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from qconvert.arithmetic.storage import DTYPES
from qconvert.errors import OptionError
from qconvert.formats.torch.stored_values import QUANTIZED
from qconvert.graph import Quantization, Shape, integer_range
from qconvert.plugins.options import parse_input_shapes

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
        if match[1] in ("quint8", "qint8", "qint32") and 0 < scale < math.inf:
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
