"""Runs a split network: each part in its own runtime, in the order of the manifest; tensors go from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.errors import InvalidModelError, QConvertError, RuntimeRefusedError, format_count
from qconvert.graph import Array, numpy_dtype
from qconvert.kernels import Kernels
from qconvert.partitioning.composing import named_part, values_of
from qconvert.partitioning.manifest import Manifest, PartFile, read_manifest
from qconvert.plugins import LoadedModel, ModelFile, Runtime, format_named, kernels_named, list_kernels, runtime_of, runtimes
from qconvert.plugins.options import fill_defaults

__all__ = ["PartitionModel", "choose_kernels", "open_model", "rows"]


class PartitionModel:
    """A split network in the runtimes of its parts.

    Args:
        path: the manifest.
        threads: how many each runtime may use.
        kernels: see run_by().

    Attributes:
        inputs, outputs: name -> (dtype, shape), in order.
        note, unjudged: the texts of the parts' runtimes, joined.
        parts: tensor -> the part that computes it, in words, for tensors between and inside parts; this reads the files.

    Raises:
        QConvertError: a file is not as the manifest says, or a runtime does not take it.
    """

    def __init__(self, path: Path, threads: int = 1, kernels: str = "") -> None:
        self.manifest: Manifest = choose_kernels(read_manifest(path), kernels)
        self._values = values_of(path, self.manifest)
        self._models = [(part, _open_part(part, path.parent, threads)) for part in self.manifest.parts]
        self.inputs, self.outputs = (self._describe_tensors(names) for names in (self.manifest.inputs, self.manifest.outputs))
        self.note, self.unjudged = ("; ".join(_collect_texts(self._models, what)) for what in ("note", "unjudged"))
        self._path = path
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
        for _, model in self._models:
            if hasattr(model, "reset"):
                model.reset()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once, the next step if the network has states. Inputs and outputs are stored values by name."""
        found = self.all_values(inputs)
        return {name: found[name] for name in self.manifest.outputs}

    def all_values(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
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

    def run_part(self, name: str, values: Mapping[str, Array]) -> dict[str, Array]:
        """Run one part from reset states; return its outputs for values of its inputs."""
        part, model = next(item for item in self._models if item[0].name == name)
        if hasattr(model, "reset"):
            model.reset()
        return self._run_model(part, model, values)

    def _run_model(self, part: PartFile, model: LoadedModel, values: Mapping[str, Array]) -> dict[str, Array]:
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


def open_model(file: ModelFile) -> PartitionModel:
    """See plugins.Runtime."""
    return PartitionModel(file.path, file.threads, file.kernels)


def rows(kernels: str) -> Kernels:
    """See plugins.Runtime: the rows of the runtime that the kernels name; by default those of onnxruntime, which cuts its parts."""
    runtime: Runtime | None = runtimes().get(kernels.partition(":")[0])
    if runtime is None or runtime.name == "partition":
        runtime = runtimes()["onnxruntime"]
    return runtime.rows(kernels.partition(":")[2] or runtime.kernels[0])
