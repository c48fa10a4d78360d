"""Flags that several commands have, and those for the options that formats and passes declare; what Tab offers after an option; and what
the flags for data say of how images and real numbers are prepared.
"""

from __future__ import annotations

import inspect
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache, cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qconvert.errors import OptionError
from qconvert.plugins import Option, declared_options, formats, passes, runtimes, targets
from qconvert.plugins.options import READING

if TYPE_CHECKING:
    from qconvert.data import Preparation


_Completed = list[tuple[str, str]]
#: bash splits words at these characters and completes the part after the last one (COMP_WORDBREAKS).
_BREAKS = "=:"


def answer_completion(app: typer.Typer) -> None:
    """Answers a shell that asks what may stand at the end of a command line.

    bash takes words apart, `--kernels litert:reference` into four, and completes what stands after the last break: here the words are put
    together again first, and what stands before the break is taken off the answers.
    """
    before = _rejoin_words() if os.environ.get("_QCONVERT_COMPLETE") == "complete_bash" else ""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            app(standalone_mode=False)
    finally:
        for line in said.getvalue().splitlines():
            if line != before or not before:
                typer.echo(line.removeprefix(before))


def words_of_line() -> list[str]:
    """The words after the program's name: of the command line, or of the line that a shell is to complete."""
    try:
        return shlex.split(os.environ["COMP_WORDS"])[1:] if "_QCONVERT_COMPLETE" in os.environ else sys.argv[1:]
    except (KeyError, ValueError):  # an open quotation
        return []


