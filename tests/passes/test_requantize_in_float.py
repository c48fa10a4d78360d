"""Requantizations that LiteRT's QUANTIZE would round otherwise, by float values: the form, its integers, and where it is not taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qconvert import Graph, Op, Quantization, Tensor, check, convert, load, save
from qconvert.conversion.normalizing import normalize
from qconvert.evaluate import evaluate
from qconvert.graph.metadata import SOURCE_FORMAT
from qconvert.plugins import target_named

CODES = np.arange(-128, 128).astype(np.int8)


def requantized(scale: float) -> Graph:
    """All codes of a scale of 0.05 on another one."""
    tensors = [
        Tensor("x", "int8", (256,), None, Quantization.per_tensor(0.05, 3)),
        Tensor("y", "int8", (256,), None, Quantization.per_tensor(scale, -20)),
    ]
    return Graph("g", {tensor.name: tensor for tensor in tensors}, (Op("Requantize", ("x",), ("y",)),), ("x",), ("y",))


@pytest.mark.parametrize(
    ("target", "scale", "numerics", "kinds"),
    [
        ("tflite", 0.0337, "exact", ["Dequantize", "Quantize"]),
        ("tflite", 0.0337, "fast", ["Requantize"]),
        ("tflite", 0.025, "exact", ["Requantize"]),  # twice as many steps, and no ties
        ("tflite-micro", 0.0337, "exact", ["Requantize"]),  # whose kernel has 31 bits
    ],
)
def test_the_form_depends_on_the_kernel_of_the_target(target: str, scale: float, numerics: str, kinds: list[str]) -> None:
    graph = requantized(scale)
    found, _ = normalize(graph, target_named(target), numerics=numerics)
    assert [op.kind for op in found.ops] == kinds
    np.testing.assert_array_equal(evaluate(found, {"x": CODES})["y"], evaluate(graph, {"x": CODES})["y"])


def test_a_tflite_file_keeps_what_it_has() -> None:
    graph, target = requantized(0.0337), target_named("tflite")
    for file in (graph, normalize(graph, target)[0]):
        found, _ = normalize(replace(file, metadata={SOURCE_FORMAT: "tflite"}), target)
        assert [op.kind for op in found.ops] == [op.kind for op in file.ops]


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_the_data_of_a_concat_are_rounded_once(tmp_path: Path) -> None:
    scales = {"a": 0.05, "b": 0.0337, "y": 0.061}
    tensors = [Tensor(name, "int8", (256,) if name != "y" else (512,), None, Quantization.per_tensor(s, 3)) for name, s in scales.items()]
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (Op("Concat", ("a", "b"), ("y",), {"axis": 0}),), ("a", "b"), ("y",))
    save(graph, tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
    assert [op.kind for op in load(tmp_path / "m.tflite").ops] == ["Dequantize", "Quantize", "Dequantize", "Quantize", "Concat"]
    report = check(tmp_path / "m.onnx", tmp_path / "m.tflite")
    assert report.passed and report.proof is not None and report.proof.equal_for_all_inputs
    convert(tmp_path / "m.onnx", tmp_path / "fast.tflite", numerics="fast")
    fast = check(tmp_path / "m.onnx", tmp_path / "fast.tflite")
    assert fast.outputs[0].differs and fast.proof is not None and not fast.proof.equal_for_all_inputs
