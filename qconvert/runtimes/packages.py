"""The packages that run models: each is imported when it is used, what it prints on standard error is captured, and one that may end its
process, or take forever, runs in a child process. Parent and child talk through pipes: lines of JSON with bytes of arrays after them,
nothing that would be run when it is read. A program that is started for every file, as LiteRT's is for the pieces of a check and the
command line for the models of a batch, may be a fork server: a fork takes 2 ms, a start with its imports 200 ms.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np

from qconvert.errors import MissingPackageError, RuntimeRefusedError
from qconvert.files.system import describe_exit, quote_output, read_end, temporary_file
from qconvert.graph import Array, numpy_dtype

#: Seconds for which a process whose pipes are closed may still run.
_LAST_WORDS = 10.0
#: The longest line and the most bytes of arrays that an answer may have; of the first, what a process may print besides, too.
_LONGEST, _MOST = 2**26, 2**33
#: Seconds between two looks at what a process that does not answer prints.
_GLANCE = 1.0
#: Seconds between two looks at a pipe, where none is told.
_PAUSE = 0.002
_CHUNK = 2**20
#: What runs a program in a process.
_LOOP = str(Path(__file__).with_name("child_loop.py"))
#: Bytes of a message to a fork server, and of its answer at most.
_MESSAGE = 64
#: Types of arrays that an answer may have: numpy's names, and texts of a length in bytes.
_DTYPES = re.compile(r"(|b)float16|(float|u?int)(32|64)|u?int(2|4|8|16)|bool|complex64|\|S\d{1,6}")


class Child:
    """A process that runs a program, and its pipes.

    Args:
        program: its file, with a function start() as runtimes/child_loop.py runs it. It is run with -P: it imports installed packages only,
            unless its arguments name other folders.
        title: of what runs in it, as in errors.
        patience: seconds for which an answer is waited for.
        arguments: of start().
        forks: whether a fork server starts the program once for all its processes, where the system has forks.
    """

    def __init__(self, program: Path, title: str, patience: float, arguments: Sequence[str] = (), *, forks: bool = False) -> None:
        self._title, self._patience = title, patience
        self._printed = temporary_file()
        self._process: subprocess.Popen[bytes] | _Forked
        if forks and hasattr(os, "fork"):
            try:
                self._process = _Forked(program, title, self._printed.fileno(), patience)
            except RuntimeRefusedError:
                self._printed.close()
                raise
        else:
            self._process = subprocess.Popen(
                [sys.executable, "-P", _LOOP, "", str(program), *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._printed,
            )  # fmt: skip
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        self._waiting = bytearray()
        self._end = weakref.finalize(self, _end_process, self._process, self._selector, self._printed)

    def close(self) -> None:
        self._end()

    def kill(self) -> None:
        """End the process, and those of its group if it leads one; who waits for its answer gets RuntimeRefusedError."""
        _kill_process(self._process)

    def begin_memory(self) -> None:
        """Let peak_memory() count from now on."""
        self.request({})  # answered when the program has imported its packages, which are no model's memory
        forget_peak(self._process.pid)
        self._held = process_memory(self._process.pid)

    def peak_memory(self) -> int:
        """Return how many bytes the process held at most since begin_memory(), beyond what it held then; 0 if that is not known."""
        return max(0, process_memory(self._process.pid, at_most=True) - self._held)

    def request(self, question: Mapping[str, Any], values: Sequence[Array] = ()) -> Mapping[str, Any]:
        """Send a message and return the answer; arrays() reads arrays after it. Raises RuntimeRefusedError without one, or for an error."""
        given = self._process.stdin
        assert given is not None
        if not self._end.alive:
            raise RuntimeRefusedError(f"{self._title}'s process has ended", rule="process-ended")
        try:
            given.write(json.dumps(question).encode() + b"\n")
            for value in values:
                given.write(value.tobytes())
            given.flush()
        except OSError:
            raise self._failure() from None
        line = self._line()
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.close()
            raise RuntimeRefusedError(f"{self._title}'s process gave an invalid answer: {line[:100]!r}", rule="invalid-answer")
        if "error" in found:
            raise RuntimeRefusedError(
                f"{self._title} refuses the model: {str(found['error'])[:300]}{quote_output(self._read_printed())}", rule="model-refused"
            )
        return found

    def run(self, values: Sequence[Array], outputs: Mapping[str, tuple[str, Any]]) -> dict[str, Array]:
        """Run the model that the process has loaded.

        The program gets {"run": [[dtype, shape]…]} with the values after it, and answers {"arrays": [[dtype, shape]…]} with the results.

        Args:
            values: of the inputs, in order.
            outputs: name -> (dtype, shape), in order.

        Raises:
            RuntimeRefusedError: there is no answer, an error, or one that has other results than `outputs`, in number or type.
        """
        described = [[value.dtype.name, list(value.shape)] for value in values]
        found = self.arrays(self.request({"run": described}, values).get("arrays"))
        given, wanted = [value.dtype.name for value in found], [dtype for dtype, _ in outputs.values()]
        if given != wanted:
            raise RuntimeRefusedError(
                f"{self._title} gives results of the types {str(given)[:200]}; the model has {str(wanted)[:200]}", rule="invalid-answer"
            )
        return dict(zip(outputs, found, strict=True))

    def arrays(self, described: Any) -> list[Array]:
        """Read the arrays after an answer that describes their types and shapes."""
        found = []
        if not isinstance(described, list):
            self.close()
            raise RuntimeRefusedError(f"{self._title}'s process gave an answer without results", rule="invalid-answer")
        for item in described:
            dtype, shape = item if isinstance(item, list) and len(item) == 2 else ("", ())
            sizes = [size for size in shape if isinstance(size, int) and size >= 0]
            known = isinstance(dtype, str) and _DTYPES.fullmatch(dtype)
            count = math.prod(sizes) * _numpy(dtype).itemsize if known else _MOST + 1
            if len(sizes) != len(shape) or count > _MOST:
                self.close()
                raise RuntimeRefusedError(f"{self._title}'s process gave an invalid result: {str(item)[:100]}", rule="invalid-answer")
            found.append(np.frombuffer(self._bytes(count), _numpy(dtype)).reshape(sizes))
        return found

    def _line(self) -> bytes:
        looked = 0
        while (end := self._waiting.find(b"\n", looked)) < 0 and len(self._waiting) <= _LONGEST:
            looked = len(self._waiting)
            self._wait()
        line = bytes(self._waiting[: end if end >= 0 else None])
        del self._waiting[: len(line) + 1]
        return line

    def _bytes(self, count: int) -> bytes:
        while len(self._waiting) < count:
            self._wait()
        found = bytes(self._waiting[:count])
        del self._waiting[:count]
        return found

    def _wait(self) -> None:
        """More of the answer. Raises RuntimeRefusedError where none comes."""
        until = time.monotonic() + self._patience
        while not self._has_answer(max(0.0, min(_GLANCE, until - time.monotonic()))):
            if what := _describe_silence(self._printed, until, self._patience):
                printed = self._read_printed()
                self.close()
                raise RuntimeRefusedError(f"{self._title} {what}{quote_output(printed)}", rule="no-answer")
        try:
            part = self._process.stdout.read1(_CHUNK)  # type: ignore[union-attr]
        except ConnectionResetError:  # it ended before it read all of the question
            part = b""
        if not part:
            raise self._failure()
        self._waiting += part

    def _has_answer(self, seconds: float) -> bool:
        """Wait at most so many seconds, and say whether there is more of the answer, or its end."""
        if sys.platform != "win32":
            return bool(self._selector.select(seconds))
        import _winapi
        import msvcrt

        until = time.monotonic() + seconds  # selectors take no pipes there
        try:
            while not _winapi.PeekNamedPipe(msvcrt.get_osfhandle(self._process.stdout.fileno()))[0]:
                if time.monotonic() >= until:
                    return False
                time.sleep(_PAUSE)
        except BrokenPipeError:
            pass
        return True

    def _failure(self) -> RuntimeRefusedError:
        """Why the process is gone."""
        try:
            code = self._process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        printed = self._read_printed()
        self.close()
        rule = "process-killed" if code == -9 else "process-ended"  # of SIGKILL
        return RuntimeRefusedError(f"{self._title}'s process {describe_exit(code)}{quote_output(printed)}", rule=rule)

    def _read_printed(self) -> bytes:
        if self._printed.closed:
            return b""
        return read_end(self._printed)


def _describe_silence(printed: IO[bytes], until: float, patience: float) -> str:
    """Return in words why a process that does not answer is to be ended; "" as long as it may run."""
    if os.fstat(printed.fileno()).st_size > _LONGEST:
        return f"printed more than {_LONGEST:,} bytes"
    return f"did not answer within {patience:g} s" if time.monotonic() >= until else ""


def _numpy(dtype: str) -> np.dtype[Any]:
    return np.dtype(dtype) if dtype.startswith("|") else numpy_dtype(dtype)


class _Server:
    """A fork server: `serve` of child_loop.py, in a process of its own, with the environment and the folder of its start."""

    def __init__(self, program: Path) -> None:
        self._lock, self._silence = threading.Lock(), ""
        self._socket, theirs = socket.socketpair()
        with theirs:
            number = str(theirs.fileno())
            environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "OPENBLAS_NUM_THREADS": "1"}  # no threads: they would not be forked
            self._printed = temporary_file()
            self._process = subprocess.Popen(
                [sys.executable, "-P", _LOOP, number, str(program)],
                stdin=subprocess.DEVNULL, stdout=self._printed, stderr=self._printed, pass_fds=(int(number),), env=environment,
            )  # fmt: skip
        weakref.finalize(self, _end_process, self._process, self._socket, self._printed)

    def ask(self, message: bytes, patience: float, descriptors: Sequence[int] = ()) -> int | None:
        """Send a message and return the number in the answer; None if the process has ended, or is ended since no answer comes in time."""
        with self._lock:
            try:
                self.tell(message, descriptors)
                until = time.monotonic() + patience
                while not select.select([self._socket], [], [], max(0.0, min(_GLANCE, until - time.monotonic())))[0]:
                    if why := _describe_silence(self._printed, until, patience):
                        self._process.kill()
                        self._silence = why
                        return None
                return int(self._socket.recv(_MESSAGE))
            except (OSError, ValueError):
                return None

    def refusal(self, title: str) -> RuntimeRefusedError:
        """Why the process is gone, with what it printed."""
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_LAST_WORDS)
        printed = quote_output(read_end(self._printed))
        if self._silence:
            return RuntimeRefusedError(f"{title} {self._silence}{printed}", rule="no-answer")
        how = "" if code is None else f": its process {describe_exit(code)}"
        return RuntimeRefusedError(f"{title} cannot be started{how}{printed}", rule="not-started")

    def tell(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a message. kill() needs no lock for it, as the garbage collector may end a process while an answer is awaited."""
        socket.send_fds(self._socket, [message.ljust(_MESSAGE)], descriptors)


