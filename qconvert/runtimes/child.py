"""A runtime in a child process, since what it cannot do may end the process that it runs in, or take forever.

Parent and child talk through pipes: lines of JSON with bytes of arrays behind them, nothing that would be run when it is read.
"""

from __future__ import annotations

import json
import math
import selectors
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import RuntimeRefusedError
from qconvert.files.processes import how_it_ended, said
from qconvert.graph import Array

__all__ = ["Child"]

#: Seconds for which a process whose pipes are closed may still run.
_LAST_WORDS = 10.0
#: The longest line and the most bytes of arrays that an answer may have.
_LONGEST, _MOST = 2**26, 2**33
_CHUNK = 2**20
#: Types of arrays that an answer may have.
_DTYPES = frozenset(("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"))


class Child:
    """A process that runs a program beside this module, and its pipes.

    Args:
        program: its file, which imports nothing of qconvert.
        title: of what runs in it, as in errors.
        patience: seconds for which an answer is waited for.
        arguments: of the program.
    """

    def __init__(self, program: Path, title: str, patience: float, arguments: Sequence[str] = ()) -> None:
        self._title, self._patience = title, patience
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(program), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._printed
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        self._waiting = b""
        self._end = weakref.finalize(self, _ended, self._process, self._selector, self._printed)

    def close(self) -> None:
        self._end()

    def asked(self, question: Mapping[str, Any], values: Sequence[Array] = ()) -> Mapping[str, Any]:
        """The answer to a message; its arrays follow (arrays()). Raises RuntimeRefusedError if there is none, or it is an error."""
        given = self._process.stdin
        assert given is not None
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
        except ValueError:
            found = None
        if not isinstance(found, dict):
            self.close()
            raise RuntimeRefusedError(f"{self._title}'s process gave an answer that is none: {line[:100]!r}")
        if "error" in found:
            raise RuntimeRefusedError(f"{self._title} refuses the model: {str(found['error'])[:300]}{said(self._all_printed())}")
        return found

    def arrays(self, described: Any) -> list[Array]:
        """The arrays behind an answer, as it describes them."""
        found = []
        if not isinstance(described, list):
            self.close()
            raise RuntimeRefusedError(f"{self._title}'s process gave an answer without results")
        for item in described:
            dtype, shape = item if isinstance(item, list) and len(item) == 2 else ("", ())
            sizes = [size for size in shape if isinstance(size, int) and size >= 0]
            count = math.prod(sizes) * np.dtype(dtype).itemsize if dtype in _DTYPES else _MOST + 1
            if len(sizes) != len(shape) or count > _MOST:
                self.close()
                raise RuntimeRefusedError(f"{self._title}'s process gave a result that is none: {str(item)[:100]}")
            found.append(np.frombuffer(self._bytes(count), dtype).reshape(sizes))
        return found

    def _line(self) -> bytes:
        while b"\n" not in self._waiting and len(self._waiting) <= _LONGEST:
            self._wait()
        line, _, self._waiting = self._waiting.partition(b"\n")
        return line

    def _bytes(self, count: int) -> bytes:
        parts, have = [self._waiting[:count]], min(count, len(self._waiting))
        self._waiting = self._waiting[count:]
        while have < count:
            self._wait()
            parts.append(self._waiting[: count - have])
            self._waiting = self._waiting[count - have :]
            have += len(parts[-1])
        return b"".join(parts)

    def _wait(self) -> None:
        """More of the answer. Raises RuntimeRefusedError where none comes."""
        until = time.monotonic() + self._patience
        while not self._selector.select(max(0.0, until - time.monotonic())):
            if time.monotonic() >= until:
                printed = self._all_printed()
                self.close()
                raise RuntimeRefusedError(f"{self._title} did not answer within {self._patience:.0f} s{said(printed)}")
        part = self._process.stdout.read1(_CHUNK)  # type: ignore[union-attr]
        if not part:
            raise self._failure()
        self._waiting += part

    def _failure(self) -> RuntimeRefusedError:
        """Why the process is gone."""
        try:
            code = self._process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        printed = self._all_printed()
        self.close()
        return RuntimeRefusedError(f"{self._title}'s process {how_it_ended(code)}{said(printed)}")

    def _all_printed(self) -> bytes:
        if self._printed.closed:
            return b""
        self._printed.seek(0)
        return self._printed.read(_LONGEST)


def _ended(process: subprocess.Popen[bytes], *others: Any) -> None:
    process.kill()
    process.wait()
    for item in (*others, process.stdin, process.stdout):
        try:
            item.close()
        except OSError:  # what was written and not read
            pass
