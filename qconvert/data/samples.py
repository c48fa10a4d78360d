"""Samples of a graph's inputs: from files, .npz (several inputs by name), .npy, .bin and images, where an array may hold many samples; and
from any source, one after the other: files, arrays, and what a program gives out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np

from qconvert.data.arrays import (
    bytes_of,
    fit_values,
    fitting_shape,
    guard_reading,
    image_ends,
    image_of,
    image_sentence,
    map_array,
    prepare_values,
    range_warning,
    require_images,
    samples_in,
    shapes,
)
from qconvert.data.preparation import Preparation
from qconvert.errors import OptionError, format_count
from qconvert.files.names import require_there
from qconvert.graph import Array, Graph, Tensor

_IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm")
#: Suffixes of files that hold inputs; others in a folder are skipped.
SUFFIXES = (".npz", ".npy", ".bin", *_IMAGES)

_AS_IT_IS = Preparation()


class InputFiles(Sequence[dict[str, Array]]):
    """Inputs of a model in files, read one at a time when they are asked for, in the order of the paths, those of a folder by name with
    numbers counted (2 before 10). An array with a further first axis, or one that is longer where the input has 1, holds many samples.

    Args:
        graph: the source; its inputs say which type and shape is wanted.
        paths: files, and folders whose files are taken.
        samples: how many at most; None for all.
        preparation: of images, and of real numbers that are no image.

    Attributes:
        notes: in words what was skipped, how images are prepared, and which inputs have another range than the data.

    Raises:
        FileAccessError: a path does not exist or a file cannot be read.
        OptionError: a file does not fit the model's inputs, or there is none.
    """

    def __init__(self, graph: Graph, paths: Sequence[str | Path], samples: int | None = None, preparation: Preparation = _AS_IT_IS) -> None:
        files, skipped = _list_files(paths)
        self._inputs = {name: graph[name] for name in graph.inputs}
        self._preparation = preparation
        self._samples = [one for file in files for one in self._samples_of(file, samples)][:samples]
        count = len(skipped)
        note = f"{count} file{'s' * (count > 1)} of other kinds skipped, the first {skipped[0].name}" if skipped else ""
        if not self._samples:
            raise OptionError("the data hold no sample", file=", ".join(map(str, paths)), rule="no-samples")
        self.notes = tuple(filter(None, (note, *self._describe_preparation(graph))))

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> dict[str, Array]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Array]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._read(*one) for one in self._samples[index]]
        return self._read(*self._samples[index])

    def where(self, index: int) -> str:
        """Where a sample is from, for people."""
        file, row = self._samples[index]
        return str(file) if row is None else f"{file}[{row}]"

    def _describe_preparation(self, graph: Graph) -> Iterator[str]:
        """In words how the first sample is prepared, and where its values do not fit the range of their input."""
        file, row = self._samples[0]
        suffix = file.suffix.lower()
        if suffix in _IMAGES:
            tensor = self._only_input(file)
            yield image_sentence(tensor, file, self._preparation)
            ends = image_ends(tensor, file, self._preparation)
            yield range_warning(graph, tensor.name, *ends, "pixels 0 to 255 become") if ends is not None else ""
        elif suffix in (".npy", ".npz"):
            for name, data in guard_reading(file, lambda: self._stored_values(file, row)).items():
                if data.dtype.kind == "f" and data.size:
                    values = prepare_values(self._inputs[name], data, str(file), self._preparation)
                    yield range_warning(graph, name, float(values.min()), float(values.max()), "the first sample has values of")

    def _stored_values(self, file: Path, row: int | None) -> dict[str, Array]:
        """The arrays of a sample as they are stored, by input."""
        arrays = self._arrays(file) if file.suffix.lower() == ".npz" else {self._only_input(file).name: map_array(file)}
        return {name: np.asarray(data if row is None else data[row]) for name, data in arrays.items()}

    def _samples_of(self, file: Path, samples: int | None) -> Iterable[tuple[Path, int | None]]:
        """The samples in a file: the file and, if there are several, the row in its arrays."""
        if file.suffix.lower() not in (".npy", ".npz") or not self._inputs:
            return [(file, None)]
        inputs = [self._only_input(file)] if file.suffix.lower() == ".npy" else list(self._inputs.values())
        found = shapes(file, lambda names: [stored for _, stored in self._match_arrays(file, names)])
        count = _common_count(zip(inputs, found, strict=True), file=str(file))
        for tensor, shape in zip(inputs, found, strict=True):
            fitting_shape(tensor, shape[1:] if count else shape, str(file))
        return [(file, row) for row in range(count if samples is None else min(count, samples))] if count else [(file, None)]

    def _match_arrays(self, file: Path, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Each input with the name of its array in an .npz file; a model of one input takes the only array besides labels."""
        others = [name for name in names if name != "labels"]
        for name in self._inputs:
            stored = others[0] if len(self._inputs) == 1 == len(others) else name
            if stored not in names:
                has = ", ".join(map(repr, names[:8]))
                raise OptionError(
                    f"has no array for the input {name!r}; it has {has or 'none'}",
                    file=str(file),
                    remedy="Give arrays the names of the model's inputs, which `qconvert inspect` shows, or of one input a .npy file.",
                    rule="input-missing",
                )
            yield name, stored

    def _read(self, file: Path, row: int | None) -> dict[str, Array]:
        return guard_reading(file, lambda: self._from_file(file, row))

    def _from_file(self, file: Path, row: int | None) -> dict[str, Array]:
        suffix = file.suffix.lower()
        if suffix in (".npy", ".npz"):
            return {name: self._fit_input(name, data, file) for name, data in self._stored_values(file, row).items()}
        tensor = self._only_input(file)
        if suffix in _IMAGES:
            return {tensor.name: image_of(tensor, file, self._preparation)}
        return {tensor.name: self._fit_input(tensor.name, bytes_of(tensor, file), file)}

    def _arrays(self, file: Path) -> dict[str, Array]:
        """The arrays of an .npz file by input; those of the last file are kept, whose rows are asked for one after the other."""
        last: tuple[Path, dict[str, Array]] | None = getattr(self, "_last", None)
        if last is None or last[0] != file:
            with np.load(file, allow_pickle=False) as arrays:
                last = file, {name: np.asarray(arrays[stored]) for name, stored in self._match_arrays(file, arrays.files)}
            self._last = last
        return last[1]

    def _fit_input(self, name: str, data: Array, file: Path) -> Array:
        return fit_values(self._inputs[name], data, str(file), self._preparation)

    def _only_input(self, file: Path) -> Tensor:
        if len(self._inputs) != 1:
            remedy = "Use .npz files with an array for each."
            raise OptionError(
                f"holds 1 input; the model has {len(self._inputs)} inputs", file=str(file), remedy=remedy, rule="one-array-for-many"
            )
        return next(iter(self._inputs.values()))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_last"}


