"""The argument and the results of an operator's function: the stored inputs with ways to see them as float values; and folds of operators
on constants, None where runtimes may differ in a bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qconvert.arithmetic import dequantize, quantize, subtract_zero_points
from qconvert.arithmetic.storage import Array, Quantization, canonical_dtype, numpy_dtype
from qconvert.graph.activations import ACTIVATIONS, activation_bounds
from qconvert.graph.schema import Op, Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ExactResult:
    """One output of an operator.

    Attributes:
        real: float64, the float value before rounding onto the output's quantization; None where the output is plain integers, bools or
            stored integers that were only moved.
        stored: the output as the graph stores it, in the numpy dtype of its tensor.
    """

    real: Array | None
    stored: Array


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with its stored inputs; None stands for an optional input that is absent.

    Attributes:
        op: the operator.
        stored: its inputs as the graph stores them.
        tensors: the graph's tensors of the inputs, likewise.
        results: the graph's tensors of the outputs.
    """

    op: Op
    stored: tuple[Array | None, ...]
    tensors: tuple[Tensor | None, ...]
    results: tuple[Tensor, ...]

    def __getitem__(self, name: str) -> Any:
        """An attribute of the operator, or its default."""
        return self.op[name]

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.stored) and self.stored[index] is not None

    def raw(self, index: int = 0) -> Array:
        """Stored input `index`."""
        value = self.stored[index]
        assert value is not None, f"{self.op} has no input {index}"
        return value

    def quantization(self, index: int = 0) -> Quantization | None:
        """The quantization of input `index`."""
        tensor = self.tensors[index]
        return None if tensor is None else tensor.quantization

    def ints(self, index: int) -> list[int]:
        """The integers of a parameter such as axes or sizes."""
        return [int(value) for value in self.raw(index).reshape(-1)]

    def values(self, index: int = 0) -> Array:
        """Input `index` as numbers: float64 if it is quantized or floating point, else the integers, bools or strings it holds."""
        value, quantization = self.raw(index), self.quantization(index)
        if quantization is not None:
            return dequantize(value, quantization)
        if value.dtype.kind in "iu" and value.dtype != np.uint64:
            return value.astype(np.int64)
        return value if value.dtype.kind in "bucO" else value.astype(np.float64)

    def all_values(self) -> list[Array]:
        """values() of every input."""
        return [self.values(index) for index in range(len(self.stored))]

    def factor(self, index: int, axis: int | None = None) -> tuple[Array, Array | float]:
        """Input `index` as steps * scale, with whole steps in float64, whose sums and products are exact below 2**53.

        Args:
            index: of the input.
            axis: the dimension along which scales may differ; the scale is then a vector along it. Scales along other
                dimensions, and in blocks, are multiplied in already, and the scale returned is 1.
        """
        value, quantization = self.raw(index), self.quantization(index)
        if quantization is None:
            return np.asarray(value.astype(np.float64)), 1.0
        if quantization.axis not in (None, axis) or quantization.block_size:
            return dequantize(value, quantization), 1.0
        scale = quantization.scale.astype(np.float64)
        steps = value if value.dtype.name.startswith("float") else subtract_zero_points(value, quantization)
        return steps.astype(np.float64), float(scale[0]) if quantization.axis is None else scale

    def real_zero(self) -> Any:
        """The stored value of real zero on the first input's quantization: what padding is filled with."""
        quantization = self.quantization()
        zero = 0 if quantization is None else int(quantization.zero_point.flat[0])
        return np.asarray(zero).astype(self.raw().dtype)


Result = Array | list[Array] | ExactResult
Function = Callable[[Call], Result]
#: None where the result is not sure to be the same in every runtime.
Fold = Callable[[Call], Any]


def on_values(function: Callable[..., Any], attributes: Iterable[str] = ()) -> Function:
    """The evaluation of a kind that is a numpy function of the values of its inputs, and, by name, of these attributes."""

    @functools.wraps(function, assigned=())
    def evaluate(call: Call) -> Result:
        return np.asarray(function(*call.all_values(), **{name: call[name] for name in attributes}))

    return evaluate


def with_kernel(real: Function, kernel: Callable[[Call, Quantization, Quantization], Array]) -> Function:
    """An evaluation whose stored result, with an `arithmetic`, is that of a kernel: (call, quantizations of the first input and of the
    result) -> stored integers. The real result stays exact."""

    @functools.wraps(real, assigned=())
    def evaluate(call: Call) -> Result:
        found, given, output = real(call), call.quantization(), call.results[0].quantization
        if not call["arithmetic"] or given is None or output is None:
            return found
        assert isinstance(found, np.ndarray)
        return ExactResult(found, kernel(call, given, output))

    return evaluate


