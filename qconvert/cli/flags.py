"""Flags for the options that formats and passes declare."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import typer

from qconvert.cli.completion import choices_of
from qconvert.plugins import Option, formats

__all__ = ["add_read_flags", "with_flags"]


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
        command(**{name: value for name, value in arguments.items() if name not in of_options or value is not None}, **fixed)

    called.__doc__ = command.__doc__
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {item.name: item.annotation for item in parameters}
    return called


def _flag(option: Option) -> inspect.Parameter:
    """The option as a flag: `--io-layout`. Without it the option is not given."""
    kind: Any = option.type
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
