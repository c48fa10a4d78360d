"""The last lines of a conversion: what the result is, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qconvert.plugins import formats, runtimes

if TYPE_CHECKING:
    from qconvert.conversion import ConversionReport

__all__ = ["closing"]

#: So many kinds of operators are named.
_NAMED = 4


def closing(report: ConversionReport) -> Iterator[str]:
    """One sentence on the result and the next command, and before it a target that is faster on this CPU."""
    from qconvert.runtimes.saturation import has_vnni

    if report.target == "ort-x86" and has_vnni():
        yield "this CPU has VNNI, on which the target ort-x86-vnni is faster and as exact: --target ort-x86-vnni"
    yield f"{_result(report)}.{_next(report)}"


def _result(report: ConversionReport) -> str:
    if report.scales:
        return f"A float model, whose scales are in {report.scales}"
    total, real = sum(report.operators.values()), sum(report.on_floats.values())
    if not report.quantized:
        return f"Not quantized: nothing has a scale, {real} of {total} operators {'runs' if real == 1 else 'run'} on floats"
    if not real:
        return f"All integer: none of the {total} operators runs on floats"
    kinds = [f"{count} {kind}" for kind, count in sorted(report.on_floats.items(), key=lambda item: (-item[1], item[0]))]
    more = f" and {len(kinds) - _NAMED} more kinds" if len(kinds) > _NAMED else ""
    return f"Mixed: {real} of {total} operators {'runs' if real == 1 else 'run'} on floats ({', '.join(kinds[:_NAMED])}{more})"


def _file_of(report: ConversionReport) -> str:
    """The result's file; of a folder the one in it that a runtime loads; "" if that was not made."""
    writer = formats()[report.result_format]
    if not writer.makes_folder(Path(report.result)):
        return report.result
    made = [Path(report.result, name) for name in writer.folder if name.endswith(writer.suffixes)]
    return next((str(path) for path in made if path.is_file()), "")


def _next(report: ConversionReport) -> str:
    """What to run next: a check where something runs both files; nothing in a dry run, whose result is "nothing"."""
    if {"-", "nothing"}.intersection((report.source, report.result)) or report.scales:
        return ""
    made = _file_of(report)
    if not made:
        return ""
    source, result = shlex.quote(report.source), shlex.quote(made)
    loaded = {name for runtime in runtimes().values() for name in runtime.formats}
    is_there = all(Path(path).exists() for path in report.files.values())  # scales of a calibration may have been for the conversion alone
    if {report.source_format, report.result_format} <= loaded and is_there:
        beside = "".join(f" --{name.replace('_', '-')} {shlex.quote(path)}" for name, path in report.files.items())
        return f" Next: qconvert check {source} {result}{beside}"
    return f" Next: qconvert inspect {result}" if formats()[report.result_format].read is not None else ""
