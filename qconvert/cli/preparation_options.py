"""What the options of data say: how images and real numbers are prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qconvert.errors import OptionError

if TYPE_CHECKING:
    from qconvert.data import Preparation

__all__ = ["preparation_of"]


def preparation_of(**words: str | None) -> Preparation | None:
    """The preparation that options ask for; None if none of them is given.

    Args:
        words: what the user wrote for each field of Preparation.
    """
    given = {name: text for name, text in words.items() if text}
    if not given:
        return None
    from qconvert.data import Preparation, numbers

    found: dict[str, Any] = {name: given[name] for name in ("colour", "layout") if name in given}
    found |= {name: numbers(given[name], name) for name in ("mean", "std") if name in given}
    if "pixel_range" in given:
        found["pixel_range"] = numbers(given["pixel_range"], "pixel-range", 2)
    if "crop" in given:
        found["crop"] = _sizes(given["crop"], "crop")
    if "resize" in given:
        found["resize"] = given["resize"] if given["resize"].isalpha() else _sizes(given["resize"], "resize")
    return Preparation(**found)


def _sizes(text: str, option: str) -> tuple[int, ...]:
    from qconvert.data import numbers

    found = numbers(text, option)
    if not all(size.is_integer() for size in found):
        raise OptionError(f"--{option} {text!r} is no list of whole numbers", remedy=f"Write --{option} 224 or --{option} 224,224.")
    return tuple(int(size) for size in found)
