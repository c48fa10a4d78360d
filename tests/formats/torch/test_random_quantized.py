"""Random networks that PyTorch quantizes give the same in onnxruntime and LiteRT, but for a few steps where biases are real."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from formats.torch.written import needs_torch

import qconvert
from qconvert.plugins import ModelFile, runtimes
from tests.random_quantized import fx_traced

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert, pytest.mark.torch]

_RUNTIMES = {".onnx": ("onnxruntime", "optimized"), ".tflite": ("litert", "default")}
_CASES = [(seed, engine) for seed in range(6) for engine in ("fbgemm", "qnnpack")]


@needs_torch
@pytest.mark.parametrize(("seed", "engine"), _CASES)
def test_a_network_of_fx_gives_what_pytorch_does(tmp_path: Path, seed: int, engine: str) -> None:
    """qnnpack rounds biases, so that nothing is left to differ but what a report says."""
    path, data, wanted = fx_traced(seed, engine, tmp_path)
    for suffix, (name, kernels) in _RUNTIMES.items():
        qconvert.convert(path, tmp_path / f"model{suffix}", engine=engine)
        model = runtimes()[name].open(ModelFile(tmp_path / f"model{suffix}", kernels))
        (found,) = model.run(dict.fromkeys(model.inputs, data)).values()
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 0.03 * np.ptp(wanted)
        assert np.mean(found != wanted) <= (0.25 if engine == "fbgemm" else 0.02)
