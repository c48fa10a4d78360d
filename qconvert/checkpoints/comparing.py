"""Whether two checkpoints have the same weights, by their integers and scales, whatever container each is in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.checkpoints.parts import is_float
from qconvert.checkpoints.source import CheckpointSource
from qconvert.checkpoints.weight import BlockWeight

__all__ = ["checkpoint_differences"]


def checkpoint_differences(a: Path, b: Path) -> list[str]:
    """What differs between two checkpoints, one line for each layer or tensor; empty if every real weight is the same.

    Weights in blocks are compared by what their integers, scales and zero points stand for, without the rounding of a kernel: in float64,
    which holds the product of an integer of 8 bits and a scale. All other tensors are compared bit for bit, a table of embeddings that is
    in blocks on one side alone by its values.

    Args:
        a, b: .safetensors files of the checkpoints.

    Raises:
        QConvertError: one cannot be read, or is in a form that is not covered.
    """
    return list(_differences(CheckpointSource.of(a), CheckpointSource.of(b)))


def _differences(a: CheckpointSource, b: CheckpointSource) -> Iterator[str]:
    plain = {**a.plain}, {**b.plain}
    for layer in dict.fromkeys((*a.layers, *b.layers)):
        name = f"{layer}.weight"
        if layer in a.layers and layer in b.layers:
            found = _compare_weights(a.weight(layer), b.weight(layer))
            a.release(layer)
            b.release(layer)
        elif (real := plain[layer in a.layers].pop(name, None)) is not None:
            weight = (a if layer in a.layers else b).weight(layer)
            found = "" if _is_equal(weight, real) else "values differ, in blocks and in floats"
        else:
            found = f"only the {'first' if layer in a.layers else 'second'} has it"
        if found:
            yield f"layer {layer}: {found}"
    for name in dict.fromkeys((*plain[0], *plain[1])):
        first, second = plain[0].get(name), plain[1].get(name)
        if first is None or second is None:
            yield f"tensor {name}: only the {'second' if first is None else 'first'} has it"
        elif first.dtype != second.dtype or first.shape != second.shape:
            yield f"tensor {name}: {first.dtype} {list(first.shape)} -> {second.dtype} {list(second.shape)}"
        elif (count := _count_differing(first, second)) > 0:
            yield f"tensor {name}: {count} of {first.size} elements differ"


def _is_equal(weight: BlockWeight, real: Array) -> bool:
    """Whether floats are the values of a weight in blocks, in the type that they have."""
    if real.shape != (weight.outputs, weight.inputs):
        return False
    first = 0
    for piece in weight.pieces():
        if not np.array_equal(piece.floats(real.dtype), real[first : first + piece.outputs]):
            return False
        first += piece.outputs
    return True


def _count_differing(first: Array, second: Array) -> int:
    same = first == second
    if is_float(first):
        same = same | (np.isnan(first.astype(np.float32)) & np.isnan(second.astype(np.float32)))
    return int(first.size - np.count_nonzero(same))


def _compare_weights(first: BlockWeight, second: BlockWeight) -> str:
    """How two weights differ; "" if they do not."""
    if (first.outputs, first.inputs) != (second.outputs, second.inputs):
        return f"shape {[first.outputs, first.inputs]} -> {[second.outputs, second.inputs]}"
    differing, largest, most = 0, 0.0, 0.0
    for left, right in zip(first.pieces(), second.pieces(), strict=True):
        one, other = left.exact_values(), right.exact_values()
        gaps = np.abs(one - other)
        differing += int(np.count_nonzero(gaps))
        largest, most = max(largest, float(gaps.max())), max(most, float(np.abs(one).max()))
    if not differing:
        return ""
    share = differing / (first.outputs * first.inputs)
    return f"{differing} weights ({share:.1%}) differ, by at most {largest / most if most else 1:.2g} of the largest"
