"""ONNX networks with weights of 4 bits, and with floats of 4 and 8 bits, for tests of what TensorRT takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tensorrt_network import Network


def float8(kind: str, *, both: bool = True, data: bool = True) -> Callable[[], Any]:
    """A Conv with fp8 weights, or data, or both."""

    def make() -> Any:
        net = Network()
        zero = net.constant(0.0, kind)
        x = net.pair(net.input(), 0.05, zero) if both or data else net.input()
        weights = (
            net.dequantize(net.constant(np.full((16, 16), 0.5), kind), 0.01, zero) if both or not data else net.constant(np.ones((16, 16)))
        )
        net.inputs[-1].type.tensor_type.shape.dim[3].dim_value = 16
        return net.model(net.op("MatMul", x, weights, name="target"))

    return make


def four_bits(
    dtype: str = "INT4", axis: int = 0, block: int = 16, *, zero: bool = True, half: bool = False, turned: bool = False
) -> Callable[[], Any]:
    """A MatMul (256 -> 32) with weights in blocks along K."""

    def make() -> Any:
        net = Network()
        real = "float16" if half else "float32"
        sizes = (32, 256) if turned else (256, 32)
        scales = [size // block if index == axis else size for index, size in enumerate(sizes)]
        integers = net.constant(np.ones(sizes), dtype)
        inputs = [integers, net.constant(np.full(scales, 0.1), real), *([net.constant(np.zeros(scales), dtype)] if zero else [])]
        weights = net.op("DequantizeLinear", *inputs, axis=axis, block_size=block)
        weights = net.op("Transpose", weights, perm=[1, 0]) if turned else weights
        x = net.input("x", (4, 256), "FLOAT16" if half else "FLOAT")
        return net.model(net.op("MatMul", x, weights, name="target"), dtype="FLOAT16" if half else "FLOAT")

    return make


def weights_of_products(dtype: str, axis: int | None, block: int = 0) -> Callable[[], Any]:
    """A MatMul (64 -> 32) with weights per channel, per tensor, or in blocks."""

    def make() -> Any:
        net = Network()
        scales = [] if axis is None else [32] if not block else [64 // block, 32]
        attributes = {} if axis is None else {"axis": axis, **({"block_size": block} if block else {})}
        kind = dtype.lower() if dtype == "INT8" else dtype
        inputs = [net.constant(np.ones((64, 32)), kind), net.constant(np.full(scales, 0.1)), net.constant(np.zeros(scales), kind)]
        return net.model(net.op("MatMul", net.input("x", (4, 64)), net.op("DequantizeLinear", *inputs, **attributes), name="target"))

    return make


def float4() -> Any:
    net = Network(23)
    weights = net.op(
        "DequantizeLinear", net.constant(np.ones((64, 32)), "FLOAT4E2M1"), net.constant(np.full((4, 32), 0.1)), axis=0, block_size=16
    )
    return net.model(net.op("MatMul", net.input("x", (4, 64)), weights, name="target"))


def matmul_nbits(half: bool, block: int = 32) -> Callable[[], Any]:
    def make() -> Any:
        net = Network()
        real = "float16" if half else "float32"
        packed, scales = (
            net.constant(np.full((32, 128 // block, block // 2), 0x88), "uint8"),
            net.constant(np.full((32, 128 // block), 0.1), real),
        )
        x = net.input("x", (4, 128), "FLOAT16" if half else "FLOAT")
        y = net.op("MatMulNBits", x, packed, scales, name="target", domain="com.microsoft", K=128, N=32, bits=4, block_size=block)
        return net.model(y, dtype="FLOAT16" if half else "FLOAT")

    return make
