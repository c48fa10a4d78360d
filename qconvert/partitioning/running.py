"""Runs a network that was split: each part in its own runtime, in the order of the manifest, with tensors handed from one to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError, QConvertError, RuntimeRefusedError
from qconvert.graph import Array, Graph, Op, numpy_dtype
from qconvert.partitioning.composing import part_graph, values_of
from qconvert.partitioning.manifest import Manifest, PartFile, read_manifest
from qconvert.plugins import Inside, LoadedModel, ModelFile, Pieces, Runtime, format_named, kernels_named, runtimes
from qconvert.plugins.options import taken

__all__ = ["PartitionInside", "PartitionModel", "open_model", "reach", "taken_by"]


class PartitionModel:
    """A split network in the runtimes of its parts.

    Args:
        path: the manifest.
        threads: how many each runtime may use.

    Attributes:
        inputs, outputs: name -> (dtype, shape), in order.
        note, unjudged: what the runtimes of the parts say, with the part's name.
        parts: tensor -> the part that computes it, in words, for tensors between parts and within; files are read for it.

    Raises:
        QConvertError: a file is not as the manifest says, or a runtime does not take it.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.manifest: Manifest = read_manifest(path)
        self._values = values_of(path, self.manifest)
        self._models = [(part, _opened(part, path.parent, threads)) for part in self.manifest.parts]
        self.inputs, self.outputs = (self._described(names) for names in (self.manifest.inputs, self.manifest.outputs))
        self.note, self.unjudged = ("; ".join(_said(self._models, what)) for what in ("note", "unjudged"))
        self._path = path
        self._states: dict[str, Array] = {}
        self._begin()

    def _described(self, names: tuple[str, ...]) -> dict[str, tuple[str, tuple[Any, ...]]]:
        return {name: (self._values[name].dtype, self._values[name].shape or ()) for name in names}

    @property
    def parts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in self.manifest.parts:
            graph = part_graph(self._path, part)
            found = {name: _words(part) for op in graph.ops for name in op.outputs} | found
        return found | {name: _words(part) for part in self.manifest.parts for name in part.outputs}

    def _begin(self) -> None:
        self._states = {name: np.array(state.data) for name, state in self._values.states.items()}

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        self._begin()
        for _, model in self._models:
            if hasattr(model, "reset"):
                model.reset()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once, the next step if the network has states. Inputs and outputs are stored values by name."""
        found = self.all_values(inputs)
        return {name: found[name] for name in self.manifest.outputs}

    def all_values(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The values of all tensors that go from part to part, in a run."""
        found = {tensor.name: tensor.data for tensor in self._values.constants() if tensor.data is not None}
        found |= {name: np.asarray(inputs[name]) for name in self.manifest.inputs}
        for state in self.manifest.states:
            found |= dict.fromkeys(state.reads, self._states[state.name])
        for part, model in self._models:
            found |= self._ran(part, model, found)
        for state in self.manifest.states:
            if state.written:
                self._states[state.name] = np.array(found[state.written])
        return found

    def run_part(self, name: str, values: Mapping[str, Array]) -> dict[str, Array]:
        """What a part gives for values of what it takes."""
        part, model = next(item for item in self._models if item[0].name == name)
        if hasattr(model, "reset"):
            model.reset()
        return self._ran(part, model, values)

    def _ran(self, part: PartFile, model: LoadedModel, values: Mapping[str, Array]) -> dict[str, Array]:
        with _named(part):
            given = dict(zip(model.inputs, (values[name] for name in part.inputs), strict=True))
            results = list(model.run(given).values())
            if len(results) != len(part.outputs):
                raise RuntimeRefusedError(f"it gives {len(results)} values, and its part {len(part.outputs)}")
            return {name: self._as_stated(name, value) for name, value in zip(part.outputs, results, strict=True)}

    def _as_stated(self, name: str, value: Array) -> Array:
        """A result, which is of the type that the network has there."""
        dtype = numpy_dtype(self._values[name].dtype)
        found = np.asarray(value)
        if found.dtype != dtype and dtype.kind != "O":
            raise RuntimeRefusedError(f"it gives {name!r} as {found.dtype}, and its part as {dtype}")
        return found


