"""Sizes as numbers, and tensors made of numbers: ranges, and tensors filled with one number.

Known sizes are numbers at once, others are computed by the graph as int64 of rank 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import cast_operand, common_type, emit_reshape, scalar, size_of, sizes_of, sizes_tensor
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments
from qconvert.formats.torch.stored_values import QUANTIZED
from qconvert.formats.torch.values import Ref, leaves
from qconvert.graph import Tensor, numpy_dtype

#: Elements beyond which no constant is made, but an operator that makes the tensor when the model runs.
_MOST = 2**16


def emit_full(c: Reading, sizes: Sequence[Any], value: Any, dtype: str) -> str:
    """A tensor of these sizes that holds one number everywhere."""
    if isinstance(value, Ref):
        number = cast_operand(c, value, dtype, "value")
        number = emit_reshape(c, number, [], hint="number") if c.lookup(number).rank else number
    else:
        if all(isinstance(size, int) and size >= 0 for size in sizes) and math.prod(sizes) <= _MOST:
            return c.const(np.full(tuple(sizes), value, numpy_dtype(dtype)), "filled")
        number = c.const(np.array(value, numpy_dtype(dtype)), "value")
    return c.emit("Expand", [number, sizes_tensor(c, sizes, "shape")])


@with_arguments
def read_full(c: Reading, value: float | None) -> str:
    """aten::zeros, ones, full, empty, in the type that the call states; new_zeros … in that of a tensor, zeros_like … in its shape too."""
    number = c["fill_value"] if value is None else value
    if "self" in c:
        dtype = "float32" if c.operand().is_quantized else c.operand().dtype
    else:
        dtype = "float32" if value is not None else common_type(c, [number])
    return emit_full(c, c.items("size") if "size" in c else sizes_of(c), number, c.dtype("dtype") or dtype)


def read_fill(c: Reading) -> str:
    """aten::fill(x, value), and zero(x): x with all its elements changed."""
    value: Any = c.get("value", 0)
    c.require_plain(c.name())
    return emit_full(c, sizes_of(c), value, c.operand().dtype)


def read_arange(c: Reading) -> str:
    """aten::arange(start, end, step): numbers from start to before end; of whole numbers int64, else float32."""
    values = [c.get("start", 0), c["end"], c.get("step", 1)]
    whole = all(not isinstance(v, float) and (not isinstance(v, Ref) or "int" in c.lookup(v.name).dtype) for v in values)
    dtype = c.dtype("dtype") or ("int64" if whole else "float32")
    if not any(isinstance(value, Ref) for value in values):
        start, end, step = values
        if step == 0 or not all(map(math.isfinite, values)) or (end - start) / step < 0:
            raise c.invalid(f"the range from {start} to {end} in steps of {step} has no end", rule="range-not-finite")
        count = math.ceil((end - start) / step)
        if count <= _MOST:
            return c.const((start + np.arange(count) * step).astype(numpy_dtype(dtype)), "range")
    names = [cast_operand(c, value, dtype, hint) for value, hint in zip(values, ("start", "end", "step"), strict=True)]
    return c.emit("Range", names)


def read_linspace(c: Reading) -> str:
    """aten::linspace(start, end, steps)."""
    steps = c.integer("steps")
    if not 0 <= steps <= _MOST:
        raise c.unsupported_error(f"{steps} steps", rule="too-many-elements")
    values = np.linspace(c.number("start"), c.number("end"), steps)
    return c.const(values.astype(numpy_dtype(c.dtype("dtype") or "float32")), "range")


def read_eye(c: Reading) -> str:
    """aten::eye(n, m): 1 on the diagonal."""
    rows = c.integer("n")
    columns = c.integer("m") if "m" in c else rows
    if min(rows, columns) < 0 or rows * columns > 2**22:
        raise c.unsupported_error(f"{rows} x {columns} elements", rule="too-many-elements")
    return c.const(np.eye(rows, columns, dtype=numpy_dtype(c.dtype("dtype") or "float32")), "eye")


def read_tensor(c: Reading) -> str:
    """aten::tensor(data), scalar_tensor, as_tensor: numbers, perhaps in lists, as a tensor."""
    value = c["data"] if "data" in c else c["s"]
    if isinstance(value, Ref):
        return cast_operand(c, value, c.dtype("dtype") or c.lookup(value.name).dtype, "data")
    items = list(leaves(value))
    if any(isinstance(item, Ref) for item in items):
        if not isinstance(value, (list, tuple)) or len(items) != len(value):
            raise c.unsupported_error("lists of numbers that are known only at run time", rule="not-constant")
        dtype = c.dtype("dtype") or common_type(c, items)
        names = [emit_reshape(c, cast_operand(c, item, dtype, f"item{index}"), [], f"item{index}_") for index, item in enumerate(items)]
        return c.emit("Pack", names, axis=0)
    if not all(isinstance(item, (int, float)) for item in items):
        raise c.invalid("a tensor is made of values that are not numbers", rule="not-a-number")
    try:
        return c.const(np.array(value, numpy_dtype(c.dtype("dtype") or common_type(c, items))), "data")
    except (ValueError, OverflowError) as error:
        raise c.invalid(f"the numbers do not make a tensor: {error}", rule="ragged-list") from error


def read_count(c: Reading) -> Any:
    """aten::numel(x)."""
    sizes = sizes_of(c)
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    return Ref(c.emit("ReduceProd", [sizes_tensor(c, sizes, "sizes"), c.list64([0], "axes")], keepdims=0), number=True)


def read_number_tensor(c: Reading) -> str:
    """prim::NumToTensor(n): a number as a tensor of rank 0."""
    value = c["a"]
    if isinstance(value, Ref):
        return value.name
    return c.const(np.array(value, np.int64 if isinstance(value, int) else np.float32), "number")


def _read_single_element(c: Reading) -> Any:
    """The one element of a tensor, or the number itself, where it is known; else a Ref of it."""
    value = c["a"]
    if not isinstance(value, Ref):
        return value
    known = c.known(value.name)
    if known is None:
        return value
    if known.size != 1:
        raise c.invalid(f"the shape is {known.shape}; one number is required", rule="not-a-scalar")
    return known.reshape(-1)[0].item()


@with_arguments
def read_number(c: Reading, dtype: str, convert: Callable[[Any], Any]) -> Any:
    """int(x), float(x), bool(x) and their kin: the one element of a tensor as a number."""
    value = _read_single_element(c)
    if not isinstance(value, Ref):
        return convert(value)
    if c.lookup(value.name).dtype == dtype:
        return Ref(value.name, number=True)
    return Ref(c.emit("Cast", [value.name], quantization=None, to=dtype), number=True)


def read_item(c: Reading) -> Any:
    """aten::item(x): the one element of a tensor as a number of its own type."""
    value = _read_single_element(c)
    return Ref(value.name, number=True) if isinstance(value, Ref) else value


@with_arguments
def read_arithmetic(c: Reading, kind: str) -> Ref:
    """A sum, difference, product, quotient or comparison of numbers of which one is known only at run time."""
    names = [scalar(c, c["a"], "a"), scalar(c, c["b"], "b")]
    return Ref(c.emit(kind, names), number=True)


@with_arguments
def read_comparison_of_lists(c: Reading, equal: bool) -> Any:
    """Whether two lists of sizes, of which one is known only at run time, are equal, or are not."""
    a, b = list(c["a"]), list(c["b"])
    if len(a) != len(b) or any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a, b, strict=True)):
        return not equal
    places = [sizes_tensor(c, sizes, hint) for sizes, hint in ((a, "a"), (b, "b"))]
    differs = c.emit("ReduceMax", [c.emit("Abs", [c.emit("Sub", places)]), c.list64([0], "axes")], keepdims=0)
    kind = "Equal" if equal else "Greater"
    return Ref(c.emit(kind, [differs, scalar(c, 0, "zero")]), number=True)


def read_type(c: Reading) -> int:
    """prim::dtype(x): the number of a tensor's type."""
    tensor = c.operand("a")
    numbers = {name: number for number, name in c.session.scalar_types.items()}
    quantized = {stored: name for name, stored in QUANTIZED.items() if name.startswith("q")}
    return numbers[quantized.get(tensor.dtype, tensor.dtype) if tensor.is_quantized else tensor.dtype]


