"""Quantized networks of PyTorch and TFLite as ONNX files in TVM, next to onnxruntime in the same run: latency, and equal integers.

    python benchmarks/tvm_latency.py [--markdown docs/tvm.md]

It needs the plugin: pip install ./plugins/qconvert-tvm. Both runtimes take turns, one run each, with one thread; medians are given.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from page import machine

import qconvert
from qconvert.plugin import ModelFile, load
from qconvert.plugins import kernels_named
from qconvert.testing import random_inputs

FIXTURES = Path(__file__).parent.parent / "fixtures"
CLASSIFIER = FIXTURES / "torch" / "classifier"
RUNS, WARM = 50, 5
#: What it is called -> the file, and options of reading.
MODELS: dict[str, tuple[Path, dict[str, Any]]] = {
    "classifier, PyTorch state_dict": (CLASSIFIER / "state_eager_fbgemm.pth", {"graph": CLASSIFIER / "float.pt2"}),
    "classifier, PyTorch PT2E": (CLASSIFIER / "pt2e_x86.pt2", {}),
    "ResNet8 int8, TFLite": (FIXTURES / "tiny_resnet_cifar10_int8.tflite", {}),
    "keyword spotting int8, TFLite": (FIXTURES / "tiny_kws_dscnn_int8.tflite", {}),
    "MobileNet v1 0.25 uint8, TFLite": (FIXTURES / "coral_mobilenet_v1_025_128_uint8.tflite", {}),
    "MobileNet v2 1.0 int8, TFLite": (FIXTURES / "coral_tf2_mobilenet_v2_224_int8.tflite", {}),
}
BEGIN, END = "<!-- latency: begin (benchmarks/tvm_latency.py) -->", "<!-- latency: end -->"


def measured(source: Path, options: dict[str, Any], folder: Path) -> str:
    """The columns of a model after its name."""
    path = folder / "model.onnx"
    qconvert.convert(source, path, force=True, **options)
    models, started = {}, {}
    for name in ("onnxruntime", "tvm"):
        runtime, kernels = kernels_named(name)
        begin = time.perf_counter()
        models[name] = runtime.open(ModelFile(path, kernels))
        started[name] = time.perf_counter() - begin
    given = random_inputs(load(path))
    seconds: dict[str, list[float]] = {name: [] for name in models}
    results = {}
    for _ in range(WARM + RUNS):
        for name, model in models.items():
            begin = time.perf_counter()
            results[name] = model.run(given)
            seconds[name].append(time.perf_counter() - begin)
    pairs = [(results["onnxruntime"][name], value) for name, value in results["tvm"].items()]
    equal = float(np.mean([np.isclose(one, other, rtol=1e-5, atol=1e-6 if one.dtype.kind == "f" else 0).mean() for one, other in pairs]))
    median = {name: 1000 * statistics.median(values[WARM:]) for name, values in seconds.items()}
    return f"{median['onnxruntime']:.2f} ms | {median['tvm']:.2f} ms | {started['tvm']:.0f} s | {100 * equal:.1f}%"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="the page whose table is written again")
    page = parser.parse_args().markdown
    lines = ["| network | onnxruntime | TVM | TVM compiles in | equal outputs |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for name, (source, options) in MODELS.items():
            lines.append(f"| {name} | {measured(source, options, Path(folder))} |")
            print(lines[-1], flush=True)
    if page is not None:
        before, _, rest = page.read_text().partition(BEGIN)
        note = f"One thread, {machine()}Both took turns in one process."
        page.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n\n{note}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
