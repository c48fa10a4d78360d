"""The command `view`, and --html of other commands: pages for a browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from qconvert.cli.flags import DataFlag, DebugFlag, ExplorerFlag, ForceFlag, FromFlag, ModelArgument

__all__ = ["add_view_command", "pages_for"]


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
    from qconvert.reports.explorer import require_node_data, write_node_data
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


def _view(
    model: ModelArgument,
    page: Annotated[Path | None, typer.Argument(help="The .html file to write; without it one is made and opened.")] = None,
    data: DataFlag = None,
    values: Annotated[bool, typer.Option("--values/--no-values", help="Whether the model is run, for histograms of activations.")] = True,
    source_format: FromFlag = "",
    show: Annotated[bool | None, typer.Option("--open/--no-open", help="Open it in a browser; by default if no file is named.")] = None,
    explorer: ExplorerFlag = None,
    force: ForceFlag = False,
    debug: DebugFlag = False,
    **options: Any,
) -> None:
    """Show a model in a browser: its graph, its scales, histograms of its weights and activations, and where it is from."""
    from qconvert import html_report, load
    from qconvert.cli.streams import is_stream, read_from
    from qconvert.files.temporary import lasting_folder

    with read_from(model, source_format) as path:
        if explorer is not None:
            from qconvert.reports.explorer import write_node_data

            write_node_data(load(path, source_format, **options), explorer, force=force, reads=(path,))
            typer.echo(str(explorer))
            if page is None and not show:
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
    if page is None if show is None else show:
        webbrowser.open(place.absolute().as_uri())


def add_view_command(app: typer.Typer) -> None:
    """Adds `view`."""
    app.command("view")(_view)