def _opened(part: PartFile, folder: Path, threads: int) -> LoadedModel:
    if not part.runtime:
        raise RuntimeRefusedError(f"no runtime runs {part.format} files", where=_words(part))
    runtime, kernels = kernels_named(part.runtime)
    if part.format and part.format not in runtime.formats:
        raise InvalidModelError(f"is to be run by {part.runtime}, which runs no {part.format} files", where=_words(part))
    if runtime.runs_code and kernels != runtime.kernels[0]:  # such as torch:trusted, which only a user may ask for
        raise RuntimeRefusedError(f"a manifest cannot ask for {part.runtime}, which runs code that is in files", where=_words(part))
    options = taken({}, format_named(part.format).read_options) if part.format else {}
    with _named(part):
        model = runtime.open(ModelFile(folder / part.model.file, kernels, options, threads))
        for word, own, given in (("takes", model.inputs, part.inputs), ("gives", model.outputs, part.outputs)):
            if len(own) != len(given):
                raise RuntimeRefusedError(f"{runtime.title} {word} {len(own)} values, and its part {len(given)}")
        return model


@contextmanager
def _named(part: PartFile) -> Iterator[None]:
    """Errors of the block name the part."""
    try:
        yield
    except QConvertError as error:
        error.where = f"{_words(part)}{': ' if error.where else ''}{error.where}"
        raise


def _words(part: PartFile) -> str:
    """A part as errors and reports name it."""
    return (
        f"the region {part.name!r} of {part.target} ({part.model.file})" if part.region else f"the part {part.name!r} ({part.model.file})"
    )


def _said(models: list[tuple[PartFile, LoadedModel]], what: str) -> list[str]:
    return list(dict.fromkeys(text for _, model in models if (text := str(getattr(model, what, "")))))


