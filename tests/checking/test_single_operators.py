"""Checks of models of one operator, out of the ONNX operator matrix: what its conversion does is known, and what is wrong is found."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qconvert
from qconvert import convert
from qconvert.arithmetic import dequantize
from qconvert.graph import Graph

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures" / "zoo"))

import operators_onnx

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]


@cache
def named(operator: str) -> dict[str, Any]:
    return {case.name: case for case in operators_onnx.cases(operator) if case.operator == operator}


def written(folder: Path, name: str, to: str = "a.onnx") -> tuple[Path, Path]:
    """The model of a case, and its inputs."""
    operator, case = name.split("/")
    model, feeds = operators_onnx.made(named(operator)[case])
    path, inputs = folder / to, folder / f"{to}.npz"
    path.write_bytes(model.SerializeToString())
    np.savez(inputs, **feeds)
    return path, inputs


@pytest.mark.parametrize("name", [
    "ConstantOfShape/000.float32", "HannWindow/000.float32", "Size/000.float32", "EyeLike/000.float32",  # of no values
    "Sinh/007.qdq_uint8",  # of no elements
    "Clip/000.qdq_uint8", "AveragePool/007.qdq_int8", "LogSoftmax/000.qdq_uint8",  # of XNNPACK's and TFLite's own kernels
    "AveragePool/014.qdq_int8",  # which onnxruntime divides wrongly
    "ConvTranspose/008.qdq_int8", "Conv/026.float32",  # whose groups are zeros among the weights
    "Softmax/000.float16", "Swish/000.float16", "Erf/006.float32", "Hardmax/003.float32",
])  # fmt: skip
def test_a_conversion_and_its_way_back_pass(tmp_path: Path, name: str) -> None:
    source, inputs = written(tmp_path, name)
    there, back = tmp_path / "b.tflite", tmp_path / "c.onnx"
    least = 15.0 if name == "AveragePool/014.qdq_int8" else None  # outputs are as far apart as onnxruntime is wrong
    for before, after in ((source, there), (there, back)):
        convert(before, after)
        report = qconvert.check(before, after, data=[inputs], min_sqnr=least)
        assert report.verdict == "passed", report.problems + report.unjudged


def test_another_window_is_another_result(tmp_path: Path) -> None:
    source, _ = written(tmp_path, "HannWindow/000.float32")
    other, _ = written(tmp_path, "BlackmanWindow/000.float32", "other.onnx")
    convert(other, tmp_path / "b.tflite")
    assert qconvert.check(source, tmp_path / "b.tflite").verdict == "not equal"


@pytest.mark.parametrize("name", ["ConvTranspose/008.qdq_int8", "ConvTranspose/007.qdq_int8"])
def test_a_wrong_weight_of_a_group_is_found(tmp_path: Path, name: str) -> None:
    source, inputs = written(tmp_path, name)
    model = onnx.load(source)
    weights = next(item for item in model.graph.initializer if item.name == "i1")
    changed = numpy_helper.to_array(weights).copy()
    changed.reshape(-1)[3] += -1 if changed.reshape(-1)[3] > 0 else 1
    weights.CopyFrom(numpy_helper.from_array(changed, "i1"))
    onnx.save(model, tmp_path / "wrong.onnx")
    convert(tmp_path / "wrong.onnx", tmp_path / "b.tflite")
    report = qconvert.check(source, tmp_path / "b.tflite", data=[inputs])
    assert report.verdict == "not equal"
    assert any("'i1' are not the source's" in problem for problem in report.problems)


def with_real_constants(graph: Graph) -> Graph:
    """The graph without the Dequantize after each constant."""
    tensors = dict(graph.tensors)
    for op in graph.ops:
        if op.kind == "Dequantize" and graph[op.inputs[0]].is_constant:
            stored = graph[op.inputs[0]]
            assert stored.data is not None and stored.quantization is not None
            real = dequantize(stored.data, stored.quantization).astype(np.float32)
            tensors[op.outputs[0]] = replace(graph[op.outputs[0]], data=real)
    kept = [op for op in graph.ops if not (op.kind == "Dequantize" and graph[op.inputs[0]].is_constant)]
    return graph.evolve(tensors=tensors.values(), ops=tuple(kept))


@pytest.mark.cross_section
def test_real_weights_between_integers_stay_real(tmp_path: Path) -> None:
    """onnxruntime's optimizer would round them to int8 (weight_bias_quantization.cc)."""
    source, inputs = written(tmp_path, "Gemm/007.qdq_int8")
    integer, there, back = tmp_path / "a.tflite", tmp_path / "b.tflite", tmp_path / "c.onnx"
    convert(source, integer)
    qconvert.save(with_real_constants(qconvert.load(integer)), there)
    assert [op.kind for op in qconvert.load(there).ops] == ["Dequantize", "Gemm", "Quantize"]
    convert(there, back)
    report = qconvert.check(there, back, data=[inputs])
    assert report.verdict == "passed"
    assert report.outputs[0].largest <= 1
    again = tmp_path / "d.tflite"
    convert(back, again)
    assert [op.kind for op in qconvert.load(again).ops] == ["Dequantize", "Gemm", "Quantize"]
