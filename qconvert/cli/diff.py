"""The command `diff`: how two models' graphs differ, by subjects, and line by line on request."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from qconvert.cli.documents import print_document
from qconvert.cli.exit_codes import NOT_EQUAL
from qconvert.cli.flags import DebugFlag, FromFlag, JsonFlag, ToFlag
from qconvert.errors import format_count, printable

__all__ = ["add_diff_command", "summary_of"]

#: Differences of no subject below, as many are listed without --all.
_MOST = 10
#: Subject -> what lines of it look like. The first that fits counts.
_SUBJECTS = (
    ("operators that only the first has", re.compile(r"- (?!tensor|function|state)(?P<kind>\S+)")),
    ("operators that only the second has", re.compile(r"\+ (?!tensor|function|state)(?P<kind>\S+)")),
    ("layout", re.compile(r".*: data_format (?P<kind>\S+ -> \S+)$")),
    ("shapes", re.compile(r"tensor .*: shape \(.*\) -> \(.*\)$")),
    ("types of storage", re.compile(r"tensor .*: type (?P<kind>\S+ -> \S+)$")),
    ("zero points", re.compile(r"tensor .*zero points? ")),
    ("scales", re.compile(r"tensor .*scales? ")),
    ("constants", re.compile(r"tensor .*: (data of|\d+ of \d+ elements differ)")),
)


def summary_of(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a line for each subject in which two graphs differ, and the differences that are of none.

    Args:
        lines: of diff().
    """
    counts: dict[str, Counter[str]] = {}
    others = []
    for line in lines:
        for subject, pattern in _SUBJECTS:
            if found := pattern.match(line):
                counts.setdefault(subject, Counter())[found.groupdict().get("kind") or ""] += 1
                break
        else:
            others.append(line)
    listed = [(subject, counts[subject]) for subject, _ in _SUBJECTS if subject in counts]
    return [f"{subject}: {_counts_text(found)}" for subject, found in listed], others


def _counts_text(found: Counter[str]) -> str:
    if set(found) == {""}:
        return format_count(found[""], "tensor")
    return ", ".join(f"{count} {kind}" for kind, count in found.most_common())


def _diff(
    a: Annotated[Path, typer.Argument(help="The model before.")],
    b: Annotated[Path, typer.Argument(help="The model after; one of both may be -, with --from or --to.")],
    source_format: FromFlag = "",
    result_format: ToFlag = "",
    all_: Annotated[bool, typer.Option("--all", help="Print every difference, one in each line.")] = False,
    json: JsonFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Say how two models' graphs differ. Exit code 1 if they do."""
    from qconvert import diff
    from qconvert.cli.streams import read_both

    with read_both(a, b, source_format, result_format) as (before, after):
        lines = diff(before, after, a_format=source_format, b_format=result_format, **options)
    summary, others = summary_of(lines)
    if json:
        print_document("diff", {"equal": not lines, "summary": summary, "differences": lines})
    elif not lines:
        typer.echo("equal: nothing differs")
    else:
        typer.echo(f"differ: {format_count(len(lines), 'difference')}")
        shown = lines if all_ else [*summary, *others[:_MOST]]
        for line in shown:
            typer.echo(printable(line, one_line=True))
        if not all_ and (summary or len(others) > _MOST):
            typer.echo("--all lists every difference")
    if lines:
        raise typer.Exit(NOT_EQUAL)


def add_diff_command(app: typer.Typer) -> None:
    """Adds `diff` to the program."""
    app.command("diff")(_diff)
