"""Scales that are taken out of a graph, which is in float afterwards."""

from __future__ import annotations

import numpy as np
from refusals import refused

from qconvert.encodings import Place, extract_encodings
from qconvert.errors import UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.rules.validation import validate


def reinterpret(zero_point: int) -> Graph:
    tensors = [
        Tensor("x", "uint8", (2,), None, Quantization.per_tensor(0.5, 3)),
        Tensor("y", "uint8", (2,), None, Quantization.per_tensor(0.125, zero_point)),
    ]
    return Graph("one", {tensor.name: tensor for tensor in tensors}, (Op("Reinterpret", ("x",), ("y",)),), ("x",), ("y",))


def test_integers_of_another_scale_are_multiplied_in_float() -> None:
    """As PyTorch writes a quantized tensor times a number: quantized::mul_scalar."""
    graph, encodings = extract_encodings(reinterpret(3))
    assert [op.kind for op in graph.ops] == ["Mul"]
    assert evaluate(graph, {"x": np.array([8, -3], np.float32)})["y"].tolist() == [2, -0.75]
    found = [encodings.entries[Place(name)].qparams for name in "xy"]
    assert [item.quantization.step for item in found if item is not None] == [0.5, 0.125]


def test_integers_of_another_zero_point_are_refused() -> None:
    with refused(UnsupportedError, "integers-required"):
        extract_encodings(reinterpret(4))


def test_an_identity_does_not_say_how_a_quantize_rounded() -> None:
    """As a program of PyTorch that gives out the integers too."""
    tensors = [Tensor("x", "float32", (2,)), Tensor("q", "int8", (2,), None, Quantization.per_tensor(0.5, 3)), Tensor("y", "float32", (2,))]
    ops = (Op("Quantize", ("x",), ("q",), {"arithmetic": "reciprocal"}), Op("Dequantize", ("q",), ("y",)))
    graph, _ = extract_encodings(Graph("one", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("q", "y")))
    validate(graph)
    assert [(op.kind, dict(op.attributes)) for op in graph.ops] == [("Identity", {}), ("Identity", {})]
