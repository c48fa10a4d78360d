"""Conversions whose scales go to a file next to a float model: TensorRT's calibration caches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from refusals import refused
from test_cli import run

import qconvert
from qconvert import Encoding, QParams, Quantization, convert, load, load_encodings
from qconvert.errors import FileAccessError, OptionError, UnsupportedError
from qconvert.graph.metadata import COMMAND, OPTIONS, SIDE_FILE

pytestmark = pytest.mark.onnxruntime

FIXTURES = Path(__file__).parents[2] / "fixtures"
PERSON = FIXTURES / "tflm_person_detect_int8.tflite"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beside")
    done = run("convert", PERSON, folder / "model.onnx", "--target", "tensorrt", "--calibration-cache", folder / "scales.cache", "-v")
    assert done.returncode == 0, done.stderr
    assert "symmetric_activations: 33 activations" in done.stdout and "SQNR" in done.stdout
    assert f"--calib={folder / 'scales.cache'}" in done.stdout and "next:" not in done.stdout
    return folder


@pytest.mark.end_to_end
def test_a_float_model_and_its_cache(made: Path) -> None:
    model = onnx.load(made / "model.onnx")
    assert not any("Quantize" in node.op_type for node in model.graph.node)
    assert {item.data_type for item in model.graph.initializer} <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}
    computed = {name for node in model.graph.node for name in node.output} | {item.name for item in model.graph.input}
    found = load_encodings(made / "scales.cache")
    assert {place.name for place in found.entries} == computed  # TensorRT wants a scale for each
    metadata = {item.key: item.value for item in model.metadata_props}
    assert metadata[f"{SIDE_FILE}calibration_cache"] == "scales.cache" and str(made) not in json.dumps(metadata)
    assert "--int8 --calib=scales.cache" in metadata[COMMAND] and "calibration_cache" not in json.loads(metadata[OPTIONS])["options"]


def inputs() -> Iterator[np.ndarray]:
    rng = np.random.default_rng(5)
    yield from rng.integers(-128, 128, (12, 1, 96, 96, 1)).astype(np.int8)


def unfused(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options)


def test_model_and_cache_compute_what_the_source_does(made: Path) -> None:
    """Put together again as TensorRT does it, both give the source's result, but for activations with quantizations half as fine."""
    source, weights = load(PERSON), {}
    again = qconvert.apply(made / "model.onnx", made / "scales.cache")
    for graph in (source, again):
        layers = [op for op in graph.ops if op.kind == "Conv"]
        weights[graph is source] = [graph[op.inputs[1]].data for op in layers]
    assert all(np.array_equal(a, b) for a, b in zip(weights[True], weights[False], strict=True)) and len(weights[True]) == 28
    qconvert.save(again, made / "again.onnx")
    convert(PERSON, made / "source.onnx", target="generic")
    (before, after), q = map(unfused, (made / "source.onnx", made / "again.onnx")), source[source.inputs[0]].quantization
    expected, found = [], []
    for data in inputs():
        expected.append(before.run(None, {source.inputs[0]: data})[0].reshape(-1))
        found.append(
            after.run(None, {again.inputs[0]: ((data.astype(np.float32) - q.zero_point) * q.scale).astype(np.float32)})[0].reshape(-1)
        )
    scores = (np.array(expected, np.float32) + 128) / 256
    assert np.abs(scores - np.array(found)).max() < 0.05 and scores.std() > 0.01


@pytest.mark.end_to_end
def test_a_check_makes_both_files_again(made: Path) -> None:
    done = run("check", PERSON, made / "model.onnx", "--json")
    assert done.returncode == 0, done.stderr
    assert not [note for note in json.loads(done.stdout)["notes"] if "made again" in note]


