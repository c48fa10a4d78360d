"""DynamicQuantizeLSTM: what is read of it means what onnxruntime computes, and is written as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx_nodes import model_of

from qconvert import check, convert, load
from qconvert.evaluate import evaluate
from qconvert.operators import is_dynamic

pytestmark = pytest.mark.onnxruntime

_INPUTS = 6
_CELLS = 5


def _model(
    path: Path, seed: int = 0, weights: str = "uint8", columns: bool = False, point: int = 128, way: str = "forward", **given: Any
) -> Path:
    """A file of one node; weights of int8 are small enough not to saturate."""
    rng = np.random.default_rng(seed)
    count = 2 if way == "bidirectional" else 1
    low, high = (1, 256) if weights == "uint8" else (-63, 64)
    shape = (count, 4 * _CELLS) if columns else (count,)
    constants: dict[str, Any] = {
        "w": rng.integers(low, high, (count, _INPUTS, 4 * _CELLS)).astype(weights),
        "r": rng.integers(low, high, (count, _CELLS, 4 * _CELLS)).astype(weights),
        "b": rng.normal(0, 0.3, (count, 8 * _CELLS)).astype(np.float32),
        "p": rng.normal(0, 0.3, (count, 3 * _CELLS)).astype(np.float32),
        "w_scale": rng.uniform(0.005, 0.01, shape).astype(np.float32),
        "r_scale": rng.uniform(0.005, 0.01, shape).astype(np.float32),
        "w_point": np.full(shape, point, weights),
        "r_point": np.full(shape, point, weights),
    }
    constants = {name: value for name, value in constants.items() if name not in ("b", "p") or name in given.get("extra", "bp")}
    states = ["h", "c"] if given.get("states", True) else ["", ""]
    names = ["x", "w", "r", "b" if "b" in constants else "", "", *states, "p" if "p" in constants else ""]
    node = helper.make_node(
        "DynamicQuantizeLSTM", [*names, "w_scale", "w_point", "r_scale", "r_point"], ["y", "y_h", "y_c"], domain="com.microsoft",
        hidden_size=_CELLS, direction=way, **given.get("attributes", {}),
    )  # fmt: skip
    inputs = [helper.make_tensor_value_info("x", 1, ["steps", "rows", _INPUTS])]
    inputs += [helper.make_tensor_value_info(name, 1, [count, "rows", _CELLS]) for name in states if name]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in node.output]
    return _save(path, [node], inputs, outputs, constants)


def _save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any]) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(value, name) for name, value in constants.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def _feeds(seed: int, count: int, states: bool = True) -> dict[str, Any]:
    rng = np.random.default_rng(seed + 100)
    found = {"x": rng.normal(0, 1, (50, 3, _INPUTS)).astype(np.float32)}
    if states:
        found |= {name: rng.normal(0, 0.4, (count, 3, _CELLS)).astype(np.float32) for name in ("h", "c")}
    return found


def _run(path: Path, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # more of them take the rows in shares with ranges of their own
    return list(ort.InferenceSession(path, options).run(None, feeds))


_CASES: list[dict[str, Any]] = [
    {},
    {"seed": 1, "columns": True},
    {"seed": 2, "point": 97},
    {"seed": 3, "weights": "int8", "point": 0, "columns": True},
    {"seed": 4, "weights": "int8", "point": 3},
    {"seed": 5, "way": "reverse", "extra": ""},
    {"seed": 6, "way": "bidirectional"},
    {"seed": 7, "way": "bidirectional", "columns": True, "states": False, "extra": "b"},
    {"seed": 8, "attributes": {"clip": 0.7, "activations": ["Sigmoid", "Relu", "Tanh"]}},
    {"seed": 9, "attributes": {"input_forget": 1}, "extra": "b"},
]


@pytest.mark.parametrize("case", _CASES)
def test_it_means_what_onnxruntime_computes(tmp_path: Path, case: dict[str, Any]) -> None:
    """Over 50 steps."""
    path = _model(tmp_path / "a.onnx", **case)
    graph = load(path)
    count = 2 if case.get("way") == "bidirectional" else 1
    assert [op["arithmetic"] for op in graph.ops if is_dynamic(op)] == ["dynamic_tensor"] * count
    feeds = _feeds(case.get("seed", 0), count, case.get("states", True))
    wanted = _run(path, feeds)
    values = evaluate(graph, feeds)
    for name, value in zip(graph.outputs, wanted, strict=True):
        assert values[name].shape == value.shape
        assert np.abs(values[name] - value).max() < 2e-6, name


@pytest.mark.parametrize("case", _CASES)
def test_it_is_written_again(tmp_path: Path, case: dict[str, Any]) -> None:
    path = _model(tmp_path / "a.onnx", **case)
    convert(path, tmp_path / "b.onnx")
    count = 2 if case.get("way") == "bidirectional" else 1
    nodes = onnx.load(tmp_path / "b.onnx").graph.node
    assert [node.op_type for node in nodes].count("DynamicQuantizeLSTM") == count
    feeds = _feeds(case.get("seed", 0), count, case.get("states", True))
    for value, wanted in zip(_run(tmp_path / "b.onnx", feeds), _run(path, feeds), strict=True):
        np.testing.assert_array_equal(value, wanted)
    if count == 1:
        ours, theirs = (
            {item.name: numpy_helper.to_array(item) for item in onnx.load(f).graph.initializer} for f in (tmp_path / "b.onnx", path)
        )
        np.testing.assert_array_equal(ours["w"], theirs["w"])


@pytest.mark.litert
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrence_of_which_only_the_last_values_are_read(tmp_path: Path, kind: str) -> None:
    """Its first output has no name in the file."""
    rng = np.random.default_rng(0)
    rows = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind] * _CELLS
    weights = {
        "w": rng.normal(0, 0.5, (1, rows, _INPUTS)).astype(np.float32),
        "r": rng.normal(0, 0.5, (1, rows, _CELLS)).astype(np.float32),
    }
    node = helper.make_node(kind, ["x", "w", "r"], ["", "y_h"], hidden_size=_CELLS)
    inputs = [helper.make_tensor_value_info("x", 1, [7, 2, _INPUTS])]
    outputs = [helper.make_tensor_value_info("y_h", 1, [1, 2, _CELLS])]
    graph = helper.make_graph([node], "g", inputs, outputs, [numpy_helper.from_array(data, name) for name, data in weights.items()])
    path = tmp_path / "a.onnx"
    onnx.save(model_of(graph), path)
    for result in ("b.onnx", "b.tflite"):
        convert(path, tmp_path / result)
        assert check(path, tmp_path / result).passed


def _layers(path: Path, way: str) -> Path:
    """Two layers, the second on what the first gives, with nothing in a TFLite file that could be compared between them."""
    count = 2 if way == "bidirectional" else 1
    rng = np.random.default_rng(2)
    nodes, constants, data, width = [], {}, "x", _INPUTS
    for layer in "ab":
        for name, rows in (("w", width), ("r", _CELLS)):
            constants[f"{name}_{layer}"] = rng.integers(1, 256, (count, rows, 4 * _CELLS)).astype(np.uint8)
            constants[f"{name}_scale_{layer}"] = np.full(count, 0.006, np.float32)
            constants[f"{name}_point_{layer}"] = np.full(count, 128, np.uint8)
        own = [f"{name}_{layer}" for name in ("w", "r", "w_scale", "w_point", "r_scale", "r_point")]
        nodes.append(helper.make_node(
            "DynamicQuantizeLSTM", [data, own[0], own[1], "", "", "", "", "", *own[2:]], [f"l_{layer}"], domain="com.microsoft",
            hidden_size=_CELLS, direction=way,
        ))  # fmt: skip
        nodes.append(helper.make_node("Transpose", [f"l_{layer}"], [f"t_{layer}"], perm=[0, 2, 1, 3]))
        data, width = ("y" if layer == "b" else f"d_{layer}"), count * _CELLS
        nodes.append(helper.make_node("Reshape", [f"t_{layer}", "shape"], [data]))
    constants["shape"] = np.array([0, 0, -1])
    inputs = [helper.make_tensor_value_info("x", 1, [50, 2, _INPUTS])]
    outputs = [helper.make_tensor_value_info("y", 1, [50, 2, width])]
    return _save(path, nodes, inputs, outputs, constants)


@pytest.mark.litert
@pytest.mark.parametrize("way", ["forward", "bidirectional"])
def test_layers_on_real_data_are_told_from_wrong_ones(tmp_path: Path, way: str) -> None:
    """TFLite computes on the real data: explained as that, layer after layer and in both ways; other weights are not."""
    path = _layers(tmp_path / "a.onnx", way)
    convert(path, tmp_path / "b.tflite")
    report = check(path, tmp_path / "b.tflite", per_op=True)
    assert report.passed, report
    model = onnx.load(path)
    for constant in model.graph.initializer:
        if constant.name == "r_b":
            data = numpy_helper.to_array(constant).copy()
            data[0, 0, 0] ^= 64
            constant.CopyFrom(numpy_helper.from_array(data, "r_b"))
    onnx.save(model, tmp_path / "c.onnx")
    assert not check(tmp_path / "c.onnx", tmp_path / "b.tflite", per_op=True).passed


def _with_a_linear_layer(path: Path) -> Path:
    """A layer, the axis of its direction taken off, and a product with a bias that rounds its data when it runs."""
    rng = np.random.default_rng(3)
    constants = {
        "w": rng.integers(1, 256, (1, _INPUTS, 4 * _CELLS)).astype(np.uint8),
        "r": rng.integers(1, 256, (1, _CELLS, 4 * _CELLS)).astype(np.uint8),
        "scale": np.full(1, 0.006, np.float32), "point": np.full(1, 128, np.uint8), "axis": np.array([1]),
        "f": rng.integers(-127, 128, (_CELLS, 2)).astype(np.int8), "f_scale": np.float32(0.01), "f_point": np.int8(0),
        "bias": rng.normal(0, 1, 2).astype(np.float32),
    }  # fmt: skip
    lstm = ["x", "w", "r", "", "", "", "", "", "scale", "point", "scale", "point"]
    nodes = [
        helper.make_node("DynamicQuantizeLSTM", lstm, ["l"], domain="com.microsoft", hidden_size=_CELLS),
        helper.make_node("Squeeze", ["l", "axis"], ["s"]),
        helper.make_node("DynamicQuantizeLinear", ["s"], ["q", "q_scale", "q_point"]),
        helper.make_node("MatMulInteger", ["q", "f", "q_point", "f_point"], ["i"]),
        helper.make_node("Cast", ["i"], ["c"], to=1),
        helper.make_node("Mul", ["q_scale", "f_scale"], ["m"]),
        helper.make_node("Mul", ["c", "m"], ["p"]),
        helper.make_node("Add", ["p", "bias"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, [5, 1, _INPUTS])]
    outputs = [helper.make_tensor_value_info("y", 1, [5, 1, 2])]
    return _save(path, nodes, inputs, outputs, constants)


@pytest.mark.litert
@pytest.mark.cross_section
def test_a_linear_layer_behind_is_judged_by_itself(tmp_path: Path) -> None:
    """TFLite holds the bias in the product, and what that reads in another shape under another name."""
    path = _with_a_linear_layer(tmp_path / "a.onnx")
    convert(path, tmp_path / "b.tflite")
    report = check(path, tmp_path / "b.tflite", per_op=True)
    assert report.passed, report
    assert {item.output: item.verdict for item in report.operators} == {"l": "dynamic range", "y": "dynamic range"}
    model = onnx.load(path)
    bias = next(item for item in model.graph.initializer if item.name == "bias")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) * np.float32(1.001), "bias"))
    onnx.save(model, tmp_path / "c.onnx")
    assert not check(tmp_path / "c.onnx", tmp_path / "b.tflite", per_op=True).passed
