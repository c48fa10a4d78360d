"""Operators that run functions are checked as a whole: their outputs, whatever stands inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qconvert
from tests.formats.onnx.test_control import graph_of, quantized

pytestmark = pytest.mark.onnxruntime

FOLDER = Path(__file__).parents[2] / "fixtures" / "recurrent"


@pytest.mark.litert
@pytest.mark.parametrize(
    ("name", "operator", "verdict"),
    [("gru_float", "WHILE #1", "approximate"), ("gru_dynamic", "WHILE #1", "dynamic range"), ("nested_float", "", "")],
)
def test_loops_of_tensorflow_are_judged_by_what_they_give(name: str, operator: str, verdict: str, tmp_path: Path) -> None:
    """A GRU next to the WHILE that it was; one that rounds its data when it runs, next to a Scan on the data as they are."""
    source = FOLDER / f"{name}.tflite"
    qconvert.convert(source, tmp_path / "r.onnx")
    report = qconvert.check(source, tmp_path / "r.onnx")
    assert report.verdict == "passed", report.problems
    found = {item.operator: item.verdict for item in report.operators}
    assert found.get(operator, "") == verdict


@pytest.mark.cross_section
@pytest.mark.parametrize("name", ["branches that capture", "a loop that ends by itself", "a scan", "a value that grows"])
def test_graphs_inside_nodes_are_judged(name: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(graph_of(name)[0])
    qconvert.convert(tmp_path / "m.onnx", tmp_path / "r.onnx")
    assert qconvert.check(tmp_path / "m.onnx", tmp_path / "r.onnx").verdict == "passed"


def test_a_weight_inside_a_loop_that_is_another_is_found(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(quantized())
    qconvert.convert(tmp_path / "m.onnx", tmp_path / "r.onnx")
    proto: Any = onnx.load(tmp_path / "r.onnx")
    (loop,) = (node for node in proto.graph.node if node.op_type == "Loop")
    held = [*proto.graph.initializer, *loop.attribute[0].g.initializer]
    weights = next(item for item in held if list(item.dims) == [4, 4])
    data = numpy_helper.to_array(weights).copy()
    data[0, 0] = data[0, 0] + 40 if data[0, 0] < 0 else data[0, 0] - 40
    weights.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(data), weights.name))
    onnx.save(proto, tmp_path / "r.onnx")
    report = qconvert.check(tmp_path / "m.onnx", tmp_path / "r.onnx")
    assert report.verdict == "not equal", report.verdict
