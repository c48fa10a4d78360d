"""Normalizations: parameters that a layer does not have are 1 and 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qconvert.formats.torch.operands import as_real
from qconvert.formats.torch.reading import ReadFunction, Reading, with_unused
from qconvert.formats.torch.values import Uncomputed
from qconvert.graph import Quantization, Shape, numpy_dtype

#: The most elements of a parameter that a file does not hold.
_MOST = 2**24


def _parameter(c: Reading, argument: str, default: float, shape: Sequence[int]) -> str:
    """The name of a parameter; one that is absent has one value everywhere."""
    if c[argument] is not None:
        return c.name(argument)
    if math.prod(shape) > _MOST:
        raise c.invalid(f"the parameters have the shape {tuple(shape)}", rule="shape-mismatch")
    tensor = c.operand()
    return c.const(np.full(tuple(shape), default, numpy_dtype("float32" if tensor.is_quantized else tensor.dtype)), argument)


def _factors(c: Reading, shape: Sequence[int]) -> list[str]:
    """The names of the factors and summands of each channel."""
    return [_parameter(c, "weight", 1.0, shape), _parameter(c, "bias", 0.0, shape)]


def _channels(c: Reading, *arguments: str) -> int:
    """How many channels the data have, by their shape or by that of a parameter."""
    shape = c.operand().shape
    if shape is not None and len(shape) > 1 and isinstance(shape[1], int):
        return shape[1]
    for argument in arguments:
        if c[argument] is not None and (static := c.operand(argument).static_shape):
            return static[0]
    raise c.unknown_shape()


def _quantization(c: Reading) -> Quantization | None:
    """The quantization that a quantized:: operator states for its result."""
    return c.output_quantization() if "output_scale" in c else None


def _batch_norm(c: Reading) -> str:
    """A batch norm by stored statistics."""
    if c["running_mean"] is None or c["running_var"] is None:
        raise c.unsupported_error("statistics of the batch; export the model after eval(),", rule="training-mode")
    count = [_channels(c, "running_mean")]
    names = [*_factors(c, count), c.name("running_mean"), c.name("running_var")]
    inputs, hint = [as_real(c), *names], "normalized" if c.activation else ""
    whole = c.emit(
        "BatchNormalization", inputs, quantization=_quantization(c), hint=hint, epsilon=c.number("eps"), data_format="channels_first"
    )
    return c.emit("Relu", [whole]) if c.activation else whole  # a Relu commutes with rounding to a quantization


def read_batch_norm(c: Reading) -> str:
    """aten::batch_norm of a model that is not trained, quantized::batch_norm, also with a Relu."""
    if c.get("training"):
        raise c.unsupported_error("training mode; export the model after eval(),", rule="training-mode")
    return _batch_norm(c)


def read_layer_norm(c: Reading) -> str:
    """layer_norm over the last axes, quantized::layer_norm."""
    shape = c.integers("normalized_shape")
    factors = [_parameter(c, "weight", 1.0, shape), *c.names("bias")]
    return c.emit("LayerNormalization", [as_real(c), *factors], quantization=_quantization(c), axis=-len(shape), epsilon=c.number("eps"))


def read_rms_norm(c: Reading) -> str:
    """aten::rms_norm over the last axes; an epsilon that is not stated is that of the type."""
    shape, name = c.integers("normalized_shape"), as_real(c)
    epsilon = c.number("eps") if c["eps"] is not None else float(np.finfo(numpy_dtype(c.lookup(name).dtype)).eps)
    return c.emit("RMSNormalization", [name, _parameter(c, "weight", 1.0, shape)], quantization=None, axis=-len(shape), epsilon=epsilon)


def read_group_norm(c: Reading) -> str:
    """group_norm, quantized::group_norm."""
    count = [_channels(c, "weight", "bias")]
    names = [as_real(c), *_factors(c, count)]
    groups, epsilon = c.integer("num_groups" if "num_groups" in c else "group"), c.number("eps")
    return c.emit(
        "GroupNormalization", names, quantization=_quantization(c), num_groups=groups, epsilon=epsilon, data_format="channels_first"
    )


def read_instance_norm(c: Reading) -> str:
    """instance_norm by statistics of each instance, or by stored ones; quantized::instance_norm."""
    if "use_input_stats" in c and not c["use_input_stats"]:
        return _batch_norm(c)
    count = [_channels(c, "weight", "bias")]
    names = [as_real(c), *_factors(c, count)]
    return c.emit("InstanceNormalization", names, quantization=_quantization(c), epsilon=c.number("eps"), data_format="channels_first")


def read_batch_norm_legit(c: Reading) -> str:
    """aten::_native_batch_norm_legit without stored statistics: a decomposed instance norm, with the instances as channels."""
    shape = c.operand().shape
    if not c["training"] or shape is None or shape[0] != 1:
        raise c.unsupported_error("statistics of the batch; export the model after eval(),", rule="training-mode")
    return read_instance_norm(c) if isinstance(shape[1], int) else _normalize_over_space(c, shape)


def _normalize_over_space(c: Reading, shape: Shape) -> str:
    """Instance norm of a dynamic number of channels: each channel over its positions, then the channels' parameters."""
    if any(isinstance(size, str) for size in shape[2:]):
        raise c.unknown_shape()
    factors = [c.const(np.ones([int(size) for size in shape[2:]], np.float32), "ones")]
    parameters = [(kind, c.name(name)) for kind, name in (("Mul", "weight"), ("Add", "bias")) if c[name] is not None]
    hints = ["standardized", *("scaled" for _ in parameters[1:]), ""] if parameters else [""]
    result = c.emit("LayerNormalization", [as_real(c), *factors], quantization=None, hint=hints[0], axis=2, epsilon=c.number("eps"))
    for (kind, name), hint in zip(parameters, hints[1:], strict=True):
        upright = c.emit("Reshape", [name, c.list64([-1, *[1] * (len(shape) - 2)], f"{kind}/shape")], hint=f"{kind}/upright")
        result = c.emit(kind, [result, upright], hint=hint)
    return result


