"""Constants that operators read in several roles: the table of an embedding that multiplies data too."""

from __future__ import annotations

import numpy as np
import pytest
from passes.graphs import constant, make, q, random_integers

from qconvert import Graph, Op, Tensor
from qconvert.conversion.normalizing import normalize
from qconvert.evaluate import evaluate
from qconvert.graph import Array
from qconvert.plugins import target_named, targets


def tied(dtype: str, largest: int, first: bool) -> Graph:
    zero = 0 if dtype == "int8" else 128
    table = (np.random.default_rng(0).integers(-largest, largest, (6, 4)) + zero).astype(dtype)
    tensors = [
        Tensor("x", dtype, (2, 6), None, q(0.05, zero)),
        constant("w", table, q(0.01, zero)),
        Tensor("i", "int64", (3,)),
        Tensor("e", dtype, None, None, q(0.01, zero)),
        Tensor("s", dtype, None, None, q(0.02, zero)),
        Tensor("y", dtype, None, None, q(0.5, zero)),
    ]
    lookup = [Op("Gather", ("w", "i"), ("e",), {"axis": 0}), Op("Add", ("e", "e"), ("s",))]
    product = [Op("MatMul", ("x", "w"), ("y",))]
    return make([*product, *lookup] if first else [*lookup, *product], tensors, "x i", "s y")


def steps(graph: Graph, name: str, values: Array) -> Array:
    found = graph[name].quantization
    assert found is not None
    return values.astype(int) - found.point


# these change quantizations
@pytest.mark.parametrize("target", sorted(name for name, target in targets().items() if not target.needs_scales))
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("largest", [20, 127])  # of weights that cannot saturate and that can
@pytest.mark.parametrize("first", [True, False])
def test_a_tied_embedding_fits_every_target(target: str, dtype: str, largest: int, first: bool) -> None:
    graph = tied(dtype, largest, first)
    changed, _ = normalize(graph, target_named(target))
    feed = {"x": random_integers((2, 6), dtype), "i": np.array([0, 5, 2])}
    before, after = evaluate(graph, feed), evaluate(changed, feed)
    for name in graph.outputs:
        assert np.array_equal(steps(graph, name, before[name]), steps(changed, name, after[name]))
