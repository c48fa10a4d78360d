"""The inner tensors of a split network, so that a check compares its parts with the source operator by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from qconvert.conversion.pieces import canonical_pieces
from qconvert.errors import QConvertError
from qconvert.graph import Array, Arrays, Graph, Tensor, numpy_dtype
from qconvert.operators.shapes_and_functions import states_by_reader
from qconvert.partitioning.manifest import Manifest, PartFile, read_manifest
from qconvert.partitioning.running import PartitionModel, choose_kernels, named_part, part_graph, reset_models, values_of
from qconvert.plugins import Format, Inside, ModelFile, Pieces, Runtime, format_named, kernels_named, runtimes
from qconvert.plugins.options import fill_defaults

#: Share of the largest value by which float results of two files may differ, since sums may have another order.
_FLOAT_SHARE = 1e-5


class PartitionInside:
    """The tensors of a split network: those that go from part to part, and inner ones of parts that are cut.

    Args:
        file: the manifest.
        graph: whose tensors are wanted.
    """

    cuts = True

    def __init__(self, file: ModelFile, graph: Graph) -> None:
        self._model = PartitionModel(file)
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
        reset_models((self._model, *self._inside.values()))

    def values(self, feed: Arrays) -> dict[str, Array]:
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
        """Return the pieces of one part; None if it computes nothing wanted, or needs states of a previous run."""
        here = (self._cuttable_tensors(part) & wanted) - {*part.inputs}
        return self._prepend_parts(names, self._pieces_computing(part, names, here)) if here and part.name not in self._stateful else None

    def _cuttable_tensors(self, part: PartFile) -> frozenset[str]:
        """Return the tensors at which a part can be cut, its inputs and outputs included."""
        inside = self._inside.get(part.name)
        if inside is None:
            return frozenset((*part.inputs, *part.outputs))
        return inside.names & (self._inner | {*part.inputs, *part.outputs})

    def _pieces_computing(self, part: PartFile, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        """Return the pieces of a part that compute some of its tensors. The part's inputs are fed, even if `names` lacks them."""
        inside = self._inside.get(part.name)
        if inside is not None:
            return inside.pieces((names & self._cuttable_tensors(part)) | wanted | {*part.inputs}, wanted)
        computed = frozenset(part.outputs) & wanted

        def run(values: Arrays) -> dict[str, Array]:
            return {name: value for name, value in self._model.run_part(part.name, values).items() if name in computed}

        return self._make_pieces(part.inputs, computed, run)

    def _prepend_parts(self, names: frozenset[str], pieces: Pieces) -> Pieces:
        """Prepend the parts before to pieces, if they compute tensors that are fed but are not among `names`."""
        fed, before = dict.fromkeys(pieces.fed), list[Pieces]()
        for part in reversed(self._model.manifest.parts):
            needed = frozenset(name for name in part.outputs if name in fed and name not in names)
            if needed and part.name not in self._stateful:
                before.insert(0, self._pieces_computing(part, names, needed))
                fed = dict.fromkeys((*(name for name in fed if name not in needed), *before[0].fed))
        if not before:
            return pieces

        def run(values: Arrays) -> dict[str, Array]:
            found = dict(values)
            for one in before:
                found = {**one.run({name: found[name] for name in one.fed}), **found}
            return pieces.run({name: found[name] for name in pieces.fed})

        outer = self._make_pieces(tuple(fed), pieces.computed, run)
        inner = {name: dtype for one in before for name, dtype in one.dtypes.items()}
        shapes = {name: shape for one in before for name, shape in one.shapes.items()}
        return replace(outer, dtypes={**inner, **pieces.dtypes, **outer.dtypes}, shapes={**shapes, **pieces.shapes, **outer.shapes})

    def _make_pieces(self, fed: tuple[str, ...], computed: frozenset[str], run: Callable[[Arrays], dict[str, Array]]) -> Pieces:
        """Return pieces with types and shapes of the tensors that go from part to part; those of other tensors are left out."""
        tensors = [self._values[name] for name in (*fed, *computed) if name in self._values]
        return Pieces(
            fed,
            computed,
            {tensor.name: tensor.dtype for tensor in tensors},
            {t.name: None if t.shape is None else tuple(s if isinstance(s, int) else None for s in t.shape) for t in tensors},
            run,
        )


def _insides(manifest: Manifest, file: ModelFile, graph: Graph) -> Iterator[tuple[str, Inside]]:
    """Yield the inner tensors of each part that can be cut; its inputs and outputs have the names of the manifest.

    A runtime cuts its files itself. Otherwise the graph of a file is cut and written again, if it computes the same as the file.
    """
    for part in manifest.parts:
        runtime = runtimes().get(part.runtime.partition(":")[0])
        if runtime is None or not part.format:
            continue
        form = format_named(part.format)
        own = ModelFile(
            file.path.parent / part.model.file, part.runtime.partition(":")[2], fill_defaults({}, form.read_options), file.threads
        )
        try:
            found = runtime.inside(own, graph) if runtime.inside is not None else None
            if found is not None and found.cuts and found.names.issuperset(x for x in (*part.inputs, *part.outputs) if x in graph):
                yield part.name, found
            elif part.graph is None and form.write is not None and not runtime.whole:
                rewritten = _Rewritten(named_part(file.path, part), own, form, runtime, graph)
                if rewritten.is_equivalent_to_file():
                    yield part.name, rewritten
        except QConvertError:
            continue


