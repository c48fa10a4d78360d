"""A split network put together again: as one graph, the graphs of its parts joined at the tensors between them; or run part by part, each
in its own runtime in the order of the manifest, with tensors going from one to the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.conversion import load
from qconvert.errors import InvalidModelError, QConvertError, RuntimeRefusedError, format_count
from qconvert.formats.reading.quantizations import requantize_end
from qconvert.graph import Array, Arrays, Graph, Names, Op, numpy_dtype
from qconvert.graph.metadata import IN_TFLITE, NAMING, READ, origin
from qconvert.kernels import Kernels
from qconvert.operators.shapes_and_functions import rename_functions, rename_state
from qconvert.operators.sizes import is_compatible
from qconvert.partitioning.manifest import Manifest, PartFile, read_manifest
from qconvert.plugins import LoadedModel, ModelFile, Runtime, format_named, kernels_named, list_kernels, runtime_of, runtimes
from qconvert.plugins.options import fill_defaults
from qconvert.rewriting import Rewriter
from qconvert.rewriting.control_flow import copy_duplicates
from qconvert.rules.validation import validate


def compose_graph(path: Path, options: Mapping[str, Any]) -> Graph:
    """Return the graph of a manifest: see plugins.Format. There are no options, since parts have several formats.

    Raises:
        QConvertError: a file is damaged, or is not as the manifest says.
    """
    manifest = read_manifest(path)
    values = values_of(path, manifest)
    rewriter = Rewriter(values)
    whole = _Whole(rewriter)
    for state in manifest.states:
        rewriter.emit(*(Op("ReadState", (), (name,), {"state": state.name}) for name in state.reads))
    for part in manifest.parts:
        whole.add(part, _part_graph(path, part, values))
    rewriter.emit(*(Op("WriteState", (state.written,), (), {"state": state.name}) for state in manifest.states if state.written))
    graph = rewriter.finish(
        name=Path(manifest.source.file).stem or path.parent.name,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        metadata={**whole.metadata(), **({READ: json.dumps(manifest.read)} if manifest.read else {})},
        functions=whole.functions,
        states={**values.states, **whole.states},
        correspondence={},
    )
    validate(graph)
    return graph


def values_of(path: Path, manifest: Manifest) -> Graph:
    """Return the graph of the tensors that go from part to part.

    Raises:
        InvalidModelError: one that the manifest names is missing, or the first value of a state is.
    """
    values = load(path.parent / manifest.values.file, "qgraph")
    names = {*manifest.inputs, *manifest.outputs, *(name for part in manifest.parts for name in (*part.inputs, *part.outputs))}
    names.update(name for state in manifest.states for name in (*state.reads, state.written) if name)
    missing = sorted(names - values.tensors.keys())
    if missing:
        raise InvalidModelError(f"{manifest.values.file} does not hold the tensor {missing[0]!r}", file=str(path), rule="value-missing")
    computed = {*manifest.inputs, *(name for part in manifest.parts for name in part.outputs)}
    computed.update(name for state in manifest.states for name in state.reads)
    for name in sorted(names - computed):
        if not values[name].is_constant:
            raise InvalidModelError(f"{name!r} is computed by no part", file=str(path), rule="value-not-computed")
    for name in sorted(computed):
        if values[name].is_constant:
            raise InvalidModelError(f"{name!r} is computed by a part and is a constant", file=str(path), rule="value-is-constant")
    for state in manifest.states:
        if state.name not in values.states:
            raise InvalidModelError(
                f"{manifest.values.file} has no initial value of the state {state.name!r}", file=str(path), rule="state-without-value"
            )
    return values


def part_graph(path: Path, part: PartFile) -> Graph:
    """Load the graph of a part's file, or the graph next to an artefact. `path` is the manifest's."""
    return load(path.parent / part.graph.file, "qgraph") if part.graph is not None else load(path.parent / part.model.file, part.format)


def named_part(path: Path, part: PartFile) -> Graph:
    """Load the graph of a part, with inputs and outputs named as in the manifest, but quantized as in the file. `path` is the manifest's.

    Raises:
        InvalidModelError: the number of inputs or outputs is not that of the manifest.
    """
    graph = part_graph(path, part)
    _require_as_many(path, part, graph)
    own, others = (*graph.inputs, *graph.outputs), (*part.inputs, *part.outputs)
    border = {name: replace(graph[mine], name=name, data=None) for mine, name in zip(own, others, strict=True)}
    rewriter = Rewriter(
        replace(graph, name=part.name, tensors=border, ops=(), inputs=part.inputs, outputs=part.outputs, signatures=(), correspondence={})
    )
    rewriter.emit(*rewriter.inline(graph, part.inputs, part.outputs, ""))
    return rewriter.finish()


def _require_as_many(path: Path, part: PartFile, graph: Graph) -> None:
    """Raise InvalidModelError unless a part's file has as many inputs and outputs as the manifest lists."""
    for word, own, names in (("takes", graph.inputs, part.inputs), ("gives", graph.outputs, part.outputs)):
        if len(own) != len(names):
            reason = f"{word} {len(own)} values, not {len(names)}"
            raise InvalidModelError(reason, where=f"part {part.name!r}", file=str(path), rule="part-differs")


