"""A weight in blocks as another container has room for it, each value the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import Activations
from qconvert.checkpoints.container import Needs
from qconvert.checkpoints.weight import (
    E4M3,
    BlockWeight,
    comparable_values,
    dtype_of,
    pack,
    symmetric_zero_point,
    to_float32,
)


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a weight has no place in a container.

    Attributes:
        reason: in words, the same for all layers to which it applies.
        share: of the blocks, or of the weights, that would change.
        shared: what the share is of.
    """

    reason: str
    share: float = 1.0
    shared: str = "blocks"


#: The code of E4M3 that is no number; those before it are all from 0 on.
_NAN_E4M3 = 127
_LARGEST = float(np.finfo(np.float32).max)


class _NoRoomError(Exception):
    """Carries a Misfit out of the step that found it."""

    def __init__(self, reason: str, share: float = 1.0, shared: str = "blocks") -> None:
        super().__init__(reason)
        self.misfit = Misfit(reason, share, shared)


def fit_weight(weight: BlockWeight, needs: Needs) -> BlockWeight | Misfit:
    """The weight in the form that a container has, each real value the same; a Misfit where there is none.

    Integers become wider, or narrower where they fill no more bits, small ones and FP4 become FP8, FP4 integers with half the scale, blocks
    smaller, or larger where neighbours are alike, zero points others as far from their integers, or offsets, offsets zero points, scales
    another type, where that is exact for every one of them. Of values that are rounded twice, those as float32 stay the same.
    """
    fitted = replace(weight, scale=weight.scales, outer=None, outer_is_last=False) if weight.outer_is_last else weight
    fitted = fitted.integers() if needs.table is None else fitted
    try:
        for step in (
            _fit_activations,
            _fit_table,
            _fit_bits,
            _fit_order,
            _fit_blocks,
            _fit_zeros,
            _fit_outer,
            _fit_scales,
            _fit_outputs,
            _fit_sizes,
        ):
            fitted = step(fitted, needs)
        if weight.outer_is_last:
            _require_same_roundings(weight, fitted)
    except _NoRoomError as found:
        return found.misfit
    return fitted


def _require_same_roundings(weight: BlockWeight, fitted: BlockWeight) -> None:
    differing = 0
    for piece, other in zip(weight.pieces(), fitted.pieces(), strict=True):
        twice, once = comparable_values(piece, other)
        differing += int(np.count_nonzero(twice != once))
    if differing:
        share = differing / (weight.outputs * weight.inputs)
        raise _NoRoomError("values are (q * scale) * factor, rounded twice, and others by one scale in their last bit", share, "weights")


def _fit_activations(weight: BlockWeight, needs: Needs) -> BlockWeight:
    how = weight.activations
    if needs.has_activations(how):
        return weight
    if how is None:
        raise _NoRoomError("data stay float, and would be rounded")
    if how.has_two_levels and needs.has_activations(replace(how, scale_divides=not how.scale_divides)):
        assert how.scale is not None
        inverted = replace(how, scale=float(np.float32(min(1 / how.scale, _LARGEST))), scale_divides=not how.scale_divides)
        if not is_same_rounding(how, inverted):
            raise _NoRoomError("the second level of scales of data has no inverse in float32 that gives the same scales")
        return replace(weight, activations=inverted)
    raise _NoRoomError(f"data are rounded to {replace(how, scale=None)}, which has no room")


def is_same_rounding(first: Activations | None, second: Activations | None) -> bool:
    """Whether two ways round data alike: by scales of E4M3 that are the same in float32, whether a second level multiplies or divides."""
    if first is None or second is None or not (first.has_two_levels and second.has_two_levels):
        return first == second
    own, other = (replace(how, scale=None, scale_divides=False) for how in (first, second))
    return own == other and np.array_equal(_apply_level(first), _apply_level(second))


def _apply_level(how: Activations) -> Array:
    """Apply the second level of scales of data to every scale of E4M3."""
    assert how.scale is not None
    level, scales = np.float32(how.scale), E4M3[:_NAN_E4M3]
    with np.errstate(over="ignore"):
        return scales / level if how.scale_divides else scales * level


