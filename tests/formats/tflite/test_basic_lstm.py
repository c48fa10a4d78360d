"""LSTM of uint8 data, the basic kernel: its arithmetic, reading, evaluation, and both ways to ONNX and back, next to LiteRT in every
bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from float_recurrent_files import integer_basic_lstm_file, operators_of
from refusals import refused

import qconvert
from qconvert.arithmetic import BasicLstm
from qconvert.conversion import load
from qconvert.errors import InvalidModelError
from qconvert.evaluate import evaluate
from qconvert.formats.tflite.writer import build
from qconvert.runtimes.litert import LiteRT
from qconvert.streaming import Session

pytestmark = pytest.mark.litert

FORMS: list[dict[str, Any]] = [
    {},
    {"rows": 3, "cells": 17, "inputs": 3},
    {"scale": 0.2, "zero_point": 3},  # sums and cells come to their limits
    {"scale": 0.0006, "zero_point": 255, "cells": 33},
    {"scale": 0.03, "zero_point": 128, "cells": 1, "inputs": 1},
]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_it_is_equal_in_every_bit(form: dict[str, Any], tmp_path: Path) -> None:
    for seed in range(2):
        content, made = integer_basic_lstm_file(seed, **form)
        path = tmp_path / "a.tflite"
        path.write_bytes(content)
        graph = load(path)
        qconvert.convert(path, tmp_path / "a.onnx", force=True)
        qconvert.convert(tmp_path / "a.onnx", tmp_path / "b.tflite", force=True)
        assert operators_of((tmp_path / "b.tflite").read_bytes()) == ["LSTM"]
        model, others = LiteRT(content), [LiteRT(build(graph, {})), Session(tmp_path / "a.onnx"), Session(tmp_path / "b.tflite")]
        rng, states, layer = np.random.default_rng(seed), dict[str, np.ndarray](), BasicLstm(**made)
        shape = (form.get("rows", 1), form.get("cells", 8))
        hidden, cell = np.zeros(shape, np.uint8), np.zeros(shape, np.int16)  # LiteRT resets uint8 to 0, not to its zero point
        for _ in range(8):
            feed = {name: rng.integers(0, 256, sizes).astype("uint8") for name, (_, sizes) in model.inputs.items()}
            (wanted,) = model.run(feed).values()
            hidden, cell = layer.step(feed["data"], hidden, cell)
            found = [next(iter(other.run(dict(zip(other.inputs, feed.values(), strict=True))).values())) for other in others]
            for value in (hidden, evaluate(graph, feed, states)[graph.outputs[0]], *found):
                np.testing.assert_array_equal(value, wanted)


@pytest.mark.onnxruntime
def test_checks_pass_and_find_a_wrong_weight(tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(integer_basic_lstm_file()[0])
    qconvert.convert(source, result)
    report = qconvert.check(source, result, samples=1, per_op=True)
    assert report.passed and {item.verdict for item in report.operators} == {"equal"}, report
    source.write_bytes(integer_basic_lstm_file(1)[0])
    assert not qconvert.check(source, result, samples=1).passed


@pytest.mark.cross_section
def test_states_of_another_rank_are_refused(tmp_path: Path) -> None:
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(integer_basic_lstm_file()[0])
    model.subgraphs[0].tensors[1].shape = [8]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    (tmp_path / "a.tflite").write_bytes(bytes(builder.Output()))
    with refused(InvalidModelError, "wrong-rank", holds=(2,)):
        load(tmp_path / "a.tflite")


def test_a_cell_in_other_steps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(integer_basic_lstm_file(cell_scale=2.0**-12)[0])
    with refused(InvalidModelError, "scale-not-exact", holds=("2**-11", "0.000244141")):
        load(tmp_path / "a.tflite")
