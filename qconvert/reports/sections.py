"""What a page says in words and tables, which need no JavaScript."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qconvert.calibration.report import Calibration
from qconvert.checking.findings import AS_DECLARED, CLASSES, NOT_EQUAL, PASSED, CheckReport, Finding
from qconvert.conversion import ConversionReport
from qconvert.files import file_digest
from qconvert.graph import Graph
from qconvert.graph.functions import all_graphs
from qconvert.graph.metadata import CHANGES
from qconvert.plugins import Change
from qconvert.reports.graphs import runs_as
from qconvert.reports.words import grid_of, numbers, said, share, shown, sized
from qconvert.version import __version__

__all__ = [
    "Rows", "calibration_tables", "check_tables", "conversion_tables", "error_plot", "file_table", "graph_tables", "noted_changes",
    "sentence_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """A table.

    Attributes:
        title: above it.
        columns: heads; those that begin with > have numbers.
        rows: cells in words.
        marks: of each row, a class of finding that colours it, or "".
        note: a sentence on what it says.
        folded: whether it is opened by a click, as long lists are.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[str, ...] = ()
    note: str = ""
    folded: bool = False


def sentence_of(report: CheckReport) -> tuple[str, str]:
    """The verdict in one sentence, and "good", "declared", "bad" or "open"."""
    names = f"{shown(Path(report.result).name)} beside {shown(Path(report.source).name)}"
    inputs = f"{report.runs} inputs" if report.runs != 1 else "1 input"
    if report.verdict == PASSED:
        equal = all(item.equal == 1 for item in report.outputs)
        how = "every output element is equal" if equal else "each operator that differs is explained"
        return f"Passed: {names}: {how}, over {inputs}.", "good"
    if report.verdict == AS_DECLARED:
        return f"As declared: {names}: what differs is the cost of the passes that were asked for, over {inputs}.", "declared"
    if report.verdict == NOT_EQUAL:
        return f"Not equal: {names}: {said(report.problems[0])}.", "bad"
    return f"Could not be judged: {names}: {said(report.unjudged[0])}.", "open"


def check_tables(report: CheckReport) -> list[Rows]:
    """What is wrong, the outputs, the operators, and what the reader should know."""
    found = [(word, said(text)) for word, texts in (
        ("problem", report.problems), ("not judged", report.unjudged), ("cost", report.costs), ("note", report.notes),
        ("machine", report.machine),
    ) for text in texts]  # fmt: skip
    outputs = [
        (shown(item.name), share(item.equal), f"{item.largest:.6g} {item.unit}", f"{item.mean:.2g}",
         "exact" if item.sqnr_db is None else f"{item.sqnr_db:.1f} dB", "" if item.same_top1 is None else share(item.same_top1))
        for item in report.outputs
    ]  # fmt: skip
    operators = [
        (
            shown(op.operator),
            shown(op.output),
            share(op.equal),
            f"{op.largest:.4g}",
            f"{100 * op.predicted_rate:.2g}%",
            op.verdict,
            shown(op.reason),
        )
        for op in report.operators
    ]
    return [
        Rows("What was found", ("", "in words"), tuple(found)),
        Rows("Outputs", ("output", ">equal", ">largest", ">mean", ">SQNR", ">same top-1"), tuple(outputs)),
        Rows("Operators", ("operator", "output", ">equal", ">largest", ">predicted", "class", "reason"), tuple(operators),
             tuple(op.verdict for op in report.operators), _classes(report.operators), len(operators) > 40),
    ]  # fmt: skip


def _classes(found: Sequence[Finding]) -> str:
    counts = [(verdict, sum(item.verdict == verdict for item in found)) for verdict in CLASSES]
    return "; ".join(f"{count} {verdict}" for verdict, count in counts if count)


def error_plot(report: CheckReport) -> dict[str, Any]:
    """What the plot of operators shows: of each its name, the share that differs and the largest difference."""
    shown_ones = [op for op in report.operators if op.largest < float("inf")]
    return {
        "names": [shown(op.output) for op in shown_ones],
        "differing": [round(100 * (1 - op.equal), 6) for op in shown_ones],
        "largest": [op.largest for op in shown_ones],
        "verdicts": [op.verdict for op in shown_ones],
    } if shown_ones else {}  # fmt: skip


