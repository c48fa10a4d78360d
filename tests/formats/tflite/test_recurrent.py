"""UNIDIRECTIONAL_SEQUENCE_LSTM and SVDF of int8: read, evaluated and written again, next to LiteRT, with their variables going on."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lstm_files import Lstm, svdf_file
from refusals import refused

from qconvert import check, convert, diff
from qconvert.conversion import load
from qconvert.errors import InvalidGraphError, InvalidModelError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.tflite.writer import build
from qconvert.graph import Graph
from qconvert.rules.validation import validate

pytestmark = pytest.mark.litert

FIXTURES = Path(__file__).parents[3] / "fixtures"
VARIANTS: list[dict[str, Any]] = [
    {},
    {"rows": 3},
    {"rows": 3, "time_major": True},
    {"has_input_gate": False},
    {"cell_clip": 0.5},
    {"peephole": True},
    {"projection": True, "outputs": 4, "proj_clip": 0.3},
    {"norm": True},
    {"norm": True, "has_input_gate": False, "rows": 2},
    {"hidden": (0.009, -7), "output": (0.01, 3)},
]


def interpreter(content: bytes) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    found = Interpreter(model_content=content)
    found.allocate_tensors()
    return found


def run(model: Any, value: np.ndarray) -> np.ndarray:
    model.set_tensor(model.get_input_details()[0]["index"], value)
    model.invoke()
    return model.get_tensor(model.get_output_details()[0]["index"])


def compare(content: bytes, path: Path, runs: int) -> Graph:
    """The graph of a file, after runs that LiteRT, the evaluation and the file that is written again all give alike."""
    path.write_bytes(content)
    graph = load(path)
    models = interpreter(content), interpreter(build(graph, {}))
    rng = np.random.default_rng(0)
    states: dict[str, np.ndarray] = {}
    details = models[0].get_input_details()[0]
    for _ in range(runs):
        value = rng.random(details["shape"], np.float32)
        if details["dtype"] != np.float32:
            value = rng.integers(-128, 128, details["shape"]).astype(details["dtype"])
        expected = run(models[0], value)
        np.testing.assert_array_equal(evaluate(graph, {graph.inputs[0]: value}, states)[graph.outputs[0]], expected)
        np.testing.assert_array_equal(run(models[1], value), expected)
    return graph


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_an_lstm_is_read_and_written(variant: dict[str, Any], tmp_path: Path) -> None:
    graph = compare(Lstm(**variant).file(), tmp_path / "lstm.tflite", 5)
    assert [op.kind for op in graph.ops] == ["ReadState", "ReadState", "IntegerLSTM", "WriteState", "WriteState"]
    assert int(graph.states["state"].data[0, 0]) == 5  # type: ignore[index]  # what LiteRT resets it to: its zero point
    again = tmp_path / "again.tflite"
    again.write_bytes(build(graph, {}))
    assert load(again).ops == graph.ops


@pytest.mark.parametrize("place", [0, 4])
def test_an_absent_intermediate_tensor_is_an_error(place: int, tmp_path: Path) -> None:
    path = tmp_path / "lstm.tflite"
    path.write_bytes(Lstm(absent=place).file())
    with refused(InvalidModelError, "wrong-number-of-tensors", holds=(4, 5)):
        load(path)


@pytest.mark.cross_section
@pytest.mark.parametrize(("cell", "rule", "holds"), [("int8", "operand-types", ("int8",)), ("state", "shared-state", ("'state'",))])
def test_a_cell_that_is_no_int16_of_its_own_is_not_covered(cell: str, rule: str, holds: tuple[object, ...], tmp_path: Path) -> None:
    """LiteRT's kernel takes int16 from the memory of any cell: beyond its end, or of the hidden values."""
    path = tmp_path / "lstm.tflite"
    path.write_bytes(Lstm(cell=cell).file())
    with refused(UnsupportedError, rule, holds=holds):
        load(path)


@pytest.mark.parametrize("variant", [{}, {"rank": 2}, {"bias": False}, {"memory": 1}], ids=str)
def test_an_svdf_is_read_and_written(variant: dict[str, Any], tmp_path: Path) -> None:
    content, _ = svdf_file(**variant)
    graph = compare(content, tmp_path / "svdf.tflite", 8)
    assert [op.kind for op in graph.ops] == ["ReadState", "IntegerSVDF", "WriteState"]


micro = pytest.mark.skipif(find_spec("tflite_micro") is None, reason="tflite_micro is not installed (extra micro)")
MICRO = "tflite-micro:reference"


