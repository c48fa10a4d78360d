"""Weights that onnxruntime takes as signed or unsigned ones, by what its kernels add on this CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
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


@pytest.mark.formats
def test_an_if_of_another_form_stays(tmp_path: Path) -> None:
    """A file that was tampered with is read as it stands."""
    save(network(128), tmp_path / "a.qgraph")
    convert(tmp_path / "a.qgraph", tmp_path / "chosen.onnx", target="ort-x86", weights_by_cpu=True)
    model = onnx.load(tmp_path / "chosen.onnx")
    (choice,) = [node for node in model.graph.node if node.op_type == "If"]
    other = next(item.g for item in choice.attribute if item.name == "else_branch")
    del other.node[0].output[0]
    (tmp_path / "bad.onnx").write_bytes(model.SerializeToString())
    with pytest.raises((InvalidModelError, UnsupportedError), match=r"bad\.onnx"):
        load(tmp_path / "bad.onnx")
