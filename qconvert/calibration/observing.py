"""Observers over the values of a network, in as many passes over the data as their method needs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from threading import get_ident
from typing import Any, Protocol, Self

from qconvert.calibration.network_values import Watched, Watching
from qconvert.calibration.workers import Here, Workers
from qconvert.data.streams import Samples
from qconvert.errors import QConvertError
from qconvert.files.memory import release_memory
from qconvert.graph import Array

__all__ = ["Progress", "Seeing", "observe", "unload_networks"]

Progress = Callable[[str, int, int], None]
#: Samples that one worker sees in a row. It does not depend on how many workers there are, so neither do the scales.
_PART = 16


class Seeing(Protocol):
    """What sees values: an Observer, and whatever else adds something up. See calibration.Observer."""

    @property
    def passes(self) -> int: ...
    def update(self, values: Array) -> None: ...
    def next_pass(self) -> None: ...
    def merge(self, other: Self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Part:
    """Some samples, to be seen by a worker: read by it, or sent along.

    Attributes:
        first: the number of the first.
        source: where the worker reads them; None if they are sent.
        count: how many, of those that the worker reads.
        feeds: those that are sent.
    """

    first: int
    source: Samples | None
    count: int = 0
    feeds: tuple[dict[str, Array], ...] = ()

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return iter(self.feeds) if self.source is None else self.source.part(self.first, self.first + self.count)

    def __len__(self) -> int:
        return self.count or len(self.feeds)

    def where(self, index: int) -> str:
        return f"sample {self.first + index}" if self.source is None else self.source.where(self.first + index)


@dataclass(frozen=True, slots=True)
class _Task:
    """What a worker does with a part: it shows its values to observers and gives these back."""

    network: Watched
    groups: Mapping[str, int]
    seeing: tuple[Any, ...]

    def __call__(self, part: _Part) -> tuple[tuple[Any, ...], int]:
        seeing = copy.deepcopy(self.seeing)
        _update_observers(_load_network(self.network, get_ident()), self.groups, seeing, part, part.where)
        return seeing, len(part)


def observe(
    network: Watched,
    groups: Mapping[str, int],
    seeing: tuple[Any, ...],
    samples: Samples,
    *,
    workers: Workers | None = None,
    progress: Progress = lambda what, done, total: None,
    what: str = "calibration",
) -> tuple[tuple[Any, ...], int]:
    """The observers when they have seen all samples as often as they need, and how many samples there were.

    Args:
        network: what computes the values.
        groups: tensor -> which of the observers sees it.
        seeing: a Seeing for each group.
        samples: the data.
        workers: who runs it; by default this process, in which observers see one sample after the other.
        progress, what: told of each sample, or part of the data, that was seen.

    Raises:
        QConvertError: a sample does not fit or gives NaN, or the runtime refuses the network.
    """
    passes, seen = max((one.passes for one in seeing), default=1), 0
    for number in range(passes):
        if number:
            for one in seeing:
                one.next_pass()
        step = partial(_report_progress, progress, what if passes == 1 else f"{what}, pass {number + 1} of {passes}", samples.count or 0)
        if workers is None or isinstance(workers, Here):
            seen = _update_observers(_load_network(network, get_ident()), groups, seeing, samples, samples.where, step)
        else:
            task = _Task(network.embed_file() if workers.is_remote else network, groups, seeing)
            seeing, seen = _observe_in_parts(task, samples, workers, step)
    return seeing, seen


def _report_progress(progress: Progress, what: str, total: int, done: int) -> None:
    progress(what, done, max(done, total))


@lru_cache(4)
def _load_network(network: Watched, thread: int) -> Watching:
    """The network, loaded once for all parts and passes; each thread has its own."""
    return Watching(network)


def unload_networks() -> None:
    """Lets go of the networks that this process has loaded."""
    _load_network.cache_clear()
    release_memory()


def _update_observers(
    network: Watching,
    groups: Mapping[str, int],
    seeing: tuple[Any, ...],
    feeds: Iterable[dict[str, Array]],
    where: Callable[[int], str],
    step: Callable[[int], None] = lambda done: None,
) -> int:
    """Shows the values of each sample to the observers; returns how many samples there were."""
    number = -1
    for number, values in enumerate(network.values(feeds)):
        for name in (*values,):
            try:
                seeing[groups[name]].update(values.pop(name))  # nothing of it is left when the next sample is computed
            except QConvertError as error:
                error.where, error.file = error.where or f"tensor {name!r}", error.file or where(number)
                raise
        step(number + 1)
    return number + 1


def _observe_in_parts(task: _Task, samples: Samples, workers: Workers, step: Callable[[int], None]) -> tuple[tuple[Any, ...], int]:
    """The observers of all workers, merged in the order of the samples, so the result does not depend on the order of completion."""
    merged: tuple[Any, ...] = ()
    seen = 0
    for seeing, count in workers.map(task, _parts(samples)):
        seen += count
        step(seen)
        for mine, other in zip(merged, seeing, strict=bool(merged)):
            mine.merge(other)
        merged = merged or seeing
    return merged, seen


def _parts(samples: Samples) -> Iterator[_Part]:
    if samples.is_sliced and samples.count is not None:
        for first in range(0, samples.count, _PART):
            yield _Part(first, samples, min(_PART, samples.count - first))
        return
    feeds, first = iter(samples), 0
    while taken := tuple(islice(feeds, _PART)):
        yield _Part(first, None, feeds=taken)
        first += len(taken)
