"""Activations of quantized tensors mean the function of float values, rounded once, for every stored integer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qconvert.evaluate import evaluate
from tests.torchscript_models import Quantized, archive, graph_of, net

pytestmark = pytest.mark.formats

_SCALE, _ZERO = float(np.float32(0.03)), 90
_CODES = np.arange(256, dtype=np.uint8).reshape(1, 256)
_REAL = (_CODES.astype(np.float64) - _ZERO) * _SCALE


def _stored(tmp_path: Path, call: str, **attributes: Quantized) -> np.ndarray:
    """What a call gives for every stored integer."""
    body = f"q = torch.quantize_per_tensor(x, {_SCALE!r}, {_ZERO}, 13); return {call}"
    graph = graph_of(archive(tmp_path / "m.pt", net(body), attributes, traced=[("float32", (1, 256))]))
    return evaluate(graph, {graph.inputs[0]: _REAL.astype(np.float32)})[graph.outputs[0]]


def _rounded(real: np.ndarray, scale: float, zero_point: int) -> np.ndarray:
    return np.clip(np.rint(real / np.float64(np.float32(scale))) + zero_point, 0, 255)


@pytest.mark.parametrize("slope", [0.1, 0.011, 1.7])
def test_a_leaky_relu_is_not_multiplied_by_its_data(tmp_path: Path, slope: float) -> None:
    found = _stored(tmp_path, f"ops.quantized.leaky_relu(q, {slope}, False, 0.0277, 60)")
    leaky = np.where(_REAL < 0, slope * _REAL, _REAL)
    assert np.array_equal(found, _rounded(leaky, 0.0277, 60))
    recipe = _rounded(_REAL * leaky, 0.0277, 60)  # of a printed converter: the data times their own leaky_relu
    assert np.mean(recipe != found) > 0.5
    one = int(np.argmin(np.abs(_REAL - 2)))  # 2 stays 2, and is not 4
    assert abs((int(found[0, one]) - 60) * 0.0277 - 2) < 0.03 < 1 < abs((int(recipe[0, one]) - 60) * 0.0277 - 2)


def test_a_prelu_leaves_positive_values_alone(tmp_path: Path) -> None:
    """PyTorch 2.13's kernel multiplies them by the weight too; the operator means what aten::prelu does."""
    weight = Quantized(np.array([64], np.uint8), 1 / 256, 0)  # 0.25
    found = _stored(tmp_path, "ops.quantized.prelu(q, self.w, 0.0277, 60)", w=weight)
    assert np.array_equal(found, _rounded(np.where(_REAL < 0, 0.25 * _REAL, _REAL), 0.0277, 60))


@pytest.mark.parametrize(
    ("call", "scale", "zero_point", "function"),
    [
        ("torch.sigmoid(q)", 1 / 256, 0, lambda x: 1 / (1 + np.exp(-x))),
        ("torch.tanh(q)", 1 / 128, 128, np.tanh),
        ("torch.hardsigmoid(q)", 1 / 256, 0, lambda x: np.clip(x / 6 + 0.5, 0, 1)),
        ("ops.quantized.relu6(q)", _SCALE, _ZERO, lambda x: np.clip(x, 0, 6)),
        ("torch.hardtanh(q, -0.5, 1.25)", _SCALE, _ZERO, lambda x: np.clip(x, -0.5, 1.25)),
        ("torch.gelu(q)", _SCALE, _ZERO, None),
    ],
)
def test_quantizations_are_pytorchs(tmp_path: Path, call: str, scale: float, zero_point: int, function: object) -> None:
    body = f"q = torch.quantize_per_tensor(x, {_SCALE!r}, {_ZERO}, 13); return {call}"
    graph = graph_of(archive(tmp_path / "m.pt", net(body), traced=[("float32", (1, 256))]))
    quantization = graph[graph.outputs[0]].quantization
    assert quantization is not None and quantization.scale[0] == np.float32(scale) and quantization.zero_point[0] == zero_point
    if callable(function):
        assert np.array_equal(_stored(tmp_path, call), _rounded(function(_REAL), scale, zero_point))
