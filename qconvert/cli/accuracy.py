"""Accuracy of source and result on labelled inputs: `qconvert check … --labels`."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import asdict
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
    from qconvert.cli.reports import show, table_of

    table = table_of("", ">top-1", "95%", ">top-5", "95%", title=f"{found.top1[0].total} inputs, scores in {found.output}")
    for index, who in enumerate((f"source, {found.kernels[0]}", f"result, {found.kernels[1]}")):
        fifth = ("", "") if found.top5 is None else _cells(found.top5[index])
        table.add_row(who, *_cells(found.top1[index]), *fifth)
    show(table)
    for note in found.notes:
        show(f"note: {note}")
    low, high = found.interval
    said = f"top-1 changes by {100 * found.difference:+.2f} points (95%: {100 * low:+.2f} to {100 * high:+.2f})"
    show(f"{said}: {found.gained} inputs gained, {found.lost} lost, {len(found.changed)} changed class")
    if found.changed:
        listed = table_of("input", "label", "source says", "result says")
        for item in found.changed[:_MOST]:
            listed.add_row(item.where, *(found.class_name(number) for number in (item.label, item.before, item.after)))
        show(listed)
        if len(found.changed) > _MOST:
            show(f"and {len(found.changed) - _MOST} more: --json has all")


def _cells(item: Share) -> tuple[str, str]:
    low, high = item.interval
    return f"{100 * item.value:.2f}%", f"{100 * low:.2f} to {100 * high:.2f}"
