"""MediaPipe's custom operators that builtin ones can state: a transposed convolution, a pool with indices, and its reverse; a crop around
some landmarks as a matrix, data sampled there, and landmarks moved back.

Options of the former are the structures of TFLite's C API as they lie in memory: 32-bit integers; those of the latter are FlexBuffers
(tensorflow/lite/delegates/gpu/common/mediapipe). A matrix has shape (1,4,4) and maps (x, y, 0, 1). What their kernels take and these
functions do not (windows that overlap, indices from elsewhere, version 1 of the latter) stays a custom operator. Kernels:
mediapipe/util/tflite/operations.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.formats.tflite.ops.conv import float_weights, transpose_weights
from qconvert.formats.tflite.ops.custom import read_custom
from qconvert.formats.tflite.ops.detection import read_option_map
from qconvert.formats.tflite.reading import Readers, Reading
from qconvert.formats.tflite.schema import FUSED_ACTIVATIONS
from qconvert.formats.tflite.writing import Writers
from qconvert.graph import Shape
from qconvert.operators.values import Value, apply, cast, maximum, minimum, reduce, reshape, sqrt, transpose, where

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
    kernel, weights = transpose_weights(r, "OIHW", (0, 3, 1, 2))
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


_MATRIX = (1, 4, 4)


def _take(data: Value, axis: int, *indices: int) -> Value:
    """Some elements along an axis, which stays."""
    return apply("Gather", data, np.array(indices, np.int32), axis=axis)


def _transform_points(points: Value, matrix: Value, offset: Value) -> Value:
    """Points (1, n, 2) by the rotation and scales in a matrix, and an offset (1, 2, 1)."""
    turn = _take(_take(matrix, 1, 0, 1), 2, 0, 1)
    return apply("MatMul", points, turn, trans_b=1) + reshape(offset, (1, 1, 2))


def read_transform_landmarks(r: Reading) -> None:
    """TransformLandmarks: (landmarks of 2 or 3 numbers, matrix) -> x and y moved, z as it is."""
    shape = r.tensor(0).static_shape
    if r.version != 2 or not _are_floats(r, 2) or shape is None or len(shape) != 3 or shape[0] != 1 or shape[2] not in (2, 3):
        return read_custom(r)
    r.with_shape(shape)

    def transform(landmarks: Value, matrix: Value) -> Value:
        offset = _take(_take(matrix, 1, 0, 1), 2, 3)
        if shape[2] == 2:
            return _transform_points(landmarks, matrix, offset)
        return apply("Concat", _transform_points(_take(landmarks, 2, 0, 1), matrix, offset), _take(landmarks, 2, 2), axis=2)

    r.compute(transform)
    return None


def read_transform_tensor_bilinear(r: Reading) -> None:
    """TransformTensorBilinear: (data, matrix) -> data between four neighbours at each moved position; 0 outside.

    Positions are those of the corners of elements: half of one is added before the matrix and taken away after it.
    """
    options, shape = _options(r), r.tensor(0).static_shape
    height, width = (_integer(options, f"output_{name}") for name in ("height", "width"))
    if r.version != 2 or not _are_floats(r, 2) or shape is None or len(shape) != 4 or shape[0] != 1 or min(height, width, *shape) < 1:
        return read_custom(r)
    rows, columns, channels = shape[1:]
    r.with_shape((1, height, width, channels))

    def sample(data: Value, matrix: Value) -> Value:
        lines = _take(matrix, 1, 0, 1)
        halves = (_take(lines, 2, 0) + _take(lines, 2, 1)) * 0.5 - 0.5
        grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).reshape(1, -1, 2).astype(np.float32)
        places = _transform_points(grid, matrix, _take(lines, 2, 3) + halves)
        first, last = np.zeros((1, 1, 2), np.float32), np.array([[[columns - 1, rows - 1]]], np.float32)
        inside = apply("And", apply("GreaterOrEqual", places, first), apply("LessOrEqual", places, last))
        inside = apply("And", _take(inside, 2, 0), _take(inside, 2, 1))
        low = apply("Floor", places)
        share = places - low
        near = minimum(maximum(low, first), last)
        far = minimum(near + 1.0, last)
        flat = reshape(data, (rows * columns, channels))

        def corner(vertical: Value, horizontal: Value) -> Value:
            index = _take(vertical, 2, 1) * float(columns) + _take(horizontal, 2, 0)
            return reshape(apply("Gather", flat, cast(reshape(index, (-1,)), "int32"), axis=0), (1, height * width, channels))

        def interpolate(a: Value, b: Value, part: Value) -> Value:
            return (1.0 - part) * a + part * b

        across, down = _take(share, 2, 0), _take(share, 2, 1)
        upper, lower = (interpolate(corner(line, near), corner(line, far), across) for line in (near, far))
        return reshape(where(inside, interpolate(upper, lower, down), 0.0), (1, height, width, channels))

    r.compute(sample)
    return None


def read_landmarks_to_transform_matrix(r: Reading) -> None:
    """Landmarks2TransformMatrix: landmarks (1,n,3) -> from positions in a crop around some of them, turned as two lie, to the whole.

    The angle is only needed as its sine and cosine, which are those of the way from the left landmark to the right one.
    """
    options, shape = _options(r), r.tensor(0).static_shape
    left, right, height, width = (_integer(options, name) for name in ("left_rotation_idx", "right_rotation_idx", "output_height",
                                                                        "output_width"))  # fmt: skip
    scales = [options.get(name) for name in ("scale_x", "scale_y", "target_rotation_radians")]
    subset = options.get("subset_idxs")
    if r.version != 2 or not _are_floats(r, 1) or shape is None or len(shape) != 3 or shape[0] != 1 or shape[2] != 3:
        return read_custom(r)
    numbers = [float(value) for value in scales if isinstance(value, (int, float)) and math.isfinite(value)]
    indices = [left, right, *(subset if isinstance(subset, list) else [])]
    are_known = all(isinstance(index, int) and 0 <= index < shape[1] for index in indices)
    if len(numbers) < 3 or min(*numbers[:2], height, width) <= 0 or len(indices) < 3 or not are_known:
        return read_custom(r)
    target = numbers[2]
    r.with_shape(_MATRIX)

    def find_matrix(landmarks: Value) -> Value:
        way = _take(landmarks, 1, right) - _take(landmarks, 1, left)
        dx, dy = _take(way, 2, 0), _take(way, 2, 1)
        length = sqrt(dx * dx + dy * dy)
        none = apply("Equal", length, 0.0)  # atan2(0, 0) is 0
        divisor = where(none, 1.0, length)
        cosine, sine = where(none, 1.0, dx / divisor), where(none, 0.0, dy / divisor)
        if target:  # of the target less the angle
            turned = cosine * math.cos(target) + sine * math.sin(target)
            cosine, sine = turned, cosine * math.sin(target) - sine * math.cos(target)
        else:
            sine = -sine
        chosen = _take(landmarks, 1, *indices[2:])
        x, y = _take(chosen, 2, 0), _take(chosen, 2, 1)
        ends = [[reduce(kind, line, [1]) for kind in ("ReduceMax", "ReduceMin")] for line in (x * cosine - y * sine, x * sine + y * cosine)]
        middle = [(high + low) * 0.5 for high, low in ends]
        across, down = ((high - low) * (scale / size) for (high, low), scale, size in zip(ends, numbers, (width, height), strict=False))
        lines = []
        for first, second in ((cosine, sine), (-sine, cosine)):
            centre = first * middle[0] + second * middle[1]
            parts = first * across, second * down
            shift = parts[0] * (-width / 2) + parts[1] * (-height / 2)
            lines.append(apply("Concat", *parts, np.zeros((1, 1, 1), np.float32), centre + shift, axis=2))
        return apply("Concat", *lines, np.eye(4, dtype=np.float32)[None, 2:], axis=1)

    r.compute(find_matrix)
    return None


def _are_floats(r: Reading, inputs: int) -> bool:
    if len(r.inputs) != inputs or len(r.outputs) != 1 or not are_floats(r):
        return False
    return inputs < 2 or r.tensor(1).shape == _MATRIX


def _options(r: Reading) -> dict[str, Any]:
    """The options; none where they are no map."""
    try:
        return read_option_map(r)
    except InvalidModelError:
        return {}


def _integer(options: dict[str, Any], name: str) -> int:
    value = options.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value < 2**15 else -1


READERS: Readers = {
    "Convolution2DTransposeBias": read_convolution_transpose_bias,
    "MaxPoolingWithArgmax2D": read_max_pooling_with_argmax,
    "MaxUnpooling2D": read_max_unpooling,
    "TransformLandmarks": read_transform_landmarks,
    "TransformTensorBilinear": read_transform_tensor_bilinear,
    "Landmarks2TransformMatrix": read_landmarks_to_transform_matrix,
}

WRITERS: Writers = {}
