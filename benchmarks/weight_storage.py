"""Convolutions and products in onnxruntime by the storage of their weights: processor time, and whether all results are equal.

    python benchmarks/weight_storage.py [--runs N] [--markdown docs/measured/forms.md]

Weights are uint8, int8 with a zero point, or int8 without one; all are the same numbers. Data are uint8 and channels last, as onnxruntime
has them between convolutions. A depthwise convolution has a kernel of its own, which never saturates: each target stores its weights as
int8.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
from integer_forms import measure
from numpy.typing import NDArray
from page import Section, publish

from qconvert.runtimes.onnxruntime import OnnxRuntime

#: Layer -> inputs and outputs (channels), size of the data and of the kernel, groups.
LAYERS = {
    "1x1 Conv, 24 to 144 channels, 56x56": (24, 144, 56, 1, 1),
    "1x1 Conv, 144 to 24 channels, 56x56": (144, 24, 56, 1, 1),
    "1x1 Conv, 64 to 384 channels, 14x14": (64, 384, 14, 1, 1),
    "1x1 Conv, 960 to 160 channels, 7x7": (960, 160, 7, 1, 1),
    "3x3 Conv, 16 to 16 channels, 32x32": (16, 16, 32, 3, 1),
    "3x3 Conv, 64 to 64 channels, 8x8": (64, 64, 8, 3, 1),
    "3x3 Conv of 3 channels to 32, 96x96": (3, 32, 96, 3, 1),
    "3x3 depthwise Conv, 144 channels, 56x56": (144, 144, 56, 3, 144),
    "Gemm of 640 to 128": (640, 128, 1, 1, 1),
}
#: Storage of weights -> its type and zero point.
STORAGES = {"uint8": ("uint8", 128), "int8, zero point 3": ("int8", 3), "int8": ("int8", 0)}


def model(layer: str, steps: NDArray[Any], dtype: str, point: int) -> bytes:
    from onnx import helper, numpy_helper

    inputs, outputs, size, kernel, group = LAYERS[layer]
    scales: dict[str, Any] = {"xs": np.float32(0.02), "xz": np.uint8(0), "ws": np.float32(0.001), "ys": np.float32(0.05), "yz": np.uint8(9)}
    constants = {**scales, "w": (steps + point).astype(dtype), "wz": np.array(point, dtype), "b": np.zeros(outputs, np.int32)}
    if layer.startswith("Gemm"):
        names, shape = ["x", "xs", "xz", "w", "ws", "wz", "b", "ys", "yz"], (1, inputs)
        constants["w"], attributes = constants["w"].reshape(outputs, inputs), {"transB": 1}
        node = helper.make_node("QGemm", names, ["y"], domain="com.microsoft", **attributes)
    else:
        names, shape = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], (1, size, size, inputs)
        node = helper.make_node("QLinearConv", names, ["y"], domain="com.microsoft", channels_last=1, kernel_shape=[kernel] * 2,
                                pads=[kernel // 2] * 4, group=group)  # fmt: skip
    graph = helper.make_graph(
        [node], "layer", [helper.make_tensor_value_info("x", 2, shape)], [helper.make_tensor_value_info("y", 2, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())


def line(layer: str, runs: int) -> list[str]:
    inputs, outputs, size, kernel, group = LAYERS[layer]
    random = np.random.default_rng(1)
    steps = random.integers(-124, 125, (outputs, inputs // group, kernel, kernel))
    sessions = {name: OnnxRuntime(model(layer, steps, *storage)) for name, storage in STORAGES.items()}
    data = random.integers(0, 256, (1, inputs) if layer.startswith("Gemm") else (1, size, size, inputs)).astype(np.uint8)
    results = [session.run({"x": data})["y"] for session in sessions.values()]
    times = measure(sessions, {"x": data}, runs)
    equal = all(np.array_equal(result, results[0]) for result in results)
    return [layer, *(f"{times[name][0]:.0f} ({times[name][1]:.0f})" for name in STORAGES), "all" if equal else "no"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    note = (
        f"onnxruntime on the CPU, 1 thread, microseconds: least processor time of {options.runs} runs in turns, the median in brackets; a "
        f"busy machine with VNNI, {os.cpu_count()} cores, Python {platform.python_version()}."
    )
    head = ["layer", *STORAGES, "results equal"]
    section = Section("Layers by the storage of their weights", head, [line(layer, options.runs) for layer in LAYERS], note)
    publish(section, options.markdown, "python benchmarks/weight_storage.py", 200)


if __name__ == "__main__":
    main()
