"""Checks of models with states: sequences of steps, states carried on both sides, and what is wrong with a result that looks alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

import qconvert
from qconvert.checking.outputs import Border
from qconvert.checking.recurrent import STEPS, describe_drift
from qconvert.conversion import run_passes
from qconvert.errors import OptionError
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import STATES
from qconvert.plugins import target_named

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

WAKE_WORD = Path(__file__).parents[2] / "fixtures" / "mww_okay_nabu_streaming_int8.tflite"
GRID = Quantization.per_tensor(0.25, 3)


def network(**first: Any) -> Graph:
    """Two running values a and b of integers with a quantization, of which the output is the sum: a = a/2 + x, b = b - x."""
    names = ("x", "old_a", "old_b", "half", "a", "b", "y")
    tensors = {name: Tensor(name, "int8", (1, 4), None, GRID) for name in names}
    tensors["0.5"] = Tensor("0.5", "int8", (1,), np.array([64], np.int8), Quantization.per_tensor(1 / 128, 0))
    ops = (
        Op("ReadState", (), ("old_a",), {"state": "a"}),
        Op("ReadState", (), ("old_b",), {"state": "b"}),
        Op("Mul", ("old_a", "0.5"), ("half",)),
        Op("Add", ("half", "x"), ("a",)),
        Op("Sub", ("old_b", "x"), ("b",)),
        Op("WriteState", ("a",), (), {"state": "a"}),
        Op("WriteState", ("b",), (), {"state": "b"}),
        Op("Add", ("a", "b"), ("y",)),
    )
    states = {name: Tensor(name, "int8", (1, 4), np.full((1, 4), first.get(name, 3), np.int8), GRID) for name in ("a", "b")}
    return Graph("two", tensors, ops, ("x",), ("y",), states=states)


def files(graph: Graph, folder: Path, result: str = "result.onnx") -> tuple[Path, Path]:
    """A .tflite file of the network, and its conversion."""
    qconvert.save(graph, folder / "network.qgraph")
    qconvert.convert(folder / "network.qgraph", folder / "source.tflite")
    qconvert.convert(folder / "source.tflite", folder / result)
    return folder / "source.tflite", folder / result


@pytest.mark.parametrize("result", ["result.onnx", "result.tflite"])
@pytest.mark.parametrize("per_op", [False, True])
def test_sequences_pass_with_states_carried(result: str, per_op: bool, tmp_path: Path) -> None:
    report = qconvert.check(*files(network(), tmp_path, result), samples=3, per_op=per_op)
    assert report.passed and report.runs == 3 * STEPS, report
    assert f"3 sequences of {STEPS} steps, with states carried on both sides" in report.notes
    assert not per_op or {item.output for item in report.operators} == {"half", "a", "b", "y"}


def test_a_real_network_passes_operator_by_operator_with_the_states_of_the_source(tmp_path: Path) -> None:
    qconvert.convert(WAKE_WORD, tmp_path / "a.onnx")
    qconvert.convert(tmp_path / "a.onnx", tmp_path / "b.tflite")
    for pair in ((WAKE_WORD, tmp_path / "a.onnx"), (tmp_path / "a.onnx", tmp_path / "b.tflite"), (WAKE_WORD, tmp_path / "b.tflite")):
        report = qconvert.check(*pair, samples=2, per_op=True)
        assert report.passed and report.runs == 2 * STEPS, report
        assert len(report.operators) >= 37 and {item.verdict for item in report.operators} == {"equal"}


def swapped(graph: Graph, kind: str) -> Graph:
    other = {"a": "b", "b": "a"}
    return graph.evolve(ops=[op.with_attributes(state=other[str(op["state"])]) if op.kind == kind else op for op in graph.ops])


def scaled(graph: Graph) -> Graph:
    states = {name: replace(state, quantization=Quantization.per_tensor(0.5, 3)) for name, state in graph.states.items()}
    tensors = [
        replace(graph[name], quantization=Quantization.per_tensor(0.5, 3)) for name in graph.tensors if graph[name].quantization == GRID
    ]
    return replace(graph.evolve(tensors=tensors), states=states)


WRONG: Mapping[str, tuple[Callable[[Graph], Graph], str]] = {
    "first value": (lambda g: replace(g, states=network(b=4).states), "the initial value of the state 'b' differs: "),
    "read of another": (lambda g: swapped(g, "ReadState"), "'old_a' is read of the state 'b', not 'a'"),
    "written to another": (lambda g: swapped(g, "WriteState"), "'a' is written to the state 'b', not 'b'"),
    "never written": (lambda g: g.evolve(ops=g.ops[:6] + g.ops[7:]), "state 'b'"),
    "no state": (
        lambda g: replace(g.evolve(ops=[op for op in g.ops if op.attributes.get("state") != "b"], inputs=("x", "old_b")),
                          states={"a": g.states["a"]}), "the source has 1 input, the result 2"),
    "other scale": (scaled, "scale"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_what_is_wrong_with_states_is_found(name: str, suffix: str, tmp_path: Path) -> None:
    change, words = WRONG[name]
    source, _ = files(network(), tmp_path)
    qconvert.save(change(network()), tmp_path / "wrong.qgraph")
    qconvert.convert(tmp_path / "wrong.qgraph", tmp_path / f"wrong{suffix}")
    try:
        report = qconvert.check(source, tmp_path / f"wrong{suffix}", samples=2)
    except qconvert.QConvertError as error:
        assert words in error.reason
        return
    assert not report.passed and any(words in problem for problem in report.problems), report.problems


@pytest.mark.cross_section
def test_a_result_that_forgets_what_are_states_has_other_inputs(tmp_path: Path) -> None:
    source, _ = files(network(), tmp_path)
    plain, _ = run_passes(network(), ("states_to_io",))
    qconvert.save(replace(plain, metadata={key: text for key, text in plain.metadata.items() if key != STATES}), tmp_path / "f.onnx")
    with refused(OptionError, "different-number-of-ports", holds=(1, 3)):
        qconvert.check(source, tmp_path / "f.onnx")


def test_data_are_one_sequence(tmp_path: Path) -> None:
    source, result = files(network(), tmp_path)
    for step in range(60):
        np.savez(tmp_path / f"{step:03}.npz", x=np.random.default_rng(step).integers(-128, 128, (1, 4)).astype(np.int8))
    report = qconvert.check(source, result, data=sorted(tmp_path.glob("*.npz")))
    assert report.passed and report.runs == 60


def test_drift_is_said_in_words() -> None:
    graph = Graph("g", {"y": Tensor("y", "int8", (2,), None, GRID)}, (), (), ("y",))
    border = Border.of(graph, graph)
    pairs = [(np.zeros(2, np.int8), np.zeros(2, np.int8)) for _ in range(40)]
    assert describe_drift(border, "y", pairs, 20) == ""
    for index, off in ((5, 1), (26, 7), (39, 2)):
        pairs[index] = (np.zeros(2, np.int8), np.array([0, off], np.int8))
    assert describe_drift(border, "y", pairs, 20) == (
        "output 'y': 3 of 40 steps differ, the earliest is step 6 of sequence 1, the largest difference 7 LSB at step 7 of sequence 2; "
        "1 of them among the last 4 of a sequence"
    )


WAYS = [("onnx", "a.tflite"), ("onnx:qoperator", "a.tflite"), ("tflite", "a.onnx"), ("qgraph", "a.onnx")]


@pytest.mark.parametrize(("via", "model"), WAYS)
def test_round_trips_keep_states(via: str, model: str, tmp_path: Path) -> None:
    """Also where an integer input of the network joins what a state holds, whose scales no node states."""
    (tmp_path / "a.tflite").write_bytes(WAKE_WORD.read_bytes())
    qconvert.convert(WAKE_WORD, tmp_path / "a.onnx")
    report = qconvert.roundtrip(tmp_path / model, via=via, samples=1)
    assert report.passed, [leg.problems for leg in report.legs]


@pytest.mark.parametrize("name", ["power_of_two", "google_scales", "symmetric_activations", "reduced_range", "change_bits"])
def test_a_state_goes_along_to_another_quantization(name: str, tmp_path: Path) -> None:
    """Its first value is rounded to the quantization of what is read of it, and nothing converts in between; a check takes that as
    declared."""
    options: dict[str, Any] = {"reduce": "activations"} if name == "reduced_range" else {}
    report = qconvert.convert(WAKE_WORD, tmp_path / "a.onnx", passes=[name], **options)
    graph = qconvert.load(tmp_path / "a.onnx")
    for state in graph.states.values():
        (read,) = [op.outputs[0] for op in graph.ops if op.kind == "ReadState" and op["state"] == state.name]
        assert graph[read].quantization == state.quantization and report.operators["Requantize"] <= 4
        assert state.data is not None and state.quantization is not None
        real = (state.data.astype(np.float64) - state.quantization.zero_point) * state.quantization.scale
        assert not real.any()
    found = qconvert.check(WAKE_WORD, tmp_path / "a.onnx", samples=1)
    assert found.passed, found.problems


RECURRENT = Path(__file__).parents[2] / "fixtures" / "recurrent" / "lstm_float.tflite"


def hidden_for_cell(graph: Graph) -> Graph:
    """A layer's cells keep what its hidden values are; then nothing in the file computes what should be kept."""
    hidden, cell = next(op.outputs[1:3] for op in graph.ops if op.kind == "LSTM")
    return graph.evolve(ops=[replace(op, inputs=(hidden,)) if op.inputs == (cell,) else op for op in graph.ops])