def _part_graph(path: Path, part: PartFile, values: Graph) -> Graph:
    """Load the graph of a part, with the quantizations of the tensors around it."""
    graph = part_graph(path, part)
    _require_as_many(path, part, graph)
    for word, own, names in (("takes", graph.inputs, part.inputs), ("gives", graph.outputs, part.outputs)):
        for mine, name in zip(own, names, strict=True):
            if graph[mine].dtype != values[name].dtype or not is_compatible(graph[mine].shape, values[name].shape):
                what = f"{graph[mine].dtype} {graph[mine].shape}, not {values[name].dtype} {values[name].shape}"
                raise InvalidModelError(f"{word} {name!r} as {what}", where=f"part {part.name!r}", file=str(path), rule="part-differs")
    rewriter, fixed = Rewriter(graph), {*graph.inputs, *(tensor.name for tensor in graph.constants())}
    graph = rewriter.finish(outputs=copy_duplicates(graph.outputs, fixed, rewriter.copy))
    for index, name in enumerate(part.inputs):
        graph = requantize_end(graph, "inputs", index, values[name].quantization)
    for index, name in enumerate(part.outputs):
        graph = requantize_end(graph, "outputs", index, values[name].quantization)
    return graph


class _Whole:
    """Collects the operators of parts, with their functions, states and metadata."""

    def __init__(self, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self.functions: dict[str, Graph] = {}
        self.states: dict[str, Any] = {}
        self._notes: dict[str, dict[str, Any] | list[Any]] = {}

    def add(self, part: PartFile, graph: Graph) -> None:
        """Append a part; its functions and states get free names."""
        functions = {name: Names(self.functions).fresh(name) for name in graph.functions}
        states = {name: Names(self.states, self._rewriter).fresh(name) if name in self.states else name for name in graph.states}
        self.functions |= {functions[name]: _rename_scopes(inner, functions, states) for name, inner in graph.functions.items()}
        self.states |= {states[name]: replace(state, name=states[name]) for name, state in graph.states.items()}
        ops = self._rewriter.inline(_rename_scopes(graph, functions, states), part.inputs, part.outputs, "")
        self._rewriter.emit(*ops)
        if part.format == "tflite":
            self._note(IN_TFLITE, [name for op in ops for name in op.outputs if name])
        for key, note in _notes_of(graph):
            self._note(key, note)

    def _note(self, key: str, note: dict[str, Any] | list[Any]) -> None:
        known = self._notes.setdefault(key, type(note)())
        if isinstance(known, dict) and isinstance(note, dict):
            known |= note
        elif isinstance(known, list) and isinstance(note, list):
            known += (item for item in note if item not in known)

    def metadata(self) -> dict[str, str]:
        """Return the joined metadata of all parts."""
        return {key: json.dumps(note) for key, note in self._notes.items()}


def _rename_scopes(graph: Graph, functions: Mapping[str, str], states: Mapping[str, str]) -> Graph:
    """Return the operators of a graph with renamed functions and states."""
    ops = tuple(rename_state(rename_functions(op, functions), states) for op in graph.ops)
    return replace(graph, ops=ops, functions={}, states={})


def _notes_of(graph: Graph) -> Iterator[tuple[str, dict[str, Any] | list[Any]]]:
    """Yield the notes on tensors in the metadata of a part's file, and those of the conversion that wrote it."""
    said = {**graph.metadata, **origin(graph.metadata)}
    for key in (name for name in NAMING if name != IN_TFLITE):  # which no file says
        try:
            found = json.loads(str(said.get(key, "null")))
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict | list):
            yield key, found


