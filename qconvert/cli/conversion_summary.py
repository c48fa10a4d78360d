"""The summary of a conversion in a few lines: kept values, changes and their cost, operators in float, next steps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qconvert.errors import format_count, format_verb
from qconvert.operators import KINDS
from qconvert.plugins import formats, runtimes

if TYPE_CHECKING:
    from qconvert.conversion import ConversionReport
    from qconvert.plugins import Change


#: So many kinds of operators are named.
_NAMED = 4
#: A summary has no more lines.
_MOST = 8


def summary(report: ConversionReport, verbose: bool) -> list[str]:
    """Return the lines that a conversion prints.

    Args:
        report: of the conversion.
        verbose: whether each step has a line, and each kind of operator that does not run on integers.
    """
    counts = ", ".join(f"{count} {what}" for what, count in report.kept.items() if count)
    first = [f"{report.source} -> {report.result}" + (f" for {report.target}" if report.target else "")]
    if counts:
        first.append(f"kept: {counts}; none was changed" if report.kept_all else f"read: {counts}")
    verified = [f"verified: {name} {finding}" for name, finding in report.verified]
    changes = [change for change in report.changes if change.by != report.target]  # the commands of a target are among the hints
    if verbose:
        reasons = [f"  {line}" for line in report.audit]
        took = f"took {report.seconds:.2f} s"
        return [*first, *map(str, changes), *verified, _result(report), *reasons, took, *_hints(report)]
    last = [*verified, _result(report), *_hints(report)]
    exact = dict.fromkeys(change.by for change in changes if _is_plain(change))
    steps = [f"exact steps: {', '.join(exact)}"] if exact else []
    others = sorted((change for change in changes if not _is_plain(change)), key=_rank)
    room = max(1, _MOST - len(first) - len(steps) - len(last))
    shown = others if len(others) <= room else others[: room - 1]
    steps += [_line(change) for change in shown]
    if len(others) > len(shown):
        steps.append(f"and {len(others) - len(shown)} more changes, which --verbose lists")
    return [*first, *steps, *last]


def _is_plain(change: Change) -> bool:
    """Whether a change is an exact step that a user need not read of."""
    return change.exact and not change.code and not _is_note(change)


def _is_note(change: Change) -> bool:
    return change.text.startswith(("note:", "warning:"))


def _rank(change: Change) -> int:
    """What a user reads first: warnings, what costs something, then what else is not exact."""
    if change.code or change.text.startswith("warning:"):
        return 0
    return 1 if change.costs else 2 if not _is_note(change) else 3


def _line(change: Change) -> str:
    return change.text if _is_note(change) else f"{change.by}: {change.text}"


def _result(report: ConversionReport) -> str:
    """What runs on integers, counted in the written file, and how many operators were added."""
    if report.scales:
        return f"runs: a float model, whose scales are in {report.scales}"
    if _is_of_weights(report):
        return f"wrote: a checkpoint, {report.result_format}, in {report.seconds:.1f} s"
    total, floats = sum(report.operators.values()), sum(report.on_floats.values())
    grown = f"; the source has {format_count(report.source_operators, 'operator')}" if report.source_operators != total else ""
    if not report.quantized:
        return f"runs: {format_count(total, 'operator')}, nothing is quantized{grown}"
    if not floats:
        return f"runs: all {total} operators on integers{grown}"
    kinds = [f"{count} {kind}" for kind, count in sorted(report.on_floats.items(), key=lambda item: (-item[1], item[0]))]
    more = f" and {format_count(len(kinds) - _NAMED, 'more kind')}" if len(kinds) > _NAMED else ""
    named = f"{floats} in float ({', '.join(kinds[:_NAMED])}{more})"
    if report.audit and not any(line.integer for line in report.audit):  # the integers are weights, and float operators compute
        return f"runs: no operator on integers, {named}; {total - floats} dequantize, or move data and sizes{grown}"
    conversions = sum(count for kind, count in report.operators.items() if kind in KINDS and KINDS[kind].rule == "convert")
    only = f" ({conversions} only {format_verb(conversions, 'convert')})" if conversions else ""
    return f"runs: {total - floats} of {total} operators on integers{only}, {named}{grown}"


def _hints(report: ConversionReport) -> Iterator[str]:
    """An option and a target that are faster on this CPU, and the command to run next: a check where something runs both files."""
    from qconvert.graph.metadata import OPTIONS, SIDE_FILE, read_entries
    from qconvert.runtimes.onnx_rewrites import has_vnni

    is_guarded = report.target == "ort-x86" and any(change.by == "guard_saturation" for change in report.changes)
    options = read_entries(report.provenance, OPTIONS).get("options")
    is_chosen = isinstance(options, dict) and options.get("weights_by_cpu")
    if is_guarded and not is_chosen and has_vnni():
        yield (
            "faster on this CPU, which has VNNI, and as exact (most convolutions 2 to 3 times as fast, products of matrices up to 1.1 "
            "times): the same command with --target ort-x86-vnni --force, or for CPUs with and without VNNI, with "
            "-O weights_by_cpu=true --force"
        )
    yield from (_line(change) for change in report.changes if change.by == report.target)
    if {"-", "nothing"}.intersection((report.source, report.result)) or report.scales:
        return
    made = _file_of(report)
    if not made:
        return
    source, result = shlex.quote(report.source), shlex.quote(made)
    if _is_of_weights(report):
        if not formats()[report.result_format].suffixes:
            yield f"next: qconvert diff {source} {result}"
        return
    loaded = {name for runtime in runtimes().values() for name in runtime.formats}
    if {report.source_format, report.result_format} <= loaded:
        if f"{SIDE_FILE}encodings" in report.provenance and "encodings" not in report.files:  # those of a calibration, which are gone
            yield "next: the same command with --scales scales.json --force, since a check needs the scales"
            return
        options = "".join(f" --{name.replace('_', '-')} {shlex.quote(path)}" for name, path in report.files.items())
        yield f"next: qconvert check {source} {result}{options}"
    elif formats()[report.result_format].read is not None:
        yield f"next: qconvert inspect {result}"


def _is_of_weights(report: ConversionReport) -> bool:
    """Whether a checkpoint was converted, which has no operators; a network without operators is another thing."""
    return formats()[report.result_format].repack is not None and not report.operators


def _file_of(report: ConversionReport) -> str:
    """The result's file; of a folder the one in it that a runtime loads; "" if that was not made."""
    writer = formats()[report.result_format]
    if not writer.makes_folder(Path(report.result)):
        return report.result
    made = [Path(report.result, name) for name in writer.folder if name.endswith(writer.suffixes)]
    return next((str(path) for path in made if path.is_file()), "")
