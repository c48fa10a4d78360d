"""Sizes of inputs as a user states them for what is built for certain sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from qconvert.errors import OptionError

__all__ = ["Bounds", "stated_bounds"]

#: The smallest, the most likely and the largest sizes of an input.
Bounds = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_FORM = "Write NAME:1x3x224x224, or three of them: NAME:1x3x64x64,1x3x224x224,1x3x512x512 (min, opt, max)."


def stated_bounds(texts: Sequence[str]) -> Mapping[str, Bounds]:
    """Input -> its sizes, of texts such as "x:1x3x224x224", or "x:" with the smallest, the optimal and the largest; raises OptionError.

    A name may have colons in it: the sizes stand after the last.
    """
    found: dict[str, Bounds] = {}
    for text in texts:
        name, colon, said = text.rpartition(":")
        shapes = said.split(",")
        if not (name and colon) or len(shapes) not in (1, 3) or not all(re.fullmatch(r"\d{1,9}(x\d{1,9})*", item) for item in shapes):
            raise OptionError(f"--shape {text!r} has no sizes of an input", remedy=_FORM, rule="malformed-shape")
        least, likely, most = (tuple(map(int, item.split("x"))) for item in (shapes if len(shapes) == 3 else shapes * 3))
        if not len(least) == len(likely) == len(most) or any(not a <= b <= c for a, b, c in zip(least, likely, most, strict=True)):
            raise OptionError(
                f"--shape {text!r} has sizes that decrease; min, opt and max must not decrease", remedy=_FORM, rule="sizes-not-increasing"
            )
        found[name] = (least, likely, most)
    return found
