"""check(): source and result run in their own runtimes, output by output and, if asked, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from qconvert.checking.findings import CheckReport, Finding, OutputComparison
from qconvert.checking.inputs import accepted_inputs, load_inputs
from qconvert.checking.outputs import compared, matched_inputs, matched_outputs
from qconvert.checking.sides import Side, side_of
from qconvert.errors import OptionError, QConvertError
from qconvert.graph import Array
from qconvert.plugins import LoadedModel

__all__ = ["check"]

Progress = Callable[[str, int, int], None]
Feeds = list[dict[str, Array]]


def check(
    source: str | Path,
    result: str | Path,
    *,
    inputs: list[str] | None = None,
    samples: int = 5,
    kernels: str = "default",
    optimize: bool = True,
    per_op: bool = False,
    max_lsb: float | None = None,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> CheckReport:
    """Compares a source model and its conversion.

    Args:
        source: a model file of a format that a runtime loads.
        result: the converted model, likewise.
        inputs: files and folders of inputs (see inputs.py); random inputs without.
        samples: how many inputs at most.
        kernels: what runs the files where a runtime has a choice: for .tflite LiteRT's "default" (XNNPACK) or "reference" kernels, or
            "micro", the interpreter of tflite-micro (the extra `micro`).
        optimize: whether onnxruntime optimizes the graphs of both sides, or runs every node as it stands.
        per_op: whether each operator is also fed with the source's own tensors and judged.
        max_lsb: largest difference allowed at the outputs, in LSB, or for float outputs in 1/255 of the range.
        seed: of random inputs.
        progress: is called with (what, done, total).

    Raises:
        QConvertError: a file cannot be read, a runtime refuses a model, or the inputs do not fit.
    """
    if samples < 1:
        raise OptionError("at least one sample is needed")
    sides = _side(source, kernels, optimize), _side(result, kernels, optimize)
    whole = next((side.runtime for side in sides if side.runtime.whole), None)
    if whole is not None and per_op:
        raise OptionError(f"{whole.title} gives out no inner tensors", remedy="Use --per-op with the kernels default or reference.")
    graph = sides[0].graph
    models = sides[0].open(), sides[1].open()
    note = ""
    if inputs:
        feeds = load_inputs(graph, inputs, samples)
        computed = [models[0].run(feed) for feed in feeds]
    else:
        feeds, computed, note = accepted_inputs(graph, samples, seed, models[0].run)
    outputs = _outputs(sides[0], feeds, computed, models[1], progress)
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    if per_op:
        from qconvert.checking.per_operator import check_operators

        findings, notes = check_operators(sides[0], sides[1], feeds, models[1], progress)
    notes = tuple(text for text in (note, *notes, _together(outputs, findings, optimize)) if text)
    machine = tuple(dict.fromkeys(model.note for model in models if model.note))
    problems = tuple(_problems(outputs, findings, max_lsb))
    return CheckReport(
        str(source), str(result), kernels, len(feeds), outputs, findings, problems, _in_words(*sides, optimize), notes, machine
    )


def _side(path: str | Path, kernels: str, optimize: bool) -> Side:
    try:
        return side_of(Path(path), kernels, optimize)
    except QConvertError as error:
        error.file = error.file or str(path)
        raise


def _outputs(source: Side, feeds: Feeds, computed: Feeds, result: LoadedModel, progress: Progress) -> tuple[OutputComparison, ...]:
    """What both sides give for the same inputs, compared over all runs."""
    graph = source.graph
    pairs: dict[str, list[tuple[Array, Array]]] = {}
    for done, (feed, expected) in enumerate(zip(feeds, computed, strict=True)):
        actual = result.run(matched_inputs(graph, feed, result))
        for name, a, b in matched_outputs(graph, expected, actual):
            pairs.setdefault(name, []).append((a, b))
        progress("inputs", done + 1, len(feeds))
    return tuple(compared(graph[name], found) for name, found in pairs.items())


def _in_words(source: Side, result: Side, optimize: bool) -> str:
    """What ran the source, and what the user forbade."""
    if optimize or not (source.runtime.optimizes or result.runtime.optimizes):
        return source.words
    if source.runtime.optimizes:
        return f"{source.words} without optimizations"
    return f"{source.words}, {result.runtime.title} without optimizations"


def _together(outputs: tuple[OutputComparison, ...], findings: tuple[Finding, ...], optimize: bool) -> str:
    """A line on outputs that differ although no operator does."""
    if findings and optimize and all(op.equal == 1 for op in findings) and any(item.equal < 1 for item in outputs):
        return "every operator compared is equal by itself, the outputs are not: onnxruntime fuses the whole graphs differently"
    return ""


def _problems(outputs: tuple[OutputComparison, ...], findings: tuple[Finding, ...], max_lsb: float | None) -> list[str]:
    found = []
    for item in outputs:
        largest = item.largest * (255 if item.unit != "LSB" else 1)
        if max_lsb is not None and largest > max_lsb:
            found.append(f"output {item.name!r} differs by {largest:g} LSB, more than {max_lsb:g}")
    for op in findings:
        if op.verdict == "unexplained":
            seen = f"{op.unexplained} elements, by at most {op.largest:g}" if op.unexplained else "not seen with these inputs"
            found.append(f"{op.operator} ({op.output!r}): {op.reason}; {seen}")
    return found
