"""Constants that two movements turn one after the other."""

from __future__ import annotations

import numpy as np

from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.passes.absorb_quantization import absorb_quantization
from qconvert.rules.validation import validate


def test_a_constant_with_scales_along_an_axis_is_turned_twice() -> None:
    quantization = Quantization(np.array([0.5, 0.25], np.float32), np.zeros(2, np.int64), 0)
    weights = np.arange(6, dtype=np.int8).reshape(2, 3)
    tensors = [
        Tensor("w", "int8", (2, 3), weights, quantization), Tensor("a", "float32", (2, 3)), Tensor("b", "float32", (3, 2)),
        Tensor("c", "float32", (2, 3)), Tensor("x", "float32", (1, 3)), Tensor("y", "float32", (1, 2)),
    ]  # fmt: skip
    ops = (
        Op("Dequantize", ("w",), ("a",)),
        Op("Transpose", ("a",), ("b",), {"perm": (1, 0)}),
        Op("Transpose", ("b",), ("c",), {"perm": (1, 0)}),
        Op("Gemm", ("x", "c"), ("y",)),
    )
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",))
    changed, _ = absorb_quantization(graph, None)
    validate(changed)
    feed = {"x": np.array([[1, -2, 3]], np.float32)}
    assert np.array_equal(evaluate(changed, feed)["y"], evaluate(graph, feed)["y"])
    assert [op.kind for op in changed.ops] == ["Dequantize", "Gemm"]
