"""Flags that several commands have, and those for the options that formats and passes declare."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from qconvert.cli.completion import among, choices_of, known_formats, known_kernels, known_targets
from qconvert.plugins import Option, formats

__all__ = [
    "AllowLossFlag", "CropFlag", "DataFlag", "DebugFlag", "ExplorerFlag", "ForceFlag", "FromFlag", "HtmlFlag", "JsonFlag", "KernelsFlag",
    "MeanFlag", "MinSqnrFlag", "ModelArgument", "QuietFlag", "RangeFlag", "ResizeFlag", "SeedFlag", "StdFlag", "TargetFlag", "ToFlag",
    "VerboseFlag", "add_read_flags", "with_flags",
]  # fmt: skip

ModelArgument = Annotated[Path, typer.Argument(help="The model to read; - for standard input, with --from.")]

FromFlag = Annotated[str, typer.Option("--from", help="Format of what is read, if its suffix does not say.", autocompletion=known_formats)]
ToFlag = Annotated[str, typer.Option("--to", help="Format of the result, if its suffix does not say.", autocompletion=known_formats)]
TargetFlag = Annotated[
    str, typer.Option("--target", help="What the result is for; `qconvert formats` lists them.", autocompletion=known_targets)
]
KernelsFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--kernels",
        help="What runs files, such as litert:reference or onnxruntime:unoptimized; `qconvert formats` lists them.",
        autocompletion=known_kernels,
    ),
]

AllowLossFlag = Annotated[
    float, typer.Option("--allow-loss", metavar="DB", help="The lowest SQNR to which a step, of --passes too, may bring a tensor.")
]
MinSqnrFlag = Annotated[
    float | None,
    typer.Option(
        "--min-sqnr",
        metavar="DB",
        help="The lowest SQNR of an output that differs. Default: 30; of a quantized model beside its float source 10.",
    ),
]
ForceFlag = Annotated[bool, typer.Option("--force", "-f", help="Replace a result that exists.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
VerboseFlag = Annotated[bool, typer.Option("--verbose", "-v", help="Print every operator of the audit.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ExplorerFlag = Annotated[
    Path | None, typer.Option("--model-explorer", help="Write node data for Model Explorer too, a .json file; see docs/reports.md.")
]
HtmlFlag = Annotated[Path | None, typer.Option("--html", help="Also write a page for a browser: graphs, plots, tables.")]
DebugFlag = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

DataFlag = Annotated[
    list[str] | None, typer.Option("--data", help="Inputs: folders or files, .npz, .npy, .bin, images; repeatable. Default: random.")
]
MeanFlag = Annotated[str | None, typer.Option("--mean", help="Taken from images and real numbers of --data: one number, or R,G,B.")]
StdFlag = Annotated[str | None, typer.Option("--std", help="What they are then divided by: one number, or R,G,B.")]
RangeFlag = Annotated[str | None, typer.Option("--range", help="What pixels 0 and 255 become before that, such as 0,1.")]
ResizeFlag = Annotated[
    str | None, typer.Option("--resize", help="Of images: stretch, SHORTER or HEIGHT,WIDTH.", autocompletion=among("stretch"))
]
CropFlag = Annotated[str | None, typer.Option("--crop", help="Of images, behind resizing: HEIGHT,WIDTH of the middle.")]
SeedFlag = Annotated[int, typer.Option("--seed", min=0, help="Of the random inputs.")]


def with_flags(
    command: Callable[..., None], options: Iterable[Option], *, before: str = "", fixed: Mapping[str, Any] = MappingProxyType({})
) -> Callable[..., None]:
    """The command with a flag for each option instead of its `**` parameter, which gets those that are given.

    Args:
        command: a function with typer's annotations.
        options: one whose name is that of a parameter gets no flag.
        before: the parameter before which they stand; by default they come last.
        fixed: values of parameters that are no flags then.
    """
    own = inspect.signature(command, eval_str=True).parameters
    flags = [_flag(option) for option in options if option.name not in own]
    named = [item for item in own.values() if item.kind is not inspect.Parameter.VAR_KEYWORD and item.name not in fixed]
    place = next((index for index, item in enumerate(named) if item.name == before), len(named))
    parameters = [*named[:place], *flags, *named[place:]]
    of_options = {item.name for item in flags}

    def called(**arguments: Any) -> None:
        command(**{name: value for name, value in arguments.items() if name not in of_options or value not in (None, [])}, **fixed)

    called.__doc__ = command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {item.name: item.annotation for item in parameters}
    return called


def _flag(option: Option) -> inspect.Parameter:
    """The option as a flag: `--io-layout`. Without it the option is not given."""
    kind: Any = list[str] if option.many else option.type
    completed = choices_of(option) if option.choices else None
    spelled = typer.Option(f"--{option.name.replace('_', '-')}", help=option.help, autocompletion=completed)
    return inspect.Parameter(option.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Annotated[kind | None, spelled])


def add_read_flags(app: typer.Typer) -> None:
    """Gives the commands that take the options of any reader, as `**options`, their flags."""
    options = {option.name: option for item in formats().values() for option in item.read_options}
    for command in app.registered_commands:
        called = command.callback
        if called is not None and any(item.kind is item.VAR_KEYWORD for item in inspect.signature(called).parameters.values()):
            command.help = command.help or inspect.getdoc(called)
            command.callback = with_flags(called, options.values())
