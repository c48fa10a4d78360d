"""fold_qat_batch_norm: what torch's quantization-aware training leaves behind a convolution, in the form in which torch.onnx exports it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of

from qconvert import check, convert, load

pytestmark = pytest.mark.onnxruntime

#: Shapes of the data, the weights (ONNX's), the channels' axis of the weights; attributes.
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, dict[str, Any]]] = {
    "Conv": ((1, 3, 9, 9), (8, 3, 3, 3), 0, {"pads": [1, 1, 1, 1]}),
    "depthwise": ((1, 8, 9, 9), (8, 1, 3, 3), 0, {"group": 8}),
    "pointwise": ((1, 6, 5, 5), (8, 6, 1, 1), 0, {}),
    "ConvTranspose": ((1, 3, 4, 4), (3, 8, 2, 2), 1, {"strides": [2, 2]}),
    "Gemm": ((4, 6), (8, 6), 0, {"transB": 1}),
}
EPSILON = 1e-3


def model(form: str, *, bias: bool = False, relu: bool = False, quantized: bool = True, factor: float = 1.0, public: bool = False) -> bytes:
    """x -> fake quantization -> convolution by fake quantized W * f -> / f -> + bias -> BatchNormalization -> Relu -> fake quantization."""
    data, shape, axis, attributes = FORMS[form]
    kind = form if form in ("ConvTranspose", "Gemm") else "Conv"
    rng = np.random.default_rng(7)
    gamma, beta, mean = (rng.normal(1 if name == "gamma" else 0, 0.5, 8).astype(np.float32) for name in ("gamma", "beta", "mean"))
    gamma = np.where(np.abs(gamma) < 0.1, np.float32(0.5), gamma)
    variance = rng.uniform(0.2, 2, 8).astype(np.float32)
    f = gamma / np.sqrt(variance + np.float32(EPSILON))
    along = [1] * len(shape)
    along[axis] = 8
    weights = rng.normal(0, 0.3, shape).astype(np.float32) * f.reshape(along)
    scale = (np.abs(weights).max(tuple(i for i in range(len(shape)) if i != axis)) / 127).astype(np.float32)
    following = (1, 8) if kind == "Gemm" else (1, 8, 1, 1)
    constants = {
        "w": weights, "w_scale": scale, "w_zero": np.zeros(8, np.int8), "x_scale": np.float32(0.03), "x_zero": np.uint8(120),
        "none": np.zeros(8, np.float32), "f": (f * np.float32(factor)).reshape(following),
        "bias": rng.normal(0, 0.3, following).astype(np.float32), "gamma": gamma, "beta": beta, "mean": mean, "variance": variance,
        "y_scale": np.float32(0.05), "y_zero": np.uint8(0 if relu else 128),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_stored"]),
        helper.make_node("DequantizeLinear", ["x_stored", "x_scale", "x_zero"], ["x_real"]),
        helper.make_node("QuantizeLinear", ["w", "w_scale", "w_zero"], ["w_stored"], axis=axis),
        helper.make_node("DequantizeLinear", ["w_stored", "w_scale", "w_zero"], ["w_real"], axis=axis),
        helper.make_node(kind, ["x_real", "w_real", "none"], ["sums"], **attributes),
        helper.make_node("Div", ["sums", "f"], ["divided"]),
        *([helper.make_node("Add", ["divided", "bias"], ["biased"])] if bias else []),
        helper.make_node(
            "BatchNormalization",
            ["biased" if bias else "divided", "gamma", "beta", "mean", "variance"],
            ["normal" if relu or quantized else "y"],
            epsilon=EPSILON,
        ),
        *([helper.make_node("Relu", ["normal"], ["rectified"])] if relu else []),
    ]
    if quantized:
        nodes += [
            helper.make_node("QuantizeLinear", ["rectified" if relu else "normal", "y_scale", "y_zero"], ["y_stored"]),
            helper.make_node("DequantizeLinear", ["y_stored", "y_scale", "y_zero"], ["y"]),
        ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", *["divided"] * public)]
    used = {name for node in nodes for name in node.input}
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in used]
    graph = helper.make_graph(nodes, "qat", [helper.make_tensor_value_info("x", TensorProto.FLOAT, data)], outputs, stored)
    made = model_of(graph)
    return bytes(onnx.shape_inference.infer_shapes(made).SerializeToString())


@pytest.mark.litert
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_one_integer_operator_with_the_trained_integers(form: str, relu: bool, bias: bool, tmp_path: Path) -> None:
    data = model(form, bias=bias, relu=relu)
    source = tmp_path / "source.onnx"
    source.write_bytes(data)
    (before,) = (tensor for tensor in load(source).constants() if tensor.dtype == "int8")
    for name, target in (("result.onnx", "ort-x86-vnni"), ("result.tflite", "tflite")):
        convert(source, tmp_path / name, target=target)
        graph = load(tmp_path / name)
        kinds = {op.kind for op in graph.ops} - {"Quantize", "Dequantize", "Transpose", "Relu"}
        assert kinds == {"ConvTranspose" if form == "ConvTranspose" else "Gemm" if form == "Gemm" else "Conv"}
        (op,) = (op for op in graph.ops if op.kind in kinds)
        assert all(graph[item].is_quantized for item in (*op.inputs[:2], *op.outputs))
        after = graph[op.inputs[1]]
        assert np.array_equal(np.sort(after.data, axis=None), np.sort(before.data, axis=None))
        assert np.array_equal(after.quantization.scale, before.quantization.scale)
        report = check(source, tmp_path / name, samples=2, per_op=True)
        assert report.passed, report.problems
    wanted, found = (
        onnx_models.run(item, onnx_models.random_inputs(data, 3))[0] for item in (data, (tmp_path / "result.onnx").read_bytes())
    )
    steps = np.abs(np.rint((wanted - found) / 0.05))
    assert len(np.unique(wanted)) > 10
    assert steps.max() <= 1 and (steps > 0).mean() < 0.02


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("options", [{"factor": 1.001}, {"public": True}, {"factor": -1.0}], ids=str)
def test_what_is_no_such_form_stays(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "source.onnx").write_bytes(model("Conv", **options))
    for name, target in (("result.onnx", "ort-x86"), ("result.tflite", "tflite")):
        report = convert(tmp_path / "source.onnx", tmp_path / name, target=target)
        assert "quantization-aware" not in str(report.tables())
        assert check(tmp_path / "source.onnx", tmp_path / name, samples=2, per_op=True).passed


def test_a_result_that_stays_real(tmp_path: Path) -> None:
    data = model("Conv", quantized=False)
    (tmp_path / "source.onnx").write_bytes(data)
    convert(tmp_path / "source.onnx", tmp_path / "result.onnx", target="ort-x86")
    feeds = onnx_models.random_inputs(data, 3)
    wanted, found = (onnx_models.run(item, feeds)[0] for item in (data, (tmp_path / "result.onnx").read_bytes()))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert not {"Div", "BatchNormalization"} & {op.kind for op in load(tmp_path / "result.onnx").ops}