class _Rewritten:
    """The inner tensors of a part's file whose runtime does not cut it: its graph is cut, and written again.

    Args:
        graph: of the part, with inputs and outputs named as in the manifest.
        file: the part's file.
        format: of the file.
        runtime: that runs it.
        whole: the graph of the network, whose tensors are wanted.
    """

    cuts = True

    def __init__(self, graph: Graph, file: ModelFile, format: Format, runtime: Runtime, whole: Graph) -> None:
        self._graph, self._file, self._format, self._runtime = graph, file, format, runtime
        self._own = runtime.inside(file, graph) if runtime.inside is not None else None
        self.names = frozenset(name for name, tensor in graph.tensors.items() if name in whole.tensors and not tensor.is_constant)

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        reset_models((self._own,))

    def values(self, feed: Arrays) -> dict[str, Array]:
        """Return the inner tensors that the runtime gives of the file itself, and the inputs."""
        return dict(feed) if self._own is None else {**self._own.values(feed), **feed}

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        return canonical_pieces(self._graph, names, wanted, self._file, self._format, self._runtime)

    def is_equivalent_to_file(self) -> bool:
        """Whether the graph of the file computes the same as the file, on random inputs and from the initial values of states."""
        graph = self._graph
        outputs = frozenset(name for op in graph.ops for name in op.outputs).intersection(graph.outputs)
        pieces = self.pieces(outputs.union(graph.inputs, states_by_reader(graph)), outputs)
        generator = np.random.default_rng(0)
        feed = {name: _random_values(graph[name], generator) for name in graph.inputs}
        first = {name: np.asarray(graph.states[state].data) for name, state in states_by_reader(graph).items()}
        model = self._runtime.open(self._file)
        expected = dict(zip(graph.outputs, model.run(dict(zip(model.inputs, feed.values(), strict=True))).values(), strict=True))
        known = {**first, **feed, **expected}  # an output may lead to another one
        found = pieces.run({name: known[name] for name in pieces.fed})
        return all(_is_near(found[name], expected[name]) for name in outputs)


def _random_values(tensor: Tensor, generator: np.random.Generator) -> Array:
    """Return random values of an input: integers of up to 16 bits, normal floats, and zeros for types that may be indices."""
    shape = [size if isinstance(size, int) else 1 for size in tensor.shape or ()]
    dtype = numpy_dtype(tensor.dtype)
    if dtype.kind == "f":
        return np.asarray(generator.standard_normal(shape), dtype)
    if dtype.kind in "iu" and dtype.itemsize <= 2:
        limits = np.iinfo(dtype)
        return np.asarray(generator.integers(limits.min, limits.max, shape, endpoint=True), dtype)
    return np.zeros(shape, dtype)


def _is_near(found: Array, expected: Array) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
    return bool(np.allclose(found, expected, rtol=0, atol=_FLOAT_SHARE * largest, equal_nan=True))


def taken_by(file: ModelFile) -> Mapping[str, str]:
    """See plugins.Runtime: the runtime of the part that computes a tensor, and the exceptions that this runtime lists."""
    manifest = choose_kernels(read_manifest(file.path, verify=False), file.kernels)
    found: dict[str, str] = {}
    for part in manifest.parts:
        found |= _part_tensors(file.path, part) | dict.fromkeys(part.outputs, part.runtime)
    for part in manifest.parts:
        found |= _left_to_other_kernels(file.path, part)
    return found


def _part_tensors(path: Path, part: PartFile) -> dict[str, str]:
    """Return the runtime of each tensor that a part's file computes."""
    try:
        return {name: part.runtime for op in named_part(path, part).ops for name in op.outputs if name}
    except QConvertError:  # which the check itself says
        return {}


def _left_to_other_kernels(path: Path, part: PartFile) -> dict[str, str]:
    """Return the tensors of a part that its runtime leaves to other kernels."""
    if not part.format or not part.runtime:
        return {}
    try:
        runtime, kernels = kernels_named(part.runtime)
        graph = part_graph(path, part)
        own = ModelFile(path.parent / part.model.file, kernels, fill_defaults({}, format_named(part.format).read_options))
        said = runtime.taken_by(own) if runtime.taken_by is not None else {}
    except QConvertError:
        return {}
    called = dict(zip((*graph.inputs, *graph.outputs), (*part.inputs, *part.outputs), strict=False))
    named = {called.get(name, name): chosen for name, chosen in said.items()}
    return {name: chosen if ":" in chosen else f"{runtime.name}:{chosen}" for name, chosen in named.items()}
