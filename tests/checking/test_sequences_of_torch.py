"""Buffers that a PyTorch program changes: states, checked over sequences of steps."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qconvert
from qconvert.checking.recurrent import STEPS
from qconvert.streaming import Session

pytestmark = [
    pytest.mark.onnxruntime,
    pytest.mark.litert,
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A program that keeps the last three rows that it was given, and a module like it."""
    import torch

    class Streaming(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("past", torch.full((1, 3, 4), 0.5))
            self.linear = torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            joined = torch.cat([self.past, x], 1)
            self.past.copy_(joined[:, 1:])  # type: ignore[operator]
            return self.linear(torch.relu(joined.amax(1)))

    torch.manual_seed(3)
    module = Streaming().eval()
    path = tmp_path_factory.mktemp("torch") / "streaming.pt2"
    torch.export.save(torch.export.export(module, (torch.randn(1, 1, 4),)), path)
    return path, module


@pytest.mark.cross_section
@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_a_program_with_a_buffer_gives_the_same_step_by_step(suffix: str, network: tuple[Path, Any], tmp_path: Path) -> None:
    import torch

    source, module = network
    module.past.fill_(0.5)
    qconvert.convert(source, tmp_path / f"m{suffix}")
    graph = qconvert.load(tmp_path / f"m{suffix}")
    assert [state.data.tolist() for state in graph.states.values() if state.data is not None] == [np.full((1, 3, 4), 0.5).tolist()]
    sessions = [Session(path) for path in (source, tmp_path / f"m{suffix}")]
    for x in np.random.default_rng(0).normal(size=(20, 1, 1, 4)).astype(np.float32):
        with torch.no_grad():
            meant = module(torch.from_numpy(x)).numpy()
        for session in sessions:
            (found,) = session.run(dict.fromkeys(session.inputs, x)).values()
            assert np.abs(found - meant).max() < 1e-6


@pytest.mark.parametrize("kernels", ["torch:rebuilt", "torch:trusted"])
@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_checks_carry_buffers(suffix: str, kernels: str, network: tuple[Path, Any], tmp_path: Path) -> None:
    qconvert.convert(network[0], tmp_path / f"m{suffix}")
    report = qconvert.check(network[0], tmp_path / f"m{suffix}", samples=2, kernels=kernels, per_op=True)
    assert report.passed and report.runs == 2 * STEPS, report
    assert all(item.verdict != "not compared" for item in report.operators) and len(report.operators) >= 3
