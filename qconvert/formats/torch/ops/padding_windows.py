"""Padding, and windows of one axis side by side.

PyTorch lists pads from the last axis on: before and after it, before and after the one before it …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.formats.torch.operands import sizes_tensor
from qconvert.formats.torch.reading import ReadFunction, Reading

#: The most elements of windows of one axis.
_MOST = 2**20
#: PyTorch's modes -> ours.
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def emit_pad(c: Reading, pads: Sequence[Any], mode: str, value: float | None) -> str:
    """The argument `self` with pads from the last axis on. A value is rounded to the quantization of quantized data."""
    name, rank = c.name(), c.rank()
    if len(pads) % 2 or len(pads) > 2 * rank:
        raise c.invalid(f"there are {len(pads)} pads for {rank} axes", rule="counts-differ")
    if all(isinstance(pad, int) and pad == 0 for pad in pads):
        return name
    before = [0] * (rank - len(pads) // 2) + list(pads[::2])[::-1]
    following = [0] * (rank - len(pads) // 2) + list(pads[1::2])[::-1]
    inputs = [name, sizes_tensor(c, [*before, *following], "pads")]
    filler = c.filler(value, name, "padding") if mode == "constant" and value else ""  # without one it is real zero
    inputs += [filler] if filler else []
    return c.emit("Pad", inputs) if mode == "constant" else c.emit("Pad", inputs, mode=mode)


def read_pad(c: Reading) -> str:
    """aten::pad(x, pads, mode, value)."""
    if c["mode"] not in _MODES:
        raise c.invalid(f"the mode is {c['mode']!r}, not one of {', '.join(_MODES)}", rule="unknown-word")
    return emit_pad(c, c["pad"], _MODES[c["mode"]], None if c["value"] is None else c.number("value"))


def read_constant(c: Reading) -> str:
    """aten::constant_pad_nd(x, pads, value)."""
    return emit_pad(c, c["pad"], "constant", c.number("value"))


def read_mode(c: Reading) -> str:
    """aten::reflection_pad2d, replication_pad1d and their kin."""
    pads = c["padding"]
    if len(pads) != 2 * c.spatial:
        raise c.invalid(f"there are {len(pads)} pads for {c.spatial} axes", rule="counts-differ")
    return emit_pad(c, pads, "reflect" if "reflection" in c.operator else "edge", None)


def read_windows(c: Reading) -> str:
    """aten::unfold(x, dimension, size, step): windows of one axis, whose elements get an axis at the end."""
    rank, size, step = c.rank(), c.integer("size"), c.integer("step")
    axis = c.axis_of("dimension")
    whole = c.static_size(axis)
    count = (whole - size) // step + 1 if step > 0 and 0 < size <= whole else 0
    if not 0 < count * size <= _MOST:
        raise c.invalid(f"windows of {size} in steps of {step} do not fit an axis of {whole}", rule="sizes-do-not-fit")
    places = c.const(np.arange(count)[:, None] * step + np.arange(size, dtype=np.int64), "places")
    if axis == rank - 1:
        return c.emit("Gather", [c.name(), places], axis=axis)
    found = c.emit("Gather", [c.name(), places], axis=axis, hint="windows")
    order = [other for other in range(rank + 1) if other != axis + 1]
    return c.emit("Transpose", [found], perm=(*order, axis + 1))


OPERATORS: Mapping[str, ReadFunction] = {
    "aten::pad(T self, l pad, s mode='constant', f? value=None)": read_pad,
    "aten::constant_pad_nd(T self, l pad, f value=0)": read_constant,
    "aten::reflection_pad#d|replication_pad#d(T self, l padding)": read_mode,
    "aten::unfold(T self, i dimension, i size, i step)": read_windows,
}
