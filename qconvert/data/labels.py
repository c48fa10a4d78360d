"""Labels of inputs: what each file of a folder shows, from the folders' names or from a list next to them."""

from __future__ import annotations

import csv
import os
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.data.arrays import guard_reading, shapes
from qconvert.data.samples import SUFFIXES
from qconvert.errors import FileAccessError, OptionError, format_count
from qconvert.files.names import require_there, unreadable
from qconvert.graph import Array

#: Lists of labels are small: 100 bytes for each of a million and more.
_MOST_BYTES = 256 << 20
_LABELS = "an array of labels"
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_TABLES, _ARRAYS = (".csv", ".tsv", ".txt"), (".npy", ".npz")


@dataclass(frozen=True, slots=True)
class Labelled:
    """Files of inputs and the class of each sample.

    Attributes:
        files: in order.
        labels: the class of each file's only sample, or of each sample of the only file.
        counted: how many classes there are, where folders were counted; else 0.
    """

    files: tuple[Path, ...]
    labels: tuple[int, ...]
    counted: int = 0


def read_labels(data: Path, labels: str | Path = "", names: Sequence[str] = ()) -> Labelled:
    """Files with their classes.

    Args:
        data: a folder, or one file that holds many samples (.npy, .npz).
        labels: a list of "file,label" or "file label" in lines (.csv, .tsv, .txt), files named within `data`; a list of labels alone, for
            the files of `data` in the order of their names; or an array of whole numbers (.npy; of an .npz the array "labels"). Without
            it, `data` is an .npz file with such an array, or has a folder for each class, whose name is its number, or one of `names`; else
            they are counted in the order of their names.
        names: of the classes, the first is class 0; where labels are no numbers.

    Raises:
        FileAccessError: something is not there or cannot be read.
        OptionError: a label is none, a file is named twice or lies elsewhere, or a class has no file.
    """
    require_there(data)
    if not labels and not _holds_labels(data):
        return _by_folders(data, names)
    path = Path(labels or data)
    if path.suffix.lower() in _ARRAYS:
        return _in_order(data, _array(path), path)
    if path.suffix.lower() not in _TABLES:
        raise OptionError(
            f"is not a list of labels: its suffix is none of {', '.join((*_TABLES, *_ARRAYS))}", file=str(path), rule="unknown-suffix"
        )
    rows = _rows(path)
    if all(len(row) == 1 for _, row in rows):
        return _in_order(data, [_label(row[0], names, f"{path}:{line}") for line, row in rows], path)
    return _by_name(data, path, rows, names)


def class_names(path: Path) -> tuple[str, ...]:
    """Names of classes, one in a line, the first of class 0.

    Raises:
        FileAccessError: the file cannot be read.
        OptionError: a name occurs twice.
    """
    found = tuple(line.strip() for line in _text(path).splitlines())
    if len({*found}) != len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise OptionError(f"names the class {twice!r} twice", file=str(path), rule="class-twice")
    return found


def _holds_labels(data: Path) -> bool:
    """Whether a file of arrays has labels next to its inputs."""
    return data.suffix.lower() == ".npz" and zipfile.is_zipfile(data) and "labels.npy" in _members(data)