def noted_changes(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """What the metadata of a file say that passes did when it was written: rows of a table."""
    try:
        found = json.loads(graph.metadata.get(CHANGES, "[]"))
        return tuple(
            (shown(item["pass"]), said(item["change"]), "yes" if item["exact"] else "no", _cost(item.get("costs", []))) for item in found
        )
    except (ValueError, TypeError, KeyError, AttributeError):  # the metadata of a file that someone else wrote
        return ()


def _cost(costs: Iterable[Mapping[str, Any]]) -> str:
    known = [float(item["sqnr_db"]) for item in costs if item.get("sqnr_db") is not None]
    return f"{min(known):.1f} dB at the worst of {len(known)} tensors" if known else ""


def conversion_tables(report: ConversionReport) -> list[Rows]:
    """What was carried over, what passes changed and cost, and what runs as integers."""
    kept = tuple((what, f"{count:,}") for what, count in report.kept.items())
    audit = tuple((line.kind, str(line.count), "integers" if line.integer else "real values", said(line.reason)) for line in report.audit)
    marks = tuple("" if line.integer else "approximate" for line in report.audit)
    return [
        Rows(
            "Carried over", ("what", ">how many"), kept, note="None was changed." if report.kept_all else "Some are new: see the changes."
        ),
        changes_table(tuple(_changed(change) for change in report.changes)),
        Rows(f"What runs as integers on {shown(report.target)}", ("operator", ">how many", "runs on", "why"), audit, marks),
    ]


def _changed(change: Change) -> tuple[str, ...]:
    costs = [{"sqnr_db": cost.sqnr_db} for cost in change.costs]
    return shown(change.by), said(change.text), "yes" if change.exact else "no", _cost(costs)


def changes_table(rows: tuple[tuple[str, ...], ...]) -> Rows:
    """What passes and the writer did."""
    return Rows(
        "What passes changed",
        ("pass", "what it did", "exact", "cost"),
        rows,
        tuple("" if row[2] == "yes" else "requantized" for row in rows),
    )


def calibration_tables(found: Calibration) -> list[Rows]:
    """The grid of each activation, and what quantizing tensors by themselves costs."""
    rows = tuple(
        (shown(" = ".join(item.names)), f"{item.lowest:.6g}", f"{item.highest:.6g}", f"{item.range[0]:.6g}", f"{item.range[1]:.6g}",
         numbers(item.grid.quantization.scale), "" if item.sqnr_db is None else f"{item.sqnr_db:.1f} dB", f"{100 * item.clipped:.3g}%",
         shown(item.origin))
        for item in found.tensors
    )  # fmt: skip
    costs = tuple((shown(" = ".join(one.names)), "none" if one.sqnr_db is None else f"{one.sqnr_db:.1f} dB") for one in found.sensitivity)
    columns = ("tensor", ">lowest seen", ">highest seen", ">grid from", ">to", ">scale", ">SQNR", ">clipped", "chosen by")
    return [
        Rows("Activations", columns, rows, note=f"{found.samples} samples.", folded=len(rows) > 60),
        Rows("What quantizing each by itself costs the outputs", ("tensor", ">SQNR of the outputs"), costs, folded=len(costs) > 60),
        Rows("Notes", ("in words",), tuple((said(text),) for text in found.notes)),
    ]


def graph_tables(title: str, graph: Graph) -> list[Rows]:
    """Every operator and every tensor of a graph and of its functions, for those who have no JavaScript, and to search in."""
    ops, tensors = [], []
    for name, part in all_graphs(graph):
        where = f"{shown(name)}: " if name else ""
        ops += [
            (where + shown(op.name), op.kind, runs_as(part, op), ", ".join(f"{key}={shown(value)}" for key, value in op.attributes.items()),
             shown(op.source))
            for op in part.ops
        ]  # fmt: skip
        tensors += [
            (where + shown(item.name), item.dtype, sized(item.shape), *grid_of(item), "constant" if item.is_constant else "")
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
        rows.append((title, shown(name)))
        if path.is_file():
            rows += [("", f"{path.stat().st_size:,} bytes"), ("", f"sha256 {file_digest(path)}")]
        graph = graphs.get(title)
        if graph is not None:
            rows += [(f"{title}: {shown(key)}", said(value)) for key, value in graph.metadata.items() if key != CHANGES]
    rows += [(f"option {shown(key)}", said(value)) for key, value in options.items()]
    return Rows("Where this is from", ("", ""), tuple(rows), folded=False)
