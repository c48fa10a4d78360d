"""Forms of quantized operators in onnxruntime, each alone: processor time of a run, and whether all results are equal.

    python benchmarks/integer_forms.py [--runs N] [--markdown docs/measured/forms.md]

The first form of each operator is float values between DequantizeLinear and QuantizeLinear; the results of the others are compared with
its. One thread; all forms of an operator take turns in one process, and processor time is counted, which other programs that hold the
cores change little. The least time and the median of all runs are given.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from page import Section, publish

from qconvert.arithmetic import INTEGER_FACTORS, nudge_add_scales, xnnpack_add
from qconvert.graph import Quantization
from qconvert.runtimes.onnxruntime import OnnxRuntime

HEADER = ["operator", "form", "6,272 elements (µs)", "401,408 elements (µs)", "results equal"]
SHAPES = ((1, 32, 14, 14), (1, 32, 112, 112))
Array = NDArray[Any]


class Nodes:
    """The nodes and constants of one model, whose inputs are x and y, uint8."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def const(self, data: Any) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(data), f"c{len(self.constants)}"))
        return str(self.constants[-1].name)

    def __call__(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], domain=domain, **attributes))
        return name

    def real(self, value: str, scale: float, point: int, dtype: str = "uint8") -> str:
        return self("DequantizeLinear", value, self.const(np.float32(scale)), *([self.const(np.array(point, dtype))] if point >= 0 else []))

    def stored(self, value: str, scale: float, point: int) -> str:
        return self("QuantizeLinear", value, self.const(np.float32(scale)), self.const(np.uint8(point)))

    def model(self, result: str, shape: tuple[int, ...], dtype: int = 2) -> bytes:
        from onnx import helper

        self.nodes[-1].output[0] = "result"
        inputs = [helper.make_tensor_value_info(name, 2, shape) for name in "xy"]
        outputs = [helper.make_tensor_value_info("result", dtype, None)]
        used = [item for item in inputs if any(item.name in node.input for node in self.nodes)]
        graph = helper.make_graph(self.nodes, "form", used, outputs, self.constants)
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())


Form = Callable[[Nodes], str]
X, Y, Z = (0.031, 128), (0.047, 113), (0.0723, 121)


def unary(kind: str, quantization: tuple[float, int] = Z, **attributes: Any) -> Form:
    return lambda n: n.stored(n(kind, n.real("x", *X), **attributes), *quantization)


def table(quantization: tuple[float, int], function: Callable[[Array], Array]) -> Form:
    steps = np.arange(256, dtype=np.float32) - np.float32(X[1])
    values = np.clip(np.rint(function(steps * np.float32(X[0])) / np.float32(quantization[0])) + quantization[1], 0, 255).astype(np.uint8)
    return lambda n: n("Gather", n.const(values), n("Cast", "x", to=6))


def binary(kind: str, y: tuple[float, int] = Y, z: tuple[float, int] = Z) -> Form:
    return lambda n: n.stored(n(kind, n.real("x", *X), n.real("y", *y)), *z)


def sub_as_add(n: Nodes) -> str:
    minus = n.real(n.const(np.uint8(0)), 1.0, 1)
    negative = n.stored(n("Mul", n.real("y", *Y), minus), Y[0], 255 - Y[1])
    return n.stored(n("Add", n.real("x", *X), n.real(negative, Y[0], 255 - Y[1])), *Z)


def quantizations() -> tuple[tuple[Quantization, Quantization], Quantization]:
    first, second, output = (Quantization.per_tensor(*quantization) for quantization in (X, Y, Z))
    return (first, second), output


def add_beside(n: Nodes) -> str:
    found = nudge_add_scales(*quantizations(), 0)
    assert found is not None
    values = [n.real(name, quantization.step, point) for name, quantization, (_, point) in zip("xy", found, (X, Y), strict=True)]
    return n.stored(n("Add", *values), *Z)


def add_float64(n: Nodes) -> str:
    multipliers, shift = INTEGER_FACTORS["xnnpack"](*quantizations())
    total, offset = "", 0.5 + Z[1]
    for name, (_, point), multiplier in zip("xy", (X, Y), multipliers, strict=True):
        factor = multiplier * 2.0**-shift
        offset -= factor * point
        product = n("Mul", n("Cast", name, to=11), n.const(np.float64(factor)))
        total = n("Add", total, product) if total else product
    total = n("Add", total, n.const(np.float64(offset)))
    return n("Cast", n("Clip", total, n.const(np.float64(0)), n.const(np.float64(255))), to=2)


