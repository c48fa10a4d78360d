"""Layers of a checkpoint in another form, one after another in threads, and the error of those that no form holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from qconvert.arithmetic.dtypes import Array
from qconvert.checkpoints.container import Needs
from qconvert.checkpoints.fitting import Misfit, fit_weight
from qconvert.checkpoints.nearest import find_nearest_weight, signal_to_noise
from qconvert.checkpoints.weight import BlockWeight
from qconvert.errors import UnsupportedError, format_count

__all__ = ["ConvertedLayer", "Repacked", "convert_layer", "map_in_order", "refusal"]

#: A form: which weights it holds, and the tensors of one.
Form = tuple[Needs, Callable[[BlockWeight], Mapping[str, Array]]]

#: Threads that convert layers, and layers that wait to be written: numpy computes without Python's lock.
_THREADS, _WAITING = 2, 4


@dataclass(slots=True)
class Repacked:
    """What was done to a checkpoint.

    Attributes:
        counts: of what was kept.
        notes: what the user should know.
        costs: layer -> SQNR in decibels of its new weights; of those alone that were quantized again; None where none changed.
    """

    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    costs: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConvertedLayer:
    """What one layer, or tensor, became.

    Attributes:
        name: of the layer or tensor.
        tensors: what is written of it, by its name; empty where nothing is.
        weight: the weight in blocks that was written.
        misfit: why no form holds it.
        is_new: whether it was quantized again.
        sqnr_db: of its new weights, in decibels; None where none changed.
    """

    name: str
    tensors: Mapping[str, Array]
    weight: BlockWeight | None = None
    misfit: Misfit | None = None
    is_new: bool = False
    sqnr_db: float | None = None


def convert_layer(name: str, weight: BlockWeight, forms: Sequence[Form], *, requantize: bool) -> ConvertedLayer:
    """A weight in the first form that holds it.

    Args:
        name: of the layer.
        weight: as it is read.
        forms: in the order of preference.
        requantize: whether the nearest weight of all forms is taken where none does.
    """
    misfit = None
    for needs, write in forms:
        found = fit_weight(weight, needs)
        if isinstance(found, BlockWeight):
            return ConvertedLayer(name, write(found), found)
        misfit = found if misfit is None or found.share < misfit.share else misfit
    made = []
    for needs, write in forms if requantize else ():
        found = find_nearest_weight(weight, needs)
        if isinstance(found, BlockWeight):
            made.append((found, write))
        else:
            misfit = found
    if not made:
        return ConvertedLayer(name, {}, misfit=misfit)
    losses = [signal_to_noise(weight, found) for found, _ in made]
    best = max(range(len(made)), key=lambda place: np.inf if (db := losses[place]) is None else db)
    found, write = made[best]
    return ConvertedLayer(name, write(found), found, is_new=True, sqnr_db=losses[best])


def map_in_order(work: Callable[[str], ConvertedLayer], items: Iterable[str]) -> Iterator[ConvertedLayer]:
    """The results of all items in their order, computed by threads a few of them ahead."""
    left = iter(items)
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: list[Future[ConvertedLayer]] = [pool.submit(work, item) for item in islice(left, _WAITING)]
        try:
            while waiting:
                yield waiting.pop(0).result()
                with suppress(StopIteration):
                    waiting.append(pool.submit(work, next(left)))
        finally:
            for future in waiting:
                future.cancel()


def refusal(misfits: Sequence[ConvertedLayer], title: str, count: int, *, requantize: bool = False) -> UnsupportedError:
    """The error of layers that no form holds, with all reasons and shares.

    Args:
        misfits: these layers.
        title: what the result is called.
        count: of all layers.
        requantize: whether the nearest weights have been tried.
    """
    reasons: dict[str, list[float]] = {}
    for layer in misfits:
        assert layer.misfit is not None
        reasons.setdefault(layer.misfit.reason, []).append(layer.misfit.share)
    said = []
    for reason, shares in reasons.items():
        share = f" ({min(shares):.1%} to {max(shares):.1%} of the blocks)" if min(shares) < 1 else ""
        said.append(f"{format_count(len(shares), 'layer')} of {count}: {reason}{share}")
    return UnsupportedError(
        f"{title} does not hold every value: {'; '.join(said)}",
        where=repr(misfits[0].name),
        remedy="" if requantize else "--requantize takes the nearest weights that fit, and reports their error.",
        rule="not-lossless",
    )
