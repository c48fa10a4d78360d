"""Kinds that TFLite has no operator for, as a few of its operators. They compute in float32: quantized tensors are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import batch_norm_factor
from qconvert.arithmetic.dtypes import REALS
from qconvert.formats.tflite.ops.reduce import reduced_axes
from qconvert.formats.tflite.reading import ReadFunction
from qconvert.formats.tflite.tensors import DTYPE_NUMBERS
from qconvert.formats.tflite.writing import WriteFunction, Writing
from qconvert.graph import Op, Shape, numpy_dtype

__all__ = ["READERS", "WRITERS", "Formula", "composed"]

#: Option tables of the operators that are used here; others have none.
_TABLES = {
    "ABS": "AbsOptions",
    "ADD": "AddOptions",
    "ATAN2": "ATan2Options",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "COS": "CosOptions",
    "DIV": "DivOptions",
    "EQUAL": "EqualOptions",
    "EXP": "ExpOptions",
    "FLOOR_MOD": "FloorModOptions",
    "GELU": "GeluOptions",
    "GATHER": "GatherOptions",
    "GREATER": "GreaterOptions",
    "GREATER_EQUAL": "GreaterEqualOptions",
    "LESS": "LessOptions",
    "LESS_EQUAL": "LessEqualOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MEAN": "ReducerOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "MUL": "MulOptions",
    "NEG": "NegOptions",
    "NOT_EQUAL": "NotEqualOptions",
    "RANGE": "RangeOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "RESHAPE": "ReshapeOptions",
    "SELECT_V2": "SelectV2Options",
    "SHAPE": "ShapeOptions",
    "SIGN": "SignOptions",
    "SQUARE": "SquareOptions",
    "SQUARED_DIFFERENCE": "SquaredDifferenceOptions",
    "SUB": "SubOptions",
    "SUM": "ReducerOptions",
    "SCATTER_ND": "ScatterNdOptions",
    "TRANSPOSE": "TransposeOptions",
}


class Formula:
    """The TFLite operators that compute one canonical operator; each call adds one and gives its result's name."""

    def __init__(self, op: Op, w: Writing) -> None:
        self.op, self.w = op, w
        self.result = op.outputs[0]
        for name in (*op.inputs, *op.outputs):
            if name and w.tensor(name).is_quantized:
                raise w.unsupported(op, f"quantized {name!r}, which TFLite composes of several operators,", rule="quantized-data")

    @property
    def data(self) -> str:
        """The first input."""
        return self.op.inputs[0]

    def __call__(self, builtin: str, *operands: str | float, shape: Shape | None = None, dtype: str = "", **fields: Any) -> str:
        """An operator on tensors and numbers; its result is like the first operand unless shape or dtype say otherwise."""
        names = self._names(operands)
        first = self.w.tensor(names[0])
        wanted = first.shape if shape is None else shape
        result = self.w.add(f"{self.result}/{builtin.lower()}", dtype or first.dtype, wanted)
        self.w.emit(builtin, names, [result], _TABLES.get(builtin, ""), **fields)
        return result

    def _names(self, operands: Sequence[str | float]) -> list[str]:
        """The operands, numbers as constants; these are float32, and so must be what they meet."""
        types = {self.w.tensor(operand).dtype for operand in operands if isinstance(operand, str)} - {"float32", "bool"}
        if types and not all(isinstance(operand, str) for operand in operands):
            raise self.w.unsupported(self.op, f"data of {min(types)}, which TFLite composes of several operators,", rule="operand-types")
        return [operand if isinstance(operand, str) else self.number(operand) for operand in operands]

    @property
    def dtype(self) -> str:
        """The type of the first input."""
        return self.w.tensor(self.data).dtype

    @property
    def shape(self) -> Shape | None:
        """The shape of the first input."""
        return self.w.tensor(self.data).shape

    def number(self, value: float) -> str:
        """A constant without axes, of the type of the data if they are real."""
        dtype = self.w.tensor(self.data).dtype
        return self.w.const(np.array(value).astype(numpy_dtype(dtype if dtype in REALS else "float32")), f"{self.result}/constant")

    def end(self, builtin: str, *operands: str | float, **fields: Any) -> None:
        """The last operator, which gives the result."""
        names = self._names(operands)
        self.w.emit(builtin, names, [self.result], _TABLES.get(builtin, ""), **fields)

    def reduced(self, axes: list[int]) -> Shape:
        """The shape of the data with size 1 along `axes`."""
        return tuple(1 if axis in axes else size for axis, size in enumerate(self.w.tensor(self.data).shape or ()))


