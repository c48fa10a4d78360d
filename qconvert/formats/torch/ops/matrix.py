"""Matrix products of plain tensors, quantized::matmul, and linear layers with packed parameters.

Such layers have quantized data and results; are of dynamic range, so that they round float data at each run; or are in float, with weights
in float16 or data that the layer itself rounds to a quantization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import cast_operand, is_constant, operands
from qconvert.formats.torch.ops.unary import scale_values
from qconvert.formats.torch.packed_parameters import round_to_float16
from qconvert.formats.torch.quantizing import emit_dequantize, quantization_along
from qconvert.formats.torch.reading import ReadFunction, Reading
from qconvert.formats.torch.values import Packed
from qconvert.graph import Quantization
from qconvert.operators.sizes import reshape_sizes


def _apply_activation(c: Reading, result: str) -> str:
    return c.emit("Relu", [result]) if c.activation else result


def read_dynamic(c: Reading) -> str:
    """quantized::linear_dynamic and linear_dynamic_fp16. The packed weights choose the kernel, whichever operator is called.

    Next to quantized weights, data become integers at each run; qnnpack does not reduce their range. Weights in float16 are real weights.
    """
    packed, data = c.packed_parameters("W_prepack"), c.name()
    require_real(c, data)
    if packed.weight.scales is None:
        weights = c.const(packed.weight.data, "weights")
        return _apply_activation(c, emit_gemm(c, data, [weights, *bias_of(c, packed)], None))
    return emit_gemm(c, data, factors_of(c, packed), None, activation=c.activation, arithmetic=rounding_of(c["reduce_range"]))


def read_unpacked(c: Reading) -> str:
    """quantized::linear_dynamic_fp16_unpacked_weight: the same on weights that the call rounds to float16."""
    weight = c.known(c.name("weight"))
    if weight is None or weight.dtype != np.float32:
        raise c.unsupported_error("weights that are computed at run time", rule="not-constant")
    weights = c.const(round_to_float16(weight), "weights")
    return emit_gemm(c, c.name(), [weights, *c.names("bias")], None)


def read_rounded(c: Reading) -> str:
    """quantized::linear_with_input_q_dq_qweight_dq_output_fp32: data are rounded to a quantization that the call states; the result is
    real."""
    packed = quantized_linear_params(c)
    quantization: Quantization = c.quantization("X_scale", "X_zero_point", "uint8")
    stored = c.emit("Quantize", [c.name()], dtype="uint8", quantization=quantization, hint="rounded")
    return _apply_activation(c, emit_gemm(c, stored, factors_of(c, packed), None, dtype="float32"))


_STATIC = "T X, f X_scale, i X_zero_point, o W_prepack"


def bias_of(c: Reading, packed: Packed) -> list[str]:
    """The bias as it is stored: real, which only qnnpack rounds to integers."""
    return [] if packed.bias is None else [c.add_constant(packed.bias, f"{packed.name}.bias")]


def factors_of(c: Reading, packed: Packed) -> list[str]:
    """The weights of a linear layer, and the bias if there is one."""
    return [c.add_constant(packed.weight, f"{packed.name}.weight"), *bias_of(c, packed)]


def quantized_linear_params(c: Reading) -> Packed:
    """The packed parameters of a linear layer that is not one in float16."""
    packed = c.packed_parameters("W_prepack")
    if packed.weight.scales is None:
        raise c.invalid("the weights are not quantized", rule="not-quantized")
    return packed


def read_quantized_linear(c: Reading) -> str:
    """quantized::linear, also with a Relu: data of any rank."""
    packed = quantized_linear_params(c)
    quantization = c.quantization("Y_scale_i", "Y_zero_point_i", c.operand().dtype)
    return emit_gemm(c, c.name(), factors_of(c, packed), quantization, activation=c.activation)


def rounding_of(reduces: object) -> str:
    """How a layer of dynamic range rounds its data: by the range of the whole tensor, in 127 steps if it reduces it."""
    return "dynamic_reduced" if reduces else "dynamic_tensor"


def require_real(c: Reading, name: str) -> None:
    if c.lookup(name).dtype != "float32":
        raise c.unsupported_error(f"data of {c.lookup(name).dtype}", rule="dtype-not-covered")


def emit_gemm(
    c: Reading, data: str, factors: Sequence[str], quantization: Quantization | None, *, dtype: str = "", hint: str = "", **attributes: Any
) -> str:
    """A Gemm on the rows of data of any rank, which keep their leading sizes.

    Args:
        c: the call.
        data: name of the data.
        factors: names of the weights, and of the bias if there is one.
        quantization, dtype, hint, attributes: of the result and of the Gemm, as in Reading.emit.
    """
    shape = c.shape_of(data)
    rank = len(shape)
    if rank == 2:
        return c.emit("Gemm", [data, *factors], quantization=quantization, dtype=dtype, hint=hint, **attributes)
    weights = c.lookup(factors[0]).static_shape
    if weights is None or len(weights) != 2 or rank < 1:
        raise c.invalid(f"weights of shape {weights} do not fit data of rank {rank}", rule="shape-mismatch")
    flat = c.emit("Reshape", [data, c.list64([-1, weights[1]], "rows_shape")], hint="data_rows")
    result = c.emit("Gemm", [flat, *factors], quantization=quantization, dtype=dtype, hint="rows", **attributes)
    if sum(isinstance(size, str) for size in shape[:-1]) <= 1:
        return c.emit("Reshape", [result, c.list64([*reshape_sizes(shape[:-1]), weights[0]], "shape")], hint=hint)
    whole = c.emit("Shape", [data], hint="data_shape")
    bounds = [c.list64([value], hint) for value, hint in ((0, "first"), (rank - 1, "last"), (0, "axis"))]
    kept = c.emit("Slice", [whole, *bounds], hint="leading")
    wanted = c.emit("Concat", [kept, c.list64([weights[0]], "outputs")], hint="shape", axis=0)
    return c.emit("Reshape", [result, wanted], hint=hint)


_LINEAR = "quantized::linear_with_input_q_dq_qweight_dq"


def read_linear(c: Reading) -> str:
    """aten::linear: a Gemm where the weights are a matrix of constants or of what quantizes one, else a product and a sum."""
    weights, bias = c.name("weight"), c.names("bias")
    if is_constant(c, weights) and c.lookup(weights).rank == 2:
        return emit_gemm(c, c.name(), [weights, *bias], None)
    hint = "product" if bias else ""
    if c.lookup(weights).rank == 1:
        result = product(c, c.name(), weights, hint)
    else:
        result = c.emit("MatMul", [c.name(), weights], quantization=None, hint=hint, trans_b=1)
    return c.emit("Add", [result, *bias]) if bias else result


def product(c: Reading, first: str, second: str, hint: str = "") -> str:
    """aten::matmul: a vector is one row, or one column, which the result does not have."""
    ranks = [c.lookup(name).rank for name in (first, second)]
    if ranks[0] == 0 or ranks[1] == 0:
        raise c.invalid("an operand has rank 0", rule="wrong-rank")
    alone = [rank == 1 for rank in ranks]
    if not any(alone):
        return c.emit("MatMul", [first, second], quantization=None, hint=hint)
    if alone[0]:
        first = c.emit("Unsqueeze", [first, c.list64([0], "row_axis")], hint="row")
    if alone[1]:
        second = c.emit("Unsqueeze", [second, c.list64([1], "column_axis")], hint="column")
    whole = c.emit("MatMul", [first, second], quantization=None, hint="matrix")
    axes = [axis for axis, single in ((-2, alone[0]), (-1, alone[1])) if single]
    return c.emit("Squeeze", [whole, c.list64(axes, "single_axes")], hint=hint)


def read_matmul(c: Reading) -> str:
    """aten::matmul, mm, bmm, mv, dot."""
    (a, b), _ = operands(c, *c.arguments)
    c.require_plain(a, b)
    return product(c, a, b)


def read_added_product(c: Reading) -> str:
    """aten::addmm, baddbmm, addmv: beta * x + alpha * (a @ b). With constant weights, as of a linear layer, it is a Gemm."""
    added, a, b = (c.name(argument) for argument in c.arguments[:3])
    alpha, beta = c["alpha"], c["beta"]
    op = c.producer(b, "Transpose")
    if alpha == beta == 1 and op is not None and op["perm"] == (1, 0) and is_constant(c, b):
        return emit_gemm(c, a, [op.inputs[0], added], None)
    result = product(c, a, b, "product")
    if alpha != 1:
        result = scale_values(c, result, c.number("alpha"), "scaled")
    if beta == 0:
        return result
    if beta != 1:
        added = scale_values(c, added, c.number("beta"), "added")
    return c.emit("Add", [added, result], quantization=None)


def read_einsum(c: Reading) -> str:
    """aten::einsum of an equation in letters."""
    names = c.names("tensors")
    wanted = c.lookup(names[0]).dtype
    names = [cast_operand(c, name, wanted, f"operand{index}") for index, name in enumerate(names)]
    return c.emit("Einsum", names, quantization=None, equation=str(c["equation"]).replace(" ", ""))


def read_weight_product(c: Reading) -> str:
    """aten::_weight_int8pack_mm(x, weights, scales): weights (outputs, inputs) of int8 with a scale for each output."""
    scales, weights = c.constant("scales"), c.operand("mat2")
    if scales is None or weights.data is None:
        raise c.unsupported_error("weights that are computed at run time", rule="not-constant")
    real = emit_dequantize(c, c.label_tensor(weights, quantization_along(c, scales.reshape(-1), None, 0, weights.dtype)))
    return c.emit("Gemm", [c.name(), real], quantization=None)


OPERATORS: Mapping[str, ReadFunction] = {
    "quantized::linear_dynamic|linear_dynamic_fp16|linear_relu_dynamic|linear_relu_dynamic_fp16(T X, o W_prepack, b reduce_range=False)": (
        read_dynamic
    ),
    "quantized::linear_dynamic_fp16_unpacked_weight(T X, T weight, T? bias)": read_unpacked,
    f"{_LINEAR}_output_fp32|{_LINEAR}_relu_output_fp32({_STATIC})": read_rounded,
    "quantized::linear|linear_relu(q X, o W_prepack, f Y_scale_i, i Y_zero_point_i)": read_quantized_linear,
    "aten::linear(T input, T weight, T? bias=None)": read_linear,
    "aten::matmul(T self, T other)": read_matmul,
    "aten::mm|bmm(T self, T mat2)": read_matmul,
    "aten::mv(T self, T vec)": read_matmul,
    "aten::dot(T self, T tensor)": read_matmul,
    "aten::addmm(T self, T mat1, T mat2, *, f beta=1, f alpha=1)": read_added_product,
    "aten::addmv(T self, T mat, T vec, *, f beta=1, f alpha=1)": read_added_product,
    "aten::baddbmm(T self, T batch1, T batch2, *, f beta=1, f alpha=1)": read_added_product,
    "aten::einsum(s equation, t tensors, *, l? path=None)": read_einsum,
    "aten::_int_mm(T self, T mat2)": lambda c: c.emit("MatMulInteger", [c.name(), c.name("mat2")]),
    "aten::_weight_int8pack_mm(T self, T mat2, T scales)": read_weight_product,
    "quantized::matmul(q qa, q qb, f scale, i zero_point)": lambda c: c.emit(
        "MatMul", [c.name("qa"), c.name("qb")], quantization=c.quantization(dtype=c.operand().dtype)
    ),
}
