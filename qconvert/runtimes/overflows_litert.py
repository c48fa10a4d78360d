"""What TFLite's kernels give where their 32 bits overflow, or C leaves open what they do (arithmetic: wrapped, division, comparisons)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qconvert.arithmetic import (
    tflite_compared,
    tflite_curve,
    tflite_divide,
    tflite_logarithm,
    tflite_requantize,
    tflite_softmax,
    tflite_wrapped_mean,
)
from qconvert.graph import Array, Graph, Op, Quantization, integer_range
from qconvert.graph.activations import ACTIVATIONS, clip_range

__all__ = ["overflows"]

_COMPARISONS = {"Equal": np.equal, "NotEqual": np.not_equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
                "Less": np.less, "LessOrEqual": np.less_equal}  # fmt: skip


#: What a kernel gives, in either form where parts of it do not compute alike, and whether something overflows on the way; None where its
#: integers are not known.
_Found = tuple[Array | tuple[Array, ...], bool] | None


def overflows(graph: Graph, op: Op, inputs: list[Array | None], kernels: str) -> tuple[Array, ...] | None:
    """See plugins.Runtime."""
    stored = [value for value in inputs if value is not None]
    if op.kind not in _KERNELS or not op.outputs or len(stored) < _DATA.get(op.kind, 1):
        return None
    found = _KERNELS[op.kind](graph, op, stored, kernels)
    if found is None or not found[1]:
        return None
    return found[0] if isinstance(found[0], tuple) else (found[0],)


def _grids(graph: Graph, names: Sequence[str]) -> list[Quantization]:
    """The grids of tensors; none unless each has one scale."""
    grids = [graph[name].quantization for name in names]
    found = [grid for grid in grids if grid is not None and grid.is_per_tensor]
    return found if len(found) == len(grids) else []


def _requantized(graph: Graph, op: Op, stored: Sequence[Array], _: str) -> _Found:
    data, result, grids = graph[op.inputs[0]], graph[op.outputs[0]], _grids(graph, (op.inputs[0], op.outputs[0]))
    own = data.dtype != result.dtype or data.dtype == "int16"  # XNNPACK has the others
    return tflite_requantize(stored[0], grids[0], grids[1], result.dtype) if grids and own else None


def _sixteen_bits(graph: Graph, op: Op, stored: Sequence[Array]) -> Quantization | None:
    """The grid of int16 data, if the result is int16 too and there are any."""
    names = op.inputs[0], op.outputs[0]
    grids = _grids(graph, names)
    return grids[0] if grids and stored[0].size and all(graph[name].dtype == "int16" for name in names) else None


def _averaged(graph: Graph, op: Op, stored: Sequence[Array], _: str) -> _Found:
    """MEAN of int16, whose result may have a scale far below that of the data, as a mean that calibration saw as 0."""
    grid, results = _sixteen_bits(graph, op, stored), _grids(graph, op.outputs)
    if grid is None or not results or results[0] == grid:  # of one grid the kernel divides
        return None
    axes = tuple(int(axis) for axis in stored[1].reshape(-1)) if len(stored) > 1 else ()
    total = stored[0].astype(np.int64).sum(axis=axes or None, keepdims=bool(op["keepdims"]))
    return tflite_wrapped_mean(stored[0], np.asarray(total), grid, results[0], "int16")


def _softmax(graph: Graph, op: Op, stored: Sequence[Array], _: str) -> _Found:
    grid = _sixteen_bits(graph, op, stored)
    return None if grid is None else tflite_softmax(stored[0], float(grid.scale[0]), float(op["beta"]), int(op["axis"]))


def _curve(graph: Graph, op: Op, stored: Sequence[Array], kernels: str) -> _Found:
    grid = _sixteen_bits(graph, op, stored)
    return None if grid is None else tflite_curve(stored[0], float(grid.scale[0]), op.kind, kernels == "reference")


def _logarithm(graph: Graph, op: Op, stored: Sequence[Array], _: str) -> _Found:
    grid, results = _sixteen_bits(graph, op, stored), _grids(graph, op.outputs)
    return tflite_logarithm(stored[0], float(grid.scale[0]), float(results[0].scale[0])) if grid is not None and results else None


def _divided(graph: Graph, op: Op, stored: Sequence[Array], _: str) -> _Found:
    """DIV whose quotients ask for shifts that C does not define."""
    names = *op.inputs, *op.outputs
    grids, types = _grids(graph, names), {graph[name].dtype for name in names}
    if not grids or len(types) > 1 or not types < {"int8", "uint8", "int16"}:
        return None
    limits = clip_range(graph[op.outputs[0]], ACTIVATIONS[str(op.attributes.get("activation", ""))])
    values, divisors = np.broadcast_arrays(*stored)
    return tflite_divide(values, divisors, grids[0], grids[1], grids[2], limits)


def _compared(graph: Graph, op: Op, stored: Sequence[Array], _: str) -> _Found:
    """Comparisons of bytes at scales from 1 on: in vectors, and after the last one."""
    grids, types = _grids(graph, op.inputs), [graph[name].dtype for name in op.inputs]
    if not grids or not set(types) <= {"int8", "uint8"}:
        return None
    tables = [tflite_compared(grid, dtype) for grid, dtype in zip(grids, types, strict=True)]
    places = [data.astype(np.int64) - integer_range(dtype)[0] for data, dtype in zip(stored, types, strict=True)]
    ways = [[forms[end][place] for forms, place in zip(tables, places, strict=True)] for end in (0, -1)]
    return tuple(np.asarray(_COMPARISONS[op.kind](*sides)) for sides in ways), any(len(forms) > 1 for forms in tables)


_KERNELS: Mapping[str, Callable[[Graph, Op, Sequence[Array], str], _Found]] = {
    "Requantize": _requantized, "Softmax": _softmax, "Sigmoid": _curve, "Tanh": _curve, "Log": _logarithm, "Div": _divided,
    "ReduceMean": _averaged,
    **dict.fromkeys(_COMPARISONS, _compared),
}  # fmt: skip
#: How many inputs have to be known, where it is more than one.
_DATA = {"Div": 2, **dict.fromkeys(_COMPARISONS, 2)}
