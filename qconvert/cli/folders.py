"""The commands that write folders: `batch`, a folder of models in, a folder of results and a table out; and `partition`, a network cut
into regions that targets run, and the rest.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qconvert.cli.flags import (
    DebugFlag,
    ForceFlag,
    FromFlag,
    JsonFlag,
    MinSqnrFlag,
    MinTensorSqnrFlag,
    ModelArgument,
    OptionFlag,
    PassFlag,
    QuietFlag,
    TargetFlag,
    ToFlag,
    VerboseFlag,
    complete_words,
    known_formats,
    known_targets,
)
from qconvert.cli.outcome import FAULT, NOT_EQUAL, NOT_JUDGED, PASSED, USAGE, print_document
from qconvert.errors import OptionError
from qconvert.plugins.options import parse_options

if TYPE_CHECKING:
    from qconvert.batches import BatchReport
    from qconvert.partitioning.types import Partition


#: Ways to end that make the command end with another exit code, the worst first, by what --fail-on names.
_POLICIES: dict[str, dict[str, int]] = {
    "any": {"fault": FAULT, "not equal": NOT_EQUAL, "refused": USAGE, "ended": USAGE, "inconclusive": NOT_JUDGED},
    "unequal": {"fault": FAULT, "not equal": NOT_EQUAL},
    "never": {},
}
#: Ends of which the table tells only where it is asked to.
_GOOD = ("passed", "as declared", "converted")


def batch_command(
    folder: Annotated[Path, typer.Argument(help="The folder of models; links in it are not followed.")],
    out: Annotated[Path, typer.Argument(help="The folder of results. What an earlier run of the same batch did there is not done again.")],
    to: Annotated[
        str, typer.Option("--to", help="The format of the results; by default that of the target, or onnx.", autocompletion=known_formats)
    ] = "",
    target: TargetFlag = "",
    passes: PassFlag = None,
    option: OptionFlag = None,
    min_tensor_sqnr: MinTensorSqnrFlag = 30.0,
    check: Annotated[bool, typer.Option("--check", help="Run each model and its result, and compare.")] = False,
    samples: Annotated[int, typer.Option("--samples", min=1, help="How many inputs a check runs.")] = 3,
    min_sqnr: MinSqnrFlag = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Models at a time; 0 for as many as there are processors.")] = 1,
    scheduler: Annotated[
        str, typer.Option("--scheduler", help="The scheduler of a dask.distributed cluster: tcp://10.0.0.1:8786.", hidden=True)
    ] = "",
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that a conversion may take, and a check.")] = 600.0,
    memory: Annotated[float, typer.Option("--memory", min=0, help="GiB of address space that each may take; 0 for no limit.")] = 8.0,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on",
            help="What makes the exit code another than 0: any, unequal (or a fault), never.",
            autocompletion=complete_words(*_POLICIES),
        ),
    ] = "any",
    verbose: VerboseFlag = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Convert all models of a folder, each in a process of its own, and say what came of them in a table."""
    from qconvert import batch
    from qconvert.cli.reports import progress

    if fail_on not in _POLICIES:
        raise OptionError(f"there is no policy {fail_on!r}", remedy=f"Use {' or '.join(_POLICIES)}.", rule="unknown-word")
    with progress(quiet or json) as step:
        report = batch(
            folder, out, to=to, target=target, passes=passes or (), min_tensor_sqnr=min_tensor_sqnr, check=check, samples=samples,
            min_sqnr=min_sqnr, jobs=jobs, scheduler=scheduler, timeout=timeout, memory=memory, progress=step,
            **parse_options(option or ()),
        )  # fmt: skip
    if json:
        print_document("batch", {**asdict(report), "counts": report.counts})
    elif not quiet:
        _print(report, verbose)
    ends = report.counts
    if code := next((code for end, code in _POLICIES[fail_on].items() if end in ends), PASSED):
        raise typer.Exit(code)


def _print(report: BatchReport, verbose: bool) -> None:
    """A table of the models that did not end well, or of all; and how many ended in each way."""
    from qconvert.tables import show

    (listed,) = report.tables()
    rows = tuple(row for row, item in zip(listed.rows, report.outcomes, strict=True) if verbose or item.status not in _GOOD)
    if rows:
        show(replace(listed, title="", rows=rows))
    show(f"{report.sentence}\n{report.out}/qconvert-batch/results.json has it all")


#: So many rows of a table are printed without --verbose.
_ROWS = 20


def partition_command(
    model: ModelArgument,
    result: Annotated[
        str | None, typer.Argument(help="Where the partitioned graph goes, - for standard output; without, nothing but the table is made.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="What runs regions; repeatable, the first has priority.", autocompletion=known_targets),
    ] = None,
    split: Annotated[
        Path | None, typer.Option("--split", help="A folder for each region and the rest as files of their own, with manifest.json.")
    ] = None,
    fallback: Annotated[
        str, typer.Option("--fallback", help="With --split: the target of the files of the rest.", autocompletion=known_targets)
    ] = "ort-x86",
    min_ops: Annotated[int, typer.Option("--min-ops", help="Regions with fewer operators, conversions apart, go back.")] = 1,
    min_macs: Annotated[int, typer.Option("--min-macs", help="Regions with fewer multiplications go back.")] = 0,
    lossless: Annotated[bool, typer.Option("--lossless", help="Take nothing of which a target's passes change a value.")] = False,
    source_format: FromFlag = "",
    result_format: ToFlag = "",
    force: ForceFlag = False,
    verbose: VerboseFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Cut a model into the largest regions that targets take, and the rest."""
    from qconvert import partition
    from qconvert.cli.streams import is_stream, read_from, stated_path, write_to

    place = stated_path(result)
    with read_from(model, source_format) as read, write_to(place, result_format) as written:
        found = partition(
            read,
            target or [],
            written,
            split=split or "",
            fallback=fallback,
            min_ops=min_ops,
            min_macs=min_macs,
            lossless=lossless,
            source_format=source_format,
            result_format=result_format,
            force=force,
            **options,
        )
        found = replace(found, source=str(model), files=tuple(place if name == written else name for name in found.files))
        streamed = is_stream(place)
        if json:
            print_document("partition", found.to_dict(), aside=streamed)
        elif not quiet:
            _print_partition(found, verbose, aside=streamed)


def _print_partition(found: Partition, verbose: bool, *, aside: bool) -> None:
    """A table of the regions, one of what stayed outside and why, and what was taken of the whole."""
    from qconvert.tables import show

    for table in found.tables():
        most = len(table.rows) if verbose else _ROWS
        if table.rows:
            show(replace(table, rows=table.rows[:most]), aside=aside)
        if len(table.rows) > most:
            show(f"and {len(table.rows) - most} more; --verbose lists them", aside=aside)
    show("\n".join((found.sentence, *(f"written: {name}" for name in found.files))), aside=aside)
