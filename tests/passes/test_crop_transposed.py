"""Transposed convolutions with unequal pads, and what a Slice makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.operators.shapes_and_functions import infer
from qconvert.passes.convolutions import crop_transposed

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("batch", [2, "N"])
def test_unequal_pads_become_a_slice_of_the_same_integers(layout: str, batch: int | str) -> None:
    q = Quantization.per_tensor
    sizes = (4, 5, 6) if layout == "channels_first" else (5, 6, 4)
    weights = Tensor("w", "int8", (3, 4, 3, 3), RNG.integers(-127, 128, (3, 4, 3, 3)).astype(np.int8), q(0.01, 0))
    tensors = [Tensor("x", "int8", (batch, *sizes), None, q(0.1, 3)), weights, Tensor("y", "int8", None, None, q(0.2, -5))]
    attributes = {"data_format": layout, "pads": (0, 1, 1, 1), "strides": (2, 2), "dilations": (1, 1), "group": 1}
    op = Op("ConvTranspose", ("x", "w"), ("y",), attributes)
    graph = infer(Graph("one", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",)))
    found, notes = crop_transposed(graph, None)
    assert [op.kind for op in found.ops] == ["ConvTranspose", "Slice"] and notes == ("1 ConvTranspose operator cropped by a Slice",)
    assert tuple(found.ops[0]["pads"]) == (0, 1, 0, 1)
    feed = {"x": RNG.integers(-128, 128, (2, *sizes)).astype(np.int8)}
    np.testing.assert_array_equal(evaluate(found, feed)["y"], evaluate(graph, feed)["y"])
    assert crop_transposed(found, None)[0].ops == found.ops
