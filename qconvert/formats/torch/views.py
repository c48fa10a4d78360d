"""Operators that return a view. A view shares its elements with its base: a change of either changes both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qconvert.errors import UnsupportedError

__all__ = ["CHANGES_SHAPE", "KEEPS_ORDER", "MAKES", "MAY_COPY", "VIEWS", "write_back"]

#: Calls an operator: its name, its arguments by position and by name.
_Call = Callable[[str, Sequence[Any], Mapping[str, Any]], Any]

#: Arguments after the data, where a view says which elements it takes.
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "permute": ("dims",), "transpose": ("dim0", "dim1"), "swapaxes": ("axis0", "axis1"), "swapdims": ("dim0", "dim1"),
    "movedim": ("source", "destination"), "moveaxis": ("source", "destination"), "select": ("dim", "index"),
    "slice": ("dim", "start", "end", "step"), "narrow": ("dim", "start", "length"), "unbind": ("dim",), "chunk": ("chunks", "dim"),
    "split": ("split_size", "dim"), "split_with_sizes": ("split_sizes", "dim"), "tensor_split": ("indices_or_sections", "dim"),
}  # fmt: skip
_RESHAPED = ("view", "view_as", "unflatten", "squeeze", "unsqueeze", "flatten", "reshape", "reshape_as", "contiguous", "ravel")
_OTHER = ("expand", "expand_as", "broadcast_to", "diagonal", "unfold")
_SAME = (
    "detach", "alias", "to", "type_as", "dropout", "feature_dropout", "alpha_dropout", "cpu", "cuda", "float", "double", "half", "bfloat16",
    "int", "long", "short", "char", "byte", "bool", "positive", "t", "numpy_T", "mT",
)  # fmt: skip
#: Operators whose results share elements with their first input. Where a result is that input, it is the same tensor.
VIEWS = frozenset(f"aten::{name}" for name in (*_ARGUMENTS, *_RESHAPED, *_OTHER, *_SAME))
#: Of these, those that copy tensors whose elements do not lie in the order of their axes, as those of a transposed one.
MAY_COPY = frozenset(f"aten::{name}" for name in ("flatten", "reshape", "reshape_as", "contiguous", "ravel"))
#: Of these, those whose form in place changes the shape of a tensor and none of its elements.
CHANGES_SHAPE = frozenset(f"aten::{name}" for name in ("squeeze", "unsqueeze", "transpose", "t", "swapaxes", "swapdims"))
#: Views that leave elements in the order of their axes.
KEEPS_ORDER = frozenset(f"aten::{name}" for name in (*_RESHAPED, "detach", "alias"))
#: Operators whose results have their elements in the order of their axes if their inputs have.
MAKES = frozenset(
    f"aten::{name}"
    for name in (
        "zeros", "ones", "full", "empty", "arange", "eye", "linspace", "tensor", "scalar_tensor", "zeros_like", "ones_like", "full_like",
        "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "clone", "cat", "stack", "add", "sub", "rsub", "mul", "div",
        "neg", "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "clamp", "pow", "where", "masked_fill", "gelu", "silu",
        "hardswish", "leaky_relu", "conv1d", "conv2d", "conv3d", "_convolution", "convolution", "batch_norm", "layer_norm", "linear",
        "max_pool2d", "avg_pool2d", "softmax", "copy", "fill", "zero", "bitwise_and", "logical_and", "gt", "lt", "ge", "le", "eq", "ne",
        "floor", "round",
    )
)  # fmt: skip


def write_back(name: str, base: Any, given: Sequence[Any], named: Mapping[str, Any], part: int, new: Any, call: _Call) -> Any:
    """Return the new value of a tensor after a view of it has changed.

    Args:
        name: of the view's operator.
        base: the tensor.
        given, named: the operator's arguments after the tensor.
        part: which of its results the view is.
        new: what the view is now.
        call: calls an operator.

    Raises:
        UnsupportedError: the operator is one of those whose results are not written to.
    """
    short = name.removeprefix("aten::")
    if short in _RESHAPED:
        return call("aten::view_as", [new, base], {})
    if short in ("t", "numpy_T", "mT"):
        return call(name, [new], {})
    values = dict(zip(_ARGUMENTS.get(short, ()), given, strict=False)) | dict(named)
    if short == "permute":
        order = [axis % len(values["dims"]) for axis in values["dims"]]
        return call(name, [new, [order.index(axis) for axis in range(len(order))]], {})
    if short in ("movedim", "moveaxis"):
        return call(name, [new, values["destination"], values["source"]], {})
    if short in ("transpose", "swapaxes", "swapdims"):
        return call(name, [new, *values.values()], {})
    if short == "select":
        return call("aten::select_scatter", [base, new, values["dim"], values["index"]], {})
    if short == "diagonal":
        return call("aten::diagonal_scatter", [base, new, *given], named)
    if short == "unbind":
        return call("aten::select_scatter", [base, new, values.get("dim", 0), part], {})
    if short == "slice":
        bounds = [values.get(key, default) for key, default in (("dim", 0), ("start", None), ("end", None), ("step", 1))]
        return call("aten::slice_scatter", [base, new, *bounds], {})
    if short == "narrow" and isinstance(values["start"], int) and isinstance(values["length"], int):
        start, end = values["start"], values["start"] + values["length"]
        return call("aten::slice_scatter", [base, new, values["dim"], start, None if start < 0 == end else end], {})
    if short in ("chunk", "split", "split_with_sizes", "tensor_split"):
        return _replace_part(name, base, given, named, part, values.get("dim", 0), new, call)
    raise UnsupportedError(f"an in-place change of the result of {name} is not covered", rule="change-of-a-view")


def _replace_part(name: str, base: Any, given: Sequence[Any], named: Mapping[str, Any], part: int, axis: int, new: Any, call: _Call) -> Any:
    """Concatenate the parts of a tensor again after one of them has changed."""
    parts = list(call(name, [base, *given], named))
    parts[part] = new
    return call("aten::cat", [parts, axis], {})
