"""Which models of a folder a batch converts, and where their results go."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qconvert.batches.types import Job, Outcome
from qconvert.errors import FileAccessError, OptionError
from qconvert.files.names import require_there
from qconvert.plugins import Format, formats
from qconvert.version import __version__

__all__ = ["RECORDS", "Plan", "plan_batch"]

#: Within the folder of results: a file for each model that is done.
RECORDS = "qconvert-batch"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done: the jobs, and what of the folder is left out, with the reason."""

    jobs: tuple[Job, ...]
    left_out: tuple[Outcome, ...]


def plan_batch(
    folder: Path,
    out: Path,
    result: Format,
    suffix: str,
    convert: Sequence[str],
    check: Sequence[str] | None,
    *,
    seconds: float,
    memory: int,
) -> Plan:
    """The models of a folder, in the order of their names. Links are not followed, and named.

    Args:
        folder: with models, in folders within it too.
        out: the folder of results; what is in it is no model.
        result: the format to which they are converted.
        suffix: of the results.
        convert, check: arguments of the two commands; check is None for no check.
        seconds, memory: see Job.

    Raises:
        FileAccessError: the folder cannot be read.
        OptionError: it has no models.
    """
    require_there(folder)
    if not folder.is_dir():
        raise FileAccessError("is not a folder", file=str(folder), rule="not-a-folder")
    folder, out = Path(os.path.realpath(folder)), Path(os.path.realpath(out))
    suffixes = {suffix for item in formats().values() if item.content == "model" and item.read is not None for suffix in item.suffixes}
    found = [path for path in _files(folder, out) if path.suffix.lower() in suffixes]
    if not found:
        raise OptionError(
            "holds no models",
            file=str(folder),
            remedy=f"Name a folder with models. Suffixes of models: {', '.join(sorted(suffixes))}.",
            rule="no-models",
        )
    names = {path: path.relative_to(folder).as_posix() for path in found}
    plain = {path: reason for path in found if (reason := _no_file(path))}
    stems = Counter(_stem(path) for path in found if path not in plain)
    jobs = []
    for path, name in names.items():
        if path not in plain:
            same = stems[_stem(path)] > 1  # a.tflite and a.onnx both become a.onnx: they keep their own suffix too
            target = out / path.relative_to(folder).with_name((path.name if same else path.stem) + suffix)
            record = out / RECORDS / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}.json"
            limits = {"seconds": seconds, "memory": memory}
            given = (*convert, "--to", result.name, "--force")
            key = _record_key(path, [given, check, limits])
            jobs.append(
                Job(name, str(path), str(target), str(record), key, given, None if check is None else tuple(check), seconds, memory)
            )
    return Plan(tuple(jobs), tuple(Outcome(names[path], "skipped", reason) for path, reason in plain.items()))


def _files(folder: Path, out: Path) -> Iterator[Path]:
    """All files of a folder but those of results, sorted by name; folders that are links are not entered."""

    def refuse(error: OSError) -> None:
        raise FileAccessError(f"cannot be read: {error.strerror}", file=str(error.filename), rule="not-readable") from error

    for at, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if Path(at, name) != out)
        yield from (Path(at, name) for name in sorted(files))


def _no_file(path: Path) -> str:
    """Why a path is none that is read; "" if it is a file."""
    if path.is_symlink():
        return "is a link"
    return "" if path.is_file() else "is not a regular file"


def _stem(path: Path) -> tuple[Path, str]:
    return path.parent, path.stem


def _record_key(path: Path, options: object) -> str:
    """What a record is good for: the file as it is, the version, and the options."""
    state = path.stat()
    text = json.dumps([__version__, state.st_size, state.st_mtime_ns, options])
    return hashlib.sha256(text.encode()).hexdigest()
