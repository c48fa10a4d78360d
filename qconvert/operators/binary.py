"""Functions of pairs of elements, with broadcasting."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from qconvert.arithmetic import (
    ADDITIONS,
    INTEGER_FACTORS,
    has_addition,
    is_same_addition,
    nudge_add_scales,
    onnxruntime_add,
    rescale_once,
    rescale_twice,
    rounds_pairs_once,
    tflite_pair,
)
from qconvert.arithmetic.additions import Addition
from qconvert.arithmetic.polynomials import (
    add_polynomials,
    divide_polynomials,
    find_larger,
    find_smaller,
    floor_divide_polynomials,
    multiply_polynomials,
    remainder_of_polynomials,
    subtract_polynomials,
)
from qconvert.arithmetic.storage import Array, Quantization, integer_range
from qconvert.graph.schema import Graph, Op
from qconvert.operators.attributes import ACTIVATION, broadcast_shape, choice, has
from qconvert.operators.call import (
    Call,
    ExactResult,
    Fold,
    Result,
    apply_activation,
    clip_stored,
    extreme_fold,
    floor_fold,
    is_undefined,
    numeric_fold,
    on_values,
)
from qconvert.operators.kind import Kind
from qconvert.operators.properties import ANY, ELEMENTWISE, POSITIVE, Bounds, Demand, Interval, Number, Operands, any_value, fixed_bounds


def divide(a: Array, b: Array) -> Array:
    """a / b; integers are divided towards zero, as in ONNX and TFLite."""
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        return np.asarray(a / b)
    return np.asarray((a - np.fmod(a, b)) // b)


def add(call: Call) -> Result:
    """Add; with an `arithmetic` the stored result is that of the kernel named, while the real one stays exact."""
    real = apply_activation(np.asarray(call.values(0) + call.values(1)), call["activation"])
    first, second, output = call.quantization(0), call.quantization(1), call.results[0].quantization
    if call["arithmetic"] == "tflite":
        return _as_tflite(1, call, real)
    name = str(call["arithmetic"])
    if first is None or second is None or output is None or not has_addition(name, (first, second), output):
        return real
    stored = ADDITIONS[name](call.raw(0), call.raw(1), (first, second), output, call.results[0].dtype)
    return ExactResult(real, clip_stored(call, stored))


def subtract(call: Call) -> Result:
    """Sub."""
    return _as_tflite(-1, call, apply_activation(np.asarray(call.values(0) - call.values(1)), call["activation"]))


def multiply(call: Call) -> Result:
    """Mul: the product of the whole steps is exact, and is scaled once."""
    if call.quantization(0) is None and call.quantization(1) is None:
        return apply_activation(np.asarray(call.values(0) * call.values(1)), call["activation"])
    (a, a_scale), (b, b_scale) = call.factor(0), call.factor(1)
    return _as_tflite(0, call, apply_activation(np.asarray(a * b * (a_scale * b_scale)), call["activation"]))


def _as_tflite(sign: int, call: Call, real: Array) -> Result:
    """The real result; with the arithmetic "tflite" the stored one is that of TFLite's kernels of 16-bit data."""
    first, second, output = call.quantization(0), call.quantization(1), call.results[0].quantization
    if call["arithmetic"] != "tflite" or first is None or second is None or output is None:
        return real
    operands = call.raw(0), call.raw(1)
    rescale = rescale_once if rounds_pairs_once(sign, *map(np.shape, operands)) else rescale_twice
    stored = tflite_pair(sign, *operands, (first, second), output, rescale=rescale)
    return ExactResult(real, clip_stored(call, stored))


def nudge_input_scales(graph: Graph, op: Op) -> tuple[Quantization, Quantization] | None:
    """The quantizations next to its inputs' own at which an Add in float32 gives its `arithmetic`'s integers, if it has one; None if there
    are none.

    A constant would be read with the scale next to its own, as nothing else states it.
    """
    if op.kind != "Add" or op["arithmetic"] not in ADDITIONS or any(graph[name].is_constant for name in op.inputs):
        return None
    first, second, output = (graph[name].quantization for name in op.names)
    if first is None or second is None or output is None:
        return None
    return nudge_add_scales((first, second), output, integer_range(graph[op.name].dtype)[0], str(op["arithmetic"]))


