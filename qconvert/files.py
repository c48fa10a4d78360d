"""Files in and out: memory-mapped reading, and outputs that appear whole or not at all."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import FileAccessError, InvalidModelError

__all__ = ["map_file", "release_pages", "whole_file"]


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


def release_pages(data: np.ndarray[Any, Any]) -> None:
    """Gives back the memory of a view on a mapped file; the view stays valid and is read again when it is next looked at.

    Args:
        data: any array; one that is no view on a file mapped by map_file() is left alone.
    """
    base: Any = data
    while isinstance(base, np.ndarray):
        base = base.base
    mapping = base.obj if isinstance(base, memoryview) else base
    if not data.size or not isinstance(mapping, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    spans = [(size - 1) * stride for size, stride in zip(data.shape, data.strides, strict=True)]
    first = data.ctypes.data + sum(span for span in spans if span < 0)
    behind = data.ctypes.data + sum(span for span in spans if span > 0) + data.itemsize
    start = first - np.frombuffer(mapping, np.uint8).ctypes.data
    aligned = start - start % mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, aligned, behind - first + start - aligned)


@contextmanager
def whole_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary path of the same name, moved to `path` when the block ends well and removed when it does not.

    The temporary path lies in a folder of its own, and further files that the block writes there, such as external data, are
    moved beside `path` with it: those first, so that a model is never there without its data.

    Args:
        path: where the finished file goes.
        force: whether existing files may be replaced.

    Raises:
        FileAccessError: a file exists and `force` is off, it is a device or a folder, its folder cannot be written, or the disk is full.
    """
    _require_replaceable(path, force)
    folder: Path | None = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent))
        yield folder / path.name
        others = sorted(item for item in folder.iterdir() if item.name != path.name)
        for item in others:
            _require_replaceable(path.with_name(item.name), force)
        _move(folder, [*others, folder / path.name], path.parent)
    except OSError as error:
        raise FileAccessError(f"cannot be written: {error.strerror or error}", file=str(path)) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _require_replaceable(path: Path, force: bool) -> None:
    if path.is_dir():
        raise FileAccessError("is a directory", file=str(path), remedy="Name a file to write.")
    if path.exists() and not path.is_file():  # a device such as /dev/null would be replaced by a file
        raise FileAccessError("is not a regular file", file=str(path), remedy="Name a file to write.")
    if path.exists() and not force:
        raise FileAccessError("already exists", file=str(path), remedy="Use --force to replace it.")


def _move(folder: Path, files: list[Path], destination: Path) -> None:
    """Moves files out of `folder`, all or none: where one fails, those before it are taken back and what they replaced returns."""
    kept = Path(tempfile.mkdtemp(dir=folder))
    done: list[Path] = []
    try:
        for item in files[:-1]:
            place = destination / item.name
            if place.exists():
                os.replace(place, kept / item.name)
            done.append(place)
            os.replace(item, place)
        os.replace(files[-1], destination / files[-1].name)
    except OSError:
        for place in done:
            place.unlink(missing_ok=True)
            if (kept / place.name).exists():
                os.replace(kept / place.name, place)
        raise
