"""What passes would cost a model, before anything is written."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from passes.graphs import constant, make, q, quantized_conv
from refusals import refused

from qconvert import Op, Pass, PassCost, Tensor, load, pass_costs
from qconvert.conversion import run_passes
from qconvert.errors import OptionError
from qconvert.plugins import pass_named

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODEL = FIXTURES / "tiny_ad_toycar_int8.tflite"


@pytest.fixture(scope="module")
def costs() -> tuple[PassCost, ...]:
    return pass_costs(MODEL, samples=2)


@pytest.mark.onnxruntime
def test_the_cheapest_come_first(costs: tuple[PassCost, ...]) -> None:
    found = [np.inf if cost.sqnr_db is None else cost.sqnr_db for cost in costs if not cost.refused]
    assert found == sorted(found, reverse=True) and len(found) >= 8


@pytest.mark.onnxruntime
def test_each_pass_counts_what_it_changes(costs: tuple[PassCost, ...]) -> None:
    found = {(cost.name, *cost.options.items()): cost for cost in costs}
    four = found["change_bits", ("weight_bits", 4)]
    assert four.weights == 10 and four.activations == 0 and four.worst is not None and 10 < four.worst.sqnr_db < 25
    assert four.sqnr_db is not None and four.ran.startswith("onnxruntime")
    wide = found["change_bits", ("activation_bits", 16)]
    assert wide.weights == 0 and wide.activations >= 9


@pytest.mark.formats
def test_the_evaluator_runs_what_the_target_does_not_take() -> None:
    four_bits = Pass("four_bits", "", lambda graph, target: pass_named("change_bits").run(graph, target, activation_bits=4), exact=False)
    with (
        patch.dict(inspect.unwrap(pass_costs).__globals__, {"pass_named": lambda name: four_bits}),
        patch.dict(inspect.unwrap(run_passes).__globals__, {"pipeline": lambda names: (four_bits,)}),
    ):
        (cost,) = pass_costs(MODEL, names=["four_bits"], samples=1)
    assert cost.ran == "the evaluator" and cost.sqnr_db is not None


@pytest.mark.onnxruntime
def test_exact_passes_and_those_with_nothing_to_do_are_left_out(costs: tuple[PassCost, ...]) -> None:
    assert not {cost.name for cost in costs} & {"per_tensor_to_per_axis", "fold_batch_norm", "narrow_range"}


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_the_measure_is_that_of_the_outputs() -> None:
    """Weights of 4 bits alone: what they lose, some 20 dB, is what the result of the one convolution loses."""
    graph = quantized_conv()
    feeds = [{"x": np.random.default_rng(seed).integers(-128, 128, (1, 3, 5, 5)).astype(np.int8)} for seed in range(4)]
    (cost,) = [cost for cost in pass_costs(graph, names=["change_bits"], feeds=feeds) if dict(cost.options) == {"weight_bits": 4}]
    assert cost.weights == 1 and cost.sqnr_db is not None and 10 < cost.sqnr_db < 30


@pytest.mark.formats
def test_a_pass_that_fails_is_named() -> None:
    with refused(OptionError, "unknown-pass", holds=("nothing",)):
        pass_costs(MODEL, names=["nothing"])
    with refused(OptionError, "samples-not-positive"):
        pass_costs(MODEL, samples=0)


@pytest.mark.onnxruntime
def test_scores_say_whether_the_best_class_stays() -> None:
    tensors = [
        Tensor("x", "int8", (1, 4), None, q(0.5)),
        constant("w", np.eye(4, dtype=np.int8) * 100 + np.arange(16, dtype=np.int8).reshape(4, 4), q(0.01)),
        Tensor("y", "int8", (1, 4), None, q(0.5)),
    ]
    graph = make([Op("Gemm", ("x", "w", ""), ("y",))], tensors, "x", "y")
    (cost,) = pass_costs(graph, names=["reduced_range"], feeds=[{"x": np.int8([[1, 2, 100, 4]])}])[:1]
    assert cost.same_top1 == 1.0


@pytest.mark.end_to_end
def test_the_command_prints_a_table_and_json() -> None:
    command = [sys.executable, "-m", "qconvert", "passes", str(FIXTURES / "tiny_kws_dscnn_int8.tflite"), "--samples", "1"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "symmetric_activations" in text and "power_of_two:rounding=mse" in text and "same top-1" in text
    document = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    assert {"name", "options", "sqnr_db", "same_top1", "worst", "weights", "activations"} <= document["items"][0].keys()
    wrong = subprocess.run([*command[:4], str(FIXTURES / "README.md")], capture_output=True, text=True)
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr


@pytest.mark.onnxruntime
def test_a_loaded_model_is_one_too() -> None:
    graph = load(MODEL)
    assert [cost.name for cost in pass_costs(graph, names=["symmetric_activations"], samples=1)] == ["symmetric_activations"]
