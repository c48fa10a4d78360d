"""Integers with a quantization that no node of an ONNX file states: the metadata do, and a note that is wrong changes no result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaded import onnx_graph
from passes.graphs import constant, make, q
from refusals import refused
from tflite_models import TensorSpec, single_op

from qconvert import check, convert
from qconvert.errors import InvalidModelError
from qconvert.formats.onnx.writer import build
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import RELABELLED

SIZES = np.array([3, 2], np.int32)
#: An operator of TFLite that moves or chooses stored integers, and its inputs and result, whose quantizations differ.
MODELS = {
    "RESHAPE": ({}, [TensorSpec("x", (2, 3), "int8", 0.125, 0), TensorSpec("s", (2,), "int32", data=SIZES)],
                TensorSpec("y", (3, 2), "int8", 0.031, 5)),
    "MINIMUM": ({}, [TensorSpec("x", (2, 3), "uint8", 0.1, 78), TensorSpec("z", (2, 3), "uint8", 0.1, 78)],
                TensorSpec("y", (2, 3), "uint8", 0.1, 0)),
}  # fmt: skip


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", ["generic", "ort-x86"])
def test_the_quantization_of_an_output_comes_back(name: str, target: str, tmp_path: Path) -> None:
    options, inputs, output = MODELS[name]
    source, result, again = (tmp_path / file for file in ("a.tflite", "b.onnx", "c.tflite"))
    source.write_bytes(single_op(name, options, inputs, [output]))
    convert(source, result, target=target)
    found = onnx_graph(result.read_bytes())["y"].quantization
    assert found is not None and found.step == np.float32(output.scale)
    assert check(source, result).passed
    convert(result, again)
    assert check(result, again).passed


def relabelled() -> Graph:
    quantizations = {"x": q(0.5, 3), "y": q(0.25, -4), "p": None, "z": None}
    tensors = [Tensor(name, "int8", (4,), None, quantization) for name, quantization in quantizations.items()]
    ops = [Op("Reinterpret", ("x",), ("y",)), Op("Reinterpret", ("x",), ("p",)), Op("Add", ("p", "c"), ("z",))]
    return make(ops, [*tensors, constant("c", np.int8([1, 2, 3, 4]))], "x", "y z")


def with_note(note: str) -> bytes:
    model = build(relabelled(), 17, {})
    for entry in model.metadata_props:
        if entry.key == RELABELLED:
            entry.value = note
    return bytes(model.SerializeToString())


@pytest.mark.formats
def test_the_note_is_of_the_file_and_not_of_the_graph() -> None:
    entries = {entry.key: entry.value for entry in build(relabelled(), 17, {}).metadata_props}
    assert json.loads(entries[RELABELLED]) == {"y": [0.25, -4], "p": None}
    graph = onnx_graph(with_note(entries[RELABELLED]))
    assert graph["y"].quantization == q(0.25, -4) and RELABELLED not in graph.metadata


#: Two quantizations of the same integers.
TWO_GRIDS = {
    "per axis": ("int8", Quantization.per_axis([0.1, 0.2, 0.3], 1), Quantization.per_axis([0.2, 0.4, 0.6], 1, [1, 2, 3])),
    "per axis and per tensor": ("int8", Quantization.per_axis([0.1, 0.2, 0.3], 1), q(0.3, 2)),
    "four bits": ("uint4", q(0.5, 3), q(0.5, 4)),
}


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", TWO_GRIDS)
def test_integers_quantized_on_one_quantization_are_moved_on_another(name: str, tmp_path: Path) -> None:
    dtype, quantization, label = TWO_GRIDS[name]
    tensors = [Tensor("x", "float32", (2, 3)), Tensor("q", dtype, (2, 3), None, quantization), Tensor("l", dtype, (2, 3), None, label)]
    tensors += [Tensor("m", dtype, (2, 3), None, label), Tensor("r", "int8", (2, 3), None, q(0.07, 3)), Tensor("y", "float32", (2, 3))]
    ops = [Op("Quantize", ("x",), ("q",)), Op("Reinterpret", ("q",), ("l",)), Op("Reshape", ("l", "s"), ("m",))]
    ops += [Op("Requantize", ("m",), ("r",)), Op("Dequantize", ("r",), ("y",))]
    source, result = tmp_path / "a.onnx", tmp_path / "b.onnx"
    source.write_bytes(build(make(ops, [*tensors, constant("s", np.int64([2, -1]))], "x", "y"), 21, {}).SerializeToString())
    convert(source, result)
    assert onnx_graph(result.read_bytes())["m"].quantization == label
    if dtype == "int8":  # onnxruntime has no Identity of uint4
        assert check(source, result).verdict == "passed"


@pytest.mark.formats
@pytest.mark.parametrize(
    "quantization",
    [
        [0.0, 0],
        [-1.0, 0],
        [1e400, 0],
        [0.5, 1000],
        [0.5, -129],
        [[0.5], [0], 0],
        [[0.5] * 4, [200] * 4, 0],
        [[0.5] * 4, [0] * 4, 7],
        [[0.5, -1, 1, 1], [0] * 4, 0],
        [[], [], 0],
    ],
    ids=str,
)
def test_a_note_that_cannot_be_is_none(quantization: Any) -> None:
    assert onnx_graph(with_note(json.dumps({"y": quantization, "other": [1.0, 0]})))["y"].quantization != q(0.25, -4)


@pytest.mark.formats
@pytest.mark.parametrize(
    "note",
    [
        '{"y": [[1.0], ["a"], 0]}',
        '{"y": [1.0, 1, 0]}',
        '{"y": [[[1.0]], [1], 0]}',
        "",
        "[1]",
        "7",
        '{"y": 3}',
        '{"y": ["a", 1]}',
        '{"y": [1]}',
        "[" * 100_000,
        '{"y": [1.0, 1e999]}',
    ],
)
def test_a_damaged_note_is_an_error(note: str) -> None:
    with refused(InvalidModelError, "malformed-metadata"):
        onnx_graph(with_note(note))
