"""split_wide_weights and join_wide_weights: signed weights for unsigned ones that int8 does not hold, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert import Graph, Op, Quantization, Tensor, convert, load, prove
from qconvert.evaluate import evaluate
from qconvert.passes import BUILTIN
from qconvert.rules.differences import diff
from qconvert.rules.validation import validate

FIXTURES = Path(__file__).parents[2] / "fixtures"
RNG = np.random.default_rng(0)
SPLIT, JOIN = BUILTIN["split_wide_weights"], BUILTIN["join_wide_weights"]

#: Side, channels, results, whether depthwise, zero point, places (result, channel) of weights beyond int8; and the kinds of operators.
FITTING = {
    "few channels are copied whole": (28, 8, 48, False, 124, [(3, 1), (5, 6)], ["Concat", "Conv"]),
    "4 channels are copied": (20, 20, 96, False, 140, [(3, 17)], ["Slice", "Concat", "Conv"]),
    "adjacent channels are copied together": (20, 20, 96, False, 3, [(0, 7), (1, 8)], ["Slice", "Concat", "Conv"]),
    "channels at two places are copied": (16, 32, 144, False, 140, [(3, 1), (9, 30)], ["Slice", "Slice", "Concat", "Conv"]),
    "all weights fit": (20, 20, 96, False, 129, [], ["Slice", "Concat", "Conv"]),
    "depthwise, a part in the middle": (16, 144, 144, True, 180, [(40, 0)], ["Split", "Conv", "Conv", "Conv", "Concat"]),
    "depthwise, the first part": (16, 160, 160, True, 50, [(2, 0), (13, 0)], ["Split", "Conv", "Conv", "Concat"]),
    "depthwise, the last part": (16, 144, 144, True, 131, [(143, 0)], ["Split", "Conv", "Conv", "Concat"]),
}
STAYING = {
    "zero point 128": (28, 8, 48, False, 128, []),
    "zero point 0": (28, 8, 48, False, 0, [(1, 1)]),
    "results that no fast kernel gives": (28, 8, 72, False, 124, [(1, 1)]),
    "channels that no fast kernel takes": (28, 6, 48, False, 124, [(1, 1)]),
    "less results than channels": (28, 96, 48, False, 124, [(1, 1)]),
    "channels to copy at many places": (16, 32, 144, False, 140, [(0, 1), (1, 13), (2, 30)]),
    "a small result": (8, 8, 48, False, 124, [(1, 1)]),
    "few depthwise channels": (28, 96, 96, True, 124, [(1, 0)]),
    "depthwise channels of two parts": (16, 144, 144, True, 131, [(1, 0), (143, 0)]),
    "depthwise weights that all fit": (16, 144, 144, True, 129, []),
}


def _graph(side: int, channels: int, results: int, depthwise: bool, point: int, wide: list[tuple[int, int]]) -> Graph:
    low, high = max(-128, -point), min(127, 255 - point)
    whole = RNG.integers(low, high + 1, (results, 1 if depthwise else channels, 3, 3) if depthwise else (results, channels, 1, 1))
    beyond = 255 - point if 255 - point > 127 else -point
    for row, column in wide:
        whole[row, column, -1, 0] = beyond
    weights, bias = (whole + point).astype(np.uint8), RNG.integers(-9999, 9999, results).astype(np.int32)
    tensors = (
        Tensor("x", "uint8", ("batch", side, side, channels), None, Quantization.per_tensor(0.5, 7)),
        Tensor("w", "uint8", weights.shape, weights, Quantization.per_tensor(0.01, point)),
        Tensor("b", "int32", (results,), bias, Quantization.per_tensor(0.005, 0)),
        Tensor("y", "uint8", ("batch", side, side, results), None, Quantization.per_tensor(4.0, 100)),
    )
    attributes = {
        "strides": (1, 1),
        "dilations": (1, 1),
        "pads": (1, 1, 1, 1) if depthwise else (0, 0, 0, 0),
        "group": channels if depthwise else 1,
        "data_format": "channels_last",
        "activation": "relu",
    }
    return Graph("g", {item.name: item for item in tensors}, (Op("Conv", ("x", "w", "b"), ("y",), attributes),), ("x",), ("y",))


@pytest.mark.parametrize("name", FITTING)
def test_the_integers_are_the_same_and_the_convolution_comes_back(name: str) -> None:
    *case, kinds = FITTING[name]
    graph = _graph(*case)
    split, notes = SPLIT.run(graph, None)
    validate(split)
    assert notes and [op.kind for op in split.ops] == kinds
    signed = [split[op.inputs[1]] for op in split.of_kind("Conv")]
    assert [item.dtype for item in signed].count("uint8") == int(case[3])
    assert all(item.require_quantization().point == 0 for item in signed if item.dtype == "int8")
    feed = {"x": RNG.integers(0, 256, (2, *graph["x"].shape[1:])).astype(np.uint8)}  # type: ignore[index]
    expected = evaluate(graph, feed)["y"]
    assert np.unique(expected).size > 50
    assert np.array_equal(expected, evaluate(split, feed)["y"])
    back, _ = JOIN.run(split, None)
    assert not diff(graph, back) and back["w"] == graph["w"] and np.array_equal(back["b"].data, graph["b"].data)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STAYING)
def test_others_stay(name: str) -> None:
    graph = _graph(*STAYING[name])
    assert SPLIT.run(graph, None) == (graph, ())


@pytest.mark.parametrize("name", [name for name in FITTING if "depthwise" not in name])
def test_copies_of_the_graphs_integer_input_are_read_back(name: str, tmp_path: Path) -> None:
    """ONNX states the quantization of an input of integers after what joins the copies."""
    graph = _graph(*FITTING[name][:-1])
    report = convert(graph, tmp_path / "m.onnx", target="ort-x86-vnni")
    assert any("split_wide_weights" in str(item) for item in report.changes)
    back = load(tmp_path / "m.onnx")
    (conv,) = back.of_kind("Conv")
    assert back["x"] == graph["x"] and np.array_equal(back[conv.inputs[1]].data, graph["w"].data)  # type: ignore[arg-type]
    assert not back.of_kind("Reinterpret", "Concat")


def test_weights_with_scales_along_an_axis_and_operators_that_round_otherwise_stay() -> None:
    graph = _graph(*FITTING["few channels are copied whole"][:-1])
    scales = Quantization.per_axis(np.full(48, 0.01, np.float32), 0, [124] * 48)
    for other in (
        graph.evolve(tensors=[replace(graph["w"], quantization=scales)]),
        graph.evolve(ops=[graph.ops[0].with_attributes(arithmetic="tflite")]),
    ):
        assert SPLIT.run(other, None) == (other, ())


@pytest.mark.parametrize("name", ["few channels are copied whole", "4 channels are copied", "depthwise, a part in the middle"])
def test_other_weights_or_parts_are_not_joined(name: str) -> None:
    split, _ = SPLIT.run(_graph(*FITTING[name][:-1]), None)
    conv = split.of_kind("Conv")[0]
    weights, last = split[conv.inputs[1]], split.ops[-1]
    data = weights.data.copy()  # type: ignore[union-attr]
    if weights.shape[1] > 1:  # type: ignore[index]
        data[0, -1] = 1 if data[0, -1, 0, 0] != 1 else 2  # another difference on a copied channel
        others = [split.evolve(tensors=[replace(weights, data=data)])]
    else:
        swapped = replace(last, inputs=last.inputs[::-1])
        strided = replace(weights, quantization=Quantization.per_tensor(0.02, 0))
        others = [split.evolve(ops=[*split.ops[:-1], swapped]), split.evolve(tensors=[strided])]
    for other in others:
        assert JOIN.run(other, None) == (other, ())


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("target", "options", "splits"), [("ort-x86-vnni", {}, True), ("ort-x86", {"weights_by_cpu": True}, True), ("ort-x86", {}, False)]
)
def test_a_file_is_proved_equal_and_read_as_its_source(target: str, options: dict[str, Any], splits: bool, tmp_path: Path) -> None:
    source, path = FIXTURES / "coral_mobilenet_v2_224_uint8.tflite", tmp_path / "result.onnx"
    report = convert(source, path, target=target, **options)
    assert any("split_wide_weights" in str(item) for item in report.changes) == splits
    assert prove(source, path).equal_for_all_inputs
    convert(path, tmp_path / "back.tflite")
    assert not diff(load(source), load(tmp_path / "back.tflite"))
