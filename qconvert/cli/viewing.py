"""The commands that show models: `view`, and --html of other commands, pages for a browser; and `diff`, how two models' graphs differ, by
subjects, and line by line on request.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from qconvert.cli.flags import DataFlag, DebugFlag, ExplorerFlag, ForceFlag, FromFlag, JsonFlag, ModelArgument, ToFlag, VerboseFlag
from qconvert.cli.outcome import NOT_EQUAL, print_document
from qconvert.errors import format_count, printable


def pages_for(html: Path | None, explorer: Path | None = None, *, force: bool = False, **options: Any) -> Callable[[Any], None]:
    """A function that writes what is to be looked at of a report. That files can be written is seen at once, before the work that
    they are about.

    Args:
        html: the .html file of a page; or None.
        explorer: the .json file of node data for Model Explorer; or None.
        force, options: of html_report().
    """
    if html is None and explorer is None:
        return lambda report: None
    from qconvert.reports.graphs import require_node_data, write_node_data
    from qconvert.reports.pages import html_report, require_page

    if html is not None:
        require_page(html, force)
    if explorer is not None:
        require_node_data(explorer, force)

    def write(report: Any) -> None:
        if explorer is not None:
            write_node_data(report, explorer, force=force, reads=(Path(report.source), Path(report.result)))
        if html is not None:
            html_report(report, html, force=force, **options)

    return write


def view_command(
    model: ModelArgument,
    page: Annotated[Path | None, typer.Argument(help="The .html file to write; without it one is made and opened.")] = None,
    data: DataFlag = None,
    values: Annotated[bool, typer.Option("--values/--no-values", help="Whether the model is run, for histograms of activations.")] = True,
    source_format: FromFlag = "",
    explorer: ExplorerFlag = None,
    force: ForceFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Show a model in a browser: its graph, its scales, histograms of its weights and activations, and where it is from."""
    from qconvert import html_report, load
    from qconvert.cli.streams import is_stream, read_from
    from qconvert.files.system import lasting_folder

    with read_from(model, source_format) as path:
        if explorer is not None:
            from qconvert.reports.graphs import write_node_data

            write_node_data(load(path, source_format, **options), explorer, force=force, reads=(path,))
            typer.echo(str(explorer))
            if page is None:
                return
        place = page
        if place is None:
            place = lasting_folder("qconvert-view-") / ("model.html" if is_stream(model) else f"{model.stem}.html")
        try:
            html_report(path, place, format=source_format, force=force, data=data or (), values=values, **options)
        except BaseException:
            if page is None:
                place.parent.rmdir()
            raise
    typer.echo(str(place))
    if page is None:
        import webbrowser

        webbrowser.open(place.absolute().as_uri())


#: Differences of no subject below, as many are listed without --verbose.
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


def diff_command(
    a: Annotated[Path, typer.Argument(help="The model before.")],
    b: Annotated[Path, typer.Argument(help="The model after; one of both may be -, with --from or --to.")],
    source_format: FromFlag = "",
    result_format: ToFlag = "",
    verbose: VerboseFlag = False,
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
        shown = lines if verbose else [*summary, *others[:_MOST]]
        for line in shown:
            typer.echo(printable(line, one_line=True))
        if not verbose and (summary or len(others) > _MOST):
            typer.echo("--verbose lists every difference")
    if lines:
        raise typer.Exit(NOT_EQUAL)
