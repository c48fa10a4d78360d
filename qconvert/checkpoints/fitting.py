"""A weight in blocks as another container has room for it: exactly, with every real value kept, or why that cannot be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.checkpoints.container import Needs
from qconvert.checkpoints.packing import pack
from qconvert.checkpoints.weight import BlockWeight, to_float32

__all__ = ["Misfit", "dtype_of", "fit_weight"]


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a weight has no place in a container.

    Attributes:
        reason: in words, the same for all layers to which it applies.
        share: of the blocks, or of the weights, that would change.
    """

    reason: str
    share: float = 1.0


class _NoRoomError(Exception):
    """Carries a Misfit out of the step that found it."""

    def __init__(self, reason: str, share: float = 1.0) -> None:
        super().__init__(reason)
        self.misfit = Misfit(reason, share)


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy dtype of scales by its name, those of ml_dtypes among them."""
    if name in ("float16", "float32"):
        return np.dtype(name)
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def fit_weight(weight: BlockWeight, needs: Needs) -> BlockWeight | Misfit:
    """The weight in the form that a container has, each real value the same; a Misfit where there is none.

    Integers become wider, blocks smaller, zero points offsets and offsets zero points, and scales another type, where that is exact for
    every one of them.
    """
    try:
        for step in (_table, _bits, _order, _blocks, _zeros, _outer, _scales, _sizes):
            weight = step(weight, needs)
    except _NoRoomError as found:
        return found.misfit
    return weight


def _table(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if weight.table is None and needs.table is None:
        return weight
    if weight.table is None or needs.table is None or not np.array_equal(weight.table, needs.table):
        raise _NoRoomError("the values of codes are others: integers, FP4 (E2M1) and NF4 are no subsets of each other")
    return weight


def _bits(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if weight.bits in needs.bits:
        return weight
    wider = [bits for bits in needs.bits if bits > weight.bits]
    if not wider:
        raise _NoRoomError(f"integers have {weight.bits} bits, at most {max(needs.bits)} have room")
    return replace(weight, words=pack(weight.codes, wider[0]), bits=wider[0])


def _order(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if weight.groups is not None and not needs.has_groups:
        raise _NoRoomError("inputs are in another order than their blocks (act-order), which has no room")
    if weight.factors is not None and not needs.has_factors:
        raise _NoRoomError("data are multiplied by factors first (pre_quant_scale), which have no room")
    return weight


def _blocks(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if not needs.blocks or weight.block in needs.blocks:
        return weight
    smaller = [block for block in needs.blocks if weight.block % block == 0]
    if not smaller:
        raise _NoRoomError(f"blocks have {weight.block} inputs; {' or '.join(map(str, sorted(needs.blocks)))} are required")
    if weight.groups is not None:
        raise _NoRoomError("blocks of inputs in another order (act-order) cannot be divided")
    times = weight.block // max(smaller)

    def repeat_columns(numbers: Array | None) -> Array | None:
        return None if numbers is None else np.repeat(numbers, times, axis=1)

    scale = repeat_columns(weight.scale)
    assert scale is not None
    return replace(weight, scale=scale, zero=repeat_columns(weight.zero), offset=repeat_columns(weight.offset))


def _zeros(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if weight.table is not None:
        return weight
    if needs.has_offsets:
        return weight if weight.offset is not None else _with_offset(weight, needs)
    has_own = weight.offset is None
    if not has_own:
        weight = _with_zeros(weight)
    assert weight.zero is not None and needs.zeros is not None
    low, high = needs.zeros(weight.bits)
    outside = (weight.zero < low) | (weight.zero > high)
    if not outside.any():
        return weight
    shifted = _shift_codes(weight, low - int(weight.zero.min())) if has_own and weight.zero.min() < low != high else None
    if shifted is not None and shifted.zero is not None and int(shifted.zero.max()) <= high:
        return shifted
    only = f"{low}" if low == high else f"{low} to {high}"
    raise _NoRoomError(f"zero points of {weight.bits} bits are not all {only}", float(outside.mean()))


def _shift_codes(weight: BlockWeight, by: int) -> BlockWeight | None:
    """The weight with as much added to every code as to every zero point; None where a code has no room."""
    assert weight.zero is not None
    codes = weight.codes
    if int(codes.max()) + by >= 2**weight.bits:
        return None
    return replace(weight, words=pack(codes + np.uint8(by), weight.bits), zero=(weight.zero + by).astype(np.int16))


def _with_offset(weight: BlockWeight, needs: Needs) -> BlockWeight:
    """scale * (q - zero) as scale * q + offset, with an offset of the type of the scales; both are taken to a type that holds them."""
    assert weight.zero is not None
    wanted = -weight.zero.astype(np.float64) * weight.scales.astype(np.float64)
    wrong = np.ones(wanted.shape, bool)
    own = weight.scale.dtype.name
    for name in sorted(needs.scales, key=lambda name: name != own):
        dtype = dtype_of(name)
        with np.errstate(over="ignore"):
            scale, offset = weight.scales.astype(dtype), wanted.astype(np.float32).astype(dtype)
        changes = (offset.astype(np.float64) != wanted) | (to_float32(scale) != weight.scales)
        if not changes.any():
            return replace(weight, zero=None, offset=offset, scale=scale, outer=None)
        wrong = changes if name == own else wrong & changes
    raise _NoRoomError("zero point times scale is no number of the type that offsets have", float(wrong.mean()))


def _with_zeros(weight: BlockWeight) -> BlockWeight:
    assert weight.offset is not None
    scale, offset = weight.scales.astype(np.float64), weight.offset.astype(np.float64)
    ratio = np.divide(-offset, scale, out=np.zeros_like(scale), where=scale != 0)
    zero = np.rint(ratio)
    wrong = (-zero * scale != offset) | (np.abs(zero) > 2**weight.bits)
    if wrong.any():
        raise _NoRoomError("offsets of blocks are no multiples of their scales, so that no zero point stands for them", float(wrong.mean()))
    return replace(weight, zero=zero.astype(np.int16), offset=None)


def _outer(weight: BlockWeight, needs: Needs) -> BlockWeight:
    """Both levels of scales as the container has them, the product of both the same in float32."""
    if weight.outer is None:
        if needs.outer == "no":
            return weight
        return replace(weight, outer=np.ones((1, 1), np.float32), outer_divides=needs.outer == "divides")
    if needs.outer == ("divides" if weight.outer_divides else "times"):
        return weight
    if needs.outer == "no":
        return replace(weight, scale=weight.scales, outer=None, outer_divides=False)
    inverse = np.float32(1) / weight.outer
    made = replace(weight, outer=inverse, outer_divides=not weight.outer_divides)
    wrong = made.scales != weight.scales
    if wrong.any():
        raise _NoRoomError("the second level of scales has no inverse in float32 that gives the same scales", float(wrong.mean()))
    return made


def _scales(weight: BlockWeight, needs: Needs) -> BlockWeight:
    """Scales, and offsets with them, in a type that holds every one."""
    numbers = [weight.scale] if weight.offset is None else [weight.scale, weight.offset]
    own = weight.scale.dtype.name
    if own in needs.scales and all(item.dtype == weight.scale.dtype for item in numbers):
        return weight
    share = 1.0
    for name in sorted(needs.scales, key=lambda name: name != own):
        with np.errstate(over="ignore"):
            made = [to_float32(item).astype(dtype_of(name)) for item in numbers]
        wrong = np.any([to_float32(item) != to_float32(before) for item, before in zip(made, numbers, strict=True)], axis=0)
        if not wrong.any():
            return replace(weight, scale=made[0], offset=made[1] if len(made) > 1 else None)
        share = min(share, float(wrong.mean()))
    what = "scales" if len(numbers) == 1 else "scales and offsets"
    raise _NoRoomError(f"{what} of {own} are not all {' or '.join(needs.scales)}", share)


def _sizes(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if needs.outputs_in_words and weight.outputs * weight.bits % 32:
        raise _NoRoomError(f"outputs do not fill words of 32 bits: {weight.outputs} of {weight.bits} bits")
    if needs.inputs_in_words and weight.inputs * weight.bits % 32:
        raise _NoRoomError(f"inputs do not fill words of 32 bits: {weight.inputs} of {weight.bits} bits")
    return weight
