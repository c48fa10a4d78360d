"""QDQ against QOperator: the same model in both forms, in onnxruntime, and how long the way between them takes.

    python benchmarks/onnx2onnx.py [--models FOLDER] [--runs N] [--markdown docs/measured/round-trips.md]

Models are .tflite files, converted to QDQ first, and .onnx files. Latencies are measured in turns, with one thread.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measures import interleaved_latency
from page import Section, publish

from qconvert import QConvertError, convert, diff, load
from qconvert.runtimes.onnxruntime import OnnxRuntime

FIXTURES = Path(__file__).parent.parent / "fixtures"
HEADER = ["model", "QDQ (ms)", "QOperator (ms)", "ratio", "outputs equal", "graph after QDQ - QOperator - QDQ", "conversion (ms)"]


def measure(model: Path, folder: Path, runs: int) -> list[str] | None:
    """One line of the table; None if the model is not covered."""
    first, second, third = (folder / f"{model.stem}.{form}.onnx" for form in ("qdq", "qoperator", "again"))
    try:
        convert(model, first, form="qdq")
    except QConvertError:
        return None
    started = time.perf_counter()
    convert(first, second, form="qoperator")
    seconds = time.perf_counter() - started
    convert(second, third, form="qdq")
    sessions = [OnnxRuntime(path.read_bytes()) for path in (first, second)]
    inputs = random_inputs(sessions[0])
    a, b = (session.run(inputs) for session in sessions)
    equal = statistics.fmean(float((a[name] == b[name]).mean()) for name in a)
    found = interleaved_latency({"qdq": lambda: sessions[0].run(inputs), "qoperator": lambda: sessions[1].run(inputs)}, runs)
    times = [found[name][1] for name in ("qdq", "qoperator")]
    changes = len(diff(load(first), load(third)))
    graph = "equal" if not changes else f"{changes} differences"
    return [model.stem, *(f"{value:.3f}" for value in times), f"{times[1] / times[0]:.2f}", f"{equal:.4%}", graph, f"{seconds * 1e3:.0f}"]


def random_inputs(session: OnnxRuntime) -> dict[str, Any]:
    """Random values of each input's type; sizes known only at run time are 1."""
    random, values = np.random.default_rng(0), {}
    for name, (dtype, shape) in session.inputs.items():
        sizes = [size if isinstance(size, int) and size > 0 else 1 for size in shape]
        if "int" in dtype:
            limits = np.iinfo(dtype)
            values[name] = random.integers(max(limits.min, -128), min(limits.max, 255), sizes, endpoint=True).astype(dtype)
        else:
            values[name] = random.normal(size=sizes).astype(dtype)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, nargs="*", default=[FIXTURES], help="folders with .tflite and .onnx files")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    paths = [path for folder in options.models for path in sorted(folder.iterdir()) if path.suffix in (".tflite", ".onnx")]
    with tempfile.TemporaryDirectory() as name:
        found = [line for path in paths if (line := measure(path, Path(name), options.runs)) is not None]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    note = f"onnxruntime on the CPU, 1 thread, best of {options.runs} runs in turns. {machine}."
    part = Section("QDQ and QOperator", HEADER, found, note)
    publish(part, options.markdown, "python benchmarks/onnx2onnx.py")


if __name__ == "__main__":
    main()
