"""qconvert.streaming: models that remember, step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.cli.inspection import print_inspection
from qconvert.conversion import run_passes
from qconvert.errors import FileAccessError, InvalidModelError, OptionError, RuntimeRefusedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.metadata import STATES
from qconvert.graph.summary import format_graph
from qconvert.streaming import Session

pytestmark = pytest.mark.end_to_end

WAKE_WORD = Path(__file__).parent.parent / "fixtures" / "mww_okay_nabu_streaming_int8.tflite"
Array = np.ndarray[Any, np.dtype[Any]]


def counter(size: int | str = 2, dtype: str = "float32") -> Graph:
    """s = s + the sum of x over its rows; y = s and z = x."""
    shapes: dict[str, Any] = {"x": (size, 2), "old": (2,), "sum": (2,), "y": (2,), "z": (size, 2)}
    tensors = {name: Tensor(name, dtype, shape) for name, shape in shapes.items()}
    tensors["axes"] = Tensor("axes", "int64", (1,), np.array([0]))
    ops = (
        Op("ReadState", (), ("old",), {"state": "s"}),
        Op("ReduceSum", ("x", "axes"), ("sum",), {"keepdims": 0}),
        Op("Add", ("sum", "old"), ("y",)),
        Op("Identity", ("x",), ("z",)),
        Op("WriteState", ("y",), (), {"state": "s"}),
    )
    first = Tensor("s", dtype, (2,), np.array([1, -1], dtype))
    return Graph("counter", tensors, ops, ("x",), ("y", "z"), states={"s": first})


def written(graph: Graph, path: Path) -> Path:
    qconvert.save(graph, path.with_suffix(".qgraph"))
    qconvert.convert(path.with_suffix(".qgraph"), path)
    return path


@pytest.mark.onnxruntime
def test_a_real_network_gives_the_same_in_both_runtimes(tmp_path: Path) -> None:
    """ONNX next to LiteRT, bit for bit over 50 steps, with the states that both hold after each; and once more after a reset."""
    qconvert.convert(WAKE_WORD, tmp_path / "a.onnx")
    qconvert.convert(tmp_path / "a.onnx", tmp_path / "b.tflite")
    one, two, three = (Session(path) for path in (WAKE_WORD, tmp_path / "a.onnx", tmp_path / "b.tflite"))
    (name,), (score,) = one.inputs, one.outputs
    assert (one.inputs, one.outputs) == (two.inputs, two.outputs) == (three.inputs, three.outputs)
    graph, random = qconvert.load(WAKE_WORD), np.random.default_rng(5)
    feeds = [np.clip(random.normal(-90, 40, (1, 3, 40)), -128, 127).astype(np.int8) for _ in range(50)]
    found: list[Any] = []
    for _ in range(2):
        states: dict[str, Array] = {}
        for feed in feeds:
            results = [session.run({name: feed})[score].tolist() for session in (one, two, three)]
            evaluate(graph, {name: feed}, states)
            assert results[0] == results[1] == results[2]
            held = two._model.states  # type: ignore[attr-defined]
            assert held.keys() == states.keys()
            assert all(np.array_equal(held[key].astype(int) - 128, value) for key, value in states.items())  # uint8 there
            found.append(results[0])
        for session in (one, two, three):
            session.reset()
    assert found[:50] == found[50:] and len({str(item) for item in found}) > 3


@pytest.mark.onnxruntime
@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_states_are_carried_and_reset(suffix: str, dtype: str, tmp_path: Path) -> None:
    session = Session(written(counter(dtype=dtype), tmp_path / f"m{suffix}"))
    assert list(session.inputs) == ["x"] and list(session.outputs) == ["y", "z"]
    x = np.array([[1, 2], [3, 4]], dtype)
    kept = [session.run({"x": x})["y"] for _ in range(3)]
    assert [value.tolist() for value in kept] == [[5, 5], [9, 11], [13, 17]]  # none is changed by a later step
    session.reset()
    assert session.run({"x": -x})["y"].tolist() == [-3, -7]


@pytest.mark.onnxruntime
def test_inputs_of_open_sizes_run_too(tmp_path: Path) -> None:
    session = Session(written(counter("rows"), tmp_path / "m.onnx"))
    for rows, meant in ((1, [2, 0]), (3, [5, 3]), (2, [7, 5])):
        found = session.run({"x": np.ones((rows, 2), np.float32)})
        assert found["y"].tolist() == meant and found["z"].shape == (rows, 2)


def test_a_model_without_states_runs_too() -> None:
    session = Session(WAKE_WORD.parent / "tiny_kws_dscnn_int8.tflite")
    (name,) = session.inputs
    feed = {name: np.zeros(session.inputs[name][1], np.int8)}
    (scores,) = session.run(feed).values()
    (wanted,) = evaluate(qconvert.load(WAKE_WORD.parent / "tiny_kws_dscnn_int8.tflite"), feed).values()
    assert len(set(scores.ravel().tolist())) > 2
    assert np.abs(scores.astype(int) - wanted).max() <= 1 and (session.run(feed)[next(iter(session.outputs))] == scores).all()


@pytest.mark.onnxruntime
def test_what_a_user_may_do_wrong_is_named(tmp_path: Path) -> None:
    path = written(counter(), tmp_path / "m.onnx")
    session = Session(path)
    with refused(OptionError, "input-names"):
        session.run({"y": np.zeros(2, np.float32)})
    for wrong, named in ((np.zeros((2, 2)), "float64"), (np.zeros((3, 2), np.float32), "(3, 2)")):
        with refused(RuntimeRefusedError, "input-mismatch", holds=("'x'", "float32", "(2, 2)", named)):
            session.run({"x": wrong})
    plain, _ = run_passes(counter(), ("states_to_io",))
    other = replace(plain, metadata={**plain.metadata, STATES: plain.metadata[STATES].replace('"s_next"', '"z_next"')})
    qconvert.save(other, tmp_path / "torn.onnx")
    with refused(InvalidModelError, "unknown-tensor", holds=("'s'", "z_next")):
        Session(tmp_path / "torn.onnx")
    with refused(FileAccessError, "not-readable"):
        Session(tmp_path / "none.onnx")


def test_states_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_inspection(WAKE_WORD)
    shown = capsys.readouterr().out
    assert "stream_4/states  int8  1,22,1,64" in shown and "first" in shown
    assert "  state s: float32[2] = [1.0, -1.0]" in format_graph(counter()) and "- = WriteState(y) state=s" in format_graph(counter())
