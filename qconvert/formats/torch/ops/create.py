"""Constants that a program makes, and casts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.promotion import typed
from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.sizing import size_of, sizes_tensor
from qconvert.formats.torch.values import Ref
from qconvert.graph import Quantization, numpy_dtype

__all__ = ["OPERATORS"]

#: Elements of a constant that a program only names by its sizes.
_LARGEST = 2**24


def _filled(c: Call, sizes: Sequence[Any], value: float, dtype: str) -> Ref:
    """A tensor that holds one number."""
    number = np.asarray(value).astype(numpy_dtype(dtype))
    if any(isinstance(size, Ref) for size in sizes):
        return c.emit("Expand", [c.const(number, "value"), sizes_tensor(c, sizes, "shape")], grid=None)
    shape = [int(size) for size in sizes]
    if any(size < 0 for size in shape) or math.prod(shape) > _LARGEST:
        raise c.unsupported(f"a constant of shape {tuple(shape)}")
    return Ref(c.const(np.full(shape, number), "filled"))


def read_filled(value: float | None) -> Any:
    """aten::zeros, ones, full(size, …, dtype)."""

    def read(c: Call) -> Ref:
        number = c.number("fill_value") if value is None else value
        default = "float32" if value is not None or isinstance(c["fill_value"], float) else "int64"
        default = c.operand("self").dtype if "self" in c else default
        sizes = c["size"]
        return _filled(c, list(sizes) if isinstance(sizes, (list, tuple)) else [sizes], number, c.dtype("dtype") or default)

    return read


def read_filled_like(value: float | None) -> Any:
    """aten::zeros_like, ones_like, full_like(x, …, dtype)."""

    def read(c: Call) -> Ref:
        tensor = c.operand("self")
        number = c.number("fill_value") if value is None else value
        name = tensor.name
        sizes = [size_of(c, name, axis) for axis in range(c.rank("self"))]
        dtype = c.dtype("dtype") or ("float32" if tensor.is_quantized else tensor.dtype)
        return _filled(c, sizes, number, dtype)

    return read


def read_range(c: Call) -> Ref:
    """aten::arange(start, end, step, dtype) of known numbers, or of sizes that are known only at run time."""
    values = [default if c.get(name) is None else c[name] for name, default in (("start", 0), ("end", 0), ("step", 1))]
    numbers = [value for value in values if not isinstance(value, Ref)]
    dtype = c.dtype("dtype") or ("float32" if any(isinstance(value, float) for value in numbers) else "int64")
    if len(numbers) == 3:
        count = math.ceil((numbers[1] - numbers[0]) / numbers[2]) if numbers[2] else -1
        if not 0 <= count <= _LARGEST:
            raise c.invalid(f"a range from {numbers[0]} to {numbers[1]} by {numbers[2]}")
        return Ref(c.const((numbers[0] + np.arange(count) * numbers[2]).astype(numpy_dtype(dtype)), "range"))
    names = [typed(c, value, "int64", hint) for value, hint in zip(values, ("start", "end", "step"), strict=True)]
    found = c.emit("Range", names, dtype="int64", grid=None, hint="" if dtype == "int64" else "whole")
    return Ref(typed(c, found, dtype, "range"))


def read_scalar(c: Call) -> Ref:
    """aten::scalar_tensor(number, dtype)."""
    return Ref(c.const(np.asarray(c.number("s"), numpy_dtype(c.dtype("dtype") or "float32")), "scalar"))


def _cast(c: Call, dtype: str | None) -> Ref:
    """Integers that are constants count as real numbers by a Dequantize, so that they stay integers."""
    tensor = c.operand("self")
    if dtype is None or tensor.dtype == dtype or tensor.is_quantized:
        return Ref(tensor.name)
    if dtype == "float32" and tensor.dtype in ("int8", "uint8") and c.known(tensor.name) is not None and (tensor.rank or 0) >= 2:
        return c.emit("Dequantize", [c.labelled(tensor, Quantization.per_tensor(1.0))], dtype="float32", grid=None)
    return Ref(typed(c, Ref(tensor.name), dtype, "cast"))


def read_to(c: Call) -> Ref:
    """aten::to and _to_copy: another storage type, or only another device."""
    return _cast(c, c.dtype("dtype") if "dtype" in c else None)


def read_like(c: Call) -> Ref:
    """aten::type_as and to.other: the storage type of another tensor."""
    other = c.operand("other")
    return _cast(c, "float32" if other.is_quantized else other.dtype)


def read_nothing(c: Call) -> None:
    """What checks something of its arguments and computes nothing."""


_PLACE = "a layout=None, a device=None, a pin_memory=None"
_MADE = f"i? dtype=None, {_PLACE}"
_LIKE = f"{_MADE}, a memory_format=None"
_COPY = "b non_blocking=False, b copy=False, a memory_format=None"

OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    **{f"aten::{name}": Operator(f"l size, {_MADE}", read_filled(value)) for name, value in (("zeros", 0.0), ("ones", 1.0))},
    "aten::full": Operator(f"l size, f fill_value, {_MADE}", read_filled(None)),
    **{f"aten::{name}_like": Operator(f"T self, {_LIKE}", read_filled_like(value)) for name, value in (("zeros", 0.0), ("ones", 1.0))},
    "aten::full_like": Operator(f"T self, f fill_value, {_LIKE}", read_filled_like(None)),
    **{f"aten::new_{name}": Operator(f"T self, l size, {_MADE}", read_filled(value)) for name, value in (("zeros", 0.0), ("ones", 1.0))},
    "aten::new_full": Operator(f"T self, l size, f fill_value, {_MADE}", read_filled(None)),
    "aten::arange": [
        Operator(f"f end, {_MADE}", read_range),
        Operator(f"f start, f end, {_MADE}", read_range),
        Operator(f"f start, f end, f step=1, {_MADE}", read_range),
    ],
    "aten::scalar_tensor": Operator(f"f s, {_MADE}", read_scalar),
    "aten::to": [
        Operator(f"T self, i dtype, {_COPY}", read_to),
        Operator(f"T self, a device, i? dtype, {_COPY}", read_to),
        Operator(f"T self, i? dtype=None, {_PLACE}, {_COPY}", read_to),
        Operator(f"T self, T other, {_COPY}", read_like),
    ],
    "aten::_to_copy": Operator(f"T self, i? dtype=None, {_PLACE}, b non_blocking=False, a memory_format=None", read_to),
    "aten::type_as": Operator("T self, T other", read_like),
    "aten::_assert_tensor_metadata": Operator("a a, a size=None, a stride=None, a dtype=None, a device=None, a layout=None", read_nothing),
}
