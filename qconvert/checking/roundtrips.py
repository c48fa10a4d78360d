"""roundtrip(): a model is converted to a format and back, and after each conversion compared with what it was."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from qconvert.arguments import Progress, no_progress, with_checked_arguments
from qconvert.checking.check import check
from qconvert.checking.comparison_forms import to_comparison_form, to_plain_form
from qconvert.checking.findings import NOT_EQUAL, NOT_JUDGED, PASSED, CheckReport, OutputComparison
from qconvert.checking.verdicts import to_lsb
from qconvert.conversion import load, normalize, save
from qconvert.conversion.in_memory import Model, as_file, model_title
from qconvert.conversion.judging import Declared
from qconvert.conversion.loading import normal_form, source_format
from qconvert.conversion.normalizing import Observer, chosen_target
from qconvert.errors import FileAccessError, OptionError, QConvertError, UnsupportedError, format_count
from qconvert.files.system import temporary_folder
from qconvert.graph import Graph, equal_data
from qconvert.plugins import Change, Format, format_named, list_kernels, name_changes, runtimes, target_named
from qconvert.plugins.options import ReadOptions, check_options
from qconvert.rules.differences import diff, pair_tensors
from qconvert.tables import Rows, Shown, format_sentence, format_share, format_text
from qconvert.targets.audit import refuse_violations


@dataclass(frozen=True, slots=True)
class Kept:
    """Counts of what two graphs have in common.

    Attributes:
        constants, constants_equal: constants of the first graph, and those that the second has with the same bits and type.
        integers: elements of the quantized ones among them.
        scales, scales_equal: quantized tensors, and those with the same scales, zero points and axis.
    """

    constants: int
    constants_equal: int
    integers: int
    scales: int
    scales_equal: int


@dataclass(frozen=True, slots=True)
class Leg:
    """One conversion of a round trip.

    Attributes:
        form: what was written, such as "onnx:qoperator".
        file: the file's name.
        changes: what the passes changed that fit the graph to the format.
        notes: what the writer says of the form that it chose.
        differences: what qconvert.diff finds between the model's graph, fitted to the form, and the one read from the file.
        kept: counts of what is equal between the two.
        outputs: the model's outputs compared with the file's, in their runtimes.
        arithmetic: why the outputs may differ by a rounding, or were not compared; "" where they must be equal.
        explained: differing operators by kind and reason, if the outputs differ.
        problems: in sentences, what was lost.
        unjudged: in sentences, what kept the outputs from being compared, such as a custom operator or a runtime that is not installed.
        machine: what the reader should know of how outputs were compared, where it is due to this machine's CPU.
    """

    form: str
    file: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    differences: tuple[str, ...]
    kept: Kept
    outputs: tuple[OutputComparison, ...]
    arithmetic: str
    explained: str
    problems: tuple[str, ...]
    unjudged: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class RoundtripReport(Shown):
    """All conversions of a round trip, in order, and notes on how it was made."""

    source: str
    form: str
    via: str
    legs: tuple[Leg, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """PASSED, NOT_EQUAL or NOT_JUDGED, as of a check: the last if no conversion has a problem, but one could not be run."""
        if any(leg.problems for leg in self.legs):
            return NOT_EQUAL
        return NOT_JUDGED if any(leg.unjudged for leg in self.legs) else PASSED

    @property
    def passed(self) -> bool:
        return self.verdict == PASSED

    @property
    def sentence(self) -> str:
        """The verdict, and what is the same at the end."""
        kept = self.legs[-1].kept
        same = f"{kept.integers} quantized integers in {kept.constants} constants and {kept.scales} quantizations"
        ends = {PASSED: f"are the same after {len(self.legs)} conversions", NOT_EQUAL: "differ after the round trip"}
        return f"{format_text(Path(self.source).name)}: {self.verdict}: {same} {ends.get(self.verdict, 'could not all be run')}."

    def tables(self) -> tuple[Rows, ...]:
        """A row for each conversion, the problems, and the comparison of the outputs."""
        rows = [
            (leg.form, format_count(len(leg.differences), "difference") if leg.differences else "equal",
             f"{leg.kept.constants_equal} of {leg.kept.constants}",
             f"{leg.kept.scales_equal} of {leg.kept.scales}", format_share(min(o.equal for o in leg.outputs)) if leg.outputs else "not run")
            for leg in self.legs
        ]  # fmt: skip
        found = [(leg.form, word, format_sentence(text)) for leg in self.legs for word, texts in (
            ("problem", leg.problems), ("inconclusive", leg.unjudged), ("change", tuple(map(str, leg.changes))), ("note", leg.notes),
            ("arithmetic", tuple(filter(None, (leg.arithmetic, leg.explained)))), ("machine", leg.machine),
        ) for text in texts]  # fmt: skip
        found += [(self.form, "note", format_sentence(text)) for text in self.notes]
        return (
            Rows("Conversions", ("to", "graph", ">constants equal", ">scales equal", ">outputs equal"), tuple(rows)),
            Rows("What was found", ("of", "", "in words"), tuple(found)),
        )


_MOST = 1000
#: Bytes of a model's name that names of its files begin with: file systems take 255, what is after it included.
_LONGEST_STEM = 200
#: What onnxruntime, without optimizations, computes a quantized operator in.
_ARITHMETIC = {"onnx:qdq": "float results, quantized", "onnx:qoperator": "integer kernels"}
#: Words in a problem of the per-operator check that no difference of one step excuses.
_FAULTS = ("integers of", "off by", "reading error")


@dataclass(frozen=True, slots=True)
class _Form:
    """A format, its form or "", and the target that fits a graph to it with the fewest changes, or the one asked for."""

    format: Format
    form: str
    target: str

    def __str__(self) -> str:
        return f"{self.format.name}:{self.form}" if self.form else self.format.name

    @property
    def options(self) -> dict[str, Any]:
        """Of the format's writer."""
        return {"form": self.form} if self.form else {}


