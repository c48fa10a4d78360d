"""Recurrent operators of real data in all their forms: read, evaluated, written to TFLite and ONNX, next to LiteRT over several runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from float_recurrent_files import NONE, RELU, RELU6, RELU_N1_TO_1, SIGN_BIT, TANH, Cells, basic_lstm_file, lstm_file, operators_of, rnn_file
from refusals import refused

import qconvert
from qconvert.conversion import load
from qconvert.errors import QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.tflite.writer import build
from qconvert.runtimes.litert import LiteRT
from qconvert.streaming import Session

pytestmark = pytest.mark.litert

#: Sums of float32 in another order, over some runs, next to the largest value; an RNN has no gates that hold differences back.
CLOSE, CLOSE_RNN = 3e-6, 2e-5
LSTM: list[dict[str, Any]] = [
    {"has_input_gate": False},
    {"has_input_gate": False, "peephole": True, "rows": 3, "cell_clip": 0.5},
    {"outputs": 3},
    {"outputs": 3, "proj_clip": 0.4, "projection_bias": False, "rows": 3, "time_major": True},
    {"norm": True},
    {"norm": True, "has_input_gate": False, "peephole": True, "rows": 3, "time_major": True},
    {"norm": True, "peephole": True, "outputs": 3, "proj_clip": 0.5, "cell_clip": 0.5, "steps": 1},
    {"activation": RELU, "cell_clip": 3.0, "peephole": True},
    {"activation": RELU_N1_TO_1},
    {"activation": RELU6, "outputs": 4, "proj_clip": 1.0},
]
BOTH_WAYS: list[dict[str, Any]] = [
    {},
    {"rows": 3},
    {"rows": 3, "time_major": True, "merge": True},
    {"merge": True, "peephole": True},
    {"aux": 3},
    {"aux": 3, "rows": 3, "time_major": True, "merge": True, "has_input_gate": False},
    {"aux": 5, "aux_weights": False, "rows": 3},
    {"has_input_gate": False, "other": {"has_input_gate": True, "peephole": True}},
    {"outputs": 3, "cell_clip": 0.6, "proj_clip": 0.6, "rows": 2},
    {"activation": RELU6, "cell_clip": 2.0, "steps": 1},
]


RNN: list[dict[str, Any]] = [
    {},
    {"rows": 3, "time_major": True},
    {"activation": NONE, "steps": 3},
    {"activation": RELU, "rows": 2, "steps": 1},
    {"activation": RELU_N1_TO_1},
    {"activation": RELU6, "rows": 3, "time_major": True},
]
RNN_BOTH_WAYS: list[dict[str, Any]] = [
    {"rows": 3},
    {"rows": 3, "merge": True, "other": {"cells": 4}},
    {"rows": 3, "merge": True, "time_major": True},
    {"aux": 3, "rows": 2},
    {"aux": 5, "rows": 3, "time_major": True, "activation": RELU6},
    {"aux": 5, "rows": 2, "aux_weights": False},
    {"aux": 5, "rows": 2, "aux_weights": False, "time_major": True},
]


def compare(content: bytes, folder: Path, seed: int = 0, close: float = CLOSE) -> list[str]:
    """The operators written, after runs that LiteRT, the evaluation, the file written again and those of ONNX and back all give alike."""
    path = folder / "a.tflite"
    path.write_bytes(content)
    graph = load(path)
    qconvert.convert(path, folder / "a.onnx")
    qconvert.convert(folder / "a.onnx", folder / "b.tflite")
    model, others = LiteRT(content), [LiteRT(build(graph, {})), Session(folder / "a.onnx"), Session(folder / "b.tflite")]
    rng = np.random.default_rng(seed)
    states: dict[str, np.ndarray] = {}
    for _ in range(5):
        feed = {name: rng.normal(0, 1, shape).astype("float32") for name, (_, shape) in model.inputs.items()}
        expected = list(model.run(feed).values())
        found = [list(other.run(dict(zip(other.inputs, feed.values(), strict=True))).values()) for other in others]
        values = evaluate(graph, feed, states)
        for listed in (*found, [values[name] for name in graph.outputs]):
            for value, wanted in zip(listed, expected, strict=True):
                np.testing.assert_allclose(value, wanted, atol=close * max(1, np.abs(wanted).max()), rtol=0)
    return operators_of((folder / "b.tflite").read_bytes())


@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", LSTM, ids=str)
def test_an_lstm_of_any_form(form: dict[str, Any], tmp_path: Path) -> None:
    assert compare(lstm_file(Cells(**form)), tmp_path) == ["UNIDIRECTIONAL_SEQUENCE_LSTM"]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", BOTH_WAYS, ids=str)
def test_an_lstm_both_ways(form: dict[str, Any], tmp_path: Path) -> None:
    written = compare(lstm_file(Cells(ways=2, seed=1, **form)), tmp_path)
    if not form.get("aux_weights", True):  # each way has data of its own
        assert written.count("UNIDIRECTIONAL_SEQUENCE_LSTM") == written.count("REVERSE_V2") == 2
    elif form.get("aux"):
        assert {*written} <= {"TRANSPOSE", "CONCATENATION", "BIDIRECTIONAL_SEQUENCE_LSTM"} and written.count(
            "BIDIRECTIONAL_SEQUENCE_LSTM"
        ) == 1
    else:
        assert written == ["BIDIRECTIONAL_SEQUENCE_LSTM"]


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "content",
    [
        lstm_file(Cells(rows=3, peephole=True), single=True),
        lstm_file(Cells(norm=True, outputs=3, has_input_gate=False), single=True),
        basic_lstm_file(Cells(rows=3)),
        basic_lstm_file(Cells(cell_clip=0.1, activation=RELU)),  # at which its kernel does not look
    ],
    ids=["full", "full, coupled", "basic", "basic with options"],
)
def test_an_lstm_of_one_step(content: bytes, tmp_path: Path) -> None:
    assert compare(content, tmp_path) == ["LSTM"]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", RNN, ids=str)
def test_an_rnn(form: dict[str, Any], tmp_path: Path) -> None:
    assert compare(rnn_file(Cells(**form)), tmp_path, close=CLOSE_RNN) == ["UNIDIRECTIONAL_SEQUENCE_RNN"]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("activation", [NONE, RELU_N1_TO_1, TANH])
def test_an_rnn_of_one_step(activation: int, tmp_path: Path) -> None:
    content = rnn_file(Cells(rows=3, activation=activation), single=True)
    assert compare(content, tmp_path, close=CLOSE_RNN) == ["RNN"]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", RNN_BOTH_WAYS, ids=str)
def test_an_rnn_both_ways(form: dict[str, Any], tmp_path: Path) -> None:
    """Without weights of its own an auxiliary input is what the way back takes, but not with rows in front."""
    written = compare(rnn_file(Cells(ways=2, seed=1, **form)), tmp_path, close=CLOSE_RNN)
    apart = not form.get("aux_weights", True) and "time_major" in form
    assert written.count("BIDIRECTIONAL_SEQUENCE_RNN") == (not apart)
    assert written.count("UNIDIRECTIONAL_SEQUENCE_RNN") == 2 * apart


def test_what_onnx_says_by_itself_is_one_node(tmp_path: Path) -> None:
    """Coupled gates and a Relu; the rest is decomposed."""
    import onnx

    for form, kind in (({"has_input_gate": False}, "LSTM"), ({"activation": RELU}, "LSTM"), ({"norm": True}, "Scan")):
        (tmp_path / "a.tflite").write_bytes(lstm_file(Cells(**form)))
        qconvert.convert(tmp_path / "a.tflite", tmp_path / "a.onnx", force=True)
        assert [node.op_type for node in onnx.load(tmp_path / "a.onnx").graph.node].count(kind) == 1


@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", [{"norm": True, "outputs": 3, "steps": 2}, {"ways": 2, "steps": 2}], ids=str)
def test_checks_pass_and_find_a_wrong_weight(form: dict[str, Any], tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(lstm_file(Cells(**form)))
    qconvert.convert(source, result)
    report = qconvert.check(source, result, samples=1, per_op=True)
    assert report.passed, report
    source.write_bytes(lstm_file(Cells(seed=1, **form)))
    assert not qconvert.check(source, result, samples=1).passed


@pytest.mark.cross_section
@pytest.mark.parametrize(
    ("form", "rule", "holds"),
    [
        ({"activation": NONE}, "activation-not-covered", ()),
        ({"activation": SIGN_BIT}, "activation-not-covered", (5,)),
        ({"ways": 2, "merge": True, "rows": 2}, "misread-by-kernel", ()),
        ({"ways": 2, "aux": 4, "aux_weights": False}, "shape-mismatch", ()),
        *(
            ({"wrong": name, "outputs": 3, "norm": True}, "shape-mismatch", ())
            for name in ("cell/norm", "projection/weights", "projection/bias")
        ),
        *(
            ({"wrong": name, "ways": 2, "aux": 3}, "shape-mismatch", ())
            for name in ("back/cell/recurrent", "forth/output/aux", "back/forget/aux")
        ),
    ],
    ids=str,
)
def test_what_the_kernel_of_an_lstm_does_not_do_is_refused(
    form: dict[str, Any], rule: str, holds: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.tflite").write_bytes(lstm_file(Cells(**form)))
    with refused(QConvertError, rule, holds=holds):
        load(tmp_path / "a.tflite")


@pytest.mark.parametrize(
    ("form", "rule", "holds"),
    [
        ({"activation": SIGN_BIT}, "activation-not-covered", (5,)),
        ({"ways": 2, "aux": 3, "time_major": True}, "misread-by-kernel", ()),
        ({"wrong": "weights"}, "shape-mismatch", ()),
        ({"wrong": "recurrent"}, "shape-mismatch", ()),
        ({"wrong": "bias"}, "shape-mismatch", ()),
        ({"wrong": "back/aux", "ways": 2, "aux": 3}, "shape-mismatch", ()),
    ],
    ids=str,
)
def test_what_the_kernel_of_an_rnn_does_not_do_is_refused(
    form: dict[str, Any], rule: str, holds: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.tflite").write_bytes(rnn_file(Cells(**form)))
    with refused(QConvertError, rule, holds=holds):
        load(tmp_path / "a.tflite")


@pytest.mark.parametrize("attributes", [{"activations": ("Softsign",)}, {"activations": ("Relu",), "clip": 5.0}, {"layout": 1}], ids=str)
def test_an_rnn_that_tflite_does_not_have_is_refused(attributes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(rnn_file(Cells(time_major=True, rows=6)))
    graph = load(tmp_path / "a.tflite")
    ops = [replace(op, attributes={**op.attributes, **attributes}) if op.kind == "RNN" else op for op in graph.ops]
    with refused(UnsupportedError, "attribute-not-covered"):
        build(graph.evolve(ops=ops), {})
