"""Copies of model files that are checked in place of the files: the source with the changes that options of reading ask for, and both sides
without their custom operators.

No runtime here runs custom operators. The result of one becomes an input of the model, and its data an output; so a result that feeds it
with other values than the source does is seen. The operators themselves are compared as they stand: their options to the byte,
constants, types, quantizations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qconvert.checking.file_in_runtime import Side, model_file
from qconvert.checking.outputs import absolute_difference
from qconvert.conversion.adapting import pick_reader_options, pick_shared_options
from qconvert.conversion.adapting.named_tensors import new_names
from qconvert.conversion.in_memory import written_copy
from qconvert.data import accepted_inputs
from qconvert.errors import QConvertError, RuntimeRefusedError, UnsupportedError, format_count, format_some
from qconvert.graph import Array, Arrays, Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.opaque import custom_name, is_custom
from qconvert.plugins import runtime_of
from qconvert.rewriting.parts import trace_back
from qconvert.rules.differences import tensor_differences

#: What the copy's outputs may be off before that is a problem, in LSB, or in 1/255 of the range of real outputs: it has the same operators.
_MOST = 2.0
_LONGEST = 300
#: Runs of the file whose samples are put together as one batch.
_RUNS = 8


@dataclass(frozen=True, slots=True)
class AdaptedSource:
    """What stands for a source.

    Attributes:
        side: the copy.
        problems: where it gives something else than the file itself.
        notes: what it is, and how it was compared with the file.
    """

    side: Side
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def write_adapted_copy(source: Side, folder: Path, seed: int = 0) -> AdaptedSource | None:
    """A copy of a source that has what the options of its reader ask for; None where they ask for nothing.

    Args:
        source: with these options.
        folder: for the copy.
        seed: of the random inputs on which both run.

    Raises:
        QConvertError: the source cannot be read so, or no format with a runtime holds it.
    """
    if source.format.read is None or not pick_shared_options(source.format, source.file.options):
        return None
    place = folder / "source"
    place.mkdir()
    path, written = written_copy(source.graph, place, source.path.stem)
    is_own = written.name == source.format.name
    runtime, kernels = (source.runtime, source.kernels) if is_own else runtime_of(written.name, ())
    copy = Side(model_file(path, written, kernels), written, runtime)
    copy = copy.use_graph(source.graph) if is_own else copy
    own = pick_reader_options(source.format, source.file.options)
    file = replace(source.file, options=model_file(source.path, source.format, source.kernels, own).options)
    original = Side(file, source.format, source.runtime)
    said = f"{source.path.name} was replaced by a copy with the requested changes"
    try:
        opened = source.format.name == "onnx" and source.file.options.get("input_shape")
        resizable = _make_sizes_dynamic(original, place) if opened else original
        problems, how = _compare_copy(resizable, source, copy, seed)
        is_batch = "batch" in pick_shared_options(source.format, source.file.options)
        if problems and is_batch and (ones := _Pair.of(original, source).set_batch_to_one()) is not None:
            # The file says that it takes any batch, and does not: what it computes of one sample is beyond doubt.
            problems, how = _compare_copy(resizable.use_graph(ones), source, copy, seed)
    except QConvertError as error:
        problems, how = [], f"the copy could not be compared with the file: {' '.join(error.reason.split())[:_LONGEST]}"
    return AdaptedSource(copy, tuple(problems), (f"{said}; {how}",))


def _compare_copy(original: Side, source: Side, copy: Side, seed: int) -> tuple[list[str], str]:
    """Where the copy gives something else than the file, and how both were run, in words."""
    graph, pair = source.graph, _Pair.of(original, source)
    if pick_shared_options(source.format, source.file.options).get("subgraph"):
        given, expected, how = pair.run_part(seed)
    elif pair.count_runs() > 1:
        given, expected, how = pair.run_samples(accepted_inputs(graph, 1, seed, copy.open().run)[0][0])
    else:
        given, expected, how = pair.run_same_inputs(copy, seed)
    found = copy.open().run(given)
    problems = []
    for name in graph.outputs:
        other = expected.get(pair.name(name))
        if other is not None and name in found and (text := _difference(graph[name], found[name], other)):
            problems.append(f"the copy of {original.path.name} returns {name!r} with other values than the file: {text}")
    return problems, how


#: Stored inputs of the copy, what the file gives for them by its names, and how it was run, in words.
_Run = tuple[dict[str, Array], dict[str, Array], str]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A file and what its reader makes of it with the options that ask for changes.

    Attributes:
        original: the file, whose graph is that without the changes.
        graph: with the changes.
        old: the file's names of the tensors that are called otherwise then.
    """

    original: Side
    graph: Graph
    old: Mapping[str, str]

    @classmethod
    def of(cls, original: Side, source: Side) -> _Pair:
        """The pair of a file and of the side that its reader makes of it."""
        new = new_names(original.graph, pick_shared_options(source.format, source.file.options).get("rename", ()))
        return cls(original, source.graph, {name: before for before, name in new.items()})

    def name(self, name: str) -> str:
        """The file's name of a tensor."""
        return self.old.get(name, name)

    def find_axis(self, name: str) -> int | None:
        """The one axis along which a tensor has another size than in the file."""
        sizes = zip(self.original.graph[self.name(name)].shape or (), self.graph[name].shape or (), strict=False)
        axes = [axis for axis, (before, after) in enumerate(sizes) if before != after]
        return axes[0] if len(axes) == 1 else None

    def count_runs(self) -> int:
        """How many runs of the file make one of the copy; 1 where that is not a matter of runs."""
        for name in self.graph.inputs:
            before, after = self.original.graph[self.name(name)].shape, self.graph[name].shape
            if before is not None and after is not None and before != after:
                axis = self.find_axis(name)
                old, size = (before[axis], after[axis]) if axis is not None else (0, 0)
                return size // old if isinstance(size, int) and isinstance(old, int) and old and size % old == 0 else 1
        return 1

    def set_batch_to_one(self) -> Graph | None:
        """The file's graph with one sample in each input where a batch is asked for of a file that leaves it open; else None."""
        whole, tensors = self.original.graph, []
        for name in self.graph.inputs:
            tensor, axis = whole[self.name(name)], self.find_axis(name)
            shape = tensor.shape or ()
            if axis is not None and isinstance(shape[axis], str):
                tensors.append(replace(tensor, shape=(*shape[:axis], 1, *shape[axis + 1 :])))
        return replace(whole, tensors={**whole.tensors, **{tensor.name: tensor for tensor in tensors}}) if tensors else None

    def run_same_inputs(self, copy: Side, seed: int) -> _Run:
        """The file run on what the copy gets."""

        def run(feed: Arrays) -> dict[str, Array]:
            copy.open().run(feed)
            return self.original.open().run({self.name(name): value for name, value in feed.items()})

        feeds, found, _ = accepted_inputs(self.graph, 1, seed, run, "one of both")
        return feeds[0], found[0], "the file returns the same"

    def run_samples(self, feed: Arrays) -> _Run:
        """The file run on one sample after the other, of those that the copy gets at once."""
        runs = []
        for number in range(min(self.count_runs(), _RUNS)):
            part = {}
            for name in self.graph.inputs:
                axis, shape = self.find_axis(name), self.original.graph[self.name(name)].shape or ()
                size = 0 if axis is None else int(shape[axis])
                part[self.name(name)] = feed[name] if axis is None else feed[name].take(range(number * size, (number + 1) * size), axis)
            runs.append(self.original.open().run(part))
        return dict(feed), self._concatenate_runs(runs), "the file returns the same for one sample after the other"

    def run_part(self, seed: int) -> _Run:
        """What the file has at both ends of a part of it, in as many runs as make one of the copy."""
        original, whole = self.original, self.original.graph
        inside = original.inside(whole)
        needed = {self.name(name) for name in (*self.graph.inputs, *self.graph.outputs)}
        if inside is None or not inside.names.union(whole.inputs, whole.outputs) >= needed:
            raise RuntimeRefusedError(
                f"{original.runtime.title} does not return the inputs and outputs of the part", rule="tensors-not-given"
            )
        model = original.open()
        feeds = accepted_inputs(whole, self.count_runs(), seed, model.run)[0]
        runs = [{**inside.values(feed), **feed} for feed in feeds]
        if needed - runs[0].keys():
            runs = [{**model.run(feed), **run} for feed, run in zip(feeds, runs, strict=True)]
            if missing := sorted(needed - runs[0].keys()):
                raise RuntimeRefusedError(f"{original.runtime.title} does not return {missing[0]!r}", rule="tensors-not-given")
        joined = self._concatenate_runs(runs)
        given = {name: joined[self.name(name)] for name in self.graph.inputs}
        return given, joined, "the file returns the same at the tensors that it has too"

    def _concatenate_runs(self, runs: Sequence[Arrays]) -> dict[str, Array]:
        """Values of several runs as one batch, by their names in the file."""
        found = {}
        for name in (*self.graph.inputs, *self.graph.outputs):
            values, axis = [run[self.name(name)] for run in runs if self.name(name) in run], self.find_axis(name)
            if values:
                found[self.name(name)] = values[0] if axis is None else np.concatenate(values, axis)
        return found


