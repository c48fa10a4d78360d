"""The operators of PyTorch that are read, by family.

A row of a family's table is an overload, as PyTorch's own schemas have it, and the function that reads it: "aten::relu(T self)". Several
names before one signature are separated by "|", those without a namespace have that of the first, and "#" is 1, 2 and 3. Overloads of one
name are tried in the order of their rows. The short form of signatures is that of formats/torch/values.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from qconvert.formats.torch.ops import (
    activation,
    affine,
    composed,
    conv_pool,
    create,
    elementwise,
    gathering,
    matrix,
    quantize,
    rearrange,
    recurrent,
    reduce_norm,
    resize,
    scatter,
    slice_concat,
    unary,
)
from qconvert.formats.torch.reading import Operator

__all__ = ["OPERATORS"]

_FAMILIES = (
    activation,
    elementwise,
    composed,
    conv_pool,
    matrix,
    affine,
    create,
    quantize,
    rearrange,
    slice_concat,
    gathering,
    unary,
    reduce_norm,
    recurrent,
    resize,
    scatter,
)


def _read_tables() -> dict[str, Sequence[Operator]]:
    """The operators of all families by their names; each is in one of them."""
    found: dict[str, Sequence[Operator]] = {}
    for family in _FAMILIES:
        own: dict[str, list[Operator]] = {}
        for row, read in family.OPERATORS.items():
            names, _, signature = row.removesuffix(")").partition("(")
            space = names.partition("::")[0]
            for name in names.split("|"):
                full = name if "::" in name else f"{space}::{name}"
                for number in "123" if "#" in name else "1":
                    own.setdefault(full.replace("#", number), []).append(Operator(signature, read))
        if twice := found.keys() & own.keys():
            raise ValueError(f"{min(twice)} is read by two families")
        found |= own
    return found


OPERATORS = _read_tables()
#: Operators that PyTorch registers under a second name, which scripts of its own tests and of early exporters call.
_TWICE = ("add", "conv2d", "conv2d_relu", "conv3d", "conv3d_relu", "conv_transpose1d", "conv_transpose2d", "linear", "linear_dynamic")
OPERATORS |= {f"_quantized::{name}": OPERATORS[f"quantized::{name}"] for name in _TWICE}
