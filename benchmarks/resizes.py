"""Linear Resizes of bytes to aligned corners in LiteRT and in onnxruntime, there as Resize of float values and as products of matrices.

    python benchmarks/resizes.py [--runs N] [--markdown docs/measured/forms.md]

Models of one operator, one thread. The bounds of formats/onnx/ops/space.py say which form is written; here both are.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
from latency import time_forms
from page import Section, machine, publish

from qconvert import convert
from qconvert.conversion.saving import save
from qconvert.formats.onnx.ops import space
from qconvert.graph import Graph, Op, Quantization, Tensor

#: Size of the data and of the result, channels.
CASES = ((33, 513, 21), (33, 257, 21), (17, 129, 64), (65, 513, 21), (65, 257, 19), (33, 129, 21), (65, 129, 21))
#: Form -> the bounds with which it is written.
FORMS = {"Resize": (10**6, 0), "products": (1, 10**6)}


def line(case: tuple[int, int, int], runs: int, folder: Path) -> list[str]:
    size, wanted, channels = case
    quantization, source = Quantization.per_tensor(0.05, 120), folder / "layer.tflite"
    tensors = (
        Tensor("x", "uint8", (1, size, size, channels), None, quantization),
        Tensor("sizes", "int64", (2,), np.array([wanted, wanted])),
        Tensor("y", "uint8", (1, wanted, wanted, channels), None, quantization),
    )
    attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners", "data_format": "channels_last"}
    graph = Graph("layer", {item.name: item for item in tensors}, (Op("Resize", ("x", "sizes"), ("y",), attributes),), ("x",), ("y",))
    save(graph, source, "tflite", force=True)
    data, files = np.random.default_rng(2).integers(0, 256, (1, size, size, channels)).astype(np.uint8), {}
    for form, (lines, columns) in FORMS.items():
        files[form] = folder / f"{form}.onnx"
        with patch.multiple(space, _LEAST_LINES=lines, _MOST_COLUMNS=columns):
            convert(source, files[form], target="ort-x86-vnni", force=True)
    (times, results), rows = time_forms(source, data, files, data, runs), (wanted - 1) // (size - 1)
    written = rows >= space._LEAST_LINES and size <= space._MOST_COLUMNS
    equal = all(np.array_equal(results[0], item) for item in results[1:])
    name = f"{size}x{size} to {wanted}x{wanted} of {channels} channels"
    return [name, *times, "products" if written else "Resize", "all" if equal else "no"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [line(case, options.runs, Path(folder)) for case in CASES]
    head = ["operator", "LiteRT (µs)", "Resize (µs)", "products (µs)", "written", "results equal"]
    note = f"One thread, least processor time of {options.runs} turns, each with the call from Python; uint8. " + machine()
    publish(Section("Linear Resizes to aligned corners", head, rows, note), options.markdown, "python benchmarks/resizes.py")


if __name__ == "__main__":
    main()
