"""Files in and out: memory-mapped reading, and outputs that appear whole or not at all."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qconvert.errors import FileAccessError, InvalidModelError

__all__ = ["copy_mapped", "map_file", "release_pages", "whole_file"]

Array = np.ndarray[Any, np.dtype[Any]]

#: The open file behind each mapping, for copy_mapped(); closed with it.
_descriptors: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()
_KERNEL_PIECE = 2**28


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
            mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            descriptor = os.dup(stream.fileno())
            _descriptors[mapping] = descriptor
            weakref.finalize(mapping, os.close, descriptor)
            return mapping
    except OSError as error:
        raise FileAccessError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    except ValueError as error:  # mmap of something that is not a regular file
        raise FileAccessError(f"cannot be mapped into memory: {error}", file=str(path)) from error


def release_pages(data: Array) -> None:
    """Gives back the memory of a view on a mapped file; the view stays valid and is read again when it is next looked at.

    Args:
        data: any array; one that is no view on a file mapped by map_file() is left alone.
    """
    mapping = _mapping(data)
    if mapping is None or not data.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    spans = [(size - 1) * stride for size, stride in zip(data.shape, data.strides, strict=True)]
    first = data.ctypes.data + sum(span for span in spans if span < 0)
    behind = data.ctypes.data + sum(span for span in spans if span > 0) + data.itemsize
    start = first - np.frombuffer(mapping, np.uint8).ctypes.data
    aligned = start - start % mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, aligned, behind - first + start - aligned)


def copy_mapped(data: Array, stream: BinaryIO) -> bool:
    """Appends the bytes of a view on a mapped file to another file inside the kernel, without a page of it in this process.

    Args:
        data: any array.
        stream: a file, written up to where the bytes go.

    Returns:
        Whether it was done; if not, because `data` is no contiguous view on a mapped file or the system cannot, nothing is changed.
    """
    mapping = _mapping(data)
    source = None if mapping is None else _descriptors.get(mapping)
    if mapping is None or source is None or not data.flags.c_contiguous or not hasattr(os, "copy_file_range"):
        return False
    start = data.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    stream.flush()
    place, copied = stream.tell(), 0
    try:
        while copied < data.nbytes:
            count = min(_KERNEL_PIECE, data.nbytes - copied)
            done = os.copy_file_range(source, stream.fileno(), count, start + copied, place + copied)
            if not done:
                return False
            copied += done
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV):
            raise
        return False  # a file system that cannot; what has been copied is written again
    stream.seek(place + copied)
    return True


def _mapping(data: Array) -> mmap.mmap | None:
    """The mapped file that an array is a view on."""
    base: Any = data
    while isinstance(base, np.ndarray):
        base = base.base
    mapping = base.obj if isinstance(base, memoryview) else base
    return mapping if isinstance(mapping, mmap.mmap) else None


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
