"""Reductions over axes, and order along an axis: largest and smallest elements and their places, sorted elements, running sums."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from qconvert.arithmetic.storage import REALS
from qconvert.formats.torch.operands import as_real, cast_operand, emit_reshape
from qconvert.formats.torch.ops.elementwise import read_binary
from qconvert.formats.torch.ops.unary import scale_values
from qconvert.formats.torch.quantizing import emit_dequantize
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments
from qconvert.formats.torch.values import Ref
from qconvert.graph import Op


@with_arguments
def read_place(c: Reading, kind: str) -> str:
    """aten::argmax, argmin: along an axis, or of all elements."""
    name, rank = c.name(), c.rank()
    if c["dim"] is None:
        flat = emit_reshape(c, name, [-1], hint="flat")
        found = c.emit(kind, [flat], hint="place" if c["keepdim"] else "", axis=0, keepdims=0)
        return emit_reshape(c, found, [1] * rank) if c["keepdim"] else found
    return c.emit(kind, [name], axis=_axis(c), keepdims=_keepdims(c))


def _emit_top_k(c: Reading, count: str, axis: int, largest: bool, in_order: bool) -> list[str]:
    tensor = c.operand()
    results = [(tensor.dtype, tensor.quantization), ("int64", None)]
    outputs = [c.draft.add(f"{c.hint}/{place}", dtype, None, None, quantization) for place, (dtype, quantization) in enumerate(results)]
    attributes = {"axis": axis, "largest": int(largest), "sorted": int(in_order)}
    c.draft.append(Op("TopK", (tensor.name, count), tuple(outputs), attributes, c.source))
    return outputs


def read_topk(c: Reading) -> list[str]:
    """aten::topk(x, k, dim, largest, sorted): values and their places."""
    axis = c.axis_of()
    value = c["k"]
    count = emit_reshape(c, value.name, [1], hint="k") if isinstance(value, Ref) else c.list64([value], "k")
    return _emit_top_k(c, count, axis, bool(c["largest"]), bool(c["sorted"]))


@with_arguments
def read_sort(c: Reading, *results: int) -> list[str] | str:
    """aten::sort: values and their places; argsort: the places; msort: the values along the first axis."""
    axis = _axis(c) if "dim" in c else 0
    found = _emit_top_k(c, c.list64([c.static_size(axis)], "k"), axis, bool(c.get("descending")), True)
    return [found[index] for index in results] if len(results) > 1 else found[results[0]]


@with_arguments
def read_cumulative(c: Reading, kind: str) -> str:
    """aten::cumsum(x, dim, dtype) and aten::cumprod: of whole numbers and truth values in int64."""
    tensor, wanted = c.operand(), c.dtype("dtype")
    c.require_plain(tensor.name)
    dtype = wanted or (tensor.dtype if tensor.dtype in REALS else "int64")
    return c.emit(kind, [cast_operand(c, tensor.name, dtype, "data")], axis=_axis(c))


def read_kth(c: Reading) -> list[str]:
    """aten::kthvalue(x, k, dim): the k-th smallest, and its place."""
    axis, count = c.axis_of(), c.integer("k")
    if count < 1:
        raise c.invalid(f"k is {count}; elements are counted from 1", rule="index-out-of-range")
    found = _emit_top_k(c, c.list64([count], "k"), axis, False, True)
    last = c.const(np.array(count - 1) if c["keepdim"] is False else np.array([count - 1]), "last")
    return [c.emit("Gather", [name, last], hint=hint, axis=axis) for name, hint in zip(found, ("value", "place"), strict=True)]


def _axis(c: Reading) -> int:
    """The axis that the call states; a tensor of rank 0 has one too."""
    return c.axis(c.integer("dim"), max(c.rank(), 1))


def _keepdims(c: Reading) -> int:
    """Whether the axes stay, with one element each."""
    return int(bool(c.get("keepdim")))


_SORTED = "i dim=-1, b descending=False"


def emit_reduction(c: Reading, kind: str, name: str = "", hint: str = "") -> str:
    """A reduction of a tensor, by default `self`, over the axes `dim` of the call, all of them where it has none."""
    axes = c.list64(c.axes("dim") if "dim" in c and c.rank() else [], "axes")
    return c.emit(kind, [name or c.name(), axes], hint=hint, keepdims=_keepdims(c))


def read_mean(c: Reading) -> str:
    """aten::mean: of float values, or of what is cast to the type that the call states."""
    wanted = c.dtype("dtype")
    name = as_real(c) if wanted is None else cast_operand(c, c.name(), wanted, "data")
    return emit_reduction(c, "ReduceMean", name)


@with_arguments
def read_total(c: Reading, kind: str) -> str:
    """aten::sum and prod: of integers and truth values in int64, unless the call states a type."""
    tensor, wanted = c.operand(), c.dtype("dtype")
    c.require_plain(tensor.name)
    if wanted is None and tensor.dtype not in REALS:
        wanted = "int64"
    return emit_reduction(c, kind, tensor.name if wanted is None else cast_operand(c, tensor.name, wanted, "data"))


#: aten::amax, amin, and max, min of all elements: the largest or smallest stored value.
read_extreme = with_arguments(emit_reduction)


@with_arguments
def read_extreme_with_position(c: Reading, kind: str, position: str) -> tuple[str, str]:
    """aten::max, min along an axis: the values, and the positions of the first of them."""
    values = emit_reduction(c, kind)
    return values, c.emit(position, [c.name()], hint="indices", axis=_axis(c), keepdims=_keepdims(c))


def read_truth(kind: str) -> ReadFunction:
    """aten::all and any: of what is not 0."""
    return lambda c: emit_reduction(c, kind, cast_operand(c, c["self"], "bool", "data"))


def read_norm(c: Reading) -> str:
    """aten::norm, linalg_vector_norm: the root of the sum of powers of magnitudes; of infinite order the largest or smallest."""
    order = c["ord"] if c["ord"] is not None else 2
    name = as_real(c)
    if c.lookup(name).is_quantized:
        name = emit_dequantize(c, name, hint="real")
    wanted = c.dtype("dtype")
    if wanted is not None:
        name = cast_operand(c, name, wanted, "data")
    if order in (1, 2):
        return emit_reduction(c, "ReduceL1" if order == 1 else "ReduceL2", name)
    magnitudes = c.emit("Abs", [name], hint="magnitudes")
    if math.isinf(order):
        return emit_reduction(c, "ReduceMax" if order > 0 else "ReduceMin", magnitudes)
    if order == 0:
        raise c.unsupported_error("order 0")
    powers = c.emit("Pow", [magnitudes, c.real_constant(order, name, "order")], hint="powers")
    total = emit_reduction(c, "ReduceSum", powers, hint="total")
    return c.emit("Pow", [total, c.real_constant(1 / order, name, "root_order")])


def _variance(c: Reading, name: str, hint: str) -> str:
    """The variance over the call's axes."""
    rank, shape = c.rank(), c.operand().shape or ()
    listed = c.axes("dim") if "dim" in c and rank else list(range(rank))
    sizes = [shape[axis] for axis in listed]
    correction = 1.0
    if "unbiased" in c:
        correction = 1.0 if c["unbiased"] else 0.0
    elif c["correction"] is not None:
        correction = c.number("correction")
    if correction and any(isinstance(size, str) for size in sizes):
        raise c.unknown_shape()
    axes = c.list64(listed, "axes")
    mean = c.emit("ReduceMean", [name, axes], hint="mean", keepdims=1)
    square = c.emit("Square", [c.emit("Sub", [name, mean], hint="difference")], hint="square")
    count = math.prod(int(size) for size in sizes) if correction else 1
    if correction and count <= correction:
        raise c.unsupported_error(f"a variance of {count} elements", rule="shape-not-covered")
    result = c.emit("ReduceMean", [square, axes], hint="population" if correction else hint, keepdims=_keepdims(c))
    return scale_values(c, result, count / (count - correction), hint) if correction else result