def sum_int32(n: Nodes) -> tuple[str, int]:
    """XNNPACK's sum within its limits, still to be shifted, and by how many bits."""
    multipliers, shift = INTEGER_FACTORS["xnnpack"](*quantizations())
    total, offset = "", (1 << shift - 1) + (Z[1] << shift)
    for name, (_, point), multiplier in zip("xy", (X, Y), multipliers, strict=True):
        offset -= multiplier * point
        product = n("Mul", n("Cast", name, to=6), n.const(np.int32(multiplier)))
        total = n("Add", total, product) if total else product
    return n("Clip", n("Add", total, n.const(np.int32(offset))), n.const(np.int32(0)), n.const(np.int32((256 << shift) - 1))), shift


def add_int32(n: Nodes) -> str:
    total, shift = sum_int32(n)
    return n("Cast", n("Div", total, n.const(np.int32(1 << shift))), to=2)


def add_uint32(n: Nodes) -> str:
    total, shift = sum_int32(n)
    return n("Cast", n("BitShift", n("Cast", total, to=12), n.const(np.uint32(shift)), direction="RIGHT"), to=2)


def add_table(n: Nodes) -> str:
    codes = np.arange(256)
    inputs, output = quantizations()
    values = xnnpack_add(codes[:, None], codes[None], inputs, output, "uint8").reshape(-1)
    rows = n("Mul", n("Cast", "x", to=6), n.const(np.int32(256)))
    return n("Gather", n.const(values), n("Add", rows, n("Cast", "y", to=6)))


