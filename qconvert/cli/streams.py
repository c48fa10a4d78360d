"""`-` in place of a file: a model from standard input or to standard output."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from qconvert.errors import FileAccessError, OptionError, QConvertError
from qconvert.files.system import temporary_folder
from qconvert.plugins import format_named


def stated_path(word: str | None) -> str:
    """Return the path of an argument or option, "" where there is none.

    An empty word, such as a variable of a shell that is not set, is the current folder, which is refused as a file.
    """
    return "" if word is None else word or os.curdir


def is_stream(path: str | Path) -> bool:
    """Whether a path stands for standard input or output."""
    return str(path) == "-"


@contextmanager
def read_from(path: Path, format: str, flag: str = "--from") -> Iterator[Path]:
    """The file to read: `path`, or for `-` a temporary copy of standard input, since models are mapped into memory.

    Args:
        path: as the user gives it.
        format: the name of the format, which a stream has no suffix to say.
        flag: that says it.

    Raises:
        OptionError: standard input has no format, or is a terminal.
        FileAccessError: it cannot be read, or the temporary folder cannot be written.
    """
    if not is_stream(path):
        yield path
        return
    _require(format, flag, sys.stdin, "standard input", "is a terminal")
    with _temporary(f"stdin{next(iter(format_named(format).suffixes), '')}") as copy:
        try:
            with copy.open("wb") as stream:
                shutil.copyfileobj(sys.stdin.buffer, stream)
        except OSError as error:
            raise FileAccessError(f"standard input cannot be read: {error.strerror or error}", rule="not-readable") from error
        yield copy


@contextmanager
def read_both(first: Path, second: Path, first_format: str, second_format: str) -> Iterator[tuple[Path, Path]]:
    """Two files to read, of which one may be standard input; see read_from(). --from is of the first, --to of the second.

    Raises:
        OptionError: both are standard input.
    """
    if is_stream(first) and is_stream(second):
        raise OptionError("only one of two models can be standard input", remedy="Name a file.", rule="same-file-twice")
    with read_from(first, first_format) as one, read_from(second, second_format, "--to") as other:
        yield one, other


@contextmanager
def write_to(path: str, format: str) -> Iterator[str]:
    """The file to write: `path`, or for `-` a temporary file that goes to standard output when the block has ended well.

    Args:
        path: as the user gives it, a name of a folder with its /.
        format: the name of the format, which a stream has no suffix to say.

    Raises:
        OptionError: standard output has no format, is a terminal, or the model is more than one file.
        FileAccessError: it cannot be written.
    """
    if not is_stream(path):
        yield path
        return
    _require(format, "--to", sys.stdout, "standard output", "is a terminal, which takes no model")
    with _temporary("stdout") as result:
        yield str(result)
        if result.is_dir() or [item for item in result.parent.iterdir() if item != result]:
            raise OptionError(
                "the model is more than one file, which standard output cannot take", remedy="Name a file to write.", rule="several-files"
            )
        try:
            with result.open("rb") as stream:
                shutil.copyfileobj(stream, sys.stdout.buffer)
            sys.stdout.flush()
        except BrokenPipeError:  # nobody reads it any more, which is no error
            raise
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer is not tried again
            raise FileAccessError(f"standard output cannot be written: {error.strerror or error}", rule="not-writable") from error


@contextmanager
def write_nowhere(path: str, format: str) -> Iterator[str]:
    """A temporary place of the name of `path`, for what would be written there; it is gone with the block. See write_to()."""
    if is_stream(path) and not format:
        raise OptionError(
            "- has no suffix that says the format",
            remedy="Name it with --to, or use a command such as tflite2onnx.",
            rule="format-not-stated",
        )
    with temporary_folder() as folder, _name_in_errors(os.path.join(folder, os.path.basename(path)), path) as result:
        yield result


def _require(format: str, flag: str, stream: TextIO | None, name: str, terminal: str) -> None:
    if not format:
        raise OptionError(
            "- has no suffix that says the format",
            remedy=f"Name it with {flag}, or use a command such as tflite2onnx.",
            rule="format-not-stated",
        )
    if stream is None or stream.isatty():  # None: closed by whoever started the program
        raise OptionError(f"{name} {'is closed' if stream is None else terminal}", remedy="Use a pipe or a file.", rule="not-a-stream")


@contextmanager
def _temporary(name: str) -> Iterator[Path]:
    """A path in a temporary folder; errors call it -."""
    with temporary_folder() as folder, _name_in_errors(str(folder / name), "-") as path:
        yield Path(path)


@contextmanager
def _name_in_errors(path: str, called: str) -> Iterator[str]:
    """The path; errors that name it call it as the user does."""
    try:
        yield path
    except QConvertError as error:
        if error.file in (path, str(Path(path))):
            error.file = called
        error.remedy = error.remedy.replace(path, called)
        raise
