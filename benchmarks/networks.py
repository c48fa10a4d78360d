"""Two networks of operators that are seldom in the other models here, as int8 .tflite files: in LiteRT, and in onnxruntime as ONNX.

    python benchmarks/networks.py [--runs N] [--keep FOLDER] [--markdown docs/measured/forms.md]

YOLOv8-like: convolutions with x * sigmoid(x), splits, residual additions, concatenations, a chain of maximum pools, and data resized to
the double by the nearest. ShuffleNet-like: halves of channels, depthwise convolutions, and shuffles of channels as Reshape, Transpose,
Reshape. Weights are random; scales keep the activations alive.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from measures import SourceModel, interleaved_latency
from page import Section, publish

from qconvert import audit, convert
from qconvert.runtimes.onnxruntime import OnnxRuntime

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from tflite_models import OpSpec, TensorSpec, model

HEADER = ["network", "threads", "LiteRT (ms)", "onnxruntime (ms)", "ratio", "outputs equal", "operators in float"]


class Network:
    """An int8 network that grows from its input x, channels last."""

    def __init__(self, *shape: int) -> None:
        self._rng = np.random.default_rng(7)
        self._tensors = [TensorSpec("x", shape, "int8", 0.02, -3)]
        self._ops: list[OpSpec] = []

    def shape(self, name: str) -> tuple[int, ...]:
        return self._spec(name).shape

    def _spec(self, name: str) -> TensorSpec:
        return next(tensor for tensor in self._tensors if tensor.name == name)

    def _add(self, shape: tuple[int, ...], scale: float, point: int) -> str:
        self._tensors.append(TensorSpec(f"t{len(self._tensors)}", shape, "int8", scale, point))
        return self._tensors[-1].name

    def const(self, data: Any, dtype: str = "int32", scale: Any = None, axis: int = 0) -> str:
        array = np.asarray(data, dtype)
        points = None if scale is None else 0
        self._tensors.append(TensorSpec(f"c{len(self._tensors)}", array.shape, dtype, scale, points, axis, array))
        return self._tensors[-1].name

    def op(
        self, builtin: str, inputs: list[str], shapes: list[tuple[int, ...]], options: Any = None, quantization: Any = None
    ) -> list[str]:
        data = self._spec(inputs[-1 if builtin == "SPLIT" else 0])
        scale, point = quantization or (data.scale, data.zero_point)
        outputs = [self._add(shape, scale, point) for shape in shapes]
        self._ops.append(OpSpec(builtin, inputs, outputs, options))
        return outputs

    def conv(self, name: str, channels: int, size: int = 1, stride: int = 1, depthwise: bool = False, relu: bool = False) -> str:
        """CONV_2D or DEPTHWISE_CONV_2D, same padding."""
        x = self._spec(name)
        batch, height, width, depth = x.shape
        shape = (1, size, size, depth) if depthwise else (channels, size, size, depth)
        count = depth if depthwise else channels
        weights = np.clip(np.rint(self._rng.normal(scale=30, size=shape)), -127, 127)
        scales = self._rng.uniform(0.003, 0.006, count).astype(np.float32)
        terms = size * size * (1 if depthwise else depth)
        result = float(x.scale) * 0.0045 * 30 * terms**0.5 * self._rng.uniform(0.9, 1.1)
        bias = np.rint(self._rng.normal(scale=200, size=count))
        inputs = [name, self.const(weights, "int8", scales, 3 if depthwise else 0), self.const(bias, "int32", np.float32(x.scale) * scales)]
        options = {"padding": 0, "strideW": stride, "strideH": stride, "dilationWFactor": 1, "dilationHFactor": 1,
                   "fusedActivationFunction": int(relu), **({"depthMultiplier": 1} if depthwise else {})}  # fmt: skip
        wanted = (batch, -(-height // stride), -(-width // stride), count)
        kind = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        return self.op(kind, inputs, [wanted], options, (result, -128 if relu else int(self._rng.integers(-20, 20))))[0]

    def silu(self, name: str) -> str:
        (gate,) = self.op("LOGISTIC", [name], [self.shape(name)], None, (1 / 256, -128))
        quantization = (float(self._spec(name).scale) * self._rng.uniform(0.6, 0.7), -100)
        return self.op("MUL", [name, gate], [self.shape(name)], {}, quantization)[0]

    def unit(self, name: str, channels: int, size: int = 1, stride: int = 1) -> str:
        return self.silu(self.conv(name, channels, size, stride))

    def split(self, name: str) -> list[str]:
        *front, channels = self.shape(name)
        return self.op("SPLIT", [self.const(3), name], [(*front, channels // 2)] * 2, {"numSplits": 2})

    def add(self, first: str, second: str) -> str:
        quantization = (float(self._spec(first).scale + self._spec(second).scale) * self._rng.uniform(0.6, 0.7), -20)
        return self.op("ADD", [first, second], [self.shape(first)], {}, quantization)[0]

    def concat(self, *names: str) -> str:
        """CONCATENATION, whose inputs are requantized to one quantization, as TensorFlow's converter does."""
        quantization = (max(float(self._spec(name).scale) for name in names), -64)
        same = [name if (self._spec(name).scale, self._spec(name).zero_point) == quantization else
                self.op("QUANTIZE", [name], [self.shape(name)], {}, quantization)[0] for name in names]  # fmt: skip
        shape = (*self.shape(names[0])[:3], sum(self.shape(name)[3] for name in names))
        return self.op("CONCATENATION", same, [shape], {"axis": 3}, quantization)[0]

    def pool(self, name: str) -> str:
        options = {"padding": 0, "strideW": 1, "strideH": 1, "filterWidth": 5, "filterHeight": 5}
        return self.op("MAX_POOL_2D", [name], [self.shape(name)], options)[0]

    def double(self, name: str) -> str:
        batch, height, width, channels = self.shape(name)
        sizes = self.const([2 * height, 2 * width])
        return self.op("RESIZE_NEAREST_NEIGHBOR", [name, sizes], [(batch, 2 * height, 2 * width, channels)], {"halfPixelCenters": True})[0]

    def shuffle(self, name: str) -> str:
        batch, height, width, channels = self.shape(name)
        apart, turned = (batch, height, width, 2, channels // 2), (batch, height, width, channels // 2, 2)
        (value,) = self.op("RESHAPE", [name, self.const(apart)], [apart], {"newShape": list(apart)})
        (value,) = self.op("TRANSPOSE", [value, self.const([0, 1, 2, 4, 3])], [turned], {})
        back = self.shape(name)
        return self.op("RESHAPE", [value, self.const(back)], [back], {"newShape": list(back)})[0]

    def bytes(self, *outputs: str) -> bytes:
        return model(self._ops, self._tensors, ["x"], list(outputs))


def c2f(n: Network, name: str, channels: int) -> str:
    """A block of YOLOv8: half of the channels goes through a residual pair of convolutions, all are joined."""
    first, second = n.split(n.unit(name, channels))
    inner = n.add(n.unit(n.unit(second, channels // 2, 3), channels // 2, 3), second)
    return n.unit(n.concat(first, second, inner), channels)


def yolo() -> bytes:
    n = Network(1, 160, 160, 3)
    x = n.unit(n.unit("x", 16, 3, 2), 32, 3, 2)
    fine = c2f(n, n.unit(c2f(n, x, 32), 64, 3, 2), 64)
    coarse = c2f(n, n.unit(fine, 128, 3, 2), 128)
    squeezed = n.unit(coarse, 64)
    pools = [squeezed]
    for _ in range(3):
        pools.append(n.pool(pools[-1]))
    spread = n.unit(n.concat(*pools), 128)
    merged = c2f(n, n.concat(n.double(spread), fine), 64)
    last = c2f(n, n.concat(n.unit(merged, 64, 3, 2), spread), 128)
    return n.bytes(n.conv(n.unit(merged, 64, 3), 84), n.conv(n.unit(last, 64, 3), 84))


def shufflenet() -> bytes:
    n = Network(1, 128, 128, 3)
    x = n.conv("x", 24, 3, 2, relu=True)
    for channels, units in ((48, 3), (96, 5), (192, 3)):
        left = n.conv(n.conv(x, 0, 3, 2, depthwise=True), channels // 2, relu=True)
        right = n.conv(n.conv(n.conv(x, channels // 2, relu=True), 0, 3, 2, depthwise=True), channels // 2, relu=True)
        x = n.shuffle(n.concat(left, right))
        for _ in range(units):
            left, right = n.split(x)
            right = n.conv(n.conv(n.conv(right, channels // 2, relu=True), 0, 3, depthwise=True), channels // 2, relu=True)
            x = n.shuffle(n.concat(left, right))
    return n.bytes(n.conv(x, 256, relu=True))


def line(name: str, data: bytes, threads: int, runs: int, folder: Path) -> list[str]:
    source, result = folder / f"{name}.tflite", folder / f"{name}.onnx"
    source.write_bytes(data)
    convert(source, result, force=True)
    litert, session = SourceModel(data, threads), OnnxRuntime(result, threads, exact=False)
    values = np.random.default_rng(0).integers(-128, 128, litert.inputs[0].shape).astype(np.int8)
    ((port, (dtype, _)),) = session.inputs.items()
    feed = {port: values if dtype == "int8" else (values.astype(np.int16) + 128).astype(np.uint8)}
    found = [y.astype(np.int16) - (128 if y.dtype == np.uint8 else 0) for y in OnnxRuntime(result).run(feed).values()]
    equal = np.mean([float((x == y).mean()) for x, y in zip(litert.run([values]), found, strict=True)])
    times = interleaved_latency({"litert": lambda: litert.run([values]), "ort": lambda: session.session.run(None, feed)}, runs)
    before, after = (times[key][1] for key in ("litert", "ort"))
    real = Counter(op.kind for op in audit(source, "ort-x86").operators if not op.integer)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(real.items()))
    return [name, str(threads), f"{before:.2f}", f"{after:.2f}", f"{after / before:.2f}", f"{100 * equal:.3f}%", kinds]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--keep", type=Path, help="a folder for the models")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, networks = options.keep or Path(name), (("YOLOv8-like", yolo()), ("ShuffleNet-like", shufflenet()))
        found = [line(label, data, threads, options.runs, folder) for label, data in networks for threads in (1, 2)]
    note = (
        f"Best of {options.runs} runs in turns, target ort-x86, random input. {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.0f}, {time.strftime('%B %Y')}."
    )
    part = Section("Networks with resizing, splits and shuffles", HEADER, found, note)
    publish(part, options.markdown, "python benchmarks/networks.py", 200)


if __name__ == "__main__":
    main()
