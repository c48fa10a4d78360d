"""Definitions of onnx that branch: their branches become functions of the graph, under names of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from refusals import refused

from qconvert import check, convert, load
from qconvert.conversion import run_passes
from qconvert.errors import UnsupportedError
from qconvert.operators.shapes_and_functions import named_functions
from qconvert.rules.validation import validate


def grids(folder: Path, *, sizes: bool) -> Path:
    """Two AffineGrids, whose definition branches on the rank; their sizes are an input, or constant."""
    size = numpy_helper.from_array(np.array([1, 1, 3, 4], np.int64), "size")
    nodes = [helper.make_node("AffineGrid", [f"theta{i}", "size"], [f"grid{i}"], align_corners=i) for i in range(2)]
    inputs = [helper.make_tensor_value_info(f"theta{i}", TensorProto.FLOAT, [1, 2, 3]) for i in range(2)]
    given = [] if sizes else [helper.make_tensor_value_info("size", TensorProto.INT64, [4])]
    outputs = [helper.make_tensor_value_info(f"grid{i}", TensorProto.FLOAT, [1, 3, 4, 2] if sizes else None) for i in range(2)]
    graph = helper.make_graph(nodes, "grids", inputs + given, outputs, [size] if sizes else [])
    onnx.save(model_of(graph, 20), folder / "grids.onnx")
    return folder / "grids.onnx"


@pytest.mark.formats
def test_branches_of_two_operators_have_names_of_their_own(tmp_path: Path) -> None:
    graph, _ = run_passes(load(grids(tmp_path, sizes=False)), ["expand_definitions"])
    validate(graph)
    named = [name for op in graph.ops for name in named_functions(op)]
    assert len(named) >= 4 and len(set(named)) == len(named) and set(named) <= set(graph.functions)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
def test_constant_sizes_choose_the_branch(tmp_path: Path) -> None:
    convert(grids(tmp_path, sizes=True), tmp_path / "grids.tflite")
    assert check(tmp_path / "grids.onnx", tmp_path / "grids.tflite", samples=2).passed


@pytest.mark.formats
def test_a_quantization_of_open_sizes_is_refused_by_name(tmp_path: Path) -> None:
    with refused(UnsupportedError, "target-rules", holds=("AffineGrid",)):
        convert(grids(tmp_path, sizes=False), tmp_path / "grids.tflite")
