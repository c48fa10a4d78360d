"""The command line: arguments in, one call of the public API, a printed result. Heavy imports happen inside commands."""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from qconvert.cli.flags import (
    DataFlag,
    DebugFlag,
    ExplorerFlag,
    FromFlag,
    HtmlFlag,
    JsonFlag,
    KernelsFlag,
    MinSqnrFlag,
    ModelArgument,
    PreparationFlags,
    QuietFlag,
    SeedFlag,
    ToFlag,
    VerboseFlag,
    add_read_flags,
    answer_completion,
    known_forms,
    known_targets,
    words_of_line,
)
from qconvert.cli.help import GroupedCommands, GroupedOptions, formats_on_line, rewrite_help_all
from qconvert.cli.outcome import NOT_EQUAL, NOT_JUDGED, exit_code, note_plugins, print_document
from qconvert.cli.startup import apply_config, keep_called, register_plugins

app = typer.Typer(
    name="qconvert",
    cls=GroupedCommands,
    help="Convert quantized neural networks between frameworks, with every integer and scale kept.",
    epilog="tflite2onnx, torch2tflite and the like are convert with both formats given: qconvert tflite2onnx in.tflite out.onnx",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from qconvert import __version__

        typer.echo(f"qconvert {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", help="A Python file with a plugin, loaded as an installed one is; repeatable.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="A file with defaults of options; by default qconvert.toml, if it is there."),
    ] = None,
    no_config: Annotated[bool, typer.Option("--no-config", help="No defaults from qconvert.toml.")] = False,
) -> None:
    """Options of the program itself."""
    assert plugin is None and config is None and not no_config  # main() took them off the command line, since they bring options


