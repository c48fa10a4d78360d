"""MediaPipe's custom operators that builtin ones can state, against the loops of their kernels in numpy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from custom_models import altered
from tflite_models import Array, OpSpec, TensorSpec, model, run_litert

from qconvert import convert, load
from qconvert.runtimes.onnxruntime import OnnxRuntime

SAME, VALID = 1, 2


def struct(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def transposed_convolution(x: Array, w: Array, bias: Array, padding: int, strides: tuple[int, int]) -> Array:
    """(height, width) strides; every value is spread by the weights, and what SAME crops is left away."""
    crops = [max(0, w.shape[1 + i] - (x.shape[1 + i] - 1) % strides[i] - 1) if padding == SAME else 0 for i in range(2)]
    sizes = [strides[i] * (x.shape[1 + i] - 1) + w.shape[1 + i] - crops[i] for i in range(2)]
    found = np.tile(bias.astype(np.float64), (x.shape[0], *sizes, 1))
    for y, z, dy, dz in itertools.product(*map(range, (*x.shape[1:3], *w.shape[1:3]))):
        row, column = y * strides[0] - crops[0] // 2 + dy, z * strides[1] - crops[1] // 2 + dz
        if 0 <= row < sizes[0] and 0 <= column < sizes[1]:
            found[:, row, column] += x[:, y, z].astype(np.float64) @ w[:, dy, dz].astype(np.float64).T
    return found.astype(np.float32)


def pooled(x: Array, height: int, width: int, low: float, high: float) -> tuple[Array, Array]:
    """The largest of each window and its place, the first of equal ones."""
    shape = (x.shape[0], x.shape[1] // height, x.shape[2] // width, x.shape[3])
    best, places = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for n, y, z, c in itertools.product(*map(range, shape)):
        largest, place = np.finfo(np.float32).min, 0
        for dy, dz in itertools.product(range(height), range(width)):
            if x[n, y * height + dy, z * width + dz, c] > largest:
                largest, place = x[n, y * height + dy, z * width + dz, c], dy * width + dz
        best[n, y, z, c], places[n, y, z, c] = np.clip(largest, low, high), np.float32(place) + np.float32(0.1)
    return best, places


def unpooled(x: Array, places: Array, height: int, width: int) -> Array:
    found = np.zeros((x.shape[0], x.shape[1] * height, x.shape[2] * width, x.shape[3]), np.float32)
    for n, y, z, c in np.ndindex(*x.shape):
        place = int(places[n, y, z, c])
        found[n, y * height + place // width, z * width + place % width, c] = x[n, y, z, c]
    return found


def computed(data: bytes, feed: Array, folder: Path) -> list[list[Array]]:
    """What onnxruntime makes of the model, and LiteRT of what comes back from there."""
    source, there, back = folder / "a.tflite", folder / "a.onnx", folder / "b.tflite"
    source.write_bytes(data)
    assert convert(source, there).custom == {} and convert(there, back).custom == {}
    return [list(OnnxRuntime(there).run({"x": feed}).values()), run_litert(back.read_bytes(), [feed])]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize(("size", "strides", "kernel"), [((5, 6), (2, 2), (2, 2)), ((6, 5), (2, 1), (3, 4)), ((4, 4), (3, 2), (2, 5))])
def test_convolution_2d_transpose_bias(padding: int, size: Any, strides: Any, kernel: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w, bias = rng.normal(size=(3, *kernel, 4)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    feed = rng.normal(size=(1, *size, 4)).astype(np.float32)
    expected = transposed_convolution(feed, w, bias, padding, strides)
    tensors = [
        TensorSpec("x", feed.shape, "float32"),
        TensorSpec("w", w.shape, "float32", data=w),
        TensorSpec("b", (3,), "float32", data=bias),
    ]
    tensors.append(TensorSpec("y", expected.shape, "float32"))
    op = OpSpec("CODE", ["x", "w", "b"], ["y"], {}, custom=True)
    data = altered(model([op], tensors, ["x"], ["y"]), "Convolution2DTransposeBias", struct(padding, strides[1], strides[0]))
    for (found,) in computed(data, feed, tmp_path):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize(("height", "width", "padding"), [(2, 2, SAME), (2, 3, VALID), (1, 4, SAME)])
def test_max_pooling_with_argmax_and_back(height: int, width: int, padding: int, activation: int, tmp_path: Path) -> None:
    """Equal to the last bit, with many equal values, in two images at once."""
    feed = np.random.default_rng(0).integers(-3, 3, (2, 3 * height, 2 * width, 5)).astype(np.float32)
    best, places = pooled(feed, height, width, 0 if activation else -np.inf, np.inf)
    expected = [best, places, unpooled(best, places, height, width)]
    tensors = [TensorSpec(name, value.shape, "float32") for name, value in zip("xpiu", (feed, *expected), strict=True)]
    ops = [
        OpSpec("MaxPoolingWithArgmax2D", ["x"], ["p", "i"], {}, custom=True),
        OpSpec("MaxUnpooling2D", ["p", "i"], ["u"], {}, custom=True),
    ]
    data = with_options(
        model(ops, tensors, ["x"], ["p", "i", "u"]), [struct(padding, width, height, width, height, kind) for kind in (activation, 0)]
    )
    for found in computed(data, feed, tmp_path):
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, wanted)


def with_options(data: bytes, options: list[bytes]) -> bytes:
    from qconvert.formats.flatbuffers import pack_model, unpack_view
    from qconvert.formats.tflite.schema import root

    found = unpack_view(root(data))
    for op, content in zip(found.subgraphs[0].operators, options, strict=True):
        op.customOptions = np.frombuffer(content, np.uint8)
    return pack_model(found)


@pytest.mark.formats
@pytest.mark.parametrize("options", [b"", struct(1, 2), struct(1, 1, 1, 2, 2, 0), struct(1, 2, 2, 2, 2, 9), struct(7, 2, 2, 2, 2, 0),
                                     struct(1, 5, 5, 5, 5, 0), struct(1, 0, 0, 0, 0, 0), struct(1, -2, -2, -2, -2, 0)])  # fmt: skip
def test_what_builtin_operators_cannot_state_stays_custom(options: bytes, tmp_path: Path) -> None:
    """Windows that overlap or do not fit, unknown paddings and activations, and indices that come from elsewhere."""
    tensors = [TensorSpec("x", (1, 4, 4, 2), "float32"), *(TensorSpec(name, (1, 2, 2, 2), "float32") for name in "pi")]
    data = with_options(
        model([OpSpec("MaxPoolingWithArgmax2D", ["x"], ["p", "i"], {}, custom=True)], tensors, ["x"], ["p", "i"]), [options]
    )
    (tmp_path / "a.tflite").write_bytes(data)
    assert [op.kind for op in load(tmp_path / "a.tflite").ops] == ["Opaque"]
    tensors = [*(TensorSpec(name, (1, 2, 2, 2), "float32") for name in "xi"), TensorSpec("u", (1, 4, 4, 2), "float32")]
    data = model([OpSpec("MaxUnpooling2D", ["x", "i"], ["u"], {}, custom=True)], tensors, ["x", "i"], ["u"])
    (tmp_path / "a.tflite").write_bytes(with_options(data, [struct(1, 2, 2, 2, 2, 0)]))
    assert [op.kind for op in load(tmp_path / "a.tflite").ops] == ["Opaque"]