def _rejoin_words() -> str:
    """Writes the words again into the environment, and gives the part of the last one up to its last break."""
    try:
        words, place = shlex.split(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
    except (KeyError, ValueError):  # an open quotation, which typer knows how to read
        return ""
    words += [""] * (place + 1 - len(words))
    joined: list[str] = []
    found, is_open = 0, False
    for number, word in enumerate(words):
        is_break = bool(word) and not word.strip(_BREAKS)
        if joined and (is_break or is_open):
            joined[-1] += word
        else:
            joined.append(word)
        is_open = is_break
        if number == place:
            found = len(joined) - 1
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = shlex.join(joined), str(found)
    return joined[found][: max(joined[found].rfind(letter) for letter in _BREAKS) + 1]


def _beginning(incomplete: str, items: Iterable[tuple[str, str]]) -> _Completed:
    return [(name, help) for name, help in items if name.startswith(incomplete)]


def known_targets(context: typer.Context, incomplete: str) -> _Completed:
    """Targets with what they are; after a command such as tflite2onnx those of its result's format."""
    wanted = (context.info_name or "").partition("2")[2]
    found = [item for item in targets().values() if wanted not in formats() or item.format == wanted]
    return _beginning(incomplete, ((item.name, item.summary) for item in found))


def known_formats(incomplete: str) -> _Completed:
    """Formats with what they are."""
    return _beginning(incomplete, ((item.name, item.summary) for item in formats().values()))


def known_forms(incomplete: str) -> _Completed:
    """Formats that can be written and read, and with a colon after them their forms."""
    return _beginning(incomplete, _forms())


def _forms() -> Iterator[tuple[str, str]]:
    for item in formats().values():
        if item.read is None or item.write is None:
            continue
        yield item.name, item.summary
        yield from ((f"{item.name}:{form}", "") for form in item.forms)


def known_kernels(incomplete: str) -> _Completed:
    """Runtimes with the sets of their kernels."""
    return _beginning(incomplete, ((f"{item.name}:{kernels}", item.summary) for item in runtimes().values() for kernels in item.kernels))


def known_settings(incomplete: str) -> _Completed:
    """Names of options as -O takes them, and after the = what they may be."""
    name, equals, _ = incomplete.partition("=")
    option = declared_options().get(name.replace("-", "_"))
    if not equals:
        return _beginning(incomplete, ((f"{item.name}=", item.help) for item in declared_options().values()))
    values = () if option is None else ("true", "false") if option.type is bool else option.choices
    return _beginning(incomplete, ((f"{name}={value}", "") for value in values if value != ""))


def known_passes(incomplete: str) -> _Completed:
    """Passes with what they change, and "all"."""
    return _beginning(
        incomplete, [("all", "every pass that changes something"), *((item.name, item.summary) for item in passes().values())]
    )


def known_pass_calls(incomplete: str) -> _Completed:
    """Passes as --pass takes them, and after the colon their options."""
    name, colon, rest = incomplete.partition(":")
    if not colon:
        return _beginning(incomplete, ((item.name, item.summary) for item in passes().values()))
    before = incomplete[: len(incomplete) - len(rest.rpartition(",")[2])]
    options = passes()[name].options if name in passes() else ()
    return _beginning(incomplete, ((f"{before}{option.name}=", option.help) for option in options))


def complete_words(*words: str) -> Callable[[str], _Completed]:
    """Completes one of some words."""

    def complete(incomplete: str) -> _Completed:
        return _beginning(incomplete, ((word, "") for word in words))

    return complete


def choices_of(option: Option) -> Callable[[str], _Completed]:
    """Completes the choices of a declared option."""
    return complete_words(*(str(choice) for choice in option.choices if choice != ""))


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
        help="What runs files, such as litert:reference; several, one for each format, after commas; `qconvert formats` lists them.",
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
VerboseFlag = Annotated[bool, typer.Option("--verbose", "--all", "-v", help="Print everything, not the most important alone.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ExplorerFlag = Annotated[
    Path | None, typer.Option("--model-explorer", help="Also write node data for Model Explorer, a .json file.", hidden=True)
]
HtmlFlag = Annotated[Path | None, typer.Option("--html", help="Also write a page for a browser: graphs, plots, tables.")]
DebugFlag = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", hidden=True)]

DataFlag = Annotated[
    list[str] | None, typer.Option("--data", help="Inputs: folders or files, .npz, .npy, .bin, images; repeatable. Default: random.")
]
#: Field of Preparation -> its flag, in place of a parameter `preparation` of commands; see with_flags().
_PREPARING: Mapping[str, Any] = {
    "mean": typer.Option("--mean", help="Subtracted from images and floats of --data: one number, or one a channel."),
    "std": typer.Option("--std", help="Divides them then: one number, or one a channel."),
    "pixel_range": typer.Option("--pixel-range", help="What pixels 0 and 255 become before --mean and --std, such as 0,1."),
    "resize": typer.Option("--resize", help="Of images: stretch, SHORTER or HEIGHT,WIDTH.", autocompletion=complete_words("stretch")),
    "crop": typer.Option("--crop", help="Of images, after resizing: HEIGHT,WIDTH of the middle."),
    "colour": typer.Option(
        "--colour",
        help="Of images: rgb, bgr, gray, rgba, bgra.",
        autocompletion=complete_words("rgb", "bgr", "gray", "rgba", "bgra"),
        hidden=True,
    ),
    "layout": typer.Option(
        "--image-layout",
        help="Of images: nchw or nhwc, where the input's shape says neither.",
        autocompletion=complete_words("nchw", "nhwc"),
        hidden=True,
    ),
}
#: A Preparation, or None; the class, which needs numpy, is imported where a flag asks for one.
PreparationFlags = Any
SeedFlag = Annotated[int, typer.Option("--seed", min=0, help="Of the random inputs.", hidden=True)]


class _FlaggedCommand:
    """A command as `with_flags` gives it. Its flags are made when its signature is asked for: a run asks for that of one command."""

    def __init__(
        self,
        command: Callable[..., None],
        options: Callable[[], Mapping[Option, str | None]],
        before: str,
        fixed: Mapping[str, Any],
        settings: Callable[[], Iterable[Option]],
    ) -> None:
        self.__doc__ = command.__doc__
        self.settings = settings
        self._command, self._options, self._before, self._fixed = command, options, before, fixed

    @cached_property
    def _flags(self) -> dict[str, inspect.Parameter]:
        own = {name for item in _parameters(self._command).values() for name in _flags_of(item)}
        options = _first_of_each_name(self._options())
        return {option.name: _flag(option, heading) for option, heading in options.items() if option.name not in own}

    @cached_property
    def __signature__(self) -> inspect.Signature:
        own = [part for item in _parameters(self._command).values() for part in _flags_of(item).values()]
        named = [item for item in own if item.kind is not inspect.Parameter.VAR_KEYWORD and item.name not in self._fixed]
        place = next((index for index, item in enumerate(named) if item.name == self._before), len(named))
        return inspect.Signature([*named[:place], *self._flags.values(), *named[place:]])

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]  # Typer reads them besides the signature
        return {item.name: item.annotation for item in self.__signature__.parameters.values()}

    def __call__(self, **arguments: Any) -> None:
        given = {name: value for name, value in arguments.items() if name not in self._flags or value not in (None, [])}
        if "preparation" in _parameters(self._command):
            given["preparation"] = _prepare({name: given.pop(name) for name in _PREPARING})
        self._command(**given, **self._fixed)


def with_flags(
    command: Callable[..., None],
    options: Callable[[], Mapping[Option, str | None]],
    *,
    before: str = "",
    fixed: Mapping[str, Any] = MappingProxyType({}),
    settings: Callable[[], Iterable[Option]] = tuple,
) -> Callable[..., None]:
    """The command with a flag for each option instead of its `**` parameter, which gets those that are given, and with --mean, --std and
    their like instead of a parameter `preparation: PreparationFlags`, which gets the preparation that they ask for, or None.

    Args:
        command: a function with typer's annotations.
        options: gives, option -> the heading of its flag in the help, None where `--help` leaves it out. One whose name is that of a
            parameter gets no flag; of several with one name the first does.
        before: the parameter before which they stand; by default they come last.
        fixed: values of parameters that are no flags then.
        settings: gives the options that -O takes besides those that formats and passes declare.
    """
    return _FlaggedCommand(command, options, before, fixed, settings)


@cache
def _parameters(command: Callable[..., None]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a command, whose annotations take 2 ms to evaluate: `convert` has some twenty names."""
    return inspect.signature(command, eval_str=True).parameters


def _flags_of(parameter: inspect.Parameter) -> dict[str, inspect.Parameter]:
    """The parameter, by its name, or what stands for `preparation`."""
    if parameter.name != "preparation":
        return {parameter.name: parameter}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return {name: inspect.Parameter(name, kind, default=None, annotation=Annotated[str | None, flag]) for name, flag in _PREPARING.items()}


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


def conversion_flags(source: str = "", result: str = "", command_passes: Iterable[str] = ()) -> dict[Option, str | None]:
    """The options that a conversion has flags for: of every format, of these formats, of these passes, and the common ones of all passes.

    Args:
        source, result: names of formats, "" while they are not known: options of formats are left out of the help then.
        command_passes: names of passes that the command runs in any case.

    Returns:
        Option -> its heading; None where the help leaves it out.
    """
    listed: dict[Option, str | None] = {}
    for known in passes().values():
        listed.update({option: "Options" for option in known.options if option.common or known.name in command_passes})
    listed.update({option: "Options" if source or not option.many else None for option in READING})
    shown = [(option, f"Reading {source}") for option in (formats()[source].read_options if source in formats() else ())]
    shown += [(option, f"Writing {result}") for option in (formats()[result].write_options if result in formats() else ())]
    hidden = [option for item in formats().values() for option in (*item.write_options, *item.read_options)]
    hidden += [option for known in passes().values() for option in known.options if option.name == "encodings"]
    for option, heading in (*shown, *((option, None) for option in hidden)):
        listed.setdefault(option, heading)
    return listed


def reading_flags(source: str = "") -> dict[Option, str | None]:
    """The options of readers as flags: in the help those of every format and of `source`, once that is known."""
    shown = dict.fromkeys((*READING, *formats()[source].read_options) if source in formats() else (), f"Reading {source}")
    return shown | {option: None for item in formats().values() for option in item.read_options if option not in shown}


def add_read_flags(app: typer.Typer, source: str) -> None:
    """Gives the commands that take the options of any reader, as `**options`, their flags."""
    options = partial(reading_flags, source)
    for command in app.registered_commands:
        called = command.callback
        if inspect.isfunction(called) and called.__code__.co_flags & inspect.CO_VARKEYWORDS:
            command.help = command.help or inspect.getdoc(called)
            command.callback = with_flags(called, options)


def _prepare(words: Mapping[str, str | None]) -> Preparation | None:
    """The preparation that the user asks for, by its fields; None if no flag is given."""
    given = {name: text for name, text in words.items() if text}
    if not given:
        return None
    from qconvert.data import Preparation, numbers

    found: dict[str, Any] = {name: given[name] for name in ("colour", "layout") if name in given}
    found |= {name: numbers(given[name], name) for name in ("mean", "std") if name in given}
    if "pixel_range" in given:
        found["pixel_range"] = numbers(given["pixel_range"], "pixel-range", 2)
    if "crop" in given:
        found["crop"] = _sizes(given["crop"], "crop")
    if "resize" in given:
        found["resize"] = given["resize"] if given["resize"].isalpha() else _sizes(given["resize"], "resize")
    return Preparation(**found)


def _sizes(text: str, option: str) -> tuple[int, ...]:
    from qconvert.data import numbers

    found = numbers(text, option)
    if not all(size.is_integer() for size in found):
        raise OptionError(
            f"--{option} {text!r} is no list of whole numbers", remedy=f"Write --{option} 224 or --{option} 224,224.", rule="not-a-number"
        )
    return tuple(int(size) for size in found)
