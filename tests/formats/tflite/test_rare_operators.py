"""Operators whose options or sizes a damaged or hostile file leaves out or blows up: one error, and no large constant."""

from __future__ import annotations

import numpy as np
import pytest
from differential import converted
from loaded import tflite_graph
from tflite_models import TensorSpec, single_op

from qconvert.errors import QConvertError

X = TensorSpec("x", (4, 5), "float32")
Y = TensorSpec("y", (4, 5), "float32")


@pytest.mark.parametrize(
    ("builtin", "inputs", "reason"),
    [
        ("STABLEHLO_PAD", [X, TensorSpec("v", (), "float32", data=np.float32(0))], "its options have no edgePaddingLow"),
        ("STABLEHLO_GATHER", [X, TensorSpec("i", (2, 1), "int32")], "windows of () do not fit data"),
        ("RELU", [TensorSpec("x", (4, 5), "int8")], "of int8 without a scale"),
        ("REDUCE_WINDOW", [X, *(TensorSpec(name, (1,), "int64", data=np.ones(1, np.int64)) for name in "isdw")], "function number 0"),
    ],
)  # fmt: skip
def test_options_that_are_absent_are_named(builtin: str, inputs: list[TensorSpec], reason: str) -> None:
    with pytest.raises(QConvertError) as caught:
        tflite_graph(single_op(builtin, None, inputs, [Y]))
    assert reason in caught.value.reason


def test_a_mask_of_a_huge_diagonal_is_not_made() -> None:
    data = single_op("MATRIX_DIAG", {}, [TensorSpec("x", (100_000,), "float32")], [TensorSpec("y", (100_000, 100_000), "float32")])
    with pytest.raises(QConvertError, match="100000 x 100000 places"):
        converted(data)


def test_nearest_resizes_of_two_kinds_at_once_are_refused() -> None:
    flags = {"alignCorners": True, "halfPixelCenters": True}
    inputs = [TensorSpec("x", (1, 4, 4, 1), "float32"), TensorSpec("s", (2,), "int32", data=np.array([8, 8], np.int32))]
    with pytest.raises(QConvertError, match="aligned corners and half pixels at once"):
        tflite_graph(single_op("RESIZE_NEAREST_NEIGHBOR", flags, inputs, [TensorSpec("y", (1, 8, 8, 1), "float32")]))


def test_a_product_of_no_elements_has_a_reach() -> None:
    from qconvert.graph import Graph, Op, Quantization, Tensor
    from qconvert.runtimes.reach_litert import _multiplied

    grid = Quantization.per_tensor(0.1, 0)
    tensors = [Tensor("x", "int8", (2, 0), None, grid), Tensor("a", "int64", (1,), np.array([1])), Tensor("y", "int8", (2,), None, grid)]
    op = Op("ReduceProd", ("x", "a"), ("y",), {"keepdims": 0})
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
    assert (_multiplied(graph, op, np.ones(2))[0] > 0).all()