def _make_sizes_dynamic(original: Side, folder: Path) -> Side:
    """The .onnx file with dynamic dimensions, since onnxruntime holds those that it states against what it gets."""
    from qconvert.formats.onnx.container import with_dynamic_dimensions

    path = with_dynamic_dimensions(original.path, folder / "open")
    return original if path is None else original.replace_path(path).use_graph(original.graph)


def _difference(tensor: Tensor, found: Array, expected: Array) -> str:
    """By how much a value is off, in words; "" where it is near enough. Of a batch as many samples are compared as were run."""
    found = found[tuple(slice(size) for size in expected.shape)] if found.ndim == expected.ndim else found
    if found.shape != expected.shape:
        return f"the shape {found.shape} instead of {expected.shape}"
    if not found.size:
        return ""
    largest = float(absolute_difference(found, expected).max())
    if found.dtype.kind == "f" and largest:
        finite = expected[np.isfinite(expected)].astype(np.float64)
        spread = float(np.ptp(finite)) if finite.size else 0.0
        largest = largest / spread * 255 if spread else float("inf")
    return f"by up to {largest:.3g} {'LSB' if tensor.is_quantized else 'of 255 parts of its range'}" if largest > _MOST else ""


_NAMED = 8


class _Tensor(NamedTuple):
    """What a custom operator computes or reads: its names in source and result, and those that it has in their copies."""

    names: tuple[str, str]
    called: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Around:
    """Two models without their custom operators.

    Attributes:
        sides: the copies; None where the operators differ so that nothing can be run.
        problems: in sentences, what differs in the operators themselves.
        unjudged: in a sentence, which they are.
    """

    sides: tuple[Side, Side] | None
    problems: tuple[str, ...]
    unjudged: str


