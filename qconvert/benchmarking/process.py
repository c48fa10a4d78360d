"""The other end of benchmark.py: the program that loads one model file in its runtime and runs it (runtimes/child_loop.py runs it)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any


def start(folder: str) -> Callable[..., tuple[dict[str, Any], list[Any]]]:
    """Return what answers "load" with what runs the file and how long its first run takes, "times" with how long so many runs take.

    Args:
        folder: that qconvert is in.
    """
    sys.path.insert(0, folder)
    import ml_dtypes  # noqa: F401 - which tells numpy of bfloat16 and 4 bits

    from qconvert.errors import QConvertError

    timed = _Timed()

    def answer(question: dict[str, Any], read: Callable[..., Any]) -> tuple[dict[str, Any], list[Any]]:
        inputs = {name: read(*described) for name, described in question.get("inputs", {}).items()}
        try:
            return (timed.load(question["load"], inputs) if "load" in question else timed.times(question["times"])), []
        except QConvertError as error:
            return {"refused": str(error.reason), "remedy": error.remedy}, []
        except Exception as error:  # of a plugin, or of a runtime: this process is there to hold it
            return {"refused": f"{type(error).__name__}: {error}"}, []

    return answer


def _random(inputs: Mapping[str, tuple[str, tuple[Any, ...]]]) -> dict[str, Any]:
    """Inputs of the types and sizes that a runtime states, for files that qconvert does not read; a dynamic size is 1."""
    import numpy as np

    from qconvert.arithmetic.storage import numpy_dtype

    rng = np.random.default_rng(0)
    sizes = {name: [size if isinstance(size, int) and size > 0 else 1 for size in shape] for name, (_, shape) in inputs.items()}
    return {name: rng.random(sizes[name]).astype(numpy_dtype(dtype)) for name, (dtype, _) in inputs.items()}


class _Timed:
    """A loaded file."""

    def load(self, question: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        """Loads a file twice: the first time shows its memory, and brings what the runtime loads once, the second takes its time."""
        from dataclasses import replace

        from qconvert.checking.file_in_runtime import describe_runtime, side_of
        from qconvert.errors import RuntimeRefusedError
        from qconvert.plugins.plugin_files import register_file
        from qconvert.runtimes.packages import forget_peak, process_memory

        self.inputs = inputs
        if question["threads"]:
            os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(question["threads"])))  # before PyTorch is loaded
        for file in question["plugins"]:
            register_file(Path(file))
        side = side_of(Path(question["path"]), question["format"], question["kernels"], question["options"])
        side.file = replace(side.file, threads=question["threads"])
        with suppress(ImportError):
            import_module(side.runtime.package.replace("-", "_") or "qconvert")
        forget_peak()
        self.held = process_memory()
        model = side.open()
        if unjudged := getattr(model, "unjudged", ""):
            raise RuntimeRefusedError(unjudged, rule="not-run")
        if question["random"]:
            self.inputs = _random(model.inputs)
        model.run(self.inputs)
        del model
        began = time.perf_counter()
        self.model = side.open()
        self.model.run(self.inputs)
        return {"ran": describe_runtime(side, self.model), "note": self.model.note, "first": time.perf_counter() - began}

    def times(self, times: int) -> dict[str, Any]:
        """Runs the file so many times. The time of a run is the runtime's own figure where it reports one."""
        from dataclasses import asdict

        from qconvert.plugins import Timing
        from qconvert.runtimes.packages import process_memory

        timed = getattr(self.model, "time_runs", None)
        if timed is None:
            bind = getattr(self.model, "bind", lambda inputs: partial(self.model.run, inputs))
            found = Timing.of(bind(self.inputs), times)
        else:
            found = timed(self.inputs, times)
        own = max(0, process_memory(at_most=True) - self.held) if timed is None else 0
        return {**asdict(found), "memory": found.memory or own}
