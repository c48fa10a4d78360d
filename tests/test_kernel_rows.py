"""A runtime from outside: a plugin gives its kernels as rows, and whatever asks for kernels follows, with no edit elsewhere.

Its HardSwish of int8 rounds down, is wrong at large scales, and wraps around where a sum exceeds 8 bits; everything else is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert import audit, check, convert
from qconvert.conversion import normalize
from qconvert.errors import OptionError
from qconvert.evaluate import evaluate, evaluate_op
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import SOURCE_KERNELS
from qconvert.plugin import (
    Change,
    Format,
    Integers,
    Kernel,
    Kernels,
    ModelFile,
    Runtime,
    Target,
    constant_tolerance,
    dequantize,
    hookimpl,
    load,
    quantize,
    save,
    temporary_plugin,
)
from qconvert.plugins import target_named

WIDE, FINE = 0.9, 0.002


def hard_swish(graph: Graph, op: Op, stored: Sequence[Any]) -> Integers | None:
    """x * relu6(x + 3) / 6 in whole steps, rounded down; above 127 steps the sum wraps around."""
    given, result = graph[op.inputs[0]].quantization, graph[op.outputs[0]].quantization
    assert given is not None and result is not None
    real = dequantize(stored[0], given).astype(np.float64)
    steps = np.floor(real * np.clip(real + 3, 0, 6) / 6 / result.step).astype(np.int64) + result.point
    wrapped = (np.maximum(steps, -128) + 128) % 256 - 128
    return Integers((wrapped.astype(np.int8),), "wraps around" if (steps > 127).any() else "")


def of_large_scale(graph: Graph, op: Op) -> str:
    quantization = graph[op.inputs[0]].quantization
    return "its table ends at a scale of 0.5" if quantization is not None and quantization.step > 0.5 else ""


ROWS = Kernels((
    Kernel(("HardSwish",), ("int8",), reference=hard_swish, fault=of_large_scale),
    Kernel(("Conv", "Sigmoid"), ("int8",), tolerance=constant_tolerance(1e-6)),
    Kernel(runs="float", tolerance=constant_tolerance(1e-6)),
))  # fmt: skip


class Odd:
    """The runtime: its own kernel for HardSwish of int8, the evaluator's arithmetic for the rest."""

    note = ""

    def __init__(self, file: ModelFile) -> None:
        self.graph = load(file.path, **file.options)
        self.inputs = {name: (self.graph[name].dtype, self.graph[name].shape or ()) for name in self.graph.inputs}
        self.outputs = {name: (self.graph[name].dtype, self.graph[name].shape or ()) for name in self.graph.outputs}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return evaluate(self.graph, inputs, kernels=ROWS.compute_stored)


class Plugin:
    @hookimpl
    def qconvert_formats(self) -> list[Format]:
        return [Format("odd", (".odd",), "graphs for an odd chip", read=self._read, write=self._write, default_target="odd")]

    @staticmethod
    def _read(path: Path, options: Mapping[str, Any]) -> Graph:
        found = load(path, format="qgraph")
        return found.evolve(metadata={**found.metadata, SOURCE_KERNELS: "odd:chip"})

    @staticmethod
    def _write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[Change, ...]:
        save(graph, path, "qgraph")
        return ()

    @hookimpl
    def qconvert_targets(self) -> list[Target]:
        return [Target("odd", "odd", "an odd chip", passes=("isolate_float",), kernels=ROWS)]

    @hookimpl
    def qconvert_runtimes(self) -> list[Runtime]:
        return [Runtime("odd", ("odd",), "an odd chip", "the odd chip", Odd, lambda kernels: ROWS, ("chip",))]


@pytest.fixture(autouse=True)
def there() -> Iterator[None]:
    with temporary_plugin(Plugin(), "odd"):
        yield


def network(scale: float = 0.04, result: float = 0.05, dtype: str = "int8") -> Graph:
    """A HardSwish of as many elements as there are codes."""
    quantizations = {
        "x": Quantization.per_tensor(scale, 0 if dtype == "int8" else 128),
        "y": Quantization.per_tensor(result, -60 if dtype == "int8" else 68),
    }
    tensors = [Tensor(name, dtype, (1, 256), None, quantization) for name, quantization in quantizations.items()]
    return Graph("net", {tensor.name: tensor for tensor in tensors}, (Op("HardSwish", ("x",), ("y",), {}, "swish"),), ("x",), ("y",))


def saved(graph: Graph, path: Path) -> Path:
    save(graph, path, "qgraph")
    return path


CODES = np.arange(-128, 128, dtype=np.int8).reshape(1, 256)


def every_code(folder: Path) -> list[Path]:
    np.savez(folder / "codes.npz", x=CODES)
    return [folder / "codes.npz"]


