"""Thousands of small random networks, several a model, converted in every way and compared in their runtimes.

QCONVERT_EXAMPLES=1000 tries more; tests/strange_conversions.py goes on for as long as one likes, and checks a quarter of the results.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from strange_conversions import WAYS, attempt_apart, make, refused

pytestmark = pytest.mark.onnxruntime

EXAMPLES = int(os.environ.get("QCONVERT_EXAMPLES", "0"))
#: Ways onto kernels of LiteRT or from them, and what share of the models they refuse at most: by rule, since TFLite has no dynamic
#: quantization, no plain products of integers and no such padding.
OTHER = {"lite-x86": 0.0, "lite-generic": 0.0, "lite-arm": 0.0, "lite-qoperator": 0.0, "lite-back": 0.3, "q-x86": 0.0, "q-generic": 0.0,
         "q-tflite": 0.7, "tflite": 0.8}  # fmt: skip


@pytest.mark.property
@pytest.mark.parametrize("way", ["generic", "qoperator", "ort-x86", "ort-arm"])
@settings(max_examples=EXAMPLES or 60, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(seed=st.integers(0, 2**32 - 1))
def test_converted_models_compute_the_same(way: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("strange")
    data = make("onnx", seed, networks=6)
    assume(not refused("onnx", data))
    outcome = attempt_apart(data, way, folder)
    assert not outcome.problem and not outcome.refusal, outcome


@pytest.mark.litert
@pytest.mark.end_to_end
@pytest.mark.parametrize("way", OTHER)
def test_models_of_other_forms_compute_the_same(way: str, tmp_path: Path) -> None:
    source = WAYS[way].source
    outcomes = []
    few = 20 if WAYS[way].steps[-1][0] == "tflite" else 60  # which run in a process each
    for seed in range(EXAMPLES or few):
        data = make(source, seed)
        if not refused(source, data):
            outcomes.append((seed, attempt_apart(data, way, tmp_path)))
    assert [(seed, outcome) for seed, outcome in outcomes if outcome.problem] == []
    refusals = [(seed, outcome.refusal) for seed, outcome in outcomes if outcome.refusal]
    assert len(refusals) <= OTHER[way] * len(outcomes), refusals
