"""Model files mapped into memory, and their bytes passed on without being loaded; and files of constants next to a model, named by their
own content (`model.onnx.0123456789abcdef.data`). Such a file is never replaced by another content, so that at every moment of a
conversion the model in place finds the constants that belong to it.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import re
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qconvert.errors import FileAccessError, InvalidModelError
from qconvert.files.names import require_utf8, unreadable

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


_DIGITS = 16
_ENDING = re.compile(rf"\.([0-9a-f]{{{_DIGITS}}})\.data")
_LONGEST_NAME = 255  # bytes, in the usual file systems
#: How much is read to learn whether another file names one that is to be removed. Above that it stays.
_SEARCHED = 2**32


def named_by_content(data: Path, model: Path) -> Path:
    """Renames a file of constants by the content that it has, and returns its new path.

    Args:
        data: the finished file, next to the model.
        model: the model that names it.
    """
    place = model.with_name(f"{_stem(model.name)}.{_digest(data)}.data")
    os.replace(data, place)
    return place


def remove_obsolete(model: Path, kept: Iterable[Path]) -> list[str]:
    """Removes the files of constants that earlier models called `model` left, and returns their names.

    A file goes only if its name is the model's with the digest of what is in the file, and no other file in the folder has its name in it:
    a copy of the earlier model keeps its constants. No other run may place files in the folder meanwhile (scratch.placing).

    Args:
        model: the model in place.
        kept: files that stay in any case.
    """
    stay = {os.path.realpath(item) for item in kept}
    candidates = [item for item in _data_files(model) if os.path.realpath(item) not in stay]
    obsolete = [item for item in candidates if _digest(item) == _digits(item, model)]
    if not obsolete:
        return []
    named = _find_names_in(model.parent, [item.name for item in obsolete])
    removed = [item for item in obsolete if item.name not in named]
    for item in removed:
        item.unlink(missing_ok=True)
    return [item.name for item in removed]


def _stem(name: str) -> str:
    """What the names of a model's files begin with: its own name, cut where the file system could not take the rest."""
    return os.fsencode(name)[: _LONGEST_NAME - _DIGITS - len("..data")].decode(errors="ignore")


def _digits(item: Path, model: Path) -> str:
    """The digest in the name of a file that belongs to a model; "" if it is none."""
    stem = _stem(model.name)
    found = _ENDING.fullmatch(item.name[len(stem) :]) if item.name.startswith(stem) else None
    return found[1] if found else ""


def _data_files(model: Path) -> list[Path]:
    stem = _stem(model.name)
    called = [model.parent / name for name in sorted(os.listdir(model.parent)) if name.startswith(stem)]
    return [item for item in called if _digits(item, model) and item.is_file() and not item.is_symlink()]


def _digest(data: Path) -> str:
    return file_digest(data)[:_DIGITS]


def _find_names_in(folder: Path, names: list[str]) -> set[str]:
    """Those of the names that occur in a file of the folder; all of them where the files are too large to look through."""
    files = [item for item in folder.iterdir() if item.name not in names and item.is_file() and item.stat().st_size]
    if sum(item.stat().st_size for item in files if not _ENDING.search(item.name)) > _SEARCHED:
        return set(names)
    found: set[str] = set()
    for item in files:
        if _ENDING.search(item.name):
            continue
        with item.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found.update(name for name in names if content.find(os.fsencode(name)) >= 0)
    return found
