"""Averages whose ties a source rounds up or away from zero, as onnxruntime gives them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx_nodes import session

from qconvert.arithmetic import average_away, average_up
from qconvert.formats.onnx.writer import build
from qconvert.graph import Graph, Op, Quantization, Tensor, integer_range

pytestmark = pytest.mark.onnxruntime


_OF_BYTES = [(1, 2), (8, 8), (25, 40), (128, 128)]


@pytest.mark.parametrize("arithmetic", ["ties_up", "ties_away"])
@pytest.mark.parametrize(("dtype", "kernel"), [*product(("int8", "uint8"), _OF_BYTES), ("int16", (1, 2)), ("int16", (8, 8))])
def test_ties_and_what_is_next_to_them(kernel: tuple[int, int], arithmetic: str, dtype: str) -> None:
    (low, high), count = integer_range(dtype), kernel[0] * kernel[1]
    lower = np.append(np.arange(low, high, 51 if count > 5000 or dtype == "int16" else 1), high - 1)
    sums = np.unique((lower[:, None] * count + count // 2 + np.arange(-1, 2)).reshape(-1))
    data = sums[:, None] // count + (np.arange(count) < sums[:, None] % count)
    quantization = Quantization.per_tensor(0.037, low + 9)
    tensors = [Tensor(name, dtype, (1, len(sums), *size), None, quantization) for name, size in (("x", kernel), ("y", (1, 1)))]
    window = {"kernel_shape": kernel, "strides": kernel, "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    op = Op("AveragePool", ("x",), ("y",), {"arithmetic": arithmetic, **window})
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x",), ("y",))
    (found,) = session(build(graph, 0, {}).SerializeToString()).run(None, {"x": data.reshape(1, -1, *kernel).astype(dtype)})
    # Up is away from the lowest integer; of uint8, zero is at 128.
    zero = 128 if dtype == "uint8" else 0
    wanted = average_up(sums - low * count, count) + low if arithmetic == "ties_up" else average_away(sums - zero * count, count) + zero
    assert np.array_equal(found.reshape(-1), wanted)