@with_checked_arguments
def roundtrip(
    model: Model,
    via: str,
    *,
    format: str = "",
    times: int = 1,
    target: str = "",
    keep: str | Path | None = None,
    samples: int = 3,
    seed: int = 0,
    kernels: str | Sequence[str] = (),
    progress: Progress = no_progress,
    **options: Unpack[ReadOptions],
) -> RoundtripReport:
    """Converts a model to another format and back, and compares structure, integers, scales and outputs after each conversion.

    Files are written with plain operators (checking/comparison_forms.py), so that graphs can be compared; what that changes is
    reported. Where the model's own format cannot be written, or cannot hold what came back, each file is only read back. Outputs come
    from random inputs, with onnxruntime's optimizations disabled. They must be equal; where the model and the file compute otherwise (QDQ
    and QOperator, LiteRT and onnxruntime), they may differ by 1 LSB (of a float output: 1/255 of its range), or by what roundings of
    single operators, each explained and of at most 1 LSB, add up to.

    Args:
        model: the file, its content as bytes, or a graph, which is written in the format that it was read from, or as ONNX, first.
        format: the name of its format, if suffix and content do not determine it.
        via: a format that can be written and read, and perhaps a form: "onnx:qdq", "onnx:qoperator", "torch:modules", "qgraph".
        times: how often there and back.
        target: what the files on the way are for; by default the target that changes least.
        keep: a folder for the files; they are deleted without.
        samples: how many random inputs.
        seed: of the random inputs.
        kernels: what runs the files, as in check(); onnxruntime's optimizations are off unless its kernels are named.
        progress: is called with (what, done, total).
        options: of the model's reader, such as input_shape.

    Raises:
        QConvertError: a file cannot be read, a format cannot hold the graph, or a file to keep exists.
    """
    if not 1 <= times <= _MOST:
        raise OptionError(f"the number of round trips must be from 1 to {_MOST}", rule="number-out-of-range")
    with as_file(model, format, runs=True) as path:
        source = source_format(path, "" if isinstance(model, Graph) else format)
        read = check_options(options, source.read_options, f"nothing that reads {source.name}")
        runs = {"samples": samples, "seed": seed, "kernels": _add_default_kernels(kernels)}
        trip = _plan_trip(path, source, _parse_form(via, target), read, runs)
        with _open_folder(keep) as folder:
            legs, notes = trip.make(folder, times, progress)
    return RoundtripReport(model_title(model), str(trip.own), str(trip.there), tuple(legs), tuple(notes))