def is_onnxruntime_add(graph: Graph, op: Op) -> bool:
    """Whether onnxruntime's own addition gives the integers of an Add's `arithmetic`, for all pairs of inputs."""
    tensors = [graph[name] for name in op.names]
    first, second, output = (tensor.quantization for tensor in tensors)
    kernel, types = str(op["arithmetic"]), {tensor.dtype for tensor in tensors}
    if types not in ({"int8"}, {"uint8"}) or first is None or second is None or output is None:
        return False
    return has_addition(kernel, (first, second), output) and all(
        is_same_addition(kernel, addition, (first, second), output, tensors[0].dtype) for addition in onnxruntime_additions(graph, op)
    )


def has_onnx_addition(graph: Graph, op: Op) -> bool:
    """Whether ONNX has operators that give the integers of an Add's `arithmetic` for all pairs of inputs."""
    quantizations = [graph[name].quantization for name in op.names]
    first, second, output = quantizations if len(quantizations) == 3 else (None,) * 3
    if first is None or second is None or output is None or not has_addition(str(op["arithmetic"]), (first, second), output):
        return False
    return op["arithmetic"] in INTEGER_FACTORS or is_onnxruntime_add(graph, op) or nudge_input_scales(graph, op) is not None


def onnxruntime_additions(graph: Graph, op: Op) -> tuple[Addition, ...]:
    """The additions of onnxruntime, one of which runs an Add; see arithmetic.onnxruntime_add().

    Its operands change places where one number of the first meets several of the second (qlinear_binary_op.cc, Input0Scalar), in an order
    of axes that the optimizer may change.
    """
    return (onnxruntime_add, _add_reversed) if _is_stretched(graph, op) else (onnxruntime_add,)


def _add_reversed(a: Any, b: Any, inputs: tuple[Quantization, Quantization], output: Quantization, dtype: str) -> Array:
    return onnxruntime_add(b, a, inputs[::-1], output, dtype)


def _is_stretched(graph: Graph, op: Op) -> bool:
    """Whether the first of two operands is broadcast, or may be."""
    first, second = (graph[name].shape for name in op.inputs)
    if first is None or second is None:
        return True
    sizes = (1,) * (len(second) - len(first)) + tuple(first)
    pairs = zip(sizes[-len(second) :], second, strict=False)
    return any((own == 1 or isinstance(own, str)) and other not in (own, 1) for own, other in pairs)


def power(a: Array, b: Array) -> Array:
    """a ** b; an integer to a negative power is rounded towards zero."""
    if a.dtype.kind == "f" or b.dtype.kind == "f" or not (b < 0).any():
        return np.asarray(a**b)
    return np.asarray(np.trunc(a.astype(np.float64) ** b).astype(np.int64))


def prelu(a: Array, slope: Array) -> Array:
    """PRelu of ONNX; the slope broadcasts against the data."""
    return np.where(a < 0, a * slope, a)


def _divide_fold(a: Array, b: Array) -> Any:
    """a / b, but of integers not where C leaves the result undefined."""
    return None if a.dtype.kind != "f" and is_undefined(a, b) else divide(a, b)


def _grow_with(function: Callable[[Iterable[float]], float]) -> Bounds:
    """The bounds of a function that grows with each of its data."""
    return lambda operands: (function(low for low, _ in operands.data), function(high for _, high in operands.data))


def _difference(operands: Operands) -> Interval:
    a, b = operands.data
    return a[0] - b[1], a[1] - b[0]


def _product(operands: Operands) -> Interval:
    ends = [0.0 if 0 in (x, y) else x * y for x in operands.data[0] for y in operands.data[1]]
    return min(ends), max(ends)


def _summands(operands: Operands, wanted: Interval) -> Iterator[Demand]:
    """What a constant that is added leaves of an interval."""
    for index, (least, most) in ((1, operands.intervals[0]), (0, operands.intervals[1])):
        if (least, most) != ANY:
            yield index, wanted[0] - least, wanted[1] - most


def _minuend_or_subtrahend(operands: Operands, wanted: Interval) -> Iterator[Demand]:
    first, second = operands.intervals
    if second != ANY:
        yield 0, wanted[0] + second[1], wanted[1] + second[0]
    if first != ANY:
        yield 1, first[1] - wanted[1], first[0] - wanted[0]


def _factors(operands: Operands, wanted: Interval) -> Iterator[Demand]:
    """What a positive constant that is multiplied leaves of an interval."""
    low, high = wanted
    for index, (least, most) in ((1, operands.intervals[0]), (0, operands.intervals[1])):
        if least > 0:
            yield index, low / (most if low > 0 else least), high / (most if high > 0 else least)


