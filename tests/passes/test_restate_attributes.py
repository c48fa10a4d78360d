"""What a file cannot state comes back from its metadata, and only where it is true of the file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from refusals import refused

import qconvert
from qconvert.errors import InvalidModelError
from qconvert.formats.reading.notes import quantization_of
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import FUSED_PADDING, STATED_ATTRIBUTES, STATED_LIMITS
from qconvert.passes.restate_attributes import restate_attributes

pytestmark = pytest.mark.formats

_GRID = Quantization.per_tensor(0.5, 3)
_WEIGHTS = np.array([[1, -127, 5], [127, 0, -3]], np.int8)


def _layer(weights: Quantization, data: np.ndarray[Any, Any] = _WEIGHTS) -> Graph:
    bias = Quantization(np.broadcast_to(weights.scale * np.float32(0.5), weights.scale.shape), np.zeros(weights.scale.size, np.int64),
                        None if weights.axis is None else 0)  # fmt: skip
    tensors = [
        Tensor("x", "int8", (2, 3), None, _GRID), Tensor("w", "int8", data.shape, data, weights),
        Tensor("b", "int32", (2,), np.array([7, -9], np.int32), bias), Tensor("y", "int8", (2, 2), None, Quantization.per_tensor(2.0, -1)),
    ]  # fmt: skip
    return Graph("net", {tensor.name: tensor for tensor in tensors}, (Op("Gemm", ("x", "w", "b"), ("y",)),), ("x",), ("y",))


def _limits(graph: Graph) -> tuple[int | None, int | None]:
    quantization = graph[graph.ops[0].inputs[1]].quantization
    assert quantization is not None
    return quantization.quant_min, quantization.quant_max


def test_a_scale_that_is_no_number_is_named_beside_a_note_of_its_operator(tmp_path: Path) -> None:
    qconvert.save(_layer(Quantization.per_tensor(0.25)), tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    model.metadata_props.add(key=STATED_ATTRIBUTES, value=json.dumps({"y": {"activation": "relu"}}))
    for item in model.graph.initializer:
        if item.name in {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}:
            item.CopyFrom(onnx.numpy_helper.from_array(np.full_like(onnx.numpy_helper.to_array(item), np.nan), item.name))
    onnx.save(model, tmp_path / "model.onnx")
    with refused(InvalidModelError, "scale-not-positive", where="tensor 'y'"):
        qconvert.load(tmp_path / "model.onnx")


@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
@pytest.mark.parametrize("limits", [(-127, None), (-127, 127), (None, 127)])
@pytest.mark.parametrize("axis", [None, 0])
def test_limits_of_weights_come_back(axis: int | None, limits: tuple[int | None, int | None], suffix: str, tmp_path: Path) -> None:
    quantization = Quantization.per_tensor(0.25) if axis is None else Quantization.per_axis([0.25, 0.125], 0)
    graph = _layer(replace(quantization, quant_min=limits[0], quant_max=limits[1]))
    qconvert.save(graph, tmp_path / f"model{suffix}")
    found = qconvert.load(tmp_path / f"model{suffix}")
    assert STATED_LIMITS not in found.metadata
    if limits[0] is None:  # 127 is the type's own
        assert _limits(found) == (None, None)
    else:
        assert qconvert.diff(graph, found) == []


def _noted(limits: Any, graph: Graph | None = None, name: str = "w") -> Graph:
    graph = _layer(Quantization.per_tensor(0.25)) if graph is None else graph
    return replace(graph, metadata={STATED_LIMITS: limits if isinstance(limits, str) else json.dumps({name: limits})})


@pytest.mark.parametrize(
    "limits",
    [
        "", "[", "[" * 100_000, "null", "3", '"w"', '["w"]', '{"w": NaN}', [-100, 127], [-127, 100], [-129, 127], [-127, 128], [5, 5],
        [127, -127], [-127], [-127, 127, 0], [-127.0, 127], ["-127", "127"], [True, 127], [[-127], 127], {"a": 1}, None, [None, None],
        [-128, 127], [-(10**30), 10**30],
    ],
)  # fmt: skip
def test_limits_that_are_none_of_the_constant_are_left_out(limits: Any) -> None:
    graph, notes = restate_attributes(_noted(limits), None)
    assert _limits(graph) == (None, None)
    assert (notes, graph.metadata) == ((), {})


@pytest.mark.parametrize("text", ["{", "5", '{"y": 1}', "[" * 100_000])
def test_a_list_of_padded_tensors_that_is_damaged_is_left_out(text: str) -> None:
    graph = replace(_layer(Quantization.per_tensor(0.25)), metadata={FUSED_PADDING: text})
    found, notes = restate_attributes(graph, None)
    assert (found.ops, found.metadata, notes) == (graph.ops, {}, ())


def test_the_file_wins_over_a_note() -> None:
    """Limits of its own, computed tensors, other types, and names that are of nothing."""
    own = _layer(replace(Quantization.per_tensor(0.25), quant_min=-127, quant_max=None))
    assert _limits(restate_attributes(_noted([-127, 127], own), None)[0]) == (-127, None)
    for name in ("x", "y", "b", "nothing"):
        assert qconvert.diff(restate_attributes(_noted([-127, 127], name=name), None)[0], _layer(Quantization.per_tensor(0.25))) == []


def test_weights_that_were_edited_have_no_limits(tmp_path: Path) -> None:
    qconvert.save(_layer(replace(Quantization.per_tensor(0.25), quant_min=-127)), tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    (weights,) = (item for item in model.graph.initializer if item.name == "w")
    edited = _WEIGHTS.copy()
    edited[0, 0] = -128
    weights.CopyFrom(onnx.numpy_helper.from_array(edited, "w"))
    onnx.save(model, tmp_path / "edited.onnx")
    assert _limits(qconvert.load(tmp_path / "model.onnx")) == (-127, None)
    found = qconvert.load(tmp_path / "edited.onnx")
    assert _limits(found) == (None, None)
    assert found[found.ops[0].inputs[1]].data is not None


@pytest.mark.parametrize(
    "stated",
    ["", "[" * 100_000, "[1]", {"y": [1]}, {"y": None}, {"y": {"activation": []}}, {"y": {"activation": {}, "arithmetic": []}},
     {"y": {"activation": "relu"}}, {"y": {"activation": "none"}}, {"y": {"arithmetic": "ties_up"}}, {"q": {"activation": "relu"}}],
)  # fmt: skip
def test_attributes_that_are_none_of_the_operator_are_left_out(stated: Any) -> None:
    graph = _layer(Quantization.per_tensor(0.25))
    noted = replace(graph, metadata={STATED_ATTRIBUTES: stated if isinstance(stated, str) else json.dumps(stated)})
    found, notes = restate_attributes(noted, None)
    assert (notes, found.metadata) == ((), {})
    assert qconvert.diff(graph, found) == []


@pytest.mark.parametrize("stated", ["", "[" * 100_000, '{"x": 1}', "[[1]]"])
def test_padding_that_is_no_list_of_names_is_left_out(stated: str) -> None:
    graph = _layer(Quantization.per_tensor(0.25))
    found, notes = restate_attributes(replace(graph, metadata={FUSED_PADDING: stated}), None)
    assert (notes, found.metadata) == ((), {}) and qconvert.diff(graph, found) == []


@pytest.mark.parametrize("quantization", [[0.5, 3, 0], [[[0.5]], [3], 0], [[0.5], 3, 0], [0.5], []])
def test_a_noted_quantization_that_is_none(quantization: list[Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        quantization_of(quantization)
