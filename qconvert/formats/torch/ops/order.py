"""Largest and smallest elements and their places, sorted elements, running sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qconvert.arithmetic.dtypes import REALS
from qconvert.formats.torch.promotion import cast_operand
from qconvert.formats.torch.reading import Call, Operator, ReadFunction
from qconvert.formats.torch.sizing import emit_reshape
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]


def read_place(kind: str) -> Operator:
    """aten::argmax, argmin: along an axis, or of all elements."""

    def read(c: Call) -> Ref:
        name, rank = c.name("self"), c.rank("self")
        if c["dim"] is None:
            flat = emit_reshape(c, name, [-1], hint="flat").name
            found = c.emit(kind, [flat], dtype="int64", quantization=None, hint="place" if c["keepdim"] else "", axis=0, keepdims=0)
            return emit_reshape(c, found.name, [1] * rank) if c["keepdim"] else found
        axis = c.axis(c.integer("dim"), max(rank, 1))
        return c.emit(kind, [name], dtype="int64", quantization=None, axis=axis, keepdims=int(bool(c["keepdim"])))

    return Operator("T self, i? dim=None, b keepdim=False", read)


def _emit_top_k(c: Call, count: str, axis: int, largest: bool, in_order: bool) -> list[Ref]:
    tensor = c.operand("self")
    results = [(tensor.dtype, tensor.quantization), ("int64", None)]
    return c.emit_each("TopK", [tensor.name, count], results, axis=axis, largest=int(largest), sorted=int(in_order))


def read_topk(c: Call) -> list[Ref]:
    """aten::topk(x, k, dim, largest, sorted): values and their places."""
    axis = c.axis(c.integer("dim"), c.rank("self"))
    value = c["k"]
    count = emit_reshape(c, value.name, [1], hint="k").name if isinstance(value, Ref) else c.list64([value], "k")
    return _emit_top_k(c, count, axis, bool(c["largest"]), bool(c["sorted"]))


def read_sort(*results: int) -> ReadFunction:
    """aten::sort: values and their places; argsort: the places; msort: the values along the first axis."""

    def read(c: Call) -> list[Ref] | Ref:
        axis = c.axis(c.integer("dim") if "dim" in c else 0, max(c.rank("self"), 1))
        size = (c.operand("self").shape or (None,))[axis]
        if not isinstance(size, int):
            raise c.unknown_shape("self")
        found = _emit_top_k(c, c.list64([size], "k"), axis, bool(c.get("descending")), True)
        return [found[index] for index in results] if len(results) > 1 else found[results[0]]

    return read


def read_cumulative(kind: str) -> ReadFunction:
    """aten::cumsum(x, dim, dtype) and aten::cumprod: of whole numbers and truth values in int64."""

    def read(c: Call) -> Ref:
        tensor, wanted = c.operand("self"), c.dtype("dtype")
        if tensor.is_quantized:
            raise c.unsupported_error("quantized data", rule="quantized-data")
        dtype = wanted or (tensor.dtype if tensor.dtype in REALS else "int64")
        axis = c.axis(c.integer("dim"), max(c.rank("self"), 1))
        return c.emit(kind, [cast_operand(c, Ref(tensor.name), dtype, "data")], dtype=dtype, quantization=None, axis=axis)

    return read


def read_kth(c: Call) -> list[Ref]:
    """aten::kthvalue(x, k, dim): the k-th smallest, and its place."""
    axis, count = c.axis(c.integer("dim"), c.rank("self")), c.integer("k")
    found = _emit_top_k(c, c.list64([count], "k"), axis, False, True)
    last = c.const(np.array(count - 1) if c["keepdim"] is False else np.array([count - 1]), "last")
    return [c.emit("Gather", [ref.name, last], hint=hint, axis=axis) for ref, hint in zip(found, ("value", "place"), strict=True)]


_SORTED = "i dim=-1, b descending=False"

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::argmax": read_place("ArgMax"),
    "aten::argmin": read_place("ArgMin"),
    "aten::topk": Operator("T self, i k, i dim=-1, b largest=True, b sorted=True", read_topk),
    "aten::sort": [Operator(f"T self, {_SORTED}", read_sort(0, 1)), Operator(f"T self, b? stable, {_SORTED}", read_sort(0, 1))],
    "aten::argsort": [Operator(f"T self, {_SORTED}", read_sort(1)), Operator(f"T self, b stable, {_SORTED}", read_sort(1))],
    "aten::msort": Operator("T self", read_sort(0)),
    "aten::cumsum": Operator("T self, i dim, i? dtype=None", read_cumulative("CumSum")),
    "aten::cumprod": Operator("T self, i dim, i? dtype=None", read_cumulative("CumProd")),
    "aten::kthvalue": Operator("T self, i k, i dim=-1, b keepdim=False", read_kth),
}
