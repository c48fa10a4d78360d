"""batch(): a folder of models in, a folder of results and a table out; which models are converted, and where their results go."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qconvert.arguments import Progress, no_progress, with_checked_arguments
from qconvert.batches.jobs import BatchReport, Job, Outcome, Processes, read_record, run_job
from qconvert.conversion.judging import LIMIT
from qconvert.conversion.loading import recognize_format
from qconvert.errors import FileAccessError, OptionError, QConvertError
from qconvert.files import require_utf8, whole_file
from qconvert.files.names import require_there
from qconvert.plugins import Format, format_named, format_of, formats, target_named
from qconvert.version import __version__

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
    timeout: float,
    memory: int,
) -> Plan:
    """The models of a folder, in the order of their names. Links are not followed, and named.

    Args:
        folder: with models, in folders within it too.
        out: the folder of results; what is in it is no model.
        result: the format to which they are converted.
        suffix: of the results.
        convert, check: arguments of the two commands; check is None for no check.
        timeout, memory: see Job.

    Raises:
        FileAccessError: the folder cannot be read.
        OptionError: it has no models, or a result would replace one of them.
    """
    require_there(folder)
    if not folder.is_dir():
        raise FileAccessError("is not a folder", file=str(folder), rule="not-a-folder")
    folder, out = Path(os.path.realpath(folder)), Path(os.path.realpath(out))
    suffixes = {suffix for item in formats().values() if item.content == "model" and item.read is not None for suffix in item.suffixes}
    found = [path for path in _files(folder, out) if path.suffix.lower() in suffixes and not _is_no_model(path)]
    if not found:
        raise OptionError(
            "holds no models",
            file=str(folder),
            remedy=f"Name a folder with models. Suffixes of models: {', '.join(sorted(suffixes))}.",
            rule="no-models",
        )
    names = {path: path.relative_to(folder).as_posix() for path in found}
    owners = {part: path for path in found for part in _companions(path)}
    parts = {path: f"belongs to {names[owners[path]]}" for path in found if path in owners}
    plain = {path: reason for path in found if (reason := _no_file(path) or parts.get(path, ""))}
    stems = Counter(_stem(path) for path in found if path not in plain)
    jobs = []
    for path, name in names.items():
        if path not in plain:
            same = stems[_stem(path)] > 1  # a.tflite and a.onnx both become a.onnx: they keep their own suffix too
            target = out / path.relative_to(folder).with_name((path.name if same else path.stem) + suffix)
            record = out / RECORDS / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}.json"
            limits = {"timeout": timeout, "memory": memory}
            given = (*convert, "--to", result.name, "--force")
            key = _record_key(path, [given, check, limits])
            jobs.append(
                Job(name, str(path), str(target), str(record), key, given, None if check is None else tuple(check), timeout, memory)
            )
    if out == folder or any(Path(job.result) in names for job in jobs):
        raise OptionError(
            "holds the models, which the results would replace",
            file=str(out),
            remedy="Name another folder for the results.",
            rule="result-is-source",
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


def _companions(path: Path) -> tuple[Path, ...]:
    """The files that belong to a model, such as the parts of a partition."""
    with suppress(QConvertError):  # the job of this file says so
        find = format_of(path).companions
        return find(path) if find is not None and not _no_file(path) else ()
    return ()


def _is_no_model(path: Path) -> bool:
    """Whether the suffix is also that of files of scales and the like, and the content is that of no model: labels.json, say."""
    if _no_file(path) or all(path.suffix.lower() not in item.suffixes for item in formats().values() if item.content == "encodings"):
        return False
    with suppress(FileAccessError):  # the job of this file says so
        found = recognize_format(path)
        return not found or formats()[found].read is None
    return False


def _stem(path: Path) -> tuple[Path, str]:
    return path.parent, path.stem


def _record_key(path: Path, options: object) -> str:
    """What a record is good for: the file as it is, the version, and the options."""
    state = path.stat()
    text = json.dumps([__version__, state.st_size, state.st_mtime_ns, options])
    return hashlib.sha256(text.encode()).hexdigest()


#: Seconds, and GiB, that a model may be allowed.
_LONGEST, _MOST = 10_000_000, 1_000_000


@with_checked_arguments
def batch(
    folder: str | Path,
    out: str | Path,
    *,
    to: str = "",
    target: str = "",
    passes: Sequence[str] = (),
    min_tensor_sqnr: float = LIMIT,
    check: bool = False,
    samples: int = 3,
    min_sqnr: float | None = None,
    jobs: int = 1,
    scheduler: str = "",
    timeout: float = 600.0,
    memory: float = 8.0,
    progress: Progress = no_progress,
    **options: Any,
) -> BatchReport:
    """Converts all models of a folder, each in a process of its own, and writes what came of them to `out`/qconvert-batch/results.json.

    Finished models are recorded there, so an interrupted batch can be continued; with other options, another version or another file the
    model is converted again.

    Args:
        folder: with models, in folders within it too. Links are not followed.
        out: the folder of results, in which models lie as they do in `folder`; results in it are replaced.
        to: the format to convert to; by default that of the target, or onnx.
        target: see convert(); the same for all.
        passes, min_tensor_sqnr: likewise.
        check: whether each result is checked against its source.
        samples, min_sqnr: of a check, as in check().
        jobs: how many models at a time; 0 for as many as there are processors.
        scheduler: the address of a scheduler of dask.distributed, whose workers see both folders at these paths, instead of `jobs`.
        timeout: seconds that a conversion may take, and a check.
        memory: GiB of address space that each may take, where the system can limit it; 0 for no limit.
        progress: is called with (what, done, total).
        options: of formats and passes, as for convert().

    Raises:
        QConvertError: a folder or an option is wrong. What is wrong with a model is in its outcome.
    """
    folder, out = Path(folder), Path(out)
    require_utf8(out)
    result = format_named(to or (target_named(target).format if target else "onnx"))
    if result.content != "model" or result.write is None:
        raise OptionError(f"the format of the results is {result.name}; models cannot be written in it", rule="format-not-written")
    if target and target_named(target).format != result.name:
        reason = f"the target {target} is for the format {target_named(target).format}, not {result.name}"
        raise OptionError(reason, rule="target-of-other-format")
    if samples < 1 or jobs < 0 or not 0 < timeout <= _LONGEST or not 0 <= memory <= _MOST:
        raise OptionError(
            f"samples must be at least 1, jobs at least 0, timeout more than 0 and at most {_LONGEST:,} seconds, and GiB of memory from "
            f"0 to {_MOST:,}",
            rule="number-out-of-range",
        )
    named = [*(["--target", target] if target else []), *(word for name in passes for word in ("--pass", name))]
    convert = [*named, *_flag("--min-tensor-sqnr", min_tensor_sqnr), *_format_options(options)]
    checked = ["--samples", str(samples), *_flag("--min-sqnr", min_sqnr)] if check else None
    began = time.monotonic()
    suffix = result.suffix_for({**(target_named(target).write_options if target else {}), **options})
    plan = plan_batch(folder, out, result, suffix, convert, checked, timeout=timeout, memory=int(memory * 2**30))
    _require_folder(out)
    outcomes, total = list(plan.left_out), len(plan.jobs)
    for count, found in enumerate(_outcomes(plan.jobs, jobs, scheduler), 1):
        outcomes.append(found)
        progress("models", count, total)
    report = BatchReport(str(folder), str(out), tuple(sorted(outcomes, key=lambda item: item.name)), round(time.monotonic() - began, 3))
    with whole_file(out / RECORDS / "results.json", force=True) as results:
        results.write_text(json.dumps({**asdict(report), "counts": report.counts}, indent=1), encoding="utf-8")
    return report


def _flag(name: str, value: float | None) -> list[str]:
    return [] if value is None else [name, str(float(value))]


def _format_options(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        yield from ("-O", f"{name}={str(value).lower() if isinstance(value, bool) else value}")


def _require_folder(out: Path) -> None:
    try:
        (out / RECORDS).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FileAccessError(
            f"cannot be created: {getattr(error, 'strerror', '') or error}", file=str(out / RECORDS), rule="not-writable"
        ) from error


def _outcomes(jobs: Sequence[Job], count: int, scheduler: str) -> Iterator[Outcome]:
    """Outcomes as they come: first those that records have."""
    before = [read_record(job) for job in jobs]
    yield from filter(None, before)
    left = [job for job, found in zip(jobs, before, strict=True) if found is None]
    if scheduler:
        from qconvert.calibration.workers import Cluster

        with closing(Cluster(scheduler)) as workers:
            yield from workers.map(run_job, left, waiting=len(left))
    else:
        yield from _run_in_threads(left, count or os.cpu_count() or 1)


def _run_in_threads(jobs: Iterable[Job], count: int) -> Iterator[Outcome]:
    """By threads, each of which waits for the process of a model."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    pool, processes = ThreadPoolExecutor(count), Processes()
    try:
        for future in as_completed([pool.submit(run_job, job, processes) for job in jobs]):
            yield future.result()
    except BaseException:  # an interrupt, too: the processes of models do not hear of it
        pool.shutdown(wait=False, cancel_futures=True)
        processes.end_all()
        raise
    pool.shutdown()
