"""html_report(): the page of a model, or of what a command found."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qconvert.arguments import with_checked_arguments
from qconvert.benchmarking.benchmark import BenchmarkReport
from qconvert.calibration.report import Calibration
from qconvert.checking.findings import AS_DECLARED, NOT_EQUAL, NOT_JUDGED, PASSED, CheckReport
from qconvert.conversion import ConversionReport, load
from qconvert.conversion.comparing import split_options
from qconvert.conversion.in_memory import Model, as_file
from qconvert.conversion.loading import source_format
from qconvert.errors import QConvertError
from qconvert.files import file_digest, whole_file
from qconvert.graph import Graph
from qconvert.graph.metadata import CHANGES
from qconvert.operators.shapes_and_functions import all_graphs
from qconvert.plugins import Change, Cost
from qconvert.plugins.results import changes_table
from qconvert.reports.graphs import classify_execution, format_quantization, format_shape, graph_document
from qconvert.reports.histograms import Bars, activation_bars, bars_of_histogram
from qconvert.reports.report_file import GENERATOR, Page, render_page, require_replaceable
from qconvert.tables import Rows, format_sentence, format_text, shorten_text
from qconvert.version import __version__


def error_plot(report: CheckReport) -> dict[str, Any]:
    """What the plot of operators shows: of each its name, the share that differs and the largest difference."""
    shown_ones = [op for op in report.operators if op.largest < float("inf")]
    return {
        "names": [format_text(op.output) for op in shown_ones],
        "differing": [round(100 * (1 - op.equal), 6) for op in shown_ones],
        "largest": [op.largest for op in shown_ones],
        "verdicts": [op.verdict for op in shown_ones],
    } if shown_ones else {}  # fmt: skip


def noted_changes(graph: Graph) -> tuple[Change, ...]:
    """What the metadata of a file say that passes did when it was written."""
    try:
        return tuple(_change(item) for item in json.loads(graph.metadata.get(CHANGES, "[]")))
    except (ValueError, TypeError, KeyError, AttributeError):  # the metadata of a file that someone else wrote
        return ()


def _change(item: Mapping[str, Any]) -> Change:
    costs = [Cost(str(cost["tensor"]), *(None if cost[key] is None else float(cost[key]) for key in ("sqnr_db", "largest")))
             for cost in item.get("costs", [])]  # fmt: skip
    return Change(str(item["change"]), bool(item["exact"]), tuple(costs), str(item["pass"]))


def graph_tables(title: str, graph: Graph) -> list[Rows]:
    """Every operator and every tensor of a graph and of its functions, for those who have no JavaScript, and to search in."""
    ops, tensors = [], []
    for name, part in all_graphs(graph):
        where = f"{format_text(name)}: " if name else ""
        ops += [
            (where + format_text(op.name), op.kind, classify_execution(part, op),
             ", ".join(f"{key}={format_text(value)}" for key, value in op.attributes.items()),
             format_text(op.source))
            for op in part.ops
        ]  # fmt: skip
        tensors += [
            (
                where + format_text(item.name),
                item.dtype,
                format_shape(item.shape),
                *format_quantization(item),
                "constant" if item.is_constant else "",
            )
            for item in part.tensors.values()
        ]
    return [
        Rows(f"Operators of the {title}", ("operator", "kind", "runs on", "attributes", "from"), tuple(ops), folded=True),
        Rows(f"Tensors of the {title}", ("tensor", "type", "shape", "scale", "zero point", ""), tuple(tensors), folded=True),
    ]


def file_table(files: Mapping[str, str], graphs: Mapping[str, Graph], options: Mapping[str, object]) -> Rows:
    """Where everything is from: files with sizes and digests, what their metadata say, versions and options."""
    rows = [("qconvert", __version__)]
    for title, name in files.items():
        path = Path(name)
        rows.append((title, format_text(name)))
        if path.is_file():
            rows += [("", f"{path.stat().st_size:,} bytes"), ("", f"sha256 {file_digest(path)}")]
        graph = graphs.get(title)
        if graph is not None:
            rows += [(f"{title}: {format_text(key)}", format_sentence(value)) for key, value in graph.metadata.items() if key != CHANGES]
    rows += [(f"option {format_text(key)}", format_sentence(value)) for key, value in options.items()]
    return Rows("Where this is from", ("", ""), tuple(rows), folded=False)


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
                page = _make_page(model, format, data, values, options)
        else:
            page = _make_page(subject, format, data, values, options)
        path.write_text(render_page(page), encoding="utf-8")


def require_page(out: Path, force: bool) -> bool:
    """Whether what stands at a place may be replaced by a page; see require_replaceable()."""
    return require_replaceable(out, (".html", ".htm"), GENERATOR, "a page", force)


def _make_page(subject: Subject, format: str, data: Sequence[str | Path], values: bool, options: Mapping[str, Any]) -> Page:
    if isinstance(subject, CheckReport):
        return _make_check_page(subject, data, values, options)
    if isinstance(subject, ConversionReport):
        return _make_conversion_page(subject, options)
    if isinstance(subject, Calibration):
        return _make_calibration_page(subject, options)
    if isinstance(subject, BenchmarkReport):
        return _make_benchmark_page(subject)
    return _make_model_page(subject, format, data, values, options)


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
                found.graphs[title] = load(name, **_select_options(files, title, options))
            except QConvertError as error:
                found.unread.append(f"The graph of the {title} is not shown: {format_sentence(error.reason)}.")
        return found


def _select_options(files: Mapping[str, str], title: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that belong to the reader of one of the files."""
    if "result" not in files:
        return dict(options)
    first, second = split_options(options, source_format(Path(files["source"])), source_format(Path(files["result"])))
    return dict(first if title == "source" else second)


