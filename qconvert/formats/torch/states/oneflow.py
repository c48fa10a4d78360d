"""A state_dict of a network with OneFlow's observers, before it is converted: ranges of data, and weights that are still real.

<m>.moving_min_max_observer.moving_max, .moving_min     the range of the module's data; its weights' range is that of the weights themselves
<m>.bn.*                                                a normalization that is part of the weights

Formula, bits, scheme and granularity stand in no state_dict. Those that OneFlow takes by itself hold, or what the user states.
Source: oneflow/user/kernels/min_max_observer_kernel.cpp, moving_average_min_max_observer_kernel.cpp, fake_quantization_kernel.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from qconvert.arithmetic import FORMULAS, fold_batch_norm
from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError
from qconvert.formats.torch.states.entries import Entries, entry_name, norm_numbers, quantization, take_rest
from qconvert.graph import Array, Quantization, Tensor
from qconvert.plugins import Folding, Parameters

_OBSERVER = "moving_min_max_observer"
_FORMULAS, _SCHEMES, _GRAINS = ("google", "cambricon"), ("symmetric", "affine"), ("per_layer", "per_channel")


@dataclass(frozen=True, slots=True)
class Observers:
    """The settings of OneFlow's observers, by its own words.

    Attributes:
        formula: google or cambricon.
        scheme: symmetric or affine.
        grain: of the weights: per_layer or per_channel.
        bits: of the integers.
    """

    formula: str = "google"
    scheme: str = "symmetric"
    grain: str = "per_layer"
    bits: int = 8

    @classmethod
    def of(cls, text: str) -> Observers:
        """What an option says: words in any order, such as "cambricon,16" or "google,affine,per_channel"."""
        given: dict[str, str | int] = {}
        for word in filter(None, (part.strip() for part in text.split(","))):
            names = [name for name, known in (("formula", _FORMULAS), ("scheme", _SCHEMES), ("grain", _GRAINS)) if word in known]
            if names:
                given[names[0]] = word
            elif word.isdecimal() and 2 <= int(word) <= 16:
                given["bits"] = int(word)
            else:
                known = ", ".join((*_FORMULAS, *_SCHEMES, *_GRAINS))
                raise OptionError(
                    f"the option oneflow has the word {word!r}, which is unknown",
                    remedy=f"Known words: {known}, and bits from 2 to 16.",
                    rule="unknown-word",
                )
        found = cls(**given)  # type: ignore[arg-type]
        if found.formula == "cambricon" and found.scheme == "affine":
            raise OptionError(
                "the formula of cambricon has no affine scheme",
                remedy="Leave out the word affine, or name another formula.",
                rule="unknown-form",
            )
        return found

    def __str__(self) -> str:
        return f"{self.formula},{self.scheme},{self.grain},{self.bits}"

    @property
    def limits(self) -> tuple[int, int]:
        """The integers: unsigned ones for the affine scheme."""
        half = 2 ** (self.bits - 1)
        return (0, 2 * half - 1) if self.scheme == "affine" else (-half, half - 1)

    @property
    def dtype(self) -> str:
        """The smallest type that holds them."""
        return f"{'u' if self.scheme == 'affine' else ''}int{8 if self.bits <= 8 else 16}"

    def scales(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Scales and zero points of ranges, in float32 as OneFlow computes them. The shift that cambricon stores is 2^shift here."""
        name = "cambricon" if self.formula == "cambricon" else f"{self.formula}_{self.scheme}"
        with np.errstate(all="ignore"):
            return FORMULAS[name].computes(np.asarray(low, np.float32), np.asarray(high, np.float32), *self.limits)

    def integers(self, values: Array, scale: Array, zero_point: Array) -> Array:
        """Integers of float values: x / scale, and the zero point before the rounding."""
        with np.errstate(all="ignore"):
            steps = np.rint(values / scale + zero_point)
        return np.asarray(np.clip(np.nan_to_num(steps), *self.limits))


def has_observers(entries: Entries) -> bool:
    """Whether a state_dict is of a network with OneFlow's observers."""
    return any(f"{_OBSERVER}.moving_max" in name for name in entries.values)


