"""Models with states, step by step: time of a step in LiteRT and, as ONNX, in onnxruntime, and whether all steps give the same.

    python benchmarks/streaming.py MODELS.tflite ... [--runs N] [--markdown docs/measured/recurrent.md]

Each network is also run in forms that show what takes the time: the interpreter and the session without qconvert.streaming around; states
as arrays that Python hands over, which onnxruntime copies; and states stored as the source has them (target generic), which it quantizes
again in each step where its kernels want another type.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measures import Array, interleaved_latency
from page import Section, machine, publish

from qconvert import convert
from qconvert.runtimes.onnxruntime import OnnxRuntime, states_of
from qconvert.streaming import Session

HEADER = ["model", "form", "best (µs a step)", "median (µs a step)", "next to LiteRT in a Session", "nodes that run", "equal steps"]
STEPS = 50


def interpreted(path: Path, feed: dict[str, Array]) -> Callable[[], object]:
    """A step of LiteRT's own interpreter."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=1)
    interpreter.allocate_tensors()
    given, wanted = interpreter.get_input_details(), interpreter.get_output_details()

    def step() -> object:
        for item, value in zip(given, feed.values(), strict=True):
            interpreter.set_tensor(item["index"], value)
        interpreter.invoke()
        return [interpreter.get_tensor(item["index"]) for item in wanted]

    return step


def handed_over(path: Path, feed: dict[str, Array]) -> Callable[[], object]:
    """A step of onnxruntime's session, whose states are arrays that go in and out."""
    session = OnnxRuntime(path.read_bytes()).session
    states = states_of(session)
    names = [item.name for item in session.get_outputs()]
    values: dict[str, Any] = {item.input: np.array(item.first) for item in states}

    def step() -> object:
        results = dict(zip(names, session.run(None, {**feed, **values}), strict=True))
        values.update((item.input, results[item.output]) for item in states)
        return results

    return step


def nodes(path: Path, folder: Path) -> str:
    """How many nodes onnxruntime runs, and how many of these convert between quantizations."""
    import onnx

    OnnxRuntime(path.read_bytes(), save_optimized=folder / "optimized.onnx")
    found = Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)
    return f"{sum(found.values())}, {found['QuantizeLinear'] + found['DequantizeLinear']} of them Q or DQ"


def lines(source: Path, runs: int, folder: Path) -> list[list[str]]:
    results = {target: folder / f"{source.stem}.{target}.onnx" for target in ("ort-x86", "ort-x86-vnni", "generic")}
    for target, result in results.items():
        convert(source, result, target=target, force=True)
    session = Session(source)
    rng = np.random.default_rng(0)
    feeds = [
        {name: rng.integers(-128, 128, shape).astype(dtype) if "int" in dtype else rng.normal(size=shape).astype(dtype)
         for name, (dtype, shape) in session.inputs.items()} for _ in range(STEPS)
    ]  # fmt: skip
    expected = [session.run(feed) for feed in feeds]
    sessions = {f"onnxruntime in a Session, {target}": Session(result) for target, result in results.items()}
    equal = {form: sum(_same(one.run(feed), own) for feed, own in zip(feeds, expected, strict=True)) for form, one in sessions.items()}
    work: dict[str, Callable[[], object]] = {
        "LiteRT in a Session": lambda: session.run(feeds[0]),
        "LiteRT's interpreter": interpreted(source, feeds[0]),
        **{form: (lambda one=one: one.run(feeds[0])) for form, one in sessions.items()},
        "onnxruntime, states handed over, ort-x86": handed_over(results["ort-x86"], feeds[0]),
        "onnxruntime, states handed over, generic": handed_over(results["generic"], feeds[0]),
    }
    times = interleaved_latency(work, runs)
    found = []
    for form, (median, best) in times.items():
        target = form.rpartition(", ")[2]
        counted = nodes(results[target], folder) if target in results else ""
        same = f"{equal[form]} of {STEPS}" if form in equal else ""
        ratio = f"{best / times['LiteRT in a Session'][1]:.2f}"
        found.append([source.stem, form, f"{1000 * best:.1f}", f"{1000 * median:.1f}", ratio, counted, same])
    return found


def _same(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=3000)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = [line for path in options.models for line in lines(path, options.runs, Path(name))]
    note = (
        f"{options.runs} steps of each form in turns, 1 thread, calls from Python counted. A Session carries states in bound buffers and "
        "copies none. With the states as the source has them (generic), onnxruntime converts each of them in every step. What remains "
        "next to LiteRT is some 0.2 µs for each node of onnxruntime before it does anything, kernels for images on single columns, and "
        "9 µs of Python. " + machine()
    )
    publish(Section("Models with states", HEADER, found, note), options.markdown, "python benchmarks/streaming.py MODELS", 200)


if __name__ == "__main__":
    main()
