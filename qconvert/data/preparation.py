"""How images and real numbers in files become the values of an input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_type_hints

import numpy as np

from qconvert.arguments import require_fitting
from qconvert.errors import OptionError, format_count, require_word
from qconvert.graph import Array

#: Orders of colour -> Pillow's mode, and the order in which its channels are taken.
COLOURS: dict[str, tuple[str, tuple[int, ...]]] = {
    "rgb": ("RGB", (0, 1, 2)), "bgr": ("RGB", (2, 1, 0)), "gray": ("L", (0,)),
    "rgba": ("RGBA", (0, 1, 2, 3)), "bgra": ("RGBA", (2, 1, 0, 3)),
}  # fmt: skip
_LAYOUTS = ("nchw", "nhwc")
_STRETCH = "stretch"
#: Pixels of a resized image, whatever the model takes: about 8,000 by 8,000.
_MOST_PIXELS = 2**26


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Preparation)


@dataclass(frozen=True, slots=True)
class Preparation:
    """How images and floats from files are prepared.

    An image is brought to its size: `share`, `resize` and `crop`, in this order. Its pixels, 0 to 255, are then brought onto `range`, and
    these, and floats that are not images, become (value - mean) / std.

    Attributes:
        mean, std: one number, or one for each channel, in the order of `colour`.
        pixel_range: the values that pixels 0 and 255 become; None: -1 to 1 for an image without mean and std, 0 to 1 with them.
        resize: "stretch" for the input's own size; one number for the shorter side; height and width. None: an image that has another size
            than the input is an error.
        crop: height and width of the centre that is kept after resizing, or one number for both; () for all.
        share: the share of height and width, around the middle, that is kept before resizing.
        colour: "rgb", "bgr", "gray", "rgba" or "bgra"; "" for gray or RGB, by the number of the input's channels.
        layout: "nchw" or "nhwc"; "" to derive it from the input's shape.
        corners: whether `share` and `resize` are one bilinear sampling in which corners lie on corners, truncated to whole pixels, as
            MNN's tools have it; by default Pillow's, which takes all pixels into account that fall together.
        factor: factor of the values after `mean`, in float32, instead of `std`: one number, or one per channel.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pixel_range: tuple[float, float] | None = None
    resize: str | tuple[int, ...] | None = None
    crop: tuple[int, ...] = ()
    share: tuple[float, float] = (1.0, 1.0)
    colour: str = ""
    layout: str = ""
    corners: bool = False
    factor: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Raises OptionError for what means nothing."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        require_fitting("Preparation()", type(self), _hints(), fields)
        if not all(map(math.isfinite, (*self.mean, *self.std, *(() if self.pixel_range is None else self.pixel_range)))):
            raise OptionError("mean, std or pixel_range is not finite; finite numbers are required", rule="not-finite")
        if any(value <= 0 for value in self.std):
            raise OptionError("a std is 0 or less; it must be greater than 0", rule="std-not-positive")
        if not all(value > 0 and math.isfinite(value) for value in self.factor) or (self.factor and self.std):
            raise OptionError(
                "a factor is 0 or less, or std is given as well; a factor must be greater than 0 and replaces std",
                rule="factor-not-positive",
            )
        if self.pixel_range is not None and (len(self.pixel_range) != 2 or self.pixel_range[0] >= self.pixel_range[1]):
            words = ", ".join(f"{value:g}" for value in self.pixel_range)
            reason = f"pixel_range is ({words}); it must be two numbers, the lower one first"
            raise OptionError(reason, remedy="Write --pixel-range LOWEST,LARGEST.", rule="empty-range")
        if isinstance(self.resize, str) and self.resize != _STRETCH:
            raise OptionError(
                f"resize is {self.resize!r}, which is unknown", remedy="Write stretch, SHORTER or HEIGHT,WIDTH.", rule="resize-form"
            )
        for name, sizes in (("resize", self.resize or ()), ("crop", self.crop)):
            if not isinstance(sizes, str) and (len(sizes) > 2 or any(size < 1 or size != int(size) for size in sizes)):
                raise OptionError(
                    f"{name} must be one or two integers greater than 0",
                    remedy=f"Write --{name} 224 or --{name} 224,224.",
                    rule="size-not-positive",
                )
        if len(self.share) != 2 or not all(0 < part <= 1 for part in self.share):
            raise OptionError("the share of an image must be greater than 0 and at most 1", rule="number-out-of-range")
        for name, given, known in (("colour", self.colour, (*COLOURS,)), ("layout", self.layout, _LAYOUTS)):
            if given:
                require_word(name, given, known)

    @property
    def has_value_rule(self) -> bool:
        """Whether other values are asked for than those of pixels."""
        return bool(self.mean or self.std or self.factor or self.pixel_range is not None)

    def with_stretch(self) -> Preparation:
        """The same, with images stretched to the input's size where no other rule is stated."""
        return replace(self, resize=self.resize or _STRETCH)

    def mode(self, channels: int) -> tuple[str, tuple[int, ...]]:
        """Pillow's mode of an image of so many channels, and the order of its channels."""
        found = COLOURS[self.colour or ("gray" if channels == 1 else "rgb")]
        if len(found[1]) != channels:
            raise OptionError(
                f"the colour {self.colour or 'rgb'} has {format_count(len(found[1]), 'channel')}; "
                f"the input has {format_count(channels, 'channel')}",
                rule="channel-count",
            )
        return found

    def resize_image(self, image: Any, wanted: tuple[int | None, int | None]) -> Any:
        """An image of Pillow's brought to its size.

        Args:
            image: the image.
            wanted: height and width of the input; None where any will do.

        Raises:
            OptionError: it has another size than the input then.
        """
        from PIL import Image

        if self.corners:
            image = self._between_corners(image, wanted)
        elif self.share != (1.0, 1.0):
            image = _middle(image, max(1, round(image.height * self.share[0])), max(1, round(image.width * self.share[1])))
        size = self._resized_shape((image.height, image.width), wanted)
        if not self.corners and size != (image.height, image.width):
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        if self.crop:
            image = _middle(image, self.crop[0], self.crop[-1])
        size = image.height, image.width
        if any(own not in (None, other) for own, other in zip(wanted, size, strict=True)):
            takes = " x ".join("any" if own is None else str(own) for own in wanted)
            remedy = "Resize the images: --resize stretch, --resize SHORTER or HEIGHT,WIDTH, --crop HEIGHT,WIDTH."
            raise OptionError(f"is {size[0]} x {size[1]} pixels; the input requires {takes}", remedy=remedy, rule="image-size")
        return image

    def _resized_shape(self, size: tuple[int, int], wanted: tuple[int | None, int | None]) -> tuple[int, int]:
        """Height and width after resizing.

        Raises:
            OptionError: it would have more pixels than memory is taken for.
        """
        if self.resize is None:
            return size
        if isinstance(self.resize, str):
            found = wanted[0] or size[0], wanted[1] or size[1]
        elif len(self.resize) == 1:
            ratio = self.resize[0] / min(size)
            found = max(self.resize[0], round(size[0] * ratio)), max(self.resize[0], round(size[1] * ratio))
        else:
            found = self.resize[0], self.resize[1]
        if found[0] * found[1] > _MOST_PIXELS:
            reason = f"is {size[0]} x {size[1]} pixels and would be {found[0]} x {found[1]} by --resize, more than {_MOST_PIXELS}"
            raise OptionError(reason, remedy="Write --resize stretch, or the size that the input takes.", rule="too-many-pixels")
        return found

    def _between_corners(self, image: Any, wanted: tuple[int | None, int | None]) -> Any:
        """The share of the image, sampled at the size that it is resized to."""
        from PIL import Image

        pixels = np.asarray(image)
        for axis, size in enumerate(self._resized_shape((image.height, image.width), wanted)):
            pixels = pixels.astype(np.float32)
            kept = max(1, int(pixels.shape[axis] * self.share[axis]))
            places = (pixels.shape[axis] - kept) // 2 + np.arange(size) * ((kept - 1) / max(size - 1, 1))
            places = np.clip(places, 0, pixels.shape[axis] - 1).astype(np.float32)
            first = places.astype(np.int64)
            part = (places - first).reshape([-1 if at == axis else 1 for at in range(pixels.ndim)])
            last = np.minimum(first + 1, pixels.shape[axis] - 1)
            pixels = pixels.take(first, axis) * (1 - part) + pixels.take(last, axis) * part
        return Image.fromarray(pixels.astype(np.uint8), image.mode)

    def sentence(self, wanted: tuple[int | None, int | None], channels: int, *, is_first: bool, is_real: bool) -> str:
        """Return what is done with images, in one line.

        Args:
            wanted: height and width of the input; None where any will do.
            channels: how many the input has.
            is_first: whether they are its first axis after the batch.
            is_real: whether the input takes floats.
        """
        height, width = ("any" if size is None else size for size in wanted)
        steps = [f"the middle {self.share[0]:g} x {self.share[1]:g} is kept"] if self.share != (1.0, 1.0) else []
        if isinstance(self.resize, str):
            steps.append(f"stretched to {height} x {width}")
        elif self.resize:
            steps.append(f"resized to {'a shorter side of ' if len(self.resize) == 1 else ''}{' x '.join(map(str, self.resize))}")
        steps += [f"the middle {self.crop[0]} x {self.crop[-1]} is cut out"] if self.crop else []
        steps.append(self.colour or ("gray" if channels == 1 else "rgb" if channels == 3 else "rgba"))
        if is_real or self.has_value_rule:
            low, high = self.ends
            steps.append(f"pixels 0 to 255 become {low:g} to {high:g}")
            for words, numbers in (("minus the mean", self.mean), ("divided by the std", self.std), ("times", self.factor)):
                steps += [f"{words} {', '.join(f'{number:g}' for number in numbers)}"] if numbers else []
        else:
            steps.append("pixels as they are")
        return f"images: {', '.join((*steps, 'nchw' if is_first else 'nhwc'))}"

    @property
    def ends(self) -> tuple[float, float]:
        """What pixels 0 and 255 become before `mean` and `std`."""
        return self.pixel_range or ((0.0, 1.0) if self.has_value_rule else (-1.0, 1.0))

    def image(self, pixels: Array) -> Array:
        """Pixels as floats, channels last."""
        low, high = self.ends
        return self.normalize(pixels.astype(np.float64) / 255 * (high - low) + low, -1)

    def normalize(self, values: Array, axis: int) -> Array:
        """(value - mean) / std along the axis of the channels, as float32."""
        mean, std = (self._along(numbers, values, axis, name) for numbers, name in ((self.mean, "mean"), (self.std, "std")))
        factor = self._along(self.factor, values, axis, "factor")
        if factor is not None:
            values = np.asarray(values, np.float32)
            return np.asarray((values if mean is None else values - mean.astype(np.float32)) * factor.astype(np.float32), np.float32)
        found = values if mean is None else values - mean
        return np.asarray(found if std is None else found / std, np.float32)

    def is_channels_first(self, shape: Sequence[int | str]) -> bool:
        """Whether an input of this shape has its channels first."""
        return self.layout == "nchw" if self.layout else channels_first(shape)

    @staticmethod
    def _along(numbers: tuple[float, ...], values: Array, axis: int, name: str) -> Array | None:
        if len(numbers) < 2:
            return np.asarray(numbers[0]) if numbers else None
        if not values.ndim or values.shape[axis] != len(numbers):
            channels = values.shape[axis] if values.ndim else 1
            raise OptionError(
                f"--{name} has {format_count(len(numbers), 'number')}; the input has {format_count(channels, 'channel')}",
                rule="channel-count",
            )
        return np.asarray(numbers).reshape([len(numbers) if at == axis % values.ndim else 1 for at in range(values.ndim)])


def channels_first(shape: Sequence[int | str]) -> bool:
    """Whether a shape looks like that of images with their channels first: only that gives 1 or 3 channels."""
    return len(shape) == 4 and shape[3] not in (1, 3) and shape[1] in (1, 3)


def _middle(image: Any, height: int, width: int) -> Any:
    """The middle of an image.

    Raises:
        OptionError: the image is smaller.
    """
    if height > image.height or width > image.width:
        raise OptionError(
            f"is {image.height} x {image.width} pixels, too small for a crop of {height} x {width}",
            remedy="Use --resize.",
            rule="image-size",
        )
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


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
        raise OptionError(
            f"--{option} {text!r} is not a list of numbers", remedy="Write numbers separated by commas.", rule="not-a-number"
        ) from error
    if count and len(found) != count:
        raise OptionError(f"--{option} takes {count} numbers, not {len(found)}", rule="number-count")
    return found
