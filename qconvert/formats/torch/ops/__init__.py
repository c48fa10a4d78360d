"""The operators of PyTorch that are read, by family: each an overload's arguments and the function that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qconvert.formats.torch.ops import (
    activation,
    affine,
    composed,
    convolution,
    create,
    elementwise,
    fake_quantize,
    gathering,
    layers,
    matrix,
    norm,
    padding_windows,
    pool,
    quantize,
    rearrange,
    recurrent,
    reduce,
    resize,
    scatter,
    sizes,
    slice_concat,
    unary,
)
from qconvert.formats.torch.reading import Operator

__all__ = ["OPERATORS"]

_FAMILIES = (
    activation,
    elementwise,
    composed,
    convolution,
    matrix,
    affine,
    create,
    quantize,
    layers,
    rearrange,
    padding_windows,
    reduce,
    slice_concat,
    gathering,
    unary,
    fake_quantize,
    norm,
    pool,
    recurrent,
    resize,
    scatter,
    sizes,
)


def _join_tables(*tables: Mapping[str, Operator | Sequence[Operator]]) -> dict[str, tuple[Operator, ...]]:
    """One table of several; no operator stands in two of them."""
    found: dict[str, tuple[Operator, ...]] = {}
    for table in tables:
        for name, operators in table.items():
            if name in found:
                raise ValueError(f"{name} is read by two functions")
            found[name] = (operators,) if isinstance(operators, Operator) else tuple(operators)
    return found


OPERATORS = _join_tables(*(family.OPERATORS for family in _FAMILIES))
#: Operators that PyTorch registers under a second name, which scripts of its own tests and of early exporters call.
_TWICE = ("add", "conv2d", "conv2d_relu", "conv3d", "conv3d_relu", "conv_transpose1d", "conv_transpose2d", "linear", "linear_dynamic")
OPERATORS |= {f"_quantized::{name}": OPERATORS[f"quantized::{name}"] for name in _TWICE}