#: The running servers, by process and program: a forked copy of this process needs its own.
_SERVERS: dict[tuple[int, Path], _Server] = {}
_STARTING = threading.Lock()


class _Forked:
    """A process of a fork server, with what subprocess.Popen has of it."""

    def __init__(self, program: Path, title: str, printed: int, patience: float) -> None:
        key = os.getpid(), program
        self._code: int | None = None
        ours, theirs = socket.socketpair()
        with ours, theirs:
            descriptors = theirs.fileno(), printed
            with _STARTING:
                number = _SERVERS[key].ask(b"fork", patience, descriptors) if key in _SERVERS else None
                if number is None:  # there is none, or it was killed
                    _SERVERS[key] = _Server(program)
                    number = _SERVERS[key].ask(b"fork", patience, descriptors)
                self._server = _SERVERS[key]
            if number is None:
                raise self._server.refusal(title)
            self.pid = number
            self.stdin, self.stdout = ours.makefile("wb"), ours.makefile("rb")

    def wait(self, timeout: float = 0.0) -> int:
        """Return the exit code; the process is killed after `timeout` seconds."""
        if self._code is None:
            found = self._server.ask(b"end %d %.3f" % (self.pid, timeout), timeout + _LAST_WORDS)
            self._code = -signal.SIGKILL if found is None else found
        return self._code

    def kill(self) -> None:
        if self._code is None:
            self._code = -signal.SIGKILL
            with suppress(OSError):
                self._server.tell(b"drop %d" % self.pid)


