"""What plugins give to the hooks: formats, passes and runtimes (targets are in target.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.errors import OptionError
from qconvert.plugins.options import Option

if TYPE_CHECKING:  # what no help needs: a class of data takes as long to make as ten modules to find
    from qconvert.checkpoints.repacking import Repacked
    from qconvert.checkpoints.source import CheckpointSource
    from qconvert.encodings import Encodings
    from qconvert.graph import Graph, Tensor
    from qconvert.kernels import Kernels
    from qconvert.plugins.loaded_models import Engine, Inside, Layer, LoadedModel, ModelFile
    from qconvert.plugins.parameters import Parameters
    from qconvert.plugins.results import Change


def _is_suffix(item: object) -> bool:
    return isinstance(item, str) and item.startswith(".") and item == item.lower()


@dataclass(frozen=True, slots=True)
class Format:
    """A file format. `read` and `write` import what they need when they are called.

    A file of the content "encodings" holds scales without a model (qconvert.encodings): `read_encodings` and `write_encodings` read and
    write it. Several such formats share a suffix: `holds` tells them apart.

    Attributes:
        name: as on the command line, such as "tflite".
        suffixes: file name endings, with the dot.
        summary: one line for `qconvert formats`.
        read: (file, options) -> Graph, or None if the format cannot be read.
        write: (Graph, file, options) -> notes, or None. It writes the file at the path given, and further files next to it if the
            format needs them, which the caller renames into place; those without which it cannot be read get their names from
            files.named_by_content(), so that no moment of a conversion pairs a model with the data of another. It may return notes on the
            chosen form for the user, in words or as Changes; these may be declared exact.
        default_target: the target that a conversion to this format uses when none is named; of a format of encodings the one that
            calibrated scales suit then.
        own_target: likewise for a conversion from this format to itself.
        form_of: (file, write options) -> which of the format's forms will be written there, where targets are for one form each: the target
            that a conversion uses when none is named is then the first of the form. Raises OptionError where both contradict each other.
        recognizes: the first 64 bytes of a file -> whether they are this format's; None if nothing tells. It is asked only of a file that
            could not be read in the format of its suffix or of the user, and the error then names the right format.
        as_written: (the file from `write`, the written graph, the result of `check`) -> the quantized graph of the file, for judging a
            conversion: with all operators that the writer wrote for one, from which `read` may make one again. It
            returns None for a file that cannot be read; None where `read` gives the graph.
        contents: file -> what it says of itself, name -> text or number, and under "operators" its own operators with their counts.
        companions: file -> the further files that belong to it, or None if there are never any.
        parameters: (file, options) -> the tensors and quantizations of a file without a graph, which another file then gives; None if the
            format has no such files.
        modules: file -> tensor -> the module of the source's program that computes it, where the file says so; None if it never does.
        narrow_ranges: whether `write` keeps the quant_min and quant_max of activations.
        scopes: which of "functions", "states" and "signatures" (that enter functions) of a graph `write` keeps.
        check: looks at a file that `write` has made, before it is moved into place: whether names, order, types and sizes contradict each
            other. Raises QConvertError; returns what `as_written` takes. It infers nothing and takes a small part of the time of writing;
            None for no such check.
        folder: names of the files of which `write` makes a folder where the path has none of the suffixes; () if it always writes one file.
        content: what its files hold: "model", perhaps with encodings besides, or "encodings" alone.
        read_encodings: (file, options) -> Encodings, or None if it cannot be read.
        write_encodings: (Encodings, the graph without quantization that they belong to or None, file, options) -> notes, as of `write`.
        every_tensor: whether `write_encodings` gets the entries that follow from others too, since the program that reads the file chooses
            scales where it has none; and the graph as a float file written next to it has it, with the tensors that its writer added.
        encodings_suffixes: of a format of models that has encodings too, the suffixes of the files that may hold these.
        holds: file -> whether it is of this format by its content; it raises FileAccessError alone. None where the suffix says it.
        open_checkpoint: file -> its weights in blocks, without a graph; None if it never has the names and sizes of a whole model.
        repack: of a format of checkpoints, which have no operators and are not written from a graph: (a checkpoint, a folder, write
            options, progress) -> what was done, once the folder has a checkpoint of the same weights. The folder is empty, or has what a
            run with the same arguments wrote that was interrupted.
        read_options, write_options: what `read` and `write`, or `read_encodings` and `write_encodings`, take; `write` gets the mapping
            "provenance" besides.
        normal_form: names of the passes that a graph just read goes through, so that a reader stays literal: one function an operator.
        replaces: its own name, where it replaces another plugin's format of that name.
    """

    name: str
    suffixes: tuple[str, ...]
    summary: str
    read: Callable[[Path, Mapping[str, Any]], Graph] | None = None
    write: Callable[[Graph, Path, Mapping[str, Any]], tuple[Change | str, ...] | None] | None = None
    default_target: str = ""
    own_target: str = ""
    form_of: Callable[[Path, Mapping[str, Any]], str] | None = None
    recognizes: Callable[[bytes], bool] | None = None
    as_written: Callable[[Path, Graph, Any], Graph | None] | None = None
    contents: Callable[[Path], Mapping[str, Any]] | None = None
    companions: Callable[[Path], tuple[Path, ...]] | None = None
    parameters: Callable[[Path, Mapping[str, Any]], Parameters] | None = None
    modules: Callable[[Path], Mapping[str, str]] | None = None
    normal_form: tuple[str, ...] = ()
    narrow_ranges: bool = False
    scopes: tuple[str, ...] = ()
    check: Callable[[Path], Any] | None = None
    folder: tuple[str, ...] = ()
    content: str = "model"
    read_encodings: Callable[[Path, Mapping[str, Any]], Encodings] | None = None
    write_encodings: Callable[[Encodings, Graph | None, Path, Mapping[str, Any]], tuple[Change | str, ...] | None] | None = None
    every_tensor: bool = False
    encodings_suffixes: tuple[str, ...] = ()
    holds: Callable[[Path], bool] | None = None
    open_checkpoint: Callable[[Path], CheckpointSource] | None = None
    repack: Callable[[CheckpointSource, Path, Mapping[str, Any], Callable[[str, int, int], None]], Repacked] | None = None
    read_options: tuple[Option, ...] = ()
    write_options: tuple[Option, ...] = ()
    replaces: str = ""

    def __post_init__(self) -> None:
        """Raises OptionError for suffixes that no file could have: they would match others, or none, in silence."""
        for suffixes in (self.suffixes, self.encodings_suffixes):
            if not isinstance(suffixes, tuple) or not all(_is_suffix(item) for item in suffixes):
                raise OptionError(
                    f"the suffixes of the format {self.name} are {suffixes!r}",
                    remedy='Write them like (".small",), with the dot.',
                    rule="malformed-suffix",
                )

    @property
    def forms(self) -> tuple[str, ...]:
        """What `write` calls the forms that it makes, the usual one first; () of a format with one form."""
        return next((tuple(map(str, option.choices)) for option in self.write_options if option.name == "form"), ())

    def makes_folder(self, path: Path) -> bool:
        """Whether a result of this name is a folder."""
        return bool(self.folder) and path.suffix.lower() not in self.suffixes

    def result_path(self, name: str | os.PathLike[str], *, is_encodings: bool = False) -> Path:
        """Return the path of a result.

        Args:
            name: as the user writes it.
            is_encodings: whether `write_encodings` makes it, which writes one file.

        Raises:
            OptionError: the name ends with /, as those of folders do, and a file is to be written.
        """
        text, path = os.fspath(name), Path(name)
        stem, suffixes = ("scales", self.encodings_suffixes or self.suffixes) if is_encodings else ("model", self.suffixes)
        if text.endswith(("/", os.sep)) and suffixes and (is_encodings or not self.makes_folder(path)):
            raise OptionError(
                f"the name is that of a folder; the format {self.name} requires a file",
                file=text,
                remedy=f"Name a file in it: {text}{stem}{suffixes[0]}",
                rule="is-a-folder",
            )
        return path

    def suffix_for(self, options: Mapping[str, Any]) -> str:
        """The first suffix under which `write` makes what its options ask for: of a format with several forms, names may say the form.

        Raises:
            OptionError: there is none.
        """
        error = OptionError(f"files of the format {self.name} have no suffix", rule="no-suffix")
        for suffix in self.suffixes:
            try:
                if self.form_of is not None:
                    self.form_of(Path(f"model{suffix}"), options)
            except OptionError as problem:
                error = problem
            else:
                return suffix
        raise error


#: What a pass returns: the new graph, and what was changed in Changes, or in words alone, which are as exact as the pass.
PassResult = tuple["Graph", tuple["Change | str", ...]]


@dataclass(frozen=True, slots=True)
class Pass:
    """A named rewriting: (graph, target, options of its own) -> PassResult.

    Attributes:
        name: as in `--pass`.
        summary: one line for `qconvert passes`.
        run: the function; its target is None where a conversion has none.
        exact: whether every output stays the same, bit for bit; if not, what was changed says by how much. A Change may declare more than
            the pass does: one of a pass that is not exact may be.
        within: of a pass that is not exact, the largest mean change of an output, as a share of the range of its values, that it may
            cost; None where no bound is known. `--verify-each` holds it to that.
        border: whether it changes types or quantizations of the graph's inputs and outputs. Such a pass leaves functions alone, whose
            inputs and outputs the operators that name them fix.
        options: what `run` takes by keyword.
        tried: values of options, by name, with which `qconvert passes MODEL` runs it, each by itself; by default its own defaults.
        after: names of passes that, where they are in the same list, come before this one.
        requires: properties of the graph, in words of their own, that passes before this one, or reading, must ensure.
        ensures: properties of the graph that hold after this pass.
        replaces: its own name, where it replaces another plugin's pass of that name.
    """

    name: str
    summary: str
    run: Callable[..., PassResult]
    exact: bool = True
    within: float | None = None
    border: bool = False
    options: tuple[Option, ...] = ()
    tried: tuple[Mapping[str, Any], ...] = ({},)
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What runs model files, each given as a ModelFile. Its functions import what they need when they are called.

    Attributes:
        name: as in reports and errors.
        formats: names of the formats that it loads.
        package: the name of the installed distribution whose version reports say; "" for none.
        summary: one line for `qconvert formats`.
        title: what it is called in sentences.
        open: file -> the loaded model. Raises QConvertError.
        rows: set of kernels -> its rows. A check takes from them the tolerance of integers, and the results of kernels whose integers
            overflow.
        kernels: the sets of kernels, or ways to run a graph, that a user may choose from, as in `--kernels NAME:KERNELS`; the first by
            default.
        layout: the data_format that files for it have; by default that of the target which their format has by default.
        runs_code: whether loading a file runs code that is in it.
        whole: whether only whole models run in it, so that operators cannot be compared one by one.
        inside: (file, canonical graph) -> the file's inner tensors; None if the runtime does not give them out. They
            then come from the evaluator.
        watch: (file, canonical names of tensors) -> the loaded model, whose run() gives these tensors and nothing else, by these names;
            names that the file does not have are left out. None if the runtime does not give out inner tensors.
        layers: file -> the operators as it runs them; None if it does not tell.
        build: file -> the engine for the device that the kernels name, which need not be at hand; None if there are no engines. Raises
            RuntimeRefusedError with what the builder says.
        taken_by: file -> the sets of kernels that compute operators in place of the chosen set, by the name of the
            operator's result, with "/" after it where the file has several operators for one; "onnxruntime:optimized" for one of
            another runtime. None if all are of the chosen one.
        around: (file, names of what operators compute that it cannot run, these as tensors, outputs, copy) -> None: writes a copy of the
            file without these operators, whose results are further inputs, and with these outputs, each with the name that the copy gives
            it; None if it cannot.
        keeps: canonical graph -> the states that operators of its format keep by themselves; a loaded model has a function `begin(values)`
            then, which makes these, by the state's name, their values in the next run.
        by_others: whether other runtimes run what its files name: its kernels are then followed, after commas, by those that the user
            wants of these, as in `--kernels`.
        replaces: its own name, where it replaces another plugin's runtime of that name.
    """

    name: str
    formats: tuple[str, ...]
    summary: str
    title: str
    open: Callable[[ModelFile], LoadedModel]
    rows: Callable[[str], Kernels]
    kernels: tuple[str, ...]
    layout: str = ""
    runs_code: bool = False
    whole: bool = False
    inside: Callable[[ModelFile, Graph], Inside] | None = None
    watch: Callable[[ModelFile, frozenset[str]], LoadedModel] | None = None
    layers: Callable[[ModelFile], tuple[Layer, ...]] | None = None
    build: Callable[[ModelFile], Engine] | None = None
    taken_by: Callable[[ModelFile], Mapping[str, str]] | None = None
    around: Callable[[ModelFile, frozenset[str], Sequence[tuple[Tensor, str]], Sequence[tuple[str, str]], Path], None] | None = None
    keeps: Callable[[Graph], frozenset[str]] | None = None
    by_others: bool = False
    package: str = ""
    replaces: str = ""

    def __post_init__(self) -> None:
        """Raises OptionError for a runtime without kernels, of which none could be chosen, and for what is no function."""
        for name in ("open", "rows"):
            if not callable(getattr(self, name)):
                reason = f"{name} of the runtime {self.name} is a {type(getattr(self, name)).__name__}"
                raise OptionError(reason, remedy="Give it a function.", rule="not-a-function")
        if not self.kernels or isinstance(self.kernels, str):
            raise OptionError(
                f"the kernels of the runtime {self.name} are {self.kernels!r}", remedy='Write them like ("exact",).', rule="no-kernels"
            )


@dataclass(frozen=True, slots=True)
class Codegen:
    """What makes the artefact of a region that a partition gives a target: what its compiler, or its toolchain, makes of it.

    Attributes:
        name: of the target.
        suffix: file name ending of the artefact, with the dot.
        compile: (region, file) -> notes, or None: writes the file. The region is a graph of its own, fitted by the target's passes.
        runtime: the name of the Runtime that runs the artefact; its `open` gets the file. Inputs and outputs are, in order, those of the
            region.
        states: whether an artefact can hold states that live from run to run; else these stay outside.
        replaces: its own name, where it replaces another plugin's code generator for that target.
    """

    name: str
    suffix: str
    compile: Callable[[Graph, Path], tuple[Change | str, ...] | None]
    runtime: str
    states: bool = False
    replaces: str = ""

    def __post_init__(self) -> None:
        """Raises OptionError for a suffix that no file could have."""
        if not _is_suffix(self.suffix):
            raise OptionError(
                f"the suffix of the artefacts for {self.name} is {self.suffix!r}",
                remedy='Write it like ".npu", with the dot.',
                rule="malformed-suffix",
            )
