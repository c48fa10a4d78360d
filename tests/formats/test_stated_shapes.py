"""Shapes of results that a file states otherwise than its operators compute them: runtimes compute them again, and so does reading."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tflite_models import OpSpec, TensorSpec, model, run_litert, single_op

from qconvert import check, convert, load
from qconvert.errors import RuntimeRefusedError
from qconvert.graph.metadata import ASSUMED
from qconvert.operators.sizes import is_compatible

sys.path.insert(0, str(Path(__file__).parents[1] / "targets"))
from one_operator import BUILTINS, CASES, random_feed


def _types_of(name: str) -> list[str]:
    found = []
    for dtype in ("int8", "float32", "int32", "bool"):
        try:
            CASES[name](dtype, 4)
        except LookupError:
            continue
        found.append(dtype)
    return found


@pytest.mark.litert
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"RANGE"}))  # whose own case has no inputs, and a dynamic dimension
def test_reading_has_the_shapes_that_litert_computes(tmp_path: Path, name: str) -> None:
    """An axis more, and one element more along the last axis."""
    for dtype in _types_of(name):
        options, inputs, outputs = CASES[name](dtype, 4)
        feeds = [random_feed(t, name, np.random.default_rng(4)) for t in inputs if t is not None and t.data is None]
        for wrong in (lambda shape: (1, *shape), lambda shape: (*shape[:-1], shape[-1] + 1) if shape else (2,)):
            stated = [replace(item, shape=wrong(item.shape), shape_signature=None) for item in outputs]
            data = single_op(BUILTINS.get(name, name), options, inputs, stated)
            try:
                computed = run_litert(data, feeds)
            except RuntimeRefusedError:  # no kernel for the type
                continue
            (tmp_path / "m.tflite").write_bytes(data)
            graph = load(tmp_path / "m.tflite")
            shapes = [graph[output].shape for output in graph.outputs]
            assert all(is_compatible(shape, result.shape) for shape, result in zip(shapes, computed, strict=True)), dtype
            if name != "WHERE":  # whose number of rows is open
                assert None not in shapes and not any(isinstance(size, str) for shape in shapes for size in shape or ())
                assert any(item.shape != result.shape for item, result in zip(stated, computed, strict=True)) == (ASSUMED in graph.metadata)
            return
    pytest.fail("LiteRT runs it with no type")


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_a_network_behind_a_wrong_shape_is_converted(tmp_path: Path, suffix: str) -> None:
    """ARG_MAX whose result has an axis too much, as some converters wrote it, and what is computed of it."""
    tensors = [
        TensorSpec("x", (2, 5), "int8", 0.5, 3), TensorSpec("axis", (), "int32", data=np.array(1, np.int32)),
        TensorSpec("most", (2, 1), "int32"), TensorSpec("y", (2, 1), "float32"),
    ]  # fmt: skip
    ops = [OpSpec("ARG_MAX", ["x", "axis"], ["most"], {"outputType": 2}), OpSpec("CAST", ["most"], ["y"], {"inDataType": 2})]
    (tmp_path / "m.tflite").write_bytes(model(ops, tensors, ["x"], ["y"]))
    report = convert(tmp_path / "m.tflite", tmp_path / f"r.{suffix}")
    assert any("ARG_MAX #0, CAST #1" in change.text for change in report.changes)
    result = load(tmp_path / f"r.{suffix}")
    assert result[result.outputs[0]].shape == (2,)
    assert check(tmp_path / "m.tflite", tmp_path / f"r.{suffix}").passed


@pytest.mark.onnxruntime
def test_what_onnx_states_of_values(tmp_path: Path) -> None:
    """onnxruntime warns of a shape that a node does not compute, and runs it."""
    import onnxruntime
    from onnx import parser

    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2, 5] x) => (int64[2, 1] y) <float[2, 6] a> '
        "{ a = Relu(x) y = ArgMax <axis = 1, keepdims = 0> (a) }"
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    assert session.run(None, {"x": np.ones((2, 5), np.float32)})[0].shape == (2,)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    graph = load(tmp_path / "m.onnx")
    assert graph["a"].shape == (2, 5) and graph["y"].shape == (2,)
