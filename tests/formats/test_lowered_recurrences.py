"""Recurrences that a format has no operator for, or not in the form that they have: step by step, or as a loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.errors import UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Tensor
from qconvert.operators.formulas import recurrent
from qconvert.operators.recurrent import CELLS
from qconvert.operators.shapes_and_functions import infer

_STEPS, _ROWS, _VALUES, _CELLS = 4, 2, 3, 5


def _recurrence(kind: str, *, normalized: bool = False, **attributes: Any) -> Graph:
    """One recurrence of float data with constant weights; all results are outputs."""
    rng, rows = np.random.default_rng(0), CELLS[kind].gates * _CELLS
    shapes = [(1, rows, _VALUES), (1, rows, _CELLS), (1, 2 * rows), *([(1, rows)] if normalized else [])]
    names = ["w", "r", "b", "norm"][: len(shapes)]
    constants = [
        Tensor(name, "float32", shape, rng.normal(0, 0.7, shape).astype(np.float32)) for name, shape in zip(names, shapes, strict=True)
    ]
    inputs = ("x", "w", "r", "b", *([""] * 6 + ["norm"] if normalized else []))
    outputs = ("y", "h", "c")[: 1 + CELLS[kind].states]
    tensors = [Tensor("x", "float32", (_STEPS, _ROWS, _VALUES)), *constants, *(Tensor(name, "float32", None) for name in outputs)]
    op = Op(kind, inputs, outputs, {"hidden_size": _CELLS, **attributes}, "layer")
    return infer(Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), outputs))


_FORMS = [
    ("GRU", {}),
    ("GRU", {"clip": 0.6, "linear_before_reset": 1}),
    ("LSTM", {"clip": 0.6, "input_forget": 1}),
    ("LSTM", {"cell_clip": 0.3, "direction": "reverse"}),
    ("LSTM", {"normalized": True}),
    ("RNN", {"activations": ("Softsign",)}),
    ("RNN", {"activations": ("Relu6",)}),
]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.torch
@pytest.mark.parametrize("suffix", [".onnx", ".tflite", ".pt2"])
@pytest.mark.parametrize(("kind", "stated"), _FORMS)
def test_every_format_computes_what_the_operator_means(kind: str, stated: dict[str, Any], suffix: str, tmp_path: Path) -> None:
    graph, path = _recurrence(kind, **stated), tmp_path / f"model{suffix}"
    qconvert.convert(graph, path)
    feed = {"x": np.random.default_rng(1).normal(size=(_STEPS, _ROWS, _VALUES)).astype(np.float32)}
    wanted, found = evaluate(graph, feed), qconvert.run(path, feed)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=2e-6, err_msg=name)


@pytest.mark.formats
@pytest.mark.torch
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_steps_that_are_too_many_to_stand_one_by_one_are_refused(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written that lacks what the operator states."""
    monkeypatch.setattr(recurrent, "MOST_STEPS", _STEPS - 1)
    with refused(UnsupportedError, "variant-not-writable", holds=("RNN", "Relu6")):
        qconvert.convert(_recurrence("RNN", activations=("Relu6",)), tmp_path / f"model{suffix}")
    assert not list(tmp_path.iterdir())
