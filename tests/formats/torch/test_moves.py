"""Operators that move, choose, make and compare elements: what PyTorch gave for each, from a trace and from a torch.export program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torch_moves import CASES
from tests.torch_results import Results

pytestmark = pytest.mark.formats

_RESULTS = Results("moves")


@pytest.mark.parametrize("case", CASES)
def test_a_trace_means_what_pytorch_computes(tmp_path: Path, case: str) -> None:
    steps = int(case in ("quantized_cat", "quantized_cat_quantization", "quantized_cat_relu"))  # these round to another quantization
    _RESULTS.compare(_RESULTS.trace(case, tmp_path), case, steps)


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("quantized")])
def test_a_program_means_what_pytorch_computes(tmp_path: Path, case: str) -> None:
    _RESULTS.compare(_RESULTS.program(case, tmp_path), case)
