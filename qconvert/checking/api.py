"""check(): source and result run in their own runtimes, output by output and, if asked, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from qconvert.checking.inputs import accepted_inputs, load_inputs
from qconvert.checking.judging import OperatorFinding
from qconvert.checking.operators import check_operators
from qconvert.conversion import load
from qconvert.errors import OptionError, RuntimeRefusedError
from qconvert.files import map_file
from qconvert.graph import Array, Graph, Tensor
from qconvert.plugins import format_of

__all__ = ["CheckReport", "OutputComparison", "check"]

Progress = Callable[[str, int, int], None]
_TO_FIRST = (0, 3, 1, 2)


class Runtime(Protocol):
    """A model loaded in its runtime."""

    inputs: dict[str, tuple[str, tuple[Any, ...]]]
    outputs: dict[str, tuple[str, tuple[Any, ...]]]
    note: str

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]: ...


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """One graph output over all runs.

    Attributes:
        name: the source's name of the output.
        equal: share of equal elements.
        largest, mean: difference, in `unit`.
        unit: "LSB" (steps of the output's scale), or "of range" for float outputs.
        sqnr_db: signal to difference, in dB; None if there is no difference.
        same_top1: share of runs with the same best class; None if the output is no row of scores.
    """

    name: str
    equal: float
    largest: float
    mean: float
    unit: str
    sqnr_db: float | None
    same_top1: float | None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found.

    Attributes:
        source, result: the files.
        kernels: what ran .tflite files: LiteRT's kernels, or tflite-micro's.
        runs: how many inputs were run.
        outputs, operators: what was compared.
        problems: in sentences, why the check failed; it passed if there are none.
        runtime: what ran the source, in words.
        notes: what the reader should know of how the check was done.
        machine: likewise, where it is due to this machine's CPU.
    """

    source: str
    result: str
    kernels: str
    runs: int
    outputs: tuple[OutputComparison, ...]
    operators: tuple[OperatorFinding, ...]
    problems: tuple[str, ...]
    runtime: str = ""
    notes: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.problems


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
        source: a .tflite or .onnx model.
        result: the converted model, .onnx or .tflite.
        inputs: files and folders of inputs (see inputs.py); random inputs without.
        samples: how many inputs at most.
        kernels: what runs .tflite files: LiteRT's "default" (XNNPACK) or "reference" kernels, or "micro", the interpreter of
            tflite-micro (the extra `micro`).
        optimize: whether onnxruntime optimizes the graphs of both sides, or runs every node as it stands.
        per_op: whether each operator is also fed with the source's own tensors and judged.
        max_lsb: largest difference allowed at the outputs, in LSB, or for float outputs in 1/255 of the range.
        seed: of random inputs.
        progress: is called with (what, done, total).

    Raises:
        QConvertError: a file cannot be read, a runtime refuses a model, or the inputs do not fit.
    """
    source, result = Path(source), Path(result)
    if samples < 1:
        raise OptionError("at least one sample is needed")
    if kernels == "micro" and per_op:
        raise OptionError("tflite-micro gives out no inner tensors", remedy="Use --per-op with the kernels default or reference.")
    graph = load(source)
    left, right = _runtime(source, kernels, optimize), _runtime(result, kernels, optimize)
    note = ""
    if inputs:
        feeds = load_inputs(graph, inputs, samples)
        computed = [left.run(feed) for feed in feeds]
    else:
        feeds, computed, note = accepted_inputs(graph, samples, seed, left.run)
    pairs: dict[str, list[tuple[Array, Array]]] = {}
    for done, (feed, expected) in enumerate(zip(feeds, computed, strict=True)):
        actual = right.run(_matched_inputs(graph, feed, right))
        for name, a, b in _matched_outputs(graph, expected, actual):
            pairs.setdefault(name, []).append((a, b))
        progress("inputs", done + 1, len(feeds))
    outputs = tuple(_compare(graph[name], found) for name, found in pairs.items())
    findings, unmatched = _operators(source, result, graph, feeds, kernels, optimize, progress) if per_op else ((), "")
    problems = tuple(_problems(outputs, findings, max_lsb))
    together = ""
    if findings and optimize and all(op.equal == 1 for op in findings) and any(item.equal < 1 for item in outputs):
        together = "every operator compared is equal by itself, the outputs are not: onnxruntime fuses the whole graphs differently"
    notes = tuple(text for text in (note, unmatched, together) if text)
    machine = tuple(dict.fromkeys(side.note for side in (left, right) if side.note))
    ran = _runtime_in_words(source, kernels, optimize)
    return CheckReport(str(source), str(result), kernels, len(feeds), outputs, findings, problems, ran, notes, machine)


def _operators(
    source: Path, result: Path, graph: Graph, feeds: list[dict[str, Array]], kernels: str, optimize: bool, progress: Progress
) -> tuple[tuple[OperatorFinding, ...], str]:
    """The findings for each operator, and a line on those that could not be matched."""
    if {format_of(source).name, format_of(result).name} == {"onnx"}:
        from qconvert.checking.onnx_operators import check_onnx_operators

        return check_onnx_operators(source, result, graph, feeds, optimize, progress)
    if format_of(result).name == "tflite":
        from qconvert.checking.tflite_operators import check_into_tflite

        return check_into_tflite(source, result, graph, feeds, kernels, optimize, progress)
    return check_operators(source, result, graph, feeds, kernels, progress), ""


def _runtime_in_words(source: Path, kernels: str, optimize: bool) -> str:
    without = "" if optimize else "without optimizations"
    if format_of(source).name != "tflite":
        return f"onnxruntime {without}".rstrip()
    return ", ".join(
        part
        for part in ("tflite-micro" if kernels == "micro" else f"LiteRT {kernels} kernels", without and f"onnxruntime {without}")
        if part
    )


def _runtime(path: Path, kernels: str, optimize: bool) -> Runtime:
    """The file's own runtime, by its suffix."""
    kind, companions = format_of(path).name, format_of(path).companions
    data = map_file(path)
    if kind == "tflite" and kernels == "micro":
        from qconvert.runtimes.tflite_micro import TFLiteMicro

        return TFLiteMicro(bytes(data))
    if kind == "tflite":
        from qconvert.formats.tflite.probe import accepted_copy
        from qconvert.runtimes.litert import LiteRT

        return LiteRT(accepted_copy(bytes(data)), kernels)
    if kind == "onnx":
        from qconvert.runtimes.onnxruntime import OnnxRuntime

        try:
            return OnnxRuntime(path if companions and companions(path) else bytes(data), optimize=optimize)
        except RuntimeRefusedError as error:
            error.file = error.file or str(path)
            if optimize:
                error.remedy = "If onnxruntime's optimizer is at fault, --no-optimize runs the graph as it stands."
            raise
    raise OptionError(f"no runtime runs {kind} files", file=str(path), remedy="Convert it to .onnx first, and check that.")


def _matched_inputs(graph: Graph, feed: Mapping[str, Array], runtime: Runtime) -> dict[str, Array]:
    """The same values for the result: inputs by name or else by position, quantized ones as float if it takes float."""
    names = list(runtime.inputs)
    by_name = set(names) == set(feed)
    if len(names) != len(feed):
        raise OptionError(f"the source has {len(feed)} inputs, the result {len(names)}")
    matched = {}
    for position, (name, value) in enumerate(feed.items()):
        other = name if by_name else names[position]
        dtype, shape = runtime.inputs[other]
        tensor = graph[name]
        if dtype == "float32" and tensor.quantization is not None:
            value = ((value.astype(np.float64) - tensor.quantization.zero_point[0]) * tensor.quantization.scale[0]).astype(np.float32)
        matched[other] = _in_layout(value, shape)
    return matched


def _in_layout(value: Array, shape: tuple[Any, ...]) -> Array:
    """`value`, transposed to channels first if only that fits `shape`."""
    if value.ndim == 4 == len(shape) and not _fits(value.shape, shape) and _fits(value.transpose(_TO_FIRST).shape, shape):
        return value.transpose(_TO_FIRST)
    return value


def _fits(actual: tuple[int, ...], wanted: tuple[Any, ...]) -> bool:
    return all(not isinstance(size, int) or size in (0, own) for own, size in zip(actual, wanted, strict=True))


def _matched_outputs(graph: Graph, expected: Mapping[str, Array], actual: Mapping[str, Array]) -> list[tuple[str, Array, Array]]:
    """(canonical name, source's values, result's values in the source's layout and as its integers where it can)."""
    if len(expected) != len(actual):
        raise OptionError(f"the source has {len(expected)} outputs, the result {len(actual)}")
    found = []
    for position, name in enumerate(graph.outputs):
        a = list(expected.values())[position]
        b = actual[name] if name in actual else list(actual.values())[position]
        if b.ndim == a.ndim == 4 and b.shape != a.shape and b.transpose(0, 2, 3, 1).shape == a.shape:
            b = b.transpose(0, 2, 3, 1)
        found.append((name, a, b.reshape(a.shape) if b.size == a.size else b))
    return found


def _compare(tensor: Tensor, pairs: list[tuple[Array, Array]]) -> OutputComparison:
    """Statistics over all runs, in steps of the source's scale."""
    if any(a.shape != b.shape for a, b in pairs):
        raise OptionError(f"the result gives shape {pairs[0][1].shape} instead of {pairs[0][0].shape}", where=f"output {tensor.name!r}")
    left, right = (np.concatenate([_steps(tensor, pair[side]).reshape(-1) for pair in pairs]) for side in (0, 1))
    with np.errstate(invalid="ignore"):
        difference = np.abs(left - right)
    difference[(left == right) | (np.isnan(left) & np.isnan(right))] = 0  # infinities and NaN of both sides are equal
    difference[np.isnan(difference)] = np.inf
    unit, scale = "LSB", 1.0
    finite = left[np.isfinite(left)]
    if pairs[0][0].dtype.kind == "f":
        unit, scale = "of range", float(finite.max(initial=0) - finite.min(initial=0)) or 1.0
    noise = float(np.square(difference).mean()) if difference.size else 0.0
    offset = 0 if tensor.quantization is None else tensor.quantization.zero_point[0]
    signal = float(np.square(finite - offset).mean()) if finite.size else 0.0
    is_scores = all(a.ndim == 2 and a.shape[0] == 1 and a.shape[1] > 1 for a, _ in pairs)
    same = float(np.mean([_steps(tensor, a).argmax() == _steps(tensor, b).argmax() for a, b in pairs])) if is_scores else None
    return OutputComparison(
        tensor.name,
        float((difference == 0).mean()) if difference.size else 1.0,
        float(difference.max(initial=0)) / scale,
        float(difference.mean()) / scale if difference.size else 0.0,
        unit,
        None if noise == 0 else float(10 * (np.log10(max(signal, 1e-300)) - np.log10(noise))),
        same,
    )


def _steps(tensor: Tensor, values: Array) -> Array:
    """Stored values as float64; real values of a quantized output in steps of its scale; texts as numbers of their own."""
    if values.dtype.kind in "OSU":
        return np.array([crc32(str(value).encode()) for value in values.reshape(-1)], np.float64).reshape(values.shape)
    if tensor.quantization is not None and values.dtype.kind == "f" and "int" in tensor.dtype:
        return np.asarray(np.rint(values.astype(np.float64) / tensor.quantization.scale[0] + tensor.quantization.zero_point[0]))
    offset = {("int8", "uint8"): -128, ("uint8", "int8"): 128}.get((tensor.dtype, values.dtype.name), 0)
    return np.asarray(values.astype(np.float64) + offset)


def _problems(outputs: tuple[OutputComparison, ...], findings: tuple[OperatorFinding, ...], max_lsb: float | None) -> list[str]:
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
