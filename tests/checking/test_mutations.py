"""Results with one thing changed at random: each change that the evaluator's output shows fails the check, at the right operator.
benchmarks/mutation_score.py makes thousands."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from mutation_score import FIXTURES, mutants, score

from qconvert import load

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert, pytest.mark.torch]


@pytest.mark.parametrize(
    ("model", "wanted", "seed"),
    [
        ("tflm_seanet_conv_int16x8.tflite", 4, 1),
        ("tiny_ad_toycar_int8.tflite", 4, 2),
        ("onnx/torch_fx_fbgemm_attention.onnx", 4, 3),
        ("onnx/modelopt_ptq_vision.onnx", 4, 4),
        ("torch/vision/fx_fbgemm_frozen.pt", 2, 5),
        ("torch/small/pt2e_xnnpack_batch.pt2", 3, 6),
    ],
)
def test_every_mutant_is_caught_and_named(model: str, wanted: int, seed: int, tmp_path: Path) -> None:
    found = score(model, wanted, seed, tmp_path)
    assert found.sound == "passed"
    assert (found.missed, found.unnamed) == ([], [])
    assert found.caught == found.named == wanted


def test_a_mutant_says_of_which_kind_its_change_is() -> None:
    """benchmarks/proof_mutants.py counts by kind."""
    graph = load(FIXTURES / "tiny_wakeword_int8.tflite")
    found = {item.kind: item.change for item in islice(mutants(graph, graph, np.random.default_rng(0)), 200)}
    ends = {"lost operator": "is left out", "inputs or outputs exchanged": "inputs are swapped"}
    starts = {"value of a constant": "constant ", "scale": "a scale of ", "zero point": "the zero point of "}
    assert found.keys() == {*ends, *starts, "attribute", "other input"}
    assert all(found[kind].endswith(end) for kind, end in ends.items())
    assert all(found[kind].startswith(start) for kind, start in starts.items())
