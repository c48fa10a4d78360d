"""movement_in_float: networks whose activations have 4 or 2 bits, in ONNX again: onnxruntime runs what is written, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qconvert import check, convert, load
from qconvert.errors import UnsupportedError
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.onnxruntime

TYPES = {"int4": (TensorProto.INT4, 21), "uint4": (TensorProto.UINT4, 21), "int2": (TensorProto.INT2, 25), "uint2": (TensorProto.UINT2, 25)}


def network(path: Path, dtype: str, *, contrib: bool = False, shift: float = 0.0, stored: bool = False) -> Path:
    """A convolution and what moves, joins, chooses and compares its data, each between Quantize and Dequantize.

    Args:
        contrib: in an older opset, with onnxruntime's own Quantize and Dequantize.
        shift: what is added to the weights.
        stored: whether input and output are stored integers.
    """
    number, opset = TYPES[dtype]
    domain = "com.microsoft" if contrib else ""
    rng = np.random.default_rng(5)
    few = {"zero": helper.make_tensor("zero", number, [], [int(dtype.endswith("4"))])}
    constants = {
        "scale": np.float32(0.25 if dtype.endswith("4") else 1), "w": (rng.normal(0, 0.3, (4, 2, 3, 3)) + shift).astype(np.float32),
        "pads": np.array([0, 0, 1, 0, 0, 0, 0, 1]), "flat": np.array([1, 4, -1]), "low": np.array([1]), "high": np.array([9]),
        "axis": np.array([2]), "pick": np.array([3, 0, 5]),
    }  # fmt: skip
    nodes = [helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["x_real"], domain=domain)] if stored else []
    last = "x_real" if stored else "x"

    def step(kind: str, *others: str, **attributes: object) -> None:
        nonlocal last
        result = f"{kind.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(kind, [last, *others], [result], **attributes))
        quantized(result)

    def quantized(result: str) -> None:
        nonlocal last
        nodes.append(helper.make_node("QuantizeLinear", [result, "scale", "zero"], [f"{result}_q"], domain=domain))
        nodes.append(helper.make_node("DequantizeLinear", [f"{result}_q", "scale", "zero"], [f"{result}_d"], domain=domain))
        last = f"{result}_d"

    if not stored:
        quantized("x")
    step("Pad", "pads")
    step("Conv", "w")
    step("Relu")
    step("MaxPool", kernel_shape=[2, 2])
    step("Reshape", "flat")
    step("Slice", "low", "high", "axis")
    step("Gather", "pick", axis=2)
    nodes.append(helper.make_node("Concat", [last, last], ["joined"], axis=1))
    last = "joined"
    step("Transpose", perm=[0, 2, 1])
    nodes.append(helper.make_node("ArgMax", [last], ["largest"], axis=2, keepdims=0))
    if stored:
        last = nodes[-2].input[0]
    kind = number if stored else 1
    inputs = [helper.make_tensor_value_info("x", kind, [1, 2, 6, 6])]
    outputs = [helper.make_tensor_value_info(last, kind, [1, 3, 8]), helper.make_tensor_value_info("largest", TensorProto.INT64, [1, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [*(numpy_helper.from_array(v, n) for n, v in constants.items()), *few.values()])
    opsets = [helper.make_opsetid("", 17 if contrib else opset), *([helper.make_opsetid("com.microsoft", 1)] if contrib else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=13 if opset == 25 else 10), path)
    return path


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("dtype", sorted(TYPES))
def test_data_of_few_bits_are_moved(dtype: str, form: str, tmp_path: Path) -> None:
    source, result = network(tmp_path / "a.onnx", dtype), tmp_path / "b.onnx"
    report = convert(source, result, target="generic", form=form)
    assert any(change.by == "movement_in_float" for change in report.changes)
    assert {t.dtype for t in load(result).tensors.values() if t.is_quantized} == {dtype}
    x = np.random.default_rng(1).normal(0, 1, (1, 2, 6, 6)).astype(np.float32)
    wanted, found = (list(OnnxRuntime(path.read_bytes(), optimize=False).run({"x": x}).values()) for path in (source, result))
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.unique(wanted[0]).size >= 2
    report = check(source, result, per_op=True)
    assert report.passed, report
    assert {item.verdict for item in report.operators} == {"equal"}
    assert len(report.operators) > 8


@pytest.mark.cross_section
@pytest.mark.parametrize(("stored", "contrib"), [(False, False), (True, False), (False, True), (True, True)])
def test_other_weights_beside_data_of_few_bits_are_found(stored: bool, contrib: bool, tmp_path: Path) -> None:
    """In files that take and give integers of 4 bits too, which numpy knows as none, and in an opset that has no Cast of them."""
    source = network(tmp_path / "a.onnx", "int4", stored=stored, contrib=contrib)
    other = network(tmp_path / "c.onnx", "int4", stored=stored, contrib=contrib, shift=0.02)
    convert(source, tmp_path / "b.onnx", target="generic")
    report = check(source, tmp_path / "b.onnx", per_op=True)
    assert report.passed, report
    report = check(other, tmp_path / "b.onnx", per_op=True)
    assert report.verdict == "not equal"
    assert any(item.operator.startswith("Conv") and item.unexplained for item in report.operators), report


@pytest.mark.litert
def test_8_bits_are_named_where_4_are_refused(tmp_path: Path) -> None:
    source = network(tmp_path / "a.onnx", "int4")
    with refused(UnsupportedError, "target-rules", holds=("activation_bits", 8)):
        convert(source, tmp_path / "b.tflite")
    convert(source, tmp_path / "b.tflite", passes=["change_bits"], activation_bits=8)
    assert check(source, tmp_path / "b.tflite", min_sqnr=20).passed
