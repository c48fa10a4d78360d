"""Layers with packed parameters: convolutions and linear layers with quantized data and results, of dynamic range, and in float.

In dynamic range, float data are quantized at each run. A convolution's result is too: ATen/native/quantized/cpu/qconv_dynamic.cpp passes
the scale and zero point of the data to the quantized convolution as those of the result, and dequantizes the result; values outside of the
data's range are clipped. Linear layers in float have weights in float16, or data that the layer itself rounds to a quantization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.ops.quantize import Part
from qconvert.formats.torch.packed_parameters import round_to_float16
from qconvert.formats.torch.reading import ReadFunction, Reading
from qconvert.formats.torch.values import Packed
from qconvert.graph import Quantization
from qconvert.operators.sizes import swapped_weights
from qconvert.operators.values import apply, clip, where


def _apply_activation(c: Reading, result: str) -> str:
    return c.emit("Relu", [result]) if c.activation else result


def read_dynamic(c: Reading) -> str:
    """quantized::linear_dynamic and linear_dynamic_fp16. The packed weights choose the kernel, whichever operator is called.

    Next to quantized weights, data become integers at each run; qnnpack does not reduce their range. Weights in float16 are real weights.
    """
    packed, data = c.packed_parameters("W_prepack"), c.name("X")
    require_real(c, data)
    if packed.weight.scales is None:
        weights = c.const(packed.weight.data, "weights")
        return _apply_activation(c, emit_gemm(c, data, [weights, *bias_of(c, packed)], None))
    return emit_gemm(c, data, factors_of(c, packed), None, activation=c.activation, arithmetic=rounding_of(c))


def read_unpacked(c: Reading) -> str:
    """quantized::linear_dynamic_fp16_unpacked_weight: the same on weights that the call rounds to float16."""
    weight = c.known(c.name("weight"))
    if weight is None or weight.dtype != np.float32:
        raise c.unsupported_error("weights that are computed at run time", rule="not-constant")
    weights = c.const(round_to_float16(weight), "weights")
    return emit_gemm(c, c.name("X"), [weights, *c.names("bias")], None)


def read_rounded(c: Reading) -> str:
    """quantized::linear_with_input_q_dq_qweight_dq_output_fp32: data are rounded to a quantization that the call states; the result is
    real."""
    packed = quantized_linear_params(c)
    quantization: Quantization = c.quantization("X_scale", "X_zero_point", "uint8")
    stored = c.emit("Quantize", [c.name("X")], dtype="uint8", quantization=quantization, hint="rounded")
    return _apply_activation(c, emit_gemm(c, stored, factors_of(c, packed), None, dtype="float32"))


_STATIC = "T X, f X_scale, i X_zero_point, o W_prepack"


def read_convolution(c: Reading) -> str:
    """quantized::conv2d_dynamic, conv_transpose2d_dynamic and their kin."""
    require_real(c, c.name("qx"))
    return _quantize_dynamically(c, c.name("qx"), _emit_layer(c, None, hint="unrounded", arithmetic=rounding_of(c)))


def _quantize_dynamically(c: Reading, data: str, result: str) -> str:
    """Float values rounded to the quantization of the data's range, decomposed."""
    axes = c.list64(list(range(c.rank("qx"))), "axes")
    ends = [c.emit(f"Reduce{kind}", [data, axes], quantization=None, hint=kind.lower(), keepdims=0) for kind in ("Min", "Max")]
    low, high = (apply(kind, Part(c, end), 0) for kind, end in zip(("Min", "Max"), ends, strict=True))
    span = (high - low) / (127 if c["reduce_range"] else 255)
    scale = where(apply("Equal", span, 0, hint="empty"), 0.1, span, hint="scale")
    point = apply("Round", -low / scale, hint="zero_point")
    steps = clip(apply("Round", Part(c, result) / scale) + point, 0, 255, hint="steps")
    return str(apply("Mul", steps - point, scale, hint="").name)


_OUTPUT = "f output_scale, i output_zero_point"


def bias_of(c: Reading, packed: Packed) -> list[str]:
    """The bias as it is stored: real, which only qnnpack rounds to integers."""
    return [] if packed.bias is None else [c.add_constant(packed.bias, f"{packed.name}.bias")]


def factors_of(c: Reading, packed: Packed) -> list[str]:
    """The weights of a linear layer, and the bias if there is one."""
    return [c.add_constant(packed.weight, f"{packed.name}.weight"), *bias_of(c, packed)]


def _emit_layer(c: Reading, quantization: Quantization | None, *, hint: str = "", **attributes: Any) -> str:
    """The convolution of packed parameters, transposed if the operator's name says so."""
    packed = c.packed_parameters("weight" if "weight" in c else "packed_weight")
    weights, sizes = kernel_of(c, packed)
    kind = "ConvTranspose" if "transpose" in c.operator else "Conv"
    if kind == "ConvTranspose":
        sizes = {"output_padding": packed.output_padding[len(packed.output_padding) - c.spatial :], **sizes}
    inputs = [c.name("qx"), weights, *bias_of(c, packed)]
    return c.emit(kind, inputs, quantization=quantization, hint=hint, **attributes, **sizes)


