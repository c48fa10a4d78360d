"""Checks of models with custom operators: everything around them is judged, they themselves are compared as they stand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from custom_models import CONV, OPTIONS, foreign_model
from onnx import numpy_helper
from tflite_models import OpSpec, TensorSpec, model

from qconvert import check, convert
from qconvert.checking.findings import NOT_EQUAL, NOT_JUDGED
from qconvert.operators.opaque import TFLITE_DOMAIN

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]


def between() -> bytes:
    """Two custom operators of two inputs, one of them the model's, among convolutions; one result is the model's output."""
    rng = np.random.default_rng(0)

    def t(name: str, scale: float = 0.5) -> TensorSpec:
        return TensorSpec(name, (1, 8, 8, 4), "int8", scale, 3)

    w = TensorSpec("w", (4, 3, 3, 4), "int8", 0.02, 0, data=rng.integers(-127, 127, (4, 3, 3, 4)).astype("int8"))
    b = TensorSpec("b", (4,), "int32", 0.01, 0, data=np.arange(4, dtype="int32"))
    k = TensorSpec("k", (4,), "float32", data=np.arange(4, dtype=np.float32))
    ops = [
        OpSpec("CONV_2D", ["x", "w", "b"], ["a"], CONV),
        OpSpec("RELU", ["a"], ["r"]),
        OpSpec("Two", ["a", "r", "k"], ["c"], OPTIONS, custom=True),
        OpSpec("CONV_2D", ["c", "w", "b"], ["d"], CONV),
        OpSpec("Two", ["d", "x", ""], ["e", "f"], {"n": 1}, custom=True),
        OpSpec("CONV_2D", ["f", "w", "b"], ["g"], CONV),
    ]
    tensors = [t("x"), w, b, t("a", 0.9), t("r", 0.9), k, t("c"), t("d", 0.8), t("e"), t("f"), t("g", 0.7)]
    return model(ops, tensors, ["x"], ["e", "g"])


def custom_nodes(found: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in found.graph.node if node.domain == TFLITE_DOMAIN]


def swap(found: onnx.ModelProto) -> None:
    node = custom_nodes(found)[0]
    node.input[0], node.input[1] = node.input[1], node.input[0]


def feed_otherwise(found: onnx.ModelProto) -> None:
    custom_nodes(found)[1].input[1] = custom_nodes(found)[1].input[0]


def option_byte(found: onnx.ModelProto) -> None:
    item = next(item for item in custom_nodes(found)[0].attribute if item.name == "custom_options")
    item.s = item.s.replace(b"alpha", b"alphb")


def attribute(found: onnx.ModelProto) -> None:
    next(item for item in custom_nodes(found)[1].attribute if item.name == "n").i = 2


def scale(found: onnx.ModelProto) -> None:
    next(item for item in custom_nodes(found)[0].attribute if item.name == "output_0_scale").floats[0] = 0.51


def code(found: onnx.ModelProto) -> None:
    custom_nodes(found)[1].op_type = "Three"


def constant(found: onnx.ModelProto) -> None:
    (item,) = [item for item in found.graph.initializer if item.name == "k"]
    item.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(item) + np.array([0, 0, 1, 0], np.float32), "k"))


def weight(found: onnx.ModelProto) -> None:
    (item,) = [item for item in found.graph.initializer if item.name == "w"]
    changed = numpy_helper.to_array(item).copy()
    changed.flat[5] ^= 64
    item.CopyFrom(numpy_helper.from_array(changed, "w"))


CHANGES: list[tuple[Callable[[Any], None] | None, str]] = [
    (None, ""),
    (swap, ""),
    (feed_otherwise, ""),
    (option_byte, "other options"),
    (attribute, "other options"),
    (scale, "scale"),
    (code, "tflite.custom.Three instead of tflite.custom.Two"),
    (constant, "input 2 ('k')"),
    (weight, "w"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=[getattr(change, "__name__", "as it is") for change, _ in CHANGES])
def test_around_custom_operators(change: Any, said: str, tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(between())
    convert(source, result)
    if change is not None:
        found = onnx.load(result)
        change(found)
        onnx.save(found, result)
    report = check(source, result, samples=2, per_op=change is None)
    assert report.unjudged[0].startswith("2 custom operators cannot be run here") and "tflite.custom.Two (2)" in report.unjudged[0]
    if change is None:
        assert (report.verdict, report.problems) == (NOT_JUDGED, ())
        assert {item.name for item in report.outputs} >= {"g", "a", "r", "d"} and all(item.equal == 1 for item in report.outputs)
        assert {op.output for op in report.operators} >= {"a", "d", "g"}
    else:
        assert report.verdict == NOT_EQUAL and any(said in text for text in report.problems), report.problems
    assert (report.source, report.result) == (str(source), str(result))


def test_around_a_foreign_node(tmp_path: Path) -> None:
    """From ONNX to TFLite, and both ways back; a model between formats of which neither runs the node."""
    source, there, back = tmp_path / "a.onnx", tmp_path / "a.tflite", tmp_path / "b.onnx"
    onnx.save(foreign_model(alpha=0.5), source)
    convert(source, there)
    convert(there, back)
    for one, other in ((source, there), (there, back), (source, source)):
        report = check(one, other, samples=2)
        assert (report.verdict, report.problems) == (NOT_JUDGED, ())
        assert len(report.outputs) == 2 and all(item.largest < 1e-5 for item in report.outputs)


@pytest.mark.cross_section
def test_data_of_the_users_own(tmp_path: Path) -> None:
    """Files hold the model's inputs alone; what custom operators compute is made at random."""
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(between())
    convert(source, result)
    np.save(tmp_path / "x.npy", np.random.default_rng(1).integers(-128, 127, (1, 8, 8, 4)).astype(np.int8))
    report = check(source, result, data=[tmp_path / "x.npy"])
    assert (report.verdict, report.problems, report.runs) == (NOT_JUDGED, (), 1)


def test_operators_that_are_gone_are_a_difference(tmp_path: Path) -> None:
    source, result = tmp_path / "a.tflite", tmp_path / "a.onnx"
    source.write_bytes(between())
    convert(source, result)
    found = onnx.load(result)
    custom_nodes(found)[0].domain, custom_nodes(found)[0].op_type = "", "Add"
    onnx.save(found, result)
    node = next(node for node in found.graph.node if node.op_type == "Add")
    del node.attribute[:]
    del node.input[2:]
    onnx.save(found, result)
    report = check(source, result, samples=1)
    assert report.verdict == NOT_EQUAL and "the source has 2 custom operators, the result 1" in report.problems[0]
