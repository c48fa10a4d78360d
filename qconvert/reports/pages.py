"""html_report(): the page of a model, or of what a command found."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qconvert.arguments import with_checked_arguments
from qconvert.benchmarking.report import BenchmarkReport
from qconvert.calibration.report import Calibration
from qconvert.checking.findings import AS_DECLARED, NOT_EQUAL, NOT_JUDGED, PASSED, CheckReport
from qconvert.conversion import ConversionReport, load
from qconvert.conversion.in_memory import Model, as_file
from qconvert.conversion.loading import source_format
from qconvert.conversion.read_options import divided
from qconvert.errors import QConvertError
from qconvert.files import whole_file
from qconvert.graph import Graph
from qconvert.plugins.change import changes_table
from qconvert.reports.activations import activation_bars
from qconvert.reports.graphs import graph_document
from qconvert.reports.histograms import Bars, bars_of_histogram
from qconvert.reports.rendering import GENERATOR, Page, rendered
from qconvert.reports.replacing import require_own
from qconvert.reports.sections import error_plot, file_table, graph_tables, noted_changes
from qconvert.tables import Rows, said, shortened, shown

__all__ = ["html_report", "require_page"]

#: Names in the head of a page: TensorFlow's list every node that an operator was made of. The tables have them whole.
_NAMES, _LONGEST_NAME = re.compile(r"'[^']*'"), 48
#: How the sentence of a verdict is coloured.
_STATES = {PASSED: "good", AS_DECLARED: "declared", NOT_EQUAL: "bad", NOT_JUDGED: "open"}
Subject = Model | CheckReport | ConversionReport | Calibration | BenchmarkReport


@with_checked_arguments
def html_report(
    subject: Subject,
    out: str | Path,
    *,
    format: str = "",
    force: bool = False,
    data: Sequence[str | Path] = (),
    values: bool = True,
    **options: Any,
) -> None:
    """Write a self-contained HTML page: the verdict, graphs side by side, tables, histograms, and the origin of the files.

    Args:
        subject: a model file, its content as bytes, or a graph, or what convert(), check(), calibrate() or benchmark() returned. The files
            that a report names are read again; what cannot be read is left out, and the page says so.
        out: the .html file.
        format: the name of a model's format, if suffix and content do not determine it.
        force: whether any existing file may be replaced; a page that qconvert wrote is.
        data: files and folders of inputs of the source, for the histograms of activations; random inputs without.
        values: whether a model is run for these; of a check and of a model file only.
        options: of the readers, as given to check() or convert().

    Raises:
        QConvertError: the model or the data cannot be read, or the page cannot be written.
    """
    reads = [Path(name) for name in _files_of(subject).values()]
    force = require_page(Path(out), force)
    with whole_file(Path(out), force=force, reads=[path for path in reads if os.path.exists(path)]) as path:
        if isinstance(subject, bytes):
            with as_file(subject, format) as model:
                page = _page(model, format, data, values, options)
        else:
            page = _page(subject, format, data, values, options)
        path.write_text(rendered(page), encoding="utf-8")


def require_page(out: Path, force: bool = False) -> bool:
    """Whether what stands at a place may be replaced by a page; see require_replaceable()."""
    return require_own(out, (".html", ".htm"), GENERATOR, "a page", force)


def _page(subject: Subject, format: str, data: Sequence[str | Path], values: bool, options: Mapping[str, Any]) -> Page:
    if isinstance(subject, CheckReport):
        return _of_check(subject, data, values, options)
    if isinstance(subject, ConversionReport):
        return _of_conversion(subject, options)
    if isinstance(subject, Calibration):
        return _of_calibration(subject, options)
    if isinstance(subject, BenchmarkReport):
        return _of_benchmark(subject)
    return _of_model(subject, format, data, values, options)


def _files_of(subject: Subject) -> dict[str, str]:
    """The model files by what they are."""
    if isinstance(subject, (CheckReport, ConversionReport)):
        return {"source": subject.source, "result": subject.result}
    return {"model": str(subject)} if isinstance(subject, (str, Path)) else {}


@dataclass(slots=True)
class _Sides:
    """Both graphs of a report, and in words which could not be read."""

    graphs: dict[str, Graph] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, files: Mapping[str, str], options: Mapping[str, Any]) -> _Sides:
        found = cls()
        for title, name in files.items():
            try:
                found.graphs[title] = load(name, **_own(files, title, options))
            except QConvertError as error:
                found.unread.append(f"The graph of the {title} is not shown: {said(error.reason)}.")
        return found


def _own(files: Mapping[str, str], title: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that belong to the reader of one of the files."""
    if "result" not in files:
        return dict(options)
    first, second = divided(options, source_format(Path(files["source"])), source_format(Path(files["result"])))
    return dict(first if title == "source" else second)


