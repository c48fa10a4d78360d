"""Convolutions with uint8 weights of which int8 holds all but one, in LiteRT and in onnxruntime, there as they are and with int8 weights
(the pass split_wide_weights).

    python benchmarks/wide_weights.py [--runs N] [--markdown docs/measured/forms.md]

Models of one layer, one thread; data, weights and results are uint8, as in networks that TensorFlow trained for them. The pass has no
bounds here, so that the last layers show where it would not pay.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
from latency import time_forms
from page import Section, machine, publish

from qconvert.conversion.normalizing import normalize
from qconvert.conversion.saving import save
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.passes import wide_weights
from qconvert.plugins import target_named

#: Layer -> size of the data, channels, results, stride, whether depthwise 3x3 (else 1x1), the channel of the weight beyond int8.
LAYERS = {
    "1x1 of 8 channels to 48, 257x257": (257, 8, 48, 1, False, 3),
    "1x1 of 16 channels to 96, 65x65": (65, 16, 96, 1, False, 3),
    "1x1 of 24 channels to 144, 56x56": (56, 24, 144, 1, False, 13),
    "1x1 of 80 channels to 480, 33x33": (33, 80, 480, 1, False, 40),
    "1x1 of 160 channels to 960, 7x7": (7, 160, 960, 1, False, 40),
    "3x3 depthwise of 144 channels, 56x56": (56, 144, 144, 1, True, 40),
    "3x3 depthwise of 192 channels, 33x33": (33, 192, 192, 1, True, 40),
    "3x3 depthwise of 480 channels, 33x33": (33, 480, 480, 1, True, 40),
    "3x3 depthwise of 960 channels, 7x7": (7, 960, 960, 1, True, 40),
    "1x1 of 8 channels to 16, 64x64": (64, 8, 16, 1, False, 3),
    "1x1 of 32 channels to 32, 32x32": (32, 32, 32, 1, False, 13),
    "1x1 of 480 channels to 80, 33x33": (33, 480, 80, 1, False, 40),
    "3x3 depthwise of 96 channels, 65x65": (65, 96, 96, 1, True, 40),
    "3x3 depthwise of 144 channels, stride 2, 56x56": (56, 144, 144, 2, True, 40),
}
SIGNED = target_named("ort-x86-vnni")
PLAIN = SIGNED.derive(name="plain", passes=tuple(name for name in SIGNED.passes if name != "split_wide_weights"))
UNBOUNDED = {"_LEAST_RESULTS": 0, "_LEAST_DEPTHWISE": 0, "_LEAST_ELEMENTS": 0}


def make_layer(layer: str) -> Graph:
    """Return a model of the layer."""
    size, channels, results, stride, depthwise, wide = LAYERS[layer]
    random, kernel, end = np.random.default_rng(1), 3 if depthwise else 1, -(-size // stride)
    weights = random.integers(12, 256, (results, 1 if depthwise else channels, kernel, kernel)).astype(np.uint8)
    weights[(wide, 0) if depthwise else (results // 2, wide)] = 0  # less the zero point: -140
    tensors = (
        Tensor("x", "uint8", (1, size, size, channels), None, Quantization.per_tensor(0.02, 120)),
        Tensor("w", "uint8", weights.shape, weights, Quantization.per_tensor(0.0015, 140)),
        Tensor(
            "b", "int32", (results,), np.zeros(results, np.int32), Quantization.per_tensor(float(np.float32(0.02) * np.float32(0.0015)))
        ),
        Tensor("y", "uint8", (1, end, end, results), None, Quantization.per_tensor(0.05, 128)),
    )
    short = (kernel - stride) // 2
    pads = (short, short, kernel - stride - short, kernel - stride - short) if depthwise else (0, 0, 0, 0)
    attributes = {"strides": (stride, stride), "dilations": (1, 1), "pads": pads, "group": channels if depthwise else 1}
    op = Op("Conv", ("x", "w", "b"), ("y",), {**attributes, "data_format": "channels_last"})
    return Graph("layer", {item.name: item for item in tensors}, (op,), ("x",), ("y",))


def line(layer: str, runs: int, folder: Path) -> list[str]:
    graph = make_layer(layer)
    save(graph, folder / "layer.tflite", "tflite", force=True)
    data = np.random.default_rng(2).integers(0, 256, graph["x"].static_shape or ()).astype(np.uint8)
    bounded = normalize(graph, SIGNED)[0]
    files = {target.name: folder / f"{target.name}.onnx" for target in (PLAIN, SIGNED)}
    with patch.multiple(wide_weights, **UNBOUNDED):
        for target in (PLAIN, SIGNED):
            save(normalize(graph, target)[0], files[target.name], "onnx", force=True)
    times, results = time_forms(folder / "layer.tflite", data, files, data, runs)
    equal = all(np.array_equal(results[0], item) for item in results[1:])
    written = any(op.kind == "Concat" for op in bounded.ops)
    return [layer, *times, "yes" if written else "no", "all" if equal else "no"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [line(layer, options.runs, Path(folder)) for layer in LAYERS]
    head = ["layer", "LiteRT (µs)", "onnxruntime (µs)", "with int8 weights (µs)", "written", "results equal"]
    note = (
        f"One thread, least processor time of {options.runs} turns, each with the call from Python. uint8 weights with zero point 140, of "
        "which int8 holds all but one less their zero point. Written: whether ort-x86-vnni has the int8 form. " + machine()
    )
    publish(Section("Convolutions of weights beyond int8", head, rows, note), options.markdown, "python benchmarks/wide_weights.py")


if __name__ == "__main__":
    main()
