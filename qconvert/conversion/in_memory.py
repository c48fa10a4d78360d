"""Models in memory, graphs and bytes, wherever a file is asked for, and graphs as files that a runtime loads.

Pieces of a file whose runtime does not cut it: its canonical graph is cut, written in the file's format and run.

The writer is the reader's mirror, so that the graph, written, has the file's own operators. That it has is not taken on trust: see
checking/file_values.py, and partitioning/running.py for parts of a network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.conversion.normalizing import chosen_target, normalize
from qconvert.conversion.saving import save
from qconvert.errors import OptionError, QConvertError, RuntimeRefusedError
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.graph.metadata import SOURCE_FORMAT
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import states_by_reader
from qconvert.plugins import Format, ModelFile, Pieces, Runtime, format_named, formats, runtimes
from qconvert.plugins.options import fill_defaults
from qconvert.rewriting.parts import computable_ops, cut

#: Where the graph's own format has no runtime, or cannot be written.
_OTHERWISE = "onnx"


def written_copy(graph: Graph, folder: Path, stem: str) -> tuple[Path, Format]:
    """Writes a graph into a folder, in its source format and unchanged if possible.

    Args:
        graph: what is written.
        folder: an empty folder.
        stem: of the file's name.

    Raises:
        QConvertError: no format with a runtime can hold it; the error is that of the last one.
    """
    error: QConvertError = RuntimeRefusedError("no runtime runs the formats that this could be written as", rule="no-runtime")
    for number, (writer, target) in enumerate(_candidate_formats(graph)):
        place = folder / str(number)
        place.mkdir()
        path = place / f"{stem}{writer.suffixes[0]}"
        try:
            fitted, _ = normalize(graph, chosen_target(writer, target)) if target else (graph, ())
            save(fitted, path, writer.name)
        except QConvertError as problem:
            error = problem
        else:
            return path, writer
    raise error


def _candidate_formats(graph: Graph) -> Iterator[tuple[Format, str]]:
    """Formats and targets, the one that changes least first."""
    runs = {name for item in runtimes().values() for name in item.formats}
    for name in dict.fromkeys((graph.metadata.get(SOURCE_FORMAT, ""), _OTHERWISE)):
        writer = formats().get(name)
        if writer is None or writer.write is None or name not in runs:
            continue
        if not writer.own_target:
            yield writer, ""
        if target := writer.own_target or writer.default_target:
            yield writer, target


#: A model: its file, its canonical graph, or the content of its file.
Model = str | Path | Graph | bytes

_LONGEST = 60


def model_title(model: Model) -> str:
    """What a model is called in reports and errors: a file by its path."""
    if isinstance(model, str | Path):
        return str(model)
    return f"the graph {model.name!r}" if isinstance(model, Graph) else "the bytes"


@contextmanager
def as_file(model: Model, format: str = "", *, runs: bool = False) -> Iterator[Path]:
    """The file of a model; of one in memory a temporary file, which is gone with the block.

    Args:
        model: a file, a graph, or bytes.
        format: the name of the format of bytes; "" where they say it themselves.
        runs: whether a runtime has to take the file of a graph; else it is a .qgraph file.

    Raises:
        OptionError: bytes whose format nobody names, or no model at all.
        QConvertError: the graph is not valid, or no format with a runtime holds it.
    """
    if isinstance(model, str | Path):
        path = Path(model)
        if os.path.isdir(path):  # which says no to a name that no system takes
            from qconvert.checkpoints.safetensors import find_checkpoint

            path = find_checkpoint(path)
        yield path
        return
    if not isinstance(model, Graph | bytes | bytearray | memoryview):
        raise OptionError(
            f"the model is of type {type(model).__name__}",
            remedy="Give a path, a qconvert.Graph, or bytes with their format.",
            rule="not-a-model",
        )
    with temporary_folder() as folder:
        path = folder
        try:
            path = _graph_file(model, folder, runs) if isinstance(model, Graph) else _bytes_file(bytes(model), format, folder)
            yield path
        except QConvertError as error:
            if error.file.startswith(str(folder)):
                error.file = model_title(model)
            error.remedy = error.remedy.replace(str(path), path.name)
            raise


@contextmanager
def as_files(source: Model, result: Model, formats: tuple[str, str]) -> Iterator[tuple[tuple[Path, Path], tuple[str, str]]]:
    """The files of a source and its result, which runtimes take, and the names of their formats, "" where the file of a graph says it;
    see as_file()."""
    with as_file(source, formats[0], runs=True) as before, as_file(result, formats[1], runs=True) as after:
        first, second = ("" if isinstance(model, Graph) else name for model, name in zip((source, result), formats, strict=True))
        yield (before, after), (first, second)


def _graph_file(graph: Graph, folder: Path, runs: bool) -> Path:
    stem = re.sub(r"[^\w.-]+", "_", graph.name, flags=re.ASCII).strip("._")[:_LONGEST] or "graph"
    if runs:
        return written_copy(graph, folder, stem)[0]
    save(graph, folder / f"{stem}.qgraph", "qgraph")
    return folder / f"{stem}.qgraph"


def _bytes_file(content: bytes, format: str, folder: Path) -> Path:
    found = format or next((item.name for item in formats().values() if item.recognizes is not None and item.recognizes(content[:64])), "")
    if not found:
        raise OptionError("the format of the bytes is not given", remedy="Name it, such as format='tflite'.", rule="format-missing")
    path = folder / f"model{next(iter(format_named(found).suffixes), '')}"
    path.write_bytes(content)
    return path


def computed_names(graph: Graph, names: set[str]) -> list[str]:
    """Those of `names` that a graph cut at them computes, in order."""
    return [name for op in computable_ops(graph, names) for name in op.outputs if name in names]


def canonical_pieces(
    graph: Graph, names: Collection[str], wanted: frozenset[str], file: ModelFile, format: Format, runtime: Runtime
) -> Pieces:
    """A file's graph cut at the tensors called `names`, with the operators that compute those `wanted` among them.

    Args:
        graph: canonical.
        names: of the tensors.
        wanted: among them.
        file: the file that the graph is of.
        format: of the file, in which the pieces are written.
        runtime: that runs them, with the file's kernels.

    Raises:
        InvalidModelError: no operator is left.
        QConvertError: the format cannot be written, or the runtime refuses the pieces.
    """
    graph = _cut_at_other_shapes(graph, names)
    part = cut(graph, names, wanted)
    written, kept = _with_states(graph, runtime, part.graph)
    with temporary_folder() as folder:
        suffix = file.path.suffix.lower()  # which may say the form
        path = Path(folder, f"pieces{suffix if suffix in format.suffixes else format.suffixes[0]}")
        save(written, path, format.name)
        model: Any = runtime.open(ModelFile(path, file.kernels, fill_defaults({}, format.read_options)))

    def run(values: Sequence[Array]) -> Iterable[Array]:
        given = dict(zip(part.graph.inputs, values, strict=True))
        if kept:
            model.begin({state: given.pop(name) for name, state in kept.items()})
        return dict(model.run(given)).values()

    return Pieces.of_cut(graph, part, run)


def _with_states(graph: Graph, runtime: Runtime, part: Graph) -> tuple[Graph, dict[str, str]]:
    """A piece with states instead of inputs for operators that keep their states themselves: they cannot take them as inputs.

    Returns:
        The piece, and for each input that is gone the state.
    """
    keeps, reads, producers = runtime.keeps, states_by_reader(graph), graph.producers()
    given = {name: reads[name] for name in part.inputs if name in reads}
    if keeps is None or not given:
        return part, {}

    def restore_states(kept: dict[str, str]) -> Graph:
        writers = (op for op in graph.ops if kind_of(op).has_effect)
        writes = [op for op in writers if op["state"] in kept.values() and op.inputs[0] in part.tensors]
        states = {state: graph.states[state] for state in kept.values()}
        inputs = tuple(name for name in part.inputs if name not in kept)
        return part.evolve(ops=[*(producers[name] for name in kept), *part.ops, *writes], inputs=inputs, states=states)

    inner = keeps(restore_states(given))
    kept = {name: state for name, state in given.items() if state in inner}
    return (restore_states(kept), kept) if kept else (part, {})


def _cut_at_other_shapes(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with the operand of each Reshape to one of `names` replaced by a Reshape of that result, for all other readers."""
    tensors: list[Tensor] = []
    reshapes: list[Op] = []
    instead: dict[str, str] = {}
    taken = graph.names()
    turned = [op for op in graph.of_kind("Reshape") if op.name in names]
    for op in turned:
        before = op.inputs[0]
        shape = graph[before].static_shape if before not in names and before not in instead else None
        if shape is None or graph[before].is_constant:
            continue
        instead[before] = taken.fresh(f"{before}/of the cut")
        sizes = Tensor(taken.fresh(f"{before}/shape of the cut"), "int64", (len(shape),), np.array(shape, np.int64))
        tensors += [replace(graph[before], name=instead[before]), sizes]
        reshapes.append(op.derive("Reshape", (op.name, sizes.name), (instead[before],)))
    if not reshapes:
        return graph

    def read(op: Op) -> Op:
        if any(op is item for item in turned):
            return op
        return replace(op, inputs=tuple(instead.get(name, name) for name in op.inputs))

    return graph.evolve(tensors=tensors, ops=[*reshapes, *map(read, graph.ops)])
