"""The nearest weight in blocks that another container has room for, and its signal-to-noise ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.container import Needs
from qconvert.checkpoints.fitting import Misfit, fit_weight, offsets_of
from qconvert.checkpoints.weight import (
    BlockWeight,
    comparable_values,
    dtype_of,
    pack,
    symmetric_zero_point,
    symmetric_zeros,
    to_float32,
    to_row_major,
)

_Make = Callable[[BlockWeight, Needs, float], BlockWeight | None]

_LARGEST_E4M3 = np.float32(448)
#: Of a scale, so that a block of zeros divides by no 0.
_TINY = np.float32(2.0**-24)


def find_nearest_weight(weight: BlockWeight, needs: Needs) -> BlockWeight | Misfit:
    """The nearest weight that a container has room for; a Misfit for sizes without room, and for containers that round float data.

    Data are no longer rounded where it has no room for that. The weight itself is taken where it has room. Else two are tried, and the one
    with the smaller error is taken: the integers as they are with scales, zero points or offsets rounded, and all of them new, each block
    from its smallest to its largest value. Both are made of some outputs at a time, since their values are floats meanwhile.
    """
    if needs.has_activations(None) and not needs.has_activations(weight.activations):
        weight = replace(weight, activations=None)
    weight = weight.integers() if needs.table is None else weight
    exact = fit_weight(weight, needs)
    has_room = needs.has_activations(weight.activations) and (needs.has_experts or not weight.experts)
    if isinstance(exact, BlockWeight) or not has_room:
        return exact
    has_level = needs.outer != "no" or needs.outputs == 0
    largest = max(float(np.abs(piece.exact_values()).max()) for piece in weight.pieces()) if has_level else 0.0
    best: tuple[float, BlockWeight] | None = None
    last: Misfit | None = None
    for make in (_round_scales, _requantize_blocks):
        error, found = 0.0, list[BlockWeight]()
        for piece in weight.pieces(max(needs.outputs, 1)):
            made = _make_piece(make, piece, needs, largest)
            if isinstance(made, Misfit):
                last = made
                break
            found.append(made)
            wanted, values = comparable_values(piece, made)
            error += float(np.square(values - wanted).sum())
        else:
            if best is None or error < best[0]:
                best = error, _join_pieces(found)
    return replace(best[1], experts=weight.experts) if best is not None else last or Misfit("the sizes of the weight have no room")


def _make_piece(make: _Make, piece: BlockWeight, needs: Needs, largest: float) -> BlockWeight | Misfit:
    """Some outputs requantized by `make`, in the form of a container."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        candidate = make(piece, needs, largest)
    numbers = [] if candidate is None else [item for item in (candidate.scale, candidate.offset) if item is not None]
    if candidate is None or not all(np.isfinite(to_float32(item)).all() for item in numbers):
        return Misfit(f"values are out of range for scales of {needs.scales[0]}")
    return fit_weight(candidate, needs)


def _join_pieces(pieces: list[BlockWeight]) -> BlockWeight:
    """A weight of pieces that were made in one way, with one second level of scales."""
    zeros, offsets = ([item for item in items if item is not None] for items in zip(*((p.zero, p.offset) for p in pieces), strict=True))
    return replace(
        pieces[0],
        words=np.concatenate([to_row_major(piece.words) for piece in pieces]),
        scale=np.concatenate([piece.scale for piece in pieces]),
        zero=np.concatenate(zeros) if zeros else None,
        offset=np.concatenate(offsets) if offsets else None,
    )


def signal_to_noise(weight: BlockWeight, made: BlockWeight) -> float | None:
    """SQNR in decibels of the values of one weight as another has them; None where they are equal."""
    power = error = 0.0
    for piece, other in zip(weight.pieces(), made.pieces(), strict=True):
        wanted, values = comparable_values(piece, other)
        power += float(np.square(wanted).sum())
        error += float(np.square(values - wanted).sum())
    return 10 * float(np.log10(power / error)) if error else None


def _round_scales(weight: BlockWeight, needs: Needs, largest: float) -> BlockWeight | None:
    """The same codes with scales in a type that the container has, and zero points that it has; None where that cannot be."""
    if weight.factors is not None or (weight.table is None) is not (needs.table is None):
        return None
    if needs.outer != "no":
        if weight.outer is None or weight.outer_divides is (needs.outer == "divides"):
            return weight if weight.outer is not None else None
        return replace(weight, outer=1 / weight.outer, outer_divides=not weight.outer_divides)
    own = weight.scales.dtype.name if weight.outer_is_last else ""
    scale = weight.scales.astype(dtype_of(own if own in needs.scales else needs.scales[0]))
    zero, offset = weight.zero, weight.offset
    if zero is None and offset is None:
        return None if weight.table is None else replace(weight, scale=scale, outer=None)
    if needs.has_offsets and zero is not None:
        offset = offsets_of(weight).astype(np.float32).astype(scale.dtype)
        zero = None
    elif offset is not None and needs.zeros is not None:
        low, high = needs.zeros(weight.bits)
        steps = np.rint(np.nan_to_num(-to_float32(offset) / weight.scales))
        zero = np.clip(steps if zero is None else steps + zero, low, high).astype(np.int16)
        offset = None
    elif offset is not None:
        offset = offset.astype(scale.dtype)
    return replace(weight, scale=scale, zero=zero, offset=offset, outer=None, outer_is_last=False)


