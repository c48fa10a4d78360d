"""Scales that LiteRT's integer kernels cannot hold, some of which end the process: such operators run on real values."""

from __future__ import annotations

import pytest
from passes.graphs import make, q

from qconvert.conversion.normalizing import normalize
from qconvert.graph import Op, Tensor
from qconvert.plugins import target_named

#: Input scale, the other's, the result's: the mask of an attention in lowest float32; a result much finer than an operand.
SUMS = [(0.05, 1.3e36, 1.3e36, True), (0.05, 3e32, 3e32, False), (0.05, 1.0, 1e-7, True), (0.05, 0.1, 0.1, False)]


@pytest.mark.parametrize(("first", "second", "result", "is_real"), SUMS)
@pytest.mark.parametrize("kind", ["Add", "Sub"])
def test_a_sum(kind: str, first: float, second: float, result: float, is_real: bool) -> None:
    tensors = [Tensor(name, "int8", (2, 4), None, q(scale, 3)) for name, scale in (("a", first), ("b", second), ("y", result))]
    graph, _ = normalize(make([Op(kind, ("a", "b"), ("y",))], tensors, "a b", "y"), target_named("tflite"))
    (op,) = [op for op in graph.ops if op.kind == kind]
    assert (graph[op.outputs[0]].dtype == "float32") == is_real
    assert all(verdict.runs != "refused" for _, verdict in target_named("tflite").verdicts(graph))


@pytest.mark.parametrize(("scale", "is_real"), [(1e-8, True), (1e-7, False)])
def test_a_softmax(scale: float, is_real: bool) -> None:
    grid = q(1 / 256, -128)
    graph = make(
        [Op("Softmax", ("x",), ("y",), {"axis": -1})],
        [Tensor("x", "int8", (2, 4), None, q(scale)), Tensor("y", "int8", (2, 4), None, grid)],
        "x",
        "y",
    )
    graph, _ = normalize(graph, target_named("tflite"))
    (op,) = [op for op in graph.ops if op.kind == "Softmax"]
    assert (graph[op.outputs[0]].dtype == "float32") == is_real
    assert all(verdict.runs != "refused" for _, verdict in target_named("tflite").verdicts(graph))
