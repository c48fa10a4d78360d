"""Whole models on HTP: what runs there, what comes out, and what is said where something is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from qconvert_qnn import CHIPS, running

import qconvert
from qconvert import audit
from qconvert.plugin import ModelFile, load
from qconvert.testing import random_inputs

#: Models that HTP runs wholly -> the most steps by which their outputs are off LiteRT's.
MODELS = {
    "tiny_kws_dscnn_int8": 0,
    "tiny_resnet_cifar10_int8": 8,
    "tiny_vww_mobilenet_int8": 1,
    "tiny_ad_toycar_int8": 2,
    "tflm_person_detect_int8": 2,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_wholly_on_htp_and_each_difference_is_explained(name: str, fixtures: Path, tmp_path: Path) -> None:
    source, result = fixtures / f"{name}.tflite", tmp_path / "m.onnx"
    qconvert.convert(source, result, target="qnn-htp", batch=1) if "person" not in name else qconvert.convert(
        source, result, target="qnn-htp"
    )
    report = audit(result, "qnn-htp", run=True)
    assert report.otherwise == () and all(op.integer for op in report.operators)
    checked = qconvert.check(source, result, kernels="qnn-htp")
    assert checked.passed and all(output.largest <= MODELS[name] for output in checked.outputs)
    assert "HTP" in checked.ran


@pytest.mark.parametrize("name", ["coral_mobilenet_v1_025_128_uint8", "coral_mobilenet_v2_224_uint8"])
def test_convolutions_of_mobilenet_are_within_a_step(name: str, fixtures: Path, tmp_path: Path) -> None:
    """Their weights are uint8 with zero points off the middle, some of them beyond int8."""
    result = tmp_path / "m.onnx"
    qconvert.convert(fixtures / f"{name}.tflite", result, target="qnn-htp")
    graph = load(result)
    file = ModelFile(result, "sm8650")
    inside = running.inside(file, graph)
    values = inside.values(random_inputs(graph))
    products = [op for op in graph.ops if op.kind in ("Conv", "Gemm")]
    names = frozenset(name for op in products for name in (op.inputs[0], op.outputs[0])) & inside.names
    pieces = inside.pieces(names, frozenset(op.outputs[0] for op in products))
    found = pieces.run({name: values[name] for name in pieces.fed})
    differences = [np.abs(found[op.outputs[0]].astype(int) - values[op.outputs[0]].astype(int)).max() for op in products]
    assert len(differences) >= 27 and max(differences) <= 1


def test_float_models_have_the_precision_of_float16(fixtures: Path, tmp_path: Path) -> None:
    source, result = fixtures / "onnx" / "torch_fx_fbgemm_vision.onnx", tmp_path / "m.onnx"
    qconvert.convert(source, result, target="qnn-htp")
    report = qconvert.check(source, result)
    assert report.passed and 0 < max(output.largest for output in report.outputs) < 0.02


def test_other_chips(fixtures: Path, tmp_path: Path) -> None:
    qconvert.convert(fixtures / "tiny_kws_dscnn_int8.tflite", tmp_path / "m.onnx", target="qnn-htp", batch=1)
    feed = random_inputs(load(tmp_path / "m.onnx"))
    found = [running.HtpModel(ModelFile(tmp_path / "m.onnx", chip)).run(feed) for chip in CHIPS]
    for item in found[1:]:
        for name, value in item.items():
            assert np.abs(value.astype(int) - found[0][name].astype(int)).max() <= 1


def test_dynamic_sizes_are_refused_since_nothing_would_run_on_htp(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(qconvert.QConvertError, match="input 'input_1' has the shape"):
        qconvert.convert(fixtures / "tiny_kws_dscnn_int8.tflite", tmp_path / "m.onnx", target="qnn-htp")
    assert not (tmp_path / "m.onnx").exists()


def test_svdf_is_refused_by_name(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(qconvert.QConvertError, match="IntegerSVDF of int8 data") as caught:
        qconvert.convert(fixtures / "tflm_keyword_svdf_int8.tflite", tmp_path / "m.onnx", target="qnn-htp")
    assert caught.value.rule == "target-rules" and not (tmp_path / "m.onnx").exists()


def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07broken" * 10)
    with pytest.raises(qconvert.QConvertError) as caught:
        running.HtpModel(ModelFile(tmp_path / "bad.onnx", "sm8650"))
    assert "\n" not in caught.value.reason


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("qconvert.runtimes.packages.find_spec", lambda name: None)
    with pytest.raises(qconvert.QConvertError, match="the package onnxruntime_qnn, which computes as HTP does, is not installed"):
        running.HtpModel(ModelFile(tmp_path / "m.onnx", "sm8650"))


def test_a_process_that_says_nonsense(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Liar:
        def __init__(self, *arguments: object, **options: object) -> None: ...

        def request(self, question: object) -> dict[str, object]:
            return {"inputs": [["x", "no type", []]], "outputs": [], "assigned": []}

    monkeypatch.setattr(running, "Child", Liar)
    with pytest.raises(qconvert.QConvertError, match="invalid answer"):
        running.HtpModel(ModelFile(tmp_path / "m.onnx", "sm8650"))
