"""Files of constants next to a model, named by their own content: `model.onnx.0123456789abcdef.data`.

Such a file is never replaced by another content, so that at every moment of a conversion the model in place finds the constants that
belong to it. The data of a replaced model is removed once no file names it any more.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path

from qconvert.files.mapped import file_digest

__all__ = ["named_by_content", "remove_obsolete"]

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
    return [item for item in sorted(model.parent.iterdir()) if _digits(item, model) and item.is_file() and not item.is_symlink()]


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
