"""Graphs that are valid and unusual: what is written loads in onnxruntime and computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from passes.graphs import constant, make, outputs, q
from refusals import refused

from qconvert import Op, Quantization, Tensor
from qconvert.errors import OptionError, UnsupportedError
from qconvert.formats.onnx.writer import build
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.onnxruntime

X = np.linspace(-9, 9, 12, dtype=np.float32).reshape(3, 4)


def test_one_tensor_given_out_twice_as_real_values() -> None:
    tensors = [Tensor("x", "float32", (3, 4)), Tensor("q", "uint8", (3, 4), None, q(0.05, 128))]
    ops = [Op("Quantize", ("x",), ("q",)), Op("Dequantize", ("q",), ("a",)), Op("Dequantize", ("q",), ("b",))]
    wanted = np.clip(np.rint(X / np.float32(0.05)), -128, 127) * np.float32(0.05)
    for order in ("a b", "b a", "a b q"):
        found = outputs(make(ops, tensors, "x", order), {"x": X})
        assert all(np.allclose(value, wanted) for value in found[:2])


def test_a_constant_that_a_convolution_turns_and_the_user_sees() -> None:
    """The weights of a Gemm are written in the order of axes that ONNX wants, and the output in the graph's own."""
    w = constant("w", np.arange(8, dtype=np.float32).reshape(2, 4))
    graph = make([Op("Gemm", ("x", "w"), ("y",))], [Tensor("x", "float32", (3, 4)), w], "x", "y w")
    y, seen = outputs(graph, {"x": X})
    assert np.array_equal(seen, w.data) and np.allclose(y, X @ seen.T)  # type: ignore[arg-type]


def stored(name: str, dtype: str, scale: float, zero: int = 0) -> Tensor:
    return Tensor(name, dtype, (3, 4), None, q(scale, zero))


@pytest.mark.cross_section
def test_a_clip_of_one_type_onto_another_of_the_same_numbers() -> None:
    """The quantizations have equal scales and zero points; their stored types differ, which Clip cannot do."""
    limits = (constant("low", np.float32(-0.5)), constant("high", np.float32(2)))
    tensors = [Tensor("x", "float32", (3, 4)), stored("a", "int8", 0.125), stored("b", "uint8", 0.125), *limits]
    for inputs in (("a", "low", "high"), ("a",)):
        clip = Op("Clip" if len(inputs) > 1 else "Relu", inputs, ("b",))
        (found,) = outputs(make([Op("Quantize", ("x",), ("a",)), clip], tensors, "x", "b"), {"x": X})
        assert np.array_equal(found, np.clip(np.rint(X * 8), 0, 16 if len(inputs) > 1 else 127))


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize("activation", ["relu", "relu6", "relu_n1_to_1"])
def test_activations_on_16_bits_where_onnxruntime_has_no_clip(dtype: str, activation: str) -> None:
    zero = 0 if dtype == "int16" else 32768
    tensors = [Tensor("x", "float32", (3, 4)), stored("a", dtype, 1 / 4096, zero), stored("y", dtype, 1 / 2048, zero)]
    low, high = {"relu": (0, 9), "relu6": (0, 6), "relu_n1_to_1": (-1, 1)}[activation]
    ops = [Op("Quantize", ("x",), ("a",)), Op("Add", ("a", "a"), ("y",), {"activation": activation})]
    (found,) = outputs(make(ops, tensors, "x", "y"), {"x": X / 4})
    wanted = np.clip(np.rint(X / 4 * 4096), -32768, 32767) * 2 / 4096
    assert np.array_equal((found.astype(np.int64) - zero) / 2048, np.clip(wanted, low, high))


def test_a_transposed_convolution_with_computed_weights() -> None:
    rng = np.random.default_rng(0)
    shape = (1, 2, 2, 2)
    image, kernel = Tensor("x", "float32", (1, 2, 4, 4)), Tensor("w", "float32", (3, 2, 2, 2))
    attributes = {"strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1), "output_padding": (0, 0), "data_format": "channels_first"}
    graph = make([Op("ConvTranspose", ("x", "w"), ("y",), attributes)], [image, kernel], "x w", "y")
    x, w = rng.normal(size=(1, 2, 4, 4)).astype(np.float32), rng.normal(size=(3, *shape[1:])).astype(np.float32)
    (found,) = outputs(graph, {"x": x, "w": w})
    wanted = np.einsum("nihw,oiab->nohawb", x, w).reshape(1, 3, 8, 8)
    assert np.allclose(found, wanted, atol=1e-5)


def test_a_resize_onto_another_type_of_the_same_numbers() -> None:
    tensors = [Tensor("x", "float32", (1, 1, 3, 4)), Tensor("a", "int8", (1, 1, 3, 4), None, q(0.125)),
               Tensor("b", "uint8", None, None, q(0.125)), constant("sizes", np.array([6, 8], np.int64))]  # fmt: skip
    attributes = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
        "data_format": "channels_first",
    }
    ops = [Op("Quantize", ("x",), ("a",)), Op("Resize", ("a", "sizes"), ("b",), attributes)]
    (found,) = outputs(make(ops, tensors, "x", "b"), {"x": X.reshape(1, 1, 3, 4)})
    wanted = np.clip(np.rint(X * 8), 0, 127).repeat(2, 0).repeat(2, 1)
    assert found.dtype == np.uint8 and np.array_equal(found[0, 0], wanted)