class PartitionInside:
    """The tensors of a split network: those that go from part to part, and inner ones of parts whose runtime cuts files.

    Args:
        file: the manifest.
        graph: whose tensors are wanted.
    """

    cuts = True

    def __init__(self, file: ModelFile, graph: Graph) -> None:
        self._model = PartitionModel(file.path, file.threads)
        self._values = values_of(file.path, self._model.manifest)
        borders = {name for name, tensor in self._values.tensors.items() if not tensor.is_constant}
        self._inside = dict(_insides(self._model.manifest, file, graph))
        inner = Counter(name for found in self._inside.values() for name in found.names - borders)
        self._inner = frozenset(name for name, count in inner.items() if count == 1 and name in graph)
        self._stateful = {
            part.name for part in self._model.manifest.parts if part.name not in self._inside and part_graph(file.path, part).states
        }
        self.names = self._inner | (borders & graph.tensors.keys())

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        for one in (self._model, *self._inside.values()):
            if hasattr(one, "reset"):
                one.reset()

    def values(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        found = self._model.all_values(dict(zip(self._model.inputs, feed.values(), strict=True)))
        for part in self._model.manifest.parts:
            if part.name in self._inside:
                values = self._inside[part.name].values({name: found[name] for name in part.inputs})
                found |= {name: value for name, value in values.items() if name in self._inner}
        return {name: value for name, value in found.items() if name in self.names}

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        found = [self._pieces_of(part, names, wanted) for part in self._model.manifest.parts]
        pieces = [one for one in found if one is not None]
        return Pieces(
            tuple(dict.fromkeys(name for one in pieces for name in one.fed)),
            frozenset[str]().union(*(one.computed for one in pieces)),
            {name: dtype for one in pieces for name, dtype in one.dtypes.items()},
            {name: shape for one in pieces for name, shape in one.shapes.items()},
            lambda values: {name: value for one in pieces for name, value in one.run({x: values[x] for x in one.fed}).items()},
        )

    def _pieces_of(self, part: PartFile, names: frozenset[str], wanted: frozenset[str]) -> Pieces | None:
        """The pieces of one part; None if it computes nothing that is wanted, or goes on from states that a run by itself has not."""
        inside = self._inside.get(part.name)
        if inside is not None:
            own = inside.names & (self._inner | {*part.inputs, *part.outputs})
            here = (own & wanted) - {*part.inputs}
            # What the file takes is fed, whether or not both sides have it.
            return self._fed_with(names, inside.pieces((names & own) | {*part.inputs}, here)) if here else None
        computed = frozenset(name for name in part.outputs if name in names)
        if not wanted.intersection(computed) or part.name in self._stateful:
            return None
        # It is run as a whole: what it takes is fed, whether or not the cut is made there.
        return self._fed_with(
            names,
            self._described(
                part.inputs, computed, lambda values: {x: v for x, v in self._model.run_part(part.name, values).items() if x in computed}
            ),
        )

    def _fed_with(self, names: frozenset[str], pieces: Pieces) -> Pieces:
        """Pieces of which what they are fed with is computed by the parts before, where it is no place at which both sides are cut."""
        parts = self._model.manifest.parts
        fed, before = dict.fromkeys(pieces.fed), list[PartFile]()
        for part in reversed(parts):
            if any(name in fed and name not in names for name in part.outputs) and part.name not in self._stateful:
                before.insert(0, part)
                fed = dict.fromkeys((*(name for name in fed if name in names or name not in part.outputs), *part.inputs))
        if not before:
            return pieces

        def run(values: Mapping[str, Array]) -> dict[str, Array]:
            found = dict(values)
            for part in before:
                found = {**self._model.run_part(part.name, found), **found}
            return pieces.run({name: found[name] for name in pieces.fed})

        outer = self._described(tuple(fed), pieces.computed, run)
        return replace(outer, dtypes={**pieces.dtypes, **outer.dtypes}, shapes={**pieces.shapes, **outer.shapes})

    def _described(self, fed: tuple[str, ...], computed: frozenset[str], run: Callable[[Mapping[str, Array]], dict[str, Array]]) -> Pieces:
        """Pieces between tensors that go from part to part, and others, of which nothing is said."""
        tensors = [self._values[name] for name in (*fed, *computed) if name in self._values]
        return Pieces(
            fed,
            computed,
            {tensor.name: tensor.dtype for tensor in tensors},
            {t.name: None if t.shape is None else tuple(s if isinstance(s, int) else None for s in t.shape) for t in tensors},
            run,
        )


def _insides(manifest: Manifest, file: ModelFile, graph: Graph) -> Iterator[tuple[str, Inside]]:
    """For each part whose runtime cuts its file, the file's inner tensors; what it takes and gives has there the names that it has here."""
    for part in manifest.parts:
        runtime = runtimes().get(part.runtime.partition(":")[0])
        if runtime is None or runtime.inside is None or not part.format:
            continue
        options = taken({}, format_named(part.format).read_options)
        try:
            found = runtime.inside(ModelFile(file.path.parent / part.model.file, part.runtime.partition(":")[2], options), graph)
        except QConvertError:
            continue
        if found.cuts and found.names.issuperset(name for name in (*part.inputs, *part.outputs) if name in graph):
            yield part.name, found


def open_model(file: ModelFile) -> PartitionModel:
    """See plugins.Runtime."""
    return PartitionModel(file.path, file.threads)


def taken_by(file: ModelFile) -> Mapping[str, str]:
    """See plugins.Runtime: what runs the part that computes a tensor."""
    return {name: part.runtime for part in read_manifest(file.path, verify=False).parts for name in part.outputs}


def reach(graph: Graph, op: Op, exact: Array, kernels: str) -> tuple[Array, bool]:
    """See plugins.Runtime: that of the runtime which the kernels name, and of onnxruntime for what is inside of parts that it cuts."""
    runtime: Runtime | None = runtimes().get(kernels.partition(":")[0])
    if runtime is None or runtime.name == "partition":
        runtime = runtimes()["onnxruntime"]
    return runtime.reach(graph, op, exact, kernels.partition(":")[2] or runtime.kernels[0])
