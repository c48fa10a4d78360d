"""The integers of LiteRT's kernels, XNNPACK's and TFLite's own, also where their 32 bits overflow or C leaves the result undefined; the
sources are in arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import (
    tflite_add,
    tflite_comparison_tables,
    tflite_curve,
    tflite_divide,
    tflite_hard_swish,
    tflite_leaky_relu,
    tflite_logarithm,
    tflite_requantize,
    tflite_softmax,
    tflite_wrapped_mean,
    xnnpack_add,
    xnnpack_leaky_relu,
    xnnpack_requantize,
)
from qconvert.arithmetic.additions import Addition
from qconvert.arithmetic.rounding import round_half_away
from qconvert.graph import Array, Graph, Op, Quantization, integer_range
from qconvert.kernels.kernel import Integers, activated_range

__all__ = [
    "COMPARISONS",
    "add",
    "add_by_xnnpack",
    "compare",
    "curve",
    "divide",
    "hard_swish",
    "leaky_relu",
    "logarithm",
    "lookup_table",
    "mean",
    "requantize",
    "requantize_by_xnnpack",
    "softmax",
]

COMPARISONS = {"Equal": np.equal, "NotEqual": np.not_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
                "Less": np.less, "LessOrEqual": np.less_equal}  # fmt: skip


def _to_integers(found: tuple[Array, bool]) -> Integers:
    """Return the integers of a kernel that computes all elements alike, with the fault if something overflows."""
    return Integers((found[0],), "overflows" if found[1] else "")


def _quantizations(graph: Graph, names: Sequence[str]) -> list[Quantization]:
    """Return the quantizations of tensors; none unless each has one scale."""
    quantizations = [graph[name].quantization for name in names]
    found = [quantization for quantization in quantizations if quantization is not None and quantization.is_per_tensor]
    return found if len(found) == len(quantizations) else []


def _add_bytes(graph: Graph, op: Op, stored: Sequence[Any], kernel: Addition) -> Integers | None:
    names = *op.inputs, *op.outputs
    quantizations, types = _quantizations(graph, names), {graph[name].dtype for name in names}
    if len(quantizations) != 3 or types not in ({"int8"}, {"uint8"}) or any(value is None for value in stored):
        return None
    return Integers.clip_to_limits(
        graph, op, kernel(stored[0], stored[1], (quantizations[0], quantizations[1]), quantizations[2], graph[op.outputs[0]].dtype)
    )


def add(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """ADD of bytes by TFLite's own kernels; see arithmetic.tflite_add()."""
    return _add_bytes(graph, op, stored, tflite_add)


