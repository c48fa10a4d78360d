"""SVDF of real data, with real and with int8 weights: read, evaluated, written to TFLite and ONNX, next to LiteRT over many runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_files import real_svdf_file
from refusals import refused

import qconvert
from qconvert.arithmetic import dynamic_steps
from qconvert.conversion import load
from qconvert.errors import QConvertError
from qconvert.evaluate import evaluate
from qconvert.runtimes.litert import LiteRT
from qconvert.streaming import Session

pytestmark = pytest.mark.litert

INT8 = ("int8", "int8")
#: Sums of float32 in another order, as a share of the largest output.
CLOSE = 6e-6
RUNS = 20
FORMS: list[dict[str, Any]] = [
    {},
    {"activation": 1, "rank": 2, "rows": 3},
    {"activation": 3, "bias": False},
    {"activation": 2},
    {"memory": 1, "rank": 4},
    {"inputs": 1000, "rows": 2},
]
ROUNDINGS = {"dynamic_symmetric": False, "dynamic_rows": True}


def feeds(rows: int, inputs: int, count: int = RUNS) -> list[dict[str, np.ndarray]]:
    """Random rows, some of zeros, some on one side of zero."""
    rng = np.random.default_rng(0)
    found = [rng.normal(rng.normal(), rng.uniform(0.1, 3), (rows, inputs)).astype("float32") for _ in range(count)]
    for index in range(3, count, 7):
        found[index][0] = 0
        found[index - 1] = np.abs(found[index - 1])
    return [{"data": value} for value in found]


def compare(content: bytes, folder: Path, form: dict[str, Any], **options: str) -> qconvert.Graph:
    """The graph of a file, after runs that LiteRT, the evaluation, ONNX and the TFLite file made of that all give alike."""
    path = folder / "svdf.tflite"
    path.write_bytes(content)
    graph = load(path)
    qconvert.convert(path, folder / "svdf.onnx", **options)
    qconvert.convert(folder / "svdf.onnx", folder / "again.tflite")
    assert load(folder / "again.tflite").ops == graph.ops
    model, again, other = LiteRT(content), LiteRT((folder / "again.tflite").read_bytes()), Session(folder / "svdf.onnx")
    states: dict[str, np.ndarray] = {}
    largest = 0.0
    for feed in feeds(form.get("rows", 1), form.get("inputs", 10)):
        expected = model.run(feed)["output"]
        largest = max(largest, float(np.abs(expected).max()))
        np.testing.assert_array_equal(again.run(feed)["output"], expected)
        for found in (other.run(feed)["output"], evaluate(graph, feed, states)[graph.outputs[0]]):
            np.testing.assert_allclose(found, expected, atol=CLOSE * largest, rtol=0)
    assert largest > 0.1
    return graph


@pytest.mark.onnxruntime
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_real_weights(form: dict[str, Any], tmp_path: Path) -> None:
    graph = compare(real_svdf_file(**form), tmp_path, form)
    assert [op.kind for op in graph.ops] == ["ReadState", "SVDF", "WriteState"]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("arithmetic", ROUNDINGS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_integer_weights(form: dict[str, Any], arithmetic: str, tmp_path: Path) -> None:
    """Whose data are rounded to 8 bits: ONNX files hold the same integers and round alike."""
    import onnx

    content = real_svdf_file(**form, weights=INT8, asymmetric=ROUNDINGS[arithmetic])
    graph = compare(content, tmp_path, form, dynamic="keep")
    (op,) = (op for op in graph.ops if op.kind == "SVDF")
    assert op["arithmetic"] == arithmetic
    held = {item.name: item for item in onnx.load(tmp_path / "svdf.onnx").graph.initializer}
    for name in ("feature", "time"):
        assert held[name].data_type == onnx.TensorProto.INT8
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(held[name]), graph[name].data)


@pytest.mark.parametrize("arithmetic", ROUNDINGS)
def test_rows_are_rounded_to_the_kernels_bits(arithmetic: str) -> None:
    """Seen through weights that are one integer each."""
    size = 40
    weights = {"feature": np.eye(size) * 100, "time": np.full((size, 1), 100)}
    asymmetric = ROUNDINGS[arithmetic]
    model = LiteRT(real_svdf_file(inputs=size, units=size, memory=1, bias=False, weights=INT8, asymmetric=asymmetric, fixed=weights))
    for feed in feeds(1, size, 100):
        steps, scale, _ = dynamic_steps(feed["data"], [1], arithmetic)
        product = (100 * steps).astype("float32") * (scale.astype("float32") * np.float32(0.0037))
        np.testing.assert_array_equal(model.run(feed)["output"], product * (np.float32(100) * np.float32(0.0081)))


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("asymmetric", [False, True])
def test_without_dynamic_keep_the_data_stay_real(asymmetric: bool, tmp_path: Path) -> None:
    """Which the check explains, and which the way back undoes."""
    source = tmp_path / "a.tflite"
    source.write_bytes(real_svdf_file(weights=INT8, asymmetric=asymmetric, activation=1))
    report = qconvert.convert(source, tmp_path / "a.onnx")
    assert any("compute in float" in change.text for change in report.changes)
    checked = qconvert.check(source, tmp_path / "a.onnx", samples=1, per_op=True)
    assert checked.passed, checked
    assert [(item.verdict, item.reason.endswith("with float data")) for item in checked.operators] == [("dynamic range", True)]
    qconvert.convert(tmp_path / "a.onnx", tmp_path / "b.tflite")
    assert load(tmp_path / "b.tflite").ops == load(source).ops


@pytest.mark.onnxruntime
@pytest.mark.parametrize("weights", [("float32", "float32"), INT8])
def test_checks_pass_and_find_a_wrong_weight(weights: tuple[str, str], tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(real_svdf_file(weights=weights))
    qconvert.convert(source, result, dynamic="keep")
    report = qconvert.check(source, result, samples=1, per_op=True)
    assert report.passed, report
    assert {item.verdict for item in report.operators} <= {"equal", "one rounding", "approximate"}
    import onnx

    proto = onnx.load(result)
    item = next(item for item in proto.graph.initializer if item.name == "feature")
    data = onnx.numpy_helper.to_array(item).copy()
    data[2, 3] += 1
    item.CopyFrom(onnx.numpy_helper.from_array(data, "feature"))
    onnx.save(proto, result)
    report = qconvert.check(source, result, samples=1)
    assert not report.passed
    assert {item.operator for item in report.operators if item.verdict == "unexplained"} == {"SVDF #0"}


@pytest.mark.parametrize(
    ("form", "rule", "holds"),
    [
        ({"weights": ("int8", "float32")}, "operand-types", ("float32, int8, float32, float32",)),
        ({"weights": ("float32", "int8")}, "operand-types", ("float32, float32, int8, float32",)),
        ({"activation": 4}, "activation-not-covered", (4,)),
        ({"rank": 4, "stated_rank": 5}, "shape-mismatch", (5,)),
        ({"stated_rank": 0}, "shape-mismatch", (0,)),
        ({"weights": INT8, "zero_point": 3}, "weight-quantization", (0,)),  # which the kernel takes for 0
        *(({"wrong": name}, "shape-mismatch", ()) for name in ("time", "bias", "state")),
        *(({"wrong": name, "weights": INT8}, "shape-mismatch", ()) for name in ("feature", "time")),
    ],
)
def test_what_an_svdf_is_not_is_refused(form: dict[str, Any], rule: str, holds: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(real_svdf_file(**form))
    with refused(QConvertError, rule, holds=holds):
        load(tmp_path / "a.tflite")