def _members(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def _by_folders(data: Path, names: Sequence[str]) -> Labelled:
    if not data.is_dir():
        raise OptionError(
            "has no labels",
            file=str(data),
            remedy="Name a list with --labels, or a folder with a folder for each class.",
            rule="labels-missing",
        )
    folders = sorted(item for item in data.iterdir() if item.is_dir() and not item.name.startswith("."))
    if not folders:
        raise OptionError("has no folder for each class", file=str(data), remedy="Name a list with --labels.", rule="labels-missing")
    stated = bool(names) or all(folder.name.isascii() and folder.name.isdigit() for folder in folders)
    files: list[Path] = []
    labels: list[int] = []
    for index, folder in enumerate(folders):
        own = _files(folder)
        if not own:
            raise OptionError("is the folder of a class, but holds no input", file=str(folder), rule="class-without-input")
        files += own
        labels += [_label(folder.name, names, str(folder)) if stated else index] * len(own)
    return Labelled(tuple(files), tuple(labels), 0 if stated else len(folders))


def _files(folder: Path) -> list[Path]:
    return sorted(item for item in folder.iterdir() if item.is_file() and not item.name.startswith(".") and item.suffix.lower() in SUFFIXES)


def _in_order(data: Path, labels: Sequence[int], where: Path) -> Labelled:
    """Labels without names of files: of the samples of one file, or of the files of a folder."""
    files = _files(data) if data.is_dir() else [data]
    if data.is_dir() and len(files) != len(labels):
        raise OptionError(f"has {len(labels)} labels; {data.name} has {len(files)} inputs", file=str(where), rule="label-count")
    return Labelled(tuple(files), tuple(labels))


def _by_name(data: Path, path: Path, rows: Sequence[tuple[int, list[str]]], names: Sequence[str]) -> Labelled:
    if not data.is_dir():
        raise OptionError("the list names files; --data must be the folder that they are in", file=str(path), rule="data-not-a-folder")
    files: list[Path] = []
    labels: list[int] = []
    seen: dict[Path, int] = {}
    root = Path(os.path.realpath(data))
    for position, (line, row) in enumerate(rows):
        where = f"{path}:{line}"
        if len(row) != 2:
            raise OptionError(f"has {format_count(len(row), 'cell')}; a file and a label are required", file=where, rule="cell-count")
        file = Path(os.path.realpath(data / row[0]))  # a name that no file can have is none that is there
        if position == 0 and not os.path.exists(file) and not _NUMBER.fullmatch(row[1]) and row[1] not in names:
            continue  # a head
        if not file.is_relative_to(root):
            raise OptionError(f"names {row[0]!r}, which lies outside {data}", file=where, rule="file-outside")
        if not os.path.isfile(file):
            raise FileAccessError(f"names {row[0]!r}, which is not in {data}", file=where, rule="file-not-found")
        if file in seen:
            raise OptionError(f"names {row[0]!r} again, which is also in line {seen[file]}", file=where, rule="file-twice")
        seen[file] = line
        files.append(file)
        labels.append(_label(row[1], names, where))
    if not files:
        raise OptionError("names no file", file=str(path), rule="no-files-listed")
    return Labelled(tuple(files), tuple(labels))


def _label(text: str, names: Sequence[str], where: str) -> int:
    if text in names:
        return names.index(text)
    if _NUMBER.fullmatch(text):
        return int(text)
    remedy = "Write numbers, or name the classes with --class-names FILE, one per line."
    raise OptionError(f"{text[:80]!r} is not a class", file=where, remedy=remedy, rule="unknown-class")


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """The lines that have something, with their numbers: cells between commas, tabulators or, without either, blanks."""
    text = _text(path)
    if "\0" in text:
        raise OptionError("holds a character of code 0, so that it is not a text", file=str(path), rule="not-text")
    first = next((line for line in text.splitlines() if line.strip()), "")
    mark = next((mark for mark in (",", "\t", ";") if mark in first), "")
    try:
        if mark:
            reader = csv.reader(text.splitlines(), delimiter=mark)
            found = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
        else:
            found = [(number, line.rsplit(maxsplit=1)) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    except csv.Error as error:
        raise OptionError(f"is not a table: {error}", file=str(path), rule="not-a-table") from error
    if not found:
        raise OptionError("is empty", file=str(path), rule="empty-file")
    return found


def _require_list(path: Path) -> None:
    """Raises FileAccessError for what is no plain file."""
    require_there(path)
    if path.is_dir():
        raise FileAccessError("is a folder, not a list of labels", file=str(path), rule="is-a-folder")


def _text(path: Path) -> str:
    _require_list(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise OptionError(f"has more than {_MOST_BYTES >> 20} MiB", file=str(path), rule="file-too-large")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileAccessError("is not a text in UTF-8", file=str(path), rule="not-text") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _array(path: Path) -> list[int]:
    """Labels in an array; see read_labels()."""
    _require_list(path)

    def choose_labels(names: list[str]) -> list[str]:
        if not names:
            raise OptionError("holds no array", file=str(path), rule="no-array")
        return ["labels" if "labels" in names else names[0]]

    def read() -> Array:
        found: Any = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found as arrays:
            return np.asarray(arrays[choose_labels(arrays.files)[0]])

    (shape,) = shapes(path, choose_labels, _LABELS)
    if len(shape) != 1 or not 0 < shape[0] <= _MOST_BYTES >> 3:
        raise OptionError(f"holds an array of shape {shape}, not a row of whole numbers", file=str(path), rule="not-a-row")
    found = guard_reading(path, read, _LABELS)
    if found.dtype.kind not in "iu":
        raise OptionError(f"holds {found.dtype} of shape {found.shape}, not a row of whole numbers", file=str(path), rule="not-a-row")
    return [int(item) for item in found]