@app.command("check")
def check_command(
    source: ModelArgument,
    result: Annotated[Path, typer.Argument(help="The converted model; one of both may be -, with --from or --to.")],
    source_format: FromFlag = "",
    result_format: ToFlag = "",
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="Inputs: folders or files, .npz, .npy, .bin, images, or texts (.txt); repeatable. Default: random."),
    ] = None,
    preparation: PreparationFlags = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="How many inputs, or windows of texts, to run at most.")] = 5,
    kernels: KernelsFlag = None,
    trust_source: Annotated[
        bool,
        typer.Option(
            "--trust-source", help="Let PyTorch load its files as they are, which runs what they say: torch:trusted.", hidden=True
        ),
    ] = False,
    per_op: Annotated[bool, typer.Option("--per-op", help="Compare operators in any case.")] = False,
    prove: Annotated[bool, typer.Option("--prove", help="Print for each operator whether it is proved equal for all inputs.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Judge the outputs alone, by --max-lsb.")] = False,
    max_lsb: Annotated[
        float | None,
        typer.Option("--max-lsb", min=0, help="Largest difference allowed at the outputs. Default: 1 with --quick."),
    ] = None,
    min_sqnr: MinSqnrFlag = None,
    seed: SeedFlag = 0,
    encodings: Annotated[
        Path | None, typer.Option("--encodings", help="Scales with which the source is to be quantized first.", hidden=True)
    ] = None,
    verbose: VerboseFlag = False,
    html: HtmlFlag = None,
    explorer: ExplorerFlag = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Run source and result in their own runtimes and say whether they are equal: exit code 0, 1 if not, 4 if that cannot be judged."""
    from qconvert import check
    from qconvert.cli.reports import check_document, print_check, progress
    from qconvert.cli.streams import read_both
    from qconvert.cli.viewing import pages_for
    from qconvert.data.texts import are_texts

    chosen = [*(kernels or ()), *(["torch:trusted"] if trust_source else [])]
    page = pages_for(html, explorer, data=() if are_texts(data or ()) else data or (), **options)
    with read_both(source, result, source_format, result_format) as (first, second), progress(quiet or json) as step:
        report = check(
            first, second, source_format=source_format, result_format=result_format, data=data or (), preparation=preparation,
            samples=samples, kernels=chosen, per_op=per_op or explorer is not None, quick=quick, max_lsb=max_lsb,
            min_sqnr=min_sqnr, seed=seed, encodings=encodings or "", progress=step, **options,
        )  # fmt: skip
        page(report)
    report = replace(report, source=str(source), result=str(result))
    if json:
        print_document("check", check_document(report))
    elif not quiet:
        print_check(report, verbose, prove)
    if not report.passed:
        raise typer.Exit(NOT_EQUAL if report.problems else NOT_JUDGED)


@app.command("audit")
def audit_command(
    model: ModelArgument,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="What it would be converted for; by default all targets whose kernels are known, in one table.",
            autocompletion=known_targets,
        ),
    ] = "",
    all_targets: Annotated[bool, typer.Option("--all-targets", help="All targets in one table, as without --target.")] = False,
    source_format: FromFlag = "",
    run: Annotated[
        bool, typer.Option("--run", help="Also convert it, in a temporary folder, and compare with what the runtime makes of it.")
    ] = False,
    build: Annotated[
        bool, typer.Option("--build", help="Also convert it and build TensorRT's engine, without a GPU: a table of its layers.")
    ] = False,
    sm: Annotated[str, typer.Option("--sm", help="The compute capability that --build is for: 75, 80, 86, 89 (default), 120, 121.")] = "",
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", help="Sizes of an input for --build, x:1x3x224x224, or three: the smallest, optimal, largest."),
    ] = None,
    kernels: KernelsFlag = None,
    verbose: VerboseFlag = False,
    json: JsonFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Say which operators a target runs as integers. Exit code 1 if its runtime ran them otherwise, 4 if that is not told here."""
    from qconvert import audit, audit_all
    from qconvert.cli.reports import audit_document, print_audit
    from qconvert.cli.streams import read_from
    from qconvert.tables import show

    if not target or all_targets:
        if target or run or build or sm or shape or kernels:
            raise typer.BadParameter("all targets go with no option for one of them, as --target ort-x86.", param_hint="--target")
        with read_from(model, source_format) as path:
            found = replace(audit_all(path, format=source_format, **options), source=str(model))
        if json:
            print_document("audit-all", asdict(found))
        else:
            show(found.sentence, *found.tables())
        return
    chosen = [*(kernels or ()), *([f"tensorrt:sm{sm.lower().removeprefix('sm').replace('.', '')}"] if sm else [])]
    arguments = {"run": run, "build": build or bool(sm or shape), "kernels": chosen, "shapes": shape or (), **options}
    with read_from(model, source_format) as path:
        report = replace(audit(path, target, format=source_format, **arguments), source=str(model))
    if json:
        print_document("audit", audit_document(report))
    else:
        print_audit(report, verbose)
    if report.unjudged or report.otherwise:
        raise typer.Exit(NOT_JUDGED if report.unjudged else NOT_EQUAL)


