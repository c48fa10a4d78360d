"""Recurrent operators of real data in all their forms: read, evaluated, written to TFLite and ONNX, beside LiteRT over several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from float_recurrent_files import NONE, RELU, RELU6, RELU_N1_TO_1, SIGN_BIT, Cells, basic_lstm_file, lstm_file, operators_of

import qconvert
from qconvert.conversion import load
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.formats.tflite.writer import build
from qconvert.runtimes.litert import LiteRT
from qconvert.streaming import Session

#: Sums of float32 in another order, over some runs, beside the largest value.
CLOSE = 3e-6
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


def compare(content: bytes, folder: Path, seed: int = 0) -> list[str]:
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
                np.testing.assert_allclose(value, wanted, atol=CLOSE * max(1, np.abs(wanted).max()), rtol=0)
    return operators_of((folder / "b.tflite").read_bytes())


@pytest.mark.parametrize("form", LSTM, ids=str)
def test_an_lstm_of_any_form(form: dict[str, Any], tmp_path: Path) -> None:
    assert "UNIDIRECTIONAL_SEQUENCE_LSTM" in compare(lstm_file(Cells(**form)), tmp_path)


@pytest.mark.parametrize("form", BOTH_WAYS, ids=str)
def test_an_lstm_both_ways(form: dict[str, Any], tmp_path: Path) -> None:
    written = compare(lstm_file(Cells(ways=2, seed=1, **form)), tmp_path)
    if form.get("aux_weights", True):
        assert written.count("BIDIRECTIONAL_SEQUENCE_LSTM") == 1 and "UNIDIRECTIONAL_SEQUENCE_LSTM" not in written
    else:  # each way has data of its own
        assert written.count("UNIDIRECTIONAL_SEQUENCE_LSTM") == written.count("REVERSE_V2") == 2


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
    assert compare(content, tmp_path).count("UNIDIRECTIONAL_SEQUENCE_LSTM") == 1


def test_what_onnx_says_by_itself_is_one_node(tmp_path: Path) -> None:
    """Coupled gates and a Relu; the rest is spelled out."""
    import onnx

    for form, kind in (({"has_input_gate": False}, "LSTM"), ({"activation": RELU}, "LSTM"), ({"norm": True}, "Scan")):
        (tmp_path / "a.tflite").write_bytes(lstm_file(Cells(**form)))
        qconvert.convert(tmp_path / "a.tflite", tmp_path / "a.onnx", force=True)
        assert [node.op_type for node in onnx.load(tmp_path / "a.onnx").graph.node].count(kind) == 1


@pytest.mark.parametrize("form", [{"norm": True, "outputs": 3, "steps": 2}, {"ways": 2, "steps": 2}], ids=str)
def test_checks_pass_and_find_a_wrong_weight(form: dict[str, Any], tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(lstm_file(Cells(**form)))
    qconvert.convert(source, result)
    report = qconvert.check(source, result, samples=1, per_op=True)
    assert report.passed, report
    source.write_bytes(lstm_file(Cells(seed=1, **form)))
    assert not qconvert.check(source, result, samples=1).passed


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"activation": NONE}, "no activation, without which its kernel gives no values"),
        ({"activation": SIGN_BIT}, "fused activation number 5"),
        ({"ways": 2, "merge": True, "rows": 2}, "takes states from beyond their tensors"),
        ({"ways": 2, "aux": 4, "aux_weights": False}, "of shape"),
        *(({"wrong": name, "outputs": 3, "norm": True}, "of shape") for name in ("cell/norm", "projection/weights", "projection/bias")),
        *(({"wrong": name, "ways": 2, "aux": 3}, "of shape") for name in ("back/cell/recurrent", "forth/output/aux", "back/forget/aux")),
    ],
    ids=str,
)
def test_what_a_kernel_does_not_do_is_refused(form: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(lstm_file(Cells(**form)))
    with pytest.raises(QConvertError, match=words):
        load(tmp_path / "a.tflite")
