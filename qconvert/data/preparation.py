"""How images and real numbers in files become the values of an input."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from qconvert.errors import OptionError
from qconvert.graph import Array

__all__ = ["Preparation", "numbers"]


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is done with pixels, 0 to 255, and real numbers from files: first brought onto `range`, then (value - mean) / std.

    Attributes:
        mean, std: one number, or one for each channel.
        range: the values that pixels 0 and 255 become; None: -1 to 1 for an image without mean and std, 0 to 1 with them.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for numbers that mean nothing."""
        if not all(map(math.isfinite, (*self.mean, *self.std, *(self.range or ())))):
            raise OptionError("mean, std and range are finite numbers")
        if any(value <= 0 for value in self.std):
            raise OptionError("a std is above 0")
        if self.range is not None and self.range[0] >= self.range[1]:
            raise OptionError(f"the range {self.range[0]:g} to {self.range[1]:g} is empty", remedy="Write --range LOWEST,LARGEST.")

    @property
    def given(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.mean or self.std or self.range is not None)

    def image(self, pixels: Array) -> Array:
        """Real values of pixels, the channels last."""
        low, high = self.range or ((0.0, 1.0) if self.given else (-1.0, 1.0))
        return self.normalized(pixels.astype(np.float64) / 255 * (high - low) + low, -1)

    def normalized(self, values: Array, axis: int) -> Array:
        """(value - mean) / std along the axis of the channels, as float32."""
        mean, std = (self._along(numbers, values, axis, name) for numbers, name in ((self.mean, "mean"), (self.std, "std")))
        found = values if mean is None else values - mean
        return np.asarray(found if std is None else found / std, np.float32)

    @staticmethod
    def _along(numbers: tuple[float, ...], values: Array, axis: int, name: str) -> Array | None:
        if len(numbers) < 2:
            return np.asarray(numbers[0]) if numbers else None
        if not values.ndim or values.shape[axis] != len(numbers):
            channels = values.shape[axis] if values.ndim else 1
            raise OptionError(f"--{name} has {len(numbers)} numbers, the input has {channels} channels")
        return np.asarray(numbers).reshape([len(numbers) if at == axis % values.ndim else 1 for at in range(values.ndim)])


def numbers(text: str, option: str, count: int = 0) -> tuple[float, ...]:
    """Numbers separated by commas.

    Args:
        text: as the user wrote it.
        option: its name, for errors.
        count: how many there have to be; 0 for any number.

    Raises:
        OptionError: they are no numbers, or another number of them.
    """
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise OptionError(f"--{option} {text!r} is no list of numbers", remedy="Write numbers separated by commas.") from error
    if count and len(found) != count:
        raise OptionError(f"--{option} takes {count} numbers, not {len(found)}")
    return found