def test_indices_of_int32_are_int64_where_onnx_has_no_others() -> None:
    x, i = Tensor("x", "float32", (3, 4)), constant("i", np.array([[0, 1], [2, 3]], np.int32))
    (found,) = outputs(make([Op("GatherND", ("x", "i"), ("y",))], [x, i], "x", "y"), {"x": X})
    assert np.array_equal(found, X[[0, 2], [1, 3]])
    rows = constant("i", np.array([[0, 3], [1, 1], [2, 0]], np.int32))
    (found,) = outputs(make([Op("Gather", ("x", "i"), ("y",), {"axis": 1, "batch_dims": 1})], [x, rows], "x", "y"), {"x": X})
    assert np.array_equal(found, np.take_along_axis(X, np.array([[0, 3], [1, 1], [2, 0]]), 1))
    codes = [constant(name, np.array(value, dtype)) for name, value, dtype in (("d", 4, np.int32), ("v", [0, 1], np.float32))]
    where = Tensor("n", "int32", (3,))
    (found,) = outputs(make([Op("OneHot", ("n", "d", "v"), ("y",))], [where, *codes], "n", "y"), {"n": np.array([2, 0, 3], np.int32)})
    assert np.array_equal(found, np.eye(4, dtype=np.float32)[[2, 0, 3]])
    sizes = Tensor("n", "int32", (2,))
    tile = make([Op("Tile", ("x", "n"), ("y",))], [x, sizes, Tensor("y", "float32", ("a", "b"))], "x n", "y")
    (found,) = outputs(tile, {"x": X, "n": np.array([2, 1], np.int32)})
    assert np.array_equal(found, np.tile(X, (2, 1)))


def test_a_type_that_an_operator_of_onnx_does_not_have_is_refused() -> None:
    graph = make(
        [Op("ReduceMean", ("x", "a"), ("y",))],
        [Tensor("x", "uint16", (3, 4)), constant("a", np.array([1])), Tensor("y", "uint16", (3, 1))],
        "x",
        "y",
    )
    with refused(UnsupportedError, "operand-types", holds=("ReduceMean", "uint16", 0)):
        build(graph, 17, {})


@pytest.mark.parametrize("quantization", [None, q(0.02)], ids=["real", "quantized"])
@pytest.mark.parametrize("opset", [17, 21, 23])
def test_a_bias_behind_a_product_of_int8_data_on_three_axes(opset: int, quantization: Quantization | None) -> None:
    """onnxruntime, where it makes int8 activations uint8, refuses the Reshape that it makes of both from opset 21 on."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1, 5, 4)).astype(np.float32)
    stored = "float32" if quantization is None else "int32"
    weights = Tensor("w", "int8", (4, 3), rng.integers(-127, 128, (4, 3)).astype(np.int8), q(0.01))
    tensors = [Tensor("x", "float32", (1, 5, 4)), Tensor("a", "int8", (1, 5, 4), None, q(0.01, 3)), weights]
    tensors += [Tensor("b", stored, (3,), np.arange(3).astype(stored), quantization)]
    ops = [Op("Quantize", ("x",), ("a",)), Op("MatMul", ("a", "w"), ("m",)), Op("Add", ("m", "b"), ("y",))]
    session = OnnxRuntime(build(make(ops, tensors, "x", "y"), opset, {}).SerializeToString(), optimize=True)
    (found,) = session.run({"x": x}).values()
    data = np.clip(np.rint(x / np.float32(0.01)), -131, 124) * 0.01
    wanted = data @ (weights.data * 0.01) + np.arange(3) * (1.0 if quantization is None else 0.02)  # type: ignore[operator]
    assert np.allclose(found, wanted, atol=1e-5)


def test_the_opset_is_that_of_the_operator_that_needs_the_newest() -> None:
    """Of two operators of one kind, the first scatters extremes, which is newer than what the second does."""
    indices, updates = constant("i", np.array([[0], [2]])), constant("u", np.ones((2, 4), np.float32))
    ops = [
        Op("ScatterND", ("x", "i", "u"), ("a",), {"reduction": "max"}),
        Op("ScatterND", ("a", "i", "u"), ("y",), {"reduction": "none"}),
    ]
    graph = make(ops, [Tensor("x", "float32", (3, 4)), indices, updates], "x", "y")
    assert build(graph, 0, {}).opset_import[0].version == 18
    with refused(OptionError, "opset-too-old"):
        build(graph, 17, {})
