"""onnx's own shape inference knows no bound: what it would work out is bounded before it is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from loaded import onnx_graph
from onnx import helper, numpy_helper
from onnx_nodes import model_of

from qconvert import QConvertError


def model(nodes: list[Any], **constants: Any) -> bytes:
    """A model of x (2), whose last node writes y; an operator of nobody's makes onnx's inference necessary."""
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [2]), ("y", None))]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    unknown = helper.make_node("Unknown", ["x"], ["u"], domain="nobody")
    graph = helper.make_graph([unknown, *nodes], "g", values[:1], values[1:], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nobody", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def doubled(first: Any, count: int) -> list[Any]:
    chain = [helper.make_node("Concat", [f"c{i}"] * 2, [f"c{i + 1}"], axis=0) for i in range(count)]
    return [first, *chain, helper.make_node("ConstantOfShape", [f"c{count}"], ["y"])]


def ranged(dtype: str, limit: float, delta: float) -> bytes:
    nodes = [helper.make_node("Range", ["a", "b", "d"], ["c"]), helper.make_node("Cast", ["c"], ["f"], to=1)]
    ends = {name: np.array(value, dtype) for name, value in (("a", 0), ("b", limit), ("d", delta))}
    return model([*nodes, helper.make_node("Add", ["f", "x"], ["y"])], **ends)


FILES = {
    "range": ranged("int64", 2**50, 1),
    "range of int32": ranged("int32", 2**30, 1),
    "range of small steps": ranged("float32", 1, 1e-30),
    "range of no steps": ranged("float32", 1, 0),
    "range to no number": ranged("float32", np.nan, 1),
    "shapes joined": model(doubled(helper.make_node("Shape", ["x"], ["c0"]), 50)),
    "constants joined": model(doubled(helper.make_node("Identity", ["k"], ["c0"]), 50), k=np.int64([1])),
    "a constant as a shape": model(
        [helper.make_node("ConstantOfShape", ["k"], ["c"]), helper.make_node("Cast", ["c"], ["i"], to=7),
         helper.make_node("ConstantOfShape", ["i"], ["y"])], k=np.int64([2**40]),
    ),
}  # fmt: skip


#: Prints the most memory that the process has taken, in KiB. The kernel's ru_maxrss counts what its parent had when it was forked, too.
PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


@pytest.mark.end_to_end
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc says how much memory was taken")
@pytest.mark.parametrize("name", FILES)
def test_no_memory_is_taken_for_what_a_file_only_states(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(FILES[name])
    code = (
        "import resource, sys, qconvert\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (30, 30))\n"
        "try: qconvert.load(sys.argv[1])\n"
        "except qconvert.QConvertError: pass\n"
        f"{PEAK}"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "x.onnx"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 600 * 1024  # KiB


@pytest.mark.formats
def test_short_sizes_are_still_worked_out() -> None:
    """Through Shape, Concat and Gather, which our own rules leave to onnx behind an operator that nobody knows."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Concat", ["s", "k"], ["t"], axis=0),
        helper.make_node("Expand", ["x", "t"], ["y"]),
    ]  # fmt: skip
    assert onnx_graph(model(nodes, k=np.int64([2])))["y"].shape == (2, 2)


@pytest.mark.formats
@pytest.mark.parametrize("scale", [np.nan, np.inf, 1e38, -1.0, 0.0])
@pytest.mark.parametrize("size", [2, "n"])
def test_factors_of_a_resize_that_are_none(scale: float, size: Any) -> None:
    value = helper.make_tensor_value_info("x", 1, [1, 1, size, 2])
    node = helper.make_node("Resize", ["x", "", "s"], ["y"])
    scales = numpy_helper.from_array(np.array([1, 1, scale, scale], np.float32), "s")
    graph = helper.make_graph([node], "g", [value], [helper.make_tensor_value_info("y", 1, [1, 1, None, None])], [scales])
    data = model_of(graph).SerializeToString()
    try:
        assert [op.kind for op in onnx_graph(data).ops] in (["Opaque"], ["Shape", "Slice", "Mul", "Resize"])
    except QConvertError as error:
        assert str(error)
    assert onnx.load_from_string(data).graph.node


LARGE = 2**20
#: What is made of sizes alone: operator, shapes of its inputs, constant inputs, attributes.
SIZED: dict[str, tuple[list[list[int]], dict[str, Any], dict[str, Any]]] = {
    "Trilu": ([[LARGE, LARGE]], {}, {}),
    "EyeLike": ([[LARGE, LARGE]], {}, {}),
    "Col2Im": ([[1, 4, 9]], {"s": [LARGE, LARGE], "b": [2, 2]}, {}),
    "AffineGrid": ([[1, 2, 3]], {"s": [1, 1, LARGE, LARGE]}, {}),
    "GatherElements": ([[LARGE, LARGE], [LARGE, LARGE]], {}, {"axis": 0}),
    "Resize": ([[1, 1, 4, LARGE]], {"r": np.zeros(0, np.float32), "f": np.float32([1, 1, 1, LARGE])}, {"mode": "cubic"}),
    "DequantizeLinear": ([[1]], {}, {"axis": 0, "block_size": 2**62}),
}


@pytest.mark.end_to_end
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc says how much memory was taken")
@pytest.mark.parametrize("name", SIZED)
def test_no_constant_is_made_of_sizes_that_a_file_only_states(name: str, tmp_path: Path) -> None:
    shapes, constants, attributes = SIZED[name]
    inputs = [helper.make_tensor_value_info(f"x{i}", 7 if i else 1, shape) for i, shape in enumerate(shapes)]
    names = [value.name for value in inputs]
    if name == "DequantizeLinear":
        names, constants = ["w", "z"], {"w": np.int8([[1, 2], [3, 4]]), "z": np.float32([[1, 2]])}
    node = helper.make_node(name, [*names, *(key for key in constants if key not in names)], ["y"], **attributes)
    initializers = [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", 1, None)], initializers)
    data = model_of(graph, 21).SerializeToString()
    (tmp_path / "x.onnx").write_bytes(data)
    code = (
        "import resource, sys, qconvert\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))\n"
        "for result in sys.argv[2:]:\n"
        "    try: qconvert.convert(sys.argv[1], result)\n"
        "    except qconvert.QConvertError: pass\n"
        f"{PEAK}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *(tmp_path / name for name in ("x.onnx", "y.onnx", "y.tflite"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 900 * 1024  # KiB
