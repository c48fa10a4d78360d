"""The target `portable`: operators of the standard alone, each between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import helper, numpy_helper, parser

from qconvert import QConvertError, check, convert, load
from qconvert.runtimes.onnxruntime import OnnxRuntime

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Model -> operators of its portable form, besides conversions and what stands in every network.
MODELS = {
    "tiny_kws_dscnn_int8.tflite": {"Reshape", "AveragePool", "Softmax"},
    "tiny_resnet_cifar10_int8.tflite": {"Add", "AveragePool", "Reshape"},
    "coral_mobilenet_v1_025_128_uint8.tflite": {"AveragePool", "Softmax"},
    "onnx/torch_fx_fbgemm_vision.onnx": {"Clip", "Concat", "Resize", "MaxPool", "HardSwish"},
}
_CONVERSIONS = ("QuantizeLinear", "DequantizeLinear")


def integer_values(model: onnx.ModelProto) -> set[str]:
    """Names of integers that stand for numbers: inputs of 8 bits, and results of QuantizeLinear."""
    inputs = {item.name for item in model.graph.input if item.type.tensor_type.elem_type in (2, 3)}
    return inputs | {node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", MODELS)
def test_every_operator_stands_between_conversions(name: str, tmp_path: Path) -> None:
    convert(FIXTURES / name, tmp_path / "m.onnx", target="portable")
    model = onnx.load(tmp_path / "m.onnx")
    assert [item.domain for item in model.opset_import] == [""]
    kinds = {node.op_type for node in model.graph.node}
    assert kinds >= MODELS[name] and not kinds & {"Cast", "Where", "Round", "Floor"}
    stored = integer_values(model)
    on_integers = [node.op_type for node in model.graph.node if node.op_type not in _CONVERSIONS and stored.intersection(node.input)]
    assert on_integers == []
    report = check(FIXTURES / name, tmp_path / "m.onnx", samples=2)
    assert report.verdict == "passed" and all(item.equal == 1 or item.largest <= 1 for item in report.outputs), report.problems
    before, after = (load(path) for path in (FIXTURES / name, tmp_path / "m.onnx"))
    assert {before[n].dtype for n in before.inputs} == {after[n].dtype for n in after.inputs}


@pytest.mark.onnxruntime
def test_batch_norms_of_quantization_aware_training_are_folded(tmp_path: Path) -> None:
    """IREE takes no BatchNormalization below opset 15, which is that of the file."""
    source = FIXTURES / "onnx" / "torch_fx_qat_vision.onnx"
    convert(source, tmp_path / "m.onnx", target="portable", batch=1)
    model = onnx.load(tmp_path / "m.onnx")
    assert model.opset_import[0].version == 13 and not {node.op_type for node in model.graph.node} & {"BatchNormalization", "Div"}
    report = check(source, tmp_path / "m.onnx", samples=2)
    assert report.verdict == "passed" and all(item.equal > 0.98 and item.largest < 0.005 for item in report.outputs)


@pytest.mark.onnxruntime
def test_onnxruntime_still_computes_on_integers(tmp_path: Path) -> None:
    convert(FIXTURES / "coral_mobilenet_v1_025_128_uint8.tflite", tmp_path / "m.onnx", target="portable")
    OnnxRuntime(tmp_path / "m.onnx", save_optimized=tmp_path / "optimized.onnx")
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert kinds["QLinearConv"] == 28 and kinds["Conv"] == 0 and kinds["DequantizeLinear"] <= 1


@pytest.mark.onnxruntime
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_clip_stands_before_its_quantization_and_gives_the_same_integers(dtype: str, tmp_path: Path) -> None:
    """Compilers without unsigned types (IREE 3.13) take the integers of a Clip for signed ones, so it has to be one of floats."""
    point = 53 if dtype == "uint8" else -75
    text = f"""<ir_version: 8, opset_import: ["": 13]> g (float[1, 16] x) => (float[1, 8] y)
        <float s = {{0.05}}, {dtype} z = {{{point}}}, float ws = {{0.01}}, int8 wz = {{0}}, float os = {{0.0468}}, {dtype} oz = {{{point}}},
         float low = {{0}}, float high = {{6}}> {{
        xq = QuantizeLinear (x, s, z) xd = DequantizeLinear (xq, s, z) wd = DequantizeLinear (w, ws, wz) m = MatMul (xd, wd)
        mq = QuantizeLinear (m, os, oz) md = DequantizeLinear (mq, os, oz) c = Clip (md, low, high) cq = QuantizeLinear (c, os, oz)
        y = DequantizeLinear (cq, os, oz) }}"""
    model = parser.parse_model(text)
    weights = np.random.default_rng(0).integers(-127, 128, (16, 8)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    convert(tmp_path / "m.onnx", tmp_path / "p.onnx", target="portable")
    nodes = onnx.load(tmp_path / "p.onnx").graph.node
    (clip,) = (node for node in nodes if node.op_type == "Clip")
    assert any(node.op_type == "QuantizeLinear" and node.input[0] == clip.output[0] for node in nodes)
    feed = {"x": (4 * np.random.default_rng(1).standard_normal((1, 16))).astype(np.float32)}
    (wanted,), (found,) = (onnx_models.run((tmp_path / name).read_bytes(), feed, False) for name in ("m.onnx", "p.onnx"))
    assert np.array_equal(wanted, found) and len(np.unique(wanted)) > 3


def node_of(domain: str, op_type: str, tmp_path: Path, **attributes: Any) -> Path:
    values = [helper.make_tensor_value_info(name, 1, [3, 4]) for name in ("a", "b", "y")]
    graph = helper.make_graph([helper.make_node(op_type, ["a", "b"], ["y"], domain=domain, **attributes)], "g", values[:2], values[2:])
    del graph.output[0].type.tensor_type.shape.dim[:]
    graph.output[0].type.tensor_type.ClearField("shape")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)], ir_version=8)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "m.onnx"


@pytest.mark.onnxruntime
def test_operators_of_onnxruntime_become_those_of_the_standard(tmp_path: Path) -> None:
    source = node_of("com.microsoft", "FusedMatMul", tmp_path, transB=1, alpha=0.5)
    convert(source, tmp_path / "p.onnx", target="portable")
    model = onnx.load(tmp_path / "p.onnx")
    assert {node.op_type for node in model.graph.node} >= {"MatMul", "Transpose"} and not any(node.domain for node in model.graph.node)
    feed = {name: np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32) for name in "ab"}
    (wanted,), (found,) = (onnx_models.run(path.read_bytes(), feed, False) for path in (source, tmp_path / "p.onnx"))
    assert np.allclose(wanted, found, rtol=1e-6, atol=1e-6)


def test_an_operator_that_nothing_defines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QConvertError, match=r"Mystery is of the domain 'mine'"):
        convert(node_of("mine", "Mystery", tmp_path), tmp_path / "p.onnx", target="portable")
    assert not (tmp_path / "p.onnx").exists()
