"""Flags that several commands have, and those for the options that formats and passes declare."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from qconvert.cli.completion import (
    choices_of,
    complete_words,
    known_formats,
    known_kernels,
    known_pass_calls,
    known_settings,
    known_targets,
)
from qconvert.plugins import Option, formats
from qconvert.plugins import passes as all_passes
from qconvert.plugins.options import READING

__all__ = [
    "CropFlag",
    "DataFlag",
    "DebugFlag",
    "ExplorerFlag",
    "ForceFlag",
    "FromFlag",
    "HtmlFlag",
    "JsonFlag",
    "KernelsFlag",
    "MeanFlag",
    "MinSqnrFlag",
    "MinTensorSqnrFlag",
    "ModelArgument",
    "OptionFlag",
    "PassFlag",
    "PixelRangeFlag",
    "QuietFlag",
    "ResizeFlag",
    "SeedFlag",
    "StdFlag",
    "TargetFlag",
    "ToFlag",
    "VerboseFlag",
    "add_read_flags",
    "conversion_flags",
    "reading_flags",
    "with_flags",
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

PassFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--pass", metavar="NAME[:OPTION=VALUE]", help="A pass to run first; repeatable. `qconvert passes` lists them.",
        autocompletion=known_pass_calls,
    ),
]  # fmt: skip
OptionFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-O", metavar="NAME=VALUE", help="An option of a format or of the target's passes; repeatable.",
        autocompletion=known_settings,
    ),
]  # fmt: skip

MinTensorSqnrFlag = Annotated[
    float, typer.Option("--min-tensor-sqnr", metavar="DB", help="Refuse steps that bring a tensor below this SQNR.")
]
MinSqnrFlag = Annotated[
    float | None,
    typer.Option(
        "--min-sqnr",
        metavar="DB",
        help="The lowest SQNR of an output that differs. Default: 30; 10 if only one of both models is quantized.",
    ),
]
ForceFlag = Annotated[bool, typer.Option("--force", "-f", help="Replace a result that exists.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
VerboseFlag = Annotated[bool, typer.Option("--verbose", "-v", help="Print every operator of the audit.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ExplorerFlag = Annotated[
    Path | None, typer.Option("--model-explorer", help="Also write node data for Model Explorer, a .json file.", hidden=True)
]
HtmlFlag = Annotated[Path | None, typer.Option("--html", help="Also write a page for a browser: graphs, plots, tables.")]
DebugFlag = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", hidden=True)]

DataFlag = Annotated[
    list[str] | None, typer.Option("--data", help="Inputs: folders or files, .npz, .npy, .bin, images; repeatable. Default: random.")
]
MeanFlag = Annotated[str | None, typer.Option("--mean", help="Subtracted from images and floats of --data: one number, or one a channel.")]
StdFlag = Annotated[str | None, typer.Option("--std", help="Divides them then: one number, or one a channel.")]
PixelRangeFlag = Annotated[
    str | None, typer.Option("--pixel-range", help="What pixels 0 and 255 become before --mean and --std, such as 0,1.")
]
ResizeFlag = Annotated[
    str | None, typer.Option("--resize", help="Of images: stretch, SHORTER or HEIGHT,WIDTH.", autocompletion=complete_words("stretch"))
]
CropFlag = Annotated[str | None, typer.Option("--crop", help="Of images, after resizing: HEIGHT,WIDTH of the middle.")]
SeedFlag = Annotated[int, typer.Option("--seed", min=0, help="Of the random inputs.", hidden=True)]


def with_flags(
    command: Callable[..., None],
    options: Mapping[Option, str | None],
    *,
    before: str = "",
    fixed: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[..., None]:
    """The command with a flag for each option instead of its `**` parameter, which gets those that are given.

    Args:
        command: a function with typer's annotations.
        options: option -> the heading of its flag in the help, None where `--help` leaves it out. One whose name is that of a parameter
            gets no flag; of several with one name the first does.
        before: the parameter before which they stand; by default they come last.
        fixed: values of parameters that are no flags then.
    """
    own = _parameters(command)
    flags = [_flag(option, heading) for option, heading in _first_of_each_name(options).items() if option.name not in own]
    named = [item for item in own.values() if item.kind is not inspect.Parameter.VAR_KEYWORD and item.name not in fixed]
    place = next((index for index, item in enumerate(named) if item.name == before), len(named))
    parameters = [*named[:place], *flags, *named[place:]]
    of_options = {item.name for item in flags}

    def call_command(**arguments: Any) -> None:
        command(**{name: value for name, value in arguments.items() if name not in of_options or value not in (None, [])}, **fixed)

    call_command.__doc__ = command.__doc__
    call_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call_command.__annotations__ = {item.name: item.annotation for item in parameters}
    return call_command


@cache
def _parameters(command: Callable[..., None]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a command, whose annotations take 2 ms to evaluate: `convert` has some twenty names."""
    return inspect.signature(command, eval_str=True).parameters


def _first_of_each_name(options: Mapping[Option, str | None]) -> dict[Option, str | None]:
    found: dict[str, tuple[Option, str | None]] = {}
    for option, heading in options.items():
        found.setdefault(option.name, (option, heading))
    return dict(found.values())


def _flag(option: Option, heading: str | None) -> inspect.Parameter:
    """The option as a flag: `--io-layout`. Without it the option is not given."""
    kind: Any = list[str] if option.many else option.type
    completed = choices_of(option) if option.choices else None
    flag = typer.Option(
        f"--{option.name.replace('_', '-')}", help=option.help, autocompletion=completed, hidden=heading is None, rich_help_panel=heading,
        min=option.least,
    )  # fmt: skip
    return inspect.Parameter(option.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=Annotated[kind | None, flag])


def conversion_flags(source: str = "", result: str = "", passes: Iterable[str] = ()) -> dict[Option, str | None]:
    """The options that a conversion has flags for: of every format, of these formats, of these passes, and the common ones of all passes.

    Args:
        source, result: names of formats, "" while they are not known: options of formats are left out of the help then.
        passes: names of passes that the command runs in any case.

    Returns:
        Option -> its heading; None where the help leaves it out.
    """
    listed: dict[Option, str | None] = {}
    for known in all_passes().values():
        listed.update({option: "Options" for option in known.options if option.common or known.name in passes})
    listed.update({option: "Options" if source or not option.many else None for option in READING})
    shown = [(option, f"Reading {source}") for option in (formats()[source].read_options if source in formats() else ())]
    shown += [(option, f"Writing {result}") for option in (formats()[result].write_options if result in formats() else ())]
    hidden = [option for item in formats().values() for option in (*item.write_options, *item.read_options)]
    hidden += [option for known in all_passes().values() for option in known.options if option.name == "encodings"]
    for option, heading in (*shown, *((option, None) for option in hidden)):
        listed.setdefault(option, heading)
    return listed


def reading_flags(source: str = "") -> dict[Option, str | None]:
    """The options of readers as flags: in the help those of every format and of `source`, once that is known."""
    shown = dict.fromkeys((*READING, *formats()[source].read_options) if source in formats() else (), f"Reading {source}")
    return shown | {option: None for item in formats().values() for option in item.read_options if option not in shown}


def add_read_flags(app: typer.Typer, source: str = "") -> None:
    """Gives the commands that take the options of any reader, as `**options`, their flags."""
    options = reading_flags(source)
    for command in app.registered_commands:
        called = command.callback
        if called is not None and any(item.kind is item.VAR_KEYWORD for item in inspect.signature(called).parameters.values()):
            command.help = command.help or inspect.getdoc(called)
            command.callback = with_flags(called, options)
