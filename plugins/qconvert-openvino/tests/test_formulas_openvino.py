"""What OpenVINO lacks is written by the formulas of qconvert, and computed as the operator means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qconvert
from qconvert.plugin import Graph, Op, Quantization, Tensor, evaluate, infer

_OPERATORS: dict[str, dict[str, Any]] = {
    "Celu": {"alpha": 0.7}, "Sum": {}, "RMSNormalization": {}, "ReduceSumSquare": {}, "ReduceLogSumExp": {}, "Square": {},
    "Softmax": {"axis": 1, "beta": 2.5}, "LpNormalization": {"axis": 1, "p": 1},
}  # fmt: skip


def _network(kind: str, quantized: bool) -> Graph:
    shape, ones = (1, 4, 3, 5), np.linspace(0.5, 1.5, 5).astype(np.float32)
    quantizations = Quantization.per_tensor(0.05, 3), Quantization.per_tensor(0.1, -2)
    x = Tensor("x", "int8", shape, None, quantizations[0]) if quantized else Tensor("x", "float32", shape)
    y = Tensor("y", "int8", None, None, quantizations[1]) if quantized else Tensor("y", "float32", None)
    more = ("scale",) if kind == "RMSNormalization" else ("axes",) if kind.startswith("Reduce") else ("x",) * _TWICE.get(kind, 0)
    constants = [Tensor("scale", "float32", (5,), ones), Tensor("axes", "int64", (1,), np.array([-1]))]
    tensors = [x, y, *(item for item in constants if item.name in more)]
    op = Op(kind, ("x", *more), ("y",), _OPERATORS[kind], "layer")
    return infer(Graph("g", {item.name: item for item in tensors}, (op,), ("x",), ("y",)))


_TWICE = {"Sum": 2, "SquaredDifference": 1}


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("kind", _OPERATORS)
def test_a_formula_takes_the_place_of_an_operator(kind: str, quantized: bool, tmp_path: Path) -> None:
    graph, path = _network(kind, quantized), tmp_path / "model.xml"
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (1, 4, 3, 5)).astype(np.int8) if quantized else rng.normal(0, 2, (1, 4, 3, 5)).astype(np.float32)
    qconvert.convert(graph, path)
    found, wanted = qconvert.run(path, {"x": x})["y"], evaluate(graph, {"x": x})["y"]
    if quantized:
        assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_scalar_stays_a_scalar(tmp_path: Path) -> None:
    """Gather at one index takes the axis away."""
    tensors = [Tensor("x", "float32", (1, 2, 5)), Tensor("i", "int64", (), np.array(0)), Tensor("y", "float32", (2, 5))]
    graph = Graph("g", {item.name: item for item in tensors}, (Op("Gather", ("x", "i"), ("y",), {"axis": 0}),), ("x",), ("y",))
    qconvert.convert(graph, tmp_path / "model.xml")
    x = np.arange(10, dtype=np.float32).reshape(1, 2, 5)
    np.testing.assert_array_equal(qconvert.run(tmp_path / "model.xml", {"x": x})["y"], x[0])
