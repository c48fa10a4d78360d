"""TFLite's int8 LSTM, step by step over a sequence: LiteRT, its exact form in onnxruntime, also unrolled, and the fast one.

    python benchmarks/recurrent.py [--runs N] [--markdown docs/measured/recurrent.md]

Layers have random weights; a run is a sequence of 50 steps, with states carried from run to run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measures import interleaved_latency
from page import Section, machine, publish

from qconvert import convert
from qconvert.streaming import Session

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from lstm_files import Lstm

HEADER = ["inputs", "cells", "form", "best (µs a step)", "median (µs a step)", "vs. LiteRT", "outputs that differ", "largest difference"]
STEPS = 50
SIZES = ((28, 20), (257, 80), (257, 128))


def lines(inputs: int, cells: int, runs: int, folder: Path) -> list[list[str]]:
    source = folder / f"{cells}.tflite"
    source.write_bytes(Lstm(steps=STEPS, inputs=inputs, cells=cells, cell_clip=10.0, data=(0.002, -3)).file())
    sessions = {"LiteRT": Session(source)}
    forms = {"exact": {}, "exact, unrolled": {"unroll": STEPS}, "fast": {"numerics": "fast"}}
    for form, options in forms.items():
        result = folder / f"{cells}.{form}.onnx"
        convert(source, result, **options)
        sessions[f"onnxruntime, {form}"] = Session(result)
    rng = np.random.default_rng(0)
    feeds = [rng.integers(-128, 128, (1, STEPS, inputs)).astype(np.int8) for _ in range(10)]
    given = {form: [_one(session, feed).astype(int) for feed in feeds] for form, session in sessions.items()}
    work: dict[str, Callable[[], object]] = {form: (lambda session=session: _one(session, feeds[0])) for form, session in sessions.items()}
    times = interleaved_latency(work, runs)
    found = []
    for form, (median, best) in times.items():
        off = np.abs(np.array(given[form]) - np.array(given["LiteRT"]))
        ratio = f"{best / times['LiteRT'][1]:.2f}"
        spent = [f"{1000 * value / STEPS:.1f}" for value in (best, median)]
        found.append([str(inputs), str(cells), form, *spent, ratio, f"{(off > 0).mean():.1%}", str(off.max())])
    return found


def _one(session: Session, feed: np.ndarray) -> np.ndarray:
    return next(iter(session.run({next(iter(session.inputs)): feed}).values()))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        found = [line for inputs, cells in SIZES for line in lines(inputs, cells, options.runs, Path(name))]
    note = (
        f"{options.runs} runs of each form in turns, 1 thread. Exact is integer arithmetic in float64 in a Scan, unrolled the same step by "
        "step in the graph (`-O unroll=50`), fast an LSTM in float (`--numerics fast`). Differences are those of 10 sequences, with "
        "states carried; the sums of these weights saturate in "
        "the two larger layers, which the fast form does not do. " + machine(load)
    )
    publish(Section("Integer LSTM", HEADER, found, note), options.markdown, "python benchmarks/recurrent.py", 200)


if __name__ == "__main__":
    main()
