"""Operators that give a view: what changes it in place changes what it is a view of."""

from __future__ import annotations

__all__ = ["VIEWS"]

#: Operators whose results share elements with their first input.
VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "slice", "select", "narrow", "chunk", "split",
        "split_with_sizes", "tensor_split", "unbind", "transpose", "permute", "movedim", "t", "numpy_T", "expand", "expand_as",
        "squeeze", "unsqueeze", "contiguous", "detach", "alias", "to", "type_as", "dropout", "feature_dropout", "diagonal",
        "swapaxes", "swapdims",
    )
)  # fmt: skip