def _plan_trip(model: Path, source: Format, there: _Form, read: Mapping[str, Any], runs: Mapping[str, Any]) -> _Trip:
    """The way of a file of the format `source`."""
    own = _Form(source, "", source.own_target or source.default_target)
    if source.write is not None:
        own = _parse_form(f"{source.name}:{_find_own_form(model)}" if source.name == "onnx" else source.name, "")
    return _Trip(model, own, there, [there, own] if source.write is not None else [there], read, runs)


def _add_default_kernels(kernels: str | Sequence[str]) -> tuple[str, ...]:
    """The kernels asked for, with what runs .onnx files where the user does not say."""
    asked = list_kernels(kernels)
    default = () if any("onnx" in runtime.formats for runtime, _ in asked) else ("onnxruntime:unoptimized",)
    return (*(f"{runtime.name}:{name}" for runtime, name in asked), *default)


@dataclass(slots=True)
class _Trip:
    """A round trip and the forms that it still goes through, in order.

    `read` has the options of the model's reader, `runs` those of check(): how often files are run, on which inputs, and by what.
    """

    model: Path
    own: _Form
    there: _Form
    stations: list[_Form]
    read: Mapping[str, Any]
    runs: Mapping[str, Any]

    def make(self, folder: Path, times: int, progress: Progress) -> tuple[list[Leg], list[str]]:
        """The conversions, and notes on how they were made."""
        graph = load(self.model, self.own.format.name, **self.read)
        own_rounding = _count_own_roundings(graph)
        references = [_predict_graph(graph, self.there)]
        references += [_predict_graph(references[0], self.own)] * (len(self.stations) - 1)
        legs: list[Leg] = []
        notes: list[str] = []
        for _ in range(times):
            for station, reference in list(zip(self.stations, references, strict=False)):
                path = folder / _file_name(self.model, len(legs) + 1, station)
                try:
                    graph, changes, said = _write_and_read(graph, station, path)
                except UnsupportedError as error:
                    if station is self.there:
                        raise
                    notes.append(f"{self.own} cannot hold the graph after the round trip, which is only read: {error.sentence}")
                    self.stations = [self.there]
                    continue
                rounds_otherwise = _count_own_roundings(graph) < own_rounding
                legs.append(self._compare_leg(reference, graph, station, path, changes, said, rounds_otherwise))
                progress("conversions", len(legs), max(len(legs), times * len(self.stations)))
        return legs, notes

    def _compare_leg(
        self,
        reference: Graph,
        graph: Graph,
        station: _Form,
        path: Path,
        changes: tuple[Change, ...],
        notes: tuple[str, ...],
        rounds_otherwise: bool,
    ) -> Leg:
        """Compares the reference and the graph read from `path`, and the outputs of `path` with the model's.

        `rounds_otherwise` says that the file lost a rounding that the model has.
        """
        reference, graph = _to_common_form(reference, graph, self.there)
        differences = tuple(diff(reference, graph))
        kept = _count_kept(reference, graph)
        problems = []
        if differences:
            problems.append(f"the graph differs in {len(differences)} places, the first: {differences[0]}")
        if kept.constants_equal < kept.constants:
            problems.append(f"{kept.constants - kept.constants_equal} of {kept.constants} constants differ")
        if kept.scales_equal < kept.scales:
            problems.append(f"{kept.scales - kept.scales_equal} of {kept.scales} quantized tensors have other scales or zero points")
        names = [form.format.name for form in (self.own, station)]
        unrunnable = [name for name in names if not any(name in item.formats for item in runtimes().values())]
        if unrunnable:
            arithmetic = f"no runtime runs {unrunnable[0]} files"
            return Leg(str(station), path.name, changes, notes, differences, kept, (), arithmetic, "", tuple(problems))
        arithmetic = ""
        if str(self.own) != str(station):
            arithmetic = " compared with ".join(_ARITHMETIC.get(str(form), "LiteRT's kernels") for form in (self.own, station))
        elif self.there.format.name == "tflite" and self.own.format is not self.there.format:
            arithmetic = "the model compared with its TFLite operators"
        elif rounds_otherwise:
            arithmetic = "the model's own rounding of ties compared with plain operators"
        report, explained, wrong, unjudged = self._check_outputs(path, arithmetic)
        lost, outputs = (*problems, *wrong), report.outputs
        return Leg(
            str(station), path.name, changes, notes, differences, kept, outputs, arithmetic, explained, lost, unjudged, report.machine
        )

    def _check_outputs(self, path: Path, arithmetic: str) -> tuple[CheckReport, str, list[str], tuple[str, ...]]:
        """The check of the outputs, the operators that explain a difference, problems, and what could not be judged."""
        options = {**self.runs, "source_format": self.own.format.name, **self.read}
        report = check(self.model, path, quick=True, max_lsb=float("inf"), **options)  # how much they differ is judged below
        differing = [item for item in report.outputs if item.differs]
        if not differing:
            return report, "", list(report.problems), report.unjudged
        largest = max(to_lsb(item) for item in differing)
        said = f"{len(differing)} of {len(report.outputs)} outputs differ, by up to {largest:.3g} LSB"
        try:
            found = check(self.model, path, per_op=True, min_sqnr=float("-inf"), **options)
        except QConvertError as error:
            return report, "", [*report.problems, f"{said}; the operators cannot be compared: {error.sentence}"], report.unjudged
        explained = _summarize_differences(found)
        if not arithmetic:
            problem = f"{said}, although both files compute alike ({explained or 'no operator differs alone'})"
            return report, explained, [*report.problems, problem], report.unjudged
        unexplained = [text for text in found.problems if largest > 1 or any(words in text for words in _FAULTS)]
        steps = max((op.largest for op in found.operators if op.verdict == "one rounding"), default=0)
        if largest > 1 and (not explained or steps > 1):
            unexplained.append("rounding in single operators does not explain it")
        unjudged = tuple(dict.fromkeys((*report.unjudged, *found.unjudged)))
        return report, explained, [*report.problems, *(f"{said}: {text}" for text in unexplained)], unjudged


