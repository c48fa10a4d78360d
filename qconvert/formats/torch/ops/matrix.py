"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.formats.torch.quantizing import dequantized, grid_along
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]


def _product(c: Call, first: str, second: str, bias: str = "") -> Ref:
    """first @ second: a Gemm, whose weights are (outputs, inputs), where the second is a matrix that is known before the model runs."""
    a, b = c.name(first), c.name(second)
    if c.rank(first) != 2 or c.rank(second) != 2 or c.known(b) is None:
        return c.emit("MatMul", [a, b], grid=None, hint="product" if bias else "")
    turned = c.session.draft.producers.get(b)
    if turned is not None and turned.kind == "Transpose":
        b = turned.inputs[0]
    else:
        b = c.emit("Transpose", [b], hint="weights", perm=(1, 0)).name
    fits = bool(bias) and c.operand(bias).shape == (c.lookup(b).shape or (None,))[:1]
    return c.emit("Gemm", [a, b, *([c.name(bias)] if fits else [])], grid=None, hint="product" if bias and not fits else "")


def read_product(c: Call) -> Ref:
    """aten::mm, bmm and matmul: of matrices, vectors, or stacks of them."""
    return _product(c, "self", "mat2")


def read_product_and_sum(c: Call, first: str = "mat1", second: str = "mat2") -> Ref:
    """aten::addmm(input, mat1, mat2, beta, alpha) and baddbmm: beta * input + alpha * mat1 @ mat2."""
    alpha, beta = c.number("alpha"), c.number("beta")
    if alpha == beta == 1 and c.rank("self") == 1:
        found = _product(c, first, second, "self")
        producer = c.session.draft.producers[found.name]
        if len(producer.inputs) == 3:
            return found
        return c.emit("Add", [found.name, c.name("self")], grid=None)
    product, addend = _product(c, first, second, "self").name, c.name("self")
    if alpha != 1:
        product = c.emit("Mul", [product, c.const(np.float32(alpha), "alpha")], grid=None, hint="scaled").name
    if beta == 0:
        return Ref(product)
    if beta != 1:
        addend = c.emit("Mul", [addend, c.const(np.float32(beta), "beta")], grid=None, hint="addend").name
    return c.emit("Add", [product, addend], grid=None)


def read_integer_product(c: Call) -> Ref:
    """aten::_int_mm(a, b): int8 matrices, summed in int32."""
    return c.emit("MatMulInteger", [c.name("self"), c.name("mat2")], dtype="int32", grid=None)


def read_weight_product(c: Call) -> Ref:
    """aten::_weight_int8pack_mm(x, weights, scales): weights (outputs, inputs) of int8 with a scale for each output."""
    scales, weights = c.constant("scales"), c.operand("mat2")
    if scales is None or weights.data is None:
        raise c.unsupported("weights that are computed at run time")
    real = dequantized(c, Ref(c.labelled(weights, grid_along(c, scales.reshape(-1), None, 0, weights.dtype))))
    return c.emit("Gemm", [c.name("self"), real.name], grid=None)


_SUM = "T self, T mat1, T mat2, f beta=1, f alpha=1"

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::mm": Operator("T self, T mat2", read_product),
    "aten::bmm": Operator("T self, T mat2", read_product),
    "aten::matmul": Operator("T self, T other", lambda c: _product(c, "self", "other")),
    "aten::addmm": Operator(_SUM, read_product_and_sum),
    "aten::baddbmm": Operator("T self, T batch1, T batch2, f beta=1, f alpha=1", lambda c: read_product_and_sum(c, "batch1", "batch2")),
    "aten::_int_mm": Operator("T self, T mat2", read_integer_product),
    "aten::_weight_int8pack_mm": Operator("T self, T mat2, T scales", read_weight_product),
}
