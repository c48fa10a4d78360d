"""The command `partition`: a network cut into regions that targets run, and the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qconvert.cli.completion import known_targets
from qconvert.cli.documents import print_document
from qconvert.cli.flags import DebugFlag, ForceFlag, FromFlag, JsonFlag, ModelArgument, QuietFlag, ToFlag, VerboseFlag

if TYPE_CHECKING:
    from qconvert.partitioning import Partition

__all__ = ["add_partition_command"]

#: So many rows of a table are printed without --verbose.
_ROWS = 20


def _partition(
    model: ModelArgument,
    result: Annotated[
        Path | None, typer.Argument(help="Where the partitioned graph goes, - for standard output; without, nothing but the table is made.")
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
    from qconvert.cli.streams import is_stream, read_from, write_to

    with read_from(model, source_format) as read, write_to(result or Path(), result_format) as written:
        found = partition(
            read,
            target or [],
            written if result is not None else "",
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
        found = replace(found, source=str(model), files=tuple(str(result) if name == str(written) else name for name in found.files))
        streamed = result is not None and is_stream(result)
        if json:
            print_document("partition", found.to_dict(), aside=streamed)
        elif not quiet:
            _print(found, verbose, aside=streamed)


def _print(found: Partition, verbose: bool, *, aside: bool) -> None:
    """A table of the regions, one of what stayed outside and why, and what was taken of the whole."""
    from qconvert.tables import show

    for table in found.tables():
        most = len(table.rows) if verbose else _ROWS
        if table.rows:
            show(replace(table, rows=table.rows[:most]), aside=aside)
        if len(table.rows) > most:
            show(f"and {len(table.rows) - most} more; --verbose lists them", aside=aside)
    show("\n".join((found.sentence, *(f"written: {name}" for name in found.files))), aside=aside)


def add_partition_command(app: typer.Typer) -> None:
    """Adds `partition` to the program."""
    app.command("partition")(_partition)
