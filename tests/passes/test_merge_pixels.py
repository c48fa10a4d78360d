"""merge_pixels and split_pixels: other convolutions of the same sums, and back."""

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
Sizes = tuple[int, ...]

#: Height, width and channels of the data, results, group, kernel, strides, padding; and the pixels of a block.
FITTING = {
    "the first layer": ((6, 8, 3), 16, 1, (3, 3), (1, 1), (1, 1, 1, 1), 4),
    "with strides": ((6, 16, 3), 8, 1, (3, 3), (2, 2), (0, 0, 1, 1), 8),
    "strides and padding before": ((6, 16, 1), 16, 1, (3, 3), (2, 2), (1, 1, 0, 0), 4),
    "strides and padding that no window reads": ((6, 16, 3), 8, 1, (3, 3), (2, 2), (1, 1, 1, 1), 8),
    "other strides along the height": ((6, 24, 1), 34, 1, (6, 4), (3, 2), (1, 1, 2, 1), 4),
    "a wide window": ((7, 8, 3), 16, 1, (7, 7), (1, 1), (3, 3, 3, 3), 4),
    "without padding": ((5, 16, 6), 16, 1, (3, 3), (1, 1), (0, 0, 0, 0), 2),
    "weights with a zero point": ((6, 8, 3), 16, 1, (3, 3), (1, 1), (1, 1, 1, 1), 4),
    "one tap": ((2, 4, 5), 16, 1, (1, 1), (1, 1), (0, 0, 0, 0), 4),
    "depthwise": ((4, 8, 8), 8, 8, (3, 3), (1, 1), (1, 1, 1, 1), 4),
    "depthwise with strides": ((4, 16, 8), 8, 8, (3, 3), (2, 2), (0, 0, 1, 1), 8),
    "depthwise, two results a channel": ((4, 8, 8), 16, 8, (5, 3), (1, 1), (2, 1, 2, 1), 2),
}
PADDED = {
    "rows of an odd size": ((48, 49, 3), 16, 1, (3, 3), (1, 1), (1, 1, 1, 1), 4, ["Pad", "Reshape", "Conv", "Reshape", "Slice"]),
    "with strides": ((99, 99, 3), 16, 1, (3, 3), (2, 2), (1, 1, 1, 1), 4, ["Pad", "Reshape", "Conv", "Reshape"]),
    "with strides and a zero point": ((101, 101, 3), 32, 1, (3, 3), (2, 2), (0, 0, 0, 0), 4, ["Pad", "Reshape", "Conv", "Reshape"]),
    "results alone": ((96, 96, 3), 16, 1, (3, 3), (2, 2), (0, 0, 0, 0), 4, ["Reshape", "Conv", "Reshape", "Slice"]),
}
STAYING = {
    "channels that the kernels take": ((4, 8, 4), 16, 1, (3, 3), (1, 1), (1, 1, 1, 1)),
    "no whole blocks": ((4, 9, 3), 16, 1, (3, 3), (1, 1), (1, 1, 1, 1)),
    "no whole blocks of results": ((4, 8, 3), 16, 1, (3, 3), (1, 1), (1, 0, 1, 1)),
    "many groups": ((4, 8, 16), 16, 16, (3, 3), (1, 1), (1, 1, 1, 1)),
    "some groups": ((4, 8, 6), 8, 2, (3, 3), (1, 1), (1, 1, 1, 1)),
    "a single block": ((1, 4, 3), 4, 1, (1, 3), (1, 1), (0, 1, 0, 1)),
    "many channels of weights with a zero point": ((5, 16, 6), 16, 1, (3, 3), (1, 1), (0, 0, 0, 0)),
    "depthwise weights with a zero point": ((4, 8, 8), 8, 8, (3, 3), (1, 1), (1, 1, 1, 1)),
    "few results": ((4, 8, 3), 1, 1, (3, 3), (1, 1), (1, 1, 1, 1)),
}