def weights(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(3).integers(-60, 60, shape).astype(np.int8)


def deconvolution(n: Nodes) -> str:
    kernel = n.real(n.const(weights((16, 32, 2, 2)).swapaxes(0, 1).copy()), 0.01, 0, "int8")
    bias = n.real(n.const(np.arange(16, dtype=np.int32) * 100), X[0] * 0.01, -1)
    return n.stored(n("ConvTranspose", n.real("x", *X), kernel, bias, strides=[2, 2]), *Z)


def by_phases(n: Nodes, size: int) -> str:
    phases = weights((16, 32, 2, 2)).transpose(2, 3, 0, 1).reshape(64, 32, 1, 1)
    bias = n.real(n.const(np.tile(np.arange(16, dtype=np.int32) * 100, 4)), X[0] * 0.01, -1)
    sums = n.stored(n("Conv", n.real("x", *X), n.real(n.const(phases), 0.01, 0, "int8"), bias), *Z)
    split = n("Reshape", sums, n.const(np.array([1, 2, 2, 16, size, size])))
    return n("Reshape", n("Transpose", split, perm=[0, 3, 4, 1, 5, 2]), n.const(np.array([1, 16, 2 * size, 2 * size])))


def dilated(n: Nodes, size: int) -> str:
    spaced = n("Reshape", "x", n.const(np.array([1, 32, size, 1, size, 1])))
    spaced = n("Pad", spaced, n.const(np.array([0] * 6 + [0, 0, 0, 1, 0, 1])), n.const(np.uint8(X[1])))
    spaced = n("Reshape", spaced, n.const(np.array([1, 32, 2 * size, 2 * size])))
    kernel = n.real(n.const(weights((16, 32, 2, 2))[:, :, ::-1, ::-1].copy()), 0.01, 0, "int8")
    bias = n.real(n.const(np.arange(16, dtype=np.int32) * 100), X[0] * 0.01, -1)
    return n.stored(n("Conv", n.real(spaced, *X), kernel, bias, pads=[1, 1, 0, 0]), *Z)


def resize(n: Nodes, mode: str, stored: bool, size: int, coordinates: str = "half_pixel") -> str:
    nearest = {"nearest_mode": "floor" if coordinates == "asymmetric" else "round_prefer_ceil"} if mode == "nearest" else {}
    more = {"mode": mode, "coordinate_transformation_mode": coordinates, **nearest}
    value = n("Resize", "x" if stored else n.real("x", *X), "", "", n.const(np.array([1, 32, 2 * size, 2 * size])), **more)
    return value if stored else n.stored(value, *X)


def resize_last(n: Nodes, size: int) -> str:
    """Linear, with the channels last, as a graph has it whose result is read so; the Transpose stands before it."""
    data = n.real(n("Transpose", "x", perm=[0, 2, 3, 1]), *X)
    sizes = n.const(np.array([1, 2 * size, 2 * size, 32]))
    value = n("Resize", data, "", "", sizes, mode="linear", coordinate_transformation_mode="half_pixel")
    return n.stored(value, *X)


def forms(size: int) -> dict[str, dict[str, Form]]:
    """Operator -> form -> its nodes, for data of `size` rows and columns."""
    gate = lambda x: x * np.clip(x / np.float32(6) + np.float32(0.5), 0, 1)  # noqa: E731
    unit = (1 / 128, 128)
    return {
        "Requantize": {
            "DQ, Q": lambda n: n.stored(n.real("x", *X), *Z),
            "DQ, LeakyRelu(1), Q: a table of 256": unary("LeakyRelu", alpha=1.0),
            "Cast, Gather": table(Z, lambda x: x),
        },
        "HardSwish": {
            "DQ, HardSwish, Q": unary("HardSwish"),
            "Cast, Gather": table(Z, gate),
        },
        "Tanh": {
            "DQ, Tanh, Q": unary("Tanh", unit),
            "DQ, Sigmoid, Q, doubled: a table of 256": lambda n: n.stored(n("Sigmoid", n.real("x", 2 * X[0], X[1])), 1 / 256, 0),
            "Cast, Gather": table(unit, np.tanh),
        },
        "Abs": {"DQ, Abs, Q": unary("Abs"), "DQ, LeakyRelu(-1), Q: a table of 256": unary("LeakyRelu", alpha=-1.0)},
        "Sub": {"DQ, Sub, Q": binary("Sub"), "QLinearMul by -1, QLinearAdd": sub_as_add},
        "Max of one quantization": {"DQ, Max, Q": binary("Max", X, X), "Max of integers": lambda n: n("Max", "x", "y")},
        "Resize to the double, nearest, half pixels": {
            "DQ, Resize, Q": lambda n: resize(n, "nearest", False, size), "Resize of integers": lambda n: resize(n, "nearest", True, size),
            "Resize of integers, asymmetric coordinates": lambda n: resize(n, "nearest", True, size, "asymmetric"),
        },
        "Resize to the double, linear": {
            "DQ, Resize, Q": lambda n: resize(n, "linear", False, size), "Resize of integers": lambda n: resize(n, "linear", True, size),
            "Transpose, DQ, Resize, Q: channels last": lambda n: resize_last(n, size),
        },
        "ConvTranspose 2x2, stride 2, 32 to 16 channels": {
            "DQ, ConvTranspose, Q": deconvolution,
            "QLinearConv of spread data": lambda n: dilated(n, size),
            "QLinearConv, Reshape, Transpose, Reshape": lambda n: by_phases(n, size),
        },
        "Add, as XNNPACK rounds": {
            "float64": add_float64, "int32, Div": add_int32, "int32, BitShift": add_uint32, "table of 65,536": add_table,
            "QLinearAdd": binary("Add"), "QLinearAdd, scales next to": add_beside,
        },
    }  # fmt: skip


def measure(sessions: Mapping[str, OnnxRuntime], feeds: Mapping[str, Array], runs: int) -> dict[str, tuple[float, float]]:
    """(least, median) processor time of each in µs; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in sessions}
    runners = {name: (item.session, {key: feeds[key] for key in item.inputs}) for name, item in sessions.items()}
    for turn in range(runs):
        for name, (session, feed) in runners.items():
            started = time.process_time()
            session.run(None, feed)
            if turn:
                times[name].append(time.process_time() - started)
    return {name: (min(values) * 1e6, statistics.median(values) * 1e6) for name, values in times.items()}


def lines(runs: int) -> list[list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    random = np.random.default_rng(1)
    for shape in SHAPES:
        feeds = {name: random.integers(0, 256, shape).astype(np.uint8) for name in "xy"}
        for operator, ways in forms(shape[-1]).items():
            sessions = {}
            for way, form in ways.items():
                nodes = Nodes()
                sessions[way] = OnnxRuntime(nodes.model(form(nodes), shape))
            results = {way: session.run({key: feeds[key] for key in session.inputs})["result"] for way, session in sessions.items()}
            wanted = next(iter(results.values()))
            results = {way: item if item.shape == wanted.shape else item.transpose(0, 3, 1, 2) for way, item in results.items()}
            for way, (least, median) in measure(sessions, feeds, runs).items():
                share = float((results[way] == wanted).mean())
                cells = found.setdefault((operator, way), [operator, way])
                cells.append(f"{least:.0f} ({median:.0f})")
                if len(cells) == 4:
                    cells.append("all" if share == 1 else f"{100 * share:.4f}%")
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    note = (
        f"onnxruntime on the CPU, 1 thread: least processor time of {options.runs} runs in turns, the median in brackets; a busy machine, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}. Equal: to the operator's first form, at the large size. Written are "
        "Max and Min of integers, doubled data by asymmetric coordinates, linear Resizes to 4 times the elements channels last "
        "where no Transpose of the result is needed for it, requantizations that round as XNNPACK's do as a LeakyRelu, and additions "
        "as QLinearAdd with the scales of the operator or next to these, else in float64. Tables by Gather are slower everywhere, "
        "ConvTranspose as QLinearConv too (without VNNI), and linear Resize of integers rounds otherwise."
    )
    publish(Section("Forms of operators in onnxruntime", HEADER, lines(options.runs), note), options.markdown,
            "python benchmarks/integer_forms.py", 200)  # fmt: skip


if __name__ == "__main__":
    main()
