"""Rows of kernels at scales, and in forms, that random operators seldom have: what the runtime gives, element by element."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert.conformance.examples import Example
from qconvert.conversion import load, save
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.kernels import KERNELS
from qconvert.plugins import ModelFile, kernels_named
from qconvert.testing import try_kernels

_PLACES = {"data_format": "channels_last", "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}


def make(kind: str, shape: tuple[int, ...], given: Tensor, result: Tensor, *constants: Tensor, **attributes: Any) -> Graph:
    tensors = {item.name: item for item in (given, *constants, result)}
    return Graph(kind, tensors, (Op(kind, (given.name, *(item.name for item in constants)), (result.name,), attributes),), ("x",), ("y",))


def tensor(name: str, dtype: str, shape: tuple[int, ...], scale: float, point: int = 0, data: Array | None = None) -> Tensor:
    return Tensor(name, dtype, shape, data, Quantization.per_tensor(scale, point))


def run(kernels: str, graph: Graph, codes: Array, folder: Path, suffix: str = ".tflite") -> tuple[Graph, Array]:
    """Return the graph as it is read from its file, and what the runtime gives."""
    path = folder / f"m{suffix}"
    save(graph, path, suffix[1:])
    runtime, name = kernels_named(kernels)
    model = runtime.open(ModelFile(path, name))
    (found,) = model.run({next(iter(model.inputs)): codes}).values()
    return load(path), np.asarray(found)


def integers(kernels: str, graph: Graph, *stored: Array) -> Array:
    found = KERNELS[kernels].integers(graph, graph.ops[0], [*stored, *(graph.constant(name) for name in graph.ops[0].inputs[1:])])
    assert found is not None and len(found.ways) == 1
    return found.ways[0]


@pytest.mark.tflite_micro
@pytest.mark.parametrize(
    ("kind", "given", "result", "code", "expected"),
    [
        ("Elu", (5.019079480916844e-07, 127), (9.99999993922529e-09, 127), 124, -22),  # exp(x) - 1 in float32, not expm1(x)
        ("HardSwish", (0.030015701428055763, 8), (0.013781064189970493, -104), 112, 122),  # scales are divided in float64
    ],
)
def test_functions_of_tflite_micro(
    kind: str, given: tuple[float, int], result: tuple[float, int], code: int, expected: int, tmp_path: Path
) -> None:
    codes = np.arange(-128, 128).astype(np.int8)
    graph = make(kind, codes.shape, tensor("x", "int8", codes.shape, *given), tensor("y", "int8", codes.shape, *result))
    read, found = run("tflite-micro:reference", graph, codes, tmp_path)
    assert found[code + 128] == expected
    assert np.array_equal(integers("tflite-micro:reference", read, codes), found)


def digits(accumulators: Array, channels: int) -> Array:
    """Return data of uint8 whose products with weights of 255, and of 1 of the last channel, add up to each of the accumulators."""
    rest, found = accumulators.copy(), np.zeros((accumulators.size, channels), np.int64)
    for channel in range(channels - 1):
        found[:, channel] = np.minimum(rest // 255, 255)
        rest = rest - 255 * found[:, channel]
    found[:, -1] = rest
    return found.astype(np.uint8)


@pytest.mark.litert
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_convolutions_of_uint8_multiply_scales_in_float32(kind: str, tmp_path: Path) -> None:
    """GetQuantizedConvolutionMultipler (kernel_util.cc); those of int8 multiply them in float64."""
    channels, scales, step = 64, (0.024087153375148773, 0.011557431891560555), 4.0650835037231445
    codes = digits(np.array([839634, 1175488, 1219295, 1555149, 1598956, 1934810]), channels)[:, None, None]
    weights = np.array([255] * (channels - 1) + [1], np.uint8).reshape(1, channels, 1, 1)
    graph = make(
        kind, codes.shape,
        tensor("x", "uint8", codes.shape, scales[0]), tensor("y", "uint8", (codes.shape[0], 1, 1, 1), step),
        tensor("w", "uint8", weights.shape, scales[1], 0, weights), **_PLACES,
    )  # fmt: skip
    read, found = run("litert:reference", graph, codes, tmp_path)
    assert np.array_equal(integers("litert:reference", read, codes), found)


@pytest.mark.litert
def test_a_conversion_of_steps_beyond_32_bits_is_written_in_float(tmp_path: Path) -> None:
    codes = np.array(98, np.int8)
    graph = make("Requantize", (), tensor("x", "int8", (), 0.125, -7), tensor("y", "int8", (), 7.450580596923828e-09, -128))
    read, found = run("litert:reference", graph, codes, tmp_path)
    assert [op.kind for op in read.ops] == ["Dequantize", "Quantize"] and found.item() == 127
    for kernels in ("litert:default", "litert:reference", "tflite-micro:reference"):
        assert KERNELS[kernels].integers(graph, graph.ops[0], [codes]) is None


@pytest.mark.mnn
def test_a_convolution_of_one_channel_is_depthwise_in_mnn() -> None:
    """Its kernel has weights' scales of 1e-6 at least, and cuts off biases to whole units of the sum."""
    attributes = {**_PLACES, "data_format": "channels_first", "auto_pad": "NOTSET"}
    example = Example(((2, 1, 5, 40), (1, 1, 1, 2), (1,)), attributes, has_extremes=True, scales=(-9, 9.2))
    found = try_kernels("mnn:cpu", "mnn", kinds=["Conv"], types=("int8",), count=25, examples=[example])
    assert sum(item.known for item in found) > 5_000 and not sum(item.differing for item in found)
