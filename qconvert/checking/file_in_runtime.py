"""A model file in its runtime: the sides of a check with their canonical graphs, and run(), which runs one model alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np

from qconvert.arguments import with_checked_arguments
from qconvert.arithmetic.rounding import dequantize
from qconvert.conversion import load
from qconvert.conversion.comparing import read_noted_options, split_options
from qconvert.conversion.in_memory import Model, as_file
from qconvert.conversion.loading import source_format
from qconvert.data import Preparation, load_inputs, random_inputs
from qconvert.data.arrays import fit_values
from qconvert.errors import OptionError, QConvertError, RuntimeRefusedError, name_file_in_errors
from qconvert.graph import Array, Arrays, Graph
from qconvert.graph.metadata import TARGET
from qconvert.graph.names import quote_nearest
from qconvert.plugins import (
    Format,
    Inside,
    LoadedModel,
    ModelFile,
    Runtime,
    list_kernels,
    runtime_of,
    runtimes,
    runtimes_of_target,
    target_named,
    targets,
)
from qconvert.plugins.options import ReadOptions, check_options, fill_defaults


@dataclass(slots=True)
class Side:
    """A model file in its runtime.

    Attributes:
        file: the file, with the runtime's kernels and the options of its reader.
        format: its format.
        runtime: what runs it.
        unrounded: names of quantized tensors that the file has as float values, rounded to no quantization.
    """

    file: ModelFile
    format: Format
    runtime: Runtime
    unrounded: frozenset[str] = frozenset()
    _graph: Graph | None = None
    _taken: Mapping[str, str] | None = None
    _called: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def kernels(self) -> str:
        """A name of the runtime's."""
        return self.file.kernels

    @property
    def layout(self) -> str:
        """The data_format that files for the runtime have; "" where neither the runtime nor the format has one."""
        target = self.format.own_target or self.format.default_target
        return self.runtime.layout or (target_named(target).layout if target else "")

    def find_other_layout(self, source: Side) -> str:
        """Return this side's layout where the source's is another one; "" else."""
        return self.layout if self.layout != source.layout else ""

    @property
    def graph(self) -> Graph:
        """The file's canonical graph, read when first asked for."""
        if self._graph is None:
            self._graph = load(self.path, self.format.name, **self.file.options)
        return self._graph

    def use_graph(self, graph: Graph, unrounded: Collection[str] = ()) -> Side:
        """The side with a graph that stands for the file, whose operators are not read; `unrounded` are tensors of that graph."""
        return replace(self, _graph=graph, unrounded=frozenset(unrounded))

    def replace_path(self, path: Path) -> Side:
        """The side of a copy of the file."""
        return Side(replace(self.file, path=path), self.format, self.runtime)

    def use_kernels(self, kernels: str) -> Side:
        """The side with other kernels of its runtime."""
        return replace(self, file=replace(self.file, kernels=kernels), _taken=None)

    def use_renamed_graph(self, graph: Graph, names: Mapping[str, str]) -> Side:
        """The side with another canonical graph, in which tensors are called otherwise (new name: the file's)."""
        return replace(self, _graph=graph, _called=names)

    def open(self) -> LoadedModel:
        model = self.runtime.open(self.file)
        if lacking := [name for name in ("inputs", "outputs", "note", "run") if not hasattr(model, name)]:  # of a plugin
            raise OptionError(
                f"the runtime {self.runtime.name} opened a {type(model).__name__} without {', '.join(lacking)}",
                remedy="qconvert.plugin.LoadedModel says what a model has.",
                rule="wrong-result",
            )
        return model

    def inside(self, graph: Graph) -> Inside | None:
        """The file's inner tensors that a graph names, or None if the runtime does not give them out."""
        return None if self.runtime.inside is None else self.runtime.inside(self.file, graph)

    @property
    def choice(self) -> str:
        """What runs the file, as `--kernels` names it."""
        return f"{self.runtime.name}:{self.kernels}"

    def choice_for(self, name: str) -> str:
        """What runs the file where it computes a tensor, likewise: another runtime may run that part of it."""
        runtime, _, kernels = self.kernels_of(name).partition(":")
        return self.choice if runtime == self.runtime.name or not kernels else f"{runtime}:{runtimes()[runtime].kernels[0]}"

    def kernels_of(self, name: str, *, with_parts: bool = False) -> str:
        """What computes a tensor of the file, likewise: the runtime may leave an operator to another set of its kernels.

        Args:
            name: of the tensor.
            with_parts: whether what computes it may be several operators, of which each set may run some.
        """
        if self._taken is None:
            try:
                self._taken = self.runtime.taken_by(self.file) if self.runtime.taken_by is not None else {}
            except QConvertError:
                self._taken = {}
        chosen = self._taken.get(self._called.get(name, name), self.kernels)
        found = self._taken.get(f"{name}/", chosen) if with_parts else chosen
        return found if ":" in found else f"{self.runtime.name}:{found}"


