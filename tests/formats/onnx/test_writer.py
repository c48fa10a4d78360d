"""Graphs that are valid and unusual: what is written loads in onnxruntime and computes the same."""

from __future__ import annotations

import numpy as np
from passes.graphs import constant, make, outputs, q

from qconvert import Op, Tensor

X = np.linspace(-9, 9, 12, dtype=np.float32).reshape(3, 4)


def test_one_tensor_given_out_twice_as_real_values() -> None:
    tensors = [Tensor("x", "float32", (3, 4)), Tensor("q", "uint8", (3, 4), None, q(0.05, 128))]
    ops = [Op("Quantize", ("x",), ("q",)), Op("Dequantize", ("q",), ("a",)), Op("Dequantize", ("q",), ("b",))]
    wanted = np.clip(np.rint(X / np.float32(0.05)), -128, 127) * np.float32(0.05)
    for order in ("a b", "b a", "a b q"):
        found = outputs(make(ops, tensors, "x", order), {"x": X})
        assert all(np.allclose(value, wanted) for value in found[:2])


def test_a_constant_that_a_convolution_turns_and_the_user_sees() -> None:
    """The weights of a Gemm are written in the order of axes that ONNX wants, and the output in the graph's own."""
    w = constant("w", np.arange(8, dtype=np.float32).reshape(2, 4))
    graph = make([Op("Gemm", ("x", "w"), ("y",))], [Tensor("x", "float32", (3, 4)), w], "x", "y w")
    y, seen = outputs(graph, {"x": X})
    assert np.array_equal(seen, w.data) and np.allclose(y, X @ seen.T)  # type: ignore[arg-type]
