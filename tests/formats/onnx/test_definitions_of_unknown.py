"""Definitions of operators whose results have types that the file does not state, as after data of unknown rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import parser

from qconvert import load
from qconvert.conversion import run_passes
from qconvert.rules.validation import validate

pytestmark = pytest.mark.formats

_TEXT = """<ir_version: 10, opset_import: ["" : 17, "own": 1]> g (float[n, 3] x) => (int64 y) {
    a = own.Unknown (x)
    m = Size (a)
    y = Identity (m) }"""


def test_size_of_what_nobody_knows_the_rank_of(tmp_path: Path) -> None:
    model = parser.parse_model(_TEXT)
    model.graph.value_info.append(onnx.ValueInfoProto(name="a", type=onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=1))))
    onnx.save(model, tmp_path / "a.onnx")
    graph = load(tmp_path / "a.onnx")
    graph = graph.evolve(tensors=[replace(graph["m"], dtype="unknown", shape=None)])  # as where onnx's inference gives up
    expanded, _ = run_passes(graph, ["expand_definitions"])
    validate(expanded)
    assert [op.kind for op in expanded.ops if "m" in op.outputs] == ["ReduceProd"]
    assert expanded["m"].dtype == "int64"
