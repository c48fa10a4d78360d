"""How a target stores values, and what it demands of their quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qconvert.errors import OptionError

__all__ = ["Storage", "require_words"]

#: Fields that are one word of a few.
_WORDS: Mapping[str, tuple[str, ...]] = {
    "activations": ("uint8", "int8", "unsigned", "source", "int8_or_source", ""),
    "weights": ("uint8", "int8", "source", ""),
    "activation_granularity": ("per_tensor", ""),
    "weight_granularity": ("per_tensor", "per_axis", "per_axis_signed", ""),
}


@dataclass(frozen=True, slots=True)
class Storage:
    """The types that values are stored in, and what quantized operators demand. What is left out demands nothing.

    Attributes:
        activations: storage of 8-bit activations inside the graph: "uint8", "int8", "unsigned" (uint8, and those of 16 bits as uint16), ""
            (left alone), "source": the type that the first source of the model had, if integer kernels take the weights next to
            it, or "int8_or_source": int8 where there are weights and none changes by that, and else "source".
        weights: storage of 8-bit weights: "int8" (signed, zero point 0), "uint8" (where they have one scale), "" (left alone), or "source":
            what weight_dtypes names first next to the data that they have.
        activation_dtypes: storage types of activations.
        conversion_dtypes: further types that conversions between quantizations may give.
        activation_granularity: "per_tensor", or "" for any.
        symmetric_activations: storage types whose activations have the zero point 0.
        moves_in_float: whether data movement, selection and comparison of quantized data stand between Dequantize and Quantize.
        free_edges: whether conversions at graph inputs and outputs, which the program around may run, take any type and zero point.
        one_type: whether all quantized data of an operator have one type.
        explicit_conversions: whether only Quantize and Dequantize stand between real and quantized data.
        weight_dtypes: storage type of the data -> those of the weights next to them.
        symmetric_weights: whether signed weights have the zero point 0.
        weight_granularity: "per_tensor"; "per_axis": one scale, or one for each output channel; "per_axis_signed": likewise, but
            unsigned weights have one scale; "" for any.
        bias_dtypes: storage type of the data -> those of the bias, at data scale * weight scale with zero point 0.
        quant_ranges: storage type of weights -> smallest and largest stored integer, for kernels without -128.
        power_of_two_scales: whether scales are powers of two.
    """

    activations: str = ""
    weights: str = ""
    activation_dtypes: tuple[str, ...] = ()
    conversion_dtypes: tuple[str, ...] = ()
    activation_granularity: str = ""
    symmetric_activations: tuple[str, ...] = ()
    moves_in_float: bool = False
    free_edges: bool = True
    one_type: bool = False
    explicit_conversions: bool = False
    weight_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    symmetric_weights: bool = False
    weight_granularity: str = ""
    bias_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    quant_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    power_of_two_scales: bool = False

    def __post_init__(self) -> None:
        """Raises OptionError for words that mean nothing: they would demand nothing, in silence."""
        require_words(self, _WORDS, "a target's storage")
        for name in ("weight_dtypes", "bias_dtypes"):
            for dtype, others in getattr(self, name).items():
                if not others:
                    raise OptionError(f"the field {name} of a target's storage has no types for data of {dtype}", rule="empty-field")


def require_words(item: Any, words: Mapping[str, tuple[str, ...]], what: str) -> None:
    """Raises OptionError for a field that is none of the words which mean something."""
    for name, known in words.items():
        if getattr(item, name) not in known:
            raise OptionError(
                f"the field {name} of {what} is {getattr(item, name)!r}",
                remedy=f"Use one of {', '.join(map(repr, known))}.",
                rule="unknown-word",
            )
