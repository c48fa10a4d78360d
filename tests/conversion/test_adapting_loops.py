"""--batch through functions: loops and choices whose bodies keep samples apart, and Reshapes that stand for Transposes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nodes import model_of
from refusals import refused

from qconvert import check, convert, load
from qconvert.conversion.adapting.input_sizes import with_batch
from qconvert.errors import OptionError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph
from qconvert.operators.shapes_and_functions import all_ops
from qconvert.rules.validation import validate
from qconvert.testing import random_inputs

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECURRENT = FIXTURES / "recurrent"


def assert_apart(graph: Graph, number: int, seed: int = 0) -> Graph:
    """Each sample comes out of the graph for `number` samples as it does alone, in an output of as many as before for each."""
    new = with_batch(graph, number)
    validate(new)
    feeds = random_inputs(new, seed)
    batched = {name for name in graph.inputs if graph[name].shape}
    sizes = {int(str(graph[name].shape[0])) for name in batched}  # type: ignore[index]
    (old,) = sizes
    times = number // old
    alone = [
        evaluate(graph, {name: value[k * old : (k + 1) * old] if name in batched else value for name, value in feeds.items()})
        for k in range(times)
    ]
    for name, found in evaluate(new, feeds).items():
        assert found.shape == (number, *alone[0][name].shape[1:]), name
        np.testing.assert_allclose(found.astype(float), np.concatenate([run[name] for run in alone]).astype(float), atol=1e-5)
    return new


@pytest.mark.parametrize(
    "name",
    ["gru_float", "gru_float16", "gru_reset_before_float", "gru_sequences_float", "lstm_unfused_float", "rnn_backwards_float", "rnn_float"],
)
def test_recurrent_layers_that_are_loops(name: str) -> None:
    """TensorFlow's converter writes the Transpose of one sample to steps as a Reshape, carries zeros, and stacks results in a tensor."""
    new = assert_apart(load(RECURRENT / f"{name}.tflite"), 3)
    assert any(op.kind == "While" for op in new.ops) and len(new.functions) == len(load(RECURRENT / f"{name}.tflite").functions)


@pytest.mark.parametrize("name", ["cond_float", "nested_float"])
def test_choices_and_loops_in_loops(name: str) -> None:
    assert_apart(load(RECURRENT / f"{name}.tflite"), 6)


def test_loops_of_onnx(tmp_path: Path) -> None:
    convert(RECURRENT / "nested_float.tflite", tmp_path / "loop.onnx")
    graph = load(tmp_path / "loop.onnx")
    assert {"Loop", "If"} <= {op.kind for op in all_ops(graph)}
    assert_apart(graph, 4)


def scan(path: Path, *, axis: int, start: Any) -> Path:
    """Running sums of the steps of x (1, 5, 4), or along another axis, begun with constants."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    shape = [size for at, size in enumerate((1, 5, 4)) if at != axis]
    float32 = TensorProto.FLOAT
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["before", "step"], ["after"]), helper.make_node("Identity", ["after"], ["given"])],
        "body",
        [value("before", float32, shape), value("step", float32, shape)],
        [value("after", float32, shape), value("given", float32, shape)],
    )
    node = helper.make_node(
        "Scan", ["start", "x"], ["last", "sums"], body=body, num_scan_inputs=1, scan_input_axes=[axis], scan_output_axes=[axis]
    )
    outputs = [value("last", float32, shape), value("sums", float32, [1, 5, 4])]
    graph = helper.make_graph(
        [node], "g", [value("x", float32, [1, 5, 4])], outputs, [numpy_helper.from_array(np.full(shape, start, np.float32), "start")]
    )
    onnx.save(model_of(graph), path)
    return path


def test_a_scan_over_steps(tmp_path: Path) -> None:
    assert_apart(load(scan(tmp_path / "scan.onnx", axis=1, start=2.0)), 3)


def test_a_scan_over_samples_is_refused(tmp_path: Path) -> None:
    with refused(OptionError, "batch-not-separable", where="Scan Scan 'last'", holds=("'x'",)):
        with_batch(load(scan(tmp_path / "scan.onnx", axis=0, start=0.0)), 3)


def test_a_loop_that_asks_one_question_for_all_samples_is_refused() -> None:
    """It goes on until the sum of all is large enough."""
    with refused(OptionError, "batch-not-separable", where="SUM #1 ReduceSum 'while/Sum'"):
        with_batch(load(RECURRENT / "while_float.tflite"), 4)


@pytest.mark.parametrize("number", [2, 7])
def test_dilation_by_blocks_behind_added_axes(number: int) -> None:
    """(2, 13, 32) of blocks becomes (2, 1, 13, 32): samples stay with the blocks, though the new axis has their size too."""
    assert_apart(load(FIXTURES / "keras" / "keras_causal_int8.tflite"), number)


def test_memories_of_svdfs_get_a_row_for_each_sample() -> None:
    graph = load(FIXTURES / "tflm_keyword_svdf_int8.tflite")
    new = assert_apart(graph, 3)
    assert {state.shape[0] for state in new.states.values() if state.shape} == {3}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("ends", [True, False])
def test_a_trace_of_one_sample_with_an_open_batch(ends: bool, tmp_path: Path) -> None:
    """PyTorch's tracer writes x.view(1, -1) as it saw it, whatever the batch is called: such a file runs for one sample alone, or puts
    several into one row."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Reshape", ["a", "sizes"], ["y" if ends else "rows"])]
    nodes += [] if ends else [helper.make_node("Gemm", ["rows", "w"], ["y"])]
    constants = {"sizes": np.array([1, -1]), "w": np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32)}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["batch", 3, 4])], [value("y", TensorProto.FLOAT, [1, None])],
        [numpy_helper.from_array(data, name) for name, data in constants.items() if name != "w" or not ends],
    )  # fmt: skip
    source = tmp_path / "trace.onnx"
    onnx.save(model_of(graph), source)
    assert load(source, batch=2)["y"].shape == (2, 12 if ends else 3)
    convert(source, tmp_path / "result.tflite", batch=3)
    report = check(source, tmp_path / "result.tflite", samples=1)
    assert report.verdict == "passed", report.problems
    assert any("the file returns the same for one sample after the other" in note for note in report.notes) or not ends, report.notes


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize(
    ("source", "suffix"), [("gru_sequences_float.tflite", ".onnx"), ("nested_float.tflite", ".onnx"), ("rnn_float.tflite", ".tflite")]
)
def test_results_are_checked_in_their_runtimes(source: str, suffix: str, tmp_path: Path) -> None:
    result = tmp_path / f"result{suffix}"
    convert(RECURRENT / source, result, batch=4)
    report = check(RECURRENT / source, result, samples=2)
    assert report.verdict == "passed", report.problems
    assert any("the file returns the same for one sample after the other" in note for note in report.notes), report.notes
