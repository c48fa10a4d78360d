"""check(): source and result run in their own runtimes, output by output and, if asked, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from qconvert.checking.checked_file import Side, side_of
from qconvert.checking.findings import CheckReport, Finding, OutputComparison
from qconvert.checking.outputs import compared, matched_inputs, matched_outputs
from qconvert.data import accepted_inputs, load_inputs
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
    data: Sequence[str | Path] = (),
    samples: int = 5,
    kernels: str | Sequence[str] = (),
    per_op: bool = False,
    max_lsb: float | None = None,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> CheckReport:
    """Compares a source model and its conversion.

    Args:
        source: a model file of a format that a runtime loads.
        result: the converted model, likewise.
        data: files and folders of inputs (see qconvert/data); random inputs without.
        samples: how many inputs at most.
        kernels: what runs files of a format, on both sides: "litert:default" (XNNPACK), "litert:reference", "tflite-micro" (the extra
            `micro`), "onnxruntime:optimized", "onnxruntime:unoptimized" (every node as it stands), or a plugin's; several in a list.
        per_op: whether each operator is also fed with the source's own tensors and judged.
        max_lsb: largest difference allowed at the outputs, in LSB, or for float outputs in 1/255 of the range.
        seed: of random inputs.
        progress: is called with (what, done, total).

    Raises:
        QConvertError: a file cannot be read, a runtime refuses a model, or the inputs do not fit.
    """
    if samples < 1:
        raise OptionError("at least one sample is needed")
    sides = _side(source, kernels), _side(result, kernels)
    whole = next((side.runtime for side in sides if side.runtime.whole), None)
    if whole is not None and per_op:
        raise OptionError(f"{whole.title} gives out no inner tensors", remedy="--per-op works with --kernels litert:default.")
    graph = sides[0].graph
    models = sides[0].open(), sides[1].open()
    note = ""
    if data:
        feeds = load_inputs(graph, data, samples)
        computed = [models[0].run(feed) for feed in feeds]
    else:
        feeds, computed, note = accepted_inputs(graph, samples, seed, models[0].run)
    outputs = _outputs(sides[0], feeds, computed, models[1], progress)
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    if per_op:
        from qconvert.checking.per_operator import check_operators

        findings, notes = check_operators(sides[0], sides[1], feeds, models[1], progress)
    notes = tuple(text for text in (note, *notes, _together(outputs, findings)) if text)
    machine = tuple(dict.fromkeys(model.note for model in models if model.note))
    problems = tuple(_problems(outputs, findings, max_lsb))
    return CheckReport(
        str(source), str(result), len(feeds), outputs, findings, problems, tuple(side.choice for side in sides), notes, machine
    )


def _side(path: str | Path, kernels: str | Sequence[str]) -> Side:
    try:
        return side_of(Path(path), kernels)
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


def _together(outputs: tuple[OutputComparison, ...], findings: tuple[Finding, ...]) -> str:
    """A line on outputs that differ although no operator does."""
    if findings and all(op.equal == 1 for op in findings) and any(item.equal < 1 for item in outputs):
        return "every operator compared is equal by itself, the outputs are not: a runtime fuses the whole graphs differently"
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