def cut_around_custom(sides: tuple[Side, Side], folder: Path) -> Around | None:
    """Copies of both files, in `folder`, around their custom operators; None where there are none, or both runtimes run the whole.

    Raises:
        QConvertError: a file cannot be read or cut.
    """
    source, result = (side.graph for side in sides)
    own, others = ([op for op in graph.ops if is_custom(op)] for graph in (source, result))
    if not (own or others) or all(_can_run(side) for side in sides):
        return None
    counts = Counter(custom_name(op) for op in own or others)
    listed = format_some([f"{name} ({count})" for name, count in counts.most_common()], _NAMED)
    counted = format_count(len(own or others), "custom operator")
    unjudged = f"{counted} cannot be run here; attributes and tensors were compared: {listed}"
    pairs, problems = _pair_operators(own, others)
    if problems:
        return Around(None, tuple(problems), unjudged)
    for op, other in pairs:
        place = f"{op.label} ({next(filter(None, op.outputs), '')!r})"
        problems += [f"{place}: {text}" for text in _differences(source, op, result, other)]
    inputs, outputs = _list_border_tensors(source, result, pairs)
    copies = []
    for position, side in enumerate(sides):
        if side.runtime.around is None:
            raise UnsupportedError(
                f"{side.runtime.title} does not cut files at custom operators", file=str(side.path), rule="not-cut-at-custom"
            )
        path = folder / f"around{position}{side.path.suffix}"
        gone = frozenset(name for pair in pairs for name in pair[position].outputs if name)
        fed = [(side.graph[item.names[position]], item.called[position]) for item in inputs]
        # The reader gives stored integers another label, of which the file knows nothing.
        writers = side.graph.producers()
        named = (trace_back(writers, item.names[position], lambda op: kind_of(op).rule == "relabel") for item in outputs)
        given = [(name, item.called[position]) for name, item in zip(named, outputs, strict=True)]
        side.runtime.around(side.file, gone, fed, given, path)
        copies.append(side.replace_path(path))
    return Around((copies[0], copies[1]), tuple(problems), unjudged)