def load_inputs(
    graph: Graph, paths: Sequence[str | Path], samples: int | None, preparation: Preparation = _AS_IT_IS
) -> tuple[list[dict[str, Array]], tuple[str, ...]]:
    """Inputs from files: stored values by input name for each sample, and notes on them. See InputFiles."""
    found = InputFiles(graph, paths, samples, preparation)
    return list(found), found.notes


def require_readable(paths: Sequence[str | Path]) -> None:
    """Raise QConvertError where there are no inputs, or the package that reads them is not installed."""
    if any(file.suffix.lower() in _IMAGES for file in _list_files(paths)[0]):
        require_images()


def require_samples(count: int | None) -> None:
    """Raises OptionError for a number of samples below 1; None asks for all of them."""
    if count is not None and count < 1:
        raise OptionError("samples is less than 1; at least 1 sample is needed", rule="samples-not-positive")


def _list_files(paths: Sequence[str | Path]) -> tuple[list[Path], list[Path]]:
    """The files of inputs, and what else is in their folders."""
    files: list[Path] = []
    skipped: list[Path] = []
    for path in map(Path, paths):
        require_there(path)
        if not path.is_dir():
            if path.suffix.lower() not in SUFFIXES:
                raise OptionError(f"is not an input: its suffix is none of {', '.join(SUFFIXES)}", file=str(path), rule="unknown-suffix")
            files.append(path)
            continue
        for file in sorted((file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")), key=_natural):
            (files if file.suffix.lower() in SUFFIXES else skipped).append(file)
    if not files:
        remedy = f"Files of inputs end in {', '.join(SUFFIXES)}."
        raise OptionError("there is no input file", file=", ".join(map(str, paths)), remedy=remedy, rule="no-input-files")
    return files, skipped


def _natural(path: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Numbers in names count as numbers; names that differ in nothing else by their characters."""
    parts = re.split(r"([0-9]+)", path.name)
    return [(0, int(part), "") if number % 2 else (1, 0, part.lower()) for number, part in enumerate(parts) if part], path.name


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
        require_samples(limit)
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
        count = _common_count(((self._graph[name], value.shape) for name, value in arrays.items()), where=where)
        for row in range(count) if count else (None,):
            parts = {name: value if row is None else value[row] for name, value in arrays.items()}
            yield {name: fit_values(self._graph[name], value, where, Preparation()) for name, value in parts.items()}


def _common_count(arrays: Iterable[tuple[Tensor, tuple[int, ...]]], **place: str) -> int:
    """How many samples each of the arrays for inputs holds, see samples_in(); raises OptionError, with their place, where they differ."""
    counts = {samples_in(tensor, shape) for tensor, shape in arrays}
    if len(counts) > 1:
        raise OptionError(f"its arrays hold {' and '.join(map(str, sorted(counts)))} samples", rule="sample-count", **place)
    return min(counts)


def _paths(data: Any) -> list[str | Path]:
    """The paths that data are; [] if they are something else."""
    if isinstance(data, str | Path):
        return [data]
    if isinstance(data, Sequence) and data and all(isinstance(item, str | Path) for item in data):
        return list(data)
    return []
