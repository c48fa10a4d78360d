"""How a kind of operator takes part in a change between channels_first and channels_last; passes/assign_layout.py makes the change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["ALONG_AXIS", "DECIDES", "ELEMENTWISE", "PINNED", "REDUCES", "TRANSPOSES", "Layout", "Suits", "per_axis", "permutation"]


class Suits(Enum):
    """Which layouts an operator runs in."""

    PINNED = "the source's alone: its meaning depends on the order of all axes (Reshape, MatMul)"
    DECIDES = "the one that its attribute data_format says; a target wants all such operators to have one"
    TRANSPOSES = "it joins two layouts"
    BROADCASTS = "any, if every operand has the data's rank, or is a constant that can be given it, or is a single element"
    KEEPS_RANK = "any, if its data and results have the rank concerned and what names axes is constant; axes are renumbered"
    REDUCES = "any, as before, if the dimensions that remain keep their order"


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout role of a kind.

    Attributes:
        suits: which layouts it runs in.
        axes: the input that lists axes, which are renumbered; -1 if there is none.
        per_axis: the input that has one or two values for each axis, which are put into the new order; -1 if there is none.
        word: what these values are called.
        flat: the input whose rank must be 1; -1 if there is none.
    """

    suits: Suits
    axes: int = -1
    per_axis: int = -1
    word: str = ""
    flat: int = -1


PINNED = Layout(Suits.PINNED)
DECIDES = Layout(Suits.DECIDES)
TRANSPOSES = Layout(Suits.TRANSPOSES)
ELEMENTWISE = Layout(Suits.BROADCASTS)
ALONG_AXIS = Layout(Suits.KEEPS_RANK)
REDUCES = Layout(Suits.REDUCES, axes=1)


def per_axis(index: int, word: str) -> Layout:
    """The role of an operator whose input `index` has values for each axis, called `word`."""
    return Layout(Suits.KEEPS_RANK, per_axis=index, word=word)


def permutation(wanted: str, rank: int) -> tuple[int, ...]:
    """The transposition of data of `rank` dimensions to the data_format `wanted`."""
    return (0, rank - 1, *range(1, rank - 1)) if wanted == "channels_first" else (0, *range(2, rank), 1)