def _requantize_blocks(weight: BlockWeight, needs: Needs, largest: float) -> BlockWeight:
    """New codes and scales of the values, inputs in their order; `largest` is the largest of the whole weight."""
    wanted = weight.exact_values().astype(np.float32)
    bits = weight.bits if weight.bits in needs.bits else min((item for item in needs.bits if item > weight.bits), default=max(needs.bits))
    dividing = [block for block in needs.blocks if wanted.shape[1] % block == 0]
    smaller = [block for block in dividing if weight.block % block == 0]  # those that fit_weight() would take
    near = max(smaller) if smaller else min(dividing, key=lambda block: abs(block - weight.block), default=weight.block)
    block = weight.block if not needs.blocks or weight.block in needs.blocks else near
    in_blocks = wanted.reshape(len(wanted), -1, block)
    if needs.table is not None:
        return replace(_requantize_on_table(in_blocks, bits, needs, largest), activations=weight.activations)
    low, high = np.minimum(in_blocks.min(axis=2), 0), np.maximum(in_blocks.max(axis=2), 0)
    least, most = needs.zeros(bits) if needs.zeros is not None else (0, 2**bits - 1)
    dtype = dtype_of(needs.scales[0])
    half, steps = symmetric_zero_point(bits), 2**bits - 1
    if least == most or weight.is_symmetric:
        scale = np.maximum(np.maximum(-low / half, high / (half - 1)), _TINY).astype(dtype)
        zero = symmetric_zeros(scale, bits)
    else:
        scale = np.maximum((high - low) / steps, _TINY).astype(dtype)
        zero = np.clip(np.rint(-low / to_float32(scale)), least, most).astype(np.int16)
    codes = np.clip(np.rint(in_blocks / to_float32(scale)[..., None]) + zero[..., None], 0, steps).astype(np.uint8).reshape(wanted.shape)
    made = BlockWeight(pack(codes, bits), bits, wanted.shape[1], scale, zero, activations=weight.activations)
    if not needs.has_offsets:
        return made
    return replace(made, zero=None, offset=(-zero.astype(np.float32) * to_float32(scale)).astype(dtype))


def _requantize_on_table(in_blocks: Array, bits: int, needs: Needs, whole: float) -> BlockWeight:
    """FP4 or FP8 with scales of E4M3, floats, or powers of two (E8M0) as the Microscaling specification takes them."""
    assert needs.table is not None
    largest = np.abs(in_blocks).max(axis=2)
    top = np.float32(np.nanmax(needs.table))
    if needs.outputs == 0:
        largest = np.full_like(largest, whole)
    elif needs.outputs > 1:
        starts = np.arange(0, len(largest), needs.outputs)
        largest = np.repeat(np.maximum.reduceat(largest, starts), needs.outputs, axis=0)[: len(largest)]
    outer = None
    if needs.scales[0] == "float8_e8m0fnu":
        exponent = np.floor(np.log2(np.maximum(largest, _TINY))) - np.floor(np.log2(top))
        scale = np.exp2(exponent).astype(np.float32).astype(dtype_of("float8_e8m0fnu"))
        real = to_float32(scale)
    elif needs.scales[0] != "float8_e4m3fn":
        scale = np.maximum(largest / top, _TINY).astype(dtype_of(needs.scales[0]))
        real = to_float32(scale)
    else:
        level = np.maximum(np.float32(whole / (top * _LARGEST_E4M3)), _TINY) if needs.outer != "no" else np.float32(1)
        scale = np.maximum(largest / top / level, np.float32(2.0**-9)).astype(dtype_of("float8_e4m3fn"))
        if needs.outer != "no":
            outer = np.array([[1 / level if needs.outer == "divides" else level]], np.float32)
        real = to_float32(scale) if outer is None else to_float32(scale) / outer if needs.outer == "divides" else to_float32(scale) * outer
    ordered = np.argsort(needs.table, kind="stable")[: np.count_nonzero(~np.isnan(needs.table))]
    middles = (needs.table[ordered][1:] + needs.table[ordered][:-1]) / 2
    codes = ordered[np.searchsorted(middles, in_blocks / real[..., None])].astype(np.uint8).reshape(len(in_blocks), -1)
    return BlockWeight(
        pack(codes, bits), bits, codes.shape[1], scale, table=needs.table, outer=outer, outer_divides=needs.outer == "divides"
    )
