"""Means and sums over axes that are decomposed to have the integers of LiteRT's kernels, and what comes back of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_models
import pytest
from tflite_models import TensorSpec, run_litert, single_op

from qconvert import check, convert, diff, load
from qconvert.evaluate import evaluate

#: Shape, axes, and whether they are kept; an even number of elements has ties.
SHAPES = {
    "images": ((2, 4, 8, 40), (1, 2), True),
    "images, axes gone": ((2, 4, 4, 80), (2, 1), False),
    "planes": ((2, 40, 3, 9), (2, 3), True),
    "planes, axes gone": ((2, 80, 5, 5), (3, 2), False),
    "channels": ((2, 9, 5, 32), (-1,), True),
    "rows": ((30, 20, 6), (1,), False),
    "single elements": ((2, 1, 1, 300), (1, 2), True),
}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("quantizations", [((0.05, 3), (0.05, 3)), ((0.2, -7), (0.1, 8))])
@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize(("builtin", "dtype"), [("MEAN", "int8"), ("MEAN", "uint8"), ("MEAN", "int16"), ("SUM", "int8"), ("SUM", "uint8")])
def test_every_integer_is_litert_s_and_the_operator_comes_back(
    builtin: str, dtype: str, case: str, quantizations: tuple[tuple[float, int], tuple[float, int]], tmp_path: Path
) -> None:
    """Stored as uint8 or int8, a model of either type."""
    shape, axes, keeps = SHAPES[case]
    count = int(np.prod([shape[axis] for axis in axes]))
    (scale, zero), (result, other) = quantizations
    offset = {"int8": 0, "uint8": 128, "int16": None}[dtype]
    zeros = (0, 0) if offset is None else (zero + offset, other + offset)
    gone = [axis % len(shape) for axis in axes]
    reduced = tuple(1 if at in gone else size for at, size in enumerate(shape) if keeps or at not in gone)
    x = TensorSpec("x", shape, dtype, scale, zeros[0])
    y = TensorSpec("y", reduced, dtype, float(np.float32(result * (count if builtin == "SUM" else 1))), zeros[1])
    source, target, back = (tmp_path / name for name in ("m.tflite", "m.onnx", "back.tflite"))
    source.write_bytes(single_op(builtin, {"keepDims": keeps}, [x, TensorSpec("a", (len(axes),), "int32", data=np.array(axes))], [y]))
    limits = np.iinfo(dtype)
    data = np.random.default_rng(1).integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    (wanted,) = run_litert(source.read_bytes(), [data])
    for storage in ("ort-x86", "ort-arm"):
        convert(source, target, force=True, target=storage)
        is_pooled = "GlobalAveragePool" in {node.op_type for node in onnx.load(target).graph.node}
        assert is_pooled == (builtin == "MEAN" and case.startswith("planes") and dtype != "int16")
        for optimize in (True,) if is_pooled else (True, False):
            assert np.array_equal(onnx_models.run(target.read_bytes(), {"x": data}, optimize)[0], wanted), storage
        assert np.array_equal(evaluate(load(target), {"x": data})["y"], wanted)
        convert(target, back, force=True)
        assert diff(load(source), load(back)) == []
    assert check(source, target, samples=2, per_op=True).passed


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("result", "is_pooled"), [((0.0917, 81), True), ((0.11735623329877853, 81), False)])
def test_a_mean_of_planes_is_litert_s_for_every_sum(result: tuple[float, int], is_pooled: bool, tmp_path: Path) -> None:
    """Of the second scale onnxruntime's kernel gives another integer for one of 2,296 sums."""
    sums = np.arange(-128 * 9, 127 * 9 + 1)
    data = (sums[:, None] // 9 + (np.arange(9) < sums[:, None] % 9)).astype(np.int8).reshape(1, -1, 3, 3)
    inputs = [TensorSpec("x", data.shape, "int8", 0.0918164774775505, -17), TensorSpec("a", (2,), "int32", data=np.array([2, 3], np.int32))]
    content = single_op("MEAN", {"keepDims": True}, inputs, [TensorSpec("y", (1, sums.size, 1, 1), "int8", *result)])
    (tmp_path / "m.tflite").write_bytes(content)
    convert(tmp_path / "m.tflite", tmp_path / "m.onnx")
    assert ("GlobalAveragePool" in {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node}) == is_pooled
    (wanted,) = run_litert(content, [data])
    assert np.array_equal(onnx_models.run((tmp_path / "m.onnx").read_bytes(), {"x": data}, True)[0], wanted)


@pytest.mark.formats
def test_what_float32_does_not_hold_stays_plain(tmp_path: Path) -> None:
    for columns, numerics, decomposed in ((60_000, "exact", True), (70_000, "exact", False), (60_000, "fast", False)):
        inputs = [TensorSpec("x", (1, columns), "int8", 0.05, 3), TensorSpec("a", (1,), "int32", data=np.array([1], np.int32))]
        (tmp_path / "m.tflite").write_bytes(single_op("MEAN", {"keepDims": True}, inputs, [TensorSpec("y", (1, 1), "int8", 0.05, 3)]))
        convert(tmp_path / "m.tflite", tmp_path / "m.onnx", force=True, numerics=numerics)
        (op,) = (op for op in load(tmp_path / "m.onnx").ops if op.kind == "ReduceMean")
        assert bool(op["arithmetic"]) is decomposed
