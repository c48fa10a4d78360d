"""MediaPipe's custom operators that builtin ones can state: a transposed convolution, a pool with indices, and its reverse.

Their options are the structures of TFLite's C API as they lie in memory: 32-bit integers. What their kernels take and these functions do
not (windows that overlap, indices from elsewhere) stays a custom operator. Kernels: mediapipe/util/tflite/operations.
"""

from __future__ import annotations

import numpy as np

from qconvert.formats.tflite.ops.conv import float_weights, transpose_weights
from qconvert.formats.tflite.ops.custom import read_custom
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.schema import FUSED_ACTIVATIONS
from qconvert.formats.tflite.writing import WriteFunction
from qconvert.graph import Shape
from qconvert.operators.values import Value, apply, cast, reshape, transpose, where

#: TfLitePadding; TfLiteFusedActivation has the schema's numbers.
_SAME, _VALID = 1, 2
#: What the kernel adds to an index, so that it is the same integer when it is cut off.
_HALF = np.float32(0.1)


def read_convolution_transpose_bias(r: Reading) -> None:
    """Convolution2DTransposeBias: (data, weights O,H,W,I, bias). Options: padding, stride of the width, of the height."""
    options, data = _integers(r, 3), r.tensor(0)
    shape = data.shape
    if options is None or not are_floats(r) or shape is None or len(shape) != 4:
        return read_custom(r)
    padding, strides, sizes = options[0], (options[2], options[1]), shape[1:3]
    known = r.find_dequantize(1) is not None or r.constant(1) is not None
    if padding not in (_SAME, _VALID) or min(strides) < 1 or not known or not all(isinstance(size, int) for size in sizes):
        return read_custom(r)
    kernel, weights = transpose_weights(r, 1, "OIHW", (0, 3, 1, 2))
    crops = [0, 0]
    if padding == _SAME:
        crops = [max(0, weights[1 + i] - (int(sizes[i]) - 1) % strides[i] - 1) for i in range(2)]
    begins = [crop // 2 for crop in crops]
    spatial = [strides[i] * (int(sizes[i]) - 1) + weights[1 + i] - crops[i] for i in range(2)]
    if weights[3] != shape[3] or r.tensor(2).static_shape != weights[:1]:
        raise r.invalid(
            f"data of shape {shape}, weights {weights} and a bias of shape {r.tensor(2).shape} do not fit", rule="shape-mismatch"
        )
    r.with_shape((shape[0], *spatial, weights[0]))
    r.emit(
        "ConvTranspose",
        [r.input(0), float_weights(r, kernel, 0), r.input(2)],
        strides=strides,
        pads=(*begins, *(crop - begin for crop, begin in zip(crops, begins, strict=True))),
        dilations=(1, 1),
        data_format="channels_last",
    )
    return None


def read_max_pooling_with_argmax(r: Reading) -> None:
    """MaxPoolingWithArgmax2D: data -> the largest of each window, and its place there, row by row, plus 0.1.

    The first of equal values is taken. Windows of one after the other become an axis, of which ArgMax tells the place.
    """
    window, data = _window(r), r.tensor(0)
    if window is None:
        return read_custom(r)
    (height, width), activation, shape = window
    rows, columns, channels = (int(size) for size in shape[1:])
    if rows % height or columns % width:
        return read_custom(r)
    pooled, indices = r.outputs
    small = (shape[0], rows // height, columns // width, channels)
    for position in range(2):
        r.with_shape(small, position)
    r.emit("MaxPool", [data.name], [pooled], kernel_shape=(height, width), strides=(height, width), pads=(0, 0, 0, 0),
           activation=activation, data_format="channels_last")  # fmt: skip

    def find_places(values: Value) -> Value:
        rows_of_windows = reshape(values, (-1, height, columns // width, width * channels))
        windows = reshape(transpose(rows_of_windows, (0, 2, 1, 3)), (-1, columns // width, height * width, channels))
        place = cast(apply("ArgMax", windows, axis=2, keepdims=0), "float32")
        return reshape(place, (-1, *(int(size) for size in small[1:]))) + _HALF

    r.compute(find_places, indices)
    return None


def read_max_unpooling(r: Reading) -> None:
    """MaxUnpooling2D: (data, places in windows) -> each value at its place in a window of zeros."""
    window = _window(r)
    if window is None or not are_floats(r):
        return read_custom(r)
    (height, width), activation, shape = window
    rows, columns, channels = (int(size) for size in shape[1:])
    if activation or r.tensor(1).shape != shape or _places(r) > height * width:
        return read_custom(r)
    r.with_shape((shape[0], rows * height, columns * width, channels))

    def spread(values: Value, places: Value) -> Value:
        values, places = (reshape(item, (-1, columns, 1, channels)) for item in (values, places))
        here = apply("Equal", cast(places, "int64"), np.arange(height * width).reshape(1, 1, -1, 1))
        windows = reshape(where(here, values, 0.0), (-1, columns, height, width * channels))
        return reshape(transpose(windows, (0, 2, 1, 3)), (-1, rows * height, columns * width, channels))

    r.compute(spread)
    return None


def _integers(r: Reading, count: int) -> list[int] | None:
    """The first 32-bit integers of the options; None if these are shorter."""
    if len(r.custom_options) < 4 * count:
        return None
    return [int(value) for value in np.frombuffer(r.custom_options[: 4 * count], "<i4")]


def are_floats(r: Reading) -> bool:
    names = [name for name in (*r.inputs, *r.outputs) if name]
    return len(names) == len(r.inputs) + len(r.outputs) and all(r.lookup(name).dtype == "float32" for name in names)


def _window(r: Reading) -> tuple[tuple[int, int], str, Shape] | None:
    """Height and width of windows that touch and do not overlap, the activation and the data's shape; None for others.

    TfLitePoolParams: padding, stride of the width, of the height, the window's width, its height, activation.
    """
    options, shape = _integers(r, 6), r.tensor(0).shape
    if options is None or not are_floats(r) or shape is None or len(shape) != 4 or any(isinstance(size, str) for size in shape[1:]):
        return None
    padding, step_x, step_y, width, height, activation = options
    fits = padding in (_SAME, _VALID) and (step_x, step_y) == (width, height) and 0 < width < 2**15 and 0 < height < 2**15
    fits = fits and 0 <= activation < len(FUSED_ACTIVATIONS)
    return ((height, width), FUSED_ACTIVATIONS[activation], shape) if fits else None


def _places(r: Reading) -> int:
    """How many places a window has in the pool that input 1 comes from; more than any window if it comes from elsewhere."""
    name, size = r.input(1), 2**31
    for kind in ("Add", "Reshape", "Cast", "ArgMax"):
        op = r.producer(name, kind)
        if op is None or not op.source.startswith("MaxPoolingWithArgmax2D"):
            return size
        name = op.inputs[0]
    found = (r.lookup(name).shape or (0, 0, size))[2]
    return found if isinstance(found, int) else size


READERS: dict[str, ReadFunction] = {
    "Convolution2DTransposeBias": read_convolution_transpose_bias,
    "MaxPoolingWithArgmax2D": read_max_pooling_with_argmax,
    "MaxUnpooling2D": read_max_unpooling,
}

WRITERS: dict[str, WriteFunction] = {}
