"""UNIDIRECTIONAL_SEQUENCE_LSTM of real data: read as an LSTM, evaluated, written to TFLite and ONNX, next to LiteRT over several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from lstm_files import real_lstm_file
from refusals import refused

import qconvert
from qconvert.conversion import load
from qconvert.errors import QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.tflite.writer import build
from qconvert.runtimes.litert import LiteRT
from qconvert.streaming import Session

pytestmark = pytest.mark.litert

RECURRENT = Path(__file__).parents[3] / "fixtures" / "recurrent"
FORMS: list[dict[str, Any]] = [
    {},
    {"old": True},
    {"rows": 3},
    {"rows": 3, "time_major": True},
    {"steps": 1, "rows": 2, "cell_clip": 0.6},
    {"cell_clip": 0.5},
    {"cell_clip": 0.7, "rows": 2, "time_major": True},
    {"peephole": True},
    {"peephole": True, "cell_clip": 0.8, "rows": 2},
]
#: Sums of float32 in another order, over some runs.
CLOSE = 3e-6


def feeds(model: LiteRT, count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{name: rng.normal(0, 1, shape).astype("float32") for name, (_, shape) in model.inputs.items()} for _ in range(count)]


def compare(content: bytes, folder: Path) -> qconvert.Graph:
    """The graph of a file, after runs that LiteRT, the evaluation, the file that is written again and that of ONNX all give alike."""
    path = folder / "lstm.tflite"
    path.write_bytes(content)
    graph = load(path)
    qconvert.convert(path, folder / "lstm.onnx")
    qconvert.convert(folder / "lstm.onnx", folder / "again.tflite")
    model, others = LiteRT(content), [LiteRT(build(graph, {})), Session(folder / "lstm.onnx"), Session(folder / "again.tflite")]
    states: dict[str, np.ndarray] = {}
    for feed in feeds(model, 5):
        (expected,) = model.run(feed).values()
        found = [next(iter(other.run(dict(zip(other.inputs, feed.values(), strict=True))).values())) for other in others]
        found.append(evaluate(graph, feed, states)[graph.outputs[0]])
        for value in found:
            np.testing.assert_allclose(value, expected, atol=CLOSE, rtol=0)
    return graph


@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_lstm_is_read_and_written(form: dict[str, Any], tmp_path: Path) -> None:
    graph = compare(real_lstm_file(**form), tmp_path)
    found = next(op for op in graph.ops if op.kind == "LSTM")
    assert float(found["cell_clip"]) == pytest.approx(form.get("cell_clip", 0.0))
    assert [state.shape for state in graph.states.values()] == [(1, form.get("rows", 1), 8)] * 2


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", ["lstm_float", "lstm_both_ways_float", "lstm_float16"])
def test_what_keras_makes(name: str, tmp_path: Path) -> None:
    """Whose cells all have the limit 10; weights of float16, and the states' zeros, come out of a DEQUANTIZE."""
    graph = compare((RECURRENT / f"{name}.tflite").read_bytes(), tmp_path)
    assert [float(op["cell_clip"]) for op in graph.ops if op.kind == "LSTM"] == [10.0, 10.0]
    report = qconvert.check(tmp_path / "lstm.tflite", tmp_path / "lstm.onnx", samples=1, per_op=True)
    assert report.passed, report


def test_other_first_values_than_zeros_are_refused(tmp_path: Path) -> None:
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf((RECURRENT / "lstm_float16.tflite").read_bytes(), 0)
    graph = model.subgraphs[0]
    first = next(op for op in graph.operators if len(op.inputs) == 1 and graph.tensors[op.outputs[0]].isVariable)
    buffer = model.buffers[graph.tensors[first.inputs[0]].buffer]
    buffer.data = np.full(len(buffer.data), 60, np.uint8)
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    (tmp_path / "a.tflite").write_bytes(bytes(builder.Output()))
    with refused(UnsupportedError, "nonzero-initial-state"):
        load(tmp_path / "a.tflite")


def test_the_limit_of_the_cell_matters() -> None:
    """So that the files above show it."""
    feed = {"data": np.random.default_rng(0).normal(0, 1, (1, 6, 5)).astype("float32")}
    free, limited = (LiteRT(real_lstm_file(cell_clip=clip)).run(feed)["output"] for clip in (0.0, 0.5))
    assert np.abs(free - limited).max() > 0.05


@pytest.mark.onnxruntime
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_checks_pass_and_find_a_wrong_weight(clip: float, tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(real_lstm_file(cell_clip=clip))
    qconvert.convert(source, result)
    report = qconvert.check(source, result, samples=1, per_op=True)
    assert report.passed, report
    assert {item.verdict for item in report.operators} <= {"equal", "one rounding", "approximate"}
    source.write_bytes(real_lstm_file(cell_clip=clip, seed=1))
    assert not qconvert.check(source, result, samples=1).passed


@pytest.mark.cross_section
@pytest.mark.parametrize(
    ("form", "rule", "holds"),
    [
        ({"activation": 0}, "activation-not-covered", ()),
        ({"activation": 5}, "activation-not-covered", (5,)),
        *(({"wrong": f"{gate}/{what}"}, "shape-mismatch", ()) for gate in ("forget", "cell") for what in ("weights", "recurrent", "bias")),
        ({"wrong": "output/peephole", "peephole": True}, "shape-mismatch", ()),
    ],
)
def test_what_an_lstm_is_not_is_refused(form: dict[str, Any], rule: str, holds: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(real_lstm_file(**form))
    with refused(QConvertError, rule, holds=holds):
        load(tmp_path / "a.tflite")
