"""Integer LSTMs and SVDFs as ONNX: onnxruntime gives the bits of the kernels, step after step, with the states going on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lstm_files import Lstm
from recurrent_graphs import lstm_graph, svdf_graph
from refusals import refused

from qconvert.errors import InvalidGraphError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.writer import build
from qconvert.graph import Graph, Quantization, integer_range
from qconvert.rules.validation import validate

pytestmark = pytest.mark.litert


def run_both(graph: Graph, carried: dict[str, str], seed: int, runs: int = 4) -> int:
    """Compares onnxruntime with the evaluation, the states of each run being the next one's; how many different outputs there were."""
    import onnxruntime

    session = onnxruntime.InferenceSession(build(graph, 18, {}).SerializeToString())
    rng = np.random.default_rng(seed)

    def values(name: str) -> Any:
        tensor = graph[name]
        low, high = integer_range(tensor.dtype)
        return rng.integers(low, high + 1, tensor.static_shape).astype(tensor.dtype)

    fed = {name: values(name) for name in graph.inputs}
    seen: set[int] = set()
    for _ in range(runs):
        expected = evaluate(graph, fed)
        for name, found in zip(graph.outputs, session.run(list(graph.outputs), fed), strict=True):
            np.testing.assert_array_equal(found, expected[name])
        seen.update(expected["outputs"].reshape(-1).tolist())
        fed = {name: expected[carried[name]] if name in carried else values(name) for name in graph.inputs}
    return len(seen)


LSTMS: list[dict[str, Any]] = [
    {},
    {"rows": 3},
    {"rows": 3, "time_major": True},
    {"steps": 1},
    {"has_input_gate": False},
    {"cell_clip": 0.5},
    {"peephole": True, "rows": 2},
    {"projection": True, "outputs": 4},
    {"projection": True, "outputs": 4, "proj_clip": 0.3, "rows": 2},
    {"norm": True},
    {"norm": True, "rows": 3, "cells": 12, "outputs": 12},
    {"norm": True, "peephole": True, "has_input_gate": False, "projection": True, "outputs": 5},
    {"norm": True, "steps": 1, "rows": 2, "peephole": True},
    {"peephole": True, "projection": True, "outputs": 3, "rows": 3},
    {"peephole": True, "projection": True, "outputs": 3, "rows": 3, "time_major": True},
    {"hidden": (0.009, -7), "output": (0.01, 3)},
    {"cell_power": -15},
    {"cell_power": -12},
    {"cell_power": -9},
    {"cells": 600, "outputs": 600, "inputs": 600, "steps": 2},
]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("variant", LSTMS, ids=str)
def test_an_lstm_is_equal_in_onnxruntime(variant: dict[str, Any]) -> None:
    for seed in range(2):
        graph = lstm_graph(Lstm(seed=seed, **variant))
        validate(graph)
        assert run_both(graph, {"hidden": "hidden_after", "cell": "cell_after"}, seed) > 10


@pytest.mark.onnxruntime
@pytest.mark.parametrize("seed", range(12))
def test_hidden_values_whose_product_float64_does_not_hold(seed: int) -> None:
    """Scales whose multipliers have all 24 bits: some of them need int64."""
    rng = np.random.default_rng(seed)
    scale = float(np.float32(rng.uniform(0.0041, 0.0078)))
    graph = lstm_graph(Lstm(seed=seed, hidden=(scale, 3), state=(scale, 3), output=(scale, 3), cells=32, outputs=32, steps=20))
    assert run_both(graph, {"hidden": "hidden_after", "cell": "cell_after"}, seed, 2) > 20


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "variant", [{}, {"rank": 2}, {"rank": 4, "rows": 3}, {"memory": 1}, {"bias": False}, {"output": (0.01, 0)}], ids=str
)
def test_an_svdf_is_equal_in_onnxruntime(variant: dict[str, Any]) -> None:
    for seed in range(2):
        graph = svdf_graph(seed, **variant)
        validate(graph)
        assert run_both(graph, {"memory": "memory_after"}, seed, 8) > 5


@pytest.mark.onnxruntime
@pytest.mark.parametrize("width", [1, 6, 100, 128])
def test_a_layer_normalization_of_any_variance(width: int) -> None:
    """From gates whose values are nearly equal, where what a variance loses of its fraction counts, to the largest variance."""
    for reach in (0.0, 1e-5, 3e-4, 0.01, 0.3):
        data = (max(reach, 1e-9), 127 if reach == 0 else -3)
        layer = Lstm(seed=width, norm=True, cells=width, outputs=width, steps=3, rows=2, data=data)
        run_both(lstm_graph(layer), {"hidden": "hidden_after", "cell": "cell_after"}, width, 2)


def test_a_layer_normalization_that_may_overflow_is_refused() -> None:
    graph = lstm_graph(Lstm(norm=True))
    large = replace(graph["cell_norm"], quantization=Quantization(np.array([100.0], np.float32), np.array([0], np.int64)))
    with refused(UnsupportedError, "may-overflow"):
        build(graph.evolve(tensors=[large]), 18, {})


@pytest.mark.cross_section
@pytest.mark.parametrize(
    ("variant", "absent", "rule", "holds"),
    [
        ({"norm": True}, "cell_norm", "incomplete-parameters", ()),
        ({"norm": True}, "forget_norm", "incomplete-parameters", ()),
        ({"peephole": True}, "output_peephole", "incomplete-parameters", ()),
        ({"peephole": True, "projection": True, "outputs": 9}, "", "kernel-reads-outside", (8, 9)),
    ],
)
def test_what_its_kernel_does_not_take_is_no_graph(variant: dict[str, Any], absent: str, rule: str, holds: tuple[object, ...]) -> None:
    graph = lstm_graph(Lstm(**variant))
    op = graph.ops[0]
    with refused(InvalidGraphError, rule, holds=holds):
        validate(graph.evolve(ops=[op.with_names({absent: ""})]))


def test_a_cell_on_a_quantization_that_has_no_tanh_is_no_graph() -> None:
    graph = lstm_graph(Lstm())
    odd = replace(graph["cell"], quantization=Quantization(np.array([0.003], np.float32), np.array([0], np.int64)))
    with refused(InvalidGraphError, "scale-not-power-of-two"):
        validate(graph.evolve(tensors=[odd]))
    with refused(InvalidGraphError, "incomplete-parameters", holds=(8, 7)):
        validate(graph.evolve(tensors=[replace(graph["hidden"], shape=(1, 7))]))
