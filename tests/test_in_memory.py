"""Graphs and bytes wherever a model's path goes."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.errors import InvalidModelError, OptionError

pytestmark = pytest.mark.end_to_end

FIXTURES = Path(__file__).parent.parent / "fixtures"
TFLITE = FIXTURES / "tiny_kws_dscnn_int8.tflite"
ONNX = FIXTURES / "onnx" / "torch_fx_fbgemm_vision.onnx"
FLOAT = FIXTURES / "mnn" / "float.onnx"


def test_load_takes_bytes_and_graphs() -> None:
    whole = qconvert.load(TFLITE)
    for graph in (qconvert.load(TFLITE.read_bytes()), qconvert.load(TFLITE.read_bytes(), "tflite")):
        gc.collect()  # the temporary file is gone, the constants are not
        assert qconvert.diff(whole, graph) == []
    assert qconvert.load(whole) is whole
    assert qconvert.load(whole, batch=2)[whole.outputs[0]].shape == (2, 12)
    assert qconvert.load(TFLITE.read_bytes(), batch=2)[whole.outputs[0]].shape == (2, 12)


def test_convert_takes_them(tmp_path: Path) -> None:
    graph = qconvert.load(TFLITE)
    of_file = qconvert.convert(TFLITE, tmp_path / "a.onnx")
    of_bytes = qconvert.convert(TFLITE.read_bytes(), tmp_path / "b.onnx", source_format="tflite")
    of_graph = qconvert.convert(graph, tmp_path / "c.onnx", target="ort-x86")
    assert of_bytes.source == "the bytes" and of_graph.source == f"the graph {graph.name!r}"
    assert of_file.operators == of_bytes.operators == of_graph.operators
    assert qconvert.diff(tmp_path / "a.onnx", tmp_path / "b.onnx") == []
    assert qconvert.check(TFLITE, tmp_path / "b.onnx", samples=2).passed
    assert qconvert.check(TFLITE, tmp_path / "c.onnx", samples=2).passed


def test_check_takes_them(tmp_path: Path) -> None:
    qconvert.convert(TFLITE, tmp_path / "a.onnx")
    result = (tmp_path / "a.onnx").read_bytes()
    found = qconvert.check(TFLITE.read_bytes(), result, samples=2, source_format="tflite", result_format="onnx")
    assert found.passed and (found.source, found.result) == ("the bytes", "the bytes")
    graph = qconvert.load(TFLITE)
    assert qconvert.check(graph, tmp_path / "a.onnx", samples=2).passed
    name = next(op.inputs[1] for op in graph if op.kind == "Conv")
    from dataclasses import replace

    wrong = graph.evolve(tensors=[replace(graph[name], data=-np.array(graph[name].data) // 2)])
    assert not qconvert.check(TFLITE, wrong, samples=2).passed


def test_the_others_take_them(tmp_path: Path) -> None:
    graph, content = qconvert.load(ONNX), ONNX.read_bytes()
    for model, name in ((graph, f"the graph {graph.name!r}"), (content, "the bytes")):
        assert qconvert.audit(model, "ort-x86").source == name
        trip = qconvert.roundtrip(model, "onnx:qdq", samples=1)
        assert trip.source == name and trip.passed, trip
        assert qconvert.diff(model, ONNX) == []
        assert len(qconvert.extract_scales(model)[1]) == len(qconvert.extract_scales(ONNX)[1])
        qconvert.html_report(model, tmp_path / "page.html", force=True, values=False)
        assert "Conv" in (tmp_path / "page.html").read_text()
    costs = qconvert.pass_costs(content, names=["symmetric_activations"], samples=1)
    assert costs == qconvert.pass_costs(graph, names=["symmetric_activations"], samples=1)


@pytest.mark.onnxruntime
def test_calibrate_and_apply_take_bytes() -> None:
    content, graph = FLOAT.read_bytes(), qconvert.load(FLOAT)
    (name,) = graph.inputs
    shape = [size if isinstance(size, int) else 1 for size in graph[name].shape or ()]
    data = [np.random.default_rng(0).random(shape[1:], np.float32) for _ in range(2)]
    encodings = qconvert.calibrate(content, data, format="onnx")
    assert len(encodings) and qconvert.diff(qconvert.apply(content, encodings), qconvert.apply(graph, encodings)) == []


def test_what_is_no_model() -> None:
    with refused(OptionError, "format-missing"):
        qconvert.load(b"nothing of a model")
    with refused(OptionError, "not-a-model"):
        qconvert.load([1, 2])  # type: ignore[arg-type]
    with refused(InvalidModelError, "damaged-file") as caught:
        qconvert.load(TFLITE.read_bytes()[:200], "tflite")
    assert str(caught.value).startswith("the bytes: ")
    with refused(InvalidModelError, "empty-file") as caught:
        qconvert.convert(b"", "never.onnx", source_format="tflite")
    assert str(caught.value).startswith("the bytes: ") and not Path("never.onnx").exists()
    with refused(OptionError, "unknown-format", holds=("tflight",)):
        qconvert.load(b"x", "tflight")