def read_observed(entries: Entries, how: Observers) -> Parameters:
    """Read a state_dict with OneFlow's observers."""
    data: dict[str, QParams] = {}
    folded: dict[str, Folding] = {}
    odd = 0
    for module in entries.modules_with(f"{_OBSERVER}.moving_max"):
        high, low = (entries.numbers(module, f"{_OBSERVER}.moving_{end}") for end in ("max", "min"))
        entries.take(module, f"{_OBSERVER}.current_train_step")
        if low is None or high is None or low.size != 1 or high.size != 1:
            raise InvalidModelError("the range of the data is not a pair of numbers", where=module, rule="counts-differ")
        scale, point = how.scales(low.reshape(-1), high.reshape(-1))
        data[module] = _quantization(how, scale, point, module)
        odd += data[module].runs_in_float
        if entry_name(module, "weight") in entries.values:
            weight, bias, norm = entries.layer(module)
            if weight.ndim < 2:
                raise InvalidModelError(f"the weights have shape {weight.shape}", where=module, rule="counts-differ")
            folded[module] = Folding(partial(_fold_weights, module, weight, bias, norm, how), bool(norm))
    tensors = take_rest(entries)
    notes = [f"a state_dict does not state how its observers compute; assumed: {how} (change with --oneflow)"]
    if odd:
        notes.append(f"data of {odd} layers are rounded by float operators, since their zero points are outside of the integer type")
    return Parameters(tensors, folded=folded, data=data, trained=True, notes=tuple(notes))


def _quantization(how: Observers, scale: Array, point: Array, module: str) -> QParams:
    """The quantization of data, which is decomposed where its zero point is beyond the integers, as of a range without 0."""
    low, high = how.limits
    if not np.isfinite(point).all() or low <= point[0] <= high:
        return quantization(scale, point, module, how.dtype, low, high)
    checked = quantization(scale, 0, module, how.dtype, low, high).quantization
    return QParams(how.dtype, Quantization(checked.scale, point.astype(np.int64), quant_min=low, quant_max=high), True)


def _fold_weights(
    module: str, weight: Array, bias: Array | None, norm: Mapping[str, Array], how: Observers, epsilon: float
) -> Mapping[str, Tensor]:
    """weight * gamma / sqrt(variance + epsilon), in float32, with a quantization of its own range; beta + (bias - mean) * that factor."""
    if norm:
        weight, bias = fold_batch_norm(weight, bias, *norm_numbers(norm), epsilon, "float32")
    if not np.isfinite(weight).all() or (bias is not None and not np.isfinite(bias).all()):
        raise InvalidModelError("a weight is NaN or infinite", where=module, rule="weights-not-finite")
    flat = weight.reshape(1 if how.grain == "per_layer" else weight.shape[0], -1)
    if not flat.size:
        raise UnsupportedError("the weights have no elements, and therefore no range", where=module, rule="empty-tensor")
    scale, point = how.scales(flat.min(1), flat.max(1))
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise InvalidModelError(
            "the range of the weights makes a scale that is not a positive number", where=module, rule="scale-not-positive"
        )
    low, high = how.limits
    if ((point < low) | (point > high)).any():
        raise InvalidModelError(
            "the range of the weights does not include 0, so that no type holds the zero point",
            where=module,
            rule="zero-point-outside-type",
        )
    wide = (-1, *[1] * (weight.ndim - 1))
    stored = how.integers(weight, scale.reshape(wide), point.reshape(wide))
    on = Quantization(scale.astype(np.float32), point.astype(np.int64), 0 if how.grain == "per_channel" else None)
    on = on.with_limits(how.dtype, low, high)
    found = {f"{module}.weight": Tensor(f"{module}.weight", how.dtype, weight.shape, stored.astype(how.dtype), on)}
    if bias is not None:
        found[f"{module}.bias"] = Tensor(f"{module}.bias", "float32", bias.shape, np.asarray(bias, np.float32))
    return found