@with_arguments
def read_variance(c: Reading, root: bool, mean: bool = False) -> str | tuple[str, str]:
    """aten::var and std, also with the mean next to it; a quantized tensor keeps its quantization."""
    name, quantization = as_real(c), c.operand().quantization
    dtype = c.operand().dtype
    if quantization is not None:
        name = emit_dequantize(c, name, hint="real")
    hint = "variance" if root else "" if quantization is None else "exact"
    result = _variance(c, name, hint)
    if root:
        result = c.emit("Sqrt", [result], hint="" if quantization is None else "exact")
    if quantization is not None:
        result = c.emit("Quantize", [result], dtype=dtype, quantization=quantization)
    return (result, emit_reduction(c, "ReduceMean", name, hint="average")) if mean else result


_ALL_OR_SOME = ("T self", "T self, l? dim, b keepdim=False")
_TYPED = ", *, i? dtype=None"
_VAR = (
    "T self, b unbiased=True",
    "T self, l? dim, b unbiased, b keepdim=False",
    "T self, l? dim=None, f? correction=None, b keepdim=False",
)

OPERATORS: Mapping[str, ReadFunction] = {
    "aten::argmax(T self, i? dim=None, b keepdim=False)": read_place("ArgMax"),
    "aten::argmin(T self, i? dim=None, b keepdim=False)": read_place("ArgMin"),
    "aten::topk(T self, i k, i dim=-1, b largest=True, b sorted=True)": read_topk,
    f"aten::sort(T self, {_SORTED})": read_sort(0, 1),
    f"aten::sort(T self, b? stable, {_SORTED})": read_sort(0, 1),
    f"aten::argsort(T self, {_SORTED})": read_sort(1),
    f"aten::argsort(T self, b stable, {_SORTED})": read_sort(1),
    "aten::msort(T self)": read_sort(0),
    "aten::cumsum(T self, i dim, i? dtype=None)": read_cumulative("CumSum"),
    "aten::cumprod(T self, i dim, i? dtype=None)": read_cumulative("CumProd"),
    "aten::kthvalue(T self, i k, i dim=-1, b keepdim=False)": read_kth,
    **{f"aten::mean({form}{_TYPED})": read_mean for form in _ALL_OR_SOME},
    **{f"aten::sum({form}{_TYPED})": read_total("ReduceSum") for form in _ALL_OR_SOME},
    f"aten::prod(T self{_TYPED})": read_total("ReduceProd"),
    f"aten::prod(T self, i dim, b keepdim=False{_TYPED})": read_total("ReduceProd"),
    "aten::amax(T self, l dim=(), b keepdim=False)": read_extreme("ReduceMax"),
    "aten::amin(T self, l dim=(), b keepdim=False)": read_extreme("ReduceMin"),
    "aten::max(T self)": read_extreme("ReduceMax"),
    "aten::min(T self)": read_extreme("ReduceMin"),
    "aten::max(T self, T other)": read_binary("Max"),
    "aten::min(T self, T other)": read_binary("Min"),
    "aten::max(T self, i dim, b keepdim=False)": read_extreme_with_position("ReduceMax", "ArgMax"),
    "aten::min(T self, i dim, b keepdim=False)": read_extreme_with_position("ReduceMin", "ArgMin"),
    **{f"aten::all({form})": read_truth("ReduceAll") for form in _ALL_OR_SOME},
    **{f"aten::any({form})": read_truth("ReduceAny") for form in _ALL_OR_SOME},
    "aten::logsumexp(T self, l dim, b keepdim=False)": lambda c: emit_reduction(c, "ReduceLogSumExp", as_real(c)),
    "aten::frobenius_norm(T self, l dim, b keepdim=False)": lambda c: emit_reduction(c, "ReduceL2", as_real(c)),
    "aten::aminmax(T self, *, i? dim=None, b keepdim=False)": lambda c: (
        emit_reduction(c, "ReduceMin", hint="smallest"),
        emit_reduction(c, "ReduceMax", hint="largest"),
    ),
    f"aten::linalg_vector_norm(T self, f ord=2, l? dim=None, b keepdim=False{_TYPED})": read_norm,
    f"aten::norm(T self, f? ord=2{_TYPED})": read_norm,
    f"aten::norm(T self, f? ord, l dim, b keepdim=False{_TYPED})": read_norm,
    **{f"aten::{name}({form})": read_variance(root=name == "std") for name in ("var", "std") for form in _VAR},
    **{f"aten::{name}_mean({form})": read_variance(root=name == "std", mean=True) for name in ("var", "std") for form in _VAR},
}
