"""MediaPipe's custom operators of landmarks, against numpy references written from their definition."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite_models import Array, OpSpec, TensorSpec, model, run_litert

from qconvert import convert, load
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

RNG = np.random.default_rng(2)
COUNT = 30
SUBSET = [3, 5, 7, 9, 11, 13, 2]


def crop_matrix(points: Array, options: dict[str, Any]) -> Array:
    """Shift to the middle of the box around some points, which is turned back; then the turn, the scales, and half of the result's size."""
    x, y = points[0, :, :2].astype(np.float64).T
    left, right = options["left_rotation_idx"], options["right_rotation_idx"]
    angle = options["target_rotation_radians"] - math.atan2(y[right] - y[left], x[right] - x[left])

    def turn(by: float) -> Array:
        return np.array([[math.cos(by), -math.sin(by)], [math.sin(by), math.cos(by)]])

    chosen = turn(angle) @ np.stack([x, y])[:, options["subset_idxs"]]
    low, high = chosen.min(axis=1), chosen.max(axis=1)
    size = np.array([options["output_width"], options["output_height"]])
    scales = np.diag(np.array([options["scale_x"], options["scale_y"]]) * (high - low) / size)
    shifts = [np.eye(3), np.eye(3), np.eye(3), np.eye(3)]
    shifts[0][:2, 2] = turn(-angle) @ ((low + high) / 2)
    shifts[1][:2, :2], shifts[2][:2, :2] = turn(-angle), scales
    shifts[3][:2, 2] = -size / 2
    plane = np.linalg.multi_dot(shifts)
    found = np.eye(4)
    found[np.ix_([0, 1], [0, 1, 3])] = plane[:2]
    return found[None]


def sampled(data: Array, matrix: Array, height: int, width: int) -> Array:
    found = np.zeros((1, height, width, data.shape[3]))
    for row, column in np.ndindex(height, width):
        x, y = (matrix[0].astype(np.float64) @ [column + 0.5, row + 0.5, 0, 1])[:2] - 0.5
        if 0 <= x <= data.shape[2] - 1 and 0 <= y <= data.shape[1] - 1:
            for dy, dx in np.ndindex(2, 2):
                across, down = x - math.floor(x), y - math.floor(y)
                share = (down if dy else 1 - down) * (across if dx else 1 - across)
                if share:
                    found[0, row, column] += share * data[0, math.floor(y) + dy, math.floor(x) + dx]
    return found


def moved(points: Array, matrix: Array) -> Array:
    found = points.astype(np.float64).copy()
    found[0, :, :2] = points[0, :, :2] @ matrix[0, :2, :2].T.astype(np.float64) + matrix[0, :2, 3]
    return found


def computed(code: str, feeds: dict[str, Array], shape: tuple[int, ...], options: dict[str, Any], folder: Path) -> list[Array]:
    """What onnxruntime makes of the model, and LiteRT of what comes back."""
    tensors = [TensorSpec(name, value.shape, "float32") for name, value in feeds.items()]
    op = OpSpec(code, list(feeds), ["y"], options, version=2, custom=True)
    source, there, back = folder / "a.tflite", folder / "a.onnx", folder / "b.tflite"
    source.write_bytes(model([op], [*tensors, TensorSpec("y", shape, "float32")], list(feeds), ["y"]))
    assert not any(op.kind == "Opaque" for op in load(source).ops)
    convert(source, there, io_layout="nhwc")
    convert(there, back, io_layout="nhwc")
    first = OnnxRuntime(there.read_bytes()).run(feeds)["y"]
    return [first, run_litert(back.read_bytes(), list(feeds.values()))[0]]


@pytest.mark.parametrize("target", [0.0, 0.7, -2.0])
@pytest.mark.parametrize("same", [False, True], ids=["apart", "one landmark"])
def test_a_crop_around_landmarks(target: float, same: bool, tmp_path: Path) -> None:
    points = RNG.uniform(0, 48, (1, COUNT, 3)).astype(np.float32)
    options = {
        "left_rotation_idx": 4, "right_rotation_idx": 4 if same else 20, "output_height": 8, "output_width": 12, "scale_x": 1.5,
        "scale_y": 1.25, "subset_idxs": SUBSET, "target_rotation_radians": target,
    }  # fmt: skip
    wanted = crop_matrix(points, options)
    for found in computed("Landmarks2TransformMatrix", {"x": points}, (1, 4, 4), options, tmp_path):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.cross_section
@pytest.mark.parametrize("outside", [False, True])
def test_data_sampled_at_moved_positions(outside: bool, tmp_path: Path) -> None:
    data = RNG.normal(size=(1, 9, 11, 3)).astype(np.float32)
    matrix = np.eye(4, dtype=np.float32)[None]
    matrix[0, :2, [0, 1, 3]] = np.array([[1.1, 0.3], [-0.2, 0.9], [1.4, 0.8]], np.float32)
    if outside:
        matrix[0, :2, 3] = [-2.0, 4.0]
    wanted = sampled(data, matrix, 5, 6)
    assert (wanted == 0).any() == outside
    options = {"output_height": 5, "output_width": 6}
    for found in computed("TransformTensorBilinear", {"x": data, "m": matrix}, (1, 5, 6, 3), options, tmp_path):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_landmarks_moved_back(size: int, tmp_path: Path) -> None:
    points, matrix = RNG.normal(size=(1, 7, size)).astype(np.float32), RNG.normal(size=(1, 4, 4)).astype(np.float32)
    for found in computed("TransformLandmarks", {"x": points, "m": matrix}, points.shape, {}, tmp_path):
        np.testing.assert_allclose(found, moved(points, matrix), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("code", "shape", "options"),
    [("Landmarks2TransformMatrix", (1, COUNT, 3), {"subset_idxs": [1, 10**6], "left_rotation_idx": 0, "right_rotation_idx": 1}),
     ("Landmarks2TransformMatrix", (1, COUNT, 3), {}), ("TransformTensorBilinear", (1, 4, 4, 2), {"output_height": 0}),
     ("TransformTensorBilinear", (1, 4, 4, 2), {"output_height": 2**31, "output_width": 2**31})],
)  # fmt: skip
def test_options_without_meaning_leave_a_custom_operator(
    code: str, shape: tuple[int, ...], options: dict[str, Any], tmp_path: Path
) -> None:
    tensors = [TensorSpec("x", shape, "float32"), TensorSpec("m", (1, 4, 4), "float32"), TensorSpec("y", (1, 4, 4), "float32")]
    names = ["x", "m"] if code == "TransformTensorBilinear" else ["x"]
    (tmp_path / "a.tflite").write_bytes(model([OpSpec(code, names, ["y"], options, version=2, custom=True)], tensors, names, ["y"]))
    assert [op.kind for op in load(tmp_path / "a.tflite").ops] == ["Opaque"]
