"""What a page says in words and tables, which need no JavaScript."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qconvert.checking.findings import CheckReport
from qconvert.files import file_digest
from qconvert.graph import Graph
from qconvert.graph.metadata import CHANGES
from qconvert.operators.functions import all_graphs
from qconvert.plugins import Change, Cost
from qconvert.reports.graphs import runs_as
from qconvert.reports.words import quantization_of, sized
from qconvert.tables import Rows, said, shown
from qconvert.version import __version__

__all__ = ["error_plot", "file_table", "graph_tables", "noted_changes"]


def error_plot(report: CheckReport) -> dict[str, Any]:
    """What the plot of operators shows: of each its name, the share that differs and the largest difference."""
    shown_ones = [op for op in report.operators if op.largest < float("inf")]
    return {
        "names": [shown(op.output) for op in shown_ones],
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
        where = f"{shown(name)}: " if name else ""
        ops += [
            (where + shown(op.name), op.kind, runs_as(part, op), ", ".join(f"{key}={shown(value)}" for key, value in op.attributes.items()),
             shown(op.source))
            for op in part.ops
        ]  # fmt: skip
        tensors += [
            (where + shown(item.name), item.dtype, sized(item.shape), *quantization_of(item), "constant" if item.is_constant else "")
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
