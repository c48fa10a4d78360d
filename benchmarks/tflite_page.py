"""The sections of the page that tell of ONNX to TFLite."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from measures import Fidelity
from page import Section
from tflite_measures import COUNTED, Census

#: Names of rows that stand for no converter: the .tflite file that a model came from, and onnxruntime.
ORIGINAL, RUNTIME = "original", "onnxruntime"
#: Further ones for the accuracy: name -> key of the answers in fixtures/digits/predictions.npz, with the export's name.
TORCH = {"PyTorch": "{}", "PyTorch, integer modules": "{}_converted"}
_PREFIX = "ONNX to TFLite: "


@dataclass
class TfliteRow:
    """What was measured for one model with one tool.

    Attributes:
        accepted: whether LiteRT runs the result.
        fidelity: against onnxruntime as users run it.
        plain_fidelity: against onnxruntime without its optimizations, which computes in float between the quantizations.
        seconds, megabytes: of each conversion, of the whole process.
        size: of the result in bytes.
        latency, best_latency: in milliseconds, on one thread.
        accuracy: share of right answers on held-out data, where there is such data.
        error: why there is no result, or none that LiteRT runs.
    """

    model: str
    tool: str
    converted: bool = False
    accepted: bool = False
    census: Census | None = None
    fidelity: Fidelity | None = None
    plain_fidelity: Fidelity | None = None
    seconds: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    size: int = 0
    latency: float | None = None
    best_latency: float | None = None
    accuracy: float | None = None
    error: str = ""


def sections(rows: list[TfliteRow], tools: list[str]) -> list[Section]:
    """Summary, operators, fidelity, size, conversion, latency, accuracy, failures."""
    at = {(row.model, row.tool): row for row in rows}
    models = list(dict.fromkeys(row.model for row in rows))

    def table(title: str, columns: list[str], cell: Callable[[TfliteRow], str], note: str) -> Section:
        known = {pair: cell(row) for pair, row in at.items()}
        shown = [model for model in models if any(known.get((model, column)) for column in columns)]
        return Section(_PREFIX + title, ["model", *columns], [[m, *(known.get((m, c), "") for c in columns)] for m in shown], note)

    return [
        _summary(at, models, tools),
        table("operators", [*tools, ORIGINAL], _census_cell, _CENSUS),
        table("outputs equal to onnxruntime's", tools, _fidelity_cell, _FIDELITY),
        table("file size", [*tools, ORIGINAL], _size_cell, "In kB (1000 bytes)."),
        table("speed of conversion and memory", tools, _cost_cell, _COST),
        table("latency in milliseconds", [*tools, ORIGINAL, RUNTIME], _latency_cell, _LATENCY),
        _accuracy(at, models, tools),
        _failures(rows),
    ]


_CENSUS = (
    f"Integer operators of the kinds {', '.join(COUNTED)} / operators of any kind on floats / QUANTIZE and DEQUANTIZE / all operators. "
    "Original: the .tflite file that the ONNX model was made from."
)
_FIDELITY = (
    "Share of the output elements that are equal, over random inputs: to onnxruntime as users run it / to onnxruntime without its "
    "optimizations, which computes in float between these. LSB: the largest difference in steps of the output's scale; × range: "
    "the largest difference of outputs that have no scale, relative to their range."
)
_COST = "Median wall time and peak resident memory of the whole process. In brackets: the process ended with an error."
_LATENCY = (
    "Time of one run on one thread: median, and in brackets the best. The results and the original run in LiteRT, the ONNX model in "
    "onnxruntime; they take turns, so that a slow moment of the machine hits all alike."
)


def _census_cell(row: TfliteRow) -> str:
    found = row.census
    return "" if found is None else f"{found.integer} / {found.floating} / {found.boundary} / {found.total}"


def _fidelity_cell(row: TfliteRow) -> str:
    if not row.converted:
        return "not converted"
    if not row.accepted:
        return "not accepted"
    if row.fidelity is None or row.plain_fidelity is None:
        return "not compared"
    return f"{_fidelity(row.fidelity)} / {_fidelity(row.plain_fidelity)}"


def _fidelity(found: Fidelity) -> str:
    share = "all" if found.equal == 1 else f"{min(100 * found.equal, 99.99):.2f}%"
    worst = [f"{found.worst_lsb:.3g} LSB"] if found.worst_lsb and found.worst_lsb >= 0.01 else []
    worst += [f"{found.worst_range:.1g} × range"] if found.worst_range else []
    return ", ".join([share, *worst])


def _size_cell(row: TfliteRow) -> str:
    return f"{row.size / 1000:.1f}" if row.size else ""


def _cost_cell(row: TfliteRow) -> str:
    text = f"{statistics.median(row.seconds):.2f} s, {max(row.megabytes):.0f} MB" if row.seconds else ""
    return text if row.converted or not text else f"({text})"


def _latency_cell(row: TfliteRow) -> str:
    if row.latency is None or row.best_latency is None:
        return ""
    return f"{_ms(row.latency)} ({_ms(row.best_latency)})"


def _ms(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def _summary(at: dict[tuple[str, str], TfliteRow], models: list[str], tools: list[str]) -> Section:
    """One line for each tool."""

    def ratios(value: Callable[[TfliteRow], float | None], tool: str, other: str) -> str:
        pairs = [(value(at[m, tool]), value(at[m, other])) for m in models if (m, tool) in at and (m, other) in at]
        found = [a / b for a, b in pairs if a and b]
        return f"{statistics.median(found):.2f} ({max(found):.2f})" if found else ""

    def line(tool: str) -> list[str]:
        own = [at[m, tool] for m in models]
        done = [row for row in own if row.converted]
        counted = [row.census for row in done if row.census is not None]
        compared = [row.fidelity for row in own if row.fidelity is not None]
        worst = [found.worst_lsb for found in compared if found.worst_lsb is not None]
        return [
            tool,
            f"{sum(row.accepted for row in own)} of {len(own)}",
            f"{sum(found.integer for found in counted)} / {sum(found.floating for found in counted)}",
            str(sum(found.equal == 1 for found in compared)),
            f"{statistics.median(found.equal for found in compared):.2%}" if compared else "",
            f"{max(worst):.3g} LSB" if worst else "",
            ratios(lambda row: row.size, tool, ORIGINAL),
            ratios(lambda row: row.best_latency, tool, ORIGINAL),
            f"{statistics.median(statistics.median(row.seconds) for row in done):.2f} s" if done else "",
            f"{max(max(row.megabytes) for row in done):.0f} MB" if done else "",
        ]

    header = ["tool", "converted and accepted", "integer / float operators", "models with all outputs equal", "equal outputs", "worst"]
    header += ["size / original's", "latency / original's", "conversion", "peak memory"]
    note = (
        "Over all models together; operators as in the table below. Equal outputs: median over the models. Worst: over the outputs that "
        "have a scale. Ratios: median over the models that were a .tflite file before, the largest in brackets. Conversion: median."
    )
    return Section(_PREFIX + "summary", header, [line(tool) for tool in tools], note)


def _accuracy(at: dict[tuple[str, str], TfliteRow], models: list[str], tools: list[str]) -> Section:
    columns = [*TORCH, RUNTIME, *tools]
    tested = [m for m in models if any((m, c) in at and at[m, c].accuracy is not None for c in columns)]

    def cell(model: str, column: str) -> str:
        row = at.get((model, column))
        return "" if row is None or row.accuracy is None else f"{row.accuracy:.2%}"

    note = (
        "Share of right answers on 600 held-out images of scikit-learn's digits, of one network trained with quantization (fixtures/"
        "make_digits.py): the PyTorch model that quantizes and computes in float, and the one of integer modules that FX exports; the ONNX "
        "export in onnxruntime; and the TFLite files made from it."
    )
    return Section(_PREFIX + "accuracy", ["export", *columns], [[m, *(cell(m, c) for c in columns)] for m in tested], note)


def _failures(rows: list[TfliteRow]) -> Section:
    lines = [[row.model, row.tool, row.error] for row in sorted(rows, key=lambda row: row.tool) if row.error]
    note = "The last error that the converter printed (of a chain, its cause), or LiteRT's error." if lines else "Nothing failed."
    return Section(_PREFIX + "what failed", ["model", "tool", "reason"], lines, note)