#: Statistics that only training uses.
_UNUSED = Uncomputed("the statistics of a normalization")
_AFFINE = "T? weight=None, T? bias=None"
_REQUIRED = "T? weight, T? bias"
_STATISTICS = "T? running_mean, T? running_var"
_GRID = "f output_scale, i output_zero_point"
_STATED = f"T input, {_REQUIRED}, T running_mean, T running_var, f eps, {_GRID}"
_TRAINABLE = f"T input, {_REQUIRED}, {_STATISTICS}, b training, f momentum, f eps"

OPERATORS: Mapping[str, ReadFunction] = {
    f"aten::batch_norm({_TRAINABLE}, b cudnn_enabled=False)": read_batch_norm,
    f"aten::native_batch_norm|_native_batch_norm_legit({_TRAINABLE})": with_unused(read_batch_norm, _UNUSED, 2),
    f"aten::cudnn_batch_norm({_TRAINABLE})": with_unused(read_batch_norm, _UNUSED, 3),
    f"aten::_native_batch_norm_legit(T input, {_REQUIRED}, b training, f momentum, f eps)": with_unused(read_batch_norm_legit, _UNUSED, 2),
    f"aten::_native_batch_norm_legit_no_training(T input, {_REQUIRED}, {_STATISTICS}, f momentum, f eps)": with_unused(
        read_batch_norm, _UNUSED, 2
    ),
    f"aten::_batch_norm_no_update(T input, {_REQUIRED}, {_STATISTICS}, f momentum, f eps)": with_unused(read_batch_norm, _UNUSED, 3),
    f"quantized::batch_norm|batch_norm#d|batch_norm_relu|batch_norm#d_relu|aten::quantized_batch_norm({_STATED})": read_batch_norm,
    f"aten::layer_norm(T input, l normalized_shape, {_AFFINE}, f eps=1e-05, b cudnn_enable=True)": read_layer_norm,
    f"quantized::layer_norm(T input, l normalized_shape, {_REQUIRED}, f eps, {_GRID})": read_layer_norm,
    f"aten::native_layer_norm(T input, l normalized_shape, {_REQUIRED}, f eps)": with_unused(read_layer_norm, _UNUSED, 2),
    "aten::rms_norm(T input, l normalized_shape, T? weight=None, f? eps=None)": read_rms_norm,
    "aten::_fused_rms_norm(T input, l normalized_shape, T? weight, f? eps)": with_unused(read_rms_norm, _UNUSED),
    f"aten::group_norm(T input, i num_groups, {_AFFINE}, f eps=1e-05, b cudnn_enabled=True)": read_group_norm,
    f"quantized::group_norm(T input, i num_groups, {_REQUIRED}, f eps, {_GRID})": read_group_norm,
    f"aten::native_group_norm(T input, {_REQUIRED}, i N, i C, i HxW, i group, f eps)": with_unused(read_group_norm, _UNUSED, 2),
    f"aten::instance_norm(T input, {_REQUIRED}, {_STATISTICS}, b use_input_stats, f momentum, f eps, b cudnn_enabled)": read_instance_norm,
    f"quantized::instance_norm(T input, {_REQUIRED}, f eps, {_GRID})": read_instance_norm,
}
