"""real_recurrence: with numerics "fast", an integer LSTM is an LSTM in float, near the exact one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lstm_files import Lstm

import qconvert
from qconvert.streaming import Session

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

CORAL = Path(__file__).parents[2] / "fixtures" / "coral_lstm_mnist_int8.tflite"
#: Small weights, so that sums do not saturate, which an LSTM in float does not.
SMALL: dict[str, Any] = {"inputs": 3, "cells": 4, "data": (0.01, -3)}


def kinds(path: Path) -> list[str]:
    return [op.kind for op in qconvert.load(path).ops if op.kind in ("LSTM", "IntegerLSTM")]


def drift(source: Path, result: Path, runs: int) -> tuple[float, int]:
    """Share of stored outputs that differ, and the largest difference, over runs with states carried."""
    sessions, differences = (Session(source), Session(result)), []
    ((_, (dtype, shape)),) = sessions[0].inputs.items()
    rng, ends = np.random.default_rng(0), np.iinfo(dtype)
    for _ in range(runs):
        feed = rng.integers(ends.min, ends.max + 1, shape).astype(dtype)
        a, b = (next(iter(one.run({next(iter(one.inputs)): feed}).values())).astype(int) for one in sessions)
        differences.append(np.abs(a - b))
    return float((np.array(differences) > 0).mean()), int(np.max(differences))


@pytest.mark.cross_section
@pytest.mark.parametrize(
    "form",
    [{}, {"rows": 3}, {"rows": 2, "time_major": True}, {"steps": 1}, {"hidden": (0.009, -7), "output": (0.009, -7), "state": (0.009, -7)}],
    ids=str,
)
def test_an_lstm_on_real_values_is_near(form: dict[str, Any], tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(Lstm(**{**SMALL, **form}).file())
    report = qconvert.convert(source, result, numerics="fast")
    assert any(change.by == "real_recurrence" and not change.exact for change in report.changes), report
    assert kinds(result) == ["LSTM"]
    share, largest = drift(source, result, 5)
    assert 0 <= share < 0.5 and largest <= 5, (share, largest)


@pytest.mark.parametrize("form", [{"has_input_gate": False}, {"peephole": True}, {"projection": True, "outputs": 4}], ids=str)
def test_what_an_lstm_cannot_say_stays_exact(form: dict[str, Any], tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(Lstm(**form).file())
    report = qconvert.convert(source, result, numerics="fast")
    assert [change.text for change in report.changes if "is exact and has no float form" in change.text]
    assert kinds(result) != ["LSTM"] and drift(source, result, 3) == (0.0, 0)


def test_a_real_model_drifts_little_and_the_exact_form_not_at_all(tmp_path: Path) -> None:
    qconvert.convert(CORAL, tmp_path / "fast.onnx", numerics="fast")
    report = qconvert.convert(CORAL, tmp_path / "exact.onnx")
    said = [change for change in report.changes if change.by == "real_recurrence"]
    assert [change.exact for change in said] == [True] and "(28 inputs, 20 cells) is exact, about 17 µs a step" in said[0].text
    assert drift(CORAL, tmp_path / "exact.onnx", 20) == (0.0, 0)
    share, largest = drift(CORAL, tmp_path / "fast.onnx", 20)
    assert 0 < share < 0.05 and largest <= 10, (share, largest)
    weights = [tensor for tensor in qconvert.load(tmp_path / "fast.onnx").tensors.values() if tensor.shape == (1, 80, 28)]
    assert [tensor.dtype in ("int8", "uint8") for tensor in weights if tensor.is_constant] == [True]
