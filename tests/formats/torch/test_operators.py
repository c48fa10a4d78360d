"""Operators that compute: what PyTorch gave for each, from a TorchScript archive and from a torch.export program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torch_operators import CASES
from tests.torch_results import Results

pytestmark = pytest.mark.formats

_RESULTS = Results("operators")
#: The last elements, which fill no vector, are added in another order.
_TAILS = ("quantized_add",)


@pytest.mark.parametrize("case", CASES)
def test_a_trace_means_what_pytorch_computes(tmp_path: Path, case: str) -> None:
    _RESULTS.compare(_RESULTS.trace(case, tmp_path), case, steps=int(case in _TAILS))


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("quantized")])
def test_a_program_means_what_pytorch_computes(tmp_path: Path, case: str) -> None:
    _RESULTS.compare(_RESULTS.program(case, tmp_path), case)
