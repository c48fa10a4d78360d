"""The per-operator check between any two runtimes: errors of reading, tensors that the reader adds, and runtimes of a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite_models import OpSpec, TensorSpec, model

from qconvert import Graph, Runtime, check, convert, load, save
from qconvert.checking.known_tensors import completed
from qconvert.evaluate import evaluate
from qconvert.plugins import operators, registry, runtimes

FIXTURES = Path(__file__).parents[2] / "fixtures"
VISION = FIXTURES / "onnx" / "torch_fx_fbgemm_vision.onnx"
KWS = FIXTURES / "tiny_kws_dscnn_int8.tflite"


def read_add_as_sub(op: Any) -> None:
    op.emit("Sub", activation=op.activation())


def read_sub_as_add(op: Any) -> None:
    op.emit("Add", activation=op.activation())


def test_a_file_that_is_read_wrong_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The result is sound; its ADD is read as a Sub, so that the pieces are not the file's."""
    result = tmp_path / "result.tflite"
    convert(VISION, result)
    added = next(op.outputs[0] for op in load(result).ops if op.kind == "Add")
    monkeypatch.setitem(operators("tflite", "read"), "ADD", read_add_as_sub)  # type: ignore[arg-type]
    report = check(VISION, result, samples=2, per_op=True, kernels="onnxruntime:unoptimized")
    wrong = [op for op in report.operators if op.verdict == "unexplained"]
    assert [op.output for op in wrong] == [added]
    assert wrong[0].reason == "reading error: what is read of result.tflite does not compute the file's own values"
    assert wrong[0].unexplained > 10
    assert not report.passed


def test_a_wrong_file_that_is_read_as_if_it_were_right_does_not_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its SUB is read as an Add: the pieces compute what the source does, the file does not."""
    sound, result = tmp_path / "sound.tflite", tmp_path / "result.tflite"
    convert(VISION, sound)
    graph = load(sound)
    add = next(op for op in graph.ops if op.kind == "Add")
    save(graph.evolve(ops=[replace(op, kind="Sub") if op is add else op for op in graph.ops]), result)
    monkeypatch.setitem(operators("tflite", "read"), "SUB", read_sub_as_add)  # type: ignore[arg-type]
    assert load(result).ops[graph.ops.index(add)].kind == "Add"
    report = check(VISION, result, samples=1, per_op=True, kernels="onnxruntime:unoptimized")
    wrong = [op for op in report.operators if op.verdict == "unexplained"]
    assert [(op.output, op.reason.split(":")[0]) for op in wrong] == [(add.outputs[0], "reading error")]


def relabelling(path: Path) -> Path:
    """A RESHAPE whose two sides have different scales: the reader adds a tensor between the move and the new label."""
    x, r = (TensorSpec(name, (1, 4, 4, 4), "int8", 0.1, 3) for name in "xr")
    sizes = TensorSpec("s", (2,), "int32", data=np.array([4, 16], np.int32))
    m, y = TensorSpec("m", (4, 16), "int8", 0.2, 1), TensorSpec("y", (4, 16), "int8", 0.3, -1)
    ops = [
        OpSpec("RELU", ["x"], ["r"], None),
        OpSpec("RESHAPE", ["r", "s"], ["m"], {"newShape": [4, 16]}),
        OpSpec("ADD", ["m", "m"], ["y"], {}),
    ]
    path.write_bytes(model(ops, [x, r, sizes, m, y], ["x"], ["y"]))
    return path


@pytest.mark.parametrize("kernels", ["litert:default", "litert:reference"])
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_tensors_that_the_reader_adds(suffix: str, kernels: str, tmp_path: Path) -> None:
    source, result = relabelling(tmp_path / "m.tflite"), tmp_path / f"result.{suffix}"
    convert(source, result)
    assert "m/moved" in load(source).tensors
    report = check(source, result, samples=2, per_op=True, kernels=kernels)
    assert report.passed, report.problems
    assert {op.output: op.verdict for op in report.operators} == dict.fromkeys(("r", "m/moved", "m", "y"), "equal")


def test_the_evaluator_completes_what_a_runtime_gives(tmp_path: Path) -> None:
    graph = load(relabelling(tmp_path / "m.tflite"))
    stored = np.arange(64, dtype=np.int8).reshape(1, 4, 4, 4)
    found = completed(graph, {"x": stored, "r": stored, "y": np.zeros((4, 16), np.int8)})
    assert np.array_equal(found["m/moved"], stored.reshape(4, 16)) and np.array_equal(found["m"], stored.reshape(4, 16))
    assert not found["y"].any()  # what the runtime gives is not computed again
    assert "m" not in completed(graph, {})


class Evaluator:
    """A runtime of .qgraph files: qconvert's own evaluator, wrong by a step where `wrong` says so."""

    note = ""

    def __init__(self, path: Path, wrong: str = "") -> None:
        self.graph, self._wrong = load(path), wrong
        self.inputs = {name: (self.graph[name].dtype, self.graph[name].shape or ()) for name in self.graph.inputs}
        self.outputs = {name: (self.graph[name].dtype, self.graph[name].shape or ()) for name in self.graph.outputs}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = evaluate(self.graph, inputs)
        return {name: value + (2 if self._wrong and name.startswith(self._wrong) else 0) for name, value in found.items()}


def made_up(monkeypatch: pytest.MonkeyPatch, wrong: str = "") -> None:
    """Adds the runtime as a plugin's hook does."""

    def opened(path: Path, kernels: str) -> Evaluator:
        return Evaluator(path, wrong)

    def reach(graph: Graph, op: Any, exact: np.ndarray, kernels: str) -> tuple[np.ndarray, bool]:
        return np.full(exact.shape, 1e-6), False

    added = Runtime("evaluator", ("qgraph",), "the exact evaluator", "the evaluator", opened, reach, ("exact",))
    monkeypatch.setattr(registry, "runtimes", lambda: {**runtimes(), "evaluator": added})


@pytest.mark.parametrize("source", [KWS, FIXTURES / "onnx" / "torch_pt2e_xnnpack_vision.onnx"], ids=lambda path: path.name)
def test_a_runtime_of_a_plugin_runs_results(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convert(source, tmp_path / "result.qgraph")
    made_up(monkeypatch)
    report = check(source, tmp_path / "result.qgraph", samples=2, per_op=True, kernels="onnxruntime:unoptimized")
    assert report.passed, report.problems
    assert len(report.operators) >= 0.9 * len(load(source).ops)
    assert "the evaluator gives out no inner tensors: how result.qgraph was read is not checked against them" in report.notes


def test_a_wrong_operator_of_a_plugins_runtime_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    convert(KWS, tmp_path / "result.qgraph")
    pool = next(op.outputs[0] for op in load(KWS).ops if op.kind == "AveragePool")
    made_up(monkeypatch, wrong=pool)
    report = check(KWS, tmp_path / "result.qgraph", samples=1, per_op=True)
    assert [op.output for op in report.operators if op.verdict == "unexplained"] == [pool]


def test_a_runtime_of_a_plugin_runs_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It gives out no inner tensors: they come from the evaluator, and what it computes from its pieces."""
    convert(KWS, tmp_path / "source.qgraph")
    convert(tmp_path / "source.qgraph", tmp_path / "result.onnx")
    made_up(monkeypatch)
    report = check(tmp_path / "source.qgraph", tmp_path / "result.onnx", samples=2, per_op=True)
    assert report.passed, report.problems
    assert report.kernels[0] == "evaluator:exact"
    assert len(report.operators) >= 0.9 * len(load(KWS).ops)
    assert all(op.largest <= 1 for op in report.operators)
