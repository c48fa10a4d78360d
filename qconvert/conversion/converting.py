"""convert(): from one model file to another, with options that are sorted by who takes them."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from qconvert.arguments import Progress, no_progress, with_checked_arguments
from qconvert.conversion.in_memory import Model, as_file, model_title
from qconvert.conversion.judging import LIMIT, Declared, Written, read_back, refuse_losses
from qconvert.conversion.loading import load
from qconvert.conversion.loading import source_format as source_format_of
from qconvert.conversion.normalizing import Observer, chosen_target, normalize, run_passes
from qconvert.conversion.report import ConversionReport, carried_over, on_floats, provenance, refuse_floats, remarks
from qconvert.conversion.saving import ScalesFile, require_entries, require_place, target_with_scales, write_file
from qconvert.errors import OptionError, WrongFormatError, name_file_in_errors
from qconvert.garbage import collect_rarely
from qconvert.graph import Graph, Op, count_kinds
from qconvert.graph.metadata import COMMAND, CORRESPONDENCE, SIDE_FILE
from qconvert.graph.names import quote_nearest
from qconvert.operators.opaque import custom_name, is_custom
from qconvert.operators.shapes_and_functions import all_ops, is_quantized
from qconvert.plugins import (
    Change,
    Format,
    Option,
    Target,
    declared_options,
    encodings_format_of,
    format_named,
    format_of,
    formats,
    name_changes,
    pass_named,
    target_named,
)
from qconvert.plugins import passes as known_passes
from qconvert.plugins.options import ConvertOptions, check_options, json_object, pick_declared
from qconvert.plugins.rules import join_words
from qconvert.rewriting.claims import write_claims
from qconvert.targets.audit import audit, refuse_violations

if TYPE_CHECKING:
    from qconvert.conversion.verifying import Verifier

#: What convert() takes besides options.
KEYWORDS = ("target", "force", "passes", "encodings", "min_tensor_sqnr")


class Given(NamedTuple):
    """What each part of a conversion takes: the source's reader, the passes, the result's writer."""

    read: Mapping[str, Any]
    passes: Mapping[str, Any]
    write: Mapping[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any], reader: Format, writer: Format, passes: Sequence[str], target: Target | None) -> Given:
        """Sorts options; one at its default may be given to any conversion.

        Raises:
            OptionError: nobody declares an option, nothing in this conversion takes it, or its value is wrong.
        """
        names = (*passes, *(target.passes if target is not None else ()))
        of_passes = [option for name in names for option in pass_named(name).options]
        taking = {"read": reader.read_options, "passes": of_passes, "write": writer.write_options}
        known = {option.name: option for declared in taking.values() for option in declared}
        idle = declared_options()
        set_here = {name: value for name, value in options.items() if name in known or name not in idle or value != idle[name].default}
        who = f"nothing in a conversion from {reader.name} to {writer.name}"
        try:
            given = check_options(set_here, known.values(), who)
        except OptionError as error:
            if others := _takers(set_here, known):
                error.remedy = f"{others} {error.remedy}"
            elif unknown := [name for name in set_here if name not in known]:
                error.reason = f"{who} takes the option {quote_nearest(unknown[:1], (*known, *KEYWORDS))}"
            raise
        own = {} if target is None else check_options(target.write_options, writer.write_options, f"nothing that writes {writer.name}")
        found = {part: pick_declared(given, declared) for part, declared in taking.items()}
        return cls(found["read"], {**pick_declared(own, of_passes), **found["passes"]}, {**own, **found["write"]})


def with_encodings(options: Mapping[str, Any], passes: Sequence[str], reader: Format) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options and passes of a conversion that applies a file of encodings: the pass that does stands first.

    Options of the reader of encodings go to the pass; what the source's reader takes too is meant for that.

    Raises:
        QConvertError: the file cannot be read, or is of no format of encodings.
    """
    found = dict(options)
    if not found.get("encodings"):
        return found, tuple(passes)
    own = {option.name for option in encodings_format_of(Path(found["encodings"]), is_read=True).read_options}
    own -= {option.name for option in reader.read_options}
    stated = {name: os.fspath(found.pop(name)) for name in own & found.keys()}
    if stated:
        found["encodings_options"] = json.dumps(stated)
    return found, (*(["apply_encodings"] if "apply_encodings" not in [item.partition(":")[0] for item in passes] else []), *passes)


