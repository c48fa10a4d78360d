"""Matrix products of plain tensors, and quantized::matmul."""

from __future__ import annotations

from collections.abc import Sequence

from qconvert.formats.torch.ops.layers import emit_gemm
from qconvert.formats.torch.promotion import cast_operand, operands
from qconvert.formats.torch.quantizing import emit_dequantize, quantization_along
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Ref
from qconvert.formats.torch.weights import is_constant

__all__ = ["OPERATORS", "product"]


def read_linear(c: Call) -> Ref:
    """aten::linear: a Gemm where the weights are a matrix of constants or of what quantizes one, else a product and a sum."""
    weights = c.name("weight")
    bias = [c.name("bias")] if c["bias"] is not None else []
    if is_constant(c, weights) and c.lookup(weights).rank == 2:
        return emit_gemm(c, c.name("input"), [weights, *bias], None)
    if c.lookup(weights).rank == 1:
        return _with_bias(c, product(c, c.name("input"), weights, "product" if bias else ""), bias)
    result = c.emit("MatMul", [c.name("input"), weights], quantization=None, hint="product" if bias else "", trans_b=1)
    return _with_bias(c, result, bias)


def _with_bias(c: Call, result: Ref, bias: Sequence[str]) -> Ref:
    return c.emit("Add", [result.name, *bias], quantization=None) if bias else result


def product(c: Call, first: str, second: str, hint: str = "") -> Ref:
    """aten::matmul: a vector is one row, or one column, which the result does not have."""
    ranks = [c.lookup(name).rank for name in (first, second)]
    if ranks[0] == 0 or ranks[1] == 0:
        raise c.invalid("an operand has rank 0", rule="wrong-rank")
    alone = [rank == 1 for rank in ranks]
    if not any(alone):
        return c.emit("MatMul", [first, second], quantization=None, hint=hint)
    if alone[0]:
        first = c.emit("Unsqueeze", [first, c.list64([0], "row_axis")], hint="row").name
    if alone[1]:
        second = c.emit("Unsqueeze", [second, c.list64([1], "column_axis")], hint="column").name
    whole = c.emit("MatMul", [first, second], quantization=None, hint="matrix")
    axes = [axis for axis, single in ((-2, alone[0]), (-1, alone[1])) if single]
    return c.emit("Squeeze", [whole.name, c.list64(axes, "single_axes")], hint=hint)


def read_matmul(first: str, second: str) -> Operator:
    """aten::matmul, mm, bmm, mv, dot."""

    def read(c: Call) -> Ref:
        (a, b), _ = operands(c, first, second)
        if any(c.lookup(name).is_quantized for name in (a, b)):
            raise c.unsupported_error("quantized data", rule="quantized-data")
        return product(c, a, b)

    return Operator(f"T {first}, T {second}", read)


def read_added_product(first: str, second: str) -> Operator:
    """aten::addmm, baddbmm, addmv: beta * x + alpha * (a @ b). With constant weights, as of a linear layer, it is a Gemm."""

    def read(c: Call) -> Ref:
        a, b, added = c.name(first), c.name(second), c.name("self")
        alpha, beta = c["alpha"], c["beta"]
        op = c.producer(b)
        if alpha == beta == 1 and op is not None and op.kind == "Transpose" and op["perm"] == (1, 0) and is_constant(c, b):
            return emit_gemm(c, a, [op.inputs[0], added], None)
        result = product(c, a, b, "product")
        if alpha != 1:
            result = c.emit("Mul", [result.name, c.real_constant(c.number("alpha"), a, "alpha")], quantization=None, hint="scaled")
        if beta == 0:
            return result
        if beta != 1:
            added = c.emit("Mul", [added, c.real_constant(c.number("beta"), added, "beta")], quantization=None, hint="added").name
        return c.emit("Add", [added, result.name], quantization=None)

    return Operator(f"T self, T {first}, T {second}, *, f beta=1, f alpha=1", read)


def read_quantized_matmul(c: Call) -> Ref:
    """quantized::matmul, to the quantization that the call states."""
    return c.emit("MatMul", [c.name("qa"), c.name("qb")], quantization=c.quantization(dtype=c.operand("qa").dtype))


def read_einsum(c: Call) -> Ref:
    """aten::einsum of an equation in letters."""
    names = c.names("tensors")
    wanted = c.lookup(names[0]).dtype
    names = [cast_operand(c, Ref(name), wanted, f"operand{index}") for index, name in enumerate(names)]
    return c.emit("Einsum", names, quantization=None, equation=str(c["equation"]).replace(" ", ""))


def read_integer_product(c: Call) -> Ref:
    """aten::_int_mm(a, b): int8 matrices, summed in int32."""
    return c.emit("MatMulInteger", [c.name("self"), c.name("mat2")], dtype="int32", quantization=None)


def read_weight_product(c: Call) -> Ref:
    """aten::_weight_int8pack_mm(x, weights, scales): weights (outputs, inputs) of int8 with a scale for each output."""
    scales, weights = c.constant("scales"), c.operand("mat2")
    if scales is None or weights.data is None:
        raise c.unsupported_error("weights that are computed at run time", rule="not-constant")
    real = emit_dequantize(c, Ref(c.label_tensor(weights, quantization_along(c, scales.reshape(-1), None, 0, weights.dtype))))
    return c.emit("Gemm", [c.name("self"), real.name], quantization=None)


OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::linear": Operator("T input, T weight, T? bias=None", read_linear),
    "aten::matmul": read_matmul("self", "other"),
    "aten::mm": read_matmul("self", "mat2"),
    "aten::bmm": read_matmul("self", "mat2"),
    "aten::mv": read_matmul("self", "vec"),
    "aten::dot": read_matmul("self", "tensor"),
    "aten::addmm": read_added_product("mat1", "mat2"),
    "aten::addmv": read_added_product("mat", "vec"),
    "aten::baddbmm": read_added_product("batch1", "batch2"),
    "aten::einsum": Operator("s equation, t tensors, *, l? path=None", read_einsum),
    "aten::_int_mm": Operator("T self, T mat2", read_integer_product),
    "aten::_weight_int8pack_mm": Operator("T self, T mat2, T scales", read_weight_product),
    "quantized::matmul": Operator("q qa, q qb, f scale, i zero_point", read_quantized_matmul),
}
