"""Sizes of tensors as numbers: known ones are numbers at once, others are computed by the graph as int64 of rank 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import scalar, size_of, sizes_of, sizes_tensor
from qconvert.formats.torch.reading import ReadFunction, Reading, with_arguments
from qconvert.formats.torch.stored_values import QUANTIZED
from qconvert.formats.torch.values import Ref
from qconvert.graph import Tensor


def read_size(c: Reading) -> Any:
    """aten::size(x, dim) and aten::sym_size."""
    return size_of(c, c.name(), c.axis_of())


def read_count(c: Reading) -> Any:
    """aten::numel(x)."""
    sizes = sizes_of(c)
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    return Ref(c.emit("ReduceProd", [sizes_tensor(c, sizes, "sizes"), c.list64([0], "axes")], keepdims=0), number=True)


def read_rank(c: Reading) -> int:
    """aten::dim(x)."""
    return c.rank()


def read_length(c: Reading) -> Any:
    """aten::len(x): its first size."""
    return size_of(c, c.name(), 0)


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
    return Ref(c.emit("Cast", [value.name], dtype=dtype, quantization=None, to=dtype), number=True)


def read_item(c: Reading) -> Any:
    """aten::item(x): the one element of a tensor as a number of its own type."""
    value = _read_single_element(c)
    return Ref(value.name, number=True) if isinstance(value, Ref) else value


@with_arguments
def read_arithmetic(c: Reading, kind: str, dtype: str = "int64") -> Ref:
    """A sum, difference, product, quotient or comparison of numbers of which one is known only at run time."""
    names = [scalar(c, c["a"], "a"), scalar(c, c["b"], "b")]
    return Ref(c.emit(kind, names, dtype=dtype, quantization=None), number=True)


@with_arguments
def read_comparison_of_lists(c: Reading, equal: bool) -> Any:
    """Whether two lists of sizes, of which one is known only at run time, are equal, or are not."""
    a, b = list(c["a"]), list(c["b"])
    if len(a) != len(b) or any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a, b, strict=True)):
        return not equal
    places = [sizes_tensor(c, sizes, hint) for sizes, hint in ((a, "a"), (b, "b"))]
    differs = c.emit("ReduceMax", [c.emit("Abs", [c.emit("Sub", places)]), c.list64([0], "axes")], keepdims=0)
    kind = "Equal" if equal else "Greater"
    return Ref(c.emit(kind, [differs, scalar(c, 0, "zero")], dtype="bool"), number=True)


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


OPERATORS: Mapping[str, ReadFunction] = {
    "aten::size|sym_size(T self, i dim)": read_size,
    "aten::size|sym_size(T self)": sizes_of,
    "aten::numel(T self)": read_count,
    "aten::dim|prim::ndim(T self)": read_rank,
    "aten::len(T self)": read_length,
    "prim::NumToTensor(f a)": read_number_tensor,
    "aten::Int|IntImplicit|prim::int(x a)": read_number("int64", int),
    "aten::Float|FloatImplicit|prim::float(x a)": read_number("float32", float),
    "aten::Bool|is_nonzero|prim::bool(x a)": read_number("bool", bool),
    "aten::item|_local_scalar_dense|ScalarImplicit(T a)": read_item,
    "prim::dtype(T a)": read_type,
    "aten::is_floating_point(T a)": read_property(lambda tensor: "float" in tensor.dtype),
    "prim::is_quantized(T a)": read_property(lambda tensor: tensor.is_quantized),
    "aten::is_complex(T a)": read_property(lambda tensor: False),
    "prim::is_cuda|is_mkldnn|is_sparse|is_meta|is_nested|requires_grad(T a)": read_property(lambda tensor: False),
    "prim::device|layout(T a)": read_property(lambda tensor: None),
    **{f"prim::{name}(i a, i b)": read_arithmetic(kind, "bool") for (name, kind) in COMPARISONS.items()},
    **{f"prim::{n}(l a, l b)": read_comparison_of_lists(n == "eq") for n in ("eq", "ne")},
    **{f"prim::{name}(i a, i b)": read_arithmetic(kind) for (name, kind) in _NUMBERS.items()},
    "aten::floordiv(i a, i b)": read_arithmetic("FloorDiv"),
}