def files_of(given: Mapping[str, Any]) -> dict[str, Path]:
    """The files that options name which are read next to the source, by the option."""
    known = declared_options()
    stated = {**given, **json_object("encodings_options", given.get("encodings_options", "{}"))}
    return {name: Path(value) for name, value in stated.items() if value and name in known and known[name].is_file}


def _takers(given: Mapping[str, Any], known: Mapping[str, Option]) -> str:
    """Who takes the first option that is not known here, as a sentence; "" if nobody does."""
    name = next((name for name in given if name not in known), "")
    found = [f"writing {item.name}" for item in formats().values() if name in {option.name for option in item.write_options}]
    found += [f"reading {item.name}" for item in formats().values() if name in {option.name for option in item.read_options}]
    found += [f"the pass {item.name}" for item in known_passes().values() if name in {option.name for option in item.options}]
    return f"It belongs to {join_words(found)}." if found else ""


@with_checked_arguments
def convert(
    source: Model,
    result: str | Path,
    *,
    source_format: str = "",
    result_format: str = "",
    target: str = "",
    force: bool = False,
    passes: Sequence[str] = (),
    min_tensor_sqnr: float = LIMIT,
    verify_each: bool = False,
    observer: Observer | None = None,
    progress: Progress = no_progress,
    **options: Unpack[ConvertOptions],
) -> ConversionReport:
    """Converts a model file to another format, normalized for a target.

    Args:
        source: the file, its content as bytes, or a graph.
        result: the file to write; of some formats (mnn) a folder where it has none of their suffixes.
        source_format, result_format: names of formats; by default the suffixes decide.
        target: the name of a target of the result's format; "" for the format's default, or its own if the source has it too.
        force: whether an existing result may be replaced.
        passes: names of passes to run, in this order, after reading and before the target's own; docs/passes.md lists them. A name brings
            options of its pass: "power_of_two:rounding=mse".
        min_tensor_sqnr: the signal-to-noise ratio, in decibels, below which no step of the conversion may bring a tensor: neither those
            named in `passes` nor those of the target.
        verify_each: whether the model is run on random inputs before and after each pass, which must change no more than it declares.
        observer: is called after each pass with the pass, the graph before and after it, and the texts of its changes.
        progress: is called with (layer, done, total) while a checkpoint becomes one of another tool.
        options: of the source's reader, of the passes and of the result's writer. `qconvert passes` and `qconvert formats` list them; those
            of the built-in ones are
            io_layout: "nchw" gives 4-D inputs and outputs channels first, "nhwc" last; "" keeps the source's layout;
            io: "float" makes quantized inputs and outputs float; "integer" makes float ones that are quantized at once integers;
            opset: the ONNX opset; 0 for the default;
            numerics: "exact" takes the forms that are equal to the source's default kernels wherever such a form is cheap; "strict" those
            that cost more too: functions of one tensor of 8 bits become tables; "fast" always takes the form that the target runs fastest;
            custom: operators that only a program registers (TFLite's custom ones, nodes of other domains than ONNX's and onnxruntime's):
            "carry" takes them over as they are, with a warning, and refuses what a compiler has made; "refuse" refuses all, "keep" none;
            no_float: whether operators of a quantized model that would run in float (no scale, or no integer kernel) are an error;
            external_data: whether the constants of an ONNX result go to a separate file even if they are less than 1 GiB;
            form: "qdq", "qoperator" or "qonnx", the form of an ONNX result, "" for qdq; of a PyTorch result "program" or "modules", "" for
            what the suffix says;
            requantize: whether weights of a checkpoint for which another tool's has no room become the nearest that have;
            freeze: whether TorchScript is one function, without the modules around its constants.

    Raises:
        QConvertError: anything that the user can cause; nothing is written then.
        InternalError: with verify_each, a pass changed more than it declares.
    """
    writer = format_named(result_format) if result_format else format_of(Path(result))
    with collect_rarely(), as_file(source, source_format) as path:
        report = _convert_file(
            path,
            writer.result_path(result),
            writer,
            source_format="" if isinstance(source, Graph) else source_format,  # a graph's file says it
            target=target,
            force=force,
            passes=passes,
            min_tensor_sqnr=min_tensor_sqnr,
            verify_each=verify_each,
            observer=observer,
            progress=progress,
            options=options,
        )
    return replace(report, source=model_title(source))


