"""Quantized classifiers for TensorRT next to their affine originals: distance of the logits, and top-1 agreement with LiteRT.

    python benchmarks/tensorrt_accuracy.py [MODEL.tflite ...] [--images FOLDER] [--samples N] [--markdown docs/measured/tensorrt.md]

The ONNX files run in onnxruntime, on the CPU, node by node, which is what the engine's operators compute but for the order of float32
arithmetic. The logits are what the last Softmax reads, in float; they are compared with those of the affine file that `qconvert
convert` writes, run likewise. Top-1 is that of the outputs; of equally large ones the first.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measures import Array, SourceModel
from page import Section, cells, publish
from uint8_weights import FIXTURES, crops

from qconvert import convert

MODELS = ("coral_tf2_mobilenet_v2_224_int8", "coral_mobilenet_v2_224_uint8", "tiny_resnet_cifar10_int8")
SHIFTED = "`--target tensorrt`"
#: What each row is called, and how its file is made.
FORMS: dict[str, dict[str, Any]] = {
    SHIFTED: {"target": "tensorrt"},
    f"{SHIFTED[:-1]} -O zero_points=symmetric`": {"target": "tensorrt", "activations": "symmetric"},
    f"{SHIFTED[:-1]} -O pairs=sparse`": {"target": "tensorrt", "pairs": "sparse"},
}
HEADER = ["model", "file", "SQNR of the logits", "largest difference", "top-1 of the affine file", "top-1 of LiteRT", "seconds"]


@dataclass(frozen=True)
class Outcome:
    """Of each input: the logits and the index of the largest output; the name of the file's input."""

    logits: Array
    top: Array
    name: str


def outcome(path: Path, inputs: list[Array], *, optimized: bool = False) -> Outcome:
    """Runs a file of one input that ends in a Softmax."""
    import onnx
    import onnxruntime

    model = onnx.load(path)
    logits = next(node.input[0] for node in reversed(model.graph.node) if node.op_type == "Softmax")
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(logits))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    found = [session.run(None, {name: value}) for value in inputs]
    return Outcome(np.stack([one[-1].reshape(-1) for one in found]), np.array([one[0].argmax() for one in found]), name)


def stored_crops(source: SourceModel, images: Path, count: int, seed: int = 0) -> list[Array]:
    """Pixels as the integers of the model's input, whose range is that of pixels."""
    port = source.inputs[0]
    size = port.shape[1]
    assert size is not None
    pixels = crops(images, size, count, seed)
    return [(value.astype(int) - 128).astype(np.int8) if port.dtype == "int8" else value for value in pixels]


def sqnr(reference: Array, found: Array) -> float:
    """Signal to noise in decibels."""
    exact = reference.astype(np.float64)
    return float(10 * np.log10((exact**2).sum() / max(((exact - found) ** 2).sum(), 1e-30)))


def share(found: Array, expected: Array) -> str:
    return f"{100 * float((found == expected).mean()):.1f}%"


def rows(path: Path, images: Path, samples: int, folder: Path) -> list[list[str]]:
    source = SourceModel(path.read_bytes(), threads=2)
    inputs = stored_crops(source, images, samples)
    expected = np.array([source.run([value])[0].argmax() for value in inputs])
    affine = folder / "affine.onnx"
    convert(path, affine, target="generic", force=True)
    reference = outcome(affine, inputs)
    lines = [[path.stem, "affine", "reference", "", "", share(reference.top, expected), ""]]

    def add(name: str, file: Path, *, optimized: bool = False) -> None:
        started = time.perf_counter()
        found = outcome(file, inputs, optimized=optimized)
        far = f"{float(np.abs(found.logits - reference.logits).max()):.2f}"
        measured = [f"{sqnr(reference.logits, found.logits):.1f} dB", far, share(found.top, reference.top), share(found.top, expected)]
        lines.append([path.stem, name, *measured, f"{time.perf_counter() - started:.0f}"])
        print(cells(lines[-1]), flush=True)

    add("affine, with onnxruntime's fused kernels", affine, optimized=True)
    for name, options in FORMS.items():
        convert(path, folder / "model.onnx", force=True, **options)
        add(name, folder / "model.onnx")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--images", type=Path, default=FIXTURES / "images", help="a folder with .bmp files")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = options.models or [FIXTURES / f"{name}.tflite" for name in MODELS]
        lines = [line for path in models for line in rows(path, options.images, options.samples, Path(folder))]
    note = (
        f"{options.samples} crops of two photographs, half of them mirrored, at 70% to 130% of their brightness. The second row of a model "
        "is one and the same file in another order of float32 arithmetic. No engine was run."
    )
    publish(Section("TensorRT: logits and top-1", HEADER, lines, note), options.markdown, "python benchmarks/tensorrt_accuracy.py", 200)


if __name__ == "__main__":
    main()
