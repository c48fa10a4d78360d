"""The command line of trtexec: flags by version, bounds of dynamic dimensions, names."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of

from qconvert import Graph, convert, load
from qconvert.graph.metadata import COMMAND
from qconvert.targets.tensorrt import bounds, trtexec

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[2] / "fixtures"


def graph_of(path: Path, nodes: list[Any], inputs: dict[str, list[Any]], **constants: Any) -> Graph:
    made = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items()],
    )
    onnx.save(model_of(made), path)
    return load(path)


def convolution(path: Path, shape: list[Any], name: str = "x") -> Graph:
    return graph_of(path, [helper.make_node("Conv", [name, "w"], ["y"])], {name: shape}, w=np.ones((4, 3, 3, 3), np.float32))


def words(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def test_known_sizes_need_no_bounds(tmp_path: Path) -> None:
    line = trtexec(convolution(tmp_path / "a.onnx", [1, 3, 8, 8]), "my models/a.onnx")
    assert words(line) == ["trtexec", "--onnx=my models/a.onnx", "--stronglyTyped", "--saveEngine=my models/a.plan"]
    assert "TensorRT 10" in line and "11" in line and "examples" not in line


def test_a_cache_is_for_versions_that_quantize_by_themselves(tmp_path: Path) -> None:
    line = trtexec(convolution(tmp_path / "a.onnx", [1, 3, 8, 8]), "a.onnx", "a.cache")
    assert words(line) == ["trtexec", "--onnx=a.onnx", "--int8", "--calib=a.cache", "--saveEngine=a.plan"]
    assert "11 takes no caches" in line


def test_open_sizes_get_bounds(tmp_path: Path) -> None:
    graph = convolution(tmp_path / "a.onnx", ["N", 3, "H", 32])
    assert bounds(graph) == {"x": ((1, 3, 224, 32), (4, 3, 224, 32), (16, 3, 224, 32))}
    line = trtexec(graph, "a.onnx")
    assert words(line)[3:6] == ["--minShapes=x:1x3x224x32", "--optShapes=x:4x3x224x32", "--maxShapes=x:16x3x224x32"]
    assert line.endswith("dynamic dimensions are examples")


def test_a_batch_that_operators_fix_has_one_number(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    graph = graph_of(tmp_path / "a.onnx", nodes, {"x": ["N", 6]}, shape=np.int64([2, 6]))
    assert bounds(graph) == {"x": ((2, 6), (2, 6), (2, 6))}


def test_sizes_that_operators_demand(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "a.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["N", "K"]}, w=np.ones((8, 3), np.float32))
    assert bounds(graph)["x"] == ((1, 8), (4, 8), (16, 8))


def test_only_open_inputs_and_one_number_for_one_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Add", ["s", "c"], ["y"])]
    found = bounds(graph_of(tmp_path / "a.onnx", nodes, {"a": ["N", 4], "b": ["N", 4], "c": [1, 4]}))
    assert found == dict.fromkeys("ab", ((1, 4), (4, 4), (16, 4)))


@pytest.mark.parametrize("name", ["input:0", "a b", "x,y"])
def test_names_are_quoted(name: str, tmp_path: Path) -> None:
    line = trtexec(convolution(tmp_path / "a.onnx", ["N", 3, 8, 8], name), "a.onnx")
    assert f"--minShapes='{name}':1x3x8x8" in words(line)


def test_a_model_for_tensorrt_says_its_command(tmp_path: Path) -> None:
    result = tmp_path / "out.onnx"
    report = convert(FIXTURES / "tflm_person_detect_int8.tflite", result, target="tensorrt")
    stated = load(result).metadata[COMMAND]
    assert words(stated) == ["trtexec", "--onnx=out.onnx", "--stronglyTyped", "--saveEngine=out.plan"]
    assert str(report.changes[-1]).startswith(f"tensorrt: trtexec --onnx={result}")
    assert COMMAND in json.loads(json.dumps(dict(report.provenance)))
