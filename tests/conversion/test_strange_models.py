"""Thousands of small random networks, several a model, converted in every way and compared in onnxruntime.

QCONVERT_EXAMPLES=1000 tries more; tests/strange_conversions.py goes on for as long as one likes.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from strange_conversions import attempt
from strange_models import feed, strange_model

from qconvert.errors import RuntimeRefusedError
from qconvert.runtimes.onnxruntime import OnnxRuntime

EXAMPLES = int(os.environ.get("QCONVERT_EXAMPLES", "160"))


@pytest.mark.parametrize("way", ["generic", "qoperator", "ort-x86", "ort-arm"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(seed=st.integers(0, 2**32 - 1))
def test_converted_models_compute_the_same(way: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("strange")
    model = strange_model(Random(seed), networks=6)
    try:
        OnnxRuntime(model.SerializeToString(), optimize=False).run(feed(model))
    except RuntimeRefusedError:
        assume(False)
    assert attempt(model, way, folder) == ""
