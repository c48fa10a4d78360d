"""Activations. On quantized tensors they keep the quantization, or round onto one that the call states or that PyTorch fixes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import Part, as_real, cast_operand, common_type
from qconvert.formats.torch.ops.unary import scale_values
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization, numpy_dtype
from qconvert.kernels.torch import FIXED_RESULTS
from qconvert.operators.values import Value, apply, sigmoid, where


def read_relu(c: Reading) -> str:
    """aten::relu, which keeps the quantization of a quantized tensor, and takes integers."""
    name = c.name()
    if c.is_real(name):
        return c.emit("Relu", [name])
    return c.emit("Max", [name, cast_operand(c, 0, c.lookup(name).dtype, "zero")])


def emit_clip(c: Reading, name: str, low: float | None, high: float | None) -> str:
    """Values within bounds; a quantized tensor keeps its quantization."""
    tensor = c.lookup(name)
    dtype = numpy_dtype("float32" if tensor.is_quantized else tensor.dtype)
    below = "" if low is None else c.const(np.asarray(low, dtype), "min")
    above = [] if high is None else [c.const(np.asarray(high, dtype), "max")]
    return c.emit("Clip", [name, *([below] if below or above else []), *above])


@with_arguments
def read_clip(c: Reading, low: str, high: str) -> str:
    """aten::clamp, hardtanh, clip, clamp_min, clamp_max, quantized::clamp: bounds are numbers, tensors, or absent."""
    bounds = [c.get(low), c.get(high)]
    stated = [bound for bound in bounds if bound is not None]
    name = c.name()
    if not c.lookup(name).is_quantized:
        name = cast_operand(c, name, common_type(c, [name, *stated]), "data")
    if not any(isinstance(bound, Ref) for bound in stated):
        return emit_clip(c, name, bounds[0], bounds[1])
    if c.lookup(name).is_quantized:
        raise c.unsupported_error("bounds for each element of a quantized tensor")
    result = name
    for kind, bound in zip(("Max", "Min"), bounds, strict=True):
        if bound is not None:
            result = c.emit(kind, [result, cast_operand(c, bound, c.lookup(name).dtype, "bound")])
    return result


@with_arguments
def read_bounded(c: Reading, /, kind: str, **attributes: Any) -> str:
    """aten::sigmoid, tanh, hardsigmoid: of quantized tensors to the quantization that PyTorch fixes for them."""
    tensor = c.operand()
    if not tensor.is_quantized:
        return c.emit(kind, [as_real(c)], **attributes)
    if tensor.dtype not in FIXED_RESULTS[kind]:
        raise c.unsupported_error(f"quantized data of {tensor.dtype}", rule="dtype-not-covered")
    return c.emit(kind, [tensor.name], quantization=Quantization.per_tensor(*FIXED_RESULTS[kind][tensor.dtype]), **attributes)


@with_arguments
def read_function(c: Reading, /, kind: str, **numbers: str) -> str:
    """A function of float values with numbers of the call as attributes, rounded once to the quantization that it states or keeps."""
    attributes: dict[str, Any] = {attribute: c.number(argument) for attribute, argument in numbers.items()}
    return c.emit(kind, [as_real(c)], quantization=_stated_quantization(c), **attributes)


def _stated_quantization(c: Reading) -> Quantization | None:
    """The quantization that a quantized:: operator states for its result; that of the data for one of aten."""
    return c.output_quantization() if "output_scale" in c else c.operand().quantization


def read_rrelu(c: Reading) -> str:
    """aten::rrelu of a model that is not trained: the middle of its slopes."""
    if c["training"]:
        raise c.unsupported_error("training mode", rule="training-mode")
    return c.emit("LeakyRelu", [as_real(c)], alpha=(c.number("lower") + c.number("upper")) / 2)


def read_elu(c: Reading) -> str:
    """elu: scale * x above 0, scale * alpha * (exp(input_scale * x) - 1) below.

    Of u = input_scale * x this is gamma * u and gamma * (alpha * input_scale) * (exp(u) - 1) with gamma = scale / input_scale: a Selu.
    """
    alpha, scale, inner = c.number("alpha"), c.number("scale"), c.number("input_scale")
    quantization, name = _stated_quantization(c), as_real(c)
    if scale == inner == 1:
        return c.emit("Elu", [name], quantization=quantization, alpha=alpha)
    if inner <= 0:
        raise c.unsupported_error(f"input_scale {inner}")
    if inner != 1:
        name = stretch(c, name, inner)
    return c.emit("Selu", [name], quantization=quantization, gamma=scale / inner, alpha=alpha * inner)


def stretch(c: Reading, name: str, factor: float) -> str:
    """Float values times a positive number: of a quantized tensor the same integers with another quantization."""
    held = c.lookup(name).quantization
    if held is None:
        return scale_values(c, name, factor, "stretched")
    quantization = Quantization.per_tensor(float(np.float32(held.scale[0] * factor)), held.point)
    return c.emit("Reinterpret", [name], quantization=quantization, hint="stretched")


def read_prelu(c: Reading) -> str:
    """prelu: x from 0 on, weight * x below, with one weight, or one for each channel.

    quantized::prelu means the same. PyTorch 2.13 computes something else: it multiplies values above 0 too.
    """
    name, weight, rank = as_real(c), c.operand("weight"), c.rank()
    count = weight.static_shape
    if count is None or len(count) > 1:
        raise c.unsupported_error(f"weights of shape {weight.shape}", rule="shape-not-covered")
    slopes = weight.name
    if rank == 0 and count:
        slopes = c.emit("Reshape", [slopes, c.list64([], "weight_shape")], hint="weight")
    if rank > 2 and count not in ((), (1,)):
        slopes = c.emit("Reshape", [slopes, c.list64([-1, *[1] * (rank - 2)], "weight_shape")], hint="weight")
    return c.emit("PRelu", [name, slopes], quantization=_stated_quantization(c))


def read_softplus(c: Reading) -> Value:
    """aten::softplus: log(1 + exp(beta * x)) / beta. Above the threshold it is x, which in float32 it is anyway from 17 on."""
    beta, threshold, x = c.number("beta"), c.number("threshold"), Part(c, as_real(c))
    hint = "" if threshold >= 17 else "curve"
    curve = apply("Softplus", x, hint=hint) if beta == 1 else apply("Mul", apply("Softplus", x * beta), 1 / beta, hint=hint)
    return curve if threshold >= 17 else where(apply("Greater", x, threshold / beta), x, curve, hint="")


@with_arguments
def read_shrink(c: Reading, soft: bool) -> str:
    """aten::hardshrink and softshrink: 0 within ±lambda."""
    limit = c.number("lambd")
    return c.emit("Shrink", [as_real(c)], quantization=None, lambd=limit, bias=limit if soft else 0.0)


def read_threshold(c: Reading) -> str:
    """threshold: x above the threshold, else a value, which a quantized tensor rounds to its quantization."""
    name, limit, value = c.name(), c.number("threshold"), c.number("value")
    tensor = c.lookup(name)
    if value == 0:
        return c.emit("ThresholdedRelu", [as_real(c)], alpha=limit)
    above = c.emit("Greater", [name, c.real_constant(limit, name, "threshold")], hint="above")
    other = c.real_constant(value, name, "value")
    if tensor.quantization is not None:
        other = c.emit("Quantize", [other], dtype=tensor.dtype, quantization=tensor.quantization, hint="stored_value")
    return c.emit("Where", [above, name, other])


@with_arguments
def read_softmax(c: Reading, kind: str) -> str:
    """softmax and log_softmax along an axis; quantized::softmax states the quantization of its result."""
    axis, rank = c.integer("dim"), c.operand().rank
    if rank is not None:
        axis = c.axis(axis, max(rank, 1))
    name = as_real(c)
    if "output_scale" in c:
        return c.emit(kind, [name], quantization=_stated_quantization(c), axis=axis)
    c.require_plain(name)
    wanted = c.dtype("dtype") if "dtype" in c else None
    if wanted is not None:
        name = cast_operand(c, name, wanted, "data")
    return c.emit(kind, [name], axis=axis)


def read_glu(c: Reading) -> Value:
    """aten::glu: the first half of an axis times the sigmoid of the second."""
    axis = c.axis_of()
    size = c.size(axis)
    if not isinstance(size, int) or size % 2:
        raise c.unsupported_error(f"an axis of size {size}", rule="shape-not-covered")
    halves = c.emit_several("Split", [c.name(), c.list64([size // 2] * 2, "sizes")], 2, quantization=None, hint="half", axis=axis)
    return apply("Mul", Part(c, halves[0]), sigmoid(Part(c, halves[1])), hint="")


_CLAMP = "T self, x? min=None, x? max=None"
_GRID = "f output_scale, i output_zero_point"
_SIXTH = {"alpha": 1 / 6, "beta": 0.5}

OPERATORS: Mapping[str, ReadFunction] = {
    "aten::relu(T self)": read_relu,
    "aten::relu6(T self)": lambda c: emit_clip(c, c.name(), 0.0, 6.0),
    "quantized::relu6(q self, b inplace=False)": lambda c: emit_clip(c, c.name(), 0.0, 6.0),
    f"aten::clamp|clip|quantized::clamp({_CLAMP})": read_clip("min", "max"),
    "aten::clamp_min(T self, x min)": read_clip("min", ""),
    "aten::clamp_max(T self, x max)": read_clip("", "max"),
    "aten::hardtanh(T self, f min_val=-1, f max_val=1)": read_clip("min_val", "max_val"),
    "aten::sigmoid|special_expit(T self)": read_bounded("Sigmoid"),
    "aten::hardsigmoid(T self)": read_bounded("HardSigmoid", **_SIXTH),
    "aten::tanh(T self)": read_bounded("Tanh"),
    f"quantized::sigmoid(q self, {_GRID})": read_function("Sigmoid"),
    f"quantized::hardswish(q self, {_GRID})": read_function("HardSwish"),
    "aten::hardswish(T self)": read_function("HardSwish"),
    "aten::leaky_relu(T self, f negative_slope=0.01)": read_function("LeakyRelu", alpha="negative_slope"),
    f"quantized::leaky_relu(q self, f negative_slope, b inplace, {_GRID})": read_function("LeakyRelu", alpha="negative_slope"),
    "aten::rrelu(T self, f lower=0.125, f upper=0.3333333333333333, b training=False, o? generator=None)": read_rrelu,
    "aten::elu(T self, f alpha=1, f scale=1, f input_scale=1)": read_elu,
    f"quantized::elu(q self, {_GRID}, f alpha=1, f scale=1, f input_scale=1)": read_elu,
    "aten::celu(T self, f alpha=1)": read_function("Celu", alpha="alpha"),
    f"quantized::celu(q self, {_GRID}, f alpha=1)": read_function("Celu", alpha="alpha"),
    "aten::selu(T self)": read_function("Selu"),
    "aten::prelu|_prelu_kernel(T self, T weight)": read_prelu,
    f"quantized::prelu(q self, q weight, {_GRID})": read_prelu,
    "aten::gelu(T self, s approximate='none')": lambda c: c.emit("Gelu", [as_real(c)], approximate=c["approximate"]),
    "aten::silu(T self)": read_function("Swish"),
    "aten::mish(T self)": read_function("Mish"),
    "aten::softplus(T self, f beta=1, f threshold=20)": read_softplus,
    "aten::hardshrink(T self, f lambd=0.5)": read_shrink(soft=False),
    "aten::softshrink(T self, f lambd=0.5)": read_shrink(soft=True),
    "aten::threshold|quantized::threshold(T self, f threshold, f value)": read_threshold,
    "aten::softmax|_safe_softmax(T self, i dim, i? dtype=None)": read_softmax("Softmax"),
    "aten::_softmax(T self, i dim, b half_to_float)": read_softmax("Softmax"),
    f"quantized::softmax(q self, i dim, {_GRID})": read_softmax("Softmax"),
    "aten::log_softmax(T self, i dim, i? dtype=None)": read_softmax("LogSoftmax"),
    "aten::_log_softmax(T self, i dim, b half_to_float)": read_softmax("LogSoftmax"),
    "aten::glu(T self, i dim=-1)": read_glu,
    "aten::log_sigmoid(T self)": lambda c: apply("Neg", apply("Softplus", -Part(c, as_real(c))), hint=""),
}