def _convert_file(
    source: Path,
    result: Path,
    writer: Format,
    *,
    source_format: str,
    target: str,
    force: bool,
    passes: Sequence[str],
    min_tensor_sqnr: float,
    verify_each: bool,
    observer: Observer | None,
    progress: Progress,
    options: Mapping[str, Any],
) -> ConversionReport:
    """What convert() does with a file."""
    started = time.perf_counter()
    reader = source_format_of(source, source_format)
    form = _form(writer, result, target, options)
    if writer.repack is not None:
        from qconvert.conversion.checkpoints import converted_checkpoint, repacks

        if repacks(source, writer, options):
            return converted_checkpoint(
                source, result, reader, writer, options, force=force, target=target, passes=passes, progress=progress
            )  # fmt: skip
    own = writer.own_target if reader is writer and not form and not options.get("encodings") else ""
    scales = ScalesFile.of(writer, options)
    chosen = target_with_scales(chosen_target(writer, target or own, form), writer, scales)
    _require_suffix(source, result, reader, writer)
    require_place(result, writer, force=force, reads=[source])
    options, passes = with_encodings(options, passes, reader)
    given = Given.of(options, reader, writer, passes, chosen)
    named = files_of({**given.read, **given.passes})
    loaded = _load_source(source, source_format, given.read, result, writer)
    require_entries(loaded, writer)
    others = reader.companions(source) if reader.companions else ()
    reads = (source, *named.values(), *others)
    require_place(result, writer, force=force, reads=reads)
    if scales is not None:
        scales.require_place(result, force=force, reads=reads)
    verifier = _verifier(loaded) if verify_each else None
    declared = Declared(loaded)
    observers = [item for item in (observer, verifier, declared) if item is not None]
    graph, changes = _fit_to_target(loaded, passes, chosen, min_tensor_sqnr, observers, given.passes)
    origin = {
        **provenance(source, others, chosen, changes, passes, {**given.read, **given.passes, **given.write}, named),
        **declared.provenance(graph),
        CORRESPONDENCE: write_claims(loaded, graph),
        **_note_scales_and_command(chosen, graph, result, scales),
    }
    with name_file_in_errors(source):
        written, notes = _write(graph, result, writer, chosen, scales, given, force=force, provenance=origin, reads=reads)
    command = _next_command(chosen, graph, str(result), str(scales.path) if scales is not None else "")
    return ConversionReport(
        source=str(source),
        result=str(result),
        source_format=reader.name,
        result_format=writer.name,
        changes=(
            *name_changes(remarks(loaded), by=reader.name),
            *changes,
            *notes,
            *([Change(command, by=chosen.name)] if chosen and command else []),
        ),
        kept=carried_over(loaded),
        seconds=time.perf_counter() - started,
        provenance=origin,
        verified=tuple(verifier.said) if verifier is not None else (),
        scales=str(scales.path) if scales is not None else "",
        source_operators=len(_computing_ops(loaded)),
        files={name: str(path) for name, path in named.items() if name in given.read or name == "encodings"},
        **_describe_graph(written, chosen),
    )


def _verifier(graph: Graph) -> Verifier:
    from qconvert.conversion.verifying import Verifier

    return Verifier(graph)


def _write(
    graph: Graph, result: Path, writer: Format, target: Target | None, scales: ScalesFile | None, given: Given, **places: Any
) -> tuple[Graph, tuple[Change, ...]]:
    """Write the graph, and give it as the file has it, with the notes of its writer.

    Args:
        graph, result, writer, target, scales: of the conversion.
        given: the options of its parts.
        places: see write_file().

    Raises:
        QConvertError: it cannot be written, or operators run in float where that is refused.
    """
    written = Written(graph, "the scales are in a file of their own")

    def judge(path: Path, real: Graph, checked: Any) -> None:
        nonlocal written
        written = written if scales is not None else read_back(path, writer, real, checked)
        if given.passes.get("no_float") and target is not None and target.knows_kernels:
            refuse_floats(written.graph, target)

    notes = write_file(graph, result, writer, judge=judge, **places, **given.write)
    if written.unread:
        notes += name_changes([f"note: operators were counted before they were written: {written.unread}"], by=writer.name)
    return written.graph, notes


