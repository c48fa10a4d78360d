"""Kernels of small networks alone in LiteRT and in onnxruntime, and forms of them that were tried and are not written.

    python benchmarks/single_kernels.py [--runs N] [--markdown docs/measured/latency.md]

Models of one operator, one thread. The time of a model that does nothing is taken off each. Data are bytes: int8 in LiteRT and uint8 in
onnxruntime, so that nothing is converted at the edges.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from latency import processor_time
from measures import Array, SourceModel
from merged_pixels import MERGED, Layer, make_layer
from page import Section, machine, publish

from qconvert.conversion.normalizing import normalize
from qconvert.conversion.saving import save
from qconvert.formats.tflite.probe import accepted_copy
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import SOURCE_FORMAT, SOURCE_KERNELS
from qconvert.runtimes.onnxruntime import OnnxRuntime

LAYERS: dict[str, Layer] = {
    "1x1 Conv of 16 channels to 16, 1x1": (1, 16, 16, 1, 1, 1),
    "1x1 Conv of 32 channels to 32, 24x24": (24, 32, 32, 1, 1, 1),
    "1x1 Conv of 64 channels to 64, 25x5": ((25, 5), 64, 64, 1, 1, 1),
    "1x1 Conv of 128 channels to 128, 6x6": (6, 128, 128, 1, 1, 1),
    "1x1 Conv of 256 channels to 256, 3x3": (3, 256, 256, 1, 1, 1),
    "3x3 depthwise Conv of 16 channels, stride 2, 48x48": (48, 16, 16, 3, 2, 16),
    "3x3 depthwise Conv of 32 channels, 24x24": (24, 32, 32, 3, 1, 32),
    "3x3 depthwise Conv of 64 channels, 25x5": ((25, 5), 64, 64, 3, 1, 64),
    "3x3 depthwise Conv of 128 channels, 6x6": (6, 128, 128, 3, 1, 128),
    "3x3 depthwise Conv of 256 channels, 3x3": (3, 256, 256, 3, 1, 256),
    "3x3 Conv of 16 channels to 16, 32x32": (32, 16, 16, 3, 1, 1),
    "3x3 Conv of 32 channels to 32, 16x16": (16, 32, 32, 3, 1, 1),
    "3x3 Conv of 64 channels to 64, 8x8": (8, 64, 64, 3, 1, 1),
}
#: Form -> layer; shape of the data with a Pad, and as blocks; rows and columns of a block; rows and columns of results; window in blocks;
#: padding before in elements, and in blocks.
FORMS: dict[str, tuple[Layer, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "10x4 Conv of 1 channel to 64, stride 2, 49x10: two rows as channels": (
        ((49, 10), 1, 64, (10, 4), 2, 1), (0, 1, 0, 0), (1, 25, 1, 20), (2, 10, 1, 5, 5, 1, 4, 1, 2, 0),
    ),
    "3x3 Conv of 16 channels to 16, 32x32: two pixels as channels, shifted by a Pad": (
        (32, 16, 16, 3, 1, 1), (0, 0, 1, 1), (1, 32, 17, 32), (1, 2, 1, 2, 3, 2, 1, 0, 1, 0),
    ),
    "3x3 depthwise Conv of 8 channels, 48x48: four pixels as channels, shifted by a Pad": (
        (48, 8, 8, 3, 1, 8), (0, 0, 1, 3), (1, 48, 13, 32), (1, 4, 1, 4, 3, 2, 1, 0, 1, 0),
    ),
    "1x1 Conv of 8 channels to 16, 48x48: two pixels as channels": (
        (48, 8, 16, 1, 1, 1), (0, 0, 0, 0), (1, 48, 24, 16), (1, 2, 1, 2, 1, 1, 0, 0, 0, 0),
    ),
    "1x1 Conv of 8 channels to 16, 48x48: four pixels as channels": (
        (48, 8, 16, 1, 1, 1), (0, 0, 0, 0), (1, 48, 12, 32), (1, 4, 1, 4, 1, 1, 0, 0, 0, 0),
    ),
}  # fmt: skip


def make_operator(name: str, dtype: str) -> Graph:
    """Return a model of a Relu that leaves all as it is, a Gemm of 128 rows to 128 or a Softmax of 12 classes."""
    offset, random = 128 if dtype == "uint8" else 0, np.random.default_rng(1)
    count = {"Relu": 4, "Gemm": 128, "Softmax": 12}[name]
    # The Relu is one of float values, for which each runtime has a kernel.
    data = Tensor("x", *(("float32", (1, count)) if name == "Relu" else (dtype, (1, count), None, Quantization.per_tensor(0.1, offset))))
    scale, point = (1 / 256, offset - 128) if name == "Softmax" else (0.5, offset)
    tensors = [data, Tensor("y", data.dtype, (1, count), None, None if name == "Relu" else Quantization.per_tensor(scale, point))]
    if name == "Gemm":
        weights = random.integers(-127, 128, (count, count)).astype(np.int8)
        tensors.append(Tensor("w", "int8", weights.shape, weights, Quantization.per_tensor(0.002, 0)))
        tensors.append(Tensor("b", "int32", (count,), np.zeros(count, np.int32), Quantization.per_tensor(0.1 * 0.002, 0)))
    inputs = ("x", "w", "b") if name == "Gemm" else ("x",)
    op = Op(name, inputs, ("y",), {"axis": 1} if name == "Softmax" else {})
    # From a .tflite file, so that a Softmax has LiteRT's integers.
    return Graph(
        "layer",
        {item.name: item for item in tensors},
        (op,),
        ("x",),
        ("y",),
        metadata={SOURCE_FORMAT: "tflite", SOURCE_KERNELS: "litert:default"},
    )


def write_pair(source: Graph, graph: Graph, folder: Path) -> tuple[SourceModel, OnnxRuntime]:
    """Open a model in LiteRT, and the same of uint8 in onnxruntime."""
    save(source, folder / "layer.tflite", "tflite", force=True)
    save(normalize(graph, MERGED)[0], folder / "layer.onnx", "onnx", force=True)
    return SourceModel(accepted_copy((folder / "layer.tflite").read_bytes())), OnnxRuntime(folder / "layer.onnx")


def draw(graph: Graph) -> tuple[Array, Array]:
    """Return random data for a model in LiteRT and in onnxruntime."""
    shape = graph["x"].static_shape or ()
    if graph["x"].dtype == "float32":
        return (np.ones(shape, np.float32),) * 2
    data = np.random.default_rng(2).integers(0, 256, shape).astype(np.uint8)
    return (data.astype(np.int16) - 128).astype(np.int8), data


def time_alone(source: Graph, graph: Graph, runs: int, folder: Path) -> tuple[list[float], bool]:
    """Return microseconds of a model in LiteRT and in onnxruntime, and whether the results are equal."""
    litert, session = write_pair(source, graph, folder)
    signed, data = draw(graph)
    results = litert.run([signed])[0], session.run({"x": data})["y"]
    runners: dict[str, Callable[[], object]] = {
        "LiteRT": partial(litert.run, [signed]), "onnxruntime": partial(session.session.run, None, {"x": data}),
    }  # fmt: skip
    equal = np.array_equal(*(item.astype(np.float64) for item in results)) or np.array_equal(results[0].astype(np.int16) + 128, results[1])
    return [1000 * value for value in processor_time(runners, runs).values()], equal


def merge_blocks(weights: Array, stride: int, place: tuple[int, ...]) -> Array:
    """Return weights O,I,H,W, without groups, of a convolution of blocks; what lies outside of the rows is padding."""
    rows, columns, lines, positions, height, width, *before = place
    results, channels, *taps = weights.shape
    merged = np.zeros((lines, positions, results, rows, columns, channels, height, width), weights.dtype)
    for line, position, *tap in product(range(lines), range(positions), *map(range, taps)):
        row = line * stride + tap[0] - before[0] + before[2] * rows
        column = position * stride + tap[1] - before[1] + before[3] * columns
        if 0 <= row < rows * height and 0 <= column < columns * width:
            merged[line, position, :, row % rows, column % columns, :, row // rows, column // columns] = weights[..., tap[0], tap[1]]
    return merged.reshape(lines * positions * results, rows * columns * channels, height, width)


def make_form(graph: Graph, form: str) -> Any:
    """Return the model of a form: a Pad and a Reshape of the data, a convolution of blocks, a Reshape of the result."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    (_, channels, results, _, stride, group), padding, blocks, place = FORMS[form]
    data, weights, result = (graph[name] for name in "xwy")
    assert weights.data is not None and weights.quantization is not None and data.quantization is not None
    dense = np.zeros((results, channels, *weights.data.shape[2:]), np.int8)
    for row in range(results):
        first = row * group // results * (channels // group)
        dense[row, first : first + channels // group] = weights.data[row]
    merged = merge_blocks(dense, stride, place)
    count, after = len(merged) // results, result.require_quantization()
    above, below = place[8], (place[4] - 1 - place[8]) if place[4] > 1 else 0
    constants = {
        "pads": np.array([0, padding[0], padding[2], 0, 0, padding[1], padding[3], 0]), "blocks": np.array(blocks), "w": merged,
        "sizes": np.array(result.shape), "ws": np.tile(weights.quantization.scale, count), "wz": np.zeros(len(merged), np.int8),
        "b": np.zeros(len(merged), np.int32), "xs": np.float32(data.quantization.step), "xz": np.uint8(data.quantization.point),
        "ys": np.float32(after.step), "yz": np.uint8(after.point),
    }  # fmt: skip
    nodes = [helper.make_node("Pad", ["x", "pads", "xz"], ["padded"])] if any(padding) else []
    nodes += [
        helper.make_node("Reshape", ["padded" if nodes else "x", "blocks"], ["merged"]),
        helper.make_node(
            "QLinearConv", ["merged", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["found"], domain="com.microsoft", channels_last=1,
            pads=[above, 0, below, 0], strides=[1, 1], kernel_shape=list(merged.shape[2:]),
        ),
        helper.make_node("Reshape", ["found", "sizes"], ["y"]),
    ]  # fmt: skip
    ports = [helper.make_tensor_value_info(item.name, TensorProto.UINT8, item.shape) for item in (data, result)]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(
        helper.make_graph(nodes, "form", ports[:1], ports[1:], initializers), opset_imports=opsets, ir_version=9
    ).SerializeToString()


def time_form(form: str, runs: int, folder: Path) -> list[str]:
    graph, source = make_layer(FORMS[form][0], "uint8"), make_layer(FORMS[form][0], "int8")
    litert, session = write_pair(source, graph, folder)
    (folder / "form.onnx").write_bytes(make_form(graph, form))
    other, (signed, data) = OnnxRuntime(folder / "form.onnx"), draw(graph)
    results = [litert.run([signed])[0].astype(np.int16) + 128, *(item.run({"x": data})["y"] for item in (session, other))]
    runners: dict[str, Callable[[], object]] = {"LiteRT": partial(litert.run, [signed])}
    runners |= {name: partial(item.session.run, None, {"x": data}) for name, item in (("written", session), ("form", other))}
    equal = all(np.array_equal(results[0], item) for item in results[1:])
    return [form, *(f"{1000 * value:.1f}" for value in processor_time(runners, runs).values()), "all" if equal else "no"]


_WHY = (
    "The time of an empty call is taken off the other rows. A 1x1 Conv takes onnxruntime as long as LiteRT, where it has more than a few "
    "products. Windows take 1.1 to 2.3 times as long, since onnxruntime lists the address of each tap for each result in every run "
    "(math::Im2col of pointers in QLinearConv), and XNNPACK once. A Gemm costs 0.5 µs more for buffers and scales beyond its products, and "
    "a Softmax with LiteRT's integers 2 µs more, as 11 nodes. So networks of 10 to 90 µs are slower by their windows, their head and the "
    "call itself, and [other forms](#forms-that-are-not-written) of the layers gain 2 to 5% of a network's time. "
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        empty, _ = time_alone(*(make_operator("Relu", "float32"),) * 2, options.runs, folder)
        rows = [["an empty call", *(f"{value:.1f}" for value in empty), "all"]]
        models = {layer: [make_layer(sizes, dtype) for dtype in ("int8", "uint8")] for layer, sizes in LAYERS.items()}
        models |= {
            "Gemm of 128 to 128": [make_operator("Gemm", dtype) for dtype in ("int8", "uint8")],
            "Softmax of 12 classes": [make_operator("Softmax", dtype) for dtype in ("int8", "uint8")],
        }
        for layer, (source, graph) in models.items():
            times, equal = time_alone(source, graph, options.runs, folder)
            rows.append([layer, *(f"{max(a - b, 0.0):.1f}" for a, b in zip(times, empty, strict=True)), "all" if equal else "no"])
        forms = [time_form(form, options.runs, folder) for form in FORMS]
    note = f"One thread, least processor time of {options.runs} turns, each with the call from Python. "
    command = "python benchmarks/single_kernels.py"
    head = ["operator", "LiteRT (µs)", "onnxruntime (µs)", "results equal"]
    publish(Section("Kernels alone", head, rows, note + _WHY + machine()), options.markdown, command)
    head = ["operator: form", "LiteRT (µs)", "as written (µs)", "this form (µs)", "results equal"]
    publish(Section("Forms that are not written", head, forms, note + machine()), options.markdown, command)


if __name__ == "__main__":
    main()
