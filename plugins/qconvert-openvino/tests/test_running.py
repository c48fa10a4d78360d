"""OpenVINO's CPU plugin in checks: what it runs on integers, and where it rounds otherwise."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import qconvert_openvino
from conftest import written
from qconvert_openvino import running
from qconvert_openvino.running import OpenVinoModel, layers

import qconvert
from qconvert.plugin import ModelFile, RuntimeRefusedError, convert, evaluate, load
from qconvert.testing import random_inputs, sample_graphs


@pytest.mark.parametrize("kernels", ["int8", "unfused", "real"])
@pytest.mark.parametrize("name", sorted(sample_graphs()))
def test_sample_graphs_are_computed_within_a_step(name: str, kernels: str, tmp_path: Path) -> None:
    fitted, again = written(sample_graphs()[name], tmp_path / "model.xml")
    given = random_inputs(fitted)
    found = OpenVinoModel(ModelFile(tmp_path / "model.xml", kernels)).run(given)
    exact = evaluate(again, dict(zip(again.inputs, given.values(), strict=True)))
    for output, value in exact.items():
        if again[output].dtype == "float32":
            step = 0.041 if name == "pairs" else 1e-5
            np.testing.assert_allclose(found[output], value, atol=step, rtol=1e-5)
        else:
            assert found[output].dtype == value.dtype
            assert np.abs(found[output].astype(np.int64) - value.astype(np.int64)).max() <= 1


def test_keyword_spotting_and_autoencoder_are_equal(fixtures: Path, tmp_path: Path) -> None:
    for name in ("tiny_kws_dscnn_int8", "tiny_ad_toycar_int8"):
        convert(fixtures / f"{name}.tflite", tmp_path / f"{name}.xml")
        report = qconvert.check(fixtures / f"{name}.tflite", tmp_path / f"{name}.xml", per_op=True)
        assert report.passed
        assert {finding.verdict for finding in report.operators} == {"equal"}
        assert all(output.equal == 1 for output in report.outputs)


def test_sums_take_what_is_not_rounded(fixtures: Path, tmp_path: Path) -> None:
    """The rounding between a convolution and an Add is left out; where all values are given out, or all is real, it is not."""
    source, result = fixtures / "tiny_resnet_cifar10_int8.tflite", tmp_path / "resnet.xml"
    convert(source, result)
    found = {name: qconvert.check(source, result, kernels=f"openvino:{name}") for name in ("int8", "unfused", "real")}
    assert any("3 sums take what a convolution computed without rounding it" in note for note in found["int8"].machine)
    assert not any("sums take" in note for note in found["unfused"].machine)
    assert found["real"].passed and found["unfused"].passed and not found["int8"].passed


def test_layers_run_on_integers(fixtures: Path, tmp_path: Path) -> None:
    """Of weights with the zero point 0; the target says so of the others."""
    for name, runs in (("tiny_vww_mobilenet_int8", True), ("coral_mobilenet_v1_025_128_uint8", False)):
        path = tmp_path / f"{name}.xml"
        convert(fixtures / f"{name}.tflite", path)
        found = [layer.integer for layer in layers(ModelFile(path, "int8")) if layer.type == "Convolution"]
        assert len(found) >= 27 and {*found} == {runs}
        assert not any(layer.integer for layer in layers(ModelFile(path, "real")) if layer.type == "Convolution")
        (target,) = qconvert_openvino.qconvert_targets()
        judged = {verdict.runs for op, verdict in target.verdicts(load(path)) if op.kind == "Conv"}
        assert judged == {"integers" if runs else "floats"}


def test_states_are_carried(fixtures: Path, tmp_path: Path) -> None:
    source = fixtures / "mww_okay_nabu_streaming_int8.tflite"
    for result in (tmp_path / "wake.xml", tmp_path / "wake.onnx"):
        convert(source, result)
        assert qconvert.check(source, result, kernels="openvino").passed


def test_onnx_files_run(fixtures: Path, tmp_path: Path) -> None:
    source, result = fixtures / "coral_mobilenet_v1_025_128_uint8.tflite", tmp_path / "model.onnx"
    convert(source, result)
    assert qconvert.check(source, result, kernels="openvino").passed


def test_what_openvino_refuses_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "bad.xml").write_text("<net")
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07broken")
    for name in ("bad.xml", "bad.onnx"):
        with pytest.raises(RuntimeRefusedError) as caught:
            OpenVinoModel(ModelFile(tmp_path / name, "int8"))
        assert caught.value.exit_code == 4 and name in caught.value.file


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("raise ImportError('libfoo.so.1')", "ended with exit code 1; it printed: .*libfoo.so.1"),
        ("while True: os.write(1, b'x' * 2**20 + b'\\n')", "printed more than 67,108,864 bytes"),
        ("time.sleep(100)", "did not answer within 3 s"),
        ("__version__ = '0.1'", "refuses the model: (Attribute|Import)Error: .*'openvino'"),
    ],
)
def test_another_package_in_its_place(program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that crashes, cannot be imported, prints without end or hangs, and one of another version: an error, and no file is left."""
    (tmp_path / "openvino.py").write_text(f"import os, time\n{program}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(running, "_PATIENCE", 3.0 if "3 s" in words else 60.0)
    with pytest.raises(RuntimeRefusedError, match=words) as caught:
        OpenVinoModel(ModelFile(tmp_path / "model.xml", "int8"))
    assert caught.value.exit_code == 4 and len(caught.value.reason) < 2500
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == ["openvino.py"]
