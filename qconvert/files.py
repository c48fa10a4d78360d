"""Files in and out: memory-mapped reading, and outputs that appear whole or not at all."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qconvert.errors import FileAccessError, InvalidModelError

__all__ = ["map_file", "whole_file"]


def map_file(path: Path) -> mmap.mmap:
    """The file mapped read-only. Raises FileAccessError if it cannot be read and InvalidModelError if it is empty."""
    try:
        if path.is_dir():
            raise FileAccessError("is a directory, not a model file", file=str(path))
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise FileAccessError("is not a regular file", file=str(path))
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                raise InvalidModelError("the file is empty", file=str(path))
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise FileAccessError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    except ValueError as error:  # mmap of something that is not a regular file
        raise FileAccessError(f"cannot be mapped into memory: {error}", file=str(path)) from error


@contextmanager
def whole_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block ends well and removed when it does not.

    Args:
        path: where the finished file goes.
        force: whether an existing file may be replaced.

    Raises:
        FileAccessError: the file exists and `force` is off, it is a device or a folder, its folder cannot be written, or the disk is full.
    """
    if path.is_dir():
        raise FileAccessError("is a directory", file=str(path), remedy="Name a file to write.")
    if path.exists() and not path.is_file():  # a device such as /dev/null would be replaced by a file
        raise FileAccessError("is not a regular file", file=str(path), remedy="Name a file to write.")
    if path.exists() and not force:
        raise FileAccessError("already exists", file=str(path), remedy="Use --force to replace it.")
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise FileAccessError(f"cannot be written: {error.strerror or error}", file=str(path)) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