def exchanged(graph: Graph) -> Graph:
    """Both values of a layer are written to each other's state."""
    layer = next(op.outputs[1:3] for op in graph.ops if op.kind == "LSTM")
    one, two = (op for op in graph.ops if op.kind == "WriteState" and op.inputs[0] in layer)
    turned = {id(one): one.with_attributes(state=two["state"]), id(two): two.with_attributes(state=one["state"])}
    return graph.evolve(ops=[turned.get(id(op), op) for op in graph.ops])


@pytest.mark.parametrize("has_metadata", [True, False])
@pytest.mark.parametrize("change", [hidden_for_cell, exchanged])
def test_a_state_that_takes_another_value_of_its_layer_is_named(
    change: Callable[[Graph], Graph], has_metadata: bool, tmp_path: Path
) -> None:
    """Operators of float values are alike by themselves, whatever is kept of them."""
    qconvert.convert(RECURRENT, tmp_path / "sound.onnx")
    graph = change(qconvert.load(tmp_path / "sound.onnx"))
    graph = graph if has_metadata else replace(graph, metadata={})
    qconvert.save(run_passes(graph, ("states_to_io",), target_named("generic"))[0], tmp_path / "wrong.onnx")
    report = qconvert.check(RECURRENT, tmp_path / "wrong.onnx", samples=1)
    assert report.verdict == "not equal"
    assert any("is written to the state" in text for text in report.problems)
