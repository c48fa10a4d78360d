"""A uint8 .tflite model to ONNX and to .tflite again, by the default commands and for int8, next to the original in LiteRT.

    python benchmarks/uint8_weights.py [--model FILE] [--images FOLDER] [--samples N] [--markdown docs/measured/round-trips.md]

The weights of such a model, of TensorFlow 1, have one scale and a zero point of their own. By the default commands they come back as they
were; for int8 (`--target tflite`) they lose the zero point, which is exact for most channels. Inputs are crops of photographs, some turned
and made lighter or darker, and random numbers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from measures import Array, SourceModel
from page import Section, publish

from qconvert import convert

FIXTURES = Path(__file__).parent.parent / "fixtures"
HEADER = ["commands", "inputs", "outputs equal", "largest difference", "same top-1", "ties among the others"]


def crops(images: Path, size: int, count: int, seed: int = 0) -> list[Array]:
    """Square crops of the photographs in a folder, scaled, half of them mirrored, at 70% to 130% of their brightness; stored as uint8."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    pictures = [Image.open(path).convert("RGB") for path in sorted(images.glob("*.bmp"))]
    found = []
    for index in range(count):
        picture = pictures[index % len(pictures)]
        side = int(min(picture.size) * rng.uniform(0.6, 1))
        left, top = (int(rng.integers(0, whole - side + 1)) for whole in picture.size)
        pixels = np.asarray(picture.resize((size, size), box=(left, top, left + side, top + side)), np.float32)
        if rng.random() < 0.5:
            pixels = pixels[:, ::-1]
        found.append(np.clip(pixels * rng.uniform(0.7, 1.3), 0, 255).astype(np.uint8)[None])
    return found


def compare(original: SourceModel, result: SourceModel, inputs: list[Array]) -> list[str]:
    """Equal elements, the largest difference in steps, inputs with the same largest output, and ties among the others."""
    equal, largest, same, ties = [], 0, 0, 0
    for values in inputs:
        a, b = (model.run([values])[0].astype(int).reshape(-1) for model in (original, result))
        equal.append(float((a == b).mean()))
        largest = max(largest, int(np.abs(a - b).max()))
        agree = a.argmax() == b.argmax()
        same += int(agree)
        ties += int(not agree and (a[b.argmax()] == a.max() or b[a.argmax()] == b.max()))
    share = float(np.mean(equal))
    return ["all" if share == 1 else f"{share:.4%}", f"{largest} LSB", f"{same} of {len(inputs)}", str(ties)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=FIXTURES / "coral_mobilenet_v2_224_uint8.tflite")
    parser.add_argument("--images", type=Path, default=FIXTURES / "images", help="a folder with .bmp files")
    parser.add_argument("--samples", type=int, default=500, help="inputs of each sort")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    original = SourceModel(options.model.read_bytes(), threads=2)
    shape = tuple(int(size) for size in original.inputs[0].shape if size is not None)
    rng = np.random.default_rng(1)
    sorts = {
        "crops": crops(options.images, shape[1], options.samples),
        "random": [rng.integers(0, 256, shape).astype(np.uint8) for _ in range(options.samples)],
    }
    lines = []
    with tempfile.TemporaryDirectory() as name:
        between, result = Path(name, "model.onnx"), Path(name, "model.tflite")
        convert(options.model, between)
        for words, target in (("tflite2onnx, onnx2tflite", ""), ("tflite2onnx, onnx2tflite --target tflite", "tflite")):
            convert(between, result, target=target, force=True)
            model = SourceModel(result.read_bytes(), threads=2)
            lines += [[words, f"{len(inputs)} {sort}", *compare(original, model, inputs)] for sort, inputs in sorts.items()]
    note = (
        f"{options.model.name} in LiteRT with its default kernels. A tie: what one calls the largest is equally large in the other. "
        "Random numbers are no picture: no class is more likely than 25 of 255."
    )
    part = Section("uint8 weights to ONNX and back", HEADER, lines, note)
    publish(part, options.markdown, "python benchmarks/uint8_weights.py", 200)


if __name__ == "__main__":
    main()
