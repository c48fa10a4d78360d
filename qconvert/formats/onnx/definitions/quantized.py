"""Definitions of onnxruntime's operators on integers in the forms that are not read as one operator: what they mean in float, between
DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

import math

import numpy as np

from qconvert.formats.onnx.definitions.decomposition import Decomposition, Definition, NoDefinitionError
from qconvert.formats.onnx.signatures import CONTRIB


def _real(s: Decomposition, index: int, scale: int, axis: int | None = None) -> str:
    """The float values of input `index`, whose scale and zero point are the inputs from `scale` on."""
    along = axis if axis is not None and math.prod(s.shape(scale)) > 1 else None
    return s("DequantizeLinear", s.input(index), s.input(scale), s.input(scale + 1), axis=along)


def _end(s: Decomposition, value: str, scale: int) -> None:
    """The result with its quantization, or as it is where the node names no quantization."""
    s.end(s("QuantizeLinear", value, s.input(scale), s.input(scale + 1)) if s.input(scale) else value)


def _qgemm(s: Decomposition) -> None:
    """QGemm with any factor alpha and any C: alpha * (A' @ B' + C), C being int32 at the scale of the products."""
    turned = bool(s.attribute("transB", 0))
    a, b = _real(s, 0, 1), _real(s, 3, 4, 0 if turned else 1)
    a = s("Transpose", a, perm=[1, 0]) if s.attribute("transA", 0) else a
    alpha = float(s.attribute("alpha", 1.0))
    product = s("Gemm", a, b, transB=int(turned))
    if s.input(6):
        scales = s.known(1).reshape(-1).astype(np.float32) * s.known(4).reshape(-1).astype(np.float32)
        product = s("Add", product, s("Mul", s("Cast", s.input(6), to=1), s.const(scales if scales.size > 1 else scales.reshape(()))))
    _end(s, s("Mul", product, s.const(np.float32(alpha))) if alpha != 1 else product, 7)


def _softmax(s: Decomposition) -> None:
    """QLinearSoftmax of an opset before 13: all axes from one on together."""
    if int(s.attribute("opset", 13)) >= 13:
        raise NoDefinitionError("one axis")
    axis, shape = s.axis(default=1), s.shape()
    rows = s("Reshape", _real(s, 0, 1), s.ints(math.prod(shape[:axis]), math.prod(shape[axis:])))
    _end(s, s("Reshape", s("Softmax", rows, axis=-1), s.ints(*shape)), 3)


def _channels_last(kind: str, *names: str, domain: str = CONTRIB) -> Definition:
    """An operator on integers of channels-last data: the same after a Transpose of the integers, and one before the result."""

    def define(s: Decomposition) -> None:
        rank = s.rank()
        if (not s.attribute("channels_last", 0) and kind != "MaxPool") or rank < 3:
            raise NoDefinitionError("channels first")
        front, back = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
        given = [s.input(index) for index in range(1, len(s.op.inputs))]
        value = s(kind, s("Transpose", s.x, perm=front), *given, domain=domain, **s.attributes(*names))
        s.end(s("Transpose", value, perm=back))

    return define


_WINDOW = ("auto_pad", "ceil_mode", "kernel_shape", "pads", "strides")

DEFINITIONS: dict[str, Definition] = {
    "com.microsoft.QGemm": _qgemm,
    "com.microsoft.QLinearSoftmax": _softmax,
    "com.microsoft.QLinearConv": _channels_last(
        "QLinearConv", "auto_pad", "kernel_shape", "pads", "strides", "dilations", "group", domain=""
    ),
    "com.microsoft.QLinearAveragePool": _channels_last("QLinearAveragePool", *_WINDOW, "count_include_pad"),
    "com.microsoft.QLinearGlobalAveragePool": _channels_last("QLinearGlobalAveragePool"),
    "com.microsoft.NhwcMaxPool": _channels_last("MaxPool", *_WINDOW, "dilations", domain=""),
}
