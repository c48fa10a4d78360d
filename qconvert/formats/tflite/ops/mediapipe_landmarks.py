"""MediaPipe's custom operators of landmarks: a crop around some of them as a matrix, data sampled there, and landmarks moved back.

Version 2 of each, as in face_landmark_with_attention; version 1 stays a custom operator. Kernels: mediapipe/util/tflite/operations,
options: FlexBuffers (tensorflow/lite/delegates/gpu/common/mediapipe). A matrix has shape (1,4,4) and maps (x, y, 0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError
from qconvert.formats.reading.flexbuffer import decode_flexbuffer
from qconvert.formats.tflite.ops.custom import read_custom
from qconvert.formats.tflite.reading import ReadFunction, Reading
from qconvert.formats.tflite.writing import WriteFunction

__all__ = ["READERS", "WRITERS"]

_MATRIX = (1, 4, 4)


class _Steps:
    """Adds operators in float, one a call; numbers among their operands become constants."""

    def __init__(self, r: Reading) -> None:
        self._r = r
        self._count = 0

    def __call__(self, kind: str, *operands: Any, dtype: str = "float32", end: bool = False, **attributes: Any) -> str:
        self._count += 1
        inputs = [item if isinstance(item, str) else self.const(item) for item in operands]
        result = self._r.outputs[0] if end else self._r.intermediate(f"{kind}_{self._count}", dtype, None)
        self._r.emit(kind, inputs, [result], **attributes)
        return result

    def const(self, value: Any) -> str:
        self._count += 1
        data = np.asarray(value)
        return self._r.const(data.astype(np.float32) if data.dtype.kind == "f" else data, f"constant_{self._count}")

    def take(self, data: str, axis: int, *indices: int) -> str:
        """Some elements along an axis, which stays."""
        return self("Gather", data, np.array(indices, np.int32), dtype=self._r.lookup(data).dtype, axis=axis)

    def reshape(self, data: str, sizes: Sequence[int], end: bool = False) -> str:
        return self("Reshape", data, self._r.shape_const(sizes, f"sizes_{self._count}"), end=end)

    def transform_points(self, points: str, matrix: str, offset: str) -> str:
        """Points (1, n, 2) by the rotation and scales in a matrix, and an offset (1, 2, 1)."""
        turn = self.take(self.take(matrix, 1, 0, 1), 2, 0, 1)
        return self("Add", self("MatMul", points, turn, trans_b=1), self.reshape(offset, (1, 1, 2)))


def read_transform_landmarks(r: Reading) -> None:
    """TransformLandmarks: (landmarks of 2 or 3 numbers, matrix) -> x and y moved, z as it is."""
    shape = r.tensor(0).static_shape
    if r.version != 2 or not _are_floats(r, 2) or shape is None or len(shape) != 3 or shape[0] != 1 or shape[2] not in (2, 3):
        return read_custom(r)
    s = _Steps(r)
    landmarks, matrix = r.input(0), r.input(1)
    r.with_shape(shape)
    offset = s.take(s.take(matrix, 1, 0, 1), 2, 3)
    if shape[2] == 2:
        turn = s.take(s.take(matrix, 1, 0, 1), 2, 0, 1)
        s("Add", s("MatMul", landmarks, turn, trans_b=1), s.reshape(offset, (1, 1, 2)), end=True)
        return None
    s("Concat", s.transform_points(s.take(landmarks, 2, 0, 1), matrix, offset), s.take(landmarks, 2, 2), axis=2, end=True)
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
    s, matrix = _Steps(r), r.input(1)
    r.with_shape((1, height, width, channels))
    lines = s.take(matrix, 1, 0, 1)
    halves = s("Sub", s("Mul", s("Add", s.take(lines, 2, 0), s.take(lines, 2, 1)), 0.5), 0.5)
    offset = s("Add", s.take(lines, 2, 3), halves)
    grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).reshape(1, -1, 2).astype(np.float32)
    places = s.transform_points(s.const(grid), matrix, offset)
    last = np.array([[[columns - 1, rows - 1]]], np.float32)
    inside = s("And", s("GreaterOrEqual", places, np.zeros((1, 1, 2), np.float32), dtype="bool"),
               s("LessOrEqual", places, last, dtype="bool"), dtype="bool")  # fmt: skip
    inside = s("And", s.take(inside, 2, 0), s.take(inside, 2, 1), dtype="bool")
    low = s("Floor", places)
    share = s("Sub", places, low)
    near = s("Min", s("Max", low, np.zeros((1, 1, 2), np.float32)), last)
    far = s("Min", s("Add", near, 1.0), last)
    flat = s.reshape(r.input(0), (rows * columns, channels))

    def corner(vertical: str, horizontal: str) -> str:
        index = s("Add", s("Mul", s.take(vertical, 2, 1), float(columns)), s.take(horizontal, 2, 0))
        whole = s("Cast", s.reshape(index, (-1,)), dtype="int32", to="int32")
        return s.reshape(s("Gather", flat, whole, axis=0), (1, height * width, channels))

    def interpolate(a: str, b: str, part: str) -> str:
        return s("Add", s("Mul", s("Sub", 1.0, part), a), s("Mul", part, b))

    across, down = s.take(share, 2, 0), s.take(share, 2, 1)
    upper, lower = (interpolate(corner(line, near), corner(line, far), across) for line in (near, far))
    found = s("Where", inside, interpolate(upper, lower, down), np.zeros((), np.float32))
    s.reshape(found, (1, height, width, channels), end=True)
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
    scale_x, scale_y, target = numbers
    s, landmarks = _Steps(r), r.input(0)
    r.with_shape(_MATRIX)
    way = s("Sub", s.take(landmarks, 1, right), s.take(landmarks, 1, left))
    dx, dy = s.take(way, 2, 0), s.take(way, 2, 1)
    length = s("Sqrt", s("Add", s("Mul", dx, dx), s("Mul", dy, dy)))
    none = s("Equal", length, 0.0, dtype="bool")  # atan2(0, 0) is 0
    divisor = s("Where", none, 1.0, length)
    cosine, sine = s("Where", none, 1.0, s("Div", dx, divisor)), s("Where", none, 0.0, s("Div", dy, divisor))
    if target:  # of the target less the angle
        turned = s("Add", s("Mul", cosine, math.cos(target)), s("Mul", sine, math.sin(target)))
        cosine, sine = turned, s("Sub", s("Mul", cosine, math.sin(target)), s("Mul", sine, math.cos(target)))
    else:
        sine = s("Neg", sine)
    chosen = s.take(landmarks, 1, *indices[2:])
    x, y = s.take(chosen, 2, 0), s.take(chosen, 2, 1)
    ends = []
    for line in (s("Sub", s("Mul", x, cosine), s("Mul", y, sine)), s("Add", s("Mul", x, sine), s("Mul", y, cosine))):
        ends.append([s(kind, line, np.array([1], np.int32), keepdims=1) for kind in ("ReduceMax", "ReduceMin")])
    middle = [s("Mul", s("Add", high, low), 0.5) for high, low in ends]
    sizes = [s("Sub", high, low) for high, low in ends]
    across, down = s("Mul", sizes[0], scale_x / width), s("Mul", sizes[1], scale_y / height)
    back = s("Neg", sine)
    lines = []
    for first, second in ((cosine, sine), (back, cosine)):
        centre = s("Add", s("Mul", first, middle[0]), s("Mul", second, middle[1]))
        parts = s("Mul", first, across), s("Mul", second, down)
        shift = s("Add", s("Mul", parts[0], -width / 2), s("Mul", parts[1], -height / 2))
        lines.append(s("Concat", *parts, np.zeros((1, 1, 1), np.float32), s("Add", centre, shift), axis=2))
    s("Concat", *lines, np.eye(4, dtype=np.float32)[None, 2:], axis=1, end=True)
    return None


def _are_floats(r: Reading, inputs: int) -> bool:
    names = [*r.inputs, *r.outputs]
    if len(r.inputs) != inputs or len(r.outputs) != 1 or not all(names) or any(r.lookup(name).dtype != "float32" for name in names):
        return False
    return inputs < 2 or r.tensor(1).shape == _MATRIX


def _options(r: Reading) -> dict[str, Any]:
    """The options; none where they are no map."""
    try:
        found = decode_flexbuffer(r.custom_options) if r.custom_options else {}
    except InvalidModelError:
        return {}
    return found if isinstance(found, dict) else {}


def _integer(options: dict[str, Any], name: str) -> int:
    value = options.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value < 2**15 else -1


READERS: dict[str, ReadFunction] = {
    "TransformLandmarks": read_transform_landmarks,
    "TransformTensorBilinear": read_transform_tensor_bilinear,
    "Landmarks2TransformMatrix": read_landmarks_to_transform_matrix,
}

WRITERS: dict[str, WriteFunction] = {}
