"""The jobs of a batch and what came of them: each model is converted and checked in processes of its own, which have limits of time and
memory.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from qconvert.errors import QConvertError, RuntimeRefusedError, format_count
from qconvert.files import map_file, whole_file
from qconvert.files.documents import integer, json_of, number, object_of, text
from qconvert.runtimes.packages import Child
from qconvert.tables import Rows, Shown, format_sentence, format_text

#: The statuses of a model of a batch, the best first.
STATUSES: Mapping[str, str] = {
    "passed": "converted; the check passed",
    "as declared": "converted; its outputs differ by what passes that the user named cost",
    "converted": "converted; not checked",
    "skipped": "no model: a link, or no plain file",
    "refused": "not converted, or not read: the user's or the model's error",
    "inconclusive": "converted; the check could not judge it",
    "not equal": "converted; the check found differences",
    "ended": "ended, since it took more time or memory than it may",
    "fault": "qconvert, or what it ran, failed",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One model of a batch. It can be pickled, and names everything by absolute paths.

    Attributes:
        name: the model's path within the folder, with slashes.
        source: the model.
        result: where its conversion is written.
        record: the file of its outcome; it exists when the model is done.
        key: of the model, its state and the options: a record with another key is one of an earlier, other batch.
        convert: arguments of `qconvert convert` after the two files.
        check: arguments of `qconvert check` after the two files; None for no check.
        timeout: seconds that each of the two commands may take.
        memory: bytes of address space that each of them may take; 0 for no limit.
    """

    name: str
    source: str
    result: str
    record: str
    key: str
    convert: tuple[str, ...] = ()
    check: tuple[str, ...] | None = None
    timeout: float = 600.0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one model.

    Attributes:
        name: the model's path within the folder, with slashes.
        status: one of STATUSES.
        reason: why, where it did not go well; what the check or the error says.
        result: the file that was written, within the folder of results; "" if there is none.
        target: that it was converted for.
        operators: how many operators were written.
        seconds: how long it took, check included.
        before: whether an earlier run of the batch did it.
    """

    name: str
    status: str
    reason: str = ""
    result: str = ""
    target: str = ""
    operators: int = 0
    seconds: float = 0.0
    before: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class BatchReport(Shown):
    """What came of all models of a folder.

    Attributes:
        folder: that they are in.
        out: the folder of results.
        outcomes: one for each model, by name.
        seconds: how long the run took.
    """

    folder: str
    out: str
    outcomes: tuple[Outcome, ...]
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """How many models ended in each way, in the order of STATUSES; ways in which none did are left out."""
        found = Counter(item.status for item in self.outcomes)
        return {status: found[status] for status in STATUSES if found[status]}

    @property
    def sentence(self) -> str:
        """How many models ended in which way."""
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        before = sum(item.before for item in self.outcomes)
        return f"{format_count(len(self.outcomes), 'model')}: {counts}; {self.seconds:.1f} s" + (
            f"; {before} were done before" if before else ""
        )

    def tables(self) -> tuple[Rows, ...]:
        """What came of each model."""
        rows = [
            (format_text(item.name), item.status, str(item.operators or ""), f"{item.seconds:.1f}", format_sentence(item.reason))
            for item in self.outcomes
        ]
        return (Rows("Models", ("~model", "status", ">operators", ">seconds", "reason"), tuple(rows)),)


_SAID = 600
#: The exit code of a fault (cli/outcome.py), and what stands for the end of a process that gave no answer, such as a crash.
_FAULT = 3
#: What runs in the process of a command.
_PROGRAM = Path(__file__).parents[1] / "cli" / "command_child.py"


class BatchOverError(Exception):
    """The batch is over before a model was done: nothing is known of it, and nothing is recorded."""


class Processes:
    """The processes of a batch, which never outlive it: each ends when the pipe to it does."""

    def __init__(self) -> None:
        self._lock, self._is_over = threading.Lock(), False
        self._running = set[Child]()

    def run(self, arguments: list[str], timeout: float, memory: int) -> Mapping[str, Any]:
        """The exit code and the document of a command of the command line.

        Raises:
            BatchOverError: the batch is over.
            RuntimeRefusedError: the command took longer than that, or its process ended.
        """
        with self._lock:  # none is started after end_all()
            if self._is_over:
                raise BatchOverError
            child = Child(_PROGRAM, arguments[0], timeout, forks=True)
            self._running.add(child)
        try:
            return child.request({"arguments": arguments, "folder": _current_folder(), "memory": memory})
        except RuntimeRefusedError:
            if self._is_over:
                raise BatchOverError from None
            raise
        finally:
            with self._lock:
                self._running.remove(child)
            child.close()

    def end_all(self) -> None:
        """Ends what runs; what waits for it gets BatchOverError."""
        with self._lock:
            self._is_over = True
            for child in self._running:
                child.kill()


def _current_folder() -> str:
    """Where options name files from; "" where it has been removed."""
    with suppress(FileNotFoundError):
        return os.getcwd()
    return ""


def run_job(job: Job, processes: Processes | None = None) -> Outcome:
    """Does a job, unless its record says that it is done, and writes the record, whole or not at all.

    Raises:
        BatchOverError: the batch whose processes these are is over.
    """
    if (before := read_record(job)) is not None:
        return before
    began = time.monotonic()
    found = replace(_run_commands(job, processes or Processes()), seconds=round(time.monotonic() - began, 3))
    Path(job.record).parent.mkdir(parents=True, exist_ok=True)
    with whole_file(Path(job.record), force=True) as record:
        record.write_text(json.dumps({"key": job.key, **asdict(found)}), encoding="utf-8")
    return found


def read_record(job: Job) -> Outcome | None:
    """The outcome of a job that was done before, with these options and of this file; None if it was not."""
    try:
        key, found = _read(Path(job.record))
    except QConvertError:  # there is none, or a damaged one
        return None
    is_whole = key == job.key and found.name == job.name and found.status in STATUSES
    return found if is_whole and (not found.result or Path(job.result).exists()) else None


def _read(record: Path) -> tuple[str, Outcome]:
    """What is in a record: the key of its job, and the outcome."""
    names = [item.name for item in fields(Outcome)]
    found = object_of(json_of(bytes(map_file(record)), "the record"), "record", ("key", *names), ())
    words = {name: text(found[name], name) for name in ("name", "status", "reason", "result", "target")}
    seconds = number(found["seconds"], "seconds")
    return text(found["key"], "key"), Outcome(**words, operators=integer(found["operators"], "operators", 0), seconds=seconds, before=True)


def _run_commands(job: Job, processes: Processes) -> Outcome:
    try:
        Path(job.result).parent.mkdir(parents=True, exist_ok=True)
        Path(job.result).unlink(missing_ok=True)  # of an earlier batch: it must not stand for a model that fails now
    except OSError as error:
        return Outcome(job.name, "refused", f"its result cannot be placed: {error.strerror}")
    code, document, said = _run_command(job, "convert", job.convert, processes)
    if code != 0:
        return Outcome(job.name, _status_of_exit_code(code, "refused"), said)
    operators, place = document.get("operators") or {}, os.path.relpath(job.result, Path(job.record).parents[1])
    written = Outcome(job.name, "converted", "", place, str(document.get("target", "")), sum(operators.values()))
    if job.check is None:
        return written
    code, document, said = _run_command(job, "check", job.check, processes)
    if code == 0:
        return replace(written, status="as declared" if document.get("verdict") == "as declared" else "passed")
    problems = "; ".join([*document.get("problems", ()), *document.get("unjudged", ())]).replace(f"{job.source}: ", "")
    return replace(written, status=_status_of_exit_code(code, "inconclusive"), reason=_shorten_text(problems) or said)


def _status_of_exit_code(code: int | None, refused: str) -> str:
    """The status of a model by the exit code of its command; None is the code of a command that was killed."""
    return "ended" if code is None else {1: "not equal", 2: refused, 4: "inconclusive"}.get(code, "fault")


def _run_command(job: Job, command: str, arguments: tuple[str, ...], processes: Processes) -> tuple[int | None, dict[str, Any], str]:
    """The exit code of a command, None if it was ended; its document; and, if it did not pass, why, in words."""
    line = [command, job.source, job.result, *arguments, "--json", "--no-config"]
    try:
        answer = processes.run(line, job.timeout, job.memory)
    except RuntimeRefusedError as error:
        return None if error.rule in ("no-answer", "process-killed") else _FAULT, {}, _shorten_text(error.reason)
    code, document = answer["code"], answer["document"]
    if code == 0 or "error" not in document:
        return code, document, f"{command} ended with exit code {code}"
    if document["error"] == "out-of-memory":
        return None, document, f"{command} was ended, as it needs more than {job.memory / 2**30:g} GiB of memory"
    return code, document, _shorten_text(": ".join(filter(None, (str(document.get("where") or ""), str(document.get("reason", ""))))))


def _shorten_text(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SAID else f"{text[: _SAID - 1]}…"