def _of_check(report: CheckReport, data: Sequence[str | Path], values: bool, options: Mapping[str, Any]) -> Page:
    files = _files_of(report)
    sides = _Sides.of(files, options)
    marks = {op.output: op.verdict for op in report.operators}
    bars: dict[str, dict[str, Bars]] = {}
    for title, graph in sides.graphs.items():
        if values and report.runs:
            own: tuple[Any, ...] = (data, options) if title == "source" else ((), {})
            bars[title], said = activation_bars(Path(files[title]), graph, *own)
            sides.unread += [said] if said else []
    result = sides.graphs.get("result")
    tables = list(report.tables())
    if result is not None:
        tables.append(changes_table(noted_changes(result)))
    return _joined(shown(Path(report.result).name), report.sentence, _STATES[report.verdict],
                   (*report.kernels, *sides.unread), tables, sides.graphs, files,
                   {"kernels": " and ".join(report.kernels), **options}, marks, bars, error_plot(report))  # fmt: skip


def _of_conversion(report: ConversionReport, options: Mapping[str, Any]) -> Page:
    files = _files_of(report)
    sides = _Sides.of(files, options)
    target = (f"for {report.target}",) if report.target else ()
    return _joined(shown(Path(report.result).name), report.sentence, "good" if report.kept_all else "declared", (*target, *sides.unread),
                   report.tables(), sides.graphs, files, options)  # fmt: skip


def _of_calibration(found: Calibration, options: Mapping[str, Any]) -> Page:
    histograms = tuple(
        {"name": shown(item.names[0]), "bars": asdict(bars_of_histogram(item.histogram, item.range))}
        for item in found.tensors
        if item.histogram is not None
    )
    origin, graphs = shown(found.encodings.origin), {"network": found.graph}
    return replace(_joined("calibration", found.sentence, "", (origin,), found.tables(), graphs, {}, options), histograms=histograms)


def _of_benchmark(report: BenchmarkReport) -> Page:
    lengths = tuple((f"{item.name} in {shown(item.ran)}", item.median, f"{1000 * item.median:.3f} ms") for item in report.done)
    return Page("benchmark: qconvert", report.sentence, "", (report.machine, *report.notes), tuple(report.tables()), lengths=lengths)


def _of_model(model: Model, format: str, data: Sequence[str | Path], values: bool, options: Mapping[str, Any]) -> Page:
    graph = load(model, format, **options)
    files = _files_of(model)
    said, bars = "", dict[str, Bars]()
    if values and files:
        bars, said = activation_bars(Path(files["model"]), graph, data, options, format)
    summary = graph.summary()
    name = shown(Path(files["model"]).name) if files else shown(graph.name) or "network"
    sentence = summary.sentence if not files else f"{name}: {summary.sentence.partition(': ')[2]}"
    tables = [Rows("Kinds", ("operator", ">how many"), tuple((shown(kind), str(count)) for kind, count in summary.operators.items())),
              changes_table(noted_changes(graph))]  # fmt: skip
    return _joined(name, sentence, "", (said,) if said else (), tables, {"model": graph}, files, options, bars={"model": bars})


def _joined(
    title: str,
    sentence: str,
    state: str,
    facts: Sequence[str],
    tables: Sequence[Rows],
    graphs: Mapping[str, Graph],
    files: Mapping[str, str],
    options: Mapping[str, Any],
    marks: Mapping[str, str] | None = None,
    bars: Mapping[str, Mapping[str, Bars]] | None = None,
    plot: dict[str, Any] | None = None,
) -> Page:
    documents = [graph_document(name, graph, marks or {}, (bars or {}).get(name, {})) for name, graph in graphs.items()]
    listed = [table for name, graph in graphs.items() for table in graph_tables(name, graph)]
    tables = (*tables, file_table(files, graphs, options), *listed)
    head, *reason = _NAMES.sub(lambda name: shortened(name[0], _LONGEST_NAME), sentence).split(": ", 2)
    verdict = ": ".join((head, *reason[:1]))
    return Page(f"{title}: qconvert", verdict, state, (*reason[1:], *facts), tables, tuple(documents), plot or {})
