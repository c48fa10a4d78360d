"""Transposed convolutions with strides of 1 as convolutions."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.operators.shapes_and_functions import infer
from qconvert.passes.convolutions import transposed_to_conv

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "Conv"),
        ({"pads": (0, 1, 1, 2)}, "Conv"),
        ({"dilations": (2, 1), "pads": (1, 0, 3, 1)}, "Conv"),
        ({"group": 2}, "Conv"),
        ({"strides": (2, 1)}, "ConvTranspose"),
        ({"pads": (0, 0, 3, 0)}, "ConvTranspose"),
    ],
)
def test_strides_of_1_give_the_same_integers(changes: dict[str, object], kind: str, layout: str) -> None:
    q = Quantization.per_tensor
    sizes = (4, 5, 6) if layout == "channels_first" else (5, 6, 4)
    shape = (6, 4 // int(str(changes.get("group", 1))), 3, 3)
    scales = Quantization.per_axis(RNG.uniform(0.01, 0.02, 6), 0)
    tensors = [
        Tensor("x", "int8", (2, *sizes), None, q(0.1, 3)),
        Tensor("w", "int8", shape, RNG.integers(-127, 128, shape).astype(np.int8), scales),
        Tensor("y", "int8", None, None, q(0.2, -5)),
    ]
    attributes = {"data_format": layout, "pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1), "group": 1, **changes}
    op = Op("ConvTranspose", ("x", "w"), ("y",), attributes)
    graph = infer(Graph("one", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",)))
    found, _ = transposed_to_conv(graph, None)
    assert [op.kind for op in found.ops] == [kind]
    feed = {"x": RNG.integers(-128, 128, (2, *sizes)).astype(np.int8)}
    np.testing.assert_array_equal(evaluate(found, feed)["y"], evaluate(graph, feed)["y"])


def test_weights_of_float16_are_reversed_before_their_cast() -> None:
    """They stay float16; IREE refuses the ConvTranspose with strides of 1 after another convolution."""
    tensors = [
        Tensor("x", "float32", (1, 3, 5, 6)),
        Tensor("w", "float16", (2, 3, 3, 2), RNG.normal(size=(2, 3, 3, 2)).astype(np.float16)),
        Tensor("wide", "float32", (2, 3, 3, 2)),
        Tensor("y", "float32", None),
    ]
    attributes = {"data_format": "channels_first", "pads": (1, 0, 1, 1), "strides": (1, 1), "dilations": (1, 1), "group": 1}
    ops = (Op("Cast", ("w",), ("wide",), {"to": "float32"}), Op("ConvTranspose", ("x", "wide"), ("y",), attributes))
    graph = infer(Graph("one", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",)))
    found, _ = transposed_to_conv(graph, None)
    assert [op.kind for op in found.ops] == ["Cast", "Conv"] and found[found.ops[0].inputs[0]].dtype == "float16"
    feed = {"x": RNG.normal(size=(1, 3, 5, 6)).astype(np.float32)}
    np.testing.assert_allclose(evaluate(found, feed)["y"], evaluate(graph, feed)["y"], atol=1e-5)
