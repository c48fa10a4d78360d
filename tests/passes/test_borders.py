"""Inputs and outputs in unusual places: given out as they came in, given out twice, named by a signature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from passes.graphs import applied, assert_equal, constant, make, q

from qconvert import Graph, Op, Signature, Tensor, convert, load, save
from qconvert.conversion import normalize
from qconvert.evaluate import evaluate
from qconvert.formats.flatbuffers import pack_model, unpack_view
from qconvert.formats.tflite.schema import root
from qconvert.plugins import target_named
from qconvert.rules.validation import validate
from qconvert.runtimes.litert import LiteRT

pytestmark = pytest.mark.onnxruntime

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_an_input_that_is_given_out_keeps_its_type() -> None:
    tensors = [Tensor("x", "float32", (1,)), Tensor("i", "int8", (1,), None, q(0.1))]
    graph = make([Op("Quantize", ("x",), ("i",)), Op("Dequantize", ("i",), ("y",))], tensors, "x", "y x")
    changed, _ = applied(graph, "integer_io", io="integer")
    assert changed["x"].dtype == "float32" and changed["y"].dtype == "int8"
    assert [op.kind for op in changed.ops] == ["Quantize"]


def test_the_output_of_a_signature_follows_its_name() -> None:
    tensors = [Tensor(name, "float32", (2,)) for name in "abc"]
    graph = make([Op("Abs", ("a",), ("b",)), Op("Identity", ("b",), ("c",))], tensors, "a", "c")
    graph = graph.evolve(signatures=(Signature("s", {"x": "a"}, {"y": "b"}),))
    validate(graph)
    changed, _ = applied(graph, "merge_reshapes")
    assert [op.outputs for op in changed.ops] == [("c",)] and changed.signatures[0].outputs == {"y": "c"}
    assert_equal(graph, changed, {"a": np.array([-1, 2], np.float32)})


@pytest.mark.parametrize("options", [{}, {"io": "float"}])
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_an_output_that_a_file_gives_twice(suffix: str, options: dict[str, bool], tmp_path: Path) -> None:
    data = (FIXTURES / "tiny_resnet_cifar10_int8.tflite").read_bytes()
    model = unpack_view(root(data))
    model.subgraphs[0].outputs = np.array([int(model.subgraphs[0].outputs[0])] * 2, np.int32)
    model.signatureDefs = None
    (tmp_path / "twice.tflite").write_bytes(pack_model(model))
    result = tmp_path / f"result.{suffix}"
    convert(tmp_path / "twice.tflite", result, **options)
    graph = load(result)
    assert len(graph.outputs) == 2 and len({graph[name].dtype for name in graph.outputs}) == 1
    if suffix == "onnx":
        session = onnxruntime.InferenceSession(result)
        (given,) = session.get_inputs()
        value = np.ones((1, 32, 32, 3), {"tensor(float)": "float32"}.get(given.type, given.type[7:-1]))
        first, second = session.run(None, {given.name: value})
        assert np.array_equal(first, second)


@pytest.mark.cross_section
def test_an_onnx_output_that_is_listed_twice(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    outputs = [value("y", TensorProto.FLOAT, [2])] * 2
    w = numpy_helper.from_array(np.ones(2, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [value("x", TensorProto.FLOAT, [2])], outputs, [w])
    onnx.save(model_of(graph), tmp_path / "a.onnx")
    convert(tmp_path / "a.onnx", tmp_path / "b.onnx")
    found = onnxruntime.InferenceSession(tmp_path / "b.onnx").run(None, {"x": np.array([1, 2], np.float32)})
    assert [item.tolist() for item in found] == [[2, 3], [2, 3]]


def reshape_of(size: str | int) -> Graph:
    shape = constant("s", np.array([2, 5], np.int64))
    return make([Op("Abs", ("x",), ("a",)), Op("Reshape", ("a", "s"), ("y",))], [Tensor("x", "float32", (size, 5)), shape], "x", "y")


def product_of(size: str | int) -> Graph:
    weights = constant("w", np.ones((8, 3), np.float32))
    return make([Op("Abs", ("x",), ("a",)), Op("MatMul", ("a", "w"), ("y",))], [Tensor("x", "float32", (2, 3, size)), weights], "x", "y")


@pytest.mark.litert
@pytest.mark.parametrize(("graph", "number"), [(reshape_of, 2), (product_of, 8)])
def test_a_size_that_only_one_number_fits(graph: Callable[[str | int], Graph], number: int, tmp_path: Path) -> None:
    changed, notes = applied(graph("k"), "settle_sizes")
    assert notes == (f"the dynamic dimension 'k' is {number}, the only number that the operators accept",)
    assert {name: tensor.shape for name, tensor in changed.tensors.items()} == {n: t.shape for n, t in graph(number).tensors.items()}
    save(graph("k"), tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
    model = LiteRT((tmp_path / "m.tflite").read_bytes())
    shape = changed["x"].static_shape
    assert shape is not None
    value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    wanted = evaluate(changed, {"x": value})["y"]
    assert np.allclose(model.run_in_order([value])[0], wanted, atol=1e-5)


def test_a_size_that_stays_open_keeps_its_name() -> None:
    shape = constant("s", np.array([-1], np.int64))
    graph = make([Op("Abs", ("x",), ("a",)), Op("Reshape", ("a", "s"), ("y",))], [Tensor("x", "float32", ("n", 5)), shape], "x", "y")
    assert applied(graph, "settle_sizes")[0] is graph


def test_thousands_of_outputs() -> None:
    """Each pass looks an output up in constant time."""
    count = 3000
    tensors = [Tensor("x", "float32", (1,)), *(Tensor(f"y{i}", "float32", (1,)) for i in range(count))]
    graph = make([Op("Abs", ("x",), (f"y{i}",)) for i in range(count)], tensors, "x", " ".join(f"y{i}" for i in range(count)))
    changed, _ = normalize(graph, target_named("tflite"))
    assert len(changed.outputs) == count and changed.public == set(graph.outputs)
