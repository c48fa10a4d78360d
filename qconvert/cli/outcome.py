"""How a command ends: its exit code (docs/exit-codes.md has the table), the line for an error, and the document of --json with its schema
(docs/json.schema.json).
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import typer

from qconvert.errors import FileAccessError, QConvertError, printable
from qconvert.plugins import plugin_at_fault, plugin_failures

#: Of the schema of all documents. It grows when a field goes, or means something else; a field that is added changes nothing.
VERSION = 1


def print_document(name: str, content: Mapping[str, Any] | Sequence[Any], *, aside: bool = False) -> None:
    """Print the result of a command as JSON.

    Args:
        name: of the document, which is that of its command.
        content: its fields; a list becomes the field `items`.
        aside: whether it goes to standard error, as standard output has a model.
    """
    fields = content if isinstance(content, Mapping) else {"items": list(content)}
    typer.echo(json.dumps({"schema": f"qconvert/{name}/{VERSION}", **fields}, indent=2), err=aside)


PASSED, NOT_EQUAL, USAGE, FAULT, NOT_JUDGED = 0, 1, 2, 3, 4
_LONGEST = 300
#: Of the disk that is written to, or of what stands after standard output.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_NESTED = "the model is nested too deeply"
_NO_MEMORY = "the model needs more memory than there is"


def exit_code(error: Exception, arguments: list[str]) -> int:
    """Prints an error on one screen, as JSON with --json, with its traceback with --debug, and gives the exit code.

    Whatever is no QConvertError is a fault of qconvert itself, since everything that a user, a model or a file can cause is one, or of the
    plugin in whose code it was raised.

    Args:
        error: what a command raised.
        arguments: of the command line.
    """
    if "--debug" in arguments:
        traceback.print_exception(error, file=sys.stderr)
    if hasattr(error, "format_message"):  # Typer's own: an option that does not exist, an argument that lacks
        with suppress(OSError):  # nobody reads it, or its place is full
            if "--json" in arguments:
                print_document("error", {"error": "usage", "reason": error.format_message()})
            else:
                error.show()  # type: ignore[attr-defined]
        return USAGE
    if isinstance(error, OSError) and error.errno in _FULL:
        error = FileAccessError(f"cannot be written: {error.strerror}", file=str(error.filename or "standard output"), rule="not-writable")
    if isinstance(error, QConvertError):
        code, document, text = error.exit_code, error.to_dict(), error.message
        if plugin := plugin_at_fault(error):
            document, text = {**document, "plugin": plugin}, f"{text}\nThe plugin {plugin} raised this error."
    elif isinstance(error, RecursionError):
        code, document, text = USAGE, {"error": "invalid-model", "reason": _NESTED}, _NESTED
    elif isinstance(error, MemoryError):
        code, document, text = USAGE, {"error": "out-of-memory", "reason": _NO_MEMORY}, _NO_MEMORY
    else:
        said = printable(" ".join(str(error).split()), one_line=True)
        what = type(error).__name__ + (f": {said[:_LONGEST]}" if said else "")
        command = next((item for item in arguments if not item.startswith("-")), "qconvert")
        if plugin := plugin_at_fault(error):
            code, document = USAGE, {"error": "plugin", "where": plugin, "reason": what}
            text = (
                f"{command} failed by a fault of the plugin {plugin} ({what}); --debug shows where, QCONVERT_DISABLE_PLUGINS leaves it out"
            )
        else:
            code, document = FAULT, {"error": "internal", "where": command, "reason": what}
            text = f"{command} failed by a fault of qconvert itself ({what}); please report it with the model and what --debug prints"
    with suppress(OSError):  # the place for errors may be what is full
        if "--json" in arguments:
            print_document("error", document)
        else:
            typer.echo(f"error: {text}", err=True)
    return code


def note_plugins(arguments: list[str]) -> None:
    """Names on standard error the plugins that failed in this run and were left out; not where nothing but errors is wanted."""
    if {"--quiet", "-q"}.isdisjoint(arguments):
        for name, problem in plugin_failures().items():
            with suppress(OSError):
                typer.echo(f"note: the plugin {name} is skipped, {printable(problem, one_line=True)}", err=True)
