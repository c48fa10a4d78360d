"""The benchmark's result as tables, in the terminal and as a page of Markdown."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from measures import Fidelity

LITERT = "LiteRT"
#: Of a page that is not there yet.
TITLE = "# Benchmarks\n"
COLUMNS = "The column qconvert is the default target ort-x86, qconvert-vnni the target ort-x86-vnni."


@dataclass
class Row:
    """What was measured for one model with one tool.

    Attributes:
        seconds: wall time of each conversion, of the whole process.
        megabytes: peak resident memory of each conversion, of the whole process.
        transposes: number in the written file and in the graph that onnxruntime runs.
        latency: number of threads -> median in milliseconds.
        best_latency: number of threads -> best in milliseconds.
        error: why there is no result, or none that onnxruntime runs.
    """

    model: str
    tool: str
    converted: bool = False
    accepted: bool = False
    fidelity: Fidelity | None = None
    transposes: tuple[int, int] | None = None
    seconds: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    latency: dict[str, float] = field(default_factory=dict)
    best_latency: dict[str, float] = field(default_factory=dict)
    error: str = ""


def machine(load: float | None = None) -> str:
    """What a note says of where it was measured; `load` is the load average, by default that of now."""
    average = os.getloadavg()[0] if load is None else load
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, load average {average:.1f}, {time.strftime('%B %Y')}. "


@dataclass(frozen=True)
class Section:
    """A heading, a table and a note under it."""

    title: str
    header: list[str]
    lines: list[list[str]]
    note: str


def sections(rows: list[Row]) -> list[Section]:
    """Summary, fidelity, Transposes, conversion, latency, failures."""
    tools = [tool for tool in dict.fromkeys(row.tool for row in rows) if tool != LITERT]
    at = {(row.model, row.tool): row for row in rows}
    models = list(dict.fromkeys(row.model for row in rows))

    def table(title: str, columns: list[str], cell: Callable[[Row], str], note: str) -> Section:
        return Section(title, ["model", *columns], [[m, *(cell(at[m, tool]) for tool in columns)] for m in models], note)

    threads = list(dict.fromkeys(key for row in rows for key in row.latency))
    return [
        _summary(rows, tools, threads),
        table("Fidelity: outputs equal to LiteRT's default kernels", tools, _fidelity_cell, _FIDELITY),
        table("Transposes: in the written file / in the graph that onnxruntime runs", tools, _transposes_cell, _TRANSPOSES),
        table("Speed of conversion and memory", tools, _cost_cell, _COST),
        *(table(f"Latency in milliseconds, {n}", [*tools, LITERT], partial(_latency_cell, threads=n), _LATENCY) for n in threads),
        *_failures(rows, tools),
    ]


_FIDELITY = (
    "Share of the output elements that are equal, over random inputs. LSB: the largest difference over the integer outputs, in steps of "
    "the output's scale. × range: the largest difference over the float outputs, relative to the output's range."
)
_TRANSPOSES = (
    "onnxruntime may add some, to run an operator channels-last, and remove some; its graph is the one that it saves after optimizing."
)
_COST = "Median wall time and peak resident memory of the whole process. In brackets: the process ended with an error."
_LATENCY = (
    "Time of one run: median, and in brackets the best. The tools take turns, so that a slow moment of the machine hits all alike; "
    "where other programs held the cores, the best is nearer to what the model needs."
)


def _fidelity_cell(row: Row) -> str:
    if not row.converted:
        return "not converted"
    if not row.accepted:
        return "not accepted"
    if row.fidelity is None:
        return "not compared"
    found = row.fidelity
    share = "all" if found.equal == 1 else f"{min(100 * found.equal, 99.99):.2f}%"
    worst = [f"{found.worst_lsb:.3g} LSB"] if found.worst_lsb else []
    worst += [f"{found.worst_range:.2g} × range"] if found.worst_range else []
    return ", ".join([share, *worst])


def _transposes_cell(row: Row) -> str:
    return " / ".join(map(str, row.transposes)) if row.transposes else ""


def _cost_cell(row: Row) -> str:
    text = f"{statistics.median(row.seconds):.2f} s, {max(row.megabytes):.0f} MB" if row.seconds else ""
    return text if row.converted else f"({text})"


def _latency_cell(row: Row, threads: str) -> str:
    return f"{_ms(row.latency[threads])} ({_ms(row.best_latency[threads])})" if threads in row.latency else ""


def _ms(value: float) -> str:
    """Milliseconds; more digits below 0.1, where the smallest networks are."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def _summary(rows: list[Row], tools: list[str], threads: list[str]) -> Section:
    """One line for each tool."""
    at = {(row.model, row.tool): row for row in rows}
    others = [LITERT, *(["tf2onnx"] if "tf2onnx" in tools else [])]

    def line(tool: str) -> list[str]:
        own = [row for row in rows if row.tool == tool]
        compared = [row.fidelity for row in own if row.fidelity is not None]
        worst = [found.worst_lsb for found in compared if found.worst_lsb is not None]
        done = [row for row in own if row.converted]
        return [
            tool,
            f"{sum(row.accepted for row in own)} of {len(own)}",
            str(sum(found.equal == 1 for found in compared)),
            f"{max(worst):.3g} LSB" if worst else "",
            f"{statistics.median(statistics.median(row.seconds) for row in done):.2f} s" if done else "",
            f"{max(max(row.megabytes) for row in done):.0f} MB" if done else "",
            *(_ratio([(row.latency, at[row.model, other].latency) for row in own], n) for other in others for n in threads),
        ]

    header = ["tool", "converted and accepted", "all outputs equal", "worst", "conversion", "peak memory"]
    header += [f"latency / {other}'s, {n}" for other in others for n in threads]
    note = (
        "Worst: over the integer outputs. Conversion: median over the models that the tool converts. Latency: median of the ratios over "
        "the models that both run, the largest in brackets."
    )
    return Section("Summary", header, [line(tool) for tool in tools], note)


