"""Time and memory of conversions of models with 1,000, 10,000 and 100,000 operators: cost that is flat per operator, or not.

    python benchmarks/scale.py [--sizes 1000,10000,100000] [--shapes chain,sum] [--limit 600] [--checkout before=DIR --checkout after=DIR]

Makes models of a few shapes, as float and as QDQ models, and converts each in a process of its own, which measures its CPU time
(without Python's start and imports) and its peak of resident memory. The size counts the nodes of the ONNX model; QuantizeLinear and
DequantizeLinear are nodes. Models in .tflite and .qgraph are what the last checkout makes of the ONNX ones. With several checkouts the
table has a row for each. The ratio is the time per operator at the largest size that ended in time over that at the smallest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

CHANNELS, EDGE = 4, 4
SHAPE = (1, CHANNELS, EDGE, EDGE)
SMALL = 60  # operators of the model that is converted first
ROOT = Path(__file__).resolve().parents[1]

#: Suffix of the source, suffix of the result, target: the ways that are measured.
WAYS = (
    (".onnx", ".tflite", "tflite"),
    (".tflite", ".onnx", "ort-x86"),
    (".onnx", ".onnx", "ort-x86"),
    (".onnx", ".qgraph", ""),
    (".qgraph", ".onnx", "generic"),
)

#: What the process of one measurement runs: a small model first, so that everything is imported; then convert, and say seconds and MB.
PROGRAM = """
import json, pathlib, re, sys, time
import qconvert
small, source, result, target = sys.argv[1:]
qconvert.convert(small, result, target=target, force=True)
started = time.process_time()
qconvert.convert(source, result, target=target, force=True)
seconds = time.process_time() - started
peak = re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text()).group(1)
print(json.dumps([seconds, int(peak) / 1024]))
"""


class Model:
    """An ONNX model that grows by nodes until it has `size` of them.

    Attributes:
        is_quantized: whether every value goes through QuantizeLinear and DequantizeLinear, with a quantization of its own, and weights are
            integers.
        channels: of every value.
        kernel: edge of the windows of convolutions.
    """

    def __init__(self, is_quantized: bool) -> None:
        from onnx import helper

        self.is_quantized = is_quantized
        self.channels, self.kernel = CHANNELS, 1
        self._helper = helper
        self.nodes: list[Any] = []
        self._constants: list[Any] = []
        self._generator = np.random.default_rng(0)

    def _constant(self, name: str, data: Any) -> str:
        from onnx import numpy_helper

        self._constants.append(numpy_helper.from_array(data, name))
        return name

    def node(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Adds a node with one output; returns its name."""
        output = f"value{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(op_type, list(inputs), [output], name=f"node{len(self.nodes)}", **attributes))
        return output

    def on_quantization(self, value: str) -> str:
        """The value after QuantizeLinear and DequantizeLinear, if the model is quantized."""
        if not self.is_quantized:
            return value
        number = len(self.nodes)
        scale = self._constant(f"scale{number}", np.array(self._generator.uniform(0.02, 0.08), np.float32))
        zero = self._constant(f"zero{number}", np.array(self._generator.integers(-20, 20), np.int8))
        stored = self.node("QuantizeLinear", [value, scale, zero])
        return self.node("DequantizeLinear", [stored, scale, zero])

    def conv(self, value: str, *, relu: bool = False) -> str:
        """A convolution with weights of its own; its result has the quantization."""
        number, shape = len(self.nodes), (self.channels, self.channels, self.kernel, self.kernel)
        if self.is_quantized:
            scales = self._constant(f"weights{number}_scale", self._generator.uniform(0.01, 0.02, self.channels).astype(np.float32))
            zeros = self._constant(f"weights{number}_zero", np.zeros(self.channels, np.int8))
            stored = self._constant(f"weights{number}", self._generator.integers(-127, 128, shape, np.int8))
            weights = self.node("DequantizeLinear", [stored, scales, zeros], axis=0)
        else:
            weights = self._constant(f"weights{number}", self._generator.normal(0, 0.3, shape).astype(np.float32))
        bias = self._constant(f"bias{number}", self._generator.normal(0, 0.1, self.channels).astype(np.float32))
        result = self.node("Conv", [value, weights, bias], kernel_shape=[self.kernel] * 2, pads=[self.kernel // 2] * 4)
        return self.on_quantization(self.node("Relu", [result]) if relu else result)

    def scalar(self, value: float) -> str:
        return self._constant(f"scalar{len(self.nodes)}_{len(self._constants)}", np.array(value, np.float32))

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        sizes = self._constant(f"sizes{len(self.nodes)}", np.array(shape, np.int64))
        return self.on_quantization(self.node("Reshape", [value, sizes]))

    def save(self, path: Path, output: str) -> None:
        helper = self._helper
        ends = [helper.make_tensor_value_info(name, 1, (1, self.channels, EDGE, EDGE)) for name in ("x", output)]
        graph = helper.make_graph(self.nodes, "scale", ends[:1], ends[1:], self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path.write_bytes(model.SerializeToString())


def chain(m: Model, size: int) -> str:
    """Convolutions with Relu, one after the other."""
    value = m.on_quantization("x")
    while len(m.nodes) < size:
        value = m.conv(value, relu=True)
    return value


def wide(m: Model, size: int) -> str:
    """The same with 9.4 million weights in each convolution: 0.9 GB for each 500 nodes of a quantized model."""
    m.channels, m.kernel = 1024, 3
    return chain(m, size)


def residual(m: Model, size: int) -> str:
    """Blocks of two convolutions and the sum with what went in."""
    value = m.on_quantization("x")
    while len(m.nodes) < size:
        value = m.on_quantization(m.node("Add", [value, m.conv(m.conv(value, relu=True))]))
    return value


def fan_out(m: Model, size: int) -> str:
    """One value that every operator reads."""
    first = value = m.on_quantization("x")
    while len(m.nodes) < size:
        value = m.on_quantization(m.node("Add", [value, first]))
    return value


def sum_of_all(m: Model, size: int) -> str:
    """One Sum with a tenth as many inputs as the model has nodes, each of them read ten times more."""
    first, values = m.on_quantization("x"), []
    while len(m.nodes) < size:
        values.append(m.on_quantization(m.node("Mul", [first, m.scalar(0.5 + len(m.nodes) / size)])))
    return m.on_quantization(m.node("Sum", values))


def layouts(m: Model, size: int) -> str:
    """Convolutions, elementwise operators between them, branches that rejoin far after, and Reshapes that pin the order of axes."""
    value = early = m.on_quantization("x")
    count = 0
    while len(m.nodes) < size:
        count += 1
        value = m.on_quantization(m.node("Sigmoid", [m.conv(value)]))
        value = m.on_quantization(m.node("Mul", [value, m.scalar(1.25)]))
        value = m.on_quantization(m.node("Add", [value, early]))
        if count % 3 == 0:
            flat = m.reshaped(value, (1, CHANNELS, EDGE * EDGE))
            value = m.on_quantization(m.node("Add", [value, m.reshaped(flat, SHAPE)]))
        if count % 7 == 0:
            early = value
    return value


SHAPES: dict[str, Callable[[Model, int], str]] = {
    "chain": chain, "wide": wide, "residual": residual, "fan_out": fan_out, "sum": sum_of_all, "layouts": layouts,
}  # fmt: skip


Cell = tuple[float, float] | str  # seconds and MB, or in a word why there are none


@dataclass
class Row:
    """One model and way in one checkout, measured at each size."""

    model: str
    way: str
    checkout: str
    cells: dict[int, Cell] = field(default_factory=dict)

    def columns(self, sizes: Sequence[int]) -> list[str]:
        """Microseconds per operator at each size, the ratio of the largest to the smallest, and MB at each size."""
        cells = [self.cells.get(size, "") for size in sizes]
        times = ["" if not cell else cell if isinstance(cell, str) else f"{1e6 * cell[0] / size:.0f}"
                 for size, cell in zip(sizes, cells, strict=True)]  # fmt: skip
        measured = [(size, cell[0] / size) for size, cell in zip(sizes, cells, strict=True) if cell and not isinstance(cell, str)]
        ratio = f"{measured[-1][1] / measured[0][1]:.2f}" if len(measured) > 1 else ""
        memory = ["" if not cell or isinstance(cell, str) else f"{cell[1]:.0f}" for cell in cells]
        return [self.model, self.way, self.checkout, *times, ratio, *memory]


def run(checkout: Path, small: Path, source: Path, result: Path, target: str, limit: float) -> Cell:
    """One conversion in a process of its own, after that of a small model."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", PROGRAM, *map(str, (small, source, result)), target]
    try:
        found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, cwd=checkout)
    except subprocess.TimeoutExpired:
        return f"> {limit:.0f} s"
    if found.returncode:
        print(f"{source.name} -> {result.name}: {found.stderr[-600:]}", file=sys.stderr)
        return "failed"
    seconds, memory = json.loads(found.stdout.splitlines()[-1])
    return seconds, memory


def source(folder: Path, shape: str, style: str, size: int, suffix: str, maker: Path) -> Path:
    """The model in a format, which is made if it is not there; in .tflite and .qgraph as the checkout `maker` converts the ONNX one."""
    path = folder / f"{shape}-{style}-{size}{suffix}"
    if path.exists():
        return path
    if suffix == ".onnx":
        model = Model(style == "qdq")
        model.save(path, SHAPES[shape](model, size))
        return path
    small, origin = (source(folder, shape, style, count, ".onnx", maker) for count in (SMALL, size))
    run(maker, small, origin, path, {".tflite": "tflite", ".qgraph": ""}[suffix], 3600)
    return path


def measure(arguments: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """A row for each model, way and checkout, as soon as it is measured."""
    checkouts = [(name, Path(place).resolve()) for name, _, place in (text.partition("=") for text in arguments.checkout)]
    wanted = [way for way in WAYS if f"{way[0]}2{way[1]}".replace(".", "") in arguments.ways.split(",")]
    models = product(arguments.shapes.split(","), arguments.styles.split(","), wanted, checkouts)
    for shape, style, (before, after, target), (name, checkout) in models:
        row = Row(f"{shape}, {style}", f"{before} → {after}", name)
        for size in arguments.sizes:
            small, path = (source(folder, shape, style, count, before, checkouts[-1][1]) for count in (SMALL, size))
            if path.exists():
                row.cells[size] = run(checkout, small, path, folder / f"{shape}-{style}-result{after}", target, arguments.limit)
            if isinstance(row.cells.get(size), str):
                break  # a larger one would not end either
        yield row


def main() -> None:
    """Prints the table as Markdown, line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[1_000, 10_000, 100_000])
    parser.add_argument(
        "--shapes", default=",".join(name for name in SHAPES if name != "wide"), help="wide: models of the size of their weights"
    )
    parser.add_argument("--styles", default="float,qdq")
    parser.add_argument("--ways", default=",".join(f"{source}2{result}".replace(".", "") for source, result, _ in WAYS))
    parser.add_argument("--limit", type=float, default=600, help="seconds for one conversion")
    parser.add_argument("--checkout", action="append", help="name=folder of the code to measure; by default this one")
    parser.add_argument("--folder", help="where models are kept; by default a temporary one")
    arguments = parser.parse_args()
    arguments.checkout = arguments.checkout or [f"here={ROOT}"]
    sizes = arguments.sizes
    header = ["model", "way", "code", *(f"µs per operator at {size:,}" for size in sizes), "ratio", *(f"MB at {size:,}" for size in sizes)]
    print(f"| {' | '.join(header)} |", f"|{' --- |' * 3}{' ---: |' * (len(header) - 3)}", sep="\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for row in measure(arguments, folder):
            print(f"| {' | '.join(row.columns(sizes))} |", flush=True)


if __name__ == "__main__":
    main()