def read_property(fact: Callable[[Tensor], Any]) -> ReadFunction:
    """A property of a tensor without its values: its rank, whether it is float …"""
    return lambda c: fact(c.operand("a"))


#: Comparisons as PyTorch calls them, of numbers and of tensors.
COMPARISONS = {"eq": "Equal", "ne": "NotEqual", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}
_NUMBERS = {"add": "Add", "sub": "Sub", "mul": "Mul", "floordiv": "FloorDiv", "mod": "FloorMod", "sym_max": "Max", "sym_min": "Min"}


_OPTIONS = "*, i? dtype=None, a layout=None, a device=None, a pin_memory=None"
_MADE = f"{_OPTIONS}, a memory_format=None"
_TENSOR = "*, i? dtype=None, a? device=None, b? requires_grad=False"

OPERATORS: Mapping[str, ReadFunction] = {
    "aten::size|sym_size(T self, i dim)": lambda c: size_of(c, c.name(), c.axis_of()),
    "aten::size|sym_size(T self)": sizes_of,
    "aten::numel(T self)": read_count,
    "aten::dim|prim::ndim(T self)": Reading.rank,
    "aten::len(T self)": lambda c: size_of(c, c.name(), 0),
    "prim::NumToTensor(f a)": read_number_tensor,
    "aten::Int|IntImplicit|prim::int(x a)": read_number("int64", int),
    "aten::Float|FloatImplicit|prim::float(x a)": read_number("float32", float),
    "aten::Bool|is_nonzero|prim::bool(x a)": read_number("bool", bool),
    "aten::item|_local_scalar_dense|ScalarImplicit(T a)": read_item,
    "prim::dtype(T a)": read_type,
    "aten::is_floating_point(T a)": read_property(lambda tensor: "float" in tensor.dtype),
    "prim::is_quantized(T a)": read_property(lambda tensor: tensor.is_quantized),
    "prim::is_cuda|is_mkldnn|is_sparse|is_meta|is_nested|requires_grad|aten::is_complex(T a)": read_property(lambda tensor: False),
    "prim::device|layout(T a)": read_property(lambda tensor: None),
    **{f"prim::{name}(i a, i b)": read_arithmetic(kind) for (name, kind) in COMPARISONS.items()},
    **{f"prim::{n}(l a, l b)": read_comparison_of_lists(n == "eq") for n in ("eq", "ne")},
    **{f"prim::{name}(i a, i b)": read_arithmetic(kind) for (name, kind) in _NUMBERS.items()},
    "aten::floordiv(i a, i b)": read_arithmetic("FloorDiv"),
    f"aten::zeros|empty(l size, {_MADE})": read_full(0),
    f"aten::ones(l size, {_MADE})": read_full(1),
    f"aten::full(l size, x fill_value, {_OPTIONS})": read_full(None),
    f"aten::new_zeros|new_empty(T self, l size, {_OPTIONS})": read_full(0),
    f"aten::new_ones(T self, l size, {_OPTIONS})": read_full(1),
    f"aten::new_full(T self, l size, x fill_value, {_OPTIONS})": read_full(None),
    f"aten::zeros_like|empty_like(T self, {_MADE})": read_full(0),
    f"aten::ones_like(T self, {_MADE})": read_full(1),
    f"aten::full_like(T self, x fill_value, {_MADE})": read_full(None),
    "aten::fill(T self, x value)": read_fill,
    "aten::zero(T self)": read_fill,
    f"aten::arange(f end, {_OPTIONS})": read_arange,
    f"aten::arange(f start, f end, {_OPTIONS})": read_arange,
    f"aten::arange(f start, f end, f step, {_OPTIONS})": read_arange,
    f"aten::linspace(f start, f end, i steps, {_OPTIONS})": read_linspace,
    f"aten::eye(i n, {_OPTIONS})": read_eye,
    f"aten::eye(i n, i m, {_OPTIONS})": read_eye,
    f"aten::tensor|as_tensor(a data, {_TENSOR})": read_tensor,
    f"aten::scalar_tensor(a s, {_OPTIONS})": read_tensor,
    "aten::_shape_as_tensor(T self)": lambda c: c.emit("Shape", [c.name()]),
}  # fmt: skip
