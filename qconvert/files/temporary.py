"""Temporary files: where the system has no place for them, the error says so."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from qconvert.errors import FileAccessError

__all__ = ["lasting_folder", "temporary_file", "temporary_folder"]

_REMEDY = "Set TMPDIR to a folder with free space."


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder, removed after the block.

    Args:
        parent: where it is made, hidden; by default where the system has temporary files.

    Raises:
        FileAccessError: no folder can be made, or a file in it cannot be written.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=".qconvert-" if parent else "qconvert-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise _no_folder_error(error) from error
    with folder:
        try:
            yield Path(folder.name)
        except OSError as error:
            if not str(error.filename or "").startswith(folder.name):
                raise
            raise FileAccessError(
                f"cannot be written: {error.strerror or error}", file=folder.name, remedy=_REMEDY, rule="not-writable"
            ) from error


def lasting_folder(prefix: str) -> Path:
    """A new folder for what the user is to find there. Raises FileAccessError where none can be made."""
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise _no_folder_error(error) from error


def temporary_file() -> IO[bytes]:
    """A new file without a name. Raises FileAccessError where none can be made."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise _no_folder_error(error) from error


def _no_folder_error(error: OSError) -> FileAccessError:
    return FileAccessError(f"there is no place for temporary files: {error.strerror or error}", remedy=_REMEDY, rule="not-writable")