def _graph(
    size: tuple[int, ...],
    results: int,
    group: int,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    point: int = 0,
) -> Graph:
    height, width, channels = size
    scales = RNG.uniform(0.001, 0.01, results).astype(np.float32)
    weights = RNG.integers(-127, 128, (results, channels // group, *kernel)).astype(np.int8)
    positions = [(length + pads[i] + pads[2 + i] - kernel[i]) // strides[i] + 1 for i, length in enumerate((height, width))]
    tensors = (
        Tensor("x", "int8", ("batch", *size), None, Quantization.per_tensor(0.5, -3)),
        Tensor("w", "int8", weights.shape, weights, Quantization.per_axis(scales, 0, [point] * results)),
        Tensor("b", "int32", (results,), RNG.integers(-999, 999, results).astype(np.int32), Quantization.per_axis(scales / 2, 0)),
        Tensor("y", "int8", ("batch", *positions, results), None, Quantization.per_tensor(1.5, 2)),
    )
    attributes = {
        "strides": strides,
        "dilations": (1, 1),
        "pads": pads,
        "group": group,
        "data_format": "channels_last",
        "activation": "relu",
    }
    return Graph("g", {item.name: item for item in tensors}, (Op("Conv", ("x", "w", "b"), ("y",), attributes),), ("x",), ("y",))


@pytest.mark.parametrize("name", [*FITTING, *PADDED])
def test_the_integers_are_the_same_and_the_convolution_comes_back(name: str) -> None:
    *case, block, kinds = {**{key: (*item, ["Reshape", "Conv", "Reshape"]) for key, item in FITTING.items()}, **PADDED}[name]
    graph = _graph(*case, point=-40 * ("zero point" in name))
    merged, notes = BUILTIN["merge_pixels"].run(graph, None)
    validate(merged)
    assert notes and [op.kind for op in merged.ops] == kinds
    blocks = next(iter(merged.of_kind("Reshape"))).outputs[0]
    assert merged[blocks].shape == ("batch", case[0][0], -(-case[0][1] // block), block * case[0][2])
    feed = {"x": RNG.integers(-128, 128, (2, *case[0])).astype(np.int8)}
    assert np.array_equal(evaluate(graph, feed)["y"], evaluate(merged, feed)["y"])
    back, _ = BUILTIN["split_pixels"].run(merged, None)
    assert not diff(graph, back) and back["w"] == graph["w"] and back["b"] == graph["b"]


@pytest.mark.parametrize("name", STAYING)
def test_others_stay(name: str) -> None:
    graph = _graph(*STAYING[name], point=-40 * ("zero point" in name))
    assert BUILTIN["merge_pixels"].run(graph, None) == (graph, ())


def test_weights_with_several_zero_points_or_zeros_at_an_edge_and_operators_that_round_otherwise_stay() -> None:
    graph = _graph(*FITTING["the first layer"][:-1])
    shifted = replace(graph["w"], quantization=Quantization.per_axis(np.full(16, 0.01, np.float32), 0, range(16)))
    narrower = replace(graph["w"], data=graph["w"].data * np.array([1, 1, 0], np.int8))  # type: ignore[operator]
    for other in (
        graph.evolve(tensors=[shifted]),
        graph.evolve(tensors=[narrower]),
        graph.evolve(ops=[graph.ops[0].with_attributes(arithmetic="tflite")]),
    ):
        assert BUILTIN["merge_pixels"].run(other, None) == (other, ())


def test_other_weights_between_reshapes_are_no_blocks() -> None:
    merged, _ = BUILTIN["merge_pixels"].run(_graph(*FITTING["the first layer"][:-1]), None)
    for name in merged.ops[1].inputs[1:]:
        data = merged[name].data.copy()  # type: ignore[union-attr]
        data.flat[np.flatnonzero(data)[0]] += 1
        other = merged.evolve(tensors=[replace(merged[name], data=data)])
        assert BUILTIN["split_pixels"].run(other, None) == (other, ())


def test_reshapes_that_join_rows_and_scales_of_blocks_make_no_blocks_of_pixels() -> None:
    merged, _ = BUILTIN["merge_pixels"].run(_graph(*FITTING["the first layer"][:-1]), None)
    first, conv, _ = merged.ops
    joined = merged.evolve(
        tensors=[replace(merged[name], shape=("batch", 3, 4, merged[name].shape[3])) for name in (*first.outputs, *conv.outputs)]
    )  # type: ignore[index]
    scales = Quantization(np.full((64, 3, 3, 3), 0.01, np.float32), np.zeros((64, 3, 3, 3), np.int64), 1, 4)
    for other in (joined, merged.evolve(tensors=[replace(merged[conv.inputs[1]], quantization=scales)])):
        assert BUILTIN["split_pixels"].run(other, None) == (other, ())


def test_a_slice_of_the_network_itself_stays() -> None:
    graph = _graph(*FITTING["the first layer"][:-1])
    bounds = [Tensor(name, "int64", (1,), np.array([value])) for name, value in (("starts", 0), ("ends", 7), ("axes", 2))]
    cut = Op("Slice", ("y", *(item.name for item in bounds)), ("cut",))
    result = replace(graph["y"], name="cut", shape=("batch", 6, 7, 16))
    graph = replace(graph.evolve(tensors=[*bounds, result], ops=[*graph.ops, cut]), outputs=("cut",))
    merged, _ = BUILTIN["merge_pixels"].run(graph, None)
    assert [op.kind for op in merged.ops] == ["Reshape", "Conv", "Reshape", "Slice"]
    assert not diff(graph, BUILTIN["split_pixels"].run(merged, None)[0])


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("target", "options", "merges"), [("ort-x86-vnni", {}, True), ("ort-x86", {"weights_by_cpu": True}, True), ("ort-x86", {}, False)]
)
def test_a_file_is_proved_equal_and_read_as_its_source(target: str, options: dict[str, Any], merges: bool, tmp_path: Path) -> None:
    source, path = FIXTURES / "tiny_vww_mobilenet_int8.tflite", tmp_path / "result.onnx"
    report = convert(source, path, target=target, **options)
    assert any("merge_pixels" in str(item) for item in report.changes) == merges
    assert prove(source, path).equal_for_all_inputs
    assert [op["group"] for op in load(path).of_kind("Conv")] == [op["group"] for op in load(source).of_kind("Conv")]
