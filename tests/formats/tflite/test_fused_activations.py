"""Fused activations on plain integers and on int16, in LiteRT and, converted, in onnxruntime and in LiteRT again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from differential import converted
from loaded import tflite_graph
from tflite_models import Array, TensorSpec, run_litert, single_op

from qconvert.conversion import normalize
from qconvert.formats.tflite.writer import build
from qconvert.plugins import target_named
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.litert

ACTIVATIONS = {"relu": 1, "relu_n1_to_1": 2, "relu6": 3}
WINDOW = {"padding": 0, "strideH": 1, "strideW": 1}


def quantization(name: str, *shape: int, scale: float = 0.001) -> TensorSpec:
    return TensorSpec(name, shape, "int16", scale, 0)


def weights(*shape: int, axis: int = 0) -> list[TensorSpec]:
    values = np.random.default_rng(2).integers(-127, 128, shape, dtype=np.int8)
    bias = TensorSpec("b", (4,), "int64", 0.001 * 0.01, 0, data=np.array([400000, -200000, 0, 90000], np.int64))
    return [TensorSpec("w", shape, "int8", 0.01, 0, axis, data=values), bias]


def _wide(activation: int) -> dict[str, bytes]:
    image, result = quantization("x", 1, 5, 5, 4), quantization("y", 1, 5, 5, 4)
    fused: dict[str, Any] = {"fusedActivationFunction": activation}
    pool = {**WINDOW, "filterHeight": 2, "filterWidth": 2, **fused}
    return {
        "CONV_2D": single_op("CONV_2D", {**WINDOW, **fused}, [image, *weights(4, 1, 1, 4)], [result]),
        "DEPTHWISE_CONV_2D": single_op("DEPTHWISE_CONV_2D", {**WINDOW, "depthMultiplier": 1, **fused},
                                       [image, *weights(1, 3, 3, 4, axis=3)], [result]),
        "FULLY_CONNECTED": single_op("FULLY_CONNECTED", fused, [quantization("x", 3, 8), *weights(4, 8)], [quantization("y", 3, 4)]),
        "AVERAGE_POOL_2D": single_op("AVERAGE_POOL_2D", pool, [image], [result]),
        "MAX_POOL_2D": single_op("MAX_POOL_2D", pool, [image], [result]),
        **{name: single_op(name, fused, [quantization("x", 40), quantization("z", 40, scale=0.0007)], [quantization("y", 40, scale=0.002)])
           for name in ("ADD", "SUB", "MUL")},
    }  # fmt: skip


def _compare(data: bytes, low: int, high: int, allowed: int) -> None:
    graph = tflite_graph(data)
    rng = np.random.default_rng(3)
    feeds = [rng.integers(low, high, graph[name].static_shape).astype(graph[name].dtype) for name in graph.inputs]
    (wanted,) = run_litert(data, feeds)
    assert len(np.unique(wanted)) > 1
    for target in ("generic", "ort-x86"):
        fitted, model = converted(data, target)
        for exact in (True, False):
            runtime = OnnxRuntime(model.SerializeToString(), exact=exact)
            _require(wanted, runtime.run(dict(zip(fitted.inputs, feeds, strict=True)))[fitted.outputs[0]], allowed)
    again, _ = normalize(graph, target_named("tflite"))
    _require(wanted, run_litert(build(again, {}), feeds)[0], 0)


def _require(wanted: Array, found: Array, allowed: int) -> None:
    assert (wanted.shape, wanted.dtype) == (found.shape, found.dtype)
    assert np.abs(wanted.astype(np.int64) - found.astype(np.int64)).max() <= allowed


@pytest.mark.onnxruntime
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", _wide(0))
def test_of_int16(name: str, activation: str) -> None:
    _compare(_wide(ACTIVATIONS[activation])[name], -20000, 20000, 1)


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
def test_of_plain_integers(name: str, dtype: str, activation: str) -> None:
    tensors = [TensorSpec(tensor, (50,), dtype) for tensor in "xzy"]
    data = single_op(name, {"fusedActivationFunction": ACTIVATIONS[activation]}, tensors[:2], tensors[2:])
    _compare(data, -9, 10, 0)


def test_a_concatenation_has_no_activation_whatever_it_states() -> None:
    """LiteRT's kernels do not look at it, so neither does what is made of the file."""
    x, z, y = TensorSpec("x", (1, 4), "float32"), TensorSpec("z", (1, 4), "float32"), TensorSpec("y", (1, 8), "float32")
    data = single_op("CONCATENATION", {"axis": 1, "fusedActivationFunction": ACTIVATIONS["relu"]}, [x, z], [y])
    feeds = [np.array([[-3, -1, 0, 2]], np.float32), np.array([[5, -7, 8, -0.5]], np.float32)]
    (wanted,) = run_litert(data, feeds)
    assert wanted.min() == -7
    graph = tflite_graph(data)
    assert [op.kind for op in graph.ops] == ["Concat"] and "activation" not in graph.ops[0].attributes
    (again,) = run_litert(build(graph, {}), feeds)
    np.testing.assert_array_equal(again, wanted)
