"""Padding. PyTorch lists pads from the last axis on: before and after it, before and after the one before it …"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.sizing import sizes_tensor
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]

#: PyTorch's modes -> ours.
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def emit_pad(c: Call, pads: Sequence[Any], mode: str, value: float | None) -> Ref:
    """The argument `self` with pads from the last axis on. A value is rounded to the quantization of quantized data."""
    name, rank = c.name("self"), c.rank("self")
    if len(pads) % 2 or len(pads) > 2 * rank:
        raise c.invalid(f"there are {len(pads)} pads for {rank} axes", rule="counts-differ")
    if all(isinstance(pad, int) and pad == 0 for pad in pads):
        return Ref(name)
    before = [0] * (rank - len(pads) // 2) + list(pads[::2])[::-1]
    following = [0] * (rank - len(pads) // 2) + list(pads[1::2])[::-1]
    inputs = [name, sizes_tensor(c, [*before, *following], "pads")]
    filler = c.filler(value, name, "padding") if mode == "constant" and value else ""  # without one it is real zero
    inputs += [filler] if filler else []
    return c.emit("Pad", inputs) if mode == "constant" else c.emit("Pad", inputs, mode=mode)


def read_pad(c: Call) -> Ref:
    """aten::pad(x, pads, mode, value)."""
    if c["mode"] not in _MODES:
        raise c.invalid(f"the mode is {c['mode']!r}, not one of {', '.join(_MODES)}", rule="unknown-word")
    return emit_pad(c, c["pad"], _MODES[c["mode"]], None if c["value"] is None else c.number("value"))


def read_constant(c: Call) -> Ref:
    """aten::constant_pad_nd(x, pads, value)."""
    return emit_pad(c, c["pad"], "constant", c.number("value"))


def read_mode(mode: str, spatial: int) -> Operator:
    """aten::reflection_pad2d, replication_pad1d and their kin."""

    def read(c: Call) -> Ref:
        pads = c["padding"]
        if len(pads) != 2 * spatial:
            raise c.invalid(f"there are {len(pads)} pads for {spatial} axes", rule="counts-differ")
        return emit_pad(c, pads, mode, None)

    return Operator("T self, l padding", read)


OPERATORS: dict[str, Operator | Sequence[Operator]] = {
    "aten::pad": Operator("T self, l pad, s mode='constant', f? value=None", read_pad),
    "aten::constant_pad_nd": Operator("T self, l pad, f value=0", read_constant),
    **{f"aten::reflection_pad{rank}d": read_mode("reflect", rank) for rank in (1, 2, 3)},
    **{f"aten::replication_pad{rank}d": read_mode("edge", rank) for rank in (1, 2, 3)},
}