def _make_check_page(report: CheckReport, data: Sequence[str | Path], values: bool, options: Mapping[str, Any]) -> Page:
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
    return _build_page(format_text(Path(report.result).name), report.sentence, _STATES[report.verdict],
                   (*report.kernels, *sides.unread), tables, sides.graphs, files,
                   {"kernels": " and ".join(report.kernels), **options}, marks, bars, error_plot(report))  # fmt: skip


def _make_conversion_page(report: ConversionReport, options: Mapping[str, Any]) -> Page:
    files = _files_of(report)
    sides = _Sides.of(files, options)
    target = (f"for {report.target}",) if report.target else ()
    return _build_page(format_text(Path(report.result).name), report.sentence, "good" if report.kept_all else "declared",
                       (*target, *sides.unread),
                   report.tables(), sides.graphs, files, options)  # fmt: skip


def _make_calibration_page(found: Calibration, options: Mapping[str, Any]) -> Page:
    histograms = tuple(
        {"name": format_text(item.names[0]), "bars": asdict(bars_of_histogram(item.histogram, item.range))}
        for item in found.tensors
        if item.histogram is not None
    )
    origin, graphs = format_text(found.encodings.origin), {"network": found.graph}
    return replace(_build_page("calibration", found.sentence, "", (origin,), found.tables(), graphs, {}, options), histograms=histograms)


def _make_benchmark_page(report: BenchmarkReport) -> Page:
    lengths = tuple((f"{item.name} in {format_text(item.ran)}", item.median, f"{1000 * item.median:.3f} ms") for item in report.done)
    return Page("benchmark: qconvert", report.sentence, "", (report.machine, *report.notes), tuple(report.tables()), lengths=lengths)


def _make_model_page(model: Model, format: str, data: Sequence[str | Path], values: bool, options: Mapping[str, Any]) -> Page:
    graph = load(model, format, **options)
    files = _files_of(model)
    said, bars = "", dict[str, Bars]()
    if values and files:
        bars, said = activation_bars(Path(files["model"]), graph, data, options, format)
    summary = graph.summary()
    name = format_text(Path(files["model"]).name) if files else format_text(graph.name) or "network"
    sentence = summary.sentence if not files else f"{name}: {summary.sentence.partition(': ')[2]}"
    tables = [Rows("Kinds", ("operator", ">how many"), tuple((format_text(kind), str(count)) for kind, count in summary.operators.items())),
              changes_table(noted_changes(graph))]  # fmt: skip
    return _build_page(name, sentence, "", (said,) if said else (), tables, {"model": graph}, files, options, bars={"model": bars})


def _build_page(
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
    head, *reason = _NAMES.sub(lambda name: shorten_text(name[0], _LONGEST_NAME), sentence).split(": ", 2)
    verdict = ": ".join((head, *reason[:1]))
    return Page(f"{title}: qconvert", verdict, state, (*reason[1:], *facts), tables, tuple(documents), plot or {})
