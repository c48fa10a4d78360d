"""LSTM, GRU and RNN: every attribute, evaluated and written; onnxruntime is the judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.reader import read_bytes
from qconvert.formats.onnx.writer import build
from qconvert.operators import recurrent
from qconvert.rules.differences import diff
from qconvert.rules.validation import validate
from tests.onnx_nodes import node_model, session

TIME, BATCH, SIZE, CELLS = 6, 3, 4, 5
RNG = np.random.default_rng(0)

#: kind, attributes, which optional inputs it has (B, lengths, h, c, P)
FORMS: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "lstm": ("LSTM", {}, ""),
    "lstm, all inputs": ("LSTM", {}, "BlhcP"),
    "lstm, both ways": ("LSTM", {"direction": "bidirectional"}, "BhcP"),
    "lstm, backwards with lengths": ("LSTM", {"direction": "reverse"}, "Bl"),
    "lstm, clipped": ("LSTM", {"clip": 0.4}, "BP"),
    "lstm, coupled gates": ("LSTM", {"input_forget": 1}, "B"),
    "lstm, other activations": (
        "LSTM", {"activations": ["HardSigmoid", "Softsign", "LeakyRelu"], "activation_alpha": [0.3, 0.2], "activation_beta": [0.4]}, "B"),
    "gru": ("GRU", {}, "B"),
    "gru, linear before reset": ("GRU", {"linear_before_reset": 1}, "Bh"),
    "gru, both ways with lengths": ("GRU", {"direction": "bidirectional", "linear_before_reset": 1}, "Blh"),
    "gru, clipped": ("GRU", {"clip": 0.5, "direction": "reverse"}, "B"),
    "rnn": ("RNN", {}, "B"),
    "rnn, relu and tanh": ("RNN", {"direction": "bidirectional", "activations": ["Relu", "Tanh"]}, "Blh"),
    "rnn, affine": ("RNN", {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1], "clip": 2.0}, "B"),
}  # fmt: skip


def made(name: str) -> tuple[bytes, dict[str, Any]]:
    kind, attributes, present = FORMS[name]
    count = 2 if attributes.get("direction") == "bidirectional" else 1
    rows = recurrent.CELLS[kind].gates * CELLS

    def normal(*shape: int) -> Any:
        return (RNG.standard_normal(shape) * 0.6).astype(np.float32)

    inputs = [normal(TIME, BATCH, SIZE), normal(count, rows, SIZE), normal(count, rows, CELLS)]
    inputs += [normal(count, 2 * rows) if "B" in present else None, np.array([6, 1, 4], np.int32) if "l" in present else None]
    inputs += [normal(count, BATCH, CELLS) if "h" in present else None]
    if kind == "LSTM":
        inputs += [normal(count, BATCH, CELLS) if "c" in present else None, normal(count, 3 * CELLS) if "P" in present else None]
    while inputs[-1] is None:
        inputs.pop()
    model = node_model(kind, 14, inputs, (1, 2, 3, 7), 3 if kind == "LSTM" else 2, hidden_size=CELLS, **attributes)
    given = [index for index in (0, 4, 5, 6) if index < len(inputs) and inputs[index] is not None]
    return model.SerializeToString(), {f"i{index}": inputs[index] for index in given}


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("name", FORMS)
def test_they_mean_what_onnxruntime_computes(name: str) -> None:
    data, feed = made(name)
    graph = read_bytes(data, "g")
    validate(graph)
    assert [op.kind for op in graph.ops] == [FORMS[name][0]]
    written = build(graph, 0, {}).SerializeToString()
    wanted, found = (session(item).run(None, feed) for item in (data, written))
    meant = evaluate(graph, feed)
    for output, a, b in zip(graph.outputs, wanted, found, strict=True):
        assert np.array_equal(a, b)
        assert graph[output].shape == a.shape and np.allclose(meant[output], a, atol=2e-6), np.abs(meant[output] - a).max()
    assert diff(graph, read_bytes(written, "g")) == []


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("name", ["lstm, clipped", "lstm, other activations"])
def test_a_limited_cell_has_the_other_limits_and_activations_too(name: str) -> None:
    """ONNX's LSTM does not limit its cell, so that its steps are nodes."""
    data, feed = made(name)
    graph = read_bytes(data, "g")
    limited = graph.evolve(ops=[op.with_attributes(cell_clip=0.3) for op in graph.ops])
    written = build(limited, 0, {})
    assert "Scan" in [node.op_type for node in written.graph.node]
    found, meant = session(written.SerializeToString()).run(None, feed), evaluate(limited, feed)
    for output, value in zip(graph.outputs, found, strict=True):
        assert np.allclose(meant[output], value, atol=2e-6), np.abs(meant[output] - value).max()
    assert np.abs(meant[graph.outputs[2]] - evaluate(graph, feed)[graph.outputs[2]]).max() > 0.01


@pytest.mark.formats
@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"hidden_size": CELLS + 1}, "shape-mismatch"),
        ({"activations": ["Tan"]}, "unknown-activation"),
        ({"hidden_size": -1}, "not-positive"),
    ],
)
def test_weights_that_do_not_fit_are_refused(changes: dict[str, Any], rule: str) -> None:
    inputs = [np.zeros((TIME, BATCH, SIZE), np.float32), np.zeros((1, CELLS, SIZE), np.float32), np.zeros((1, CELLS, CELLS), np.float32)]
    model = node_model("RNN", 14, inputs, (1, 2), 1, **{"hidden_size": CELLS, **changes})
    with refused(QConvertError, rule):
        read_bytes(model.SerializeToString(), "g")