def _ratio(pairs: list[tuple[dict[str, float], dict[str, float]]], threads: str) -> str:
    ratios = [own[threads] / other[threads] for own, other in pairs if threads in own and threads in other]
    return f"{statistics.median(ratios):.2f} ({max(ratios):.2f})" if ratios else ""


def _failures(rows: list[Row], tools: list[str]) -> list[Section]:
    failed = [row for row in rows if row.error]
    order = {tool: position for position, tool in enumerate([*tools, LITERT])}
    lines = [[row.model, row.tool, row.error] for row in sorted(failed, key=lambda row: order[row.tool])]
    return (
        [Section("What failed", ["model", "tool", "reason"], lines, "The last error that the converter printed, or onnxruntime's error.")]
        if lines
        else []
    )


def write(page: Path, parts: list[Section], command: str, facts: list[str]) -> None:
    """The page: facts about machine and versions, a section for each topic; its title, and sections that other scripts made, stay."""
    titles = {part.title for part in parts}
    title, *old = page.read_text().split("\n## ") if page.exists() else [TITLE]
    kept = [section.rstrip() for section in old if section.partition("\n")[0] not in titles and "\nMade by `" in section]
    lines = [title.partition("\n")[0], "", f"Made by `{command}`: everything side by side in one run, on one machine.", COLUMNS, ""]
    lines += [*(f"- {fact}" for fact in facts), ""]
    for part in parts:
        lines += [f"## {part.title}", "", *_table(part), "", part.note, ""]
    lines += [f"## {section}\n" for section in kept]
    page.write_text("\n".join(lines).rstrip() + "\n")


def _table(part: Section) -> list[str]:
    return [cells(part.header), "|" + "---|" * len(part.header), *map(cells, part.lines)]


def cells(values: list[str]) -> str:
    """A line of a table in Markdown."""
    return "| " + " | ".join(value.replace("|", "\\|") for value in values) + " |"


def show(console: Any, parts: list[Section], facts: list[str]) -> None:
    """Prints the same tables with rich."""
    from rich.table import Table

    for fact in facts:
        console.print(fact, markup=False)
    for part in parts:
        table = Table(*part.header, title=part.title, caption=part.note)
        for line in part.lines:
            table.add_row(*line)
        console.print(table, markup=False)


def update(page: Path, part: Section, command: str) -> None:
    """Writes one section into a page, in place of the one of the same title, with the command that made it."""
    text = page.read_text() if page.exists() else TITLE
    before, _, rest = text.partition(f"## {part.title}\n")
    _, mark, after = rest.partition("\n## ")
    lines = [f"## {part.title}", "", f"Made by `{command}`.", "", *_table(part), "", part.note]
    page.write_text(before.rstrip() + "\n\n" + "\n".join(lines) + "\n" + (mark + after if mark else ""))


def publish(part: Section, page: Path | None, command: str, width: int | None = None) -> None:
    """Prints one section and, if there is a page, writes it there."""
    from rich.console import Console

    show(Console(width=width), [part], [])
    if page:
        update(page, part, command)
