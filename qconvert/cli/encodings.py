"""The commands `apply` and `extract-scales`: scales next to a model put into it, and taken out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qconvert.cli.convert import run_conversion
from qconvert.cli.documents import print_document
from qconvert.cli.flags import (
    DebugFlag,
    ForceFlag,
    FromFlag,
    JsonFlag,
    OptionFlag,
    QuietFlag,
    TargetFlag,
    ToFlag,
    VerboseFlag,
    conversion_flags,
    reading_flags,
    with_flags,
)
from qconvert.plugins import formats

__all__ = ["add_encodings_commands"]


def _apply(
    model: Annotated[Path, typer.Argument(help="The model without quantization; - for standard input.")],
    encodings: Annotated[Path, typer.Argument(help="Its scales: qconvert's own JSON, or what `qconvert formats` lists.")],
    result: Annotated[Path, typer.Option("--output", "-o", help="The quantized model to write.")],
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
    run_conversion(
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
    result: Annotated[Path, typer.Argument(help="The file for its scales, such as scales.json.")],
    real: Annotated[Path | None, typer.Option("--float", help="Also write the float model, to this file.")] = None,
    source_format: FromFlag = "",
    result_format: ToFlag = "",
    force: ForceFlag = False,
    quiet: QuietFlag = False,
    json: JsonFlag = False,
    debug: DebugFlag = False,
    **flags: Any,
) -> None:
    """Take the scales out of a quantized model, with the integers of its weights; with --float write the float model too."""
    from qconvert.cli.streams import read_from
    from qconvert.conversion.encodings import extract_file

    with read_from(model, source_format) as path:
        found, changes = extract_file(
            path, result, real=real or "", source_format=source_format, result_format=result_format, force=force, **flags
        )
    constants = sum(item.integers is not None for item in found.entries.values())
    if json:
        said = {"result": str(result), "activations": len(found) - constants, "constants": constants}
        print_document("extract-scales", {**said, "changes": [str(change) for change in changes]})
    elif not quiet:
        for change in changes:
            typer.echo(str(change))
        typer.echo(f"{result}: scales of {len(found) - constants} activations, and of {constants} constants with their integers")


def add_encodings_commands(app: typer.Typer, source_format: str = "", result_format: str = "") -> None:
    """Add `apply`, with the options of a conversion, and `extract-scales`, with those of readers and of writers of encodings.

    Args:
        app: the program.
        source_format, result_format: what the command line says of them, "" for nothing.
    """
    app.command("apply")(with_flags(_apply, conversion_flags(source_format, result_format, ["apply_encodings"]), before="force"))
    writers = {option: f"Writing {item.name}" for item in formats().values() if item.write_encodings for option in item.write_options}
    app.command("extract-scales")(with_flags(_extract, reading_flags(source_format) | writers, before="force"))