def side_of(path: Path, format: str, kernels: str | Sequence[str], options: Mapping[str, Any]) -> Side:
    """A model file with what runs it.

    Args:
        path: the file.
        format: the name of its format; "" where the suffix says it.
        kernels: those that the user wants, as in plugins.runtime_of(); by default those of the file's target, or the first.
        options: of the format's reader.

    Raises:
        OptionError: there are no such kernels, or the reader takes no such option.
        QConvertError: the file cannot be read, or nothing runs such files.
    """
    found = source_format(path, format)
    own = check_options(options, found.read_options, f"nothing that reads {found.name}")
    return _use_target_runtime(_side(path, found, kernels, own), kernels)


def sides_of(
    source: Path, result: Path, kernels: str | Sequence[str], options: Mapping[str, Any], formats: tuple[str, str] = ("", "")
) -> tuple[tuple[Side, Side], str]:
    """Both files of a check, and a line on options of reading that the user did not give.

    Args:
        source, result: the files.
        formats: of both; "" where the suffix says it.
        kernels: those that the user wants, as in plugins.runtime_of(); of two that run the format of both files the first runs the source.
        options: of the readers, those that are not at their default.

    Raises:
        OptionError: nothing runs such files, there are no such kernels, or nobody takes an option.
        QConvertError: the result cannot be read, and it is asked how the source was.
    """
    before, after = source_format(source, formats[0]), source_format(result, formats[1])
    own, others = split_options(options, before, after)
    names = {f"{runtime.name}:{chosen}": before is after and before.name in runtime.formats for runtime, chosen in list_kernels(kernels)}
    both = [name for name, runs_both in names.items() if runs_both]
    first_kernels, second_kernels = ([name for name in names if len(both) != 2 or name != both[other]] for other in (1, 0))
    second = _use_target_runtime(_side(result, after, second_kernels, others), second_kernels)
    if before.read is None:
        raise OptionError(
            f"the operators of a {before.name} file are not read, so nothing can be compared with them",
            file=str(source),
            remedy="Name the model that it was made from as the source.",
            rule="operators-not-read",
        )
    if after.read is None:
        return (_side(source, before, first_kernels, own), second), ""
    unsaid = [option.name for option in before.read_options if option.name not in own]
    found = {name: value for name, value in read_noted_options(second.graph.metadata, before).items() if name in unsaid} if unsaid else {}
    read = ", ".join(
        f"--{name.replace('_', '-')} {one}" for name, value in found.items() for one in (value if isinstance(value, tuple) else (value,))
    )
    note = f"{source.name} is read with {read}, as the metadata of {result.name} state" if read else ""
    first = _use_target_runtime(_side(source, before, first_kernels, {**found, **own}), first_kernels)
    return (first, second), note or _note_other_signatures(first)


