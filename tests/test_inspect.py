"""The command inspect: what it shows of a file, within 80 columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tflite_models import TensorSpec, single_op

pytestmark = pytest.mark.end_to_end

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODEL = FIXTURES / "tiny_kws_dscnn_int8.tflite"
ONNX = FIXTURES / "onnx" / "tf2onnx_tiny_resnet_cifar10_int8.onnx"


def inspect(*arguments: str | Path, columns: int = 0, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    if columns:
        environment["COLUMNS"] = str(columns)
    command = [sys.executable, "-m", "qconvert", "inspect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment, **options)  # type: ignore[call-overload,no-any-return]


def test_a_tflite_files_own_operators() -> None:
    done = inspect(MODEL)
    assert done.returncode == 0, done.stderr
    head = done.stdout.partition("\n\n--verbose")[0]
    assert "schema version 3; producer MLIR Converted." in head
    own = {"CONV_2D": 5, "DEPTHWISE_CONV_2D": 4, "AVERAGE_POOL_2D": 1, "RESHAPE": 1, "FULLY_CONNECTED": 1, "SOFTMAX": 1}
    canonical = {"Conv": 9, "AveragePool": 1, "Reshape": 1, "Gemm": 1, "Softmax": 1}
    rows = [tuple(line.split()) for line in head.splitlines()]
    assert [(name, str(count)) for found in (own, canonical) for name, count in found.items()] == [
        row for row in rows if len(row) == 2 and row[1].isdigit()
    ]
    assert json.loads(inspect(MODEL, "--json").stdout)["file"]["operators"] == own


def test_the_summary_comes_first_and_every_tensor_when_asked_for() -> None:
    lines = inspect(MODEL).stdout.splitlines()
    assert lines[:2] == [
        f"{MODEL}: 13 operators, 35 tensors, {MODEL.stat().st_size:,} bytes",
        "quantized: 20 constants with 22,604 integers, 14 of 14 activations; 0 float constants",
    ]
    assert [line.split()[:4] for line in lines[5:7]] == [
        ["input", "input_1", "int8", "batch,49,10,1"],
        ["output", "Identity", "int8", "batch,12"],
    ]
    assert len(lines) < 32 and "--verbose" in lines[-1]
    whole = inspect(MODEL, "--verbose").stdout.splitlines()
    assert len(whole) == len(lines) + 35 + 1 and not any("--verbose" in line for line in whole)


def test_an_onnx_files_own_nodes() -> None:
    model = onnx.load(ONNX)
    found = json.loads(inspect(ONNX, "--json").stdout)["file"]
    assert sum(found["operators"].values()) == len(model.graph.node)
    assert found["operators"]["DequantizeLinear"] == sum(node.op_type == "DequantizeLinear" for node in model.graph.node)
    assert found["ir version"] == model.ir_version and found["producer"] == f"{model.producer_name} {model.producer_version}"
    assert f"opset {model.opset_import[0].version}" in inspect(ONNX).stdout


def test_operators_that_are_not_covered_are_shown_all_the_same(tmp_path: Path) -> None:
    made = single_op("RANDOM_UNIFORM", None, [TensorSpec("s", (1,), "int32")], [TensorSpec("y", (1,), "float32")])
    (tmp_path / "m.tflite").write_bytes(made)
    done = inspect(tmp_path / "m.tflite")
    assert done.returncode == 2 and "RANDOM_UNIFORM (1" in done.stderr
    assert [line.split() for line in done.stdout.splitlines() if line.startswith("RANDOM")] == [["RANDOM_UNIFORM", "1"]]


def long_names(folder: Path) -> Path:
    """A model whose names, sizes and producer are longer than a line."""
    x, y, w = "x" * 3000, "y" * 90 + "é" * 90, "w/" * 100 + "\x1b[31m"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["symbolic size of the batch", size, 3, 4, 5, 6])
        for name, size in ((x, 7), (y, 7))
    ]
    weight = numpy_helper.from_array(np.zeros((7, 3, 4, 5, 6), np.float32), w)
    graph = helper.make_graph([helper.make_node("Add", [x, w], [y])], "g", ends[:1], ends[1:], [weight])
    path = folder / f"{'m' * 150}.onnx"
    onnx.save(helper.make_model(graph, producer_name="p" * 200, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("columns", [0, 60, 132])
def test_lines_are_no_longer_than_the_terminal(columns: int, tmp_path: Path) -> None:
    names = ("x/" * 60, "y" * 200)
    data = single_op("RELU", None, *([TensorSpec(name, (1, 2, 3, 4), "int8", 0.1, 3)] for name in names))
    (tmp_path / "long.tflite").write_bytes(data)
    for path in (MODEL, ONNX, tmp_path / "long.tflite", long_names(tmp_path)):
        done = inspect(path, columns=columns)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert not columns or max(map(len, lines)) <= columns  # a pipe gets whole lines
        assert "\x1b" not in done.stdout
    rows = [line for line in lines if line.startswith("w/w/")]
    assert len(rows) == 1 and ("…" in rows[0]) == bool(columns) and "x1b[31m" in rows[0].split()[0]


def test_standard_input(tmp_path: Path) -> None:
    with MODEL.open("rb") as stream:
        piped = inspect("-", "--from", "tflite", columns=200, stdin=stream)
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == inspect(MODEL, columns=200).stdout.replace(str(MODEL), "-")
    with MODEL.open("rb") as stream:
        unnamed = inspect("-", stdin=stream)
    assert (unnamed.returncode, unnamed.stderr.count("\n")) == (2, 2) and "--from" in unnamed.stderr
    empty = inspect("-", "--from", "onnx", stdin=subprocess.DEVNULL)
    assert (empty.returncode, empty.stderr) == (2, "error: -: the file is empty\n")


def test_functions_are_listed() -> None:
    done = inspect(FIXTURES / "recurrent" / "nested_float.tflite")
    lines = done.stdout.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("function "))
    assert [line.split()[-2:] for line in lines[start + 2 : start + 4]] == [["Less", "1"], ["Add", "1"]]
