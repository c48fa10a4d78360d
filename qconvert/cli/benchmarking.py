"""The command `benchmark`: how long files take in their runtimes, side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from qconvert.cli.completion import known_targets
from qconvert.cli.documents import print_document
from qconvert.cli.flags import DebugFlag, ForceFlag, FromFlag, HtmlFlag, JsonFlag, KernelsFlag, ModelArgument, QuietFlag, SeedFlag

__all__ = ["add_benchmark_command"]


def _benchmark(
    model: ModelArgument,
    results: Annotated[list[Path] | None, typer.Argument(help="Further files, such as conversions of the model.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="A target to convert the model for and to measure; repeatable.", autocompletion=known_targets),
    ] = None,
    kernels: KernelsFlag = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="How many runs of each are measured.")] = 50,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="About how long each may take; slow ones have fewer runs.")] = 10.0,
    threads: Annotated[int, typer.Option("--threads", min=0, help="How many a runtime may use; 0 for as many as it likes.")] = 1,
    seed: SeedFlag = 0,
    source_format: FromFlag = "",
    html: HtmlFlag = None,
    force: ForceFlag = False,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Measure how long a model, other files and its conversions take in their runtimes: each in a process of its own, in turns."""
    from qconvert import benchmark
    from qconvert.cli.reports import progress
    from qconvert.cli.streams import read_from
    from qconvert.cli.viewing import pages_for
    from qconvert.tables import show

    page = pages_for(html, force=force)
    with read_from(model, source_format) as path, progress(quiet or json) as step:
        found = benchmark(
            path, results or (), targets=target or (), kernels=kernels or (), runs=runs, seconds=seconds, threads=threads, seed=seed,
            format=source_format, progress=step, **options,
        )  # fmt: skip
    page(found)
    if json:
        print_document("benchmark", asdict(found))
    elif not quiet:
        show(found.sentence, *found.tables(), *(f"note: {text}" for text in found.notes))


def add_benchmark_command(app: typer.Typer) -> None:
    """Adds `benchmark` to the program."""
    app.command("benchmark")(_benchmark)
