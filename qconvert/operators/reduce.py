"""Reductions and running sums. No axes at all mean all of them, as in ONNX with noop_with_empty_axes = 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.arithmetic import TORCH_AVERAGES, tflite_wrapped_mean, torch_average, xnnpack_reduce
from qconvert.arithmetic.polynomials import Polynomial, add_polynomials, multiply_polynomials
from qconvert.arithmetic.storage import Array, integer_range
from qconvert.graph.schema import Graph, Op
from qconvert.operators.attributes import (
    KEEPDIMS,
    AttributeSpec,
    along_axis,
    choice,
    flag,
    has,
    integer,
    without_axes,
)
from qconvert.operators.call import (
    Call,
    ExactResult,
    Fold,
    Function,
    Result,
    is_plain,
)
from qconvert.operators.kind import Kind
from qconvert.operators.properties import (
    ALONG_AXIS,
    REDUCES,
    UNLESS_ALONG,
    WHEREVER,
    AxisMove,
    Bounds,
    any_value,
    fixed_bounds,
    with_positive_axes,
    within_data,
)
from qconvert.operators.sizes import UNKNOWN, ShapeContext, Shapes, normalize_axes

#: The type in which XNNPACK takes the data, by the arithmetic.
_XNNPACK = {"xnnpack_qs8": "int8", "xnnpack_qu8": "uint8"}


def _reduce_shape(op: Op, s: ShapeContext) -> Shapes:
    """No axes at all means all of them, as in ONNX with noop_with_empty_axes = 0."""
    data, axes = s.shape(0), s.ints(1)
    if data is None:
        return [None]
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
        if arithmetic in TORCH_AVERAGES:
            same = given == output and given.is_per_tensor
            return ExactResult(real, torch_average(arithmetic, total, given, (count,), dtype)) if same else real
        kernel_dtype = _XNNPACK[arithmetic]
        shift = integer_range(dtype)[0] - integer_range(kernel_dtype)[0]
        quantizations = given.shift_zero_point(-shift), output.shift_zero_point(-shift)
        stored = xnnpack_reduce(total - shift * count, count, is_mean, *quantizations, kernel_dtype)
        return ExactResult(real, (stored.astype(np.int64) + shift).astype(dtype))

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


_ARITHMETIC = choice(("", *_XNNPACK, "tflite"), "")


def _reduction(name: str, evaluate: Callable[[Call], Result], fold: Fold | None = None, *, rule: str = "real", types: str = "",
               bounds: Bounds = any_value, averages: bool = False, keeps_range: bool = False,
               polynomial: Callable[..., Polynomial | None] | None = None, **attributes: AttributeSpec) -> Kind:  # fmt: skip
    keeps_axis = _keeps_unreduced_axis if rule == "move" else None
    return Kind(name, "data index", shape=_reduce_shape, rule=rule, evaluate=evaluate, fold=fold, layout=REDUCES, keeps_axis=keeps_axis,
                types=types, attributes=has(KEEPDIMS, **attributes), samples=WHEREVER, bounds=within_data if rule == "move" else bounds,
                canonical=with_positive_axes, averages=averages, keeps_range=keeps_range or rule == "move", by_place=False,
                polynomial=polynomial)  # fmt: skip


def _cumulative(name: str, evaluate: Callable[[Call], Array]) -> Kind:
    return Kind(name, shape=along_axis, evaluate=evaluate, samples=UNLESS_ALONG, bounds=any_value, layout=ALONG_AXIS,
                attributes=has(axis=integer(), exclusive=flag(0), reverse=flag(0)))  # fmt: skip


KINDS = (
    _reduction(
        "ReduceMean",
        _as_kernels(reduce_mean, is_mean=True),
        bounds=within_data,
        averages=True,
        keeps_range=True,
        arithmetic=choice((*_ARITHMETIC.choices, *TORCH_AVERAGES), ""),
    ),
    _reduction(
        "ReduceSum", _as_kernels(reduce_sum), _reduction_fold(np.sum), averages=True, polynomial=add_polynomials, arithmetic=_ARITHMETIC
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
    _reduction("ReduceMax", _of_stored(np.max), _reduction_fold(np.max), rule="move"),
    _reduction("ReduceMin", _of_stored(np.min), _reduction_fold(np.min), rule="move"),
    _reduction("ReduceAny", _of_stored(np.any), rule="plain", types="bool any -> bool"),
    _reduction("ReduceAll", _of_stored(np.all), rule="plain", types="bool any -> bool"),
    _cumulative("CumSum", cumulative_sum),
    _cumulative("CumProd", cumulative_product),
)