@pytest.mark.onnxruntime
@pytest.mark.tflite_micro
@micro
@pytest.mark.parametrize(
    "variant", [{}, {"rank": 2, "rows": 2}, {"memory": 1}, {"state_zero": 5}, {"state_zero": -9, "rank": 2}, {"activation": 0}], ids=str
)
def test_an_svdf_with_an_int8_memory_goes_to_onnx_and_back_as_tflite_micro_runs_it(variant: dict[str, Any], tmp_path: Path) -> None:
    source, model, back = (tmp_path / name for name in ("svdf.tflite", "svdf.onnx", "back.tflite"))
    source.write_bytes(svdf_file(3, output=(0.05, 0), state="int8", **variant)[0])
    convert(source, model)
    found = check(source, model, samples=1, kernels=[MICRO])
    assert found.verdict == "passed" and [item.equal for item in found.outputs] == [1.0] and found.runs == 50
    convert(model, back, target="tflite-micro")
    assert list(diff(load(source), load(back))) == []
    assert check(model, back, samples=1, kernels=[MICRO]).verdict == "passed"


def test_an_int8_memory_is_nothing_for_litert(tmp_path: Path) -> None:
    """It takes the bytes for int16, and goes beyond them."""
    source, model = tmp_path / "svdf.tflite", tmp_path / "svdf.onnx"
    source.write_bytes(svdf_file(state="int8")[0])
    convert(source, model)
    found = check(source, model, samples=1)
    assert found.verdict == "inconclusive" and "--kernels tflite-micro:reference" in found.unjudged[0]
    with refused(UnsupportedError, "target-rules", holds=("SVDF", "int16")):
        convert(model, tmp_path / "back.tflite")


@pytest.mark.onnxruntime
@pytest.mark.tflite_micro
@micro
def test_an_svdf_without_a_bias_ends_no_process(tmp_path: Path) -> None:
    """tflite-micro reads one that is not there."""
    source, model = tmp_path / "svdf.tflite", tmp_path / "svdf.onnx"
    source.write_bytes(svdf_file(bias=False)[0])
    convert(source, model)
    assert check(source, model, samples=1).verdict == "passed"
    found = check(source, model, samples=1, kernels=[MICRO])
    assert found.verdict == "inconclusive" and "SVDF" in found.unjudged[0]
    with refused(UnsupportedError, "target-rules", holds=("SVDF",)):
        convert(model, tmp_path / "back.tflite", target="tflite-micro")


@pytest.mark.onnxruntime
@pytest.mark.tflite_micro
@micro
@pytest.mark.parametrize(("name", "least"), [("tflm_keyword_svdf_int8", 1.0), ("coral_lstm_mnist_int8", 0.95)])
def test_real_models_for_microcontrollers(name: str, least: float, tmp_path: Path) -> None:
    """tflite-micro has tables of its own in an LSTM."""
    source, model, back = FIXTURES / f"{name}.tflite", tmp_path / "model.onnx", tmp_path / "back.tflite"
    convert(source, model)
    convert(model, back, target="tflite-micro")
    found = check(model, back, samples=1, kernels=[MICRO])
    assert min(item.equal for item in found.outputs) >= least, found.outputs


@pytest.mark.parametrize("variant", [{"peephole": True}, {"has_input_gate": False}], ids=str)
def test_an_lstm_that_tflite_micro_has_not(variant: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "lstm.tflite"
    source.write_bytes(Lstm(**variant).file())
    with refused(UnsupportedError, "target-rules", holds=("UNIDIRECTIONAL_SEQUENCE_LSTM #0",)):
        convert(source, tmp_path / "back.tflite", target="tflite-micro")


@pytest.mark.parametrize(("name", "count"), [("coral_lstm_mnist_int8", 2), ("tflm_keyword_svdf_int8", 7)])
def test_real_models(name: str, count: int, tmp_path: Path) -> None:
    graph = compare((FIXTURES / f"{name}.tflite").read_bytes(), tmp_path / "model.tflite", 6)
    assert len(graph.states) == count


def test_a_state_that_is_seen_elsewhere_is_no_variable_of_the_operator(tmp_path: Path) -> None:
    path = tmp_path / "svdf.tflite"
    path.write_bytes(svdf_file()[0])
    graph = load(path)
    memory = graph.ops[0].outputs[0]
    with refused(UnsupportedError, "not-a-zero-state"):
        build(graph.evolve(outputs=(*graph.outputs, memory)), {})


def test_a_state_with_another_first_value_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    path = tmp_path / "svdf.tflite"
    path.write_bytes(svdf_file()[0])
    graph = load(path)
    (name, state), *_ = graph.states.items()
    with refused(UnsupportedError, "not-a-zero-state"):
        build(replace(graph, states={name: replace(state, data=np.ones_like(state.data))}), {})


def test_an_svdf_keeps_a_memory_for_each_row(tmp_path: Path) -> None:
    path = tmp_path / "svdf.tflite"
    path.write_bytes(svdf_file()[0])
    graph = load(path)
    more = replace(graph[graph.inputs[0]], shape=(2, 10))
    with refused(InvalidGraphError, "shape-mismatch", holds=("(2, 10)", "(1, 30)")):
        validate(graph.evolve(tensors=[more]))