@pytest.mark.end_to_end
def test_trained_scales_that_a_cache_cannot_state(tmp_path: Path) -> None:
    done = run("tflite2onnx", FIXTURES / "tiny_kws_dscnn_int8.tflite", tmp_path / "m.onnx", "--target", "tensorrt",
               "--calibration-cache", tmp_path / "s.cache")  # fmt: skip
    assert done.returncode == 2 and "1 of 10 weights" in done.stderr and "functional_1/dense/MatMul" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_the_target_stands_for_the_option_alone(tmp_path: Path) -> None:
    with refused(OptionError, "scales-file-missing") as caught:
        convert(PERSON, tmp_path / "m.onnx", target="tensorrt-cache")
    assert "--calibration-cache FILE" in caught.value.remedy
    with refused(
        UnsupportedError, "zero-point-not-storable", where="'MobilenetV1/Logits/AvgPool_1a/AvgPool'"
    ) as caught:  # of another target's affine activations
        convert(PERSON, tmp_path / "m.onnx", calibration_cache=tmp_path / "s.cache")
    assert "--target tensorrt" in caught.value.remedy and not list(tmp_path.iterdir())
    with refused(OptionError, "unknown-option", holds=("calibration_cache",)):
        convert(PERSON, tmp_path / "m.tflite", calibration_cache=tmp_path / "s.cache")


def test_files_that_are_there_stay(tmp_path: Path) -> None:
    scales, model = tmp_path / "s.cache", tmp_path / "m.onnx"
    scales.write_text("mine")
    arguments = {"target": "tensorrt", "calibration_cache": scales}
    with refused(FileAccessError, "file-exists"):
        convert(PERSON, model, **arguments)
    assert scales.read_text() == "mine" and not model.exists()
    convert(PERSON, model, force=True, **arguments)
    assert scales.read_text().startswith("TRT-100300-") and model.exists()
    before = scales.read_bytes()
    with refused(FileAccessError, "file-exists"):
        convert(PERSON, model, target="tensorrt", calibration_cache=tmp_path / "other.cache")
    assert scales.read_bytes() == before and not (tmp_path / "other.cache").exists()


@pytest.mark.cross_section
def test_one_name_is_not_both(tmp_path: Path) -> None:
    for name, force in (("m.onnx", False), ("m.onnx", True)):
        with refused(OptionError, "same-file-twice"):
            convert(PERSON, tmp_path / "m.onnx", target="tensorrt", calibration_cache=tmp_path / name, force=force)
    source = tmp_path / "source.tflite"
    source.write_bytes(PERSON.read_bytes())
    with refused(OptionError, "source-overwritten"):
        convert(source, tmp_path / "m.onnx", target="tensorrt", calibration_cache=source, force=True)
    assert source.read_bytes() == PERSON.read_bytes() and not (tmp_path / "m.onnx").exists()


def test_a_name_that_cannot_be_written(tmp_path: Path) -> None:
    with refused(FileAccessError, "not-writable"):
        convert(PERSON, tmp_path / "m.onnx", target="tensorrt", calibration_cache=tmp_path / "nowhere" / "s.cache")
    assert not list(tmp_path.iterdir())


def test_a_float_model_has_no_scales(tmp_path: Path) -> None:
    with refused(UnsupportedError, "nothing-quantized"):
        convert(FIXTURES / "mnn" / "float.onnx", tmp_path / "m.onnx", target="tensorrt", calibration_cache=tmp_path / "s.cache")
    assert not list(tmp_path.iterdir())


def test_save_takes_the_option_too(tmp_path: Path) -> None:
    graph = load(FIXTURES / "mnn" / "float.onnx")
    name = graph.inputs[0]
    quantized = qconvert.apply(graph, qconvert.Encodings({name: Encoding(QParams("int8", Quantization.per_tensor(0.5)))}))
    said = qconvert.save(quantized, tmp_path / "m.onnx", calibration_cache=tmp_path / "s.cache", trt_version="8.6.1")
    assert any("TensorRT 8.6.1" in change.text for change in said)
    assert load_encodings(tmp_path / "s.cache")[name].qparams == QParams("int8", Quantization.per_tensor(0.5))
    assert not any(tensor.is_quantized for tensor in load(tmp_path / "m.onnx").tensors.values())
