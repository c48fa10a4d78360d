"""Weights that onnxruntime takes as signed or unsigned ones, by what its kernels add on this CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from passes.graphs import constant, make, q

from qconvert import Graph, Op, Tensor, convert, diff, load, save
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.graph import Array
from qconvert.runtimes.onnx_rewrites import has_vnni
from qconvert.runtimes.onnxruntime import OnnxRuntime

#: What the zero point of uint8 weights may be, and whether signed ones can have none.
POINTS = {128: True, 120: True, 20: False}


def network(point: int) -> Graph:
    """Two convolutions that share weights, of which a pair saturates with data of 255, and a Gemm with other ones."""
    steps = np.random.default_rng(point).integers(-point if point < 100 else -115, 128 if point > 100 else 230, (16, 16, 1, 1))
    steps[0, :2] = 115
    weights = constant("w", (steps + point).astype(np.uint8), q(0.01, point))
    gemm = constant("g", np.full((4, 16), 255, np.uint8), q(0.01, 128))
    window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "data_format": "channels_first"}
    tensors = [
        Tensor("x", "uint8", (1, 16, 1, 1), None, q(0.05)), weights, gemm, Tensor("a", "uint8", None, None, q(0.5, 128)),
        Tensor("b", "uint8", None, None, q(2.5, 128)), Tensor("r", "uint8", None, None, q(2.5, 128)),
        Tensor("y", "uint8", None, None, q(9.0, 128)), constant("shape", np.array([1, 16])),
    ]  # fmt: skip
    ops = [
        Op("Conv", ("x", "w"), ("a",), window), Op("Conv", ("a", "w"), ("b",), window), Op("Reshape", ("b", "shape"), ("r",)),
        Op("Gemm", ("r", "g"), ("y",)),
    ]  # fmt: skip
    return make(ops, tensors, "x", "b y")


def run(path: Path, optimized: Path, *, sums_of_16_bits: bool = False) -> tuple[list[Array], list[str], set[int]]:
    """Return the outputs, the types of the nodes and the types of the weights that onnxruntime runs; as without VNNI if that is asked."""
    if sums_of_16_bits:
        model = onnx.load(path)
        for item in model.graph.initializer:
            if item.name == "sums_of_products/exact":
                item.CopyFrom(numpy_helper.from_array(np.array(-1, np.int32), item.name))
        path = path.with_suffix(".16.onnx")
        onnx.save(model, path)
    session = OnnxRuntime(path, save_optimized=optimized)
    data = np.concatenate([np.full((1, 16, 1, 1), 255), np.random.default_rng(0).integers(0, 256, (7, 16, 1, 1))]).astype(np.uint8)
    outputs = [value for row in data for value in session.run({"x": row[None]}).values()]
    graph = onnx.load(optimized).graph
    return outputs, [node.op_type for node in graph.node], {item.data_type for item in graph.initializer if len(item.dims) > 1}


@pytest.mark.onnxruntime
@pytest.mark.parametrize("point", POINTS)
def test_both_branches_give_the_numbers_of_unsigned_weights(point: int, tmp_path: Path) -> None:
    save(network(point), tmp_path / "a.qgraph")
    convert(tmp_path / "a.qgraph", tmp_path / "plain.onnx", target="ort-x86")
    convert(tmp_path / "a.qgraph", tmp_path / "chosen.onnx", target="ort-x86", weights_by_cpu=True)
    onnx.checker.check_model(onnx.load(tmp_path / "chosen.onnx"), full_check=True)
    wanted, nodes, _ = run(tmp_path / "plain.onnx", tmp_path / "optimized.onnx")
    unsigned, signed = {onnx.TensorProto.UINT8}, {onnx.TensorProto.INT8}
    for sums_of_16_bits in (False, True):
        got, chosen, types = run(tmp_path / "chosen.onnx", tmp_path / "optimized.onnx", sums_of_16_bits=sums_of_16_bits)
        assert all(map(np.array_equal, got, wanted))
        assert sorted(chosen) == sorted(nodes) and "QLinearConv" in chosen
        assert types == (signed if has_vnni() and not sums_of_16_bits else unsigned)


@pytest.mark.formats
@pytest.mark.parametrize("point", POINTS)
def test_a_reader_finds_the_unsigned_weights(point: int, tmp_path: Path) -> None:
    save(network(point), tmp_path / "a.qgraph")
    convert(tmp_path / "a.qgraph", tmp_path / "plain.onnx", target="ort-x86")
    convert(tmp_path / "a.qgraph", tmp_path / "chosen.onnx", target="ort-x86", weights_by_cpu=True)
    assert diff(load(tmp_path / "plain.onnx"), load(tmp_path / "chosen.onnx")) == []
    chosen = onnx.load(tmp_path / "chosen.onnx")
    (choice,) = [node for node in chosen.graph.node if node.op_type == "If"]
    assert len(choice.output) == 2
    points = [numpy_helper.to_array(item) for item in chosen.graph.initializer if item.name.startswith("sums_of_products/zero_point/")]
    assert sorted(map(int, points)) == sorted([0 if POINTS[point] else point - 128, 0])


def _change_shift(graph: Any) -> None:
    _set_constant(graph, "shift/1", np.array(120, np.int32))


def _change_zero_point(graph: Any) -> None:
    _set_constant(graph, "zero_point/1", np.array(5, np.int8))


def _set_constant(graph: Any, name: str, value: Array) -> None:
    item = next(item for item in graph.initializer if item.name == f"sums_of_products/{name}")
    item.CopyFrom(numpy_helper.from_array(value, item.name))


def _leave_out_scale(graph: Any) -> None:
    """The branch of signed weights gives their integers."""
    node = _branch(graph, "then_branch").node[-1]
    node.CopyFrom(helper.make_node("Cast", node.input[:1], node.output, to=onnx.TensorProto.FLOAT))


def _exchange_outputs(graph: Any) -> None:
    outputs = _branch(graph, "else_branch").output
    outputs.extend([outputs[0]])
    del outputs[0]


def _compute_weights(graph: Any) -> None:
    node = _branch(graph, "else_branch").node[0]
    graph.node.insert(0, helper.make_node("Identity", node.input[:1], ["sums_of_products/mine"]))
    node.input[0] = "sums_of_products/mine"


def _give_out(graph: Any) -> None:
    graph.output.append(helper.make_tensor_value_info("sums_of_products/least", onnx.TensorProto.INT32, []))


def _branch(graph: Any, name: str) -> Any:
    (choice,) = [node for node in graph.node if node.op_type == "If"]
    return next(item.g for item in choice.attribute if item.name == name)


@pytest.mark.formats
@pytest.mark.parametrize("change", [_change_shift, _change_zero_point, _leave_out_scale, _exchange_outputs, _compute_weights, _give_out])
def test_an_if_of_another_form_stays(change: Callable[[Any], None], tmp_path: Path) -> None:
    """What a file was changed to is read as it stands, since its branches may give different values."""
    save(network(128), tmp_path / "a.qgraph")
    convert(tmp_path / "a.qgraph", tmp_path / "chosen.onnx", target="ort-x86", weights_by_cpu=True)
    model = onnx.load(tmp_path / "chosen.onnx")
    change(model.graph)
    (tmp_path / "changed.onnx").write_bytes(model.SerializeToString())
    assert [op.kind for op in load(tmp_path / "changed.onnx").ops].count("If") == 1
    convert(tmp_path / "changed.onnx", tmp_path / "again.onnx", target="ort-x86", weights_by_cpu=True)
    onnx.checker.check_model(onnx.load(tmp_path / "again.onnx"), full_check=True)


@pytest.mark.formats
def test_an_if_that_lost_an_output_is_refused(tmp_path: Path) -> None:
    save(network(128), tmp_path / "a.qgraph")
    convert(tmp_path / "a.qgraph", tmp_path / "chosen.onnx", target="ort-x86", weights_by_cpu=True)
    model = onnx.load(tmp_path / "chosen.onnx")
    del _branch(model.graph, "else_branch").node[0].output[0]
    (tmp_path / "bad.onnx").write_bytes(model.SerializeToString())
    with pytest.raises((InvalidModelError, UnsupportedError), match=r"bad\.onnx"):
        load(tmp_path / "bad.onnx")


@pytest.mark.formats
def test_completed_types_and_external_constants_are_read(tmp_path: Path) -> None:
    save(network(20), tmp_path / "a.qgraph")
    convert(tmp_path / "a.qgraph", tmp_path / "chosen.onnx", target="ort-x86", weights_by_cpu=True)
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "chosen.onnx")), tmp_path / "inferred.onnx")
    convert(tmp_path / "a.qgraph", tmp_path / "outside.onnx", target="ort-x86", weights_by_cpu=True, external_data=True)
    for name in ("inferred", "outside"):
        assert diff(load(tmp_path / "chosen.onnx"), load(tmp_path / f"{name}.onnx")) == []


@pytest.mark.formats
def test_weights_of_float16_operators_have_no_choice(tmp_path: Path) -> None:
    """onnxruntime has no integer kernel of them."""
    constants = {"scale": np.float16(0.05), "zero": np.uint8(128), "w": np.full((16, 16), 255, np.uint8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["r"]), helper.make_node("MatMul", ["d", "r"], ["y"]),
    ]  # fmt: skip
    sides = [[helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, [2, 16])] for name in "xy"]
    graph = helper.make_graph(nodes, "g", *sides, [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "half.onnx")
    convert(tmp_path / "half.onnx", tmp_path / "written.onnx", target="ort-x86", weights_by_cpu=True)
    written = onnx.load(tmp_path / "written.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert not any(node.op_type == "If" for node in written.graph.node)


@pytest.mark.parametrize(("options", "says"), [({}, False), ({"form": "qoperator"}, True)])
def test_a_model_without_a_choice_says_so(options: dict[str, str], says: bool, tmp_path: Path) -> None:
    save(network(0), tmp_path / "a.qgraph")
    report = convert(tmp_path / "a.qgraph", tmp_path / "b.onnx", target="ort-x86", weights_by_cpu=True, **options)
    assert any("weights_by_cpu leaves nothing to onnxruntime" in change.text for change in report.changes) == says
