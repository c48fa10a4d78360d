"""Bounds of kinds: what an operator gives for random data lies between them."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert.conformance.examples import QUANTIZED_KINDS, make_graph, random_operands
from qconvert.evaluate import evaluate
from qconvert.kernels import Kernels
from qconvert.operators import KINDS
from qconvert.operators.properties import ANY


@pytest.mark.parametrize("kind", [name for name in QUANTIZED_KINDS if KINDS[name].rule in ("real", "move")])
def test_results_lie_between_the_bounds_of_their_kind(kind: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        graph = make_graph(kind, "float32", rng, Kernels())
        stored = random_operands(graph, kind, rng)
        if seed % 2 and KINDS[kind].rule == "move":  # zeros of padding then lie outside of the data
            stored = {name: np.abs(data) + 0.5 if data.dtype.kind == "f" else data for name, data in stored.items()}
        values = {**{tensor.name: tensor.data for tensor in graph.constants()}, **stored}
        given = {name: (float(np.min(data)), float(np.max(data))) if data.dtype.kind == "f" else ANY for name, data in values.items()}
        low, high = KINDS[kind].interval(graph, graph.ops[0], given)
        result = evaluate(graph, stored)[graph.outputs[0]].astype(np.float64)
        slack = 1e-6 * max(1.0, float(np.abs(result).max()))
        assert low - slack <= result.min() and result.max() <= high + slack
