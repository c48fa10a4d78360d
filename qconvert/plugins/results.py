"""What passes and writers changed, which reports, the metadata of files and JSON carry alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from qconvert.errors import OptionError
from qconvert.tables import Rows, format_sentence, format_text


@dataclass(frozen=True, slots=True)
class Cost:
    """What a lossy step costs one tensor.

    Attributes:
        tensor: its name.
        sqnr_db: power of its float values over that of their error, in decibels: of weights over their values, of activations over all
            codes of their quantization. None if nothing was measured.
        largest: the largest error in steps of the new quantization; None if it is not known.
    """

    tensor: str
    sqnr_db: float | None
    largest: float | None

    def __str__(self) -> str:
        sqnr = None if self.sqnr_db is None else f"SQNR {self.sqnr_db:.1f} dB"
        steps = None if self.largest is None else f"by at most {self.largest:.2g} LSB"
        return f"{', '.join(part for part in (sqnr, steps) if part) or 'not measured'} ({self.tensor!r})"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that a pass or a writer changed.

    Attributes:
        text: in words.
        exact: whether it declares that every float value stays what it is.
        costs: of each tensor that loses something.
        by: the name of the pass, or of the format that was written.
        user_named: whether the user named the pass himself; else a target, or the format, took the step.
        code: of a warning, stable, so that scripts can rely on it; "" of all else.
    """

    text: str
    exact: bool = False
    costs: tuple[Cost, ...] = ()
    by: str = ""
    user_named: bool = False
    code: str = ""

    def __str__(self) -> str:
        return f"{self.by}: {self.text}{' (exact)' if self.exact else ''}"


def describe_worst(costs: Iterable[Cost]) -> str:
    """The costs of several tensors in words: of the one that loses most."""
    found = sorted(costs, key=lambda cost: (cost.sqnr_db is None, cost.sqnr_db, -(cost.largest or 0)))
    return str(found[0]) if len(found) == 1 else f"at worst {found[0]}"


def name_changes(notes: Iterable[Change | str] | None, *, by: str, exact: bool = False, user_named: bool = False) -> tuple[Change, ...]:
    """What a pass or a writer returned, with its name. A text alone is as exact as the pass that says it.

    Raises:
        OptionError: it is something else, as a plugin may return.
    """
    notes = () if notes is None else notes
    if not isinstance(notes, tuple | list) or not all(isinstance(note, Change | str) for note in notes):
        raise OptionError(
            f"{by} returned {notes!r}", remedy="Return a tuple of texts or Changes that states what was changed.", rule="wrong-result"
        )
    found = (note if isinstance(note, Change) else Change(note, exact) for note in notes)
    return tuple(replace(note, by=by, user_named=user_named) for note in found)


def changes_table(changes: Iterable[Change]) -> Rows:
    """What passes and the writer did, and what it cost."""
    found = tuple(changes)
    rows = [
        (
            format_text(change.by),
            format_sentence(change.text),
            "yes" if change.exact else "no",
            format_sentence(describe_worst(change.costs)) if change.costs else "",
        )
        for change in found
    ]
    marks = tuple("" if change.exact else "requantized" for change in found)
    return Rows("What passes changed", ("pass", "what it did", "exact", "cost"), tuple(rows), marks)