def composed(compose: Callable[[Formula], None]) -> WriteFunction:
    """The writer of a kind that is a formula."""

    def write(op: Op, w: Writing) -> None:
        compose(Formula(op, w))

    write.__doc__ = compose.__doc__
    return write


def _reciprocal(f: Formula) -> None:
    """1 / x."""
    f.end("DIV", 1.0, f.data)


def _softplus(f: Formula) -> tuple[str, str]:
    """The terms of log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    return f("RELU", f.data), f("LOG", f("ADD", f("EXP", f("NEG", f("ABS", f.data))), 1.0))


def _mish(f: Formula) -> None:
    """x * tanh(softplus(x))."""
    f.end("MUL", f.data, f("TANH", f("ADD", *_softplus(f))))


def _softsign(f: Formula) -> None:
    """x / (1 + |x|)."""
    f.end("DIV", f.data, f("ADD", f("ABS", f.data), 1.0))


def _hard_sigmoid(f: Formula) -> None:
    """min(max(alpha * x + beta, 0), 1)."""
    f.end("RELU_0_TO_1", f("ADD", f("MUL", f.data, float(f.op["alpha"])), float(f.op["beta"])))


def _negative_part(f: Formula, alpha: float, slope: float = 1.0) -> str:
    """alpha * min(elu(x / slope), 0)."""
    scaled = f.data if slope == 1.0 else f("DIV", f.data, slope)
    return f("MUL", f("MINIMUM", f("ELU", scaled), 0.0), alpha)


def write_elu(op: Op, w: Writing) -> None:
    """Elu as ELU, whose alpha is 1."""
    if float(op["alpha"]) == 1.0:
        w.emit("ELU", op.inputs, op.outputs)
        return
    f = Formula(op, w)
    f.end("ADD", f("RELU", f.data), _negative_part(f, float(op["alpha"])))


def _celu(f: Formula) -> None:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)."""
    f.end("ADD", f("RELU", f.data), _negative_part(f, float(f.op["alpha"]), float(f.op["alpha"])))


def _selu(f: Formula) -> None:
    """gamma * (max(x, 0) + alpha * min(exp(x) - 1, 0))."""
    f.end("MUL", f("ADD", f("RELU", f.data), _negative_part(f, float(f.op["alpha"]))), float(f.op["gamma"]))


def _thresholded_relu(f: Formula) -> None:
    """x where it is above alpha, else 0."""
    f.end("SELECT_V2", f("GREATER", f.data, float(f.op["alpha"]), dtype="bool"), f.data, 0.0)


def _tan(f: Formula) -> None:
    """sin(x) / cos(x)."""
    f.end("DIV", f("SIN", f.data), f("COS", f.data))


def _is_nan(f: Formula) -> None:
    """x != x."""
    f.end("NOT_EQUAL", f.data, f.data)


def _is_inf(f: Formula) -> None:
    """|x| = infinity."""
    f.end("EQUAL", f("ABS", f.data), math.inf)


def _mod(f: Formula) -> None:
    """The remainder of the sizes, which is exact, with the sign of the dividend."""
    a, b = f.op.inputs
    f.end("MUL", f("FLOOR_MOD", f("ABS", a), f("ABS", b), shape=f.w.tensor(f.result).shape), f("SIGN", a))


def _xor(f: Formula) -> None:
    """a != b."""
    f.end("NOT_EQUAL", *f.op.inputs)


def _reduction(before: str, after: str) -> WriteFunction:
    """The writer of a sum of `before` each element, and `after` of the sum."""

    def write(op: Op, w: Writing) -> None:
        f, keep = Formula(op, w), bool(op["keepdims"])
        data, axes = f(before, f.data) if before else f.data, reduced_axes(op, w)
        if after:
            f.end(after, f("SUM", data, axes, shape=w.tensor(f.result).shape or (), keepDims=keep))
        else:
            f.end("SUM", data, axes, keepDims=keep)

    return write


