"""The functions behind folding.py: one an operator, on stored values, None where the result is not sure to be the same everywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.arithmetic import quantize, scale_and_zero_point
from qconvert.evaluate import movement
from qconvert.evaluate.call import Call
from qconvert.graph import Array, canonical_dtype, integer_range, numpy_dtype

__all__ = ["FUNCTIONS", "Function"]

_FLOATS = ("float16", "float32", "float64")
_MOVED = frozenset(
    "Reshape Squeeze Unsqueeze Transpose Slice Pad Tile Expand Pack Unpack Split Gather GatherND DepthToSpace SpaceToDepth".split()
)

Function = Callable[[Call], Any]


def _plain(call: Call) -> bool:
    return not any(tensor is not None and tensor.is_quantized for tensor in (*call.tensors, *call.results))


def _one_quantization(call: Call, first: int = 0, count: int | None = None) -> bool:
    """Whether stored values can stand for the real ones: all data inputs and outputs have equal types and quantizations."""
    sides = [tensor for tensor in (*call.tensors[first:count], *call.results) if tensor is not None]
    return all(side.dtype == sides[0].dtype and side.quantization == sides[0].quantization for side in sides)


def _move(call: Call) -> Any:
    """Stored values change place; what gives them other scales is not foldable here."""
    if any(t is not None and t.quantization is not None and t.quantization.axis is not None for t in call.tensors):
        return None  # the axis moves too: validation knows how, and the operator stays
    if call.op.kind == "Pad" and call["mode"] != "constant":
        return None
    if call.op.kind in ("Gather", "GatherND") and call["batch_dims"]:
        return None
    return movement.FUNCTIONS[call.op.kind](call)


def _concat(call: Call) -> Any:
    if not _one_quantization(call) or call["activation"] or not _per_tensor(call):
        return None
    return np.concatenate([call.raw(i) for i in range(len(call.stored))], axis=call["axis"])


def _where(call: Call) -> Any:
    if not _one_quantization(call, 1) or not _per_tensor(call) or call.raw(0).dtype != np.bool_:
        return None
    return np.where(call.raw(0), call.raw(1), call.raw(2))


def _per_tensor(call: Call) -> bool:
    return all(tensor is None or tensor.quantization is None or tensor.quantization.is_per_tensor for tensor in call.tensors)


def _numbers(call: Call, floats: bool) -> bool:
    """Whether all inputs are plain numbers of one type: integers, or, if `floats`, IEEE floats too."""
    dtypes = {canonical_dtype(value.dtype) for value in call.stored if value is not None}
    if len(dtypes) != 1 or not _plain(call) or call.op.attributes.get("activation"):
        return False
    (dtype,) = dtypes
    return (dtype in _FLOATS and floats) or np.dtype(numpy_dtype(dtype)).kind in "iu"


def _numeric(function: Callable[..., Any], floats: bool = True) -> Function:
    """An operator on plain numbers of one type that gives the same type."""

    def run(call: Call) -> Any:
        return function(*(value for value in call.stored if value is not None)) if _numbers(call, floats) else None

    return run


def _divide(a: Array, b: Array) -> Any:
    """a / b; integers towards zero, and not where C leaves the result undefined."""
    if a.dtype.kind == "f":
        return a / b
    if _is_undefined(a, b):
        return None
    quotient = a // b
    return quotient + ((quotient * b != a) & ((a < 0) != (b < 0))).astype(a.dtype)


def _floored(function: Callable[..., Any]) -> Function:
    return _numeric(lambda a, b: None if _is_undefined(a, b) else function(a, b), floats=False)


def _is_undefined(a: Array, b: Array) -> bool:
    """A division by zero, or of the smallest integer by -1."""
    return bool((b == 0).any()) or (a.dtype.kind == "i" and bool((a == np.iinfo(a.dtype).min).any() and (b == -1).any()))


def _extreme(function: Callable[..., Any]) -> Function:
    """Max or Min; runtimes differ on NaN and on which zero of 0 and -0 they give."""

    def run(*values: Array) -> Any:
        if values[0].dtype.kind == "f" and any(np.isnan(v).any() or (np.signbit(v) & (v == 0)).any() for v in values):
            return None
        return functools.reduce(function, values)

    return _numeric(run)


def _clip(call: Call) -> Any:
    if not _plain(call):
        return _clip_stored(call)
    result: Any = call.raw()
    for index, function in ((1, np.maximum), (2, np.minimum)):
        if call.has(index):
            pair = replace(call, stored=(result, call.raw(index).reshape(())), tensors=call.tensors[:1] * 2)
            result = _extreme(function)(pair)
            if result is None:
                return None
    return result if _numbers(call, True) else None


def _clip_stored(call: Call) -> Any:
    """Clip of stored integers, where the bounds are numbers of their grid, so that nothing is rounded."""
    result, quantization = call.raw(), call.quantization()
    if quantization is None or not _one_quantization(call, 0, 1) or not quantization.is_per_tensor or "int" not in call.results[0].dtype:
        return None
    for index, function in ((1, np.maximum), (2, np.minimum)):
        if call.has(index):
            bound = call.raw(index).reshape(1)
            stored = quantize(bound, quantization, call.results[0].dtype)
            steps = np.float32(int(stored[0]) - int(quantization.zero_point[0]))
            if bound.dtype != np.float32 or steps * quantization.scale[0] != bound[0]:
                return None
            result = function(result, stored[0])
    return result


def _compare(function: Callable[..., Any]) -> Function:
    def run(call: Call) -> Any:
        same = call.raw(0).dtype == call.raw(1).dtype
        return function(call.raw(0), call.raw(1)) if same and _plain(call) and call.raw(0).dtype.kind in "biuf" else None

    return run


def _logic(function: Callable[..., Any]) -> Function:
    def run(call: Call) -> Any:
        return function(*call.stored) if all(value is not None and value.dtype == np.bool_ for value in call.stored) else None

    return run


def _cast(call: Call) -> Any:
    """The same number in another type, rounded to even; None where it does not fit, which ONNX leaves open."""
    value, wanted = call.raw(), str(call["to"])
    have = canonical_dtype(value.dtype)
    if not _plain(call) or "string" in (have, wanted):
        return None
    if wanted == have:
        return value
    if wanted == "bool":
        return value != 0
    if wanted in _FLOATS or (wanted == "bfloat16" and have in ("float32", "float16", "bool", "int8", "uint8")):
        return value.astype(numpy_dtype(wanted))
    if "float" in wanted or wanted == "unknown" or "complex" in have:
        return None
    low, high = integer_range(wanted)
    wide = np.trunc(value.astype(np.float64)) if "float" in have else value if value.dtype.kind in "biu" else value.astype(np.int64)
    if wide.size and not (low <= wide.min().item() and wide.max().item() <= high):
        return None
    return (wide.astype(np.int64) if "float" in have and wanted != "uint64" else wide).astype(numpy_dtype(wanted))


def _range(call: Call) -> Any:
    """start, start + delta …: integers, and floats that are whole and below 2**24, where adding and multiplying agree."""
    if not _numbers(call, True) or any(value is None or value.size != 1 for value in call.stored):
        return None
    start, _, delta = (call.raw(i).reshape(-1)[0] for i in range(3))
    values = movement.FUNCTIONS["Range"](call)
    assert isinstance(values, np.ndarray)
    if start.dtype.kind == "f":
        ends = (start, delta, *values[-1:])
        if start.dtype == np.float16 or any(end != np.rint(end) or abs(end) > 2**24 for end in ends):
            return None
    return values.astype(start.dtype)


def _quantize(call: Call) -> Any:
    """QuantizeLinear: saturate(round_half_even(x / scale) + zero_point), in float32."""
    x, (result,) = call.raw(), call.results
    if x.dtype != np.float32 or result.quantization is None or "float" in result.dtype or np.isnan(x).any():
        return None
    return quantize(x, result.quantization, result.dtype)


def _dequantize(call: Call) -> Any:
    """DequantizeLinear: (x - zero_point) * scale, in float32."""
    tensor = call.tensors[0]
    if tensor is None or tensor.quantization is None or (call.results[0].name in ("", tensor.name)):
        return None
    scale, zero_point = scale_and_zero_point(tensor.quantization, call.raw().shape)
    if "float" in tensor.dtype:
        return call.raw().astype(np.float32) * scale
    return (call.raw().astype(np.int64) - zero_point).astype(np.float32) * scale


def _reduced(function: Any) -> Function:
    """A reduction of integers, which no order of adding changes. No axes mean all."""

    def run(call: Call) -> Any:
        if not _plain(call) or call.raw().dtype.kind not in "iu":
            return None
        return function(call.raw(), axis=tuple(call.ints(1)) or None, keepdims=bool(call["keepdims"])).astype(call.raw().dtype)

    return run


#: The function of every operator that can be folded, by kind.
FUNCTIONS: Mapping[str, Function] = {
    **dict.fromkeys(_MOVED, _move),
    "Identity": Call.raw,
    "Reinterpret": Call.raw,
    "Concat": _concat,
    "Where": _where,
    "Cast": _cast,
    "Range": _range,
    "Quantize": _quantize,
    "Dequantize": _dequantize,
    "Add": _numeric(np.add),
    "Sub": _numeric(np.subtract),
    "Mul": _numeric(np.multiply),
    "Div": _numeric(_divide),
    "FloorDiv": _floored(np.floor_divide),
    "FloorMod": _floored(np.mod),
    "Max": _extreme(np.maximum),
    "Min": _extreme(np.minimum),
    "Clip": _clip,
    "Neg": _numeric(np.negative),
    "Abs": _numeric(np.abs),
    "Sign": _numeric(np.sign, floats=False),
    "Square": _numeric(np.square),
    "Sqrt": lambda call: _numeric(np.sqrt)(call) if call.raw().dtype.kind == "f" else None,
    **{
        kind: _compare(function)
        for kind, function in (
            ("Equal", np.equal), ("NotEqual", np.not_equal), ("Greater", np.greater), ("GreaterOrEqual", np.greater_equal),
            ("Less", np.less), ("LessOrEqual", np.less_equal),
        )
    },
    "And": _logic(np.logical_and),
    "Or": _logic(np.logical_or),
    "Xor": _logic(np.logical_xor),
    "Not": _logic(np.logical_not),
    "ReduceSum": _reduced(np.sum),
    "ReduceProd": _reduced(np.prod),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
}  # fmt: skip