def _dividend(operands: Operands, wanted: Interval) -> Iterator[Demand]:
    (low, high), (least, most) = wanted, operands.intervals[1]
    if least > 0:
        yield 0, low * (most if low > 0 else least), high * (least if high > 0 else most)


def _divisor(operands: Operands, number: Number) -> Iterator[Demand]:
    tensor = operands.tensor(1)
    if tensor is not None and not tensor.is_quantized:
        yield 1, 1.0 if "int" in tensor.dtype else POSITIVE, math.inf


def _exponent(operands: Operands, number: Number) -> Iterator[Demand]:
    """A real power of a negative number is no number, a large one no finite one."""
    exponent, data = operands.constant(1), operands.tensor(0)
    if data is not None and "float" in data.dtype and (exponent is None or (exponent != np.rint(exponent)).any()):
        yield 0, POSITIVE, math.inf


_elementwise = functools.partial(Kind, takes="data data", shape=broadcast_shape, layout=ELEMENTWISE)


def _pair(name: str, function: Callable[[Array, Array], Any], fold: Fold | None = None, bounds: Bounds = any_value,
          **more: Any) -> Kind:  # fmt: skip
    """An operator that is a numpy function of its two inputs."""
    return _elementwise(name, evaluate=on_values(function), fold=fold, bounds=bounds, **more)


_SIXTEEN = choice(("", "tflite"), "")

KINDS = (
    _elementwise(
        "Add",
        evaluate=add,
        bounds=_grow_with(sum),
        affine=lambda place, values: (1.0, values),
        sum_sign=1,
        preimage=_summands,
        polynomial=add_polynomials,
        fold=numeric_fold(np.add),
        attributes=has(ACTIVATION, arithmetic=choice(("", *ADDITIONS, "tflite"), "")),
        rounds_once=True,
    ),
    _elementwise(
        "Sub",
        evaluate=subtract,
        bounds=_difference,
        affine=lambda place, values: (1.0, -values) if place else (-1.0, values),
        sum_sign=-1,
        preimage=_minuend_or_subtrahend,
        polynomial=subtract_polynomials,
        fold=numeric_fold(np.subtract),
        attributes=has(ACTIVATION, arithmetic=_SIXTEEN),
        rounds_once=True,
    ),
    _elementwise(
        "Mul",
        evaluate=multiply,
        affine=lambda place, values: (values, 0.0),
        product_sign=1,
        bounds=_product,
        preimage=_factors,
        polynomial=multiply_polynomials,
        fold=numeric_fold(np.multiply),
        attributes=has(ACTIVATION, arithmetic=_SIXTEEN),
        rounds_once=True,
    ),
    _elementwise(
        "Div",
        evaluate=lambda call: apply_activation(divide(call.values(0), call.values(1)), call["activation"]),
        affine=lambda place, values: (1 / values, 0.0) if place else None,
        product_sign=-1,
        bounds=any_value,
        domain=_divisor,
        preimage=_dividend,
        polynomial=divide_polynomials,
        fold=numeric_fold(_divide_fold),
        attributes=has(ACTIVATION),
        rounds_once=True,
    ),
    _pair("Max", np.maximum, extreme_fold(np.maximum), _grow_with(max), chooses=True, picks=1, polynomial=find_larger, rounds_once=True),
    _pair("Min", np.minimum, extreme_fold(np.minimum), _grow_with(min), chooses=True, picks=-1, polynomial=find_smaller, rounds_once=True),
    _pair("Pow", power, domain=_exponent),
    _pair("FloorDiv", np.floor_divide, floor_fold(np.floor_divide), polynomial=floor_divide_polynomials),
    _pair("FloorMod", np.mod, floor_fold(np.mod), polynomial=remainder_of_polynomials),
    _pair("Mod", np.fmod),
    _pair("SquaredDifference", lambda a, b: (a - b) ** 2, None, fixed_bounds(0.0)),
    _pair("PRelu", prelu, scales_channels=True, rounds_once=True),
    _pair("Atan2", np.arctan2, None, fixed_bounds(-np.pi, np.pi)),
    Kind(
        "Sum",
        "data...",
        shape=broadcast_shape,
        bounds=_grow_with(sum),
        evaluate=lambda call: np.asarray(functools.reduce(np.add, call.all_values())),
        layout=ELEMENTWISE,
    ),
)
