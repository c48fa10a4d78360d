"""Convolutions of plain tensors, in the forms that PyTorch's programs have before and after its decompositions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import find_dequantized_source, read_batched, rearrange_constant
from qconvert.formats.torch.reading import ReadFunction, Reading
from qconvert.graph import Quantization
from qconvert.operators.sizes import swapped_weights


def _sizes(c: Reading, spatial: int) -> dict[str, Any]:
    """Strides, dilations and groups."""
    sizes = {"strides": c.integers("stride", spatial), "dilations": c.integers("dilation", spatial)}
    if any(len(values) != spatial for values in sizes.values()):
        raise c.invalid(f"the strides and dilations {sizes} are not of {spatial} axes", rule="counts-differ")
    return {**sizes, "group": c.integer("groups"), "data_format": "channels_first"}


def _emit_conv(c: Reading, spatial: int) -> str:
    """A convolution; data without a batch get one."""
    sizes = _sizes(c, spatial)
    pads = _named_padding(c, sizes, spatial) if isinstance(c["padding"], str) else c.integers("padding", spatial) * 2
    factors = [c.name("weight"), *c.names("bias")]
    return read_batched(c, "input", spatial, lambda name: c.emit("Conv", [name, *factors], quantization=None, pads=pads, **sizes))


def _named_padding(c: Reading, sizes: dict[str, Any], spatial: int) -> tuple[int, ...]:
    """Of "same": what is odd goes after."""
    if c["padding"] == "valid":
        return (0,) * (2 * spatial)
    kernel = c.lookup(c.name("weight")).static_shape
    if c["padding"] != "same" or kernel is None or any(stride != 1 for stride in sizes["strides"]):
        raise c.unsupported_error(f"padding {c['padding']!r} and strides {sizes['strides']}", rule="form-not-covered")
    totals = [step * (size - 1) for step, size in zip(sizes["dilations"], kernel[2:], strict=True)]
    return (*(total // 2 for total in totals), *(total - total // 2 for total in totals))


def _emit_conv_transpose(c: Reading, spatial: int) -> str:
    """A transposed convolution, whose weights PyTorch has as I,O/groups,spatial."""
    sizes, groups, shape = _sizes(c, spatial), c.integer("groups"), c.static_shape("weight")
    if len(shape) != spatial + 2 or groups < 1 or shape[0] % groups:
        raise c.invalid(f"{groups} groups do not fit weights of shape {shape} for {spatial} axes", rule="counts-differ")
    name = c.name("weight")
    weights = (
        find_dequantized_source(c, name, lambda data: swapped_weights(data, groups))
        or rearrange_constant(
            c, name, lambda data: swapped_weights(data, groups), lambda quantization: _repeat_group_scales(c, quantization, groups)
        )
        or _transpose_weights(c, groups, spatial)
    )
    pads, padding = c.integers("padding", spatial) * 2, c.integers("output_padding", spatial)
    factors = [weights, *c.names("bias")]
    return read_batched(
        c,
        "input",
        spatial,
        lambda name: c.emit("ConvTranspose", [name, *factors], quantization=None, pads=pads, output_padding=padding, **sizes),
    )


def _repeat_group_scales(c: Reading, quantization: Quantization, groups: int) -> Quantization:
    """Scales along the outputs of a group, for all groups."""
    if quantization.axis is None:
        return quantization
    if quantization.axis != 1 and not (
        quantization.axis == 0
        and (quantization.scale == quantization.scale[0]).all()
        and (quantization.zero_point == quantization.zero_point[0]).all()
    ):
        raise c.unsupported_error("scales along the inputs of a transposed convolution", rule="form-not-covered")
    if quantization.axis == 0:
        return Quantization.per_tensor(quantization.step, quantization.point)
    return Quantization(np.tile(quantization.scale, groups), np.tile(quantization.zero_point, groups), 0)


def _transpose_weights(c: Reading, groups: int, spatial: int) -> str:
    """Weights that are computed at run time, with the outputs first."""
    name = c.name("weight")
    if groups == 1:
        return c.emit("Transpose", [name], hint="weights", perm=(1, 0, *range(2, spatial + 2)))
    inputs, outputs, *kernel = c.static_shape("weight")
    split = c.emit("Reshape", [name, c.list64([groups, inputs // groups, outputs, *kernel], "split_shape")], hint="split")
    turned = c.emit("Transpose", [split], hint="turned", perm=(0, 2, 1, *range(3, spatial + 3)))
    return c.emit("Reshape", [turned, c.list64([groups * outputs, inputs // groups, *kernel], "weights_shape")], hint="weights")


def read_conv(c: Reading) -> str:
    """aten::conv1d, 2d, 3d: padding by numbers, or "same" and "valid"."""
    return _emit_conv(c, c.spatial)


def read_transposed(c: Reading) -> str:
    """aten::conv_transpose1d, 2d, 3d."""
    return _emit_conv_transpose(c, c.spatial)


def read_convolution(c: Reading) -> str:
    """aten::convolution, what PyTorch's decompositions make of all convolutions."""
    shape = c.operand("weight").shape
    spatial = len(c.integers("stride")) if shape is None else len(shape) - 2
    return _emit_conv_transpose(c, spatial) if c["transposed"] else _emit_conv(c, spatial)


_CONV = "T input, T weight, T? bias=None, l stride=1"
_CONVOLUTION = "T input, T weight, T? bias, l stride, l padding, l dilation, b transposed, l output_padding, i groups"

OPERATORS: Mapping[str, ReadFunction] = {
    f"aten::conv#d({_CONV}, l padding=0, l dilation=1, i groups=1)": read_conv,
    f"aten::conv#d({_CONV}, s padding='valid', l dilation=1, i groups=1)": read_conv,
    f"aten::conv_transpose#d({_CONV}, l padding=0, l output_padding=0, i groups=1, l dilation=1)": read_transposed,
    "aten::_convolution_mode(T input, T weight, T? bias, l stride, s padding, l dilation, i groups)": lambda c: _emit_conv(
        c, c.rank("weight") - 2
    ),
    f"aten::convolution({_CONVOLUTION})": read_convolution,
    f"aten::_convolution({_CONVOLUTION}, b benchmark, b deterministic, b cudnn_enabled, b allow_tf32=True)": read_convolution,
}