def apply_activation(values: Array, activation: str) -> Array:
    """Float values, limited to the range that a fused activation leaves."""
    low, high = ACTIVATIONS[activation]
    return values if low is None and high is None else np.asarray(np.clip(values, low, high))


def clip_stored(call: Call, stored: Array) -> Array:
    """Stored values, limited to the codes that a fused activation leaves."""
    activation = str(call["activation"])
    if call.results[0].quantization is None or not activation:
        return apply_activation(stored, activation)
    return np.asarray(np.clip(stored, *activated_limits(call.op, call.results[0])))


def activated_limits(op: Op, result: Tensor) -> tuple[int, int]:
    """The least and the largest stored integer that a fused activation leaves of a quantized result, rounded as the exact result is."""
    lowest, highest = activation_bounds(op)
    bounds = np.array([-np.inf if lowest is None else lowest, np.inf if highest is None else highest])
    low, high = quantize(bounds, result.require_quantization(), result.dtype)
    return int(low), int(high)


def spatial_axes(op: Call | Op, rank: int) -> range:
    """The spatial dimensions of data of a rank."""
    return range(1, rank - 1) if op["data_format"] == "channels_last" else range(2, rank)


def channels_last(call: Call, values: Array) -> Array:
    """Data of the operator's data_format with the channels moved to the end."""
    return values if call["data_format"] == "channels_last" else np.moveaxis(values, 1, -1)


def channels_first(call: Call, values: Array) -> Array:
    """The reverse of channels_last: back to the operator's data_format."""
    return values if call["data_format"] == "channels_last" else np.moveaxis(values, -1, 1)


FLOATS = ("float16", "float32", "float64")


def is_plain(call: Call) -> bool:
    return not any(tensor is not None and tensor.is_quantized for tensor in (*call.tensors, *call.results))


def has_one_quantization(call: Call, first: int = 0, count: int | None = None) -> bool:
    """Whether stored values can stand for the real ones: all data inputs and outputs have equal types and quantizations."""
    sides = [tensor for tensor in (*call.tensors[first:count], *call.results) if tensor is not None]
    return all(side.dtype == sides[0].dtype and side.quantization == sides[0].quantization for side in sides)


def is_per_tensor(call: Call) -> bool:
    return all(tensor is None or tensor.quantization is None or tensor.quantization.is_per_tensor for tensor in call.tensors)


def movement_fold(function: Callable[[Call], Any]) -> Fold:
    """Stored values change place; what gives them other scales is not foldable here."""

    def run(call: Call) -> Any:
        if not is_per_tensor(call):
            return None  # the axis changes too: validation knows how, and the operator stays
        return function(call)

    return run


def has_numbers(call: Call, floats: bool) -> bool:
    """Whether all inputs are plain numbers of one type: integers, or, if `floats`, IEEE floats too."""
    dtypes = {canonical_dtype(value.dtype) for value in call.stored if value is not None}
    if len(dtypes) != 1 or not is_plain(call) or call.op.attributes.get("activation"):
        return False
    (dtype,) = dtypes
    return (dtype in FLOATS and floats) or np.dtype(numpy_dtype(dtype)).kind in "iu"


def numeric_fold(function: Callable[..., Any], floats: bool = True) -> Fold:
    """An operator on plain numbers of one type that gives the same type."""

    def run(call: Call) -> Any:
        return function(*(value for value in call.stored if value is not None)) if has_numbers(call, floats) else None

    return run


def floor_fold(function: Callable[..., Any]) -> Fold:
    return numeric_fold(lambda a, b: None if is_undefined(a, b) else function(a, b), floats=False)


def is_undefined(a: Array, b: Array) -> bool:
    """A division by zero, or of the smallest integer by -1."""
    return bool((b == 0).any()) or (a.dtype.kind == "i" and bool((a == np.iinfo(a.dtype).min).any() and (b == -1).any()))


def extreme_fold(function: Callable[..., Any]) -> Fold:
    """Max or Min; runtimes differ on NaN and on which zero of 0 and -0 they give."""

    def run(*values: Array) -> Any:
        if values[0].dtype.kind == "f" and any(np.isnan(v).any() or (np.signbit(v) & (v == 0)).any() for v in values):
            return None
        return functools.reduce(function, values)

    return numeric_fold(run)


def compare_fold(function: Callable[..., Any]) -> Fold:
    def run(call: Call) -> Any:
        same = call.raw(0).dtype == call.raw(1).dtype
        return function(call.raw(0), call.raw(1)) if same and is_plain(call) and call.raw(0).dtype.kind in "biuf" else None

    return run


def logic_fold(function: Callable[..., Any]) -> Fold:
    def run(call: Call) -> Any:
        return function(*call.stored) if all(value is not None and value.dtype == np.bool_ for value in call.stored) else None

    return run