@app.command("roundtrip")
def roundtrip_command(
    model: ModelArgument,
    via: Annotated[
        str, typer.Argument(help="A format, and for onnx a form: tflite, onnx:qoperator, onnx:qdq, qgraph.", autocompletion=known_forms)
    ],
    source_format: FromFlag = "",
    times: Annotated[int, typer.Option("--times", min=1, help="How often there and back.")] = 1,
    target: Annotated[
        str,
        typer.Option("--target", help="What the files on the way are for; by default what changes least.", autocompletion=known_targets),
    ] = "",
    samples: Annotated[int, typer.Option("--samples", min=1, help="How many random inputs.")] = 3,
    seed: SeedFlag = 0,
    kernels: KernelsFlag = None,
    keep: Annotated[Path | None, typer.Option("--keep", help="A folder for the files; they are deleted without.")] = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Convert a model to a format and back, and compare graph, integers and outputs. Exit code 1 if something was lost, 4 if the
    outputs could not be compared."""
    from qconvert import roundtrip
    from qconvert.cli.reports import print_roundtrip, progress, roundtrip_document
    from qconvert.cli.streams import read_from

    with read_from(model, source_format) as path, progress(quiet or json) as step:
        report = roundtrip(
            path, via, format=source_format, times=times, target=target, keep=keep, samples=samples, seed=seed,
            kernels=kernels or (), progress=step, **options,
        )  # fmt: skip
    if json:
        print_document("roundtrip", roundtrip_document(replace(report, source=str(model))))
    elif not quiet:
        print_roundtrip(replace(report, source=str(model)))
    if not report.passed:
        raise typer.Exit(NOT_EQUAL if any(leg.problems for leg in report.legs) else NOT_JUDGED)


@app.command("inspect")
def inspect_command(
    model: ModelArgument,
    source_format: FromFlag = "",
    verbose: VerboseFlag = False,
    json: JsonFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Show a model's inputs and outputs, its quantized tensors, the metadata of its file, and its operators with counts."""
    from qconvert.cli.inspection import inspect_document, print_inspection
    from qconvert.cli.streams import read_from

    with read_from(model, source_format) as path:
        if json:
            typer.echo(
                json_module.dumps(inspect_document(path, source_format, **options), indent=2)
            )  # its schema is docs/qgraph.schema.json
        else:
            print_inspection(path, source_format, str(model), everything=verbose, **options)


@app.command("formats")
def formats_command(json: JsonFlag = False) -> None:
    """List the formats, the targets and the runtimes."""
    from qconvert.cli.reports import formats_document, print_formats

    if json:
        print_document("formats", formats_document())
    else:
        print_formats()


@app.command("passes")
def passes_command(
    model: Annotated[
        Path | None, typer.Argument(help="Run each pass that is not exact on this model, and say what it would cost; - for standard input.")
    ] = None,
    source_format: FromFlag = "",
    data: DataFlag = None,
    preparation: PreparationFlags = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="How many inputs to run at most.")] = 8,
    seed: SeedFlag = 0,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """List the passes that --pass can run, and which of them are exact; of a model, what the others would cost it."""
    if model is not None:
        from qconvert import pass_costs
        from qconvert.cli.reports import print_costs, progress
        from qconvert.cli.streams import read_from

        arguments = {"data": data or (), "preparation": preparation, "samples": samples, "seed": seed, **options}
        with read_from(model, source_format) as path, progress(quiet or json) as step:
            found = pass_costs(path, format=source_format, progress=step, **arguments)
        if json:
            print_document("passes-costs", [asdict(item) for item in found])
        elif not quiet:
            print_costs(found)
        return
    from qconvert.cli.reports import passes_document, print_passes

    if json:
        print_document("passes", passes_document())
    else:
        print_passes()


def all_commands(words: Sequence[str] = ()) -> typer.Typer:
    """Return the program with every command, those of formats too. Called once.

    Args:
        words: of the command line; the formats that they say decide which options of formats the help shows.
    """
    source, result = formats_on_line(words[1:])
    from qconvert.cli.calibrating import add_calibration_commands
    from qconvert.cli.convert import add_commands, add_encodings_commands
    from qconvert.cli.folders import batch_command, partition_command
    from qconvert.cli.running import accuracy_command, benchmark_command, run_command
    from qconvert.cli.scaffold import add_plugin_commands
    from qconvert.cli.viewing import diff_command, view_command

    add_commands(app, source, result)
    add_encodings_commands(app, source, result)
    add_calibration_commands(app, source, result)
    commands: dict[str, Callable[..., None]] = {
        "accuracy": accuracy_command, "batch": batch_command, "view": view_command, "run": run_command, "benchmark": benchmark_command,
        "diff": diff_command, "partition": partition_command,
    }  # fmt: skip
    for name, command in commands.items():
        app.command(name)(command)
    add_plugin_commands(app)
    add_read_flags(app, source)
    for registered in app.registered_commands:
        registered.cls = GroupedOptions
    return app


def main() -> None:
    """Entry point of the program. Every error is printed on one screen, and its kind is the exit code (outcome.py)."""
    try:
        register_plugins()
        rewrite_help_all(sys.argv)
        all_commands(words_of_line())
        if "_QCONVERT_COMPLETE" in os.environ:  # the shell asks for the options of any command
            answer_completion(app)
            return
        defaults = apply_config(app)
        keep_called(app, sys.argv[1:])
        raise SystemExit(app(standalone_mode=False, default_map=defaults) or 0)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # nobody reads the output any more; typer ends with 1, which is "not equal" here
            raise SystemExit(141) from None
        raise
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None
    except Exception as error:
        raise SystemExit(exit_code(error, sys.argv[1:])) from error
    finally:
        note_plugins(sys.argv[1:])