def add_by_xnnpack(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """ADD of bytes by XNNPACK; see arithmetic.xnnpack_add()."""
    return _add_bytes(graph, op, stored, xnnpack_add)


def leaky_relu(graph: Graph, op: Op, stored: Sequence[Any], own: bool) -> Integers | None:
    """LEAKY_RELU of bytes; see arithmetic.xnnpack_leaky_relu() and tflite_leaky_relu().

    Args:
        graph, op, stored: as of any reference.
        own: by TFLite's own kernel, not by XNNPACK's.
    """
    quantizations, dtype = _quantizations(graph, (op.inputs[0], op.outputs[0])), graph[op.outputs[0]].dtype
    if not quantizations or graph[op.inputs[0]].dtype != dtype or dtype not in ("int8", "uint8"):
        return None
    kernel = tflite_leaky_relu if own else xnnpack_leaky_relu
    return Integers((kernel(stored[0], quantizations[0], quantizations[1], dtype, float(op["alpha"])),))


def requantize_by_xnnpack(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """QUANTIZE from bytes to bytes by XNNPACK; see arithmetic.xnnpack_requantize()."""
    quantizations = _quantizations(graph, (op.inputs[0], op.outputs[0]))
    return (
        Integers((xnnpack_requantize(stored[0], quantizations[0], quantizations[1], graph[op.outputs[0]].dtype),))
        if quantizations
        else None
    )


def hard_swish(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """HARD_SWISH of bytes; see arithmetic.tflite_hard_swish()."""
    quantizations, dtype = _quantizations(graph, (op.inputs[0], op.outputs[0])), graph[op.outputs[0]].dtype
    return (
        Integers((tflite_hard_swish(stored[0], quantizations[0], quantizations[1], dtype),))
        if quantizations and dtype in ("int8", "uint8")
        else None
    )


def lookup_table(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """A function of bytes: the kernel computes a table in float32 when it is prepared (LUTPopulate in common.h, activations.cc,
    elementwise.cc)."""
    quantizations = _quantizations(graph, (op.inputs[0], op.outputs[0]))
    if not quantizations:
        return None
    given, result = quantizations
    one, steps = np.float32(1), np.asarray(stored[0], np.int64) - given.zero_point[0]
    with np.errstate(all="ignore"):
        values = _FUNCTIONS[op.kind](np.float32(given.scale[0]) * steps.astype(np.float32)) * (one / np.float32(result.scale[0]))
    whole = round_half_away(np.clip(values.astype(np.float64), -(2.0**31), 2.0**31))
    return Integers.clip_to_limits(graph, op, whole + result.zero_point[0])


_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "Sigmoid": lambda x: np.asarray(np.float32(1) / (np.float32(1) + np.exp(-x))),
    "Tanh": np.tanh,
    "Exp": np.exp,
    "Log": np.log,
}


def requantize(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    result, quantizations = graph[op.outputs[0]], _quantizations(graph, (op.inputs[0], op.outputs[0]))
    return _to_integers(tflite_requantize(stored[0], quantizations[0], quantizations[1], result.dtype)) if quantizations else None


def _sixteen_bits(graph: Graph, op: Op, stored: Sequence[Any]) -> Quantization | None:
    """The quantization of int16 data, if the result is int16 too and there are any."""
    names = op.inputs[0], op.outputs[0]
    quantizations = _quantizations(graph, names)
    return quantizations[0] if quantizations and stored[0].size and all(graph[name].dtype == "int16" for name in names) else None


def mean(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """MEAN of int16. The result's scale may be far below that of the data if calibration saw only means of 0."""
    quantization, results = _sixteen_bits(graph, op, stored), _quantizations(graph, op.outputs)
    if quantization is None or not results or results[0] == quantization:  # of one quantization the kernel divides
        return None
    axes = tuple(int(axis) for axis in stored[1].reshape(-1)) if len(stored) > 1 and stored[1] is not None else ()
    total = stored[0].astype(np.int64).sum(axis=axes or None, keepdims=bool(op["keepdims"]))
    return _to_integers(tflite_wrapped_mean(stored[0], np.asarray(total), quantization, results[0], "int16"))


def softmax(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    quantization = _sixteen_bits(graph, op, stored)
    return (
        None
        if quantization is None
        else _to_integers(tflite_softmax(stored[0], float(quantization.scale[0]), float(op["beta"]), int(op["axis"])))
    )


def curve(graph: Graph, op: Op, stored: Sequence[Any], plain: bool) -> Integers | None:
    """Sigmoid and Tanh of int16.

    Args:
        graph, op, stored: as of any reference.
        plain: of the reference kernels, not of the optimized ones.
    """
    quantization = _sixteen_bits(graph, op, stored)
    return None if quantization is None else _to_integers(tflite_curve(stored[0], float(quantization.scale[0]), op.kind, plain))


def logarithm(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    quantization, results = _sixteen_bits(graph, op, stored), _quantizations(graph, op.outputs)
    if quantization is None or not results:
        return None
    return _to_integers(tflite_logarithm(stored[0], float(quantization.scale[0]), float(results[0].scale[0])))


def divide(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """DIV, also with quotients that need shifts undefined in C."""
    names = *op.inputs, *op.outputs
    quantizations, types = _quantizations(graph, names), {graph[name].dtype for name in names}
    if any(value is None for value in stored[:2]) or not quantizations or len(types) > 1 or not types < {"int8", "uint8", "int16"}:
        return None
    limits = activated_range(graph, op)
    values, divisors = np.broadcast_arrays(*stored)
    return _to_integers(tflite_divide(values, divisors, quantizations[0], quantizations[1], quantizations[2], limits))


def compare(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """Comparisons of bytes at scales from 1 on: in vectors, and after the last one."""
    quantizations, types = _quantizations(graph, op.inputs), [graph[name].dtype for name in op.inputs]
    if any(value is None for value in stored[:2]) or not quantizations or not set(types) <= {"int8", "uint8"}:
        return None
    tables = [tflite_comparison_tables(quantization, dtype) for quantization, dtype in zip(quantizations, types, strict=True)]
    places = [data.astype(np.int64) - integer_range(dtype)[0] for data, dtype in zip(stored, types, strict=True)]
    ways = [[forms[end][place] for forms, place in zip(tables, places, strict=True)] for end in (0, -1)]
    overflows = any(len(forms) > 1 for forms in tables)
    return Integers(tuple(np.asarray(COMPARISONS[op.kind](*sides)) for sides in ways), "overflows" if overflows else "")
