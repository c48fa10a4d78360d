"""Samples of any source, one after the other: files, arrays, and what a program gives out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.data.files import InputFiles
from qconvert.data.fitting import fit_values, samples_in
from qconvert.data.preparation import Preparation
from qconvert.errors import OptionError, format_count
from qconvert.graph import Array, Graph

__all__ = ["Data", "Samples", "batch_name"]

#: What samples may come from: files and folders; an array of many samples; something that gives samples, each an array, several in the
#: model's order, or a mapping of input names to arrays; a function that gives such things again each time it is called.
Data = str | Path | Array | Iterable[Any] | Callable[[], Iterable[Any]]


def batch_name(graph: Graph) -> str:
    """The name of the size that all inputs have in front, if it is the same one and stands nowhere else in them; else ""."""
    shapes = [graph[name].shape or () for name in graph.inputs]
    first = {shape[0] if shape else 1 for shape in shapes}
    name = first.pop() if len(first) == 1 else 1
    return name if isinstance(name, str) and all(name not in shape[1:] for shape in shapes) else ""


class Samples:
    """The samples of a model, one at a time. Where the batch is open, each has a batch of 1.

    Args:
        graph: the model; its inputs say which type and shape is wanted.
        data: see Data.
        limit: how many at most; None for all.
        preparation: of files.

    Attributes:
        count: how many there are; None where only reading tells.
        notes: on files; see InputFiles.
        is_sliced: whether any part can be read without the rest.

    Raises:
        QConvertError: files cannot be read or do not fit, or there are none.
    """

    def __init__(self, graph: Graph, data: Data, limit: int | None = None, preparation: Preparation | None = None) -> None:
        if limit is not None and limit < 1:
            raise OptionError("samples is less than 1; at least 1 sample is needed", rule="samples-not-positive")
        name = batch_name(graph)
        inputs = [replace(graph[one], shape=(1, *(graph[one].shape or ())[1:])) if name else graph[one] for one in graph.inputs]
        self._graph = Graph(graph.name, {tensor.name: tensor for tensor in inputs}, (), graph.inputs, graph.inputs)
        self._limit, self._used = limit, False
        self.notes: tuple[str, ...] = ()
        self.count: int | None = None
        self._data: Any = data
        paths = _paths(data)
        if paths:
            self._data = InputFiles(self._graph, paths, limit, preparation or Preparation())
            self.notes = self._data.notes
        elif preparation is not None and preparation != Preparation():
            raise OptionError(
                "the data are arrays; only data from files is prepared",
                remedy="Give values as the model takes them, or name files.",
                rule="data-not-from-files",
            )
        self.is_sliced = isinstance(self._data, Sequence)
        if isinstance(self._data, InputFiles):
            self.count = len(self._data)

    def where(self, index: int) -> str:
        """Where a sample is from, for people."""
        return self._data.where(index) if isinstance(self._data, InputFiles) else f"sample {index}"

    def part(self, start: int, stop: int) -> Iterator[dict[str, Array]]:
        """The samples from `start` up to `stop`, of files, which can be read from anywhere."""
        return (self._data[index] for index in range(start, stop))

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """All of them.

        Raises:
            OptionError: they are gone, or one does not fit, or there are none.
        """
        if isinstance(self._data, InputFiles):
            yield from self._data
            return
        source = self._data() if callable(self._data) else self._data
        if iter(source) is source:
            if self._used and not callable(self._data):
                raise OptionError(
                    "the data are read more than once, and an iterator gives them once",
                    remedy="Give a list, or a function that returns a new iterator.",
                    rule="iterator-exhausted",
                )
            self._used = True
        is_empty = True
        for feed in islice(self._split_items(source), self._limit):
            is_empty = False
            yield feed
        if is_empty:
            raise OptionError("the data hold no sample", rule="no-samples")

    def _split_items(self, source: Iterable[Any]) -> Iterator[dict[str, Array]]:
        items: Iterable[Any] = [source] if isinstance(source, np.ndarray | Mapping) else source
        for number, item in enumerate(items):
            yield from self._feeds(item, f"item {number} of the data")

    def _feeds(self, item: Any, where: str) -> Iterator[dict[str, Array]]:
        """What one item holds: one sample, or several along a further first axis."""
        names = self._graph.inputs
        if not isinstance(item, Mapping):
            values = item if isinstance(item, tuple | list) and len(names) > 1 else (item,)
            if len(values) != len(names):
                raise OptionError(
                    f"has {format_count(len(values), 'array')}; the model has {format_count(len(names), 'input')}",
                    where=where,
                    rule="array-count",
                )
            item = dict(zip(names, values, strict=True))
        lacking = [name for name in names if name not in item]
        if lacking:
            raise OptionError(f"has no value for the input {lacking[0]!r}", where=where, rule="input-missing")
        arrays = {name: np.asarray(item[name]) for name in names}
        counts = {samples_in(self._graph[name], value.shape) for name, value in arrays.items()}
        if len(counts) > 1:
            raise OptionError(f"its arrays hold {' and '.join(map(str, sorted(counts)))} samples", where=where, rule="sample-count")
        for row in range(min(counts)) if min(counts) else (None,):
            parts = {name: value if row is None else value[row] for name, value in arrays.items()}
            yield {name: fit_values(self._graph[name], value, where, Preparation()) for name, value in parts.items()}


def _paths(data: Any) -> list[str | Path]:
    """The paths that data are; [] if they are something else."""
    if isinstance(data, str | Path):
        return [data]
    if isinstance(data, Sequence) and data and all(isinstance(item, str | Path) for item in data):
        return list(data)
    return []
