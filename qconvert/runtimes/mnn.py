"""Runs a .mnn file in MNN, in a child process: what MNN cannot do ends the process that it runs in.

MNN takes and gives real values alone: inputs and outputs are those of the float model that the file was made of. Parent and child talk
through pipes (mnn_child.py): lines of JSON with bytes of arrays behind them, nothing that would be run when it is read.
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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import RuntimeRefusedError
from qconvert.formats.mnn.child import how_it_ended, require_installed, said
from qconvert.graph import Array
from qconvert.plugins import ModelFile

__all__ = ["Child", "MNNModel", "open_model"]

_CHILD = Path(__file__).with_name("mnn_child.py")
#: Seconds for which an answer is waited for.
_PATIENCE = 600.0
#: Seconds for which a process whose pipes are closed may still run.
_LAST_WORDS = 10.0
#: The longest line and the most bytes of arrays that an answer may have.
_LONGEST, _MOST = 2**22, 2**33
_CHUNK = 2**20
#: MNN's names of types -> numpy's.
_SPATIAL = 4  # dimensions of data that MNN packs by channels inside a network
_TYPES = {"float": "float32", "double": "float64", "int": "int32", "int64": "int64", "uint8": "uint8"}
_DTYPES = frozenset((*_TYPES.values(), "int8", "bool"))


class MNNModel:
    """A .mnn file loaded in MNN, or a part of it.

    Args:
        path: the file.
        inputs, outputs: names of the tensors where it is cut; the file's own if there are none.
        child: the process that runs it; a new one if there is none.
        packed: those of the inputs that MNN has packed by channels there, as between spatial operators.

    Attributes:
        inputs: name -> (dtype, shape), in order; a size that is open is a text.
        outputs: likewise, but MNN does not tell their sizes.
        note: what a user should know of how it runs.

    Raises:
        MissingPackageError: MNN is not installed.
        RuntimeRefusedError: MNN does not take the file, or its process ended.
    """

    def __init__(
        self,
        path: Path,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        child: Child | None = None,
        packed: Collection[str] = (),
    ) -> None:
        self._child, self._packed = child or Child(), packed
        found = self._child.asked({"load": {"path": str(path.resolve()), "inputs": list(inputs), "outputs": list(outputs)}})
        try:
            self._model = int(found["model"])
            self.inputs = {str(name): (_TYPES[dtype], _sizes(shape)) for name, dtype, shape in found["inputs"]}
            self.outputs: dict[str, tuple[str, tuple[Any, ...]]] = {str(name): ("float32", ()) for name in found["outputs"]}
        except (KeyError, TypeError, ValueError) as error:
            raise RuntimeRefusedError(f"MNN says of the file what is not understood: {str(found)[:300]}", file=str(path)) from error
        self.note = f"MNN {str(found.get('version', ''))[:20]} ran on this machine's CPU, in a process of its own"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once. Inputs and outputs are real values by name."""
        values = [np.asarray(inputs[name], dtype, "C") for name, (dtype, _) in self.inputs.items()]
        packed = [name in self._packed and value.ndim == _SPATIAL for name, value in zip(self.inputs, values, strict=True)]
        described = [[value.dtype.name, list(value.shape), how] for value, how in zip(values, packed, strict=True)]
        found = self._child.asked({"run": self._model, "values": described}, values)
        return dict(zip(self.outputs, self._child.arrays(found.get("values")), strict=False))

    def close(self) -> None:
        """Ends the process, of whatever else it runs too."""
        self._child.close()


def _sizes(shape: Sequence[int]) -> tuple[int | str, ...]:
    return tuple(int(size) if int(size) > 0 else "?" for size in shape)


class Child:
    """A process in which MNN runs, and its pipes.

    Raises:
        MissingPackageError: MNN is not installed.
    """

    def __init__(self) -> None:
        require_installed("runs .mnn files")
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._printed
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
            raise RuntimeRefusedError(f"MNN's process gave an answer that is none: {line[:100]!r}")
        if "error" in found:
            raise RuntimeRefusedError(f"MNN refuses the model: {str(found['error'])[:300]}{said(self._all_printed())}")
        return found

    def arrays(self, described: Any) -> list[Array]:
        """The arrays behind an answer, as it describes them."""
        found = []
        if not isinstance(described, list):
            self.close()
            raise RuntimeRefusedError("MNN's process gave an answer without results")
        for item in described:
            dtype, shape = item if isinstance(item, list) and len(item) == 2 else ("", ())
            sizes = [size for size in shape if isinstance(size, int) and size >= 0]
            count = math.prod(sizes) * np.dtype(dtype).itemsize if dtype in _DTYPES else _MOST + 1
            if len(sizes) != len(shape) or count > _MOST:
                self.close()
                raise RuntimeRefusedError(f"MNN's process gave a result that is none: {str(item)[:100]}")
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
        until = time.monotonic() + _PATIENCE
        while not self._selector.select(max(0.0, until - time.monotonic())):
            if time.monotonic() >= until:
                printed = self._all_printed()
                self.close()
                raise RuntimeRefusedError(f"MNN did not answer within {_PATIENCE:.0f} s{said(printed)}")
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
        return RuntimeRefusedError(f"MNN's process {how_it_ended(code)}{said(printed)}")

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


def open_model(file: ModelFile) -> MNNModel:
    """See plugins.Runtime; there is one set of kernels."""
    return MNNModel(file.path)