def _count_own_roundings(graph: Graph) -> int:
    """How many operators round as the kernels of one runtime do."""
    return sum(bool(op.attributes.get("arithmetic")) for op in graph.ops)


def _fit_graph(graph: Graph, station: _Form, *observers: Observer) -> tuple[Graph, tuple[Change, ...]]:
    """The graph as it is written in a form, with plain operators, and what was changed for that."""
    graph, changes = normalize(graph, target_named(station.target) if station.target else None, observers=observers, numerics="fast")
    graph, notes = to_plain_form(graph)
    return graph, (*changes, *name_changes(notes, by="plain"))


def _predict_graph(graph: Graph, station: _Form) -> Graph:
    """The graph as a file of a form should be read."""
    return normal_form(_fit_graph(graph, station)[0], station.format)


def _to_common_form(reference: Graph, graph: Graph, there: _Form) -> tuple[Graph, Graph]:
    """What was to be written and what was read, in one form."""
    graph, _ = to_plain_form(graph)  # a reader says how its format's kernels round
    if there.format.name != "tflite":
        return reference, graph
    return to_plain_form(to_comparison_form(reference))[0], to_plain_form(to_comparison_form(graph))[0]


def _file_name(model: Path, number: int, station: _Form) -> str:
    form, suffix = f".{station.form}" if station.form else "", station.format.suffix_for(station.options)
    is_short = len(os.fsencode(model.stem)) <= _LONGEST_STEM
    stem = model.stem if is_short else model.stem[: _LONGEST_STEM // 4]  # a character has up to 4 bytes
    return f"{stem}.{number}{form}{suffix}"


def _write_and_read(graph: Graph, station: _Form, path: Path) -> tuple[Graph, tuple[Change, ...], tuple[str, ...]]:
    """Write the graph in a form and read it back; return also the changes for the form and the writer's notes."""
    if path.exists():
        raise FileAccessError("already exists", file=str(path), remedy="Name another folder with --keep.", rule="file-exists")
    declared = Declared(graph)
    fitted, changes = _fit_graph(graph, station, declared)
    refuse_violations(fitted, target_named(station.target) if station.target else None)
    notes = save(fitted, path, station.format.name, provenance=declared.provenance(fitted), **station.options)
    return load(path, station.format.name), changes, tuple(note.text for note in notes)


def _parse_form(via: str, target: str) -> _Form:
    """The format, form and target that `via` and `target` name; by default the target that changes least."""
    name, _, form = via.partition(":")
    found = format_named(name)
    if found.read is None or found.write is None:
        way = "written" if found.write is None else "read"
        reason = "is of checkpoints, which have no operators" if found.repack is not None else f"cannot be {way}"
        raise OptionError(f"the format {name} {reason}; a round trip requires a format of models", rule=f"format-not-{way}")
    if form and not found.forms:
        raise OptionError(f"the format {name} has no forms, but {form!r} is given", rule="no-forms")
    if form and form not in found.forms:
        raise OptionError(f"{name} has no form {form!r}", remedy=f"Use {' or '.join(found.forms)}.", rule="unknown-form")
    form = form or next(iter(found.forms), "")
    if target and target_named(target).format != name:
        raise OptionError(f"the target {target} is for {target_named(target).format} files, not {name}", rule="target-of-other-format")
    chosen = chosen_target(found, target or (found.own_target if found.form_of is None else ""), form)
    return _Form(found, form, chosen.name if chosen is not None else "")


def _find_own_form(path: Path) -> str:
    """The form in which an ONNX file is written again."""
    from qconvert.formats.onnx.container import form_of

    return "qoperator" if form_of(path) == "QOperator" else "qdq"


@contextmanager
def _open_folder(keep: str | Path | None) -> Iterator[Path]:
    """The folder for the files: the user's, or one that is removed."""
    if keep is None:
        with temporary_folder() as name:
            yield Path(name)
        return
    folder = Path(keep)
    made = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise FileAccessError(
            f"cannot be used as a folder: {getattr(error, 'strerror', '') or error}", file=str(keep), rule="not-writable"
        ) from error
    try:
        yield folder
    finally:
        with suppress(OSError):  # those that hold files stay
            for place in made:
                place.rmdir()


def _count_kept(a: Graph, b: Graph) -> Kept:
    """Counts over the tensors of `a` and their partners in `b`."""
    names = pair_tensors(a, b)
    constants = list(a.constants())
    quantized = [tensor for tensor in a.tensors.values() if tensor.quantization is not None]
    partners = {tensor.name: b.tensors.get(names.get(tensor.name, "")) for tensor in (*constants, *quantized)}
    same = [t for t in constants if (other := partners[t.name]) is not None and t.dtype == other.dtype and equal_data(t.data, other.data)]
    scaled = [t for t in quantized if (other := partners[t.name]) is not None and t.quantization == other.quantization]
    integers = sum(tensor.data.size for tensor in quantized if tensor.data is not None)
    return Kept(len(constants), len(same), integers, len(quantized), len(scaled))


def _summarize_differences(report: CheckReport) -> str:
    """The operators that differ by themselves, by class."""
    counts = Counter(f"{op.verdict} ({op.reason})" if op.reason else op.verdict for op in report.operators if op.equal < 1)
    return ", ".join(f"{count} operator{'s' * (count > 1)}: {name}" for name, count in counts.most_common())