class PartitionModel:
    """A split network in the runtimes of its parts.

    Args:
        file: the manifest, with kernels as in choose_kernels().

    Attributes:
        inputs, outputs: name -> (dtype, shape), in order.
        note, unjudged: the texts of the parts' runtimes, joined.
        parts: tensor -> the part that computes it, in words, for tensors between and inside parts; this reads the files.

    Raises:
        QConvertError: a file is not as the manifest says, or a runtime does not take it.
    """

    def __init__(self, file: ModelFile) -> None:
        self.manifest: Manifest = choose_kernels(read_manifest(file.path), file.kernels)
        self._values = values_of(file.path, self.manifest)
        self._models = [(part, _open_part(part, file.path.parent, file.threads)) for part in self.manifest.parts]
        self.inputs, self.outputs = (self._describe_tensors(names) for names in (self.manifest.inputs, self.manifest.outputs))
        self.note, self.unjudged = ("; ".join(_collect_texts(self._models, what)) for what in ("note", "unjudged"))
        self._path = file.path
        self._states: dict[str, Array] = {}
        self._begin()

    def _describe_tensors(self, names: tuple[str, ...]) -> dict[str, tuple[str, tuple[Any, ...]]]:
        return {name: (self._values[name].dtype, self._values[name].shape or ()) for name in names}

    @property
    def parts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in self.manifest.parts:
            graph = named_part(self._path, part)
            found = {name: _describe_part(part) for op in graph.ops for name in op.outputs} | found
        return found | {name: _describe_part(part) for part in self.manifest.parts for name in part.outputs}

    def _begin(self) -> None:
        self._states = {name: np.array(state.data) for name, state in self._values.states.items()}

    def reset(self) -> None:
        """The next run is the first of a sequence."""
        self._begin()
        reset_models(model for _, model in self._models)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Runs once, the next step if the network has states. Inputs and outputs are stored values by name."""
        found = self.all_values(inputs)
        return {name: found[name] for name in self.manifest.outputs}

    def all_values(self, inputs: Arrays) -> dict[str, Array]:
        """Run once and return the values of all tensors that go from part to part."""
        found = {tensor.name: tensor.data for tensor in self._values.constants() if tensor.data is not None}
        found |= {name: np.asarray(inputs[name]) for name in self.manifest.inputs}
        for state in self.manifest.states:
            found |= dict.fromkeys(state.reads, self._states[state.name])
        for part, model in self._models:
            found |= self._run_model(part, model, found)
        for state in self.manifest.states:
            if state.written:
                self._states[state.name] = np.array(found[state.written])
        return found

    def run_part(self, name: str, values: Arrays) -> dict[str, Array]:
        """Run one part from reset states; return its outputs for values of its inputs."""
        part, model = next(item for item in self._models if item[0].name == name)
        reset_models((model,))
        return self._run_model(part, model, values)

    def _run_model(self, part: PartFile, model: LoadedModel, values: Arrays) -> dict[str, Array]:
        with _name_part_in_errors(part):
            given = dict(zip(model.inputs, (values[name] for name in part.inputs), strict=True))
            results = list(model.run(given).values())
            if len(results) != len(part.outputs):
                raise RuntimeRefusedError(
                    f"it returns {format_count(len(results), 'value')}; its part has {format_count(len(part.outputs), 'output')}",
                    rule="part-differs",
                )
            return {name: self._check_dtype(name, value) for name, value in zip(part.outputs, results, strict=True)}

    def _check_dtype(self, name: str, value: Array) -> Array:
        """Return a result; raise RuntimeRefusedError if its type is not that of the network."""
        dtype = numpy_dtype(self._values[name].dtype)
        found = np.asarray(value)
        if found.dtype != dtype and dtype.kind != "O":
            raise RuntimeRefusedError(f"it returns {name!r} as {found.dtype}; its part has {dtype}", rule="part-differs")
        return found


def reset_models(models: Iterable[Any]) -> None:
    """Let the next run of each model that keeps states be the first of a sequence."""
    for model in models:
        if hasattr(model, "reset"):
            model.reset()


def choose_kernels(manifest: Manifest, kernels: str) -> Manifest:
    """Return the manifest with the kernels that a user names in place of its own, for parts whose files they run. Kernels that run code in
    files are ignored: they are for sources, not for parts.

    Args:
        manifest: of the split.
        kernels: those of a ModelFile: the partition's own, and after commas those of other runtimes.

    Raises:
        OptionError: two are named for one format.
    """
    wanted = [f"{runtime.name}:{chosen}" for runtime, chosen in list_kernels(kernels.partition(",")[2]) if not _runs_code(runtime, chosen)]
    known = {name for runtime, _ in list_kernels(wanted) for name in runtime.formats}
    parts = []
    for part in manifest.parts:
        if part.format in known:
            runtime, chosen = runtime_of(part.format, wanted)
            part = replace(part, runtime=f"{runtime.name}:{chosen}")
        parts.append(part)
    return replace(manifest, parts=tuple(parts))


def _runs_code(runtime: Runtime, kernels: str) -> bool:
    """Whether these kernels run code in files, such as torch:trusted."""
    return runtime.runs_code and kernels != runtime.kernels[0]


def _open_part(part: PartFile, folder: Path, threads: int) -> LoadedModel:
    if not part.runtime:
        raise RuntimeRefusedError(f"no runtime runs {part.format} files", where=_describe_part(part), rule="no-runtime")
    runtime, kernels = kernels_named(part.runtime)
    if part.format and part.format not in runtime.formats:
        raise InvalidModelError(
            f"is to be run by {part.runtime}, which does not run {part.format} files",
            where=_describe_part(part),
            rule="runtime-of-another-format",
        )
    if _runs_code(runtime, kernels):
        raise RuntimeRefusedError(
            f"the manifest names the runtime {part.runtime}, which runs code that is in files; a manifest must not",
            where=_describe_part(part),
            rule="runtime-runs-code",
        )
    options = fill_defaults({}, format_named(part.format).read_options) if part.format else {}
    with _name_part_in_errors(part):
        model = runtime.open(ModelFile(folder / part.model.file, kernels, options, threads))
        for word, own, given in (("takes", model.inputs, part.inputs), ("gives", model.outputs, part.outputs)):
            if len(own) != len(given):
                raise RuntimeRefusedError(
                    f"{runtime.title} {word} {format_count(len(own), 'value')}; its part {word} {len(given)}", rule="part-differs"
                )
        return model


@contextmanager
def _name_part_in_errors(part: PartFile) -> Iterator[None]:
    """Add the part to errors of the block."""
    try:
        yield
    except QConvertError as error:
        error.where = f"{_describe_part(part)}{': ' if error.where else ''}{error.where}"
        raise


def _describe_part(part: PartFile) -> str:
    """Return the text for a part in errors and reports."""
    return (
        f"the region {part.name!r} of {part.target} ({part.model.file})" if part.region else f"the part {part.name!r} ({part.model.file})"
    )


def _collect_texts(models: list[tuple[PartFile, LoadedModel]], what: str) -> list[str]:
    return list(dict.fromkeys(text for _, model in models if (text := str(getattr(model, what, "")))))


def rows(kernels: str) -> Kernels:
    """See plugins.Runtime: the rows of the runtime that the kernels name; by default those of onnxruntime, which cuts its parts."""
    runtime: Runtime | None = runtimes().get(kernels.partition(":")[0])
    if runtime is None or runtime.name == "partition":
        runtime = runtimes()["onnxruntime"]
    return runtime.rows(kernels.partition(":")[2] or runtime.kernels[0])
