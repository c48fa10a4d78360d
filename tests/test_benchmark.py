"""benchmark(): files side by side in their runtimes, and what stands in its way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import forked
import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert import QConvertError, benchmark, html_report
from qconvert.benchmarking import BenchmarkReport, Measured
from qconvert.benchmarking.process import _Timed
from qconvert.errors import InvalidModelError, RuntimeRefusedError
from qconvert.runtimes.onnxruntime import OnnxRuntime

FIXTURES = Path(__file__).parents[1] / "fixtures"
KWS = FIXTURES / "tiny_kws_dscnn_int8.tflite"
#: A runtime of graphs that takes 20 ms a run, and refuses a graph that is called so.
PLUGIN = """
import time
from types import SimpleNamespace
from qconvert.kernels import Kernels
from qconvert.errors import RuntimeRefusedError
from qconvert.plugin import Runtime, hookimpl

def opened(file):
    if file.path.stem == "refused":
        raise RuntimeRefusedError("it takes no such graph", rule="model-refused")
    def run(inputs):
        time.sleep(0.02)
        return {}
    return SimpleNamespace(inputs={}, outputs={}, note="slow on purpose", run=run)

@hookimpl
def qconvert_runtimes():
    return [Runtime("sleepy", ("qgraph",), "sleeps", "Sleepy", open=opened, rows=lambda kernels: Kernels(), kernels=("well",))]
"""


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_model_and_its_conversions(tmp_path: Path) -> None:
    qconvert.convert(KWS, tmp_path / "m.onnx", target="generic")
    found = benchmark(KWS, [tmp_path / "m.onnx"], targets=["ort-x86"], kernels=["litert:default", "onnxruntime"], runs=12)
    assert [(item.name, item.kernels) for item in found.done] == [
        (KWS.name, "litert:default"), ("m.onnx", "onnxruntime:optimized"), (f"{KWS.name} for ort-x86", "onnxruntime:optimized"),
    ]  # fmt: skip
    for item in found.done:
        assert item.runs == 12 and 0 < item.best <= item.median < item.first and item.processor > 0
        assert item.memory > 1e5 or sys.platform != "linux"
    assert found.done[0].file_bytes == KWS.stat().st_size and found.done[1].file_bytes == (tmp_path / "m.onnx").stat().st_size
    assert found.relative(found.done[0]) == 1
    fastest = min(found.done, key=lambda item: item.median)
    assert f"fastest: {fastest.name} in " in found.sentence
    html_report(found, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("<meter") == 3


@pytest.mark.onnxruntime
def test_onnxruntime_is_timed_without_copies_as_other_runtimes_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LiteRT and MNN say how long they work; a call of a small network from Python takes a third more than that."""
    qconvert.convert(KWS, tmp_path / "m.onnx", target="ort-x86")
    model = OnnxRuntime(tmp_path / "m.onnx")
    (name, (dtype, shape)) = next(iter(model.inputs.items()))
    sizes = [size if isinstance(size, int) else 1 for size in shape]
    inputs = {name: np.random.default_rng(0).integers(-128, 128, sizes).astype(dtype)}
    bound, expected = model.bind(inputs), model.run(inputs)
    bound()
    assert [value.tolist() for value in bound.args[0].copy_outputs_to_cpu()] == [value.tolist() for value in expected.values()]
    timed = _Timed()
    timed.model, timed.inputs, timed.held = model, inputs, 0
    monkeypatch.setattr(OnnxRuntime, "run", None)
    assert len(timed.times(3)["wall"]) == 3


@pytest.mark.litert
def test_a_target_that_refuses_the_model_does_not_end_the_others() -> None:
    lstm = FIXTURES / "coral_lstm_mnist_int8.tflite"
    found = benchmark(lstm, targets=["tensorrt", "tflite", "tflite"], kernels="litert:default", runs=3)
    assert [(item.target, bool(item.problem)) for item in found.measured] == [("", False), ("tflite", False), ("tensorrt", True)]
    assert "does not accept the model" in found.measured[-1].problem


@pytest.mark.litert
def test_a_damaged_result_does_not_end_the_others(tmp_path: Path) -> None:
    (tmp_path / "half.tflite").write_bytes(KWS.read_bytes()[:1000])
    found = benchmark(KWS, [tmp_path / "half.tflite", KWS], kernels="litert:default", runs=3)
    assert [bool(item.problem) for item in found.measured] == [False, True, False]
    assert "past the end of the file" in found.measured[1].problem
    with pytest.raises(InvalidModelError):
        benchmark(tmp_path / "half.tflite", [KWS], runs=3)


