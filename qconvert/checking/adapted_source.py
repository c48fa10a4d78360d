"""Sources read in part, or with other sizes, another batch or other names: a copy with these changes stands for the file, after both are
compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qconvert.checking.checked_file import Side, model_file
from qconvert.conversion.adapting import pick_reader_options, pick_shared_options
from qconvert.conversion.adapting.renaming import new_names
from qconvert.conversion.copies import written_copy
from qconvert.data import accepted_inputs
from qconvert.errors import QConvertError, RuntimeRefusedError
from qconvert.graph import Array, Graph, Shape, Tensor
from qconvert.plugins import runtime_of

__all__ = ["AdaptedSource", "has_requested_changes", "write_adapted_copy"]

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


def has_requested_changes(side: Side) -> bool:
    """Return whether the options of the reader request changes of the file."""
    return side.format.read is not None and bool(pick_shared_options(side.format, side.file.options))


def write_adapted_copy(source: Side, folder: Path, seed: int = 0) -> AdaptedSource | None:
    """A copy of a source that has what the options of its reader ask for; None where they ask for nothing.

    Args:
        source: with these options.
        folder: for the copy.
        seed: of the random inputs on which both run.

    Raises:
        QConvertError: the source cannot be read so, or no format with a runtime holds it.
    """
    if not has_requested_changes(source):
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
        if problems and (ones := _set_batch_to_one(original.graph, source)) is not None:
            # The file says that it takes any batch, and does not: what it computes of one sample is beyond doubt.
            problems, how = _compare_copy(resizable.use_graph(ones), source, copy, seed)
    except QConvertError as error:
        problems, how = [], f"the copy could not be compared with the file: {' '.join(error.reason.split())[:_LONGEST]}"
    return AdaptedSource(copy, tuple(problems), (f"{said}; {how}",))


def _compare_copy(original: Side, source: Side, copy: Side, seed: int) -> tuple[list[str], str]:
    """Where the copy gives something else than the file, and how both were run, in words."""
    options = pick_shared_options(source.format, source.file.options)
    whole, graph = original.graph, source.graph
    new = new_names(whole, options.get("rename", ()))
    old = {name: before for before, name in new.items()}
    times = _count_runs(whole, graph, old)
    if options.get("subgraph"):
        given, expected, how = _run_part(original, graph, old, times, seed)
    elif times > 1:
        given, expected, how = _run_samples(original, graph, old, times, accepted_inputs(graph, 1, seed, copy.open().run)[0][0])
    else:
        given, expected, how = _run_same_inputs(original, graph, old, copy, seed)
    found = copy.open().run(given)
    problems = []
    for name in graph.outputs:
        other = expected.get(old.get(name, name))
        if other is not None and name in found and (text := _difference(graph[name], found[name], other)):
            problems.append(f"the copy of {original.path.name} returns {name!r} with other values than the file: {text}")
    return problems, how


def _run_same_inputs(
    original: Side, graph: Graph, old: Mapping[str, str], copy: Side, seed: int
) -> tuple[dict[str, Array], dict[str, Array], str]:
    """The file run on what the copy gets."""

    def run(feed: Mapping[str, Array]) -> dict[str, Array]:
        copy.open().run(feed)
        return original.open().run({old.get(name, name): value for name, value in feed.items()})

    feeds, found, _ = accepted_inputs(graph, 1, seed, run, "one of both")
    return feeds[0], found[0], "the file returns the same"


def _make_sizes_dynamic(original: Side, folder: Path) -> Side:
    """The .onnx file with dynamic dimensions, since onnxruntime holds those that it states against what it gets."""
    from qconvert.formats.onnx.dynamic_dimensions import with_dynamic_dimensions

    path = with_dynamic_dimensions(original.path, folder / "open")
    return original if path is None else original.replace_path(path).use_graph(original.graph)


def _count_runs(whole: Graph, graph: Graph, old: Mapping[str, str]) -> int:
    """How many runs of the file make one of the copy; 1 where that is not a matter of runs."""
    for name in graph.inputs:
        before, after = whole[old.get(name, name)].shape, graph[name].shape
        if before is not None and after is not None and before != after:
            axis = _find_differing_axis(before, after)
            old_size, size = (before[axis], after[axis]) if axis is not None else (0, 0)
            return size // old_size if isinstance(size, int) and isinstance(old_size, int) and old_size and size % old_size == 0 else 1
    return 1


def _set_batch_to_one(whole: Graph, source: Side) -> Graph | None:
    """The file's graph with one sample in each input where a batch is asked for of a file that leaves it open; else None."""
    if "batch" not in pick_shared_options(source.format, source.file.options):
        return None
    old = {name: before for before, name in new_names(whole, source.file.options.get("rename", ())).items()}
    tensors = []
    for name in source.graph.inputs:
        tensor = whole[old.get(name, name)]
        before, after = tensor.shape or (), source.graph[name].shape or ()
        axes = [axis for axis, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
        if len(axes) == 1 and isinstance(before[axes[0]], str):
            tensors.append(replace(tensor, shape=(*before[: axes[0]], 1, *before[axes[0] + 1 :])))
    return replace(whole, tensors={**whole.tensors, **{tensor.name: tensor for tensor in tensors}}) if tensors else None


def _find_differing_axis(before: Shape, after: Shape) -> int | None:
    """The one axis along which sizes differ."""
    axes = [axis for axis, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
    return axes[0] if len(axes) == 1 else None


def _run_samples(
    original: Side, graph: Graph, old: Mapping[str, str], times: int, feed: Mapping[str, Array]
) -> tuple[dict[str, Array], dict[str, Array], str]:
    """The file run on one sample after the other, of those that the copy gets at once."""
    whole, runs = original.graph, []
    for number in range(times if times <= _RUNS else _RUNS):
        part = {}
        for name in graph.inputs:
            before, after = whole[old.get(name, name)].shape, graph[name].shape
            axis = _find_differing_axis(before, after) if before is not None and after is not None and before != after else None
            size = 0 if axis is None or before is None else int(before[axis])
            part[old.get(name, name)] = feed[name] if axis is None else feed[name].take(range(number * size, (number + 1) * size), axis)
        runs.append(original.open().run(part))
    return dict(feed), _concatenate_runs(graph, old, whole, runs), "the file returns the same for one sample after the other"


def _run_part(
    original: Side, graph: Graph, old: Mapping[str, str], times: int, seed: int
) -> tuple[dict[str, Array], dict[str, Array], str]:
    """What the file has at both ends of a part of it, in as many runs as make one of the copy."""
    whole = original.graph
    inside = original.inside(whole)
    needed = {old.get(name, name) for name in (*graph.inputs, *graph.outputs)}
    if inside is None or not inside.names.union(whole.inputs, whole.outputs) >= needed:
        raise RuntimeRefusedError(f"{original.runtime.title} does not return the inputs and outputs of the part", rule="tensors-not-given")
    model = original.open()
    feeds = accepted_inputs(whole, times, seed, model.run)[0]
    runs = [{**inside.values(feed), **feed} for feed in feeds]
    if missing := sorted(needed - runs[0].keys()):
        outputs = [model.run(feed) for feed in feeds]
        runs = [{**output, **run} for output, run in zip(outputs, runs, strict=True)]
        if missing := sorted(needed - runs[0].keys()):
            raise RuntimeRefusedError(f"{original.runtime.title} does not return {missing[0]!r}", rule="tensors-not-given")
    joined = _concatenate_runs(graph, old, whole, runs)
    return {name: joined[old.get(name, name)] for name in graph.inputs}, joined, "the file returns the same at the tensors that it has too"


def _concatenate_runs(graph: Graph, old: Mapping[str, str], whole: Graph, runs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Values of several runs as one batch, by their names in the file."""
    found = {}
    for name in (*graph.inputs, *graph.outputs):
        before, after = whole[old.get(name, name)].shape, graph[name].shape
        values = [run[old.get(name, name)] for run in runs if old.get(name, name) in run]
        axis = _find_differing_axis(before, after) if before is not None and after is not None and before != after else None
        if values:
            found[old.get(name, name)] = values[0] if axis is None else np.concatenate(values, axis)
    return found


def _difference(tensor: Tensor, found: Array, expected: Array) -> str:
    """By how much a value is off, in words; "" where it is near enough. Of a batch as many samples are compared as were run."""
    if found.shape != expected.shape:
        if found.ndim != expected.ndim:
            return f"the shape {found.shape} instead of {expected.shape}"
        found = found[tuple(slice(size) for size in expected.shape)]
    if found.shape != expected.shape:
        return f"the shape {found.shape} instead of {expected.shape}"
    if not found.size:
        return ""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
        off = np.where(np.isnan(off), np.inf, off)
    largest = float(off.max())
    if found.dtype.kind == "f" and largest:
        spread = float(np.ptp(b[np.isfinite(b)])) if np.isfinite(b).any() else 0.0
        largest = largest / spread * 255 if spread else float("inf")
    return f"by up to {largest:.3g} {'LSB' if tensor.is_quantized else 'of 255 parts of its range'}" if largest > _MOST else ""