def _log_sum_exp(f: Formula) -> None:
    """max + log(sum(exp(x - max))), which does not overflow."""
    axes = reduced_axes(f.op, f.w)
    numbers, keep = f.w.tensor(axes).data, bool(f.op["keepdims"])
    if numbers is None:
        some, wanted = tuple(f"{f.result}_kept_{axis}" for axis in range(len(f.shape or ()))), f.w.tensor(f.result).shape or ()
        centred = f("SUB", f.data, f("REDUCE_MAX", f.data, axes, shape=some, keepDims=True))
        total = f("LOG", f("SUM", f("EXP", centred), axes, shape=wanted, keepDims=keep))
        f.end("ADD", f("REDUCE_MAX", f.data, axes, shape=wanted, keepDims=keep), total)
        return
    kept = f.reduced([f.w.axis(f.op, axis, f.data) for axis in numbers.reshape(-1)])
    largest = f("REDUCE_MAX", f.data, axes, shape=kept, keepDims=True)
    total = f("LOG", f("SUM", f("EXP", f("SUB", f.data, largest)), axes, shape=kept, keepDims=True))
    if f.op["keepdims"]:
        f.end("ADD", largest, total)
    else:
        f.end("RESHAPE", f("ADD", largest, total), f.w.sizes(f.result, f.op))


def _normalized(f: Formula, axes: list[int], centred: bool = True) -> str:
    """(x - mean) / sqrt(variance + epsilon) along axes, or x / sqrt(mean square + epsilon)."""
    kept, numbers = f.reduced(axes), f.w.ints(axes, f"{f.result}/axes")
    if centred:
        mean = f("MEAN", f.data, numbers, shape=kept, keepDims=True)
        squares, data = f("SQUARED_DIFFERENCE", f.data, mean), f("SUB", f.data, mean)
    else:
        squares, data = f("SQUARE", f.data), f.data
    variance = f("MEAN", squares, numbers, shape=kept, keepDims=True)
    return f("MUL", data, f("RSQRT", f("ADD", variance, float(f.op["epsilon"]))))


def _scaled(f: Formula, data: str, scale: str, bias: str) -> None:
    if bias:
        f.end("ADD", f("MUL", data, scale), bias)
    else:
        f.end("MUL", data, scale)


def _layer_normalization(f: Formula) -> None:
    """LayerNormalization and RMSNormalization over the axes from `axis` on."""
    first, rank = f.w.axis(f.op, f.op["axis"], f.data), f.w.tensor(f.data).rank or 0
    data = _normalized(f, list(range(first, rank)), f.op.kind == "LayerNormalization")
    _scaled(f, data, f.op.inputs[1], f.op.inputs[2] if len(f.op.inputs) > 2 else "")


def _along_channels(f: Formula, name: str) -> str:
    """A constant with one value for each channel, of a shape that broadcasts to the data."""
    if f.op["data_format"] == "channels_last":
        return name
    data, rank = f.w.graph.constant(name), f.w.tensor(f.data).rank or 0
    if data is None:
        raise f.w.unsupported(f.op, f"{name!r} that is computed at run time", rule="not-constant")
    return f.w.variant(name, f"channels of {rank}", data.reshape(-1, *[1] * (rank - 2)), None)


def _instance_normalization(f: Formula) -> None:
    """InstanceNormalization over the spatial axes."""
    rank = f.w.tensor(f.data).rank or 0
    axes = list(range(1, rank - 1)) if f.op["data_format"] == "channels_last" else list(range(2, rank))
    _scaled(f, _normalized(f, axes), *(_along_channels(f, name) for name in f.op.inputs[1:3]))


def _group_normalization(f: Formula) -> None:
    """GroupNormalization: the channels are split into groups, each of which is normalized with its space.

    One size may be known only at run time, such as the batch.
    """
    groups, last = int(f.op["num_groups"]), f.op["data_format"] == "channels_last"
    place = -1 if last else 1
    known = f.w.tensor(f.data).shape or ()
    shape = known if sum(isinstance(size, str) for size in known) == 1 else f.w.shape(f.data, f.op)
    (channels,), rank = f.w.shape(f.data, f.op, slice(place, place + 1 or None)), len(shape)
    parts = (groups, channels // groups)
    split = (*shape[:-1], *parts) if last else (shape[0], *parts, *shape[2:])
    axes = [*range(1, rank - 1), rank] if last else list(range(2, rank + 1))
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(split))
    sizes, joined = ([-1 if isinstance(size, str) else size for size in part] for part in (split, shape))
    data = f("RESHAPE", f.data, f.w.ints(sizes, f"{f.result}/groups"), shape=split)
    numbers = f.w.ints(axes, f"{f.result}/axes")
    mean = f("MEAN", data, numbers, shape=kept, keepDims=True)
    variance = f("MEAN", f("SQUARED_DIFFERENCE", data, mean), numbers, shape=kept, keepDims=True)
    even = f("MUL", f("SUB", data, mean), f("RSQRT", f("ADD", variance, float(f.op["epsilon"]))))
    whole = f("RESHAPE", even, f.w.ints(joined, f"{f.result}/whole"), shape=shape)
    _scaled(f, whole, *(_along_channels(f, name) for name in f.op.inputs[1:3]))


