"""Quantized networks of TFLite in ncnn, with int8 layers and in float, next to LiteRT in the same run: equal outputs and latency.

    python benchmarks/ncnn_latency.py [--markdown plugins/qconvert-ncnn/README.md]

It needs the plugin: pip install ./plugins/qconvert-ncnn. The runtimes take turns, one run each, with one thread; medians are given.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from page import machine

import qconvert
from qconvert.plugin import ModelFile
from qconvert.plugins import kernels_named
from qconvert.testing import random_inputs

FIXTURES = Path(__file__).parent.parent / "fixtures"
RUNS, WARM = 50, 5
MODELS = {
    "ResNet8 int8": "tiny_resnet_cifar10_int8",
    "autoencoder int8": "tiny_ad_toycar_int8",
    "visual wake words int8": "tiny_vww_mobilenet_int8",
    "person detection int8": "tflm_person_detect_int8",
    "keyword spotting int8": "tiny_kws_dscnn_int8",
    "MobileNet v1 0.25 uint8": "coral_mobilenet_v1_025_128_uint8",
    "MobileNet v2 int8": "coral_tf2_mobilenet_v2_224_int8",
}
TARGETS = ("ncnn", "ncnn-real")
BEGIN, END = "<!-- measured: begin (benchmarks/ncnn_latency.py) -->", "<!-- measured: end -->"


def in_ncnn(path: Path) -> Callable[[], Any]:
    """One run of a network with numbers in place of its inputs, one thread, float32."""
    import ncnn

    net = ncnn.Net()
    net.opt.use_vulkan_compute, net.opt.num_threads = False, 1
    for name in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage", "use_bf16_packed"):
        setattr(net.opt, name, False)
    net.load_param(str(path))
    net.load_model(str(path.with_suffix(".bin")))
    graph = qconvert.load(path)
    data = np.random.default_rng(0).normal(0, 1, (graph[graph.inputs[0]].static_shape or ())[1:]).astype(np.float32)
    image, (given,), (wanted,) = ncnn.Mat(data).clone(), net.input_names(), net.output_names()

    def run() -> None:
        extractor = net.create_extractor()
        extractor.input(given, image)
        extractor.extract(wanted)

    return run


def in_litert(path: Path) -> Callable[[], Any]:
    """One run in LiteRT, as checks open it: it refuses the file of person detection as that is."""
    runtime, kernels = kernels_named("litert")
    model, given = runtime.open(ModelFile(path, kernels)), random_inputs(qconvert.load(path))
    given = {name: value[:1] for name, value in given.items()}
    return lambda: model.run(given)


def latencies(runs: list[Callable[[], Any]]) -> list[float]:
    """Medians in milliseconds, of runs that take turns."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(WARM + RUNS):
        for place, run in enumerate(runs):
            begin = time.perf_counter()
            run()
            seconds[place].append(time.perf_counter() - begin)
    return [1000 * statistics.median(values[WARM:]) for values in seconds]


def measured(source: Path, folder: Path) -> tuple[list[str], list[str]]:
    """The columns of a model in both tables."""
    equal, times, runs = list[str](), list[str](), list[Callable[[], Any]]()
    sizes = []
    for target in TARGETS:
        path = folder / f"{target}.param"
        qconvert.convert(source, path, target=target, force=True)
        report = qconvert.check(source, path, per_op=True)
        (output,) = report.outputs
        off = (
            ""
            if output.equal == 1
            else f", {output.largest:.0f} step{'s' * (output.largest > 1)}"
            if target == "ncnn-real"
            else f", {output.sqnr_db:.0f} dB"
        )
        equal.append(f"{100 * output.equal:.1f}%{off}{'' if report.passed else ', not equal'}")
        runs.append(in_ncnn(path))
        sizes.append(path.with_suffix(".bin").stat().st_size / 1024)
    *both, litert = latencies([*runs, in_litert(source)])
    times = [*(f"{took:.2f} ms, {size:.0f} KiB" for took, size in zip(both, sizes, strict=True)), f"{litert:.2f} ms"]
    return equal, times


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="the page whose tables are written again")
    page = parser.parse_args().markdown
    equal = ["| model | outputs equal, `ncnn` | `ncnn-real` |", "|---|---|---|"]
    times = ["| model, one thread | `ncnn` | `ncnn-real` | LiteRT |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for name, file in MODELS.items():
            for lines, columns in zip((equal, times), measured(FIXTURES / f"{file}.tflite", Path(folder)), strict=True):
                lines.append(f"| {name} | {' | '.join(columns)} |")
                print(lines[-1], flush=True)
    if page is not None:
        before, _, rest = page.read_text().partition(BEGIN)
        note = f"{machine()}The runtimes took turns in one process."
        page.write_text(f"{before}{BEGIN}\n" + "\n".join([*equal, "", *times]) + f"\n\n{note}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
