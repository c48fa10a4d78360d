"""Gemm of every form: read as canonical operators, so that both formats have kernels for it, with onnxruntime's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_nodes import feeds, model_of, node_model, session
from tflite_models import run_litert

from qconvert import convert, load

RNG = np.random.default_rng(5)


def real(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


#: Inputs, which of them are constants, and attributes.
FORMS: dict[str, tuple[list[Any], tuple[int, ...], dict[str, Any]]] = {
    "transposed data": ([real(8, 3), real(8, 6), real(6)], (1, 2), {"transA": 1}),
    "factors": ([real(3, 8), real(6, 8), real(6)], (1, 2), {"transB": 1, "alpha": 0.3, "beta": -1.7}),
    "powers of two": ([real(3, 8), real(8, 6), real(6)], (1, 2), {"alpha": 0.5, "beta": 2.0}),
    "no factor of the bias": ([real(3, 8), real(8, 6), real(6)], (1, 2), {"beta": 0.0}),
    "negative": ([real(3, 8), real(8, 6)], (1,), {"alpha": -4.0}),
    "one number": ([real(3, 8), real(6, 8), real()], (1, 2), {"transB": 1}),
    "a list of one": ([real(3, 8), real(6, 8), real(1)], (1, 2), {"transB": 1}),
    "a row": ([real(3, 8), real(6, 8), real(1, 6)], (1, 2), {"transB": 1}),
    "a column": ([real(3, 8), real(6, 8), real(3, 1)], (1, 2), {"transB": 1}),
    "a matrix": ([real(3, 8), real(6, 8), real(3, 6)], (1, 2), {"transB": 1, "beta": 0.25}),
    "a computed matrix": ([real(3, 8), real(6, 8), real(3, 6)], (1,), {"transB": 1, "beta": 0.3}),
    "weights on the left": ([real(6, 8), real(8, 3), real(6, 1)], (0, 2), {"alpha": 0.7}),
    "weights on the left, transposed": ([real(8, 6), real(3, 8)], (0,), {"transA": 1, "transB": 1}),
    "two that are computed": ([real(8, 3), real(6, 8), real(6)], (), {"transA": 1, "transB": 1, "alpha": 0.3, "beta": 0.6}),
}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", FORMS)
def test_values_are_onnxruntime_s_in_both_formats(name: str, tmp_path: Path) -> None:
    inputs, constants, attributes = FORMS[name]
    source, again, lite = (tmp_path / file for file in ("gemm.onnx", "again.onnx", "gemm.tflite"))
    source.write_bytes(node_model("Gemm", 17, inputs, constants, **attributes).SerializeToString())
    assert not any(op.kind == "Opaque" for op in load(source).ops)
    convert(source, again)
    convert(source, lite)
    given = feeds(inputs, constants)
    (expected,) = session(source.read_bytes()).run(None, given)
    assert np.ptp(expected) > 1
    (found,) = session(again.read_bytes()).run(None, given)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    (found,) = run_litert(lite.read_bytes(), list(given.values()))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.formats
def test_a_power_of_two_is_part_of_the_weights_in_every_bit(tmp_path: Path) -> None:
    weights = real(6, 8)
    path = tmp_path / "gemm.onnx"
    path.write_bytes(node_model("Gemm", 17, [real(3, 8), weights, real(6)], (1, 2), transB=1, alpha=0.125).SerializeToString())
    graph = load(path)
    assert [op.kind for op in graph.ops] == ["Gemm"]
    assert np.array_equal(graph.constant(graph.ops[0].inputs[1]), weights / 8)


def integer_model(
    product: onnx.NodeProto, opset: int = 17, weight_scales: Any = 0.01, weight_type: int = onnx.TensorProto.INT8, **attributes: int
) -> bytes:
    """A product of uint8 data q and int8 weights, with a bias where the node reads one, between DequantizeLinear and QuantizeLinear."""
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["x"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wf"], **attributes),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"]),
        product,
        helper.make_node("QuantizeLinear", ["p", "os", "z"], ["y"]),
    ]
    constants = {
        "s": np.float32(0.02), "z": np.uint8(120), "ws": np.float32(weight_scales),
        "b": RNG.integers(-900, 900, 6).astype(np.int32), "bs": np.float32(0.0002), "os": np.float32(0.02),
    }  # fmt: skip
    types = [helper.make_tensor_value_info(name, 2, shape) for name, shape in (("q", [3, 8]), ("y", [3, 6]))]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    initializers.append(helper.make_tensor("w", weight_type, (8, 6), RNG.integers(-127, 128, 48).tolist()))
    graph = helper.make_graph(nodes, "g", types[:1], types[1:], initializers)
    model = model_of(graph, opset)
    return bytes(model.SerializeToString())


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "model",
    [
        integer_model(helper.make_node("Gemm", ["x", "wf", "bf"], ["p"], alpha=0.5, beta=2.0)),
        integer_model(helper.make_node("MatMul", ["x", "wf"], ["p"]), 17, np.linspace(0.01, 0.03, 8), axis=0),
        integer_model(helper.make_node("MatMul", ["x", "wf"], ["p"]), 21, np.linspace(0.01, 0.03, 12).reshape(2, 6), axis=0, block_size=4),
        integer_model(helper.make_node("MatMul", ["x", "wf"], ["p"]), 21, weight_type=onnx.TensorProto.FLOAT8E4M3FN),
    ],
    ids=["a quantized bias with another factor", "scales of rows", "scales of blocks", "weights of 8-bit floats"],
)
def test_results_are_not_fused_to_kernels_that_cannot_compute_them(model: bytes, tmp_path: Path) -> None:
    """QGemm adds the integers of a bias without its scale, and QLinearMatMul refuses scales along the products."""
    from qconvert.runtimes.onnxruntime import OnnxRuntime

    source, result = tmp_path / "product.onnx", tmp_path / "result.onnx"
    source.write_bytes(model)
    convert(source, result, target="ort-x86")
    given = {"q": RNG.integers(0, 256, (3, 8)).astype(np.uint8)}
    (expected,), (found,) = session(model).run(None, given), OnnxRuntime(result.read_bytes()).session.run(None, given)
    assert np.abs(found.astype(int) - expected).max() <= 1  # ties of the data's steps are frequent
