"""Model files mapped into memory, and their bytes passed on without being loaded."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import weakref
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qconvert.errors import FileAccessError, InvalidModelError
from qconvert.files.names import require_utf8, unreadable

__all__ = ["copy_mapped", "file_digest", "map_file", "release_pages"]

Array = np.ndarray[Any, np.dtype[Any]]

#: The open file after each mapping, for copy_mapped(); closed with it.
_descriptors: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()
_KERNEL_PIECE = 2**28


def map_file(path: Path) -> mmap.mmap:
    """The file mapped read-only. Raises FileAccessError if it cannot be read and InvalidModelError if it is empty."""
    require_utf8(path)
    try:
        if path.is_dir():
            raise FileAccessError("is a directory, not a model file", file=str(path), rule="is-a-folder")
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise FileAccessError("is not a regular file", file=str(path), rule="not-a-regular-file")
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                raise InvalidModelError("the file is empty", file=str(path), rule="empty-file")
            mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            descriptor = os.dup(stream.fileno())
            _descriptors[mapping] = descriptor
            weakref.finalize(mapping, os.close, descriptor)
            return mapping
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:  # mmap of something that is not a regular file
        raise FileAccessError(f"cannot be mapped into memory: {error}", file=str(path), rule="not-readable") from error


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
    following = data.ctypes.data + sum(span for span in spans if span > 0) + data.itemsize
    start = first - np.frombuffer(mapping, np.uint8).ctypes.data
    aligned = start - start % mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, aligned, following - first + start - aligned)


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
