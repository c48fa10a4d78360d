"""Thousands of small random networks, several a model, converted in every way and compared in their runtimes.

QCONVERT_EXAMPLES=1000 tries more; tests/strange_conversions.py goes on for as long as one likes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from strange_conversions import WAYS, attempt_apart, make, refused_apart

EXAMPLES = int(os.environ.get("QCONVERT_EXAMPLES", "0"))
#: How many models a way is tried with; the ways of ONNX's QDQ form hold twice as many networks.
FEW = {"onnx": 80, "tflite": 30, "qoperator": 30}


@pytest.mark.parametrize("way", ["generic", "qoperator", "ort-x86", "ort-arm", "tflite"])
def test_converted_models_compute_the_same(way: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = WAYS[way].source
    folder: Path = tmp_path_factory.mktemp("strange")

    @settings(max_examples=EXAMPLES or FEW[source], deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(seed=st.integers(0, 2**32 - 1))
    def converted(seed: int) -> None:
        data = make(source, seed, networks=6 if source == "onnx" else 3)
        assume(not refused_apart(source, data, folder))
        outcome = attempt_apart(data, way, folder)
        assert not outcome.problem, outcome.detail
        assert not outcome.refusal or way in ("tflite", "lite-back", "q-tflite")

    converted()
