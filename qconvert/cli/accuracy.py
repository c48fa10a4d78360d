"""Accuracy of source and result on labelled inputs: `qconvert check … --labels`."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from qconvert.cli.exits import NOT_EQUAL
from qconvert.errors import OptionError

if TYPE_CHECKING:
    from qconvert.checking.accuracy import Accuracy, Share

__all__ = ["accuracy_document", "run_accuracy"]

#: Word for labels that are the names of folders.
_FOLDERS = "folders"
#: Inputs that changed class, as many are listed.
_MOST = 40


def run_accuracy(
    source: Path, result: Path, data: Sequence[str], labels: str, max_drop: float, *, json: bool, quiet: bool, **arguments: Any
) -> None:
    """Runs both on labelled inputs and prints what came of it.

    Raises:
        OptionError: the data are not in one place.
        typer.Exit: the result loses more than `max_drop` per cent of top-1.
    """
    from qconvert import accuracy
    from qconvert.cli.reports import progress

    if not max_drop >= 0:  # NaN
        raise OptionError("--max-drop is no number", remedy="Give per cent, such as 1.")
    if len(data) != 1:
        raise OptionError("labels are those of one folder, or of one file", remedy="Name it with --data, once.")
    with progress(quiet or json) as step:
        found = accuracy(source, result, data[0], "" if labels == _FOLDERS else labels, progress=step, **arguments)
    if json:
        typer.echo(json_module.dumps(accuracy_document(found), indent=2))
    elif not quiet:
        print_accuracy(found)
    if 100 * found.difference < -max_drop:
        raise typer.Exit(NOT_EQUAL)


def accuracy_document(found: Accuracy) -> dict[str, Any]:
    """An Accuracy as plain data."""
    shares = {
        name: [_share_document(item) for item in pair] for name, pair in (("top1", found.top1), ("top5", found.top5)) if pair is not None
    }
    return {**asdict(found), **shares, "difference": found.difference, "interval": list(found.interval)}


def _share_document(item: Share) -> dict[str, Any]:
    return {"hits": item.hits, "total": item.total, "share": item.value, "interval": list(item.interval)}


def print_accuracy(found: Accuracy) -> None:
    """Shares with their intervals, the difference, and the inputs that changed class."""
    from qconvert.cli.reports import show
    from qconvert.tables import rich_table

    shares, changed, _ = found.tables()
    show(rich_table(shares), *(f"note: {note}" for note in found.notes), found.sentence)
    if changed.rows:
        show(rich_table(replace(changed, title="", rows=changed.rows[:_MOST])))
        if len(changed.rows) > _MOST:
            show(f"… and {len(changed.rows) - _MOST} more; --json has them all")
