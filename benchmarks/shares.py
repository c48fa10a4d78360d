"""Which share of a run onnxruntime spends on requantizing, joining and adding, by its own profile.

    python benchmarks/shares.py [MODELS.tflite ...] [--runs N] [--markdown docs/measured/forms.md]

Without models: the .tflite fixtures that have additions, joins or conversions between quantizations, and the networks of networks.py.
Shares are those of the time in kernels, of the least time of each node over the runs; one thread.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from measures import profile_nodes
from networks import shufflenet, yolo
from page import Section, publish

from qconvert import QConvertError, convert
from qconvert.runtimes.onnxruntime import OnnxRuntime

FIXTURES = Path(__file__).parent.parent / "fixtures"
#: Columns of the table: nodes of the graph that onnxruntime runs.
GROUPS = {
    "QuantizeLinear, DequantizeLinear": ("QuantizeLinear", "DequantizeLinear"),
    "Concat": ("Concat", "QLinearConcat"),
    "QLinearAdd": ("QLinearAdd",),
    "Cast, Mul, Add, Clip": ("Cast", "Mul", "Add", "Clip"),
    "Transpose, Reshape": ("Transpose", "Reshape"),
    "Resize": ("Resize",),
}


def shares(model: Path, runs: int, folder: Path) -> tuple[float, dict[str, float]]:
    """Milliseconds in kernels, and the share of each group; empty if no group has a node."""
    random, feeds = np.random.default_rng(0), {}
    for item in OnnxRuntime(model).session.get_inputs():
        sizes = [size if isinstance(size, int) else 1 for size in item.shape]
        dtype = item.type.removeprefix("tensor(").removesuffix(")")
        real = dtype == "float"
        feeds[item.name] = random.normal(size=sizes).astype(np.float32) if real else random.integers(0, 100, sizes).astype(dtype)
    times = profile_nodes(model, feeds, runs, folder)
    total = sum(duration for _, _, duration in times)
    found = {group: sum(duration for _, kind, duration in times if kind in kinds) / total for group, kinds in GROUPS.items()}
    return total / 1000, found if any(found.values()) else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = options.models or sorted(FIXTURES.glob("*.tflite"))
        if not options.models:
            for label, data in (("YOLOv8-like", yolo()), ("ShuffleNet-like", shufflenet())):
                models.append(folder / f"{label}.tflite")
                models[-1].write_bytes(data)
        for path in models:
            try:
                convert(path, folder / f"{path.stem}.onnx", force=True)
            except QConvertError:
                continue
            total, found = shares(folder / f"{path.stem}.onnx", options.runs, folder)
            if any(found.get(group) for group in list(GROUPS)[:4]):
                lines.append([path.stem, f"{total:.2f}", *(f"{100 * share:.1f}%" if share else "" for share in found.values())])
    note = (
        "onnxruntime's profile on the CPU less what it adds to each node, 1 thread, target ort-x86, least of "
        f"{options.runs} runs of each node, on a busy machine; nodes of less than a microsecond count little or nothing. Cast, Mul, Add, "
        "Clip: additions in float64, activations, and what a model has of these itself."
    )
    part = Section("Shares of latency", ["model", "in kernels (ms)", *GROUPS], lines, note)
    publish(part, options.markdown, "python benchmarks/shares.py", 220)


if __name__ == "__main__":
    main()
