"""Reductions and running sums, of which no axes at all mean all of them, as in ONNX with noop_with_empty_axes = 0; and searches: which
elements are largest, smallest, or not zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qconvert.arithmetic import FLOAT_MEAN, TORCH_AVERAGES, tflite_wrapped_mean, torch_average, torch_mean, xnnpack_reduce
from qconvert.arithmetic.polynomials import add_polynomials, multiply_polynomials
from qconvert.arithmetic.storage import Array, Quantization, integer_range
from qconvert.graph.schema import Graph, Op
from qconvert.operators.attributes import KEEPDIMS, AttributeSpec, along_axis, choice, flag, has, integer, without_axes
from qconvert.operators.call import Call, ExactResult, Fold, Function, Result, is_plain
from qconvert.operators.kind import Kind
from qconvert.operators.properties import (
    ALONG_AXIS,
    MIXES,
    REDUCES,
    UNLESS_ALONG,
    WHEREVER,
    AxisMove,
    Bounds,
    Layout,
    Suits,
    any_value,
    fixed_bounds,
    unless_along,
    with_positive_axes,
    within_data,
)
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, Size, failure, normalize_axes, stated_axis

#: The type in which XNNPACK takes the data, by the arithmetic.
_XNNPACK = {"xnnpack_qs8": "int8", "xnnpack_qu8": "uint8"}


def _reduce_shape(op: Op, s: ShapeContext) -> Shapes:
    """No axes at all means all of them, as in ONNX with noop_with_empty_axes = 0."""
    axes, data = s.ints(1), s.known_shape(0)
    if s.has(1) and axes is None:
        shape = s.shape(1)
        count = shape[0] if shape is not None and len(shape) == 1 else ""
        left = len(data) if op["keepdims"] else len(data) - count if isinstance(count, int) and count else -1
        return [None if left < 0 else (UNKNOWN,) * left]
    return [without_axes(op, data, normalize_axes(op, axes or range(len(data)), len(data)))]


def _reduction_fold(function: Any) -> Fold:
    """A reduction of integers, which no order of adding changes."""

    def run(call: Call) -> Any:
        if not is_plain(call) or call.raw().dtype.kind not in "iu":
            return None
        return function(call.raw(), **_arguments(call)).astype(call.raw().dtype)

    return run


def _arguments(call: Call) -> dict[str, Any]:
    """Arguments of a numpy reduction; no axes at all mean all of them, as in ONNX."""
    return {"axis": tuple(call.ints(1)) or None, "keepdims": bool(call["keepdims"])}


def reduced_count(graph: Graph, op: Op) -> int | None:
    """How many elements of its data a reduction makes one of; None if that is not known."""
    data, axes = graph[op.inputs[0]], graph.constant(op.inputs[1]) if op.has(1) else np.array([], np.int64)
    if axes is None or data.shape is None:
        return None
    sizes = [data.shape[int(axis)] for axis in (axes.reshape(-1) if axes.size else range(len(data.shape)))]
    return math.prod(size for size in sizes if isinstance(size, int)) if all(isinstance(size, int) for size in sizes) else None


def reduce_as_xnnpack(
    arithmetic: str, total: Array, count: int, is_mean: bool, quantizations: tuple[Quantization, Quantization], dtype: str
) -> Array:
    """Return the stored results of XNNPACK's kernel for the type that `arithmetic` names, which data of the other one are shifted to.

    Args:
        arithmetic: of the reduction.
        total, count, is_mean: see arithmetic.xnnpack_reduce().
        quantizations: of data and result.
        dtype: of both.
    """
    kernel_dtype = _XNNPACK[arithmetic]
    shift = integer_range(dtype)[0] - integer_range(kernel_dtype)[0]
    given, output = (item.shift_zero_point(-shift) for item in quantizations)
    stored = xnnpack_reduce(total - shift * count, count, is_mean, given, output, kernel_dtype)
    return (stored.astype(np.int64) + shift).astype(dtype)


def _as_kernels(function: Callable[[Call], Array], *, is_mean: bool = False) -> Callable[[Call], Result]:
    """The real result; with an arithmetic the stored one is that of the kernel named."""

    def evaluate_rounded(call: Call) -> Result:
        real, tensor, result = function(call), call.tensors[0], call.results[0]
        given, output, arithmetic = call.quantization(), result.quantization, str(call["arithmetic"])
        if not arithmetic or tensor is None or tensor.dtype != result.dtype or given is None or output is None:
            return real
        total = np.asarray(call.raw().astype(np.int64).sum(**_arguments(call)))
        count, dtype = call.raw().size // max(total.size, 1), result.dtype
        if arithmetic == "tflite":
            return ExactResult(real, tflite_wrapped_mean(total, count, given, output, dtype)[0])
        if arithmetic in (*TORCH_AVERAGES, FLOAT_MEAN):
            same = given == output and given.is_per_tensor
            if same and arithmetic == FLOAT_MEAN:
                arguments = _arguments(call)
                return ExactResult(real, torch_mean(call.raw(), arguments["axis"], given, dtype, keepdims=arguments["keepdims"]))
            return ExactResult(real, torch_average(arithmetic, total, given, (count,), dtype)) if same else real
        return ExactResult(real, reduce_as_xnnpack(arithmetic, total, count, is_mean, (given, output), dtype))

    return evaluate_rounded


def _of_stored(function: Callable[..., Any]) -> Function:
    """A reduction that only chooses among stored values, or that is of plain values."""
    return lambda call: np.asarray(function(call.raw(), **_arguments(call)))


def _steps(call: Call) -> tuple[Array, Array | float]:
    """The data as (whole steps, scale); plain numbers as they are."""
    return (call.values(), 1) if call.quantization() is None else call.factor(0)


def reduce_sum(call: Call) -> Array:
    """ReduceSum of ONNX; plain integers wrap."""
    steps, scale = _steps(call)
    return np.asarray(steps.sum(**_arguments(call)) * scale)


def reduce_mean(call: Call) -> Array:
    """ReduceMean of ONNX; plain integers are divided towards zero."""
    count = math.prod(call.raw().shape[axis] for axis in call.ints(1) or range(call.raw().ndim))
    if call.quantization() is None and call.raw().dtype.kind in "iu":
        total = call.values().sum(**_arguments(call))
        return np.asarray(np.sign(total) * (np.abs(total) // count))
    steps, scale = _steps(call)
    return np.asarray(steps.sum(**_arguments(call)) / count * scale)


def reduce_l1(call: Call) -> Array:
    """ReduceL1 of ONNX: the sum of absolute values."""
    steps, scale = _steps(call)
    return np.asarray(np.abs(steps).sum(**_arguments(call)) * scale)


def reduce_sum_square(call: Call) -> Array:
    """ReduceSumSquare of ONNX: the sum of squares."""
    steps, scale = _steps(call)
    return np.asarray(np.square(steps).sum(**_arguments(call)) * (scale * scale))


def reduce_log_sum_exp(call: Call) -> Array:
    """ReduceLogSumExp of ONNX, log(sum(exp(x))), with the largest value taken out so that nothing overflows."""
    return np.asarray(np.logaddexp.reduce(call.values().astype(np.float64), **_arguments(call)))


def cumulative_sum(call: Call) -> Array:
    """CumSum of ONNX, with its exclusive and reverse forms."""
    steps, scale = _steps(call)
    axis = int(call["axis"])
    steps = np.flip(steps, axis) if call["reverse"] else steps
    total = np.cumsum(steps, axis)
    total = total - steps if call["exclusive"] else total
    return np.asarray((np.flip(total, axis) if call["reverse"] else total) * scale)


def cumulative_product(call: Call) -> Array:
    """CumProd of ONNX (opset 26), with its exclusive and reverse forms; products of integers wrap around in their type."""
    values, axis = call.values(), int(call["axis"])
    values = np.flip(values, axis) if call["reverse"] else values
    total = np.cumprod(values, axis, values.dtype)
    if call["exclusive"]:
        total = np.roll(total, 1, axis)
        np.moveaxis(total, axis, 0)[:1] = 1
    return np.asarray(np.flip(total, axis) if call["reverse"] else total)


def _keeps_unreduced_axis(move: AxisMove) -> bool:
    """Scales along a dimension that remains survive; without known axes none may."""
    gone = move.constant(1) % len(move.before)
    return gone.size > 0 and move.a not in gone and move.b == (move.a if move.op["keepdims"] else move.a - int((gone < move.a).sum()))


_ARITHMETIC = ("", *_XNNPACK, "tflite")


def _reduction(name: str, evaluate: Callable[[Call], Result], fold: Fold | None = None, bounds: Bounds = any_value,
               attributes: Mapping[str, AttributeSpec] = KEEPDIMS, **more: Any) -> Kind:  # fmt: skip
    return Kind(name, "data index", shape=_reduce_shape, evaluate=evaluate, fold=fold, layout=REDUCES, bounds=bounds, samples=WHEREVER,
                canonical=with_positive_axes, by_place=False, attributes=attributes, **more)  # fmt: skip


_CHOICE: Mapping[str, Any] = {"rule": "move", "bounds": within_data, "keeps_axis": _keeps_unreduced_axis}


def _cumulative(name: str, evaluate: Callable[[Call], Array]) -> Kind:
    return Kind(name, shape=along_axis, evaluate=evaluate, samples=UNLESS_ALONG, bounds=any_value, layout=ALONG_AXIS,
                attributes=has(axis=integer(), exclusive=flag(0), reverse=flag(0)))  # fmt: skip


def _arg_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.known_shape(0)
    axis = stated_axis(op, len(data))
    if data[axis] == 0:
        raise failure(op, f"there is nothing to search along axis {axis} of shape {data}", rule="empty-axis")
    return [without_axes(op, data, [axis])]


def _topk_shape(op: Op, s: ShapeContext) -> Shapes:
    data, k = s.shape(0), s.ints(1)
    if data is None:
        return [None, None]
    axis = stated_axis(op, len(data))
    if k is not None and len(k) != 1:
        raise failure(op, f"k is {k}, not one number", rule="not-a-scalar")
    count: Size = UNKNOWN if k is None else k[0]
    size = data[axis]
    if isinstance(count, int) and (count < 0 or (isinstance(size, int) and count > size)):
        raise failure(op, f"k is {count}, but the axis has {size} elements", rule="too-many-elements")
    shape = (*data[:axis], count, *data[axis + 1 :])
    return [shape, shape]


def _non_zero_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.shape(0)
    return [None if data is None else (len(data), UNKNOWN)]


def top_k(call: Call) -> list[Array]:
    """TopK of ONNX: of equal values the one with the lower index comes first."""
    data, axis = call.raw(), int(call["axis"])
    (k,) = call.ints(1)
    keys = data.astype(np.float64 if data.dtype.kind == "f" else np.int64)
    order = np.argsort(-keys if call["largest"] else keys, axis=axis, kind="stable")
    order = order.take(range(k), axis=axis)
    return [np.take_along_axis(data, order, axis), order]


def unique(call: Call) -> list[Array]:
    """Unique of ONNX, unsorted: the different values in the order in which they come first, and for each element which one it is."""
    data = call.raw().reshape(-1)
    values, first, inverse = np.unique(data, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return [values[order], places[inverse.reshape(-1)]]


def _unique_shape(op: Op, s: ShapeContext) -> Shapes:
    data = s.shape(0)
    if data is not None and len(data) != 1:
        raise failure(op, f"data of shape {data} are not a vector", rule="wrong-rank")
    return [(UNKNOWN,), data]


def _place_of(name: str, function: Callable[..., Any]) -> Kind:
    """The first index of an extreme value."""
    return Kind(name, samples=UNLESS_ALONG, ranks=True, compares=True, shape=_arg_shape, rule="index",
                evaluate=lambda call: np.asarray(function(call.values(), axis=call["axis"], keepdims=bool(call["keepdims"]))),
                layout=Layout(Suits.REDUCES), types="any -> index", attributes=has(KEEPDIMS, axis=integer(0)))  # fmt: skip


KINDS = (
    _reduction(
        "ReduceMean",
        _as_kernels(reduce_mean, is_mean=True),
        bounds=within_data,
        averages=True,
        keeps_range=True,
        attributes=has(KEEPDIMS, arithmetic=choice((*_ARITHMETIC, *TORCH_AVERAGES, FLOAT_MEAN), "")),
    ),
    _reduction(
        "ReduceSum",
        _as_kernels(reduce_sum),
        _reduction_fold(np.sum),
        averages=True,
        polynomial=add_polynomials,
        attributes=has(KEEPDIMS, arithmetic=choice(_ARITHMETIC, "")),
    ),
    _reduction(
        "ReduceProd",
        lambda call: np.asarray(call.values().prod(**_arguments(call))),
        _reduction_fold(np.prod),
        polynomial=multiply_polynomials,
    ),
    _reduction("ReduceL1", reduce_l1, bounds=fixed_bounds(0.0)),
    _reduction("ReduceL2", lambda call: np.sqrt(reduce_sum_square(call)), bounds=fixed_bounds(0.0)),
    _reduction("ReduceSumSquare", reduce_sum_square, bounds=fixed_bounds(0.0)),
    _reduction("ReduceLogSum", lambda call: np.log(reduce_sum(call))),
    _reduction("ReduceLogSumExp", reduce_log_sum_exp),
    _reduction("ReduceMax", _of_stored(np.max), _reduction_fold(np.max), **_CHOICE, rounds_once=True),
    _reduction("ReduceMin", _of_stored(np.min), _reduction_fold(np.min), **_CHOICE, rounds_once=True),
    _reduction("ReduceAny", _of_stored(np.any), rule="plain", types="bool any -> bool"),
    _reduction("ReduceAll", _of_stored(np.all), rule="plain", types="bool any -> bool"),
    _cumulative("CumSum", cumulative_sum),
    _cumulative("CumProd", cumulative_product),
    Kind("Unique", "data", "data index", samples=MIXES, shape=_unique_shape, rule="plain", evaluate=unique, types="T -> T index"),
    _place_of("ArgMax", np.argmax),
    _place_of("ArgMin", np.argmin),
    Kind(
        "TopK",
        "data index",
        "data index",
        samples=UNLESS_ALONG,
        domain=lambda operands, number: [(1, 1, operands.size(0, operands.op["axis"], number))],
        ranks=True,
        shape=_topk_shape,
        rule="move",
        by_place=False,
        evaluate=top_k,
        layout=ALONG_AXIS,
        keeps_axis=unless_along,
        types="T any -> T index",
        attributes=has(axis=integer(-1), largest=flag(1), sorted=flag(1)),
    ),
    Kind(
        "NonZero",
        samples=MIXES,
        shape=_non_zero_shape,
        rule="index",
        evaluate=lambda call: np.array(np.nonzero(call.values())),
        types="any -> index",
    ),
)
