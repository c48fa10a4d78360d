"""Checks of models with integer LSTM and SVDF operators: in sequences and operator by operator, and what is wrong with a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lstm_files import Lstm

import qconvert
from qconvert.checking.recurrent import STEPS

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Fixture -> its recurrent operators.
MODELS = {
    "coral_lstm_mnist_int8": ["UNIDIRECTIONAL_SEQUENCE_LSTM #1"],
    "tflm_keyword_svdf_int8": [f"SVDF #{i}" for i in (1, 3, 5, 7, 9, 10, 11)],
}


@pytest.mark.parametrize("name", MODELS)
def test_real_models_pass_operator_by_operator(name: str, tmp_path: Path) -> None:
    source = FIXTURES / f"{name}.tflite"
    qconvert.convert(source, tmp_path / "a.onnx")
    qconvert.convert(tmp_path / "a.onnx", tmp_path / "b.tflite")
    reports = [qconvert.check(source, tmp_path / result, samples=1, per_op=result == "a.onnx") for result in ("a.onnx", "b.tflite")]
    assert all(report.passed and report.runs == STEPS for report in reports), reports
    verdicts = {item.operator: item.verdict for item in reports[0].operators}
    assert {verdicts[operator] for operator in MODELS[name]} == {"equal"}, verdicts


#: Fixture, constant of its ONNX form, and the operator at which that is another: name or first value, place, how much is added, operator.
WRONG: dict[str, tuple[str, str | float, Any, float, str]] = {
    "weight": ("coral_lstm_mnist_int8", "std.constant9", (3, 12), 9, "UNIDIRECTIONAL_SEQUENCE_LSTM #1"),
    "recurrent weight": ("coral_lstm_mnist_int8", "std.constant12", (1, 2), -9, "UNIDIRECTIONAL_SEQUENCE_LSTM #1"),
    "bias": ("coral_lstm_mnist_int8", "std.constant6", 4, 400, "UNIDIRECTIONAL_SEQUENCE_LSTM #1"),
    "multiplier": ("coral_lstm_mnist_int8", 0.89073867, 30, 0.05, "UNIDIRECTIONAL_SEQUENCE_LSTM #1"),
    "hidden multiplier": (
        "coral_lstm_mnist_int8", 0.5019868, (), 0.02, "UNIDIRECTIONAL_SEQUENCE_LSTM #1"),
    "table": ("coral_lstm_mnist_int8", "table/tanh_3", np.s_[33000:33100], 2000, "UNIDIRECTIONAL_SEQUENCE_LSTM #1"),
    "feature": ("tflm_keyword_svdf_int8", "tensor_9", (3, 7), 30, "SVDF #3"),
    "time": ("tflm_keyword_svdf_int8", "tensor_10", (5, 2), 9000, "SVDF #3"),
    "multiplier of a memory": ("tflm_keyword_svdf_int8", 1.22473145, 11, 0.1, "SVDF #3"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_result_is_found(name: str, tmp_path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    model, constant, place, added, operator = WRONG[name]
    source, result = FIXTURES / f"{model}.tflite", tmp_path / "a.onnx"
    qconvert.convert(source, result)
    proto = onnx.load(result)
    values = {item.name: numpy_helper.to_array(item) for item in proto.graph.initializer}
    wanted = constant if isinstance(constant, str) else next(key for key, data in values.items() if np.isclose(data.flat[:1], constant))
    (item,) = (item for item in proto.graph.initializer if item.name == wanted)
    data = values[wanted].copy()
    data[place] = data[place] + added
    item.CopyFrom(numpy_helper.from_array(data, wanted))
    onnx.save(proto, result)
    report = qconvert.check(source, result, samples=1)
    assert not report.passed
    assert {item.operator for item in report.operators if item.verdict == "unexplained"} == {operator}, report


def test_an_lstm_on_real_values_is_as_declared_and_its_drift_is_told(tmp_path: Path) -> None:
    source, result = FIXTURES / "coral_lstm_mnist_int8.tflite", tmp_path / "a.onnx"
    qconvert.convert(source, result, numerics="fast")
    report = qconvert.check(source, result, samples=1)
    assert report.verdict == "as declared" and report.passed, report
    (cost,) = report.costs
    assert "the earliest is step" in cost and "the largest difference" in cost and "by UNIDIRECTIONAL_SEQUENCE_LSTM #1 in float" in cost
    (layer,) = [item for item in report.operators if item.operator == "UNIDIRECTIONAL_SEQUENCE_LSTM #1"]
    assert layer.verdict == "requantized" and layer.equal < 1 and layer.sqnr_db is not None and layer.sqnr_db > 40


@pytest.mark.cross_section
def test_a_drift_of_one_step_is_a_drift(tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(Lstm(inputs=3, cells=4, outputs=4, rows=3, data=(0.01, -3)).file())
    qconvert.convert(source, result, numerics="fast")
    report = qconvert.check(source, result, samples=1)
    assert report.verdict == "as declared" and report.outputs[0].largest == 1, report


@pytest.mark.parametrize("shape", [(1, 80, 28), (1, 80, 20), (1, 160), (80,)], ids=["weight", "recurrent weight", "bias", "scale"])
def test_what_is_wrong_with_an_lstm_on_real_values_is_found(shape: tuple[int, ...], tmp_path: Path) -> None:
    import onnx
    from onnx import numpy_helper

    source, result = FIXTURES / "coral_lstm_mnist_int8.tflite", tmp_path / "a.onnx"
    qconvert.convert(source, result, numerics="fast")
    proto = onnx.load(result)
    item = next(item for item in proto.graph.initializer if tuple(item.dims) == shape)
    data = numpy_helper.to_array(item).copy()
    place = np.unravel_index(7, shape)
    data[place] = data[place] * 1.5 if shape == (80,) else data[place] + 0.5 if shape == (1, 160) else data[place] ^ 16
    item.CopyFrom(numpy_helper.from_array(data, item.name))
    onnx.save(proto, result)
    report = qconvert.check(source, result, samples=1)
    assert report.verdict == "not equal" and any(item.name.removesuffix("/scale") in problem for problem in report.problems), report
