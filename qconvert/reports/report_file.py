"""The file of a report: one page with its styles, scripts and data, which loads nothing, and the files that a report may replace."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from qconvert.errors import OptionError
from qconvert.files.names import access_errors, require_writable
from qconvert.tables import Rows
from qconvert.version import __version__

#: By which a page of qconvert's is known.
GENERATOR = '<meta name="generator" content="qconvert'
_SCRIPTS = ("vendor/dagre.min.js", "vendor/uPlot.iife.min.js", "page/report.js")
_STYLES = ("vendor/uPlot.min.css", "page/report.css")


@dataclass(frozen=True, slots=True)
class Page:
    """What stands on a page.

    Attributes:
        title: of the window.
        sentence: the verdict, or what the page is.
        state: "good", "declared", "bad", "open" or "" of the sentence.
        facts: in a few words, under it.
        tables: those that are always there.
        graphs: documents of graphs, side by side.
        plot: of the operators' errors; {} without.
        histograms: (name, document of bars) besides those of the graphs.
        lengths: (what it is, its length, this in words), which stand as bars one below the other.
    """

    title: str
    sentence: str
    state: str
    facts: tuple[str, ...]
    tables: tuple[Rows, ...]
    graphs: tuple[dict[str, Any], ...] = ()
    plot: dict[str, Any] = field(default_factory=dict)
    histograms: tuple[dict[str, Any], ...] = ()
    lengths: tuple[tuple[str, float, str], ...] = ()


def render_page(page: Page) -> str:
    """The page as HTML.

    Every name is escaped by the template, or stands in a block of JSON in which no tag can begin or end. The content security policy
    names the page's own script and styles by their digests and allows nothing else (Content Security Policy Level 3, W3C, section 2.3.1).
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    script, style = ("\n".join(map(_read_asset, names)) for names in (_SCRIPTS, _STYLES))
    data = {"graphs": page.graphs, "plot": page.plot, "histograms": page.histograms}
    return environment.from_string(_read_asset("page/report.html")).render(
        page=page,
        version=__version__,
        policy=f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; form-action 'none'",
        script=script,
        style=style,
        data=_escape_json(data),
        tables=[item for item in page.tables if item.rows],
    )


@cache
def _read_asset(name: str) -> str:
    return files("qconvert.reports").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _escape_json(data: Any) -> str:
    """JSON in which no character can end the element that it stands in, nor a line of JavaScript."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


#: Bytes of a file in which it says what made it.
_HEAD = 512


def require_replaceable(out: Path, suffixes: Sequence[str], mark: str, what: str, force: bool) -> bool:
    """Whether what stands at a place may be replaced: where `force` is on, or its beginning holds a mark of qconvert's.

    Args:
        out: the place.
        suffixes: one of which its name has, the usual one first.
        mark: what a file begins with, or nearly, that qconvert wrote.
        what: what is to be written, in words.
        force: whether any file may be replaced.

    Raises:
        OptionError: the name has none of the suffixes.
        QConvertError: the place cannot be written, or another file is there.
    """
    if out.suffix.lower() not in suffixes:
        raise OptionError(f"the suffix is {out.suffix!r}; {what} requires {suffixes[0]}", file=str(out), rule="unknown-suffix")
    if os.path.isfile(out):
        with access_errors(out), out.open("rb") as file:
            force = force or mark.encode() in file.read(_HEAD)
    require_writable(out, force=force)
    return force