def describe_runtimes(sides: tuple[Side, Side], models: tuple[LoadedModel, LoadedModel]) -> str:
    """Return, in words, the runtime and form of each side, and the runtimes of a target that ran neither."""
    found = [describe_runtime(side, model) for side, model in zip(sides, models, strict=True)]
    asked = [targets().get(side.graph.metadata.get(TARGET, "")) for side in sides]
    named = [name for target in asked if target is not None for name in runtimes_of_target(target)]
    lacking = dict.fromkeys(runtimes()[name].title for name in named if name not in {side.runtime.name for side in sides})
    both = f"{found[0]} on both sides" if found[0] == found[1] else " | ".join(found)
    return "; ".join((both, *(f"{title} was not run" for title in lacking)))


def describe_runtime(side: Side, model: LoadedModel) -> str:
    """What ran a side, with its version, and in which form."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        called = f"{side.runtime.title} {version(side.runtime.package)}" if side.runtime.package else side.runtime.title
    except PackageNotFoundError:
        called = side.runtime.title
    form = getattr(model, "form", "") or side.kernels
    return f"{called} ({', '.join(filter(None, (_describe_form(side), form)))})"


def _describe_form(side: Side) -> str:
    """The form of an ONNX file, in words; "" of other formats."""
    if side.format.name != "onnx":
        return ""
    from qconvert.formats.onnx.container import form_of

    return form_of(side.path)


def _note_other_signatures(side: Side) -> str:
    """A line on entry points that a check does not look at."""
    try:
        signatures = side.graph.signatures
    except QConvertError:  # which the check itself says
        return ""
    others = [repr(signature.key) for signature in signatures if signature.function]
    if not others:
        return ""
    compared = next((f"the entry point {signature.key!r}" for signature in signatures if not signature.function), "the network")
    return f"this compares {compared}, not {', '.join(others[:3])} (--signature KEY chooses one)"


def _use_target_runtime(side: Side, kernels: str | Sequence[str]) -> Side:
    """The side by the runtime that its target asks for, where the user names none."""
    if kernels or side.format.read is None:
        return side
    wanted = targets().get(side.graph.metadata.get(TARGET, ""))
    if wanted is None or not wanted.checked_by or wanted.format != side.format.name:
        return side
    runtime, chosen = runtime_of(side.format.name, wanted.checked_by)
    return replace(side, file=replace(side.file, kernels=chosen), runtime=runtime)


def _side(path: Path, format: Format, kernels: str | Sequence[str], options: Mapping[str, Any]) -> Side:
    with name_file_in_errors(path):
        try:
            runtime, chosen = runtime_of(format.name, kernels)
        except RuntimeRefusedError:
            if format.read is not None:
                load(path, format.name, **options)  # what is wrong with the file itself comes first
            raise
    return Side(model_file(path, format, chosen, options), format, runtime)


def model_file(path: Path, format: Format, kernels: str, options: Mapping[str, Any] = MappingProxyType({})) -> ModelFile:
    """A file for a runtime: the options given, and the others at their defaults."""
    return ModelFile(path, kernels, fill_defaults(options, format.read_options))


@with_checked_arguments
def run(
    model: Model,
    inputs: Mapping[str, Any] | None = None,
    *,
    tensors: Sequence[str] = (),
    every: bool = False,
    dequantized: bool = False,
    format: str = "",
    kernels: str = "",
    seed: int = 0,
    **options: Unpack[ReadOptions],
) -> dict[str, Array]:
    """Run a model once in its own runtime and return tensors by name.

    Args:
        model: a model file of a format that a runtime loads, its content as bytes, or a graph, of which a file is written.
        inputs: name -> array, in the shape of the input: stored integers, or floats, which are quantized where the input is. None for
            random inputs.
        tensors: names of inner tensors, by the names of the canonical graph (`qconvert inspect --verbose` lists them), that are
            returned too.
        every: whether all inner tensors that the runtime gives out are returned.
        dequantized: whether quantized tensors are returned as float32 instead of as stored integers.
        format: the name of the format, where nothing else says it.
        kernels: what runs it, such as "litert:reference"; by default the first runtime of the format.
        seed: of random inputs.
        options: of the reader of the format, such as input_shape.

    Returns:
        Name -> array: the inputs as they were fed, the outputs, and the inner tensors asked for.

    Raises:
        OptionError: an input or a tensor does not exist or does not fit.
        RuntimeRefusedError: no runtime is installed that takes the model, or it gives out no inner tensors.
        QConvertError: the file cannot be read.
    """
    with as_file(model, format, runs=True) as path:
        side = side_of(path, "" if isinstance(model, Graph) else format, kernels, options)
        feed = random_inputs(side.graph, 1, seed)[0] if inputs is None else _prepare_inputs(side.graph, inputs)
        return _run_side(side, [feed], tensors, every, dequantized)[0]


def run_files(
    model: Path,
    data: Sequence[str | Path] = (),
    *,
    preparation: Preparation | None = None,
    samples: int | None = None,
    tensors: Sequence[str] = (),
    every: bool = False,
    dequantized: bool = False,
    format: str = "",
    kernels: str | Sequence[str] = "",
    seed: int = 0,
    **options: Unpack[ReadOptions],
) -> tuple[list[dict[str, Array]], tuple[str, ...], str]:
    """Run a model file on inputs from files, or on random ones.

    Args:
        model: the file.
        data: files and folders of inputs; random inputs without.
        preparation: of images and floats in these.
        samples: how many inputs at most; by default all of `data`, or 1 random one.
        tensors, every, dequantized, format, kernels, seed, options: as in run().

    Returns:
        What run() returns for each input, notes on how the inputs were prepared, and what ran the model.
    """
    side = side_of(model, format, kernels, options)
    if data:
        feeds, notes = load_inputs(side.graph, data, samples, (preparation or Preparation()).with_stretch())
    else:
        feeds, notes = random_inputs(side.graph, samples or 1, seed), ("inputs are random",)
    return _run_side(side, feeds, tensors, every, dequantized), tuple(notes), side.choice


def _run_side(side: Side, feeds: Sequence[Arrays], tensors: Sequence[str], every: bool, dequantized: bool) -> list[dict[str, Array]]:
    graph, loaded = side.graph, side.open()
    inside = side.inside(graph) if tensors or every else None
    if (tensors or every) and inside is None:
        raise RuntimeRefusedError(
            f"{side.runtime.title} gives out no inner tensors", file=str(side.path), rule="no-inner-tensors",
            remedy="Choose other kernels with --kernels; `qconvert formats` lists them.",
        )  # fmt: skip
    if inside is not None and (unknown := [name for name in tensors if name not in inside.names | {*graph.inputs, *graph.outputs}]):
        raise OptionError(
            f"the model computes no tensor {quote_nearest(unknown, inside.names)}", file=str(side.path), rule="unknown-tensor"
        )
    found = []
    for feed in feeds:
        values = {**feed, **loaded.run(feed)}
        if inside is not None:
            inner = inside.values({name: feed[name] for name in loaded.inputs if name in feed})
            values |= {name: value for name, value in inner.items() if every or name in tensors}
        found.append({name: _dequantize_value(graph, name, value) if dequantized else value for name, value in values.items()})
    return found


def _dequantize_value(graph: Graph, name: str, value: Array) -> Array:
    q = graph[name].quantization if name in graph.tensors else None
    return value if q is None or value.dtype.kind not in "iu" else dequantize(value, q).astype(np.float32)


def _prepare_inputs(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs that a user gives as the model takes them: floats are quantized."""
    if unknown := [name for name in inputs if name not in graph.inputs]:
        raise OptionError(f"the model has no input {quote_nearest(unknown, graph.inputs)}", rule="unknown-input")
    if missing := [name for name in graph.inputs if name not in inputs]:
        raise OptionError(f"no value is given for the input {missing[0]!r}", rule="missing-input", where=missing[0])
    return {name: fit_values(graph[name], np.asarray(inputs[name]), f"the input {name!r}", Preparation()) for name in graph.inputs}
