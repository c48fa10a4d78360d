"""The search: workers in which files are read and converted under limits, and what came of each."""

from __future__ import annotations

import faulthandler
import os
import pickle
import re
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from fuzz.readers import READERS, Reader, mutated

#: What is converted to.
FORMATS = ("tflite", "onnx", "qgraph")
#: What becomes of a file that is read: nothing further, or a conversion to one of FORMATS in turn, or to each.
CONVERT = ("none", "turn", "all")
#: Seconds of computing, and of a clock, for each file.
LIMIT_S, WAITING_S = 2, 60
MEMORY, MEMORY_TIMES = 200 * 2**20, 20
#: Beyond this much more address space than at the start, allocations fail: a finding must not take the machine's memory.
_SPACE = 4 * 2**30


@dataclass(frozen=True)
class Finding:
    """A mutation of which something else came than a result or one clear error."""

    reader: str
    index: int
    seed_name: str
    what: str


def search(reader: str, seed: int, indices: range, convert: str = "all") -> tuple[Counter[str], list[Finding]]:
    """What became of the mutations: how often what, and the findings.

    Args:
        reader: a key of READERS.
        seed, indices: of the mutations.
        convert: one of CONVERT.
    """
    _warm(reader)
    outcomes: Counter[str] = Counter()
    findings: list[Finding] = []
    position = indices.start
    while position < indices.stop:
        for index, words in _worker(reader, seed, range(position, indices.stop), convert):
            position = index + 1
            for what in words:
                outcomes[what.split(":")[0]] += 1
                if what.startswith("!!!"):
                    findings.append(Finding(reader, index, mutated(reader, seed, index)[0], what.removeprefix("!!! ")))
    return outcomes, findings


def _warm(reader: str) -> None:
    """Imports in the parent what every worker needs."""
    item = READERS[reader]
    with tempfile.TemporaryDirectory() as folder:
        for name, data in list(item.seeds().items())[:3]:
            _tried(item, item.files(name, data), Path(folder), FORMATS if item.is_converted else (), limited=False)


def _worker(reader: str, seed: int, indices: range, convert: str) -> Iterator[tuple[int, list[str]]]:
    """(index, what came of it) for as many as the worker lives; the last is the one that ended it."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        faulthandler.disable()  # pytest's own copy of the error stream
        resource.setrlimit(resource.RLIMIT_AS, (_pages(0) + _SPACE,) * 2)
        for category in (RuntimeWarning, SyntaxWarning, UserWarning):  # what a user would see next to the result
            warnings.simplefilter("error", category)
        with os.fdopen(write, "wb") as stream, tempfile.TemporaryDirectory(prefix="fuzz") as folder:
            for index in indices:
                pickle.dump((index, None), stream)
                stream.flush()
                others = {"none": (), "turn": (FORMATS[index % len(FORMATS)],), "all": FORMATS}[convert]
                item = READERS[reader]
                try:
                    files = item.files(*mutated(reader, seed, index))
                    words = _tried(item, files, Path(folder), others if item.is_converted else ())
                except Exception as error:
                    words = [f"!!! the search itself: {error!r}"]
                pickle.dump((index, words), stream)
                stream.flush()
                if any("MB" in word for word in words):  # the mark of the largest size never sinks
                    break
        os._exit(0)
    os.close(write)
    last, done = indices.start - 1, True
    with os.fdopen(read, "rb") as stream:
        while True:
            try:
                last, words = pickle.load(stream)
            except EOFError:
                break
            done = words is not None
            if done:
                yield last, words
    _, status = os.waitpid(child, 0)
    if not done:
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status}"
        limits = {"SIGPROF": f"over {LIMIT_S} s of computing", "SIGALRM": f"over {WAITING_S} s of waiting"}
        yield last, [f"!!! {limits.get(name, name)}"]


def _tried(item: Reader, files: Mapping[str, bytes], folder: Path, others: Sequence[str], *, limited: bool = True) -> list[str]:
    """Reads and converts one file: what came of each conversion, findings with !!! before them."""
    from qconvert import convert, load

    for name, content in files.items():
        (folder / name).write_bytes(content)
    source = folder / next(iter(files))
    if limited:
        base = _pages(1)
    words = [_outcome(partial(item.read, source))]
    if words[0].startswith("invalid-graph"):
        words = [f"!!! of a file: {words[0]}"]
    if words == ["done"] and others:
        words = []
        for other in others:
            result = folder / f"r.{other}"
            words.append(f"{_outcome(partial(convert, source, result))}")
            if words[-1] == "done" and (again := _outcome(partial(load, result))).startswith(("invalid", "!!!")):
                words[-1] = f"!!! written to {other}, but not read: {again.removeprefix('!!! ')}"
            if not words[-1].startswith("done") and result.exists() and "written" not in words[-1]:
                words.append(f"!!! a result of {other} next to an error")
            result.unlink(missing_ok=True)
    if limited:
        size, used = sum(map(len, files.values())), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - base
        if used > MEMORY + MEMORY_TIMES * size:
            words.append(f"!!! {used // 2**20} MB for {size} bytes")
    left = sorted({path.name for path in folder.iterdir()} - set(files))
    if left:
        words.append(f"!!! left behind: {left}")
    for path in folder.iterdir():
        path.unlink()
    return words


def _pages(column: int) -> int:
    """Bytes of this process: 0: of its addresses, 1: in memory."""
    return int(Path("/proc/self/statm").read_text().split()[column]) * resource.getpagesize()


@cache
def _documented() -> frozenset[tuple[str, int]]:
    """The codes of errors with their exit codes in docs/exit-codes.md."""
    text = (Path(__file__).parents[2] / "docs" / "exit-codes.md").read_text()
    return frozenset((code, int(number)) for code, number in re.findall(r"^\| `([a-z-]+)` \|.*\| (\d) \|$", text, re.MULTILINE))


def _outcome(action: Callable[[], Any]) -> str:
    from qconvert import QConvertError

    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, WAITING_S)
    try:
        action()
    except QConvertError as error:
        if error.code in ("internal", "plugin") or (error.code, error.exit_code) not in _documented():
            return f"!!! {type(error).__name__}, {error.code}, exit code {error.exit_code}: {str(error)[:200]}"
        return f"{error.code}: {error}" if str(error) else "!!! an error without words"
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/qconvert" in frame.filename]
        place = f"{frames[-1].filename.rpartition('/qconvert')[2]}:{frames[-1].lineno}" if frames else "?"
        return f"!!! {type(error).__name__} in {place}: {str(error)[:120]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "done"
