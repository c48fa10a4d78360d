"""What is asked of the operating system: temporary files, with an error that says so where it has no place for them; memory that was
freed, given back; and how child processes ended, in words.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from qconvert.errors import FileAccessError

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


def release_memory() -> None:
    """Gives back what was freed. glibc keeps it in small pieces otherwise, which the large arrays after do not fit into: of MobileNet v2,
    whose protobuf messages come and go before it runs, half as much again as is in use."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library
        pass


#: Lines of what a process printed that an error shows, the last ones, and characters of each.
_SHOWN, _LONGEST = 6, 300


def describe_exit(returncode: int) -> str:
    """In words, how a process ended."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"was ended by {name}" + (", as systems do that run out of memory" if name == "SIGKILL" else "")


def read_end(printed: IO[bytes]) -> bytes:
    """Return the end of a file, as long as quote_output() shows it."""
    length = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, length - _SHOWN * _LONGEST))
    return printed.read()


def quote_output(printed: bytes) -> str:
    """The end of what a process printed, as the end of a sentence; "" if it printed nothing."""
    lines = [line.strip()[:_LONGEST] for line in printed.decode(errors="replace").splitlines() if line.strip()]
    return f"; it printed: {' | '.join(lines[-_SHOWN:])}" if lines else ""