@pytest.mark.formats
@pytest.mark.parametrize(
    ("graph", "runs", "rule"),
    [
        (network(), "integers", "integer kernel"),
        (network(dtype="uint8"), "floats", "odd has no integer kernel for uint8 data"),
        (network(WIDE), "floats", "its table ends at a scale of 0.5"),
    ],
)
def test_the_judge_and_the_audit(graph: Graph, runs: str, rule: str, tmp_path: Path) -> None:
    verdict = target_named("odd").judge(graph, graph.ops[0])
    assert verdict.runs == runs and verdict.rule.startswith(rule)
    report = audit(saved(graph, tmp_path / "m.odd"), "odd")
    assert [op.kind for op in report.operators if op.integer] == (["HardSwish"] if runs == "integers" else [])


@pytest.mark.formats
def test_what_the_kernel_computes_wrongly_is_left_on_real_values() -> None:
    fitted, _ = normalize(network(WIDE), target_named("odd"))
    assert [op.kind for op in fitted.ops] == ["Dequantize", "HardSwish", "Quantize"]
    fitted, _ = normalize(network(), target_named("odd"))
    assert [op.kind for op in fitted.ops] == ["HardSwish"]


@pytest.mark.formats
def test_functions_of_a_row_are_functions_and_return_integers() -> None:
    with refused(OptionError, "not-a-function", holds=("tolerance", 1e-6)):
        Kernel(tolerance=1e-6)  # type: ignore[arg-type]
    row = Kernel(("HardSwish",), reference=lambda graph, op, stored: stored[0])
    graph = network()
    with refused(OptionError, "wrong-result", holds=("HardSwish", "ndarray")):
        Kernels((row,)).tolerance(graph, graph.ops[0], np.zeros(4))


@pytest.mark.formats
def test_the_tolerance_is_found_by_trying_the_reference() -> None:
    graph = network()
    allowed, coarse = ROWS.tolerance(graph, graph.ops[0], np.zeros(4))
    assert coarse and 0.48 < allowed[0] <= 0.5


@pytest.mark.formats
def test_a_reference_gets_the_types_of_its_row() -> None:
    signed, unsigned = network(result=FINE), network(result=FINE, dtype="uint8")
    mine, other = (
        ROWS.integers(graph, graph.ops[0], [codes]) for graph, codes in ((signed, CODES), (unsigned, CODES.view(np.uint8) ^ 128))
    )
    assert mine is not None and other is not None and mine.fault == other.fault == "wraps around"
    assert other.ways[0].dtype == np.uint8 and np.array_equal(other.ways[0].view(np.int8) ^ -128, mine.ways[0])
    assert ROWS.tolerance(network(dtype="uint8"), unsigned.ops[0], np.zeros(4))[0][0] > 0.48


@pytest.mark.formats
@pytest.mark.parametrize("kind", ["HardSwish", "Sigmoid"])
def test_a_tolerance_is_a_number_where_the_exact_value_is_none(kind: str) -> None:
    graph = network()
    op = replace(graph.ops[0], kind=kind)
    allowed, _ = ROWS.tolerance(graph, op, np.array([np.inf, -np.inf, np.nan, 1.0]))
    assert np.isfinite(allowed).all() and len({*allowed.tolist()}) == 1


@pytest.mark.onnxruntime
def test_another_runtime_gets_a_form_with_the_same_integers(tmp_path: Path) -> None:
    source, strict, plain = saved(network(), tmp_path / "m.odd"), tmp_path / "strict.onnx", tmp_path / "plain.onnx"
    convert(source, strict, numerics="strict")
    convert(source, plain)
    report = check(source, strict, data=every_code(tmp_path), per_op=True)
    assert report.passed and [(item.verdict, item.largest) for item in report.operators] == [("equal", 0)]
    report = check(source, plain, data=every_code(tmp_path), per_op=True)
    (found,) = report.operators
    assert report.passed and found.verdict == "approximate" and found.reason == "coarse arithmetic of the odd chip's kernel"
    graph = load(source)
    wanted = hard_swish(graph, graph.ops[0], [CODES])
    assert wanted is not None and found.largest == 1
    q = graph["y"].quantization
    assert q is not None
    rounded = quantize(np.asarray(evaluate_op(graph, graph.ops[0], [CODES])[0].real), q, "int8")
    assert 0.3 < (rounded != wanted.ways[0]).mean() < 0.7


@pytest.mark.onnxruntime
def test_an_overflow_is_named_and_a_form_has_it_too(tmp_path: Path) -> None:
    source, plain, strict = saved(network(result=FINE), tmp_path / "m.odd"), tmp_path / "plain.onnx", tmp_path / "strict.onnx"
    convert(source, plain)
    report = check(source, plain, data=every_code(tmp_path), per_op=True)
    (found,) = report.operators
    assert found.verdict == "source overflows" and found.reason == "the odd chip's own kernel wraps around in swish"
    convert(source, strict, numerics="strict")
    assert [item.verdict for item in check(source, strict, data=every_code(tmp_path), per_op=True).operators] == ["equal"]
