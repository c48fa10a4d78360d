"""The conformance matrix: what becomes of an operator of each kind and type in each target, tried in the target's runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic import dequantize, quantize
from qconvert.conformance.examples import examples_of, make_graph, random_operands, types_of
from qconvert.conversion import load, normalize, save
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate, evaluate_op, stored_inputs
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Arrays, Graph, Op, Tensor, count_kinds
from qconvert.kernels import Kernels
from qconvert.operators import KINDS, Kind, kind_of
from qconvert.plugins import Derived, ModelFile, Runtime, Target, find_target, format_named, kernels_named

#: Target -> the kernels that run its files here; "" where they are only written and read.
TARGETS: Mapping[str, str] = {
    "tflite": "litert:default",
    "tflite-micro": "tflite-micro:reference",
    "ort-x86": "onnxruntime:optimized",
    "portable": "onnxruntime:optimized",
    "torch": "torch:rebuilt",
    "tensorrt": "",
}
_SEED = 20260101
#: Relative error of float32 arithmetic in which no result is another one.
_FLOAT_ERROR = 2e-5


def _stands_around(kind: Kind) -> bool:
    """Whether operators of a kind stand around others in a file, and say nothing of how these are written."""
    return kind.rule in ("convert", "relabel") or kind.copies or kind.transposes


@dataclass(frozen=True, slots=True)
class Cell:
    """What becomes of one operator in one target.

    Attributes:
        kind, dtype, target: of the operator; "plain" for the types of a kind that is never quantized.
        runs: "integers", "floats" or "refused"; "fails" where the runtime does not take the file, or qconvert cannot read it.
        form: kinds that the written file has for it, each once; the kind alone where the format has it;
            empty where files of the format are not read.
        kernel: what is known of the runtime's kernel: "reference" (its integers), "tolerance" or "".
        result: "equal" to the exact value, rounded once; "explained" by the kernel's row, also by its fault, or in the last bits of floats;
            "one step" away; "different"; "" where nothing runs.
        largest: the largest difference, in steps of the result, or relative to the largest value for floats.
        reason: why it is refused, fails, or does not run on integers.
    """

    kind: str
    dtype: str
    target: str
    runs: str
    form: tuple[str, ...] = ()
    kernel: str = ""
    result: str = ""
    largest: float = 0.0
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields that say something, as a JSON object."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items() if value or name == "runs"}


def conformance(target: Target | Derived | str, kernels: str = "", kinds: Iterable[str] = (), seed: int = _SEED) -> Iterator[Cell]:
    """Try an operator of each kind and type in a target, each in a file of its own, and yield what became of it.

    Args:
        target: or its name.
        kernels: those that run its files, as in `--kernels`, such as "litert:default"; "" to write and read the files alone.
        kinds: of operators; by default all that have an example (conformance/examples.py).
        seed: of scales, constants and inputs.
    """
    chosen = find_target(target)
    runtime, name = kernels_named(kernels) if kernels else (None, "")
    with temporary_folder() as folder:
        for kind in kinds or [name for name, item in KINDS.items() if examples_of(item)]:
            for dtype in types_of(KINDS[kind]):
                yield _try_operator(
                    kind, dtype, chosen, runtime, name, np.random.default_rng((seed, *kind.encode(), *dtype.encode())), folder
                )


def write_graph(graph: Graph, target: Target, folder: Path) -> tuple[Graph, Path]:
    """Write a graph as the target wants it, and return it after the target's passes, with the file.

    Raises:
        QConvertError: the target or its format refuses it.
    """
    fitted, _ = normalize(graph, target)
    path = folder / f"m{format_named(target.format).suffix_for(target.write_options)}"
    save(fitted, path, target.format, force=True, **target.write_options)
    return fitted, path


def run_file(path: Path, graph: Graph, stored: Arrays, runtime: Runtime, kernels: str) -> list[Array]:
    """Run a file in its runtime, and return its outputs as the graph stores them that it was written of.

    Args:
        path: the file.
        graph: that it was written of.
        stored: values of the graph's inputs by name.
        runtime, kernels: what runs it.
    """
    model = runtime.open(ModelFile(path, kernels))
    taken = zip(model.inputs.items(), graph.inputs, strict=True)
    results = model.run({own: _as_taken(stored[name], graph[name], dtype) for (own, (dtype, _)), name in taken})
    return [_as_stored(result, graph[name]) for result, name in zip(results.values(), graph.outputs, strict=True)]


def _try_operator(
    kind: str, dtype: str, target: Target, runtime: Runtime | None, kernels: str, rng: np.random.Generator, folder: Path
) -> Cell:
    rows = target.kernels if runtime is None else runtime.rows(kernels)
    graph = make_graph(kind, dtype, rng, rows, target.layout or "channels_first")
    stored = random_operands(graph, kind, rng)
    try:
        fitted, path = write_graph(graph, target, folder)
    except QConvertError as error:
        return Cell(kind, dtype, target.name, "refused", reason=error.reason)
    verdicts = list(target.verdicts(fitted))
    refused = [verdict.rule for _, verdict in verdicts if verdict.runs == "refused"]
    if refused:
        return Cell(kind, dtype, target.name, "refused", reason=refused[0])
    try:
        found = load(path, target.format).ops if format_named(target.format).read is not None else ()
    except QConvertError as error:
        return Cell(kind, dtype, target.name, "fails", reason=error.reason)
    form = tuple(name for name in count_kinds(found) if name == kind or not _stands_around(KINDS[name]))
    own = [(op, verdict) for op, verdict in verdicts if op.kind == kind] or [
        (op, verdict) for op, verdict in verdicts if (item := kind_of(op)).rule != "move" and not _stands_around(item)
    ]
    on_integers = all(verdict.runs == "integers" for _, verdict in own)
    runs = "integers" if on_integers else "floats"
    reason = "" if on_integers else next(verdict.rule for _, verdict in own if verdict.runs != "integers")
    if runtime is None:
        return Cell(kind, dtype, target.name, runs, form, reason=reason)
    fed = {name: _as_type(stored[given], graph[given], fitted[name]) for name, given in zip(fitted.inputs, graph.inputs, strict=True)}
    try:
        results = run_file(path, fitted, fed, runtime, kernels)
    except QConvertError as error:
        return Cell(kind, dtype, target.name, "fails", form, reason=error.reason)
    wanted, is_open = evaluate(graph, stored), _is_open(graph, stored)
    largest = max(
        _difference(graph[given], wanted[given], fitted[name], result, is_open)
        for given, name, result in zip(graph.outputs, fitted.outputs, results, strict=True)
    )
    is_whole = len(fitted.ops) == len(fitted.of_kind(kind)) == 1
    row = rows.of(fitted, fitted.ops[0]) if is_whole else None
    basis = "" if row is None else "reference" if row.reference is not None else "tolerance" if row.tolerance is not None else ""
    is_float = graph[graph.outputs[0]].dtype.startswith("float")
    if largest == 0 or (is_float and largest <= _FLOAT_ERROR):
        result = "equal" if largest == 0 else "explained"
    elif any(rows.fault(fitted, op) for op in fitted.ops) or (
        is_whole and not measure_excess(fitted, fitted.ops[0], stored_inputs(fitted, fitted.ops[0], fed), results[0], rows)[0].any()
    ):
        result = "explained"
    else:
        result = "one step" if not is_float and largest <= 1 else "different"
    return Cell(kind, dtype, target.name, runs, form, basis, result, float(f"{largest:.2g}"), reason)


def _as_taken(stored: Array, tensor: Tensor, dtype: str) -> Array:
    """Return stored values as a runtime takes them, whose files may have float inputs in the place of quantized ones."""
    return dequantize(stored, tensor.quantization).astype(dtype) if tensor.quantization is not None and "float" in dtype else stored


def _as_stored(values: Array, tensor: Tensor) -> Array:
    return quantize(values, tensor.quantization, tensor.dtype) if tensor.quantization is not None and values.dtype.kind == "f" else values


def _as_type(stored: Array, tensor: Tensor, other: Tensor) -> Array:
    """Return stored values of a tensor as another stores them, which may have another type and zero point."""
    if tensor.quantization is None or other.quantization is None or tensor.quantization == other.quantization:
        return stored
    return quantize(dequantize(stored, tensor.quantization), other.quantization, other.dtype)


def _is_open(graph: Graph, stored: Arrays) -> Array:
    """Where the exact value is NaN, which no integer stands for."""
    if len(graph.ops) != 1:
        return np.array(False)
    real = evaluate_op(graph, graph.ops[0], stored_inputs(graph, graph.ops[0], stored))[0].real
    return np.array(False) if real is None else np.isnan(real)


def _difference(tensor: Tensor, wanted: Array, other: Tensor, found: Array, is_open: Array) -> float:
    """Return the largest difference between a tensor and a result, in steps, or relative to the largest value for floats."""
    if wanted.size != found.size:
        return float("inf")
    found = found.reshape(wanted.shape)
    if tensor.quantization is not None and other.quantization is not None:
        off = np.abs(dequantize(found, other.quantization).astype(np.float64) - dequantize(wanted, tensor.quantization).astype(np.float64))
        return float(np.where(is_open, 0.0, np.round(off / tensor.quantization.scale[0], 3)).max(initial=0))
    if wanted.dtype.kind != "f":
        return float(np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max(initial=0))
    scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)) or 1.0
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        off = np.where(same, 0.0, np.abs(found.astype(np.float64) - wanted) / scale)
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0))


def measure_excess(graph: Graph, op: Op, inputs: Sequence[Array | None], result: Array, rows: Kernels) -> tuple[Array, bool]:
    """Return how far each element lies beyond what its kernel may give, in steps, and whether a reference says what that is.

    Args:
        graph, op: the operator.
        inputs: its stored inputs.
        result: the runtime's stored result.
        rows: of its kernels: the integers of a reference, or the exact value within a tolerance.
    """
    shape = graph[op.outputs[0]].static_shape
    result = result if shape is None else result.reshape(shape)
    known = rows.integers(graph, op, inputs)
    if known is not None:
        return np.asarray(np.min([np.abs(result.astype(np.float64) - way.astype(np.float64)) for way in known.ways], axis=0)), True
    exact, tensor = evaluate_op(graph, op, inputs)[0], graph[op.outputs[0]]
    if exact.real is None or tensor.quantization is None:
        if result.shape != exact.stored.shape:
            return np.array([np.inf]), False
        return np.abs(result.astype(np.float64) - exact.stored.astype(np.float64)), False
    steps = exact.real / tensor.quantization.step
    allowed, _ = rows.tolerance(graph, op, steps)
    position = np.clip(steps + tensor.quantization.point, *tensor.quantization.limits(tensor.dtype))
    open_in_c = ~(np.abs(steps) < 2.0**31)  # what becomes of NaN, and of what 32 bits do not hold
    return np.where(open_in_c, 0.0, np.maximum(np.abs(result - position) - 0.5 - allowed, 0.0)), False
