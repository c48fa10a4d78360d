"""Grids are the same only where the stored type is, too: a scale and zero point mean other values in int8 than in uint8."""

from __future__ import annotations

import numpy as np

from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.passes import match_scales
from qconvert.plugins import target_named

GRID = Quantization.per_tensor(0.05, 3)


def test_equal_numbers_of_another_type_are_another_grid() -> None:
    op = Op("Max", ("x", "k"), ("y",))
    shape = (1, 3, 3, 2)
    k = np.arange(18, dtype=np.int8).reshape(shape)
    tensors = [Tensor("x", "uint8", shape, None, GRID), Tensor("k", "int8", shape, k, GRID), Tensor("y", "int8", shape, None, GRID)]
    graph = Graph("g", {t.name: t for t in tensors}, (op,), ("x",), ("y",))
    found, _ = match_scales.run(graph, target_named("tflite-same"))
    (kept,) = [item for item in found.ops if item.kind == op.kind]
    assert len({found[name].dtype for name in (*kept.inputs, *kept.outputs)}) == 1
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(evaluate(found, {"x": x})["y"], evaluate(graph, {"x": x})["y"])
