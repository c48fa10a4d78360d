"""Networks in memory, as fixtures/make_torch.py makes them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="module")
def networks() -> ModuleType:
    sys.path.insert(0, str(FIXTURES))
    try:
        return pytest.importorskip("torch_networks.forms", reason="torch_networks needs torch")
    finally:
        sys.path.remove(str(FIXTURES))
