"""unroll_sequences: what runs over a short sequence stands in the graph for each step, and gives the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lstm_files import Lstm
from onnx_nodes import model_of
from refusals import refused

import qconvert
from qconvert.errors import OptionError, UnsupportedError
from qconvert.operators.shapes_and_functions import all_ops
from qconvert.streaming import Session

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]


def op_types(path: Path) -> list[str]:
    import onnx

    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"rows": 3, "time_major": True, "steps": 4},
        {"projection": True, "outputs": 3, "peephole": True, "steps": 2},
        {"norm": True, "steps": 2},
    ],
    ids=str,
)
def test_an_unrolled_lstm_gives_the_kernels_bytes(form: dict[str, Any], tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    layer = Lstm(**form)
    source.write_bytes(layer.file())
    report = qconvert.convert(source, result, unroll=6)
    assert any(f"into {layer.steps} steps" in change.text and change.exact for change in report.changes)
    assert "Scan" not in op_types(result)
    assert [op.kind for op in qconvert.load(result).ops].count("IntegerLSTM") == layer.steps
    sessions = Session(source), Session(result)
    ((_, (dtype, shape)),) = sessions[0].inputs.items()
    rng, seen = np.random.default_rng(0), set()
    for _ in range(4):
        feed = rng.integers(-128, 128, shape).astype(dtype)
        a, b = (next(iter(session.run({next(iter(session.inputs)): feed}).values())) for session in sessions)
        np.testing.assert_array_equal(a, b)
        seen.update(a.reshape(-1).tolist())
    assert len(seen) > 10


def test_a_check_of_an_unrolled_lstm_passes(tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(Lstm(steps=3).file())
    qconvert.convert(source, result, unroll=3)
    report = qconvert.check(source, result, samples=1, per_op=True)
    assert report.verdict == "passed" and [item.verdict for item in report.operators] == ["equal"], report


def scan_file(path: Path, steps: int | str, direction: int = 0) -> None:
    """A running sum of the rows of x, last axis first, each times a constant, and what the sum was at each step, along axis 1."""
    from onnx import TensorProto, checker, helper, numpy_helper, save

    def value(name: str, shape: list[int | str]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    nodes = [
        helper.make_node("Mul", ["row", "factor"], ["scaled"]),
        helper.make_node("Add", ["before", "scaled"], ["after"]),
        helper.make_node("Identity", ["after"], ["shown"]),
    ]
    factor = numpy_helper.from_array(np.arange(1, 5, dtype=np.float32), "factor")
    body = helper.make_graph(nodes, "body", [value("before", [4]), value("row", [4])], [value("after", [4]), value("shown", [4])], [factor])
    scan = helper.make_node(
        "Scan", ["start", "x"], ["total", "sums"], body=body, num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[direction],
        scan_output_axes=[1], scan_output_directions=[1 - direction],
    )  # fmt: skip
    graph = helper.make_graph(
        [scan], "sums", [value("start", [4]), value("x", [4, steps])], [value("total", [4]), value("sums", [4, steps])]
    )
    model = model_of(graph, 18)
    checker.check_model(model, full_check=True)
    save(model, path)


@pytest.mark.parametrize("direction", [0, 1])
def test_an_unrolled_scan_gives_the_same(direction: int, tmp_path: Path) -> None:
    import onnxruntime

    source, result = tmp_path / "a.onnx", tmp_path / "b.onnx"
    scan_file(source, 5, direction)
    qconvert.convert(source, result, unroll=5)
    assert "Scan" not in op_types(result) and not [op for op in all_ops(qconvert.load(result)) if op.kind == "Scan"]
    feeds = {"start": np.float32([1, 2, 3, 4]), "x": np.arange(20, dtype=np.float32).reshape(4, 5)}
    expected, found = (onnxruntime.InferenceSession(str(path)).run(None, feeds) for path in (source, result))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(found[0], feeds["start"] + feeds["x"].sum(axis=1) * np.arange(1, 5))
    constants = [tensor for tensor in qconvert.load(result).constants() if tensor.shape == (4,) and tensor.dtype == "float32"]
    assert len(constants) == 1  # shared by all steps


@pytest.mark.cross_section
def test_nothing_is_unrolled_beyond_the_limit(tmp_path: Path) -> None:
    source = tmp_path / "a.tflite"
    source.write_bytes(Lstm(steps=7).file())
    with refused(UnsupportedError, "too-many-steps", holds=("UNIDIRECTIONAL_SEQUENCE_LSTM #0", "7 steps", 6)):
        qconvert.convert(source, tmp_path / "a.onnx", unroll=6)
    for limit in (-1, 257, 10**12):
        with refused(OptionError, "number-out-of-range", holds=("unroll", limit, 256)):
            qconvert.convert(source, tmp_path / "a.onnx", unroll=limit)
    for steps, rule, named in ((10**9, "too-many-steps", (10**9, 200)), ("n", "dynamic-dimension", ())):
        scan_file(tmp_path / "s.onnx", steps)
        with refused(UnsupportedError, rule, where="total", holds=named):
            qconvert.convert(tmp_path / "s.onnx", tmp_path / "a.onnx", unroll=200)
    assert not (tmp_path / "a.onnx").exists()
    qconvert.convert(source, tmp_path / "a.onnx")
    assert "Scan" in op_types(tmp_path / "a.onnx")
