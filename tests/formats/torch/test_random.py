"""Random programs of PyTorch, scripted, traced and exported: what is read of them means what torch computes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qconvert.conversion.loading import load
from qconvert.errors import UnsupportedError
from qconvert.evaluate import evaluate
from tests.random_torch import FORMS, Array, NotWrittenError, random_program

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

#: Seeds a form; more are run by tests/random_torch.py.
_COUNTS = {"script": 18, "trace": 14, "export": 12, "dynamic": 6}
_CASES = [(form, seed) for form in FORMS for seed in range(_COUNTS[form])]


@pytest.mark.parametrize(("form", "seed"), _CASES)
def test_a_random_program_means_what_torch_computes(tmp_path: Path, form: str, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            written = random_program(seed).written(form, tmp_path)
        except NotWrittenError:
            return  # TorchScript and torch.export do not take everything that Python runs
    try:
        graph = load(written.path, input_shape=written.shapes)
    except UnsupportedError:
        return  # by name
    found = list(evaluate(graph, written.given(graph.inputs)).values())
    assert len(found) == len(written.outputs)
    for result, wanted in zip(found, written.outputs, strict=True):
        _compare(result, wanted)


def _compare(result: Array, wanted: Any) -> None:
    assert result.dtype == wanted.dtype and result.shape == wanted.shape
    precision = 3e-2 if wanted.dtype == np.float16 else 1e-3
    largest = max(1.0, float(np.abs(wanted.astype(np.float64)).max(initial=0))) if wanted.dtype.kind == "f" else 0.0
    if wanted.dtype.kind == "f":
        assert np.allclose(result.astype(np.float64), wanted.astype(np.float64), rtol=precision, atol=precision * largest * 0.1)
    else:
        assert np.array_equal(result, wanted)
