"""Integer weights of operators in float: a constant after a DEQUANTIZE in TFLite, which comes back as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from qconvert import Graph, Op, Quantization, Tensor, check, convert, load, save
from qconvert.graph import Array
from qconvert.operators.shapes_and_functions import infer

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

_STRIDES = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
_VOLUME = {"strides": (1, 1, 1), "dilations": (1, 1, 1), "pads": (0,) * 6, "data_format": "channels_first"}
#: kind, shapes of data and weights (O,I,spatial), attributes.
_LAYERS: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...], Mapping[str, object]]] = {
    "CONV_2D": ("Conv", (1, 3, 6, 5), (4, 3, 3, 2), _STRIDES),
    "DEPTHWISE_CONV_2D": ("Conv", (1, 4, 6, 5), (4, 1, 3, 2), {**_STRIDES, "group": 4}),
    "TRANSPOSE_CONV": ("ConvTranspose", (1, 3, 4, 5), (4, 3, 3, 2), {**_STRIDES, "output_padding": (0, 0)}),
    "CONV_3D": ("Conv", (1, 3, 4, 5, 3), (4, 3, 3, 2, 2), _VOLUME),
    "FULLY_CONNECTED": ("Gemm", (5, 7), (4, 7), {}),
}


def layer(name: str, dtype: str, per_axis: bool, quantized: bool) -> Graph:
    """A layer with integer weights and a real result: between int8 data and what has no scale, or with weights alone quantized."""
    kind, data, shape, attributes = _LAYERS[name]
    rng = np.random.default_rng(len(name))
    info = np.iinfo(dtype)
    stored = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    scale = rng.uniform(0.001, 0.02, 4 if per_axis else 1).astype(np.float32)
    quantization = Quantization(scale, np.full(scale.shape, 128 if dtype == "uint8" else 0, np.int64), 0 if per_axis else None)
    weights = Tensor("w", dtype, shape, stored, quantization)
    bias = Tensor("b", "float32", (4,), rng.normal(size=4).astype(np.float32))
    x = Tensor("x", "float32", data)
    if quantized:
        inner = Tensor("xq", "int8", data, None, Quantization.per_tensor(0.03, -5))
        ops = [Op("Quantize", ("x",), ("xq",)), Op(kind, ("xq", "w", "b"), ("y",), attributes)]
        tensors = [x, inner, weights, bias]
    else:
        ops = [Op("Dequantize", ("w",), ("r",)), Op(kind, ("x", "r", "b"), ("y",), attributes)]
        tensors = [x, weights, bias, Tensor("r", "float32", shape)]
    known = {tensor.name: tensor for tensor in (*tensors, Tensor("y", "float32", None))}
    return infer(Graph("layer", known, tuple(ops), ("x",), ("y",)))


def weights_of(graph: Graph) -> tuple[Array, Array]:
    """The only integers: less their zero points in order of size, as axes may stand otherwise; and the scales."""
    (found,) = (tensor for tensor in graph.constants() if tensor.is_quantized and tensor.name.startswith("w"))
    assert found.quantization is not None and found.data is not None
    return np.sort(found.data.astype(np.int64) - found.quantization.zero_point[0], None), found.quantization.scale


@pytest.mark.parametrize("quantized", [True, False], ids=["data", "weights alone"])
@pytest.mark.parametrize(("dtype", "per_axis"), [("int8", True), ("int8", False), ("uint8", True)])
@pytest.mark.parametrize("name", _LAYERS)
def test_integers_and_scales_stay(name: str, dtype: str, per_axis: bool, quantized: bool, tmp_path: Path) -> None:
    graph = layer(name, dtype, per_axis, quantized)
    source, result, back = tmp_path / "source.onnx", tmp_path / "result.tflite", tmp_path / "back.onnx"
    save(graph, source)
    convert(source, result)
    written = load(result)
    assert name in {op.source.partition(" ")[0] for op in written.ops}
    for wanted, found in zip(weights_of(graph), weights_of(written), strict=True):
        np.testing.assert_array_equal(found, wanted)
    convert(result, back)
    for wanted, found in zip(weights_of(graph), weights_of(load(back)), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert check(result, back, samples=2, per_op=True).passed
    assert check(source, result, samples=2, per_op=True).passed
