"""What .npy and .npz files say of their arrays, before any value is read: an archive of some kilobytes may hold terabytes."""

from __future__ import annotations

import lzma
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.lib import format as npy

from qconvert.errors import FileAccessError, OptionError
from qconvert.graph import Array

__all__ = ["guard_reading", "map_array", "shapes"]

_T = TypeVar("_T")
#: What a damaged file makes numpy, Pillow, the zip archive or the file system raise. An encrypted archive is a RuntimeError.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    SyntaxError,
    OverflowError,
    MemoryError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    RuntimeError,
)
#: Kinds of numpy's types: truth values, integers, real and complex numbers.
_NUMBERS = "biufc"


def guard_reading(file: Path, read: Callable[[], _T], what: str = "a usable input") -> _T:
    """Return the result of `read`. Its exceptions for a damaged file become a FileAccessError with `what` in its text; its warnings are
    dropped."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except OptionError:  # which says itself what does not fit
        raise
    except _DAMAGE as error:
        said = str(error) or type(error).__name__
        raise FileAccessError(f"is not {what}: {' '.join(said.split())}", file=str(file), rule="not-readable") from error


def shapes(file: Path, choose: Callable[[list[str]], Sequence[str]], what: str = "a usable input") -> list[tuple[int, ...]]:
    """The shapes of arrays in an .npz file, or of the one in an .npy file, of which no values are read.

    Args:
        file: its suffix says which it is.
        choose: gives the names of the arrays that are wanted, of those that an archive has.
        what: see readable().

    Raises:
        OptionError: an array holds no numbers.
        FileAccessError: the file cannot be read.
    """
    return guard_reading(file, lambda: _shapes(file, choose), what)


def _shapes(file: Path, choose: Callable[[list[str]], Sequence[str]]) -> list[tuple[int, ...]]:
    if file.suffix.lower() == ".npy":
        found = map_array(file)
        return [_require_numbers(found.shape, found.dtype, file)]
    with zipfile.ZipFile(file) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        return [_in_archive(archive, members[name], file) for name in choose([*members])]


def _in_archive(archive: zipfile.ZipFile, member: str, file: Path) -> tuple[int, ...]:
    with archive.open(member) as stream:
        read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream)
    return _require_numbers(shape, dtype, file)


def _require_numbers(shape: tuple[int, ...], dtype: np.dtype[Any], file: Path) -> tuple[int, ...]:
    if dtype.kind not in _NUMBERS:
        raise OptionError(f"holds {dtype} values, which are not numbers", file=str(file), rule="not-numbers")
    return shape


def map_array(file: Path) -> Array:
    """An .npy file whose rows are read when they are asked for."""
    found: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    return found
