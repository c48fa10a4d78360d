"""Checks of what TensorFlow's converter makes of a step with variables, and of LSTMs on their way back to TFLite."""

from __future__ import annotations

from pathlib import Path

import flatbuffers
import pytest
from lstm_files import Lstm, real_lstm_file

import qconvert

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

RECURRENT = Path(__file__).parents[2] / "fixtures" / "recurrent"


@pytest.mark.parametrize("name", ["stream_counter_int8", "stream_counter_float16"])
def test_a_step_with_variables_passes_both_ways(name: str, tmp_path: Path) -> None:
    """Its result is a state and an output, each with a quantization of its own type; first values of float16 come out of a DEQUANTIZE."""
    source, result, again = RECURRENT / f"{name}.tflite", tmp_path / "a.onnx", tmp_path / "again.tflite"
    qconvert.convert(source, result)
    qconvert.convert(result, again)
    for pair in ((source, result), (result, again)):
        report = qconvert.check(*pair, samples=1, per_op=True)
        assert report.passed, report.problems


def test_operators_whose_outputs_the_file_leaves_out(tmp_path: Path) -> None:
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf((RECURRENT / "stream_counter_int8.tflite").read_bytes(), 0)
    without = [op for op in model.subgraphs[0].operators if op.outputs is None or not len(op.outputs)]
    assert len(without) == 3  # CALL_ONCE and an ASSIGN_VARIABLE for each variable
    for op in without:
        op.outputs = None
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), b"TFL3")
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(bytes(builder.Output()))
    qconvert.convert(source, result)
    assert qconvert.check(source, result, samples=1, per_op=True).passed


@pytest.mark.parametrize("content", [real_lstm_file(cell_clip=0.5, rows=2), Lstm(steps=4).file()], ids=["real", "int8"])
def test_an_lstm_is_compared_from_the_states_of_the_source(content: bytes, tmp_path: Path) -> None:
    """TFLite's operator keeps its states itself: a piece of the result begins with those that the source had before each run."""
    result, again = tmp_path / "a.onnx", tmp_path / "again.tflite"
    (tmp_path / "a.tflite").write_bytes(content)
    qconvert.convert(tmp_path / "a.tflite", result)
    qconvert.convert(result, again)
    report = qconvert.check(result, again, samples=1, per_op=True)
    assert report.passed, report.problems
    compared = {item.output: item for item in report.operators}
    found = compared["output/steps" if "output/steps" in compared else "output"]
    assert (found.verdict, found.largest > 0) in [("approximate", True), ("equal", False)]
    assert found.largest < 1e-5


@pytest.mark.cross_section
def test_a_state_whose_next_value_is_an_output_too(tmp_path: Path) -> None:
    """The result stores what it keeps as uint8 and gives it out as int8: both are the tensor that the source writes."""
    model = Path(__file__).parents[2] / "fixtures" / "mww_okay_nabu_streaming_int8.tflite"
    between = ":model/stream_2/strided_slice1"
    qconvert.convert(model, tmp_path / "part.onnx", subgraph=between)
    report = qconvert.check(model, tmp_path / "part.onnx", samples=1)
    assert report.verdict == "passed" and report.outputs[0].equal == 1, report.problems
