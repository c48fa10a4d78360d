"""TFLite's SQRT drops the fraction of what it computes: what it becomes elsewhere gives the same codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_models
import pytest
import torch
from tflite_models import TensorSpec, run_litert, single_op

from qconvert import check, convert, diff, load
from qconvert.evaluate import evaluate

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert, pytest.mark.torch]


def roots(dtype: str, seed: int) -> tuple[bytes, np.ndarray]:
    """A model of one SQRT with quantizations of its own, and every code that is not below zero."""
    rng, info = np.random.default_rng(seed), np.iinfo(dtype)
    zero, point = (int(info.min), int(rng.integers(-128, 20))) if dtype == "int8" else (0, 0)
    x = np.arange(zero, int(info.max) + 1).astype(dtype)[None]
    given = float(np.float32(np.exp(rng.uniform(-7, 2))))
    own = float(np.float32(np.sqrt(given * x.size) / (info.max - point) * np.exp(rng.uniform(-0.5, 0.5))))
    tensors = [TensorSpec("x", x.shape, dtype, given, zero), TensorSpec("y", x.shape, dtype, own, point)]
    return single_op("SQRT", None, tensors[:1], tensors[1:]), x


@pytest.mark.parametrize(("dtype", "pairs"), [("int8", 50), ("int16", 3)])
def test_every_code_is_litert_s(dtype: str, pairs: int, tmp_path: Path) -> None:
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    for seed in range(pairs):
        data, x = roots(dtype, seed)
        source.write_bytes(data)
        convert(source, result, force=True)
        (wanted,) = run_litert(data, [x])
        assert len(np.unique(wanted)) > 50
        for optimize in (True, False):
            assert np.array_equal(onnx_models.run(result.read_bytes(), {"x": x}, optimize)[0], wanted)
    program = tmp_path / "m.pt2"
    convert(source, program)
    assert np.array_equal(torch.export.load(program).module()(torch.tensor(x))[0].numpy(), wanted)


@pytest.mark.cross_section
def test_the_operator_comes_back_and_is_computed_as_the_kernel_does(tmp_path: Path) -> None:
    source, result, back = (tmp_path / name for name in ("m.tflite", "m.onnx", "back.tflite"))
    data, x = roots("int8", 0)
    source.write_bytes(data)
    convert(source, result)
    graph = load(result)
    (wanted,) = run_litert(data, [x])
    assert [op["arithmetic"] for op in graph.ops if op.kind == "Sqrt"] == ["tflite"]
    assert np.array_equal(evaluate(graph, {"x": x})["y"], wanted)
    report = check(source, result, per_op=True)
    assert report.passed
    assert all(item.equal for item in report.outputs)
    convert(result, back)
    assert diff(load(source), load(back)) == []


def test_fast_numerics_keep_the_plain_operator(tmp_path: Path) -> None:
    source, result = tmp_path / "m.tflite", tmp_path / "m.onnx"
    data, x = roots("int8", 1)
    source.write_bytes(data)
    convert(source, result, numerics="fast")
    (wanted,) = run_litert(data, [x])
    away = np.abs(onnx_models.run(result.read_bytes(), {"x": x})[0].astype(int) - wanted)
    assert away.max() == 1
    assert 50 < np.count_nonzero(away) < 200
    assert check(source, result).passed
