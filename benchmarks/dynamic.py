"""Dynamic range models (integer weights, real activations) in the forms that ONNX has for them: size, latency, distance from LiteRT.

    python benchmarks/dynamic.py MODELS.tflite ... [--runs N] [--markdown docs/measured/forms.md]

real: weights in 8 bits, DequantizeLinear before the operator, which computes in float. keep, exact: activations are rounded as
LiteRT's kernels round them, row by row. keep, fast: DynamicQuantizeLinear, which rounds a tensor at a time, in the forms that onnxruntime
fuses.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from measures import SourceModel, interleaved_latency
from page import Section, machine, publish

from qconvert import convert
from qconvert.runtimes.onnxruntime import OnnxRuntime

HEADER = [
    "model",
    "threads",
    "form",
    "file (KB)",
    "LiteRT's file (KB)",
    "onnxruntime (ms)",
    "LiteRT (ms)",
    "ratio",
    "distance, % of the range",
]
FORMS = {
    "real": {},
    "keep, exact": {"dynamic": "keep"},
    "keep, fast": {"dynamic": "keep", "numerics": "fast"},
}


def lines(source: Path, threads: int, runs: int, folder: Path) -> list[list[str]]:
    litert = SourceModel(source.read_bytes(), threads)
    rng = np.random.default_rng(0)
    values = [rng.normal(0, 1, [size or 1 for size in port.shape]).astype(port.dtype) for port in litert.inputs]
    sessions = {}
    for form, options in FORMS.items():
        result = folder / f"{source.parent.name}.{form}.onnx"
        convert(source, result, force=True, **options)
        sessions[form] = (result, OnnxRuntime(result, threads))
    feeds = {form: dict(zip(session.inputs, values, strict=True)) for form, (_, session) in sessions.items()}
    work = {form: (lambda form=form, session=session: session.session.run(None, feeds[form])) for form, (_, session) in sessions.items()}
    times = interleaved_latency({"LiteRT": lambda: litert.run(values), **work}, runs)
    own = litert.run(values)
    found = []
    for form, (result, session) in sessions.items():
        outputs = list(session.run(feeds[form]).values())
        distance = max(float(np.abs(a - b).max() / max(np.ptp(a), 1e-9)) for a, b in zip(own, outputs, strict=True))
        before, after = times["LiteRT"][1], times[form][1]
        sizes = [str(path.stat().st_size // 1000) for path in (result, source)]
        label = source.parent.name if source.stem == "dynamic" else source.stem
        found.append([label, str(threads), form, *sizes, f"{after:.3f}", f"{before:.3f}", f"{after / before:.2f}", f"{100 * distance:.3g}"])
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = [line for path in options.models for threads in (1, 2) for line in lines(path, threads, options.runs, Path(name))]
    note = f"Best of {options.runs} runs in turns, target ort-x86, random input; distance of the outputs from LiteRT's. " + machine()
    publish(Section("Dynamic range", HEADER, found, note), options.markdown, "python benchmarks/dynamic.py MODELS", 200)


if __name__ == "__main__":
    main()
