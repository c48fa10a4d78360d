"""What is done with a command line before any command is: plugins, defaults of options, and which command is put together at all."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import typer

from qconvert.cli.config import defaults_for, take_config_flag
from qconvert.errors import printable

__all__ = ["apply_config", "keep_only", "register_plugins"]


def register_plugins() -> None:
    """Loads what --plugin names, wherever it stands on the command line, and takes it off."""
    kept, words = sys.argv[:1], iter(sys.argv[1:])
    for word in words:
        name, is_assigned, value = word.partition("=")
        if name == "--plugin":
            from qconvert.plugins.plugin_files import register_file

            register_file(Path(value if is_assigned else next(words, "")))
        else:
            kept.append(word)
            if word == "--":
                kept += words
    sys.argv[:] = kept


def apply_config(app: typer.Typer) -> tuple[str, dict[str, Any]]:
    """The command that is called, and its values from qconvert.toml, listed on standard error; --config is removed."""
    sys.argv[1:], file = take_config_flag(sys.argv[1:])
    words = sys.argv[1:]
    command = next((word for word in words if not word.startswith("-")), "")
    callbacks = {str(item.name): item.callback for item in app.registered_commands if item.callback is not None}
    if file is None or command not in callbacks or not {"--help", "-h"}.isdisjoint(words):
        return command, {}
    found = defaults_for(file, command, callbacks, words)
    if found.said and {"--quiet", "-q"}.isdisjoint(words) and not found.values.get("quiet"):
        typer.echo(f"note: {printable(found.said, one_line=True)}", err=True)
    place = sys.argv.index(command) + 1
    sys.argv[place:place] = found.words
    return command, {command: found.values}


def _placeholder() -> None:
    """Stands for a command that is not called: it is listed, and its options need not be put together."""


def keep_only(app: typer.Typer, wanted: str) -> None:
    """Takes the functions of all commands but one away, from which Typer would make their options at every start."""
    for command in app.registered_commands:
        if command.name != wanted and command.callback is not None:
            command.help = command.help or inspect.getdoc(command.callback)
            command.callback = _placeholder