def _fit_table(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if weight.table is None and needs.table is None:
        return weight
    if weight.table is None and needs.table is not None and weight.zero is not None and weight.offset is None:
        return _integers_as_floats(weight, needs, needs.table)
    if weight.table is None or needs.table is None:
        raise _NoRoomError("the values of codes are others: one has integers, the other floats of a few bits")
    if np.array_equal(weight.table, needs.table, equal_nan=True):
        return weight
    places = {value: place for place, value in enumerate(needs.table.view(np.uint32).tolist())}
    codes = np.array([places.get(value, -1) for value in weight.table.view(np.uint32).tolist()], np.int16)
    if (codes[weight.used_codes] < 0).any():
        raise _NoRoomError("the values of codes are others: FP4 (E2M1), which FP8 (E4M3) has too, NF4")
    (bits,) = needs.bits
    return replace(weight, words=pack(codes.astype(np.uint8)[weight.codes], bits), bits=bits, table=needs.table)


def _integers_as_floats(weight: BlockWeight, needs: Needs, table: Array) -> BlockWeight:
    """Integers without their zero points as codes of these values, or of twice these: FP8 has all from -16 to 16, FP4 halves."""
    assert weight.zero is not None
    steps = weight.codes.astype(np.int16) - weight.zero[:, weight.blocks_of_inputs]
    low, shares = int(steps.min()), []
    for times in (1, 2):
        places = np.full(int(steps.max()) - low + 1, -1, np.int16)
        for code, value in reversed([*enumerate((table * times).tolist())]):  # 0 has two codes, the second of them negative
            if value == value // 1 and low <= value < low + len(places):
                places[int(value) - low] = code
        codes = places[steps - low]
        if not (codes < 0).any():
            (bits,) = needs.bits
            scale = weight.scale if times == 1 else weight.scales * np.float32(times)
            words = pack(codes.astype(np.uint8), bits)
            return replace(weight, words=words, bits=bits, scale=scale, zero=None, table=table, is_signed=False)
        in_blocks = (codes < 0)[:, np.argsort(weight.blocks_of_inputs, kind="stable")].reshape(*weight.scale.shape, weight.block)
        shares.append(float(in_blocks.any(axis=2).mean()))
    raise _NoRoomError("the values of codes are others: not all integers are floats of a few bits", min(shares))


def _fit_bits(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if weight.bits in needs.bits:
        return weight
    wider = [bits for bits in needs.bits if bits > weight.bits]
    if wider:
        return replace(weight, words=pack(weight.codes, wider[0]), bits=wider[0])
    bits = max(needs.bits)
    for less in (0, symmetric_zero_point(weight.bits) - symmetric_zero_point(bits)) if weight.zero is not None else ():
        if less <= int(weight.codes.min()) and int(weight.codes.max()) - less < 2**bits:
            assert weight.zero is not None
            zero = (weight.zero - less).astype(np.int16)
            return replace(weight, words=pack(weight.codes - np.uint8(less), bits), bits=bits, zero=zero)
    raise _NoRoomError(f"integers have {weight.bits} bits, at most {bits} have room")


def _fit_order(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if weight.groups is not None and not needs.has_groups:
        raise _NoRoomError("inputs are in another order than their blocks (act-order), which has no room")
    if weight.factors is not None and not needs.has_factors:
        raise _NoRoomError("data are multiplied by factors first (pre_quant_scale), which have no room")
    if weight.experts and not needs.has_experts:
        raise _NoRoomError("experts are in one tensor, which has no room")
    return weight


def _fit_blocks(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if not needs.blocks or weight.block in needs.blocks:
        return weight
    smaller = [block for block in needs.blocks if weight.block % block == 0]
    for block in sorted(needs.blocks):
        if block % weight.block == 0 and weight.inputs % block == 0 and (joined := _join_blocks(weight, block // weight.block)):
            return joined
    if not smaller:
        raise _NoRoomError(f"blocks have {weight.block} inputs; {' or '.join(map(str, sorted(needs.blocks)))} are required")
    if weight.groups is not None:
        raise _NoRoomError("blocks of inputs in another order (act-order) cannot be divided")
    times = weight.block // max(smaller)
    return _change_blocks(weight, lambda numbers: np.repeat(numbers, times, axis=1))


def _join_blocks(weight: BlockWeight, count: int) -> BlockWeight | None:
    """The weight with each so many blocks as one; None where they differ."""
    of_blocks = [to_float32(numbers) for numbers in (weight.scale, weight.zero, weight.offset) if numbers is not None]
    if weight.groups is not None or any((item != np.repeat(item[:, ::count], count, axis=1)).any() for item in of_blocks):
        return None
    return _change_blocks(weight, lambda numbers: numbers[:, ::count])


def _change_blocks(weight: BlockWeight, change: Callable[[Array], Array]) -> BlockWeight:
    zero, offset = (None if numbers is None else change(numbers) for numbers in (weight.zero, weight.offset))
    return replace(weight, scale=change(weight.scale), zero=zero, offset=offset)


def _fit_zeros(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if weight.table is not None:
        return weight
    if needs.has_offsets:
        return weight if weight.zero is None else _with_offset(weight, needs)
    if weight.offset is not None:
        weight = _with_zeros(weight)
    assert weight.zero is not None and needs.zeros is not None
    low, high = needs.zeros(weight.bits)
    zero = np.clip(weight.zero, low, high).astype(np.int16)
    if np.array_equal(zero, weight.zero):
        return weight
    blocks = weight.blocks_of_inputs
    codes = weight.codes + (zero - weight.zero)[:, blocks]  # q - zero stays the same
    outside = (codes < 0) | (codes >= 2**weight.bits)
    if not outside.any():
        return replace(weight, words=pack(codes.astype(np.uint8), weight.bits), zero=zero)
    of_blocks = [outside[:, blocks == block].any(axis=1) for block in range(zero.shape[1])]
    only = f"{low}" if low == high else f"{low} to {high}"
    raise _NoRoomError(f"zero points of {weight.bits} bits are not all {only}", float(np.mean(of_blocks)))


def _with_offset(weight: BlockWeight, needs: Needs) -> BlockWeight:
    """scale * (q - zero) + offset as scale * q + offset, with an offset of the type of the scales: a type that holds both."""
    scales, wanted = weight.scales, offsets_of(weight)

    def convert(name: str, rows: slice = slice(None)) -> tuple[Array, Array, Array]:
        dtype = dtype_of(name)
        with np.errstate(over="ignore"):
            scale, offset = scales[rows].astype(dtype), wanted[rows].astype(np.float32).astype(dtype)
        return scale, offset, (offset.astype(np.float64) != wanted[rows]) | (to_float32(scale) != scales[rows])

    names = sorted(needs.scales, key=lambda name: name != weight.scale.dtype.name)
    for name in names:
        if convert(name, slice(1))[2].any():
            continue  # a type that does not fit mostly shows it in the first row
        scale, offset, changes = convert(name)
        if not changes.any():
            return replace(weight, zero=None, offset=offset, scale=scale, outer=None)
    wrong = np.all([convert(name)[2] for name in names], axis=0)
    raise _NoRoomError("zero point times scale is no number of the type that offsets have", float(wrong.mean()))


def offsets_of(weight: BlockWeight) -> Array:
    """Return what a weight with zero points adds to scale * q, float64 [N, G]."""
    assert weight.zero is not None
    found = -weight.zero.astype(np.float64) * weight.scales.astype(np.float64)
    return np.asarray(found if weight.offset is None else found + weight.offset.astype(np.float64))


def _with_zeros(weight: BlockWeight) -> BlockWeight:
    assert weight.offset is not None
    scale, offset = weight.scales.astype(np.float64), weight.offset.astype(np.float64)
    ratio = np.divide(-offset, scale, out=np.zeros_like(scale), where=scale != 0)
    zero = np.rint(ratio)
    wrong = (-zero * scale != offset) | (np.abs(zero) > 2**weight.bits)
    if wrong.any():
        raise _NoRoomError("offsets of blocks are no multiples of their scales, so that no zero point stands for them", float(wrong.mean()))
    own = 0 if weight.zero is None else weight.zero
    return replace(weight, zero=own + zero.astype(np.int16), offset=None)


def _fit_outer(weight: BlockWeight, needs: Needs) -> BlockWeight:
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


def _fit_scales(weight: BlockWeight, needs: Needs) -> BlockWeight:
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


def _fit_outputs(weight: BlockWeight, needs: Needs) -> BlockWeight:
    """One scale for several outputs."""
    scale = to_float32(weight.scale)
    if needs.outputs == 1:
        return weight
    if needs.outputs == 0:
        if not (scale == scale[0, 0]).all():
            raise _NoRoomError("there is one scale for the whole tensor", float((scale != scale[0, 0]).mean()))
        return replace(weight, scale=weight.scale[:, :1])
    if not weight.shares_scales(needs.outputs):
        shared = np.repeat(scale[:: needs.outputs], needs.outputs, axis=0)[: weight.outputs]
        raise _NoRoomError(f"{needs.outputs} outputs share a scale", float((shared != scale).mean()))
    return weight


def _fit_sizes(weight: BlockWeight, needs: Needs) -> BlockWeight:
    if needs.outputs_in_words and weight.outputs * weight.bits % 32:
        raise _NoRoomError(f"outputs do not fill words of 32 bits: {weight.outputs} of {weight.bits} bits")
    if needs.inputs_in_words and weight.inputs * weight.bits % 32:
        raise _NoRoomError(f"inputs do not fill words of 32 bits: {weight.inputs} of {weight.bits} bits")
    return weight