def _kill_process(process: subprocess.Popen[bytes] | _Forked) -> None:
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):  # it leads no group, or is gone with all of it
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _end_process(process: subprocess.Popen[bytes] | _Forked, *others: Any) -> None:
    _kill_process(process)
    process.wait()
    for item in (*others, process.stdin, process.stdout):
        try:
            if item is not None:
                item.close()
        except OSError:  # what was written and not read
            pass


def process_memory(process: int | str = "self", *, at_most: bool = False) -> int:
    """Return the resident memory of a process in bytes, or its peak since forget_peak(); 0 if unknown (proc(5), status)."""
    word = "VmHWM:" if at_most else "VmRSS:"
    try:
        with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith(word)), 0)
    except OSError:
        return 0


def forget_peak(process: int | str = "self") -> None:
    """Let process_memory(at_most=True) count from now on (proc(5), clear_refs)."""
    with suppress(OSError), open(f"/proc/{process}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def runtime_package(module: str, install: str, purpose: str) -> Any:
    """The module of a package that runs models.

    Args:
        module: its name, such as "onnxruntime".
        install: what pip installs it by, such as "qconvert[check]".
        purpose: what the package does, as the end of "…, which".

    Raises:
        MissingPackageError: it is not installed, or cannot be imported here.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and (error.name or package).partition(".")[0] == package
        raise _missing_error(package, install, purpose, "is not installed" if absent else f"cannot be imported: {error}") from error


def require_package(module: str, install: str, purpose: str) -> None:
    """Raise MissingPackageError where a package is not installed, without importing it; the arguments are those of runtime_package()."""
    if find_spec(module) is None:
        raise _missing_error(module, install, purpose, "is not installed")


def _missing_error(package: str, install: str, purpose: str, state: str) -> MissingPackageError:
    remedy = f"Install it with: pip install '{install}'"
    return MissingPackageError(f"the package {package}, which {purpose}, {state}", remedy=remedy, rule="package-missing")


@contextmanager
def capture_stderr() -> Iterator[list[str]]:
    """Redirect standard error to the yielded list, which is filled at the end of the block."""
    found: list[str] = []
    saved = os.dup(2)
    with temporary_file() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            sink.seek(0)
            found.append(sink.read().decode(errors="replace"))
