"""Dilated convolutions of TensorFlow with a batch size known only at run time: blocks go into the batch and leave it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tflite_models import OpSpec, TensorSpec, model

from qconvert import check, convert
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]


def _dilated() -> bytes:
    tensors = [
        TensorSpec("x", (1, 10, 4), "float32", shape_signature=(-1, 10, 4)),
        TensorSpec("blocks", (1,), "int32", data=np.array([2], np.int32)),
        TensorSpec("pads", (1, 2), "int32", data=np.array([[2, 0]], np.int32)),
        TensorSpec("s", (2, 6, 4), "float32", shape_signature=(-1, 6, 4)),
        TensorSpec("c", (6, 4), "float32", data=np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)),
        TensorSpec("m", (2, 6, 4), "float32", shape_signature=(-1, 6, 4)),
        TensorSpec("crops", (1, 2), "int32", data=np.array([[1, 0]], np.int32)),
        TensorSpec("y", (1, 11, 4), "float32", shape_signature=(-1, 11, 4)),
    ]
    ops = [
        OpSpec("SPACE_TO_BATCH_ND", ["x", "blocks", "pads"], ["s"]),
        OpSpec("MUL", ["s", "c"], ["m"]),
        OpSpec("BATCH_TO_SPACE_ND", ["m", "blocks", "crops"], ["y"]),
    ]
    return model(ops, tensors, ["x"], ["y"])


@pytest.mark.cross_section
def test_blocks_of_an_open_batch(tmp_path: Path) -> None:
    source, there, back = (tmp_path / name for name in ("source.tflite", "there.onnx", "back.tflite"))
    source.write_bytes(_dilated())
    convert(source, there)
    convert(there, back)
    feed = np.random.default_rng(1).normal(size=(3, 10, 4)).astype(np.float32)
    wanted = LiteRT(source.read_bytes()).run_in_order([feed])[0]
    assert wanted.shape == (3, 11, 4)
    np.testing.assert_array_equal(OnnxRuntime(there.read_bytes()).run({"x": feed})["y"], wanted)
    np.testing.assert_array_equal(LiteRT(back.read_bytes()).run_in_order([feed])[0], wanted)
    for a, b in ((source, there), (there, back), (source, back)):
        report = check(a, b, per_op=True)
        assert report.passed, report.problems
        assert {op.verdict for op in report.operators} == {"equal"}
