"""One model of a batch: converted and checked in processes of their own, which may not take more than their time and memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from qconvert.batches.types import Job, Outcome
from qconvert.files import whole_file
from qconvert.files.processes import how_it_ended

__all__ = ["done", "end_all", "recorded"]

#: Of what a command may print, which a model's names make up.
_LONGEST = 64 * 2**20
_SAID = 600
#: The exit code of a fault (cli/exits.py), and what stands for the end of a process that printed no document, such as a crash.
_FAULT = 3
_running: set[subprocess.Popen[bytes]] = set()


def done(job: Job) -> Outcome:
    """Does a job, unless its record says that it is done, and writes the record, whole or not at all."""
    if (before := recorded(job)) is not None:
        return before
    began = time.monotonic()
    found = replace(_done(job), seconds=round(time.monotonic() - began, 3))
    Path(job.record).parent.mkdir(parents=True, exist_ok=True)
    with whole_file(Path(job.record), force=True) as record:
        record.write_text(json.dumps({"key": job.key, **asdict(found)}), encoding="utf-8")
    return found


def recorded(job: Job) -> Outcome | None:
    """The outcome of a job that was done before, with these options and of this file; None if it was not."""
    try:
        found = json.loads(Path(job.record).read_text(encoding="utf-8"))
        if found.pop("key") == job.key and (not found["result"] or Path(job.result).exists()):
            return Outcome(**{**found, "before": True})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # none, or a damaged one
        pass
    return None


def _done(job: Job) -> Outcome:
    try:
        Path(job.result).parent.mkdir(parents=True, exist_ok=True)
        Path(job.result).unlink(missing_ok=True)  # of an earlier batch: it must not stand for a model that fails now
    except OSError as error:
        return Outcome(job.name, "refused", f"its result cannot be placed: {error.strerror}")
    code, document, said = _run(job, "convert", job.convert)
    if code != 0:
        return Outcome(job.name, _ends(code, "refused"), said)
    operators, place = document.get("operators") or {}, os.path.relpath(job.result, Path(job.record).parents[1])
    written = Outcome(job.name, "converted", "", place, str(document.get("target", "")), sum(operators.values()))
    if job.check is None:
        return written
    code, document, said = _run(job, "check", job.check)
    if code == 0:
        return replace(written, end="as declared" if document.get("verdict") == "as declared" else "equal")
    problems = [*document.get("problems", ()), *document.get("unjudged", ())]
    return replace(written, end=_ends(code, "not judged"), reason=_short("; ".join(problems)) if problems else said)


def _ends(code: int | None, refused: str) -> str:
    """How a model ends whose command ended with this exit code; None stands for a command that was ended."""
    return "ended" if code is None else {1: "not equal", 2: refused, 4: "not judged"}.get(code, "fault")


def _run(job: Job, command: str, arguments: tuple[str, ...]) -> tuple[int | None, dict[str, Any], str]:
    """The exit code of a command, None if it was ended; its document; and, if it did not pass, why, in words."""
    # -P: no module is taken from where the command happens to be started, which may be a folder of somebody's models.
    start = [sys.executable, "-P", "-m", "qconvert.cli.limited", str(job.memory)]
    line = [*start, command, job.source, job.result, *arguments, "--json", "--no-config"]
    process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    _running.add(process)
    try:
        printed, _ = process.communicate(timeout=job.seconds)
    except subprocess.TimeoutExpired:
        return None, {}, f"{command} was ended after {job.seconds:g} s"
    finally:
        _end(process)
        _running.discard(process)
    try:
        document = json.loads(printed[:_LONGEST])
    except ValueError:
        return _FAULT, {}, f"{command} {how_it_ended(process.returncode)}"
    if process.returncode == 0 or "error" not in document:
        return process.returncode, document, f"{command} ended with exit code {process.returncode}"
    if document["error"] == "out-of-memory":
        return None, document, f"{command} was ended, as it needs more than {job.memory / 2**30:g} GiB of memory"
    return (
        process.returncode,
        document,
        _short(": ".join(filter(None, (str(document.get("where") or ""), str(document.get("reason", "")))))),
    )


def end_all() -> None:
    """Ends what runs for jobs of this process."""
    for process in tuple(_running):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it started, which are of its group."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _short(text: str) -> str:
    return text if len(text) <= _SAID else f"{text[: _SAID - 1]}…"