@pytest.mark.litert
@pytest.mark.onnxruntime
def test_a_runtime_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a target or a file needs it, and of the model's other runtimes."""
    (tmp_path / "onnxruntime.py").write_text("raise ModuleNotFoundError('none', name='onnxruntime')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    found = benchmark(KWS, targets=["ort-x86"], kernels="litert", runs=3)
    (litert, missing) = found.measured
    assert not litert.problem and missing.target == "ort-x86" and missing.problem.endswith("is not installed")
    with refused(RuntimeRefusedError, "nothing-measured") as found:
        benchmark(FIXTURES / "onnx" / "brevitas_int4_weights.onnx", kernels="onnxruntime", runs=3)
    assert "pip install 'qconvert[check]'" in found.value.remedy


@pytest.mark.litert
@pytest.mark.mnn
def test_runtimes_in_processes_of_their_own_say_their_memory_and_take_the_threads() -> None:
    litert, mnn = benchmark(KWS, targets=["mnn"], kernels="litert", runs=3).measured
    assert 1e5 < litert.memory < 5e7 and 1e5 < mnn.memory < 5e7


def test_reasons_of_several_lines_and_notes_of_what_did_not_run_are_left_out() -> None:
    ran = Measured("a.tflite", "litert:default", ran="LiteRT", runs=3, median=2e-3, best=1e-3, processor=1e-3, note="it ran")
    refused = Measured("a.tflite", "tensorrt:sm89", "tensorrt", problem="not accepted, in 2 places:\n- rule", note="built and not run")
    report = BenchmarkReport((ran, refused), "a machine", 1)
    assert report.notes[0] == "it ran" and len(report.notes) == 2 and "up to 2 times" in report.notes[1]
    assert report.tables()[1].rows == (("a.tflite for tensorrt", "tensorrt:sm89", "not accepted, in 2 places"),)
    assert BenchmarkReport((replace(ran, processor=1.9e-3),), "a machine", 1).notes == ("it ran",)


@pytest.mark.litert
def test_no_time_gives_three_runs() -> None:
    found = benchmark(KWS, kernels="litert:reference", runs=10, seconds=1e-6)
    assert [item.runs for item in found.measured] == [3]


def sleepy(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sleepy.py").write_text(PLUGIN)
    return forked.run(["benchmark", *words, "--plugin", str(tmp_path / "sleepy.py")])


@pytest.mark.end_to_end
def test_a_runtime_of_a_plugin(tmp_path: Path) -> None:
    """It is loaded in the process that runs the file, too; a slow one has fewer runs, and one that is refused does not end the others."""
    for name in ("taken", "refused"):
        qconvert.convert(KWS, tmp_path / f"{name}.qgraph")
    done = sleepy(tmp_path, str(tmp_path / "taken.qgraph"), str(tmp_path / "refused.qgraph"), "--seconds", "0.2", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    taken, refused = document["measured"]
    assert taken["kernels"] == "sleepy:well" and taken["note"] == "slow on purpose"
    assert 3 <= taken["runs"] <= 15 and 0.02 <= taken["best"] < 0.2 and taken["processor"] < 0.01
    assert refused["problem"] == "it takes no such graph" and refused["runs"] == 0
    alone = sleepy(tmp_path, str(tmp_path / "refused.qgraph"))
    assert alone.returncode == 4 and "nothing could be measured: sleepy:well: it takes no such graph" in alone.stderr


@pytest.mark.parametrize(
    ("more", "rule"),
    [({"targets": ["nowhere"]}, "unknown-target"), ({"runs": 0}, "number-out-of-range"), ({"seconds": float("nan")}, "number-out-of-range"),
     ({"kernels": "none:such"}, "unknown-kernels"), ({"kernels": "onnxruntime"}, "kernels-without-file"),
     ({"kernels": "onnxruntime", "targets": ["tflite"]}, "kernels-without-file"), ({"oneflow": "google"}, "unknown-option")],
)  # fmt: skip
def test_what_cannot_be_asked_for(more: dict[str, object], rule: str) -> None:
    with pytest.raises(QConvertError) as error:
        benchmark(KWS, **more)  # type: ignore[arg-type]
    assert error.value.rule == rule
