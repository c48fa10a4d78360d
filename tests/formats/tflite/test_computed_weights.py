"""Convolutions and products by weights that are an activation, in every type that LiteRT has a kernel for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tflite_nets import Net

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

DATA = (2, 6, 5, 4)
CONV = {"strideH": 1, "strideW": 1, "padding": 0}
#: Operator -> shape of the weights, of the result, options, and the place of the weights.
OPERATORS = {
    "CONV_2D": ((3, 2, 3, 4), (2, 6, 5, 3), CONV),
    "DEPTHWISE_CONV_2D": ((1, 3, 2, 8), (2, 6, 5, 8), {**CONV, "depthMultiplier": 2}),
    "TRANSPOSE_CONV": ((3, 3, 2, 4), (2, 12, 10, 3), {**CONV, "strideH": 2, "strideW": 2}),
    "FULLY_CONNECTED": ((3, 4), (60, 3), {}),
}


def _net(builtin: str, dtype: str, bias: bool) -> tuple[Net, dict[str, tuple[int, ...]]]:
    shape, result, options = OPERATORS[builtin]
    net = Net(dtype, x=DATA)
    net.input("w", shape, zero_point=0)
    operands: list[str | None] = ["x", "w"]
    if builtin == "TRANSPOSE_CONV":
        operands = [net.const(result), "w", "x"]
    count = result[-1]
    if bias:
        values = np.random.default_rng(0).integers(-300, 300, count)
        kind = {"float32": "float32", "int16": "int64"}.get(dtype, "int32")
        scale = None if dtype == "float32" else np.full(1, 1 / 256, np.float32)
        operands.append(net.const(values / 64 if dtype == "float32" else values, kind, scale=scale))
    net.output(builtin, operands, result, options=options, scale=2.0)
    return net, {"x": DATA, "w": shape}


#: LiteRT's convolutions need a bias.
FORMS = [(builtin, bias) for builtin in OPERATORS for bias in (True, False) if bias or not builtin.endswith("CONV_2D")]


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8"])
@pytest.mark.parametrize(("builtin", "bias"), FORMS)
def test_weights_that_are_an_activation(builtin: str, dtype: str, bias: bool, tmp_path: Path) -> None:
    net, sizes = _net(builtin, dtype, bias)
    net.require_equal(tmp_path, sizes, within=1)
