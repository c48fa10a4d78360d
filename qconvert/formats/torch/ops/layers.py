"""Convolutions and linear layers with packed parameters, whose data and results are quantized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Packed, Ref
from qconvert.graph import Quantization
from qconvert.operators.spatial import swapped_weights

__all__ = ["OPERATORS", "bias_of", "emit_gemm", "kernel_of", "quantized_linear_params", "require_real", "rounding_of"]


_OUTPUT = "f output_scale, i output_zero_point"


def bias_of(c: Call, packed: Packed) -> list[str]:
    """The bias as it is stored: real, which only qnnpack rounds to integers."""
    return [] if packed.bias is None else [c.add_constant(packed.bias, f"{packed.name}.bias")]


def kernel_of(c: Call, packed: Packed, spatial: int) -> tuple[str, dict[str, Any]]:
    """The weights as O,I,spatial, and the sizes along as many axes; layers of one axis are stored as of two."""
    data, axis = packed.weight.data, packed.weight.axis
    cut = len(packed.weight.shape) - 2 - spatial
    if cut < 0 or any(size != 1 for size in packed.weight.shape[2 : 2 + cut]):
        raise c.invalid(f"weights of shape {packed.weight.shape} do not fit {spatial} axes", rule="wrong-rank")
    data = data.reshape(*data.shape[:2], *data.shape[2 + cut :]) if cut else data
    if packed.transposed:
        if axis is not None and (axis != 1 or packed.groups != 1):
            raise c.unsupported_error(
                "per-channel scales along the inputs of a transposed convolution, or in groups,", rule="form-not-covered"
            )
        if packed.groups < 1 or data.shape[0] % packed.groups:
            raise c.invalid(f"{packed.groups} groups do not fit weights of shape {packed.weight.shape}", rule="counts-differ")
        data, axis = swapped_weights(data, packed.groups), 0
    name = c.add_constant(packed.weight, f"{packed.name}.weight", data, axis)
    sizes = {"strides": packed.stride[cut:], "dilations": packed.dilation[cut:], "pads": packed.padding[cut:] * 2, "group": packed.groups}
    return name, {**sizes, "data_format": "channels_first"}


def read_quantized_conv(spatial: int, activation: str = "") -> list[Operator]:
    """quantized::conv1d, 2d, 3d, each also with a Relu.

    The overload of PyTorch before 1.6 states strides, paddings, dilations and groups too. The kernel takes those that are packed with the
    weights, and ignores these (QConvInt8ForBC in qconv.cpp).
    """

    def read(c: Call) -> Ref:
        packed, data = c.packed_parameters("weight" if "weight" in c else "packed_weight"), c.operand("qx")
        weights, sizes = kernel_of(c, packed, spatial)
        quantization = c.quantization("output_scale", "output_zero_point", data.dtype)
        return c.emit("Conv", [data.name, weights, *bias_of(c, packed)], quantization=quantization, activation=activation, **sizes)

    sizes = "l stride, l padding, l dilation, i groups"
    return [Operator(f"q qx, {weights}, {_OUTPUT}", read) for weights in ("o packed_weight", f"o weight, {sizes}")]


def read_quantized_conv_transpose(spatial: int) -> Operator:
    """quantized::conv_transpose1d, 2d, 3d."""

    def read(c: Call) -> Ref:
        packed, data = c.packed_parameters("packed_weight"), c.operand("qx")
        weights, sizes = kernel_of(c, packed, spatial)
        quantization = c.quantization("output_scale", "output_zero_point", data.dtype)
        padding = packed.output_padding[len(packed.output_padding) - spatial :]
        return c.emit(
            "ConvTranspose", [data.name, weights, *bias_of(c, packed)], quantization=quantization, output_padding=padding, **sizes
        )

    return Operator(f"q qx, o packed_weight, {_OUTPUT}", read)


def quantized_linear_params(c: Call) -> Packed:
    """The packed parameters of a linear layer that is not one in float16."""
    packed = c.packed_parameters("W_prepack")
    if packed.weight.scales is None:
        raise c.invalid("the weights are not quantized", rule="not-quantized")
    return packed


def read_quantized_linear(activation: str = "") -> Operator:
    """quantized::linear, also with a Relu: data of any rank."""

    def read(c: Call) -> Ref:
        packed = quantized_linear_params(c)
        weights = c.add_constant(packed.weight, f"{packed.name}.weight")
        quantization = c.quantization("Y_scale_i", "Y_zero_point_i", c.operand("X").dtype)
        return emit_gemm(c, c.name("X"), [weights, *bias_of(c, packed)], quantization, activation=activation)

    return Operator("q X, o W_prepack, f Y_scale_i, i Y_zero_point_i", read)


def rounding_of(c: Call) -> str:
    """How a layer of dynamic range rounds its data: by the range of the whole tensor, in 127 steps if it reduces it."""
    return "dynamic_reduced" if c["reduce_range"] else "dynamic_tensor"


def require_real(c: Call, name: str) -> None:
    if c.lookup(name).dtype != "float32":
        raise c.unsupported_error(f"data of {c.lookup(name).dtype}", rule="dtype-not-covered")


def emit_gemm(c: Call, data: str, factors: Sequence[str], quantization: Quantization | None, *, dtype: str = "", **attributes: Any) -> Ref:
    """A Gemm on the rows of data of any rank, which keep their leading sizes.

    Args:
        c: the call.
        data: name of the data.
        factors: names of the weights, and of the bias if there is one.
        quantization, dtype, attributes: of the result and of the Gemm, as in Call.emit.
    """
    tensor, rank = c.lookup(data), c.lookup(data).rank
    if rank is None:
        raise c.unknown_shape_of(data)
    if rank == 2:
        return c.emit("Gemm", [tensor.name, *factors], quantization=quantization, dtype=dtype, **attributes)
    weights = c.lookup(factors[0]).static_shape
    if weights is None or len(weights) != 2 or rank < 1:
        raise c.invalid(f"weights of shape {weights} do not fit data of rank {rank}", rule="shape-mismatch")
    flat = c.emit("Reshape", [tensor.name, c.list64([-1, weights[1]], "rows_shape")], hint="data_rows")
    result = c.emit("Gemm", [flat.name, *factors], quantization=quantization, dtype=dtype, hint="rows", **attributes)
    leading = (tensor.shape or ())[:-1]
    if sum(isinstance(size, str) for size in leading) <= 1:
        sizes = [-1 if isinstance(size, str) else size for size in leading]
        return c.emit("Reshape", [result.name, c.list64([*sizes, weights[0]], "shape")])
    whole = c.emit("Shape", [tensor.name], dtype="int64", quantization=None, hint="data_shape")
    bounds = [c.list64([value], hint) for value, hint in ((0, "first"), (rank - 1, "last"), (0, "axis"))]
    kept = c.emit("Slice", [whole.name, *bounds], hint="leading")
    shape = c.emit("Concat", [kept.name, c.list64([weights[0]], "outputs")], hint="shape", axis=0)
    return c.emit("Reshape", [result.name, shape.name])


OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    **{f"quantized::conv{n}d": read_quantized_conv(n) for n in (1, 2, 3)},
    **{f"quantized::conv{n}d_relu": read_quantized_conv(n, "relu") for n in (1, 2, 3)},
    **{f"quantized::conv_transpose{n}d": read_quantized_conv_transpose(n) for n in (1, 2, 3)},
    "quantized::linear": read_quantized_linear(),
    "quantized::linear_relu": read_quantized_linear("relu"),
}
