"""There and back: .tflite models to ONNX and to .tflite again, next to the originals in LiteRT.

    python benchmarks/tflite_round_trip.py [--models FOLDER] [--samples N] [--runs N] [--markdown docs/measured/round-trips.md]

The way there is `tflite2onnx --target generic --numerics fast`, the way back `onnx2tflite --target tflite-same`. Latencies are measured
in turns, with one thread.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from pathlib import Path

import numpy as np
from measures import SourceModel, interleaved_latency, random_inputs
from page import Section, publish

from qconvert import QConvertError, convert, diff, load
from qconvert.formats.tflite.probe import accepted_copy
from qconvert.runtimes.litert import KERNELS, LiteRT

FIXTURES = Path(__file__).parent.parent / "fixtures"
HEADER = ["model", "graph", "outputs equal (default / reference kernels)", "size", "ratio", "original (ms)", "result (ms)", "ratio"]


def measure(model: Path, folder: Path, options: argparse.Namespace) -> list[str] | None:
    """One line of the table; None if the model is not covered."""
    between, again = folder / f"{model.stem}.onnx", folder / f"{model.stem}.tflite"
    try:
        convert(model, between, target="generic", numerics="fast")
    except QConvertError:
        return None
    convert(between, again, target="tflite-same")
    files = [accepted_copy(model.read_bytes()), again.read_bytes()]
    changes = len(diff(load(model), load(again)))
    inputs = random_inputs(SourceModel(files[0]), options.samples)
    shares = [equal(*(LiteRT(data, kernels) for data in files), inputs) for kernels in KERNELS]
    runners = [SourceModel(data) for data in files]
    found = interleaved_latency({"original": lambda: runners[0].run(inputs[0]), "result": lambda: runners[1].run(inputs[0])}, options.runs)
    times = [found[name][1] for name in ("original", "result")]
    return [
        model.stem,
        "equal" if not changes else f"{changes} differences",
        " / ".join(f"{share:.4%}" for share in shares),
        f"{len(files[1]):,}",
        f"{len(files[1]) / len(files[0]):.3f}",
        *(f"{value:.3f}" for value in times),
        f"{times[1] / times[0]:.2f}",
    ]


def equal(original: LiteRT, result: LiteRT, inputs: list[list[np.ndarray]]) -> float:
    """The share of output elements that have the same bits."""
    pairs = [
        (np.ascontiguousarray(a), np.ascontiguousarray(b))
        for values in inputs
        for a, b in zip(original.run_in_order(values), result.run_in_order(values), strict=True)
    ]
    return statistics.fmean(float((a.view(f"V{a.itemsize}") == b.view(f"V{b.itemsize}")).mean()) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, nargs="*", default=[FIXTURES], help="folders with .tflite files")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    paths = [path for folder in options.models for path in sorted(folder.glob("*.tflite"))]
    with tempfile.TemporaryDirectory() as name:
        found = [line for path in paths if (line := measure(path, Path(name), options)) is not None]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    note = f"LiteRT, {options.samples} random samples; 1 thread, best of {options.runs} runs in turns. {machine}."
    part = Section("TFLite to ONNX to TFLite", HEADER, found, note)
    publish(part, options.markdown, "python benchmarks/tflite_round_trip.py", 200)


if __name__ == "__main__":
    main()
