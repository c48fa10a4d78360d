"""Convolutions and linear layers: quantized ones with packed parameters, and those on plain tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Packed, Ref
from qconvert.graph import Array, Quantization

__all__ = ["OPERATORS"]


def _bias(c: Call, packed: Packed) -> list[str]:
    """The bias as it is stored: real, which only qnnpack rounds to integers."""
    return [] if packed.bias is None else [c.stored(packed.bias, f"{packed.name}.bias")]


def _kernel(c: Call, packed: Packed, spatial: int) -> tuple[str, dict[str, Any]]:
    """The weights as O,I,spatial, and the sizes along as many axes; layers of one axis are stored as of two."""
    data, axis = packed.weight.data, packed.weight.axis
    cut = len(packed.weight.shape) - 2 - spatial
    if cut < 0 or any(size != 1 for size in packed.weight.shape[2 : 2 + cut]):
        raise c.invalid(f"weights of shape {packed.weight.shape} for {spatial} axes")
    data = data.reshape(*data.shape[:2], *data.shape[2 + cut :]) if cut else data
    if packed.transposed:
        if axis is not None and (axis != 1 or packed.groups != 1):
            raise c.unsupported("scales of a transposed convolution along its inputs, or in groups,")
        data, axis = outputs_first(data, packed.groups), 0
    name = c.stored(packed.weight, f"{packed.name}.weight", data, axis)
    sizes = {"strides": packed.stride[cut:], "dilations": packed.dilation[cut:], "pads": packed.padding[cut:] * 2, "group": packed.groups}
    return name, {**sizes, "data_format": "channels_first"}


def outputs_first(data: Array, groups: int) -> Array:
    """Weights of a transposed convolution, I,O/groups,spatial, as O,I/groups,spatial."""
    inputs, outputs, *kernel = data.shape
    split = data.reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
    return split.reshape(groups * outputs, inputs // groups, *kernel)


def read_quantized_conv(spatial: int, activation: str = "") -> Operator:
    """quantized::conv1d, 2d, 3d, each also with a Relu."""

    def read(c: Call) -> Ref:
        packed, data = c.packed("packed_weight"), c.operand("qx")
        weights, sizes = _kernel(c, packed, spatial)
        grid = c.grid("output_scale", "output_zero_point", data.dtype)
        return c.emit("Conv", [data.name, weights, *_bias(c, packed)], grid=grid, activation=activation, **sizes)

    return Operator("T qx, o packed_weight, f output_scale, i output_zero_point", read)


def read_quantized_conv_transpose(spatial: int) -> Operator:
    """quantized::conv_transpose1d, 2d, 3d."""

    def read(c: Call) -> Ref:
        packed, data = c.packed("packed_weight"), c.operand("qx")
        weights, sizes = _kernel(c, packed, spatial)
        grid = c.grid("output_scale", "output_zero_point", data.dtype)
        padding = packed.output_padding[len(packed.output_padding) - spatial :]
        return c.emit("ConvTranspose", [data.name, weights, *_bias(c, packed)], grid=grid, output_padding=padding, **sizes)

    return Operator("T qx, o packed_weight, f output_scale, i output_zero_point", read)


def read_quantized_linear(activation: str = "") -> Operator:
    """quantized::linear, also with a Relu: data of any rank."""

    def read(c: Call) -> Ref:
        packed = c.packed("W_prepack")
        weights = c.stored(packed.weight, f"{packed.name}.weight")
        grid = c.grid("Y_scale_i", "Y_zero_point_i", c.operand("X").dtype)
        return _rows(c, "X", [weights, *_bias(c, packed)], grid, activation)

    return Operator("T X, o W_prepack, f Y_scale_i, i Y_zero_point_i", read)


def _rows(c: Call, data: str, factors: Sequence[str], grid: Quantization | None, activation: str = "") -> Ref:
    """A Gemm on the rows of data of any rank, which keep their leading sizes."""
    tensor, rank = c.operand(data), c.rank(data)
    if rank == 2:
        return c.emit("Gemm", [tensor.name, *factors], grid=grid, activation=activation)
    weights = c.lookup(factors[0]).static_shape
    if weights is None or len(weights) != 2 or rank < 1:
        raise c.invalid(f"weights of shape {weights} beside data of rank {rank}")
    flat = c.emit("Reshape", [tensor.name, c.list64([-1, weights[1]], "rows_shape")], hint="data_rows")
    result = c.emit("Gemm", [flat.name, *factors], grid=grid, activation=activation, hint="rows")
    leading = (tensor.shape or ())[:-1]
    if sum(isinstance(size, str) for size in leading) <= 1:
        sizes = [-1 if isinstance(size, str) else size for size in leading]
        return c.emit("Reshape", [result.name, c.list64([*sizes, weights[0]], "shape")])
    whole = c.emit("Shape", [tensor.name], dtype="int64", grid=None, hint="data_shape")
    bounds = [c.list64([value], hint) for value, hint in ((0, "first"), (rank - 1, "last"), (0, "axis"))]
    kept = c.emit("Slice", [whole.name, *bounds], hint="leading")
    shape = c.emit("Concat", [kept.name, c.list64([weights[0]], "outputs")], hint="shape", axis=0)
    return c.emit("Reshape", [result.name, shape.name])


def read_conv(spatial: int) -> list[Operator]:
    """aten::conv1d, 2d, 3d on plain tensors; padding by numbers, or "same" and "valid"."""

    head, rest = "T input, T weight, T? bias=None, l stride=1", "l dilation=1, i groups=1"
    return [Operator(f"{head}, {padding}, {rest}", lambda c: _convolution(c, spatial)) for padding in ("l padding=0", "s padding='valid'")]


def _convolution(c: Call, spatial: int) -> Ref:
    data = [c.name("input"), c.name("weight"), *([c.name("bias")] if c["bias"] is not None else [])]
    sizes: dict[str, Any] = {
        "strides": c.integers("stride", spatial),
        "dilations": c.integers("dilation", spatial),
        "group": c.integer("groups"),
    }
    pads = _named_padding(c, sizes, spatial) if isinstance(c["padding"], str) else c.integers("padding", spatial) * 2
    if c.rank("input") == spatial + 2:
        return c.emit("Conv", data, pads=pads, data_format="channels_first", **sizes)
    if c.rank("input") != spatial + 1:
        raise c.invalid(f"data of rank {c.rank('input')} for a convolution along {spatial} axes")
    data[0] = c.emit("Unsqueeze", [data[0], c.list64([0], "axis")], hint="batch").name
    result = c.emit("Conv", data, hint="of_batch", pads=pads, data_format="channels_first", **sizes)
    return c.emit("Squeeze", [result.name, c.list64([0], "axis")])


def _named_padding(c: Call, sizes: dict[str, Any], spatial: int) -> tuple[int, ...]:
    """Of "same": what is odd goes behind."""
    if c["padding"] == "valid":
        return (0,) * (2 * spatial)
    kernel = c.lookup(c.name("weight")).static_shape
    if c["padding"] != "same" or kernel is None or any(stride != 1 for stride in sizes["strides"]):
        raise c.unsupported(f"padding {c['padding']!r} beside strides {sizes['strides']}")
    totals = [step * (size - 1) for step, size in zip(sizes["dilations"], kernel[2:], strict=True)]
    return (*(total // 2 for total in totals), *(total - total // 2 for total in totals))


def _outputs_first(c: Call, groups: int) -> str:
    """The weights of a transposed convolution on plain tensors, I,O/groups,spatial, as O,I/groups,spatial."""
    name, shape = c.name("weight"), c.static_shape("weight")
    rest = tuple(range(2, len(shape)))
    if groups == 1:
        return c.emit("Transpose", [name], hint="weights", perm=(1, 0, *rest)).name
    if groups < 1 or len(shape) < 3 or shape[0] % groups:
        raise c.invalid(f"{groups} groups of weights of shape {shape}")
    inputs, outputs, *kernel = shape
    split = c.emit("Reshape", [name, c.list64([groups, inputs // groups, outputs, *kernel], "split")], hint="split_weights")
    turned = c.emit("Transpose", [split.name], hint="turned_weights", perm=(0, 2, 1, *(axis + 1 for axis in rest)))
    return c.emit("Reshape", [turned.name, c.list64([groups * outputs, inputs // groups, *kernel], "joined")], hint="weights").name


def read_conv_transpose(c: Call) -> Ref:
    """aten::conv_transpose1d, 2d, 3d on plain tensors."""
    spatial, groups = c.rank("weight") - 2, c.integer("groups")
    data = [c.name("input"), _outputs_first(c, groups), *([c.name("bias")] if c["bias"] is not None else [])]
    return c.emit(
        "ConvTranspose",
        data,
        grid=None,
        strides=c.integers("stride", spatial),
        dilations=c.integers("dilation", spatial),
        pads=c.integers("padding", spatial) * 2,
        output_padding=c.integers("output_padding", spatial),
        group=groups,
        data_format="channels_first",
    )


def read_convolution(c: Call) -> Ref:
    """aten::convolution, what all of them are behind decompositions."""
    return read_conv_transpose(c) if c["transposed"] else _convolution(c, c.rank("weight") - 2)


def read_linear(c: Call) -> Ref:
    """aten::linear on plain tensors: a Gemm where the weights are a matrix of constants or of what quantizes one."""
    factors = [c.name("weight"), *([c.name("bias")] if c["bias"] is not None else [])]
    return _rows(c, "input", factors, None)


OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    **{f"quantized::conv{n}d": read_quantized_conv(n) for n in (1, 2, 3)},
    **{f"quantized::conv{n}d_relu": read_quantized_conv(n, "relu") for n in (1, 2, 3)},
    **{f"quantized::conv_transpose{n}d": read_quantized_conv_transpose(n) for n in (1, 2, 3)},
    **{f"aten::conv{n}d": read_conv(n) for n in (1, 2, 3)},
    **{
        f"aten::{name}": Operator(
            "T input, T weight, T? bias=None, l stride=1, l padding=0, l output_padding=0, i groups=1, l dilation=1", read_conv_transpose
        )
        for name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
    },
    "aten::convolution": Operator(
        "T input, T weight, T? bias, l stride, l padding, l dilation, b transposed, l output_padding, i groups", read_convolution
    ),
    "quantized::linear": read_quantized_linear(),
    "quantized::linear_relu": read_quantized_linear("relu"),
    "aten::linear": Operator("T input, T weight, T? bias=None", read_linear),
}