def _load_source(source: Path, source_format: str, options: Mapping[str, Any], result: Path, writer: Format) -> Graph:
    """The source's graph; an error for a file of another format says which command takes it."""
    try:
        return load(source, source_format, **options)
    except WrongFormatError as error:
        error.remedy = f"Use `{_command(error.found, writer.name, source, result)}`."
        raise


def _fit_to_target(
    graph: Graph,
    passes: Sequence[str],
    target: Target | None,
    min_tensor_sqnr: float,
    observers: list[Observer],
    options: Mapping[str, Any],
) -> tuple[Graph, tuple[Change, ...]]:
    """The graph after the passes that the user named and those of the target, and what they changed.

    Raises:
        QConvertError: they lose too much, or the target does not take the result.
    """
    graph, by_hand = run_passes(graph, passes, target, observers=observers, **options)
    graph, changes = normalize(graph, target, observers=observers, **options)
    changes = (*by_hand, *changes)
    refuse_losses(changes, min_tensor_sqnr)
    refuse_violations(graph, target)
    return graph, changes


def _note_scales_and_command(target: Target | None, graph: Graph, result: Path, scales: ScalesFile | None) -> dict[str, str]:
    """What the metadata of a result say of the file of its scales, and of the command that makes both run."""
    named = {f"{SIDE_FILE}{scales.option}": scales.path.name} if scales is not None else {}
    command = _next_command(target, graph, result.name, scales.path.name if scales is not None else "")
    return {**named, **({COMMAND: command} if command else {})}


def _next_command(target: Target | None, graph: Graph, model: str, scales: str) -> str:
    """The command that a user runs next to make a result run; "" where its target has none."""
    return target.command(graph, model, scales) if target is not None and target.command is not None else ""


def _describe_graph(graph: Graph, target: Target | None) -> dict[str, Any]:
    """What a report says of the result's graph."""
    return {
        "target": target.name if target else "",
        "operators": dict(count_kinds(_computing_ops(graph)).most_common()),
        "quantized": is_quantized(graph),
        "on_floats": on_floats(graph, target),
        "audit": audit(graph, target) if target and target.knows_kernels else (),
        "custom": dict(Counter(custom_name(op) for op in all_ops(graph) if is_custom(op)).most_common()),
    }


def _computing_ops(graph: Graph) -> list[Op]:
    """The operators of a graph and its functions, without those that compute nothing."""
    return [op for op in all_ops(graph) if op.kind not in ("Call", "Reinterpret")]


def _form(writer: Format, result: Path, target: str, options: Mapping[str, Any]) -> str:
    """Which of its format's forms a result gets: the one stated, the target's, or what its name says; "" where there is one form."""
    if writer.form_of is None:
        return ""
    return writer.form_of(result, {**(target_named(target).write_options if target else {}), **options})


def _require_suffix(source: Path, result: Path, reader: Format, writer: Format) -> None:
    """Raises OptionError for a result whose name says another format than the one that is written."""
    suffix = result.suffix.lower()
    named = next((item for item in formats().values() if suffix in item.suffixes and item.write is not None), None)
    if named is None or suffix in writer.suffixes:
        return
    raise OptionError(
        f"the suffix {result.suffix} is that of the format {named.name}, but the format {writer.name} would be written",
        file=str(result),
        remedy=f"Use `{_command(reader.name, named.name, source, result)}`, or a name that ends in {writer.suffixes[0]}.",
        rule="suffix-contradicts",
    )


def _command(source_format: str, result_format: str, source: Path, result: Path) -> str:
    return f"qconvert {source_format}2{result_format} {shlex.quote(str(source))} {shlex.quote(str(result))}"
