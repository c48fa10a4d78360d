"""A graph that tests of what people see and do with graphs share."""

from __future__ import annotations

import numpy as np

from qconvert import Graph, Op, Quantization, Tensor


def graph(name: str = "net", first: str = "x") -> Graph:
    tensors = [
        Tensor(first, "int8", ("N", 2), None, Quantization.per_tensor(0.5, 3)),
        Tensor("w", "int8", (3, 2), np.array([[1, 2], [-3, 4], [5, 6]], np.int8), Quantization.per_axis([0.25, 0.1, 2.0], 0)),
        Tensor("b", "int32", (3,), np.array([8, 20, -1], np.int32), Quantization.per_axis([0.125, 0.05, 1.0], 0)),
        Tensor("y", "int8", ("N", 3), None, Quantization.per_tensor(2.0)),
        Tensor("z", "float32", ("N", 3)),
    ]
    ops = (Op("Gemm", (first, "w", "b"), ("y",), source="FULLY_CONNECTED #0"), Op("Dequantize", ("y",), ("z",)))
    return Graph(name, {t.name: t for t in tensors}, ops, (first,), ("z",))
