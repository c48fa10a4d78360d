"""A float network in its runtime, which gives out the values of inner tensors, sample by sample; and observers over these values, in as
many passes over the data as their method needs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np

from qconvert.arguments import Progress, no_progress
from qconvert.calibration.workers import Workers
from qconvert.conversion import save
from qconvert.conversion.normalizing import normalize
from qconvert.data.samples import Samples, batch_name
from qconvert.errors import OptionError, QConvertError, RuntimeRefusedError, UnsupportedError
from qconvert.files.system import release_memory, temporary_folder
from qconvert.graph import Array, Arrays, Graph
from qconvert.plugins import LoadedModel, ModelFile, Runtime, format_named, runtimes, target_named

#: Samples run together as long as what they give out stays below this.
_BATCH_BYTES = 8 << 20
_LARGEST_BATCH = 64


@dataclass(frozen=True, slots=True)
class Watched:
    """What a worker needs to run a network. It can be pickled.

    Attributes:
        path: a file.
        format: of the file.
        runtime: the name of what runs it.
        inputs: in order.
        names: of the tensors whose values are wanted.
        batch: how many samples run together.
        threads: see ModelFile.
        model: the content of the file, where workers do not have it.
    """

    path: Path
    format: str
    runtime: str
    inputs: tuple[str, ...]
    names: tuple[str, ...]
    batch: int = 1
    threads: int = 0
    model: bytes = b""

    def embed_file(self) -> Watched:
        """The same with the content of its file, for machines that do not have it.

        Raises:
            UnsupportedError: the file is too large for one message.
        """
        if any(path != self.path for path in self.path.parent.iterdir()):
            raise UnsupportedError(
                "the network is too large to be sent to other machines",
                remedy="Calibrate it on this machine: --jobs N.",
                rule="network-too-large",
            )
        return replace(self, path=Path(), model=self.path.read_bytes())


def write_for_runtime(graph: Graph, names: Iterable[str], folder: Path, runtime: str, threads: int = 0) -> Watched:
    """The network as a file of the runtime's format.

    Args:
        graph: the network.
        folder: an empty one, where the file stays as long as it is needed.
        names: of the tensors whose values are wanted.
        runtime: a name in plugins.runtimes().
        threads: see ModelFile.

    Raises:
        OptionError: there is no such runtime, or it returns no inner tensors.
        QConvertError: the network cannot be written in its format.
    """
    form = format_named(_runtime(runtime).formats[0])
    path = folder / f"float{form.suffixes[0]}"
    save(normalize_for_runtime(graph, runtime), path, form.name)
    wanted = tuple(names)
    release_memory()
    return Watched(path, form.name, runtime, graph.inputs, wanted, _batch(graph, wanted), threads)


def normalize_for_runtime(graph: Graph, runtime: str) -> Graph:
    """The network as it is written for a runtime: tensors keep their names, and may have another layout."""
    form = format_named(_runtime(runtime).formats[0])
    target = form.own_target or form.default_target
    return normalize(graph, target_named(target) if target else None)[0]


def _runtime(name: str) -> Runtime:
    found = runtimes().get(name)
    if found is None or found.watch is None:
        known = ", ".join(name for name, item in runtimes().items() if item.watch is not None)
        raise OptionError(
            f"the runtime is {name!r}, which is unknown or returns no inner tensors",
            remedy=f"Use one of {known}.",
            rule="unknown-runtime",
        )
    return found


def _batch(graph: Graph, names: Sequence[str]) -> int:
    """How many samples run together: 1, unless the batch is open and every wanted tensor has it in front."""
    name = batch_name(graph)
    shapes = [graph[one].shape for one in names]
    if not name or any(shape is None or not shape or shape[0] != name or name in shape[1:] for shape in shapes):
        return 1
    elements = sum(math.prod(size for size in shape[1:] if isinstance(size, int)) for shape in shapes if shape)
    return max(1, min(_LARGEST_BATCH, _BATCH_BYTES // (4 * max(elements, 1))))


class Watching:
    """A network that is loaded in its runtime.

    Args:
        network: what to run.

    Attributes:
        names: of the tensors that it gives out, which may be fewer than asked for.

    Raises:
        QConvertError: the runtime does not take it.
    """

    def __init__(self, network: Watched) -> None:
        self._network, self._batch, self._is_tried = network, network.batch, False
        if not network.model:
            self._model = self._open_model(network.path)
            release_memory()
            return
        with temporary_folder() as folder:
            path = Path(folder, f"float{format_named(network.format).suffixes[0]}")
            path.write_bytes(network.model)
            self._model = self._open_model(path)

    def _open_model(self, path: Path) -> LoadedModel:
        found = runtimes()[self._network.runtime]
        assert found.watch is not None
        file = ModelFile(path, found.kernels[0], threads=self._network.threads)
        return found.watch(file, frozenset(self._network.names) - {*self._network.inputs})

    def values(self, feeds: Iterable[Arrays]) -> Iterator[dict[str, Array]]:
        """For each sample the wanted tensors, by name, in the order in which they are wanted."""
        waiting = iter(feeds)
        while group := list(islice(waiting, self._batch)):
            yield from self._run_each(group) if len(group) == 1 else self._run_together(group)

    def _run(self, feed: Arrays) -> dict[str, Array]:
        given = dict(zip(self._model.inputs, (feed[name] for name in self._network.inputs), strict=True))
        found = {**self._model.run(given), **feed}
        return {name: found[name] for name in self._network.names if name in found}

    def _run_each(self, group: Sequence[Arrays]) -> Iterator[dict[str, Array]]:
        return map(self._run, group)

    def _run_together(self, group: Sequence[Arrays]) -> Iterator[dict[str, Array]]:
        """Samples in one batch; one by one if the network does not take that, or mixes the samples, and ever after."""
        try:
            found = self._run({name: np.concatenate([feed[name] for feed in group]) for name in self._network.inputs})
        except (RuntimeRefusedError, ValueError):
            found = {}
        if not found or any(len(value) != len(group) for value in found.values()) or not self._keeps_apart(group[0], found):
            self._batch = 1
            return self._run_each(group)
        return ({name: value[number : number + 1] for name, value in found.items()} for number in range(len(group)))

    def _keeps_apart(self, first: Arrays, found: Arrays) -> bool:
        """Whether the first sample gives the same by itself, but for the order of sums; asked once."""
        if not self._is_tried:
            self._is_tried = True
            alone = self._run(first)
            return all(_is_near(alone[name], value[:1]) for name, value in found.items())
        return True


def _is_near(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return True
    largest = float(np.abs(a[np.isfinite(a)]).max(initial=0))
    return bool(np.allclose(a, b, rtol=1e-3, atol=1e-4 * largest, equal_nan=True))


#: Samples that one worker sees in a row. It does not depend on how many workers there are, so neither do the scales.
_PART = 16


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
    progress: Progress = no_progress,
) -> tuple[tuple[Any, ...], int]:
    """The observers when they have seen all samples as often as they need, and how many samples there were.

    Args:
        network: what computes the values.
        groups: tensor -> which of the observers sees it.
        seeing: for each group an Observer, or what adds up values as one does (passes, update, next_pass and merge).
        samples: the data.
        workers: who runs it; by default this process, in which observers see one sample after the other.
        progress: told of each sample, or part of the data, that was seen.

    Raises:
        QConvertError: a sample does not fit or gives NaN, or the runtime refuses the network.
    """
    passes, seen = max((one.passes for one in seeing), default=1), 0
    for number in range(passes):
        if number:
            for one in seeing:
                one.next_pass()
        what = "calibration" if passes == 1 else f"calibration, pass {number + 1} of {passes}"
        step = partial(_report_progress, progress, what, samples.count or 0)
        if workers is None:
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
