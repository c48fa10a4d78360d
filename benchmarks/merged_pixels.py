"""Convolutions of few channels in LiteRT and in onnxruntime, there as they are and with pixels as channels (the pass merge_pixels).

    python benchmarks/merged_pixels.py [--runs N] [--markdown docs/measured/forms.md]

Models of one layer, one thread. Data are bytes: int8 in LiteRT and uint8 in onnxruntime, so that nothing is converted at the edges. The
last layers show what is left: the 144 products of a result cost more in a window of 9 taps than in one tap, since onnxruntime makes a
list of the address of each tap for every result, in every run (conv_symm of QLinearConv, math::Im2col of pointers).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from latency import time_forms
from page import Section, machine, publish

from qconvert.conversion.normalizing import normalize
from qconvert.conversion.saving import save
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.plugins import target_named

#: Size of the data, channels, results, size of the kernel, stride, groups. Sizes of height and width may differ.
Layer = tuple[int | tuple[int, int], int, int, int | tuple[int, int], int, int]
LAYERS: dict[str, Layer] = {
    "3x3 of 3 channels to 32, stride 2, 224x224": (224, 3, 32, 3, 2, 1),
    "7x7 of 3 channels to 64, stride 2, 224x224": (224, 3, 64, 7, 2, 1),
    "3x3 of 3 channels to 8, stride 2, 96x96": (96, 3, 8, 3, 2, 1),
    "3x3 of 1 channel to 8, stride 2, 96x96": (96, 1, 8, 3, 2, 1),
    "3x3 of 3 channels to 16, stride 2, 513x513": (513, 3, 16, 3, 2, 1),
    "3x3 of 3 channels to 32, stride 2, 299x299": (299, 3, 32, 3, 2, 1),
    "3x3 of 3 channels to 16, 32x32": (32, 3, 16, 3, 1, 1),
    "3x3 of 18 channels to 32, 32x32": (32, 18, 32, 3, 1, 1),
    "3x3 depthwise of 8 channels, 48x48": (48, 8, 8, 3, 1, 8),
    "5x5 depthwise of 8 channels, 48x48": (48, 8, 8, 5, 1, 8),
    "3x3 depthwise of 12 channels, 48x48": (48, 12, 12, 3, 1, 12),
    "3x3 of 16 channels to 16, 32x32": (32, 16, 16, 3, 1, 1),
    "1x1 of 144 channels to 16, 32x32": (32, 144, 16, 1, 1, 1),
    "3x3 of 4 channels to 16, 32x32": (32, 4, 16, 3, 1, 1),
    "1x1 of 36 channels to 16, 32x32": (32, 36, 16, 1, 1, 1),
}
MERGED = target_named("ort-x86-vnni")
PLAIN = MERGED.derive(name="plain", passes=tuple(name for name in MERGED.passes if name != "merge_pixels"))


def make_layer(layer: Layer, dtype: str) -> Graph:
    """Return a model of the layer whose data have a type; the float values are the same for each type."""
    size, channels, results, kernel, stride, group = layer
    (height, width), taps = np.broadcast_to(size, 2).tolist(), np.broadcast_to(kernel, 2)
    random, offset = np.random.default_rng(1), 128 if dtype == "uint8" else 0
    scales = random.uniform(0.001, 0.002, results).astype(np.float32)
    ends = -(-np.array([height, width]) // stride)
    padding = np.maximum((ends - 1) * stride + taps - (height, width), 0)  # as SAME
    before = padding // 2
    tensors = (
        Tensor("x", dtype, (1, height, width, channels), None, Quantization.per_tensor(0.02, offset - 8)),
        Tensor(
            "w", "int8", (results, channels // group, *taps.tolist()),
            random.integers(-127, 128, (results, channels // group, *taps)).astype(np.int8), Quantization.per_axis(scales, 0),
        ),
        Tensor("b", "int32", (results,), np.zeros(results, np.int32), Quantization.per_axis(scales * np.float32(0.02), 0)),
        Tensor("y", dtype, (1, *ends.tolist(), results), None, Quantization.per_tensor(0.05, offset)),
    )  # fmt: skip
    pads = tuple(np.concatenate([before, padding - before]).tolist())
    attributes = {"strides": (stride, stride), "dilations": (1, 1), "pads": pads, "group": group, "data_format": "channels_last"}
    return Graph("layer", {item.name: item for item in tensors}, (Op("Conv", ("x", "w", "b"), ("y",), attributes),), ("x",), ("y",))


def line(layer: str, runs: int, folder: Path) -> list[str]:
    source, graph = make_layer(LAYERS[layer], "int8"), make_layer(LAYERS[layer], "uint8")
    save(source, folder / "layer.tflite", "tflite", force=True)
    data = np.random.default_rng(2).integers(0, 256, source["x"].static_shape or ()).astype(np.uint8)
    signed = (data.astype(np.int16) - 128).astype(np.int8)
    files = {target.name: folder / f"{target.name}.onnx" for target in (PLAIN, MERGED)}
    for target in (PLAIN, MERGED):
        save(normalize(graph, target)[0], files[target.name], "onnx", force=True)
    times, (source_result, *results) = time_forms(folder / "layer.tflite", signed, files, data, runs)
    equal = np.array_equal(*results) and np.array_equal(source_result.astype(np.int16) + 128, results[0])
    return [layer, *times, "all" if equal else "no"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [line(layer, options.runs, Path(folder)) for layer in LAYERS]
    head = ["layer", "LiteRT (µs)", "onnxruntime (µs)", "with merged pixels (µs)", "results equal"]
    note = (
        f"One thread, least processor time of {options.runs} turns, each with the call from Python. The last four layers have no merged "
        "pixels: windows of 9 taps cost about 1.5 ns a tap and result more than the same number of products in one tap. " + machine()
    )
    publish(Section("Convolutions of few channels", head, rows, note), options.markdown, "python benchmarks/merged_pixels.py")


if __name__ == "__main__":
    main()
