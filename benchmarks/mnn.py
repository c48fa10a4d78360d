"""Models of TFLite and ONNX to MNN: layers that are int8, integers that are equal, operators by themselves, and outputs of whole models.

    python benchmarks/mnn.py FILE ... [--images FOLDER] [--inputs 500] [--float-layers NAMES] [--operators 2] [--markdown FILE.md]

For each file: how many of the layers that have weights the .mnn runs in int8, and how many integers of weights are equal to those that were
asked for, as it is read back; how many operators give the source's integers, fed with the source's own tensors (`qconvert check`); and over
all inputs, top-1 (a class that ties with the best one in the source's integers counts) and SQNR of the outputs in MNN next to those of the
source in its own runtime. Inputs are crops of the images with their
brightness changed, each tenth of them noise; without images, or where the model takes none, noise with the quantization of the input.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from qconvert import check, convert, load
from qconvert.arithmetic import dequantize, quantize
from qconvert.errors import QConvertError
from qconvert.graph import Array, Graph, Tensor, numpy_dtype
from qconvert.plugins import ModelFile, format_of, runtime_of
from qconvert.runtimes.mnn import MNNModel

HEAD = ("model", "layers int8", "equal integers of weights", "operators equal", "elements of the others", "check", "top-1", "SQNR")
IMAGES = (".bmp", ".jpg", ".jpeg", ".png", ".ppm")
SHARE_OF_NOISE = 10
CHANNELS = (1, 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--inputs", type=int, default=500)
    parser.add_argument("--operators", type=int, default=2, help="inputs on which operators are compared by themselves")
    parser.add_argument("--float-layers", default="")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    images = (
        [Image.open(path).convert("RGB") for path in sorted(options.images.rglob("*")) if path.suffix in IMAGES] if options.images else []
    )
    rows = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    for path in options.files:
        rows.append(f"| {path.name} | {' | '.join(_row(path, images, options))} |")
        print(rows[-1], flush=True)
    if options.markdown:
        options.markdown.write_text("\n".join(rows) + "\n")


def _row(path: Path, images: list[Image.Image], options: argparse.Namespace) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "out")
        try:
            graph = load(path)
            report = convert(path, result, result_format="mnn", float_layers=options.float_layers)
        except QConvertError as error:
            return (" ".join(error.reason.split())[:120], *[""] * (len(HEAD) - 2))
        said = " ".join(str(change) for change in report.changes)
        layers = sum(op.kind in ("Conv", "Gemm", "ConvTranspose", "MatMul") for op in graph.ops)
        found = re.search(r"(\d+) of \d+ layers are int8, with (\d+) equal", said)
        int8, integers = found.groups() if found else ("?", "?")
        model = result / "model.mnn"
        checked = check(path, model, samples=options.operators, per_op=True)
        equal = sum(item.equal == 1 for item in checked.operators)
        others = [item.equal for item in checked.operators if item.equal < 1]
        share = f"{100 * min(others):.2f} to {100 * max(others):.2f}%" if others else ""
        top, sqnr = _outputs(path, model, graph, images, options.inputs)
        return f"{int8} of {layers}", f"{int(integers):,}", f"{equal} of {len(checked.operators)}", share, checked.verdict, top, sqnr


def _outputs(path: Path, made: Path, graph: Graph, images: list[Image.Image], count: int) -> tuple[str, str]:
    """Runs with the same best class, and the SQNR over all inputs, of the first output."""
    runtime, kernels = runtime_of(format_of(path).name)
    source, model = runtime.open(ModelFile(path, kernels)), MNNModel(made)
    own, output = next(iter(source.outputs)), graph[graph.outputs[0]]
    same, signal, noise, runs = 0, 0.0, 0.0, 0
    for feed in _inputs(graph, images, count):
        expected = _real(output, source.run(dict(zip(source.inputs, feed.values(), strict=True)))[own])
        real = {name: _real(graph[own_name], feed[own_name]) for name, own_name in zip(model.inputs, graph.inputs, strict=True)}
        actual = model.run(real)[next(iter(model.outputs))].astype(np.float64).reshape(expected.shape)
        same += int(expected.reshape(-1)[actual.argmax()] == expected.max())
        signal, noise, runs = signal + float((expected**2).sum()), noise + float(((expected - actual) ** 2).sum()), runs + 1
    return f"{same} of {runs}", f"{10 * np.log10(signal / noise):.1f} dB" if noise else "equal"


def _real(tensor: Tensor, stored: Array) -> Array:
    q = tensor.quantization
    return (dequantize(stored, q) if q is not None and stored.dtype.kind in "iu" else stored).astype(np.float64)


def _inputs(graph: Graph, images: list[Image.Image], count: int) -> Iterator[dict[str, Array]]:
    rng = np.random.default_rng(2026)
    for number in range(count):
        yield {name: _input(graph[name], images, number, rng) for name in graph.inputs}


def _input(tensor: Tensor, images: list[Image.Image], number: int, rng: np.random.Generator) -> Array:
    shape = tuple(size if isinstance(size, int) else 1 for size in tensor.shape or ())
    last = len(shape) == 4 and shape[-1] in CHANNELS
    plane = (shape[1:3] if last else shape[2:]) if len(shape) == 4 else ()
    if not images or len(shape) != 4 or shape[-1 if last else 1] not in CHANNELS or number % SHARE_OF_NOISE == SHARE_OF_NOISE - 1:
        share = rng.uniform(0, 1, shape)
    else:
        share = _crop(images[number % len(images)], plane, shape[-1 if last else 1], rng)
        share = (share if last else share.transpose(2, 0, 1))[None]
    q = tensor.quantization
    if q is None or tensor.dtype not in ("int8", "uint8"):
        return (share * 2 - 1).astype(numpy_dtype(tensor.dtype)) if q is None else quantize(share * 2 - 1, q, tensor.dtype)
    return (np.rint(share * 255) - (128 if tensor.dtype == "int8" else 0)).astype(tensor.dtype)


def _crop(image: Image.Image, plane: tuple[int, ...], channels: int, rng: np.random.Generator) -> Array:
    """A square part of an image, its brightness changed: values from 0 to 1, channels last."""
    side = int(min(image.size) * rng.uniform(0.4, 1))
    left, top = (int(rng.integers(0, size - side + 1)) for size in image.size)
    part = image.crop((left, top, left + side, top + side)).resize((plane[1], plane[0]), Image.Resampling.BILINEAR)
    part = part if channels == 3 else part.convert("L")
    return np.clip(np.asarray(part, np.float64).reshape(*plane, channels) * rng.uniform(0.6, 1.4) / 255, 0, 1)


if __name__ == "__main__":
    sys.exit(main())
