"""The other end of runtimes/tflite_micro.py: the program that runs .tflite files in the micro interpreter (runtimes/child_loop.py runs it).
It imports nothing of qconvert.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

#: Arena sizes to try, in bytes. The package's own guess, ten times the file, is too small for small files with large activations.
_ARENAS = (2**21, 2**25, 2**29)
#: What the interpreter prints when an arena is too small.
_TOO_SMALL = ("Failed to resize buffer", "Failed to allocate", "arena")
_STDERR, _MOST = 2, 2**20


def start() -> Callable[..., tuple[dict[str, Any], Iterable[Any]]]:
    """Return what answers questions: load a file, or the last one again, and run it."""
    import ml_dtypes  # noqa: F401 - which tells numpy of bfloat16
    import numpy as np
    from tflite_micro import runtime

    model = Model(runtime.Interpreter)

    def describe(details: Callable[[int], Any], count: int) -> list[list[Any]]:
        return [[np.dtype(item["dtype"]).name, [int(size) for size in item["shape"]]] for item in map(details, range(count))]

    def answer(question: dict[str, Any], read: Callable[..., Any]) -> tuple[dict[str, Any], Iterable[Any]]:
        began = os.fstat(_STDERR).st_size
        try:
            if "load" in question:
                model.load(read("bytes", [question["load"]]))
                now = model.interpreter
                sides = ("inputs", now.get_input_details), ("outputs", now.get_output_details)
                return {name: describe(details, question[name]) for name, details in sides}, ()
            found = [np.array(value) for value in model.run([read(dtype, shape) for dtype, shape in question["run"]], question["outputs"])]
            return {"values": [[value.dtype.name, list(value.shape)] for value in found]}, found
        except (ValueError, RuntimeError) as error:
            lines = [line.strip() for line in read_printed(began).splitlines() if line.strip()]
            return {"refused": "; ".join(lines[:3]) or str(error)}, ()

    return answer


class Model:
    """A file in the micro interpreter."""

    def __init__(self, interpreter: Any) -> None:
        self.open = interpreter.from_bytes
        self.content = b""

    def load(self, content: bytes) -> None:
        """Load a file, or without content the last one again, into the smallest arena that holds it."""
        self.content = content or self.content  # the interpreter reads constants from these bytes
        for arena in _ARENAS:
            began = os.fstat(_STDERR).st_size
            try:
                self.interpreter = self.open(self.content, arena_size=arena + len(self.content))
                return
            except (ValueError, RuntimeError):
                if arena == _ARENAS[-1] or not any(words in read_printed(began) for words in _TOO_SMALL):
                    raise

    def run(self, values: list[Any], outputs: int) -> list[Any]:
        """Run once; return so many results."""
        for index, value in enumerate(values):
            self.interpreter.set_input(value, index)
        self.interpreter.invoke()
        return [self.interpreter.get_output(index) for index in range(outputs)]


def read_printed(began: int) -> str:
    """Return what was printed to standard error, which is a file, after so many bytes: it says more than exceptions."""
    return os.pread(_STDERR, _MOST, began).decode(errors="replace")
