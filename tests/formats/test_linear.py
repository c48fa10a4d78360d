"""Convolutions and matrix products in all their variants, equal to LiteRT's default kernels in every element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from differential import compare, converted
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model, single_op

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

RNG = np.random.default_rng(3)


def weights(*shape: int, axis: int | None = 0, dtype: str = "int8") -> TensorSpec:
    """Trained-looking constant weights; `axis` None for one scale."""
    if dtype == "uint8":
        data = np.clip(RNG.normal(121, 25, shape), 0, 255).astype(np.uint8)
        return TensorSpec("w", shape, "uint8", 0.011, 121, data=data)
    low = 7 if dtype == "int4" else 127
    data = np.clip(np.round(RNG.laplace(0, low / 5, shape)), -low, low).astype(np.int8)
    scale: Any = 0.01 if axis is None else RNG.uniform(0.002, 0.02, shape[axis])
    return TensorSpec("w", shape, dtype, scale, axis=axis or 0, data=data)


def bias(data: TensorSpec, w: TensorSpec, count: int, dtype: str = "int32") -> TensorSpec:
    scale = np.float32(data.scale) * np.asarray(w.scale, np.float32)
    return TensorSpec("b", (count,), dtype, scale, data=RNG.integers(-900, 900, count).astype(dtype))


def activation(name: str, *shape: int, dtype: str = "int8", scale: float = 0.03, zero: int = -9) -> TensorSpec:
    return TensorSpec(name, shape, dtype, scale, zero + 128 if dtype == "uint8" else 0 if dtype == "int16" else zero)


def stored(tensor: TensorSpec) -> Any:
    info = np.iinfo(tensor.dtype)
    return RNG.integers(info.min, info.max, tensor.shape, endpoint=True).astype(tensor.dtype)


Model = tuple[bytes, list[TensorSpec]]
"""The bytes of a model and its inputs."""


def conv_2d(dtype: str, act: int, padding: int, stride: int, dilation: int, groups: int) -> Model:
    x = activation("x", 1, 9, 11, 6, dtype=dtype)
    w = weights(8, 3, 3, 6 // groups, axis=None if dtype == "uint8" else 0, dtype=dtype)
    reach = 2 * dilation
    height, width = (-(-size // stride) if padding == 0 else -(-(size - reach) // stride) for size in (9, 11))
    y = activation("y", 1, height, width, 8, dtype=dtype, scale=0.05, zero=-3)
    options = {"padding": padding, "strideH": stride, "strideW": stride, "dilationHFactor": dilation, "dilationWFactor": dilation,
               "fusedActivationFunction": act}  # fmt: skip
    return single_op("CONV_2D", options, [x, w, bias(x, w, 8)], [y]), [x]


CONV_WINDOWS = [(0, 1, 1, 1), (0, 2, 1, 1), (1, 2, 1, 1), (0, 1, 2, 1), (1, 1, 1, 2)]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("act", [0, 1, 2, 3])
@pytest.mark.parametrize(("padding", "stride", "dilation", "groups"), CONV_WINDOWS)
def test_conv_2d(dtype: str, act: int, padding: int, stride: int, dilation: int, groups: int) -> None:
    if groups > 1 and dtype == "uint8":
        pytest.skip("LiteRT has no grouped convolution for uint8")
    data, (x,) = conv_2d(dtype, act, padding, stride, dilation, groups)
    for _ in range(3):
        (found,) = compare(data, [stored(x)])
        assert found.largest == 0


def depthwise_conv_2d(dtype: str, multiplier: int, padding: int, stride: int, dilation: int) -> Model:
    x = activation("x", 1, 9, 11, 4, dtype=dtype)
    count = 4 * multiplier
    w = weights(1, 3, 3, count, axis=None if dtype == "uint8" else 3, dtype=dtype)
    reach = 2 * dilation
    height, width = (-(-size // stride) if padding == 0 else -(-(size - reach) // stride) for size in (9, 11))
    y = activation("y", 1, height, width, count, dtype=dtype, scale=0.05, zero=-3)
    options = {"padding": padding, "strideH": stride, "strideW": stride, "depthMultiplier": multiplier, "dilationHFactor": dilation,
               "dilationWFactor": dilation, "fusedActivationFunction": 3}  # fmt: skip
    return single_op("DEPTHWISE_CONV_2D", options, [x, w, bias(x, w, count)], [y]), [x]


DEPTHWISE_WINDOWS = [(1, 0, 1, 1), (1, 0, 2, 1), (3, 0, 1, 1), (1, 1, 1, 1), (1, 0, 1, 2)]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("multiplier", "padding", "stride", "dilation"), DEPTHWISE_WINDOWS)
def test_depthwise_conv_2d(dtype: str, multiplier: int, padding: int, stride: int, dilation: int) -> None:
    data, (x,) = depthwise_conv_2d(dtype, multiplier, padding, stride, dilation)
    for _ in range(3):
        (found,) = compare(data, [stored(x)])
        assert found.largest == 0


FULLY_CONNECTED_SHAPES: list[tuple[tuple[int, ...], bool, tuple[int, ...]]] = [
    ((5, 12), False, (5, 7)),
    ((1, 2, 3, 12), False, (6, 7)),
    ((2, 3, 12), True, (2, 3, 7)),
    ((12,), False, (1, 7)),
]


def fully_connected(shape: tuple[int, ...], keep: bool, result: tuple[int, ...], with_bias: bool) -> Model:
    x, w = activation("x", *shape), weights(7, 12, axis=None)
    y = activation("y", *result, scale=0.06)
    return single_op("FULLY_CONNECTED", {"keepNumDims": keep}, [x, w, bias(x, w, 7) if with_bias else None], [y]), [x]


@pytest.mark.parametrize(("shape", "keep", "result"), FULLY_CONNECTED_SHAPES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_fully_connected(shape: tuple[int, ...], keep: bool, result: tuple[int, ...], with_bias: bool) -> None:
    data, (x,) = fully_connected(shape, keep, result, with_bias)
    (found,) = compare(data, [stored(x)])
    assert found.largest == 0


TRANSPOSE_WINDOWS = [(0, 2, (10, 14)), (1, 2, (11, 15)), (0, 1, (5, 7)), (1, 1, (7, 9))]


def transpose_conv(padding: int, stride: int, size: tuple[int, int]) -> Model:
    x, w = activation("x", 1, 5, 7, 4), weights(6, 3, 3, 4)
    shape = TensorSpec("s", (4,), "int32", data=np.array([1, *size, 6], np.int32))
    y = activation("y", 1, *size, 6, scale=0.06)
    options = {"padding": padding, "strideH": stride, "strideW": stride}
    return single_op("TRANSPOSE_CONV", options, [shape, w, x, bias(x, w, 6)], [y], version=3), [x]


def test_transpose_conv() -> None:
    for window in TRANSPOSE_WINDOWS:
        data, (x,) = transpose_conv(*window)
        for _ in range(3):
            (found,) = compare(data, [stored(x)])
            assert found.largest <= 1
            assert found.differing < 1e-3


def batch_matmul(adj_x: bool, adj_y: bool) -> Model:
    a = activation("a", 2, *((6, 5) if adj_x else (5, 6)))
    b = activation("b", 2, *((7, 6) if adj_y else (6, 7)), zero=4)
    return single_op("BATCH_MATMUL", {"adjX": adj_x, "adjY": adj_y}, [a, b], [activation("y", 2, 5, 7, scale=0.2)]), [a, b]


@pytest.mark.parametrize(("adj_x", "adj_y"), [(False, False), (True, False), (False, True), (True, True)])
def test_batch_matmul(adj_x: bool, adj_y: bool) -> None:
    data, (a, b) = batch_matmul(adj_x, adj_y)
    (found,) = compare(data, [stored(a), stored(b)])
    assert found.largest <= 1


def dynamic_range_conv(w: TensorSpec) -> Model:
    x = TensorSpec("x", (1, 6, 6, 3), "float32")
    b = TensorSpec("b", (4,), "float32", data=RNG.normal(size=4).astype(np.float32))
    return single_op("CONV_2D", {"padding": 0, "strideH": 1, "strideW": 1}, [x, w, b], [TensorSpec("y", (1, 6, 6, 4), "float32")]), [x]


@pytest.mark.cross_section
def test_float_convolution_with_dynamic_range_weights_keeps_the_integers() -> None:
    w = weights(4, 3, 3, 3)
    data, _ = dynamic_range_conv(w)
    _, onnx_model = converted(data)
    stored_weights = next(item for item in onnx_model.graph.initializer if item.name == "w")
    assert np.array_equal(np.frombuffer(stored_weights.raw_data, np.int8).reshape(4, 3, 3, 3), w.data.transpose(0, 3, 1, 2))
    value = RNG.normal(size=(1, 6, 6, 3)).astype(np.float32)
    (found,) = compare(data, [value])
    assert found.largest < 0.02  # LiteRT quantizes the activations while it runs


def float16_weights() -> Model:
    x = TensorSpec("x", (3, 5), "float32")
    half = TensorSpec("h", (4, 5), "float16", data=RNG.normal(size=(4, 5)).astype(np.float16))
    full = TensorSpec("w", (4, 5), "float32")
    y = TensorSpec("y", (3, 4), "float32")
    ops = [OpSpec("DEQUANTIZE", ["h"], ["w"]), OpSpec("FULLY_CONNECTED", ["x", "w", None], ["y"], {})]
    return model(ops, [x, half, full, y], ["x"], ["y"]), [x]


def test_float16_weights_through_dequantize() -> None:
    data, _ = float16_weights()
    (found,) = compare(data, [RNG.normal(size=(3, 5)).astype(np.float32)])
    assert found.largest < 1e-5


def int16_conv() -> Model:
    x, w = activation("x", 1, 6, 6, 3, dtype="int16", scale=0.001), weights(4, 3, 3, 3)
    y = activation("y", 1, 6, 6, 4, dtype="int16", scale=0.002)
    return single_op("CONV_2D", {"padding": 0, "strideH": 1, "strideW": 1}, [x, w, bias(x, w, 4, "int64")], [y]), [x]


def test_int16_activations_take_opset_21() -> None:
    data, (x,) = int16_conv()
    _, onnx_model = converted(data)
    assert onnx_model.opset_import[0].version == 21
    (found,) = compare(data, [stored(x)])
    assert found.largest <= 1


def test_symbolic_batch_stays_symbolic() -> None:
    x = TensorSpec("x", (1, 8, 8, 3), "int8", 0.1, 0, shape_signature=(-1, 8, 8, 3))
    y = TensorSpec("y", (1, 4, 4, 3), "int8", 0.1, 0, shape_signature=(-1, 4, 4, 3))
    options = {"padding": 1, "strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2}
    _, onnx_model = converted(single_op("MAX_POOL_2D", options, [x], [y]))
    assert onnx_model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert onnx_model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_options_of_another_operator_are_an_error() -> None:
    from ai_edge_litert import schema_py_generated as schema

    from qconvert.errors import InvalidModelError

    x, w = activation("x", 1, 6, 6, 3), weights(4, 3, 3, 3)
    data = single_op("CONV_2D", schema.SoftmaxOptionsT(), [x, w, bias(x, w, 4)], [activation("y", 1, 6, 6, 4)])
    with refused(InvalidModelError, "invalid-options", holds=("SoftmaxOptions",)):
        converted(data)
