"""The command `accuracy`: top-1 and top-5 of source and result on labelled inputs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qconvert.cli.completion import complete_words
from qconvert.cli.documents import print_document
from qconvert.cli.exit_codes import NOT_EQUAL
from qconvert.cli.flags import (
    CropFlag,
    DebugFlag,
    FromFlag,
    JsonFlag,
    KernelsFlag,
    MeanFlag,
    ModelArgument,
    PixelRangeFlag,
    QuietFlag,
    ResizeFlag,
    StdFlag,
    ToFlag,
)
from qconvert.cli.preparation_options import preparation_of
from qconvert.errors import OptionError

if TYPE_CHECKING:
    from qconvert.checking.accuracy import Accuracy, Share

__all__ = ["accuracy_document", "add_accuracy_command"]

#: Word for labels that are the names of folders.
_FOLDERS = "folders"
#: Inputs that changed class, as many are listed.
_MOST = 40


def _accuracy(
    source: ModelArgument,
    result: Annotated[Path, typer.Argument(help="The converted model; one of both may be -, with --from or --to.")],
    data: Annotated[str, typer.Option("--data", help="A folder of images or arrays, or one file of arrays.")],
    labels: Annotated[
        str,
        typer.Option(
            "--labels",
            help="A list of files of --data with labels, or `folders`: one for each class.",
            autocompletion=complete_words(_FOLDERS),
        ),
    ] = _FOLDERS,
    class_names: Annotated[Path | None, typer.Option("--class-names", help="A file with the name of a class in each line.")] = None,
    label_offset: Annotated[int, typer.Option("--label-offset", help="Added to labels: 1 if class 0 is the background.")] = 0,
    scores: Annotated[str, typer.Option("--scores", help="The output that has the scores, of a model with several.")] = "",
    max_drop: Annotated[
        float, typer.Option("--max-drop", metavar="PERCENT", min=0, help="How much of top-1 may be lost before the exit code is 1.")
    ] = 1.0,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="How many inputs to run at most; by default all.")] = None,
    mean: MeanFlag = None,
    std: StdFlag = None,
    pixel_range: PixelRangeFlag = None,
    resize: ResizeFlag = None,
    crop: CropFlag = None,
    kernels: KernelsFlag = None,
    source_format: FromFlag = "",
    result_format: ToFlag = "",
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Compare the accuracy of source and result on labelled inputs. Exit code 1 if the result loses more than --max-drop of top-1."""
    from qconvert import accuracy
    from qconvert.cli.reports import progress
    from qconvert.cli.streams import read_both
    from qconvert.tables import show

    if not max_drop >= 0:  # NaN
        raise OptionError("--max-drop is no number", remedy="Give per cent, such as 1.", rule="not-a-number")
    prepared = preparation_of(mean=mean, std=std, pixel_range=pixel_range, resize=resize, crop=crop)
    with read_both(source, result, source_format, result_format) as (first, second), progress(quiet or json) as step:
        found = accuracy(
            first, second, data, "" if labels == _FOLDERS else labels, scores=scores, label_offset=label_offset,
            class_names=class_names or "", source_format=source_format, result_format=result_format, preparation=prepared,
            samples=samples, kernels=kernels or (), progress=step, **options,
        )  # fmt: skip
    lost = -100 * found.difference
    passed = lost <= max_drop
    change = "gains" if lost < 0 else "loses"
    verdict = f"{'passed' if passed else 'failed'}: the result {change} {abs(lost):.3g}% of top-1; --max-drop allows {max_drop:g}%"
    if json:
        print_document("accuracy", {**accuracy_document(found), "verdict": verdict, "passed": passed})
    elif not quiet:
        show(verdict)
        print_accuracy(found)
    if not passed:
        raise typer.Exit(NOT_EQUAL)


def add_accuracy_command(app: typer.Typer) -> None:
    """Adds `accuracy` to the program."""
    app.command("accuracy")(_accuracy)


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
    from qconvert.tables import show

    shares, changed, _ = found.tables()
    show(shares, *(f"note: {note}" for note in found.notes), found.sentence)
    if changed.rows:
        show(replace(changed, title="", rows=changed.rows[:_MOST]))
        if len(changed.rows) > _MOST:
            show(f"… and {len(changed.rows) - _MOST} more; --json has them all")
