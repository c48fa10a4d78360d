"""MobileNet v2 quantized for TensorRT by several tools: file size, products on integers, and outputs compared with the float network's.

    python benchmarks/tensorrt_peers.py [--modelopt PYTHON] [--calibrated N] [--samples N] [--markdown docs/measured/tensorrt.md]

The float network is that which fixtures/coral_tf2_mobilenet_v2_224_int8.tflite was quantized from, as far as its integers tell. Every tool
but the first row's, which keeps the integers of the file, calibrates with the same crops of two photographs, and is judged by others.
PYTHON is that of an environment with nvidia-modelopt (fixtures/make_modelopt.py says what else it needs). The files run in onnxruntime node
by node; the engines are built for SM89, not run.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from calibration import mobilenet
from measures import Array, SourceModel
from page import Section, cells, publish
from tensorrt_accuracy import Outcome, outcome, share, sqnr, stored_crops
from uint8_weights import FIXTURES

from qconvert import convert
from qconvert.calibration.files import calibrate_file
from qconvert.runtimes.tensorrt import Builder

MODEL = FIXTURES / "coral_tf2_mobilenet_v2_224_int8.tflite"
HEADER = [
    "tool",
    "KB",
    "products on integers",
    "real",
    "layers",
    "SQNR of the logits",
    "top-1 of the float network",
    "top-1 of LiteRT",
    "s",
]
#: onnxruntime's documentation of its TensorRT provider: symmetric, Quantize and Dequantize on weights too, biases as they are.
FOR_TENSORRT = {"ActivationSymmetric": True, "WeightSymmetric": True, "AddQDQPairToWeight": True, "QuantizeBias": False}
_MODELOPT = """
import sys, numpy as np
from modelopt.onnx.quantization import quantize
model, result, data, method, name = sys.argv[1:]
quantize(model, "int8", {name: np.load(data)}, method, calibration_eps=["cpu"], high_precision_dtype="fp32", output_path=result)
"""


def onnxruntime_way(model: Path, result: Path, feeds: list[dict[str, Array]]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._waiting = iter(feeds)

        def get_next(self) -> dict[str, Array] | None:
            return next(self._waiting, None)

    types = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    quantize_static(model, result, Reader(), per_channel=True, extra_options=FOR_TENSORRT, **types)


def modelopt_way(python: str, method: str, model: Path, result: Path, feeds: list[dict[str, Array]]) -> None:
    data = result.with_suffix(".npy")
    (name,) = feeds[0]
    np.save(data, np.concatenate([feed[name] for feed in feeds]))
    subprocess.run([python, "-c", _MODELOPT, str(model), str(result), str(data), method, name], check=True, capture_output=True)


def ways(
    options: argparse.Namespace, model: Path, result: Path, feeds: list[dict[str, Array]]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """What each tool is called, and what makes its file."""
    kept = {"target": "tensorrt", "io_layout": "nchw", "io": "float", "force": True}
    yield "the float network", lambda: result.write_bytes(model.read_bytes())
    yield "qconvert convert, the .tflite file's integers", lambda: convert(MODEL, result, **kept)
    for method in ("min-max", "entropy"):
        yield (
            f"qconvert calibrate, {method}",
            lambda method=method: calibrate_file(model, feeds, result, target="tensorrt", force=True, method=method),
        )
    yield "onnxruntime quantize_static, symmetric, min-max", lambda: onnxruntime_way(model, result, feeds)
    for method in ("max", "entropy") if options.modelopt else ():
        yield f"ModelOpt, {method}", lambda method=method: modelopt_way(options.modelopt, method, model, result, feeds)


def engine(path: Path, builder: Builder) -> list[str]:
    """Products on integers, in float, and all layers."""
    found = builder.build(path)
    if not found.built:
        return [str(found.to_error()), "", ""]
    within = {node: layer for layer in found.layers for node in layer.nodes}
    within |= {node: layer for layer in found.layers if layer.sums for node in layer.nodes}
    counts = {kept: Counter(node.operator for node, layer in within.items() if layer.integer is kept) for kept in (True, False)}
    said = [", ".join(f"{count[kind]} {kind}" for kind in ("Conv", "Gemm", "MatMul") if count[kind]) for count in counts.values()]
    return [*said, str(len(found.layers))]


def row(name: str, make: Callable[[], object], result: Path, builder: Builder, judge: Callable[[Path], list[str]]) -> list[str]:
    started = time.perf_counter()
    make()
    seconds = time.perf_counter() - started
    cut = [name, f"{result.stat().st_size / 1000:.0f}", *engine(result, builder), *judge(result), f"{seconds:.0f}"]
    print(cells(cut), flush=True)
    return cut


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--modelopt", default="", help="a Python that has nvidia-modelopt")
    parser.add_argument("--images", type=Path, default=FIXTURES / "images", help="a folder with .bmp files")
    parser.add_argument("--calibrated", type=int, default=50)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    source = SourceModel(MODEL.read_bytes(), threads=2)
    port = source.inputs[0]

    def real(stored: list[Array]) -> list[Array]:
        return [((value.astype(np.float32) - port.zero_point) * np.float32(port.scale)).transpose(0, 3, 1, 2) for value in stored]

    judged = stored_crops(source, options.images, options.samples)
    expected = np.array([source.run([value])[0].argmax() for value in judged])
    inputs = [np.ascontiguousarray(value) for value in real(judged)]
    builder = Builder()
    with tempfile.TemporaryDirectory() as folder:
        model, result = Path(folder, "float.onnx"), Path(folder, "result.onnx")
        mobilenet(model)
        exact = outcome(model, inputs)

        def judge(path: Path) -> list[str]:
            found: Outcome = outcome(path, inputs)
            return [f"{sqnr(exact.logits, found.logits):.1f} dB", share(found.top, exact.top), share(found.top, expected)]

        feeds = [{exact.name: np.ascontiguousarray(value)} for value in real(stored_crops(source, options.images, options.calibrated, 1))]
        lines = [row(name, make, result, builder, judge) for name, make in ways(options, model, result, feeds)]
    builder.close()
    note = f"{options.calibrated} crops to calibrate with, {options.samples} others to judge by. Engines for SM89: built, not run."
    publish(
        Section("TensorRT: MobileNet v2 next to other tools", HEADER, lines, note),
        options.markdown,
        "python benchmarks/tensorrt_peers.py",
        200,
    )


if __name__ == "__main__":
    main()