def kernel_of(c: Reading, packed: Packed) -> tuple[str, dict[str, Any]]:
    """The weights as O,I,spatial, and the sizes along as many axes; layers of one axis are stored as of two."""
    data, axis = packed.weight.data, packed.weight.axis
    cut = len(packed.weight.shape) - 2 - c.spatial
    if cut < 0 or any(size != 1 for size in packed.weight.shape[2 : 2 + cut]):
        raise c.invalid(f"weights of shape {packed.weight.shape} do not fit {c.spatial} axes", rule="wrong-rank")
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


def read_quantized_conv(c: Reading) -> str:
    """quantized::conv1d, 2d, 3d, each also with a Relu.

    The overload of PyTorch before 1.6 states strides, paddings, dilations and groups too. The kernel takes those that are packed with the
    weights, and ignores these (QConvInt8ForBC in qconv.cpp).
    """
    return _emit_layer(c, c.output_quantization("qx"), activation=c.activation)


def quantized_linear_params(c: Reading) -> Packed:
    """The packed parameters of a linear layer that is not one in float16."""
    packed = c.packed_parameters("W_prepack")
    if packed.weight.scales is None:
        raise c.invalid("the weights are not quantized", rule="not-quantized")
    return packed


def read_quantized_linear(c: Reading) -> str:
    """quantized::linear, also with a Relu: data of any rank."""
    packed = quantized_linear_params(c)
    quantization = c.quantization("Y_scale_i", "Y_zero_point_i", c.operand("X").dtype)
    return emit_gemm(c, c.name("X"), factors_of(c, packed), quantization, activation=c.activation)


def rounding_of(c: Reading) -> str:
    """How a layer of dynamic range rounds its data: by the range of the whole tensor, in 127 steps if it reduces it."""
    return "dynamic_reduced" if c["reduce_range"] else "dynamic_tensor"


def require_real(c: Reading, name: str) -> None:
    if c.lookup(name).dtype != "float32":
        raise c.unsupported_error(f"data of {c.lookup(name).dtype}", rule="dtype-not-covered")


def emit_gemm(
    c: Reading, data: str, factors: Sequence[str], quantization: Quantization | None, *, dtype: str = "", **attributes: Any
) -> str:
    """A Gemm on the rows of data of any rank, which keep their leading sizes.

    Args:
        c: the call.
        data: name of the data.
        factors: names of the weights, and of the bias if there is one.
        quantization, dtype, attributes: of the result and of the Gemm, as in Reading.emit.
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
    result = c.emit("Gemm", [flat, *factors], quantization=quantization, dtype=dtype, hint="rows", **attributes)
    leading = (tensor.shape or ())[:-1]
    if sum(isinstance(size, str) for size in leading) <= 1:
        sizes = [-1 if isinstance(size, str) else size for size in leading]
        return c.emit("Reshape", [result, c.list64([*sizes, weights[0]], "shape")])
    whole = c.emit("Shape", [tensor.name], dtype="int64", hint="data_shape")
    bounds = [c.list64([value], hint) for value, hint in ((0, "first"), (rank - 1, "last"), (0, "axis"))]
    kept = c.emit("Slice", [whole, *bounds], hint="leading")
    shape = c.emit("Concat", [kept, c.list64([weights[0]], "outputs")], hint="shape", axis=0)
    return c.emit("Reshape", [result, shape])


_LINEAR = "quantized::linear_with_input_q_dq_qweight_dq"

OPERATORS: Mapping[str, ReadFunction] = {
    "quantized::linear_dynamic|linear_dynamic_fp16|linear_relu_dynamic|linear_relu_dynamic_fp16(T X, o W_prepack, b reduce_range=False)": (
        read_dynamic
    ),
    "quantized::linear_dynamic_fp16_unpacked_weight(T X, T weight, T? bias)": read_unpacked,
    f"{_LINEAR}_output_fp32|{_LINEAR}_relu_output_fp32({_STATIC})": read_rounded,
    "quantized::conv#d_dynamic|conv_transpose#d_dynamic(T qx, o packed_weight, b reduce_range=False)": read_convolution,
    f"quantized::conv#d|conv#d_relu(q qx, o packed_weight, {_OUTPUT})": read_quantized_conv,
    f"quantized::conv#d|conv#d_relu(q qx, o weight, l stride, l padding, l dilation, i groups, {_OUTPUT})": read_quantized_conv,
    f"quantized::conv_transpose#d(q qx, o packed_weight, {_OUTPUT})": lambda c: _emit_layer(c, c.output_quantization("qx")),
    "quantized::linear|linear_relu(q X, o W_prepack, f Y_scale_i, i Y_zero_point_i)": read_quantized_linear,
}
