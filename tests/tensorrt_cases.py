"""What TensorRT-RTX does with ONNX models of one rule each: types and zero points, scales, axes and weights.

CASES has those of tensorrt_placement.py too: where operators may stand between a Quantize and the next Conv. verdict_of() says what a build
was; tests/runtimes/test_tensorrt_facts.py builds every case. Verdicts were measured with TensorRT-RTX 1.7.1.116.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tensorrt_case import Case
from tensorrt_few_bits import float4, float8, four_bits, matmul_nbits, weights_of_products
from tensorrt_network import INT8, Network
from tensorrt_placement import PLACEMENT

_SHIFTED = "Non-zero zero point is not supported"
_FEW = 8


def _conv(
    change: Callable[[Network], str] | None = None, weights: Callable[[Network], str] | None = None, opset: int = 21, **attributes: Any
) -> Callable[[], Any]:
    """A Conv of quantized data and weights: `change` gives the data in place of a pair, `weights` the weights."""

    def make() -> Any:
        net = Network(opset)
        x = change(net) if change else net.pair(net.input())
        return net.model(net.conv(x, weights(net) if weights else "", **attributes))

    return make


def _pair(scale: Any = 0.05, zero: Any = INT8, **attributes: Any) -> Callable[[], Any]:
    return _conv(lambda net: net.pair(net.input(), scale, zero, **attributes))


def _weights(*arguments: Any, **options: Any) -> Callable[[], Any]:
    return _conv(weights=lambda net: net.weights(*arguments, **options))


def _after_dequantize(dtype: str, zero: Any) -> Callable[[], Any]:
    def make() -> Any:
        net = Network()
        return net.model(net.conv(net.dequantize(net.input(dtype=dtype), 0.05, zero)))

    return make


def _int32_bias() -> Any:
    net = Network()
    bias = net.dequantize(net.constant(np.ones(8), "int32"), 0.001, None)
    return net.model(net.conv(net.pair(net.input()), bias=bias))


def _uint8_weights(zero: int) -> Callable[[], Any]:
    def make() -> Any:
        net = Network()
        weights = net.dequantize(net.constant(np.full((8, 8, 3, 3), 3), "uint8"), 0.01, np.array(zero, np.uint8))
        return net.model(net.conv(net.pair(net.input()), weights))

    return make


def _other_domain(zero: Any) -> Callable[[], Any]:
    return _pair(zero=zero, domain="com.microsoft")


def _scale_as_input() -> Any:
    net = Network()
    x = net.input()
    scale = net.input("scale", ())
    return net.model(net.conv(net.pair(x, scale)))


def _through(kind: str, *, zero: bool = False) -> Callable[[], Any]:
    """Scale or zero point that comes out of a Constant, an Identity or a Cast."""

    def change(net: Network) -> str:
        from onnx import TensorProto, numpy_helper

        value, dtype = (0, "int8") if zero else (0.05, "float32")
        if kind == "Constant":
            name = net.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))
        elif kind == "Identity":
            name = net.op("Identity", net.constant(value, dtype))
        else:
            name = net.op("Cast", net.constant(value, "int32" if zero else "float64"), to=TensorProto.INT8 if zero else TensorProto.FLOAT)
        return net.pair(net.input(), **{"zero" if zero else "scale": name})

    return _conv(change)


def _qlinear(kind: str) -> Callable[[], Any]:
    """One of the operators on integers."""

    def make() -> Any:
        net = Network()
        eight = kind in ("QLinearMatMul", "MatMulInteger")
        w = net.constant(np.ones((8, 8) if eight else (8, 8, 3, 3)), "int8")
        scale, zero = net.constant(0.05), net.constant(0, "int8")
        if kind == "DynamicQuantizeLinear":
            y = net.op(kind, net.input(), outputs=3, name="target")
            return net.model(y, dtype="UINT8")
        x = net.input(dtype="INT8")
        if kind in ("ConvInteger", "MatMulInteger"):
            return net.model(net.op(kind, x, w, name="target"), dtype="INT32")
        domain = {"domain": "com.microsoft"} if kind in ("QLinearAdd", "QGemm") else {}
        if kind == "QLinearAdd":
            return net.model(net.op(kind, x, scale, zero, x, scale, zero, scale, zero, name="target", **domain), dtype="INT8")
        if kind == "QGemm":
            flat = net.op("Reshape", x, net.constant([64, 8], "int64"))
            matrix = net.constant(np.ones((8, 8)), "int8")
            return net.model(net.op(kind, flat, scale, zero, matrix, scale, zero, "", scale, zero, name="target", **domain), dtype="INT8")
        return net.model(net.op(kind, x, scale, zero, w, scale, zero, scale, zero, name="target"), dtype="INT8")

    return make


def _product(kind: str, axis: int, **attributes: Any) -> Callable[[], Any]:
    """A Gemm or MatMul (16 -> 8) with one scale for each index of an axis of the weights."""

    def make() -> Any:
        net = Network()
        turned = attributes.get("transB", 0)
        sizes = (8, 16) if turned else (16, 8)
        weights = net.weights(sizes, np.full(sizes[axis], 0.01), axis=axis)
        return net.model(net.op(kind, net.pair(net.input("x", (4, 16))), weights, name="target", **attributes))

    return make


def _two_activations() -> Any:
    net = Network()
    x, y = net.pair(net.input("x", (1, 4, 8, 16))), net.pair(net.input("y", (1, 4, 16, 8)))
    return net.model(net.op("MatMul", x, y, name="target"))


def _moved_weights(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        net = Network()
        if kind == "Transpose":
            weights = net.op("Transpose", net.weights((8, 16)), perm=[1, 0])
            return net.model(net.op("MatMul", net.pair(net.input("x", (4, 16))), weights, name="target"))
        weights = net.op("Reshape", net.weights((8, 72)), net.constant([8, 8, 3, 3], "int64"))
        return net.model(net.conv(net.pair(net.input()), weights))

    return make


def _transposed_conv(axis: int | None, group: int = 1, **attributes: Any) -> Callable[[], Any]:
    def make() -> Any:
        net = Network()
        weights = net.weights((8, 8 // group, 3, 3), 0.01 if axis is None else np.full((8, 8 // group)[axis], 0.01), axis=axis)
        return net.model(net.op("ConvTranspose", net.pair(net.input()), weights, name="target", group=group, **attributes))

    return make


def _ranks(rank: int) -> Callable[[], Any]:
    """A Conv of one or three spatial axes."""

    def make() -> Any:
        net = Network()
        x = net.pair(net.input("x", (1, 8, *[8] * rank)))
        return net.model(net.op("Conv", x, net.weights((8, 8, *[3] * rank)), name="target"))

    return make


def _rounded_weights(net: Network) -> str:
    return net.pair(net.constant(np.linspace(-1, 1, 576).reshape(8, 8, 3, 3)), np.full(8, 0.01, np.float32), np.zeros(8, np.int8), axis=0)


def _bias(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        from onnx import TensorProto

        net = Network()
        x = net.pair(net.input())
        scale, zero = np.full(8, 0.001, np.float32), np.zeros(8, np.int8)
        if kind == "float":
            bias = net.constant(np.ones(8))
        elif kind == "int8":
            bias = net.dequantize(net.constant(np.ones(8), "int8"), scale, zero, axis=0)
        elif kind == "pair":
            bias = net.pair(net.constant(np.ones(8)), scale, zero, axis=0)
        else:
            integers = net.op("Cast", net.constant(np.ones(8), "int32"), to=TensorProto.FLOAT)
            bias = net.op("Mul", integers, net.constant(np.full(8, 0.001)))
        return net.model(net.conv(x, bias=bias))

    return make


def _halves(opset: int) -> Callable[[], Any]:
    """A network of float16 with scales of float16."""

    def make() -> Any:
        net = Network(opset)
        x = net.pair(net.input(dtype="FLOAT16"), np.float16(0.05))
        weights = net.dequantize(net.constant(np.ones((8, 8, 3, 3)), "int8"), np.full(8, 0.01, np.float16), np.zeros(8, np.int8), axis=0)
        return net.model(net.conv(x, weights, net.constant(np.ones(8), "float16")), dtype="FLOAT16")

    return make


def _shared(kind: str) -> Callable[[], Any]:
    """Weights, Dequantize or Quantize operators that several read, or that there are several times."""

    def make() -> Any:
        net = Network()
        x, weights = net.input(), net.weights()
        if kind == "weights":
            return net.model(net.conv(net.pair(net.conv(net.pair(x), weights)), weights))
        stored = net.quantize(x)
        if kind == "dequantize":
            real = net.dequantize(stored)
            return net.model(net.conv(real), net.conv(real))
        if kind == "quantize":
            return net.model(net.conv(net.dequantize(stored)), net.conv(net.dequantize(stored)))
        return net.model(net.conv(net.pair(x)), net.conv(net.pair(x)))

    return make


def _half_input() -> Any:
    from onnx import TensorProto

    net = Network()
    x = net.input(dtype="FLOAT16")
    return net.model(net.conv(net.pair(net.op("Cast", x, to=TensorProto.FLOAT))))


_TYPES = (
    Case("int8 data, zero point 3", _pair(zero=np.array(3, np.int8)), "parser", _SHIFTED),
    Case("int8 weights, zero point 3", _weights(zero=np.full(8, 3, np.int8)), "parser", _SHIFTED),
    Case("uint8 data, zero point 128", _pair(zero=np.array(128, np.uint8)), "parser", _SHIFTED),
    Case("uint8 data, zero point 0", _pair(zero=np.array(0, np.uint8)), "int8", "Defaulting to INT8"),
    Case("no zero point", _pair(zero=None), "int8"),
    Case("uint8 weights, zero point 0", _uint8_weights(0), "parser", "Found unsupported input type of UINT8"),
    Case("uint8 weights, zero point 128", _uint8_weights(128), "parser", "Found unsupported input type of UINT8"),
    Case("uint8 input, zero point 0", _after_dequantize("UINT8", np.array(0, np.uint8)), "parser", "Found unsupported input type of UINT8"),
    Case("int32 input", _after_dequantize("INT32", None), "parser", "input has type Int32 but must have type"),
    Case("int32 bias", _int32_bias, "parser", "input has type Int32 but must have type"),
    Case("int16 data", _pair(zero=np.array(0, np.int16)), "parser", "Failed to import initializer"),
    Case("uint16 data", _pair(zero=np.array(0, np.uint16)), "parser", "Failed to import initializer"),
    Case("int16 data, com.microsoft", _other_domain(np.array(0, np.int16)), "parser", "Failed to import initializer"),
    Case("int8 data, com.microsoft", _other_domain(INT8), "int8"),
    Case("uint4 weights", four_bits("UINT4"), "parser", "Failed to import initializer"),
    Case("float8e4m3fn, both", float8("FLOAT8E4M3FN"), "fp8"),
    Case("float8e4m3fn, both, sm120", float8("FLOAT8E4M3FN"), "fp8", capability="sm120"),
    Case("float8e4m3fn, both, sm86", float8("FLOAT8E4M3FN"), "builder", capability="sm86"),
    Case("float8e4m3fn, both, sm80", float8("FLOAT8E4M3FN"), "builder", capability="sm80"),
    Case("float8e4m3fn, both, sm75", float8("FLOAT8E4M3FN"), "builder", capability="sm75"),
    Case("float8e4m3fn weights", float8("FLOAT8E4M3FN", both=False, data=False), "float"),
    Case("float8e5m2", float8("FLOAT8E5M2"), "parser"),
    Case("float4e2m1 blocks", float4, "builder", "fp4_e2m1"),
    Case("float4e2m1 blocks, sm120", float4, "float", capability="sm120"),
    Case("int4 blocks, sm80", four_bits(), "blocks", capability="sm80"),
    Case("int4 blocks, sm75", four_bits(), "builder", capability="sm75"),
    Case("scale 0", _pair(0.0), "parser", "Scale coefficients must all be positive"),
    Case("scale below 0", _pair(-0.05), "parser", "Scale coefficients must all be positive"),
    Case("scale 0 of one channel", _weights(scale=[0.01] * 7 + [0]), "parser", "Scale coefficients must all be positive"),
    Case("scale 1e-40", _pair(1e-40), "int8"),
    Case("scale is an input", _scale_as_input, "dies"),
    *(Case(f"scale by {kind}", _through(kind), "int8") for kind in ("Constant", "Identity", "Cast")),
    *(Case(f"zero point by {kind}", _through(kind, zero=True), "int8") for kind in ("Constant", "Identity", "Cast")),
    Case("8 scales, one zero point", _weights(zero=INT8), "parser", "The scale and zero point must have the same volume"),
    *(
        Case(kind, _qlinear(kind), "parser", "false")
        for kind in ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")
    ),
    *(Case(kind, _qlinear(kind), "parser", "Plugin not found") for kind in ("QLinearAdd", "QGemm")),
    Case("MatMulNBits, float32", matmul_nbits(half=False), "parser"),
    Case("MatMulNBits, float16", matmul_nbits(half=True), "parser", "failed to load MatMulNBits plugin"),
    Case("MatMulNBits, float16, blocks of 16", matmul_nbits(half=True, block=16), "parser", "block_size must be one of 32/64/128"),
    *(
        Case(f"opset {opset}", _conv(weights=lambda net: net.weights(scale=0.01, zero=INT8, axis=None), opset=opset), "int8")
        for opset in range(10, 27)
    ),
)

_SCALES = (
    Case("data scale of rank 0", _pair(), "int8"),
    Case("data scale of shape [1]", _pair([0.05], np.zeros(1, np.int8)), "float"),
    Case("data scale per channel", _pair(np.full(8, 0.05, np.float32), np.zeros(8, np.int8), axis=1), "float"),
    Case("weight scale of rank 0", _weights(scale=0.01, zero=INT8, axis=None), "int8"),
    Case("weight scale of shape [1]", _weights(scale=[0.01], axis=None), "int8"),
    Case("weight scale per output channel", _weights(), "int8"),
    Case("weight scale along axis 1", _weights(axis=1), "float"),
    Case("weight scale without axis, 16 x 8", _weights((16, 8, 3, 3), axis=None), "parser", "not equal to the number of output channels"),
    Case("weight scale without axis, 8 x 8", _weights(axis=None), "float"),
    Case("Gemm, transB, axis 0", _product("Gemm", 0, transB=1), "int8"),
    Case("Gemm, axis 1", _product("Gemm", 1), "int8"),
    Case("MatMul, axis 1", _product("MatMul", 1), "int8"),
    Case("Gemm, transB, axis 1", _product("Gemm", 1, transB=1), "float"),
    Case("Gemm, axis 0", _product("Gemm", 0), "float"),
    Case("MatMul, axis 0", _product("MatMul", 0), "float"),
    Case("MatMul of two activations", _two_activations, "int8"),
    Case("weights by Transpose", _moved_weights("Transpose"), "int8"),
    Case("weights by Reshape", _moved_weights("Reshape"), "int8"),
    Case("ConvTranspose, axis 1", _transposed_conv(1), "float"),
    Case("ConvTranspose, axis 0", _transposed_conv(0), "float"),
    Case("ConvTranspose, per tensor", _transposed_conv(None), "float"),
    Case("ConvTranspose, 2 groups", _transposed_conv(1, 2), "float"),
    Case("ConvTranspose, strides and dilations", _transposed_conv(1, strides=[2, 2], dilations=[2, 2]), "builder", "Strided & Dilated"),
    Case("Conv, sm75", _conv(), "float", capability="sm75"),
    Case("MatMul, sm75", _product("MatMul", 1), "builder", "FP32 GEMM is not supported", capability="sm75"),
    Case("Conv 1-D", _ranks(1), "int8"),
    Case("Conv 3-D", _ranks(3), "int8"),
    Case("Conv, depthwise", _conv(weights=lambda net: net.weights((8, 1, 3, 3)), group=8), "int8"),
    Case("weights by Quantize", _conv(weights=_rounded_weights), "int8"),
    Case("float weights", _conv(weights=lambda net: net.constant(np.ones((8, 8, 3, 3)))), "float"),
    Case("float data", _conv(lambda net: net.input()), "float"),
    *(Case(f"bias: {kind}", _bias(kind), "int8") for kind in ("float", "int8", "pair", "Cast and Mul")),
    Case("float16", _halves(21), "int8"),
    Case("float16, opset 17", _halves(17), "int8"),
    Case("float16 input, float32 scales", _half_input, "int8"),
    *(Case(f"int4 blocks of {block}", four_bits(block=block), "blocks") for block in (16, 32, 128)),
    Case("int4, one block", four_bits(block=256), "float"),
    Case("int4 blocks along axis 1, Transpose", four_bits(axis=1, turned=True), "blocks"),
    Case("int4 blocks without zero point", four_bits(zero=False), "blocks"),
    Case("int4 blocks, float16", four_bits(half=True), "blocks"),
    Case("int4 per channel", weights_of_products("INT4", 1), "float"),
    Case("int4 per tensor", weights_of_products("INT4", None), "float"),
    Case("int8 blocks", weights_of_products("INT8", 0, 16), "float"),
    *(Case(f"shared: {kind}", _shared(kind), "int8") for kind in ("weights", "dequantize", "quantize", "neither")),
)

CASES = (*_TYPES, *_SCALES, *PLACEMENT)
