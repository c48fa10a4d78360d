"""check(): source and result run in their own runtimes, output by output and, if asked, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qconvert.checking.inputs import load_inputs, random_inputs
from qconvert.checking.operators import OperatorFinding, check_operators
from qconvert.conversion import load
from qconvert.errors import OptionError
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
    """What a check found. `problems` says, in sentences, why it failed; it passed if there are none."""

    source: str
    result: str
    kernels: str
    runs: int
    outputs: tuple[OutputComparison, ...]
    operators: tuple[OperatorFinding, ...]
    problems: tuple[str, ...]

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
    per_op: bool = False,
    max_lsb: float | None = None,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> CheckReport:
    """Compares a source model and its conversion.

    Args:
        source: a .tflite model.
        result: the converted model, .onnx (or .tflite, for its outputs alone).
        inputs: files and folders of inputs (see inputs.py); random inputs without.
        samples: how many inputs at most.
        kernels: LiteRT's "default" (XNNPACK) or "reference" kernels.
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
    graph = load(source)
    feeds = load_inputs(graph, inputs, samples) if inputs else random_inputs(graph, samples, seed)
    left, right = _runtime(source, kernels), _runtime(result, kernels)
    pairs: dict[str, list[tuple[Array, Array]]] = {}
    for done, feed in enumerate(feeds):
        expected = left.run(feed)
        actual = right.run(_matched_inputs(graph, feed, right))
        for name, a, b in _matched_outputs(graph, expected, actual):
            pairs.setdefault(name, []).append((a, b))
        progress("inputs", done + 1, len(feeds))
    outputs = tuple(_compare(graph[name], found) for name, found in pairs.items())
    findings: tuple[OperatorFinding, ...] = ()
    if per_op:
        findings = check_operators(source, result, graph, feeds, kernels, progress)
    return CheckReport(str(source), str(result), kernels, len(feeds), outputs, findings, tuple(_problems(outputs, findings, max_lsb)))


def _runtime(path: Path, kernels: str) -> Runtime:
    """The file's own runtime, by its suffix."""
    kind, companions = format_of(path).name, format_of(path).companions
    data = map_file(path)
    if kind == "tflite":
        from qconvert.formats.tflite.probe import accepted_copy
        from qconvert.runtimes.litert import LiteRT

        return LiteRT(accepted_copy(bytes(data)), kernels)
    if kind == "onnx":
        from qconvert.runtimes.onnxruntime import OnnxRuntime

        return OnnxRuntime(path if companions and companions(path) else bytes(data))
    raise OptionError(f"there is no runtime for {kind} files", file=str(path))


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
    left, right = (np.stack([_steps(tensor, pair[side]) for pair in pairs]) for side in (0, 1))
    difference = np.abs(left - right)
    unit, scale = "LSB", 1.0
    if pairs[0][0].dtype.kind == "f":
        unit, scale = "of range", float(left.max(initial=0) - left.min(initial=0)) or 1.0
    noise = float(np.square(difference).mean()) if difference.size else 0.0
    signal = float(np.square(left - (0 if tensor.quantization is None else tensor.quantization.zero_point[0])).mean()) if left.size else 0.0
    rows = left.reshape(len(pairs), -1)
    is_scores = pairs[0][0].ndim == 2 and pairs[0][0].shape[0] == 1 and rows.shape[1] > 1
    same = float((rows.argmax(1) == right.reshape(len(pairs), -1).argmax(1)).mean()) if is_scores else None
    return OutputComparison(
        tensor.name,
        float((difference == 0).mean()) if difference.size else 1.0,
        float(difference.max(initial=0)) / scale,
        float(difference.mean()) / scale if difference.size else 0.0,
        unit,
        None if noise == 0 else float(10 * np.log10(max(signal, 1e-300) / noise)),
        same,
    )


def _steps(tensor: Tensor, values: Array) -> Array:
    """Stored values as float64; real values of a quantized output in steps of its scale."""
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