def _batch_normalization(f: Formula) -> None:
    """x * (scale / sqrt(variance + epsilon)) + (bias - mean * that), with both factors worked out here in float64."""
    scale, bias, mean, variance = (f.w.constant(f.op, position).astype(np.float64) for position in range(1, 5))
    factor = batch_norm_factor(scale, variance, float(f.op["epsilon"]))
    rank = f.w.tensor(f.data).rank or 0
    shape = (-1,) if f.op["data_format"] == "channels_last" else (-1, *[1] * (rank - 2))
    values = [value.astype(np.float32).reshape(shape) for value in (factor, bias - mean * factor)]
    _scaled(f, f.data, *(f.w.const(value, f"{f.result}/{hint}") for value, hint in zip(values, ("factor", "offset"), strict=True)))


def _trilu(f: Formula) -> None:
    """The data where a mask of the triangle is true, else 0; the mask is computed where a size or the diagonal is not known before."""
    sizes = (f.shape or ())[-2:]
    diagonal = f.op.inputs[1] if len(f.op.inputs) > 1 else ""
    if all(isinstance(size, int) for size in sizes) and (not diagonal or f.w.tensor(diagonal).is_constant):
        shape = f.w.shape(f.data, f.op, slice(-2, None))
        f.w.require_small(f.op, shape)
        offset = f.w.values(f.op, 1)[0] if diagonal else 0
        ones = np.ones(shape, bool)
        mask = f.w.const(np.triu(ones, offset) if f.op["upper"] else np.tril(ones, offset), f"{f.result}/mask")
    else:
        rows = f("RESHAPE", _places(f, -2), f.w.ints([-1, 1], f"{f.result}/rows"), shape=(sizes[0], 1))
        edge = f("ADD", rows, f.w.index(f.op, 1)) if diagonal else rows
        mask = f("GREATER_EQUAL" if f.op["upper"] else "LESS_EQUAL", _places(f, -1), edge, shape=sizes, dtype="bool")
    f.end("SELECT_V2", mask, f.data, f.w.const(np.zeros((), numpy_dtype(f.dtype)), f"{f.result}/zero"))


def _places(f: Formula, axis: int) -> str:
    """The indices along an axis of the data, as int32."""
    rank = len(f.shape or ())
    if not f.shape or rank < 2:
        raise f.w.unsupported(f.op, f"{f.data!r} of shape {f.shape}", rule="unsupported-shape")
    size = f.shape[axis]
    if isinstance(size, int):
        return f.w.const(np.arange(size, dtype=np.int32), f"{f.result}/places")
    whole = f("SHAPE", f.data, shape=(rank,), dtype="int32", outType=DTYPE_NUMBERS["int32"])
    count = f("GATHER", whole, f.w.ints(rank + axis, f"{f.result}/axis"), shape=(), axis=0)
    zero, one = (f.w.ints(value, f"{f.result}/{hint}") for value, hint in ((0, "first"), (1, "step")))
    return f("RANGE", zero, count, one, shape=(size,))


READERS: dict[str, ReadFunction] = {}

WRITERS: dict[str, WriteFunction] = {
    "Reciprocal": composed(_reciprocal),
    "Softplus": composed(lambda f: f.end("ADD", *_softplus(f))),
    "Mish": composed(_mish),
    "Softsign": composed(_softsign),
    "HardSigmoid": composed(_hard_sigmoid),
    "Elu": write_elu,
    "Celu": composed(_celu),
    "Selu": composed(_selu),
    "ThresholdedRelu": composed(_thresholded_relu),
    "Tan": composed(_tan),
    "IsNaN": composed(_is_nan),
    "IsInf": composed(_is_inf),
    "Xor": composed(_xor),
    "Mod": composed(_mod),
    "ReduceL1": _reduction("ABS", ""),
    "ReduceL2": _reduction("SQUARE", "SQRT"),
    "ReduceSumSquare": _reduction("SQUARE", ""),
    "ReduceLogSum": _reduction("", "LOG"),
    "ReduceLogSumExp": composed(_log_sum_exp),
    "LayerNormalization": composed(_layer_normalization),
    "RMSNormalization": composed(_layer_normalization),
    "InstanceNormalization": composed(_instance_normalization),
    "BatchNormalization": composed(_batch_normalization),
    "GroupNormalization": composed(_group_normalization),
    "Trilu": composed(_trilu),
}
