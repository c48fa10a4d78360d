"""Gemm of every form: read as canonical operators, so that both formats have kernels for it, with onnxruntime's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nodes import feeds, node_model, session
from tflite_models import run_litert

from qconvert import convert, load

RNG = np.random.default_rng(5)


def real(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


#: Inputs, which of them are constants, and attributes.
FORMS: dict[str, tuple[list[Any], tuple[int, ...], dict[str, Any]]] = {
    "transposed data": ([real(8, 3), real(8, 6), real(6)], (1, 2), {"transA": 1}),
    "factors": ([real(3, 8), real(6, 8), real(6)], (1, 2), {"transB": 1, "alpha": 0.3, "beta": -1.7}),
    "powers of two": ([real(3, 8), real(8, 6), real(6)], (1, 2), {"alpha": 0.5, "beta": 2.0}),
    "no factor of the bias": ([real(3, 8), real(8, 6), real(6)], (1, 2), {"beta": 0.0}),
    "negative": ([real(3, 8), real(8, 6)], (1,), {"alpha": -4.0}),
    "one number": ([real(3, 8), real(6, 8), real()], (1, 2), {"transB": 1}),
    "a list of one": ([real(3, 8), real(6, 8), real(1)], (1, 2), {"transB": 1}),
    "a row": ([real(3, 8), real(6, 8), real(1, 6)], (1, 2), {"transB": 1}),
    "a column": ([real(3, 8), real(6, 8), real(3, 1)], (1, 2), {"transB": 1}),
    "a matrix": ([real(3, 8), real(6, 8), real(3, 6)], (1, 2), {"transB": 1, "beta": 0.25}),
    "a computed matrix": ([real(3, 8), real(6, 8), real(3, 6)], (1,), {"transB": 1, "beta": 0.3}),
    "weights on the left": ([real(6, 8), real(8, 3), real(6, 1)], (0, 2), {"alpha": 0.7}),
    "weights on the left, transposed": ([real(8, 6), real(3, 8)], (0,), {"transA": 1, "transB": 1}),
    "two that are computed": ([real(8, 3), real(6, 8), real(6)], (), {"transA": 1, "transB": 1, "alpha": 0.3, "beta": 0.6}),
}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", FORMS)
def test_values_are_onnxruntime_s_in_both_formats(name: str, tmp_path: Path) -> None:
    inputs, constants, attributes = FORMS[name]
    source, again, lite = (tmp_path / file for file in ("gemm.onnx", "again.onnx", "gemm.tflite"))
    source.write_bytes(node_model("Gemm", 17, inputs, constants, **attributes).SerializeToString())
    assert not any(op.kind == "Opaque" for op in load(source).ops)
    convert(source, again)
    convert(source, lite)
    given = feeds(inputs, constants)
    (expected,) = session(source.read_bytes()).run(None, given)
    assert np.ptp(expected) > 1
    (found,) = session(again.read_bytes()).run(None, given)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    (found,) = run_litert(lite.read_bytes(), list(given.values()))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.formats
def test_a_power_of_two_is_part_of_the_weights_in_every_bit(tmp_path: Path) -> None:
    weights = real(6, 8)
    path = tmp_path / "gemm.onnx"
    path.write_bytes(node_model("Gemm", 17, [real(3, 8), weights, real(6)], (1, 2), transB=1, alpha=0.125).SerializeToString())
    graph = load(path)
    assert [op.kind for op in graph.ops] == ["Gemm"]
    assert np.array_equal(graph.constant(graph.ops[0].inputs[1]), weights / 8)