def _can_run(side: Side) -> bool:
    """Whether the runtime takes the whole file; where sizes are open, LiteRT says so only when it runs."""
    if any(side.graph[name].static_shape is None for name in side.graph.inputs):
        return False
    try:
        side.open()
    except RuntimeRefusedError:
        return False
    return True


def _pair_operators(own: Sequence[Op], others: Sequence[Op]) -> tuple[list[tuple[Op, Op]], list[str]]:
    """The operators that stand for each other: by what they compute, else in their order; or what is wrong with their number."""
    by_outputs = {op.outputs: op for op in others}
    found = {id(op): by_outputs.pop(op.outputs) for op in own if op.outputs in by_outputs}
    rest = [op for op in others if op.outputs in by_outputs]
    left = [op for op in own if id(op) not in found]
    if len(left) != len(rest):
        return [], [f"the source has {len(own)} custom operators, the result {len(others)}"]
    found |= {id(op): other for op, other in zip(left, rest, strict=True)}
    return [(op, found[id(op)]) for op in own], []


def _differences(graph: Graph, op: Op, result: Graph, other: Op) -> Iterator[str]:
    """What two custom operators that stand for each other have otherwise."""
    if custom_name(op) != custom_name(other):
        yield f"is {custom_name(other)} instead of {custom_name(op)}"
    for name in ("version", "payload", "captures", "format"):
        if op[name] != other[name]:
            yield "other options" if name == "payload" else f"{name} {op[name]} -> {other[name]}"
    for what, names, theirs in (("input", op.inputs, other.inputs), ("output", op.outputs, other.outputs)):
        if len(names) != len(theirs):
            yield f"{len(names)} {what}s -> {len(theirs)}"
        for index, (name, its) in enumerate(zip(names, theirs, strict=False)):
            if bool(name) != bool(its):
                yield f"{what} {index}: {name!r} -> {its!r}"
            elif name:
                a, b = graph[name], result[its]
                shapes = a.static_shape is not None and b.static_shape is not None
                yield from (f"{what} {index} ({name!r}): {text}" for text in tensor_differences(a, b, shapes=shapes))


def _list_border_tensors(graph: Graph, result: Graph, pairs: Sequence[tuple[Op, Op]]) -> tuple[list[_Tensor], list[_Tensor]]:
    """The further inputs of both models, and all their outputs."""
    inputs = [(a, b) for op, other in pairs for a, b in zip(op.outputs, other.outputs, strict=False) if a and b]
    outputs = list(zip(graph.outputs, result.outputs, strict=False))
    for pair in (pair for op, other in pairs for pair in zip(op.inputs, other.inputs, strict=False)):
        if all(pair) and not graph[pair[0]].is_constant and not result[pair[1]].is_constant and pair not in outputs:
            outputs.append(pair)
    count = len(graph.outputs)
    return _name_tensors(inputs, result, 0), _name_tensors(outputs, result, count)


def _name_tensors(pairs: Sequence[tuple[str, str]], result: Graph, keep: int) -> list[_Tensor]:
    """The tensors with their names in the copies: the source's in both, unless the result has another so called, or it is one already.

    The first `keep` are the result's own outputs, by their names.
    """
    taken: tuple[set[str], set[str]] = (set(), set())
    found = []
    for number, (a, b) in enumerate(pairs):
        fresh = f"{a}/{number}"
        first = fresh if a in taken[0] else a
        second = first if first not in result.tensors and number >= keep else fresh if b in taken[1] else b
        taken[0].add(first)
        taken[1].add(second)
        found.append(_Tensor((a, b), (first, second)))
    return found
