"""The commands `convert` and `{source}2{result}`, whose flags are the options that formats and passes declare; and `apply` and `extract-
scales`, which put scales next to a model into it, and take them out of it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qconvert.cli.flags import (
    DebugFlag,
    ForceFlag,
    FromFlag,
    HtmlFlag,
    JsonFlag,
    MinTensorSqnrFlag,
    OptionFlag,
    PassFlag,
    QuietFlag,
    TargetFlag,
    ToFlag,
    VerboseFlag,
    conversion_flags,
    known_passes,
    reading_flags,
    with_flags,
)
from qconvert.cli.outcome import print_document
from qconvert.errors import OptionError, format_count
from qconvert.plugins import Option, Pass, formats, pass_named
from qconvert.plugins.options import parse_options

if TYPE_CHECKING:
    from qconvert.graph import Graph


def _convert(
    source: Annotated[Path, typer.Argument(help="The model to read; - for standard input.")],
    result: Annotated[str, typer.Argument(help="The file to write; - for standard output.")],
    target: TargetFlag = "",
    passes: PassFlag = None,
    option: OptionFlag = None,
    min_tensor_sqnr: MinTensorSqnrFlag = 30.0,
    verify_each: Annotated[
        bool,
        typer.Option("--verify-each", help="Run the model after each pass, and name a pass that changes more than it says.", hidden=True),
    ] = False,
    print_after: Annotated[
        list[str] | None,
        typer.Option(
            "--print-after", help="Print the graph after a pass, or after all; repeatable.", autocompletion=known_passes, hidden=True
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and lost, and write nothing.")] = False,
    html: HtmlFlag = None,
    force: ForceFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
    json: JsonFlag = False,
    debug: DebugFlag = False,
    source_format: FromFlag = "",
    result_format: ToFlag = "",
    **flags: Any,
) -> None:
    """Convert a model to another format; suffixes say which."""
    convert_one = partial(
        _run_conversion,
        others=option or (),
        print_after=print_after or (),
        dry_run=dry_run,
        html=html,
        json=json,
        quiet=quiet,
        verbose=verbose,
        source_format=source_format,
        result_format=result_format,
        target=target,
        passes=passes or (),
        force=force,
        min_tensor_sqnr=min_tensor_sqnr,
        verify_each=verify_each,
    )
    for key, place in _entries(source, result, str(flags.get("signature") or ""), source_format).items():
        convert_one(source, place, {**flags, **({"signature": key} if key else {})})


def _entries(source: Path, result: str, signature: str, source_format: str) -> dict[str, str]:
    """Keys of entry points and where each is written: with "all" every one that the source has, in files that are called by the keys."""
    if signature != "all":
        return {signature: result}
    from qconvert.conversion.loading import source_format as format_of_source

    reader = format_of_source(source, source_format)
    keys = list(reader.contents(source).get("signatures", ())) if reader.contents is not None else []
    if "all" in keys or not keys:
        return {signature: result}
    parts = {key: re.sub(r"[^\w-]+", "_", key) for key in keys}
    place = Path(result)
    found = {key: str(place.with_stem(f"{place.stem}.{part}")) for key, part in parts.items()}
    if len({*found.values()}) < len(keys):
        raise OptionError(
            f"{len(keys)} signatures have {len({*found.values()})} names of files",
            remedy="Choose each with --signature KEY.",
            rule="same-file-twice",
        )
    return found


def _run_conversion(
    source: Path,
    result: str,
    flags: dict[str, Any],
    others: Sequence[str] = (),
    print_after: Sequence[str] = (),
    *,
    dry_run: bool = False,
    html: Path | None = None,
    json: bool,
    quiet: bool,
    verbose: bool,
    source_format: str,
    result_format: str,
    **arguments: Any,
) -> None:
    """Converts, and prints what was done.

    Args:
        source, result: the files, or -.
        flags: options given as flags.
        others: those given as name=value.
        print_after: names of passes after which the graph is printed.
        dry_run: whether nothing is to be written.
        html: a page to write.
        json, quiet, verbose: how to report.
        source_format, result_format, arguments: of convert().
    """
    from qconvert import convert
    from qconvert.cli.reports import print_conversion, progress
    from qconvert.cli.streams import is_stream, read_from, write_nowhere, write_to
    from qconvert.cli.viewing import pages_for

    page = pages_for(html, force=bool(arguments.get("force")))
    options = _options(flags, parse_options(others), convert)
    place = write_nowhere if dry_run else write_to
    with read_from(source, source_format) as read, place(result, result_format) as written, progress(quiet or json) as step:
        observer = _printer(print_after) if print_after else None
        more = {**arguments, **options}
        report = convert(read, written, source_format=source_format, result_format=result_format, observer=observer, progress=step, **more)
        page(report)
    report = replace(report, source=str(source), result="nothing" if dry_run else str(Path(result)))
    aside = is_stream(result) and not dry_run  # standard output has the model
    if json:
        print_document("convert", asdict(report), aside=aside)
    elif not quiet:
        print_conversion(report, verbose, aside)


def _options(flags: dict[str, Any], others: dict[str, str], convert: Callable[..., Any]) -> dict[str, Any]:
    """The options given as flags and with -O, together.

    Raises:
        OptionError: one is given in both ways, or its name is that of an argument of convert(), which has a flag of its own.
    """
    own = inspect.signature(convert).parameters
    for name in others:
        if name in flags:
            raise OptionError(f"the option {name} is given twice", rule="duplicate-option")
        if name in own and name != "options":
            raise OptionError(
                f"{name} is no option of a format or a pass", remedy="`qconvert convert --help` lists the flags.", rule="unknown-option"
            )
    return {**flags, **others}


def _printer(names: Sequence[str]) -> Callable[..., None]:
    """Prints the graph after each of these passes, and with "all" after each that changes it."""
    for name in names:
        if name != "all":
            pass_named(name)

    def show(item: Pass, before: Graph, after: Graph, notes: tuple[str, ...]) -> None:
        from qconvert.graph.summary import format_graph

        if item.name in names or ("all" in names and after is not before):
            typer.echo(f"--- after {item.name}\n{format_graph(after)}", err=True)

    return show


def add_commands(app: typer.Typer, source_format: str, result_format: str) -> None:
    """Add `convert`, and `{source}2{result}` for each pair of formats: convert with both formats given.

    Args:
        app: the program.
        source_format, result_format: what the command line says of them, "" for nothing: their options stand in the help of `convert`.
    """
    known = source_format and result_format
    epilog = "" if known else "Options of formats appear when both files are named: qconvert convert model.pt2 out.onnx --help"
    app.command("convert", epilog=epilog)(with_flags(_convert, partial(conversion_flags, source_format, result_format), before="passes"))
    for source in formats().values():
        for result in formats().values():
            if source.read is not None and result.write is not None:
                fixed = {"source_format": source.name, "result_format": result.name}
                name = f"{source.name}2{result.name}"
                flags = partial(conversion_flags, source.name, result.name)
                app.command(name, help=f"Convert {source.name} to {result.name}.", hidden=True)(
                    with_flags(_convert, flags, before="passes", fixed=fixed)
                )


def _apply(
    model: Annotated[Path, typer.Argument(help="The model without quantization; - for standard input.")],
    encodings: Annotated[Path, typer.Argument(help="Its scales: qconvert's own JSON, or what `qconvert formats` lists.")],
    result: Annotated[str, typer.Option("--output", "-o", metavar="PATH", help="The quantized model to write.")],
    target: TargetFlag = "",
    option: OptionFlag = None,
    force: ForceFlag = False,
    quiet: QuietFlag = False,
    verbose: VerboseFlag = False,
    json: JsonFlag = False,
    debug: DebugFlag = False,
    source_format: FromFlag = "",
    result_format: ToFlag = "",
    **flags: Any,
) -> None:
    """Quantize a model with the scales of another file; the suffix of the result says which format is written."""
    _run_conversion(
        model,
        result,
        {"encodings": str(encodings), **flags},
        option or (),
        source_format=source_format,
        result_format=result_format,
        target=target,
        force=force,
        json=json,
        quiet=quiet,
        verbose=verbose,
    )


def _extract(
    model: Annotated[Path, typer.Argument(help="The quantized model; - for standard input, with --from.")],
    result: Annotated[str, typer.Argument(help="The file for its scales, such as scales.json.")],
    real: Annotated[str | None, typer.Option("--float", metavar="PATH", help="Also write the float model, to this file.")] = None,
    source_format: FromFlag = "",
    result_format: ToFlag = "",
    force: ForceFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
    debug: DebugFlag = False,
    **flags: Any,
) -> None:
    """Take the scales out of a quantized model, with the integers of its weights; with --float write the float model too."""
    from qconvert.cli.streams import read_from, stated_path
    from qconvert.conversion.encodings import extract_file

    with read_from(model, source_format) as path:
        found, changes = extract_file(
            path, result, real=stated_path(real), source_format=source_format, result_format=result_format, force=force, **flags
        )
    constants = sum(item.integers is not None for item in found.entries.values())
    if json:
        said = {"result": result, "activations": len(found) - constants, "constants": constants}
        print_document("extract-scales", {**said, "changes": [str(change) for change in changes]})
    elif not quiet:
        counts = f"{format_count(len(found) - constants, 'activation')} and {format_count(constants, 'constant')}"
        written = " and ".join(filter(None, (result, real)))
        typer.echo(f"{model} -> {written}: the model has scales of {counts}")
        for change in changes:  # and what the file has no place for
            typer.echo(str(change))


def add_encodings_commands(app: typer.Typer, source_format: str, result_format: str) -> None:
    """Add `apply`, with the options of a conversion, and `extract-scales`, with those of readers and of writers of encodings.

    Args:
        app: the program.
        source_format, result_format: what the command line says of them, "" for nothing.
    """

    def of_apply() -> dict[Option, str | None]:
        listed = conversion_flags(source_format, result_format, ["apply_encodings"])
        return {option: heading for option, heading in listed.items() if option.name != "encodings_options"}  # which its flags fill

    def of_extract() -> dict[Option, str | None]:
        writers = [item for item in formats().values() if item.write_encodings]
        heading = f"Writing {result_format}"
        own = {option: heading if item.name == result_format else None for item in writers for option in item.write_options}
        return reading_flags(source_format) | own

    app.command("apply")(with_flags(_apply, of_apply, before="force"))
    app.command("extract-scales")(with_flags(_extract, of_extract, before="force"))
