"""Small networks, most from onnxruntime's quantizer, converted to TFLite: whatever that demands, the check without options passes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser
from onnx_models import quantized
from onnx_networks import NETWORKS, build
from tflite_models import TensorSpec, single_op

from qconvert import check, convert, load

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

S16 = {"activation_type": "QInt16", "per_channel": True, "extra": {"ActivationSymmetric": True}, "opset": 21}
UNSIGNED = {"activation_type": "QUInt8", "weight_type": "QUInt8"}


@pytest.mark.parametrize(
    ("kind", "options", "target"),
    [
        pytest.param("matrices", {}, None, id="a softmax along an axis that is moved after, with a quantization of its own"),
        pytest.param("matrices", UNSIGNED, "tflite", id="square weights, turned and on other scales"),
        pytest.param("shared_weights", S16, None, id="a concatenation of int16 quantizations"),
    ],
)
def test_the_check_passes(kind: str, options: dict[str, object], target: str | None, tmp_path: Path) -> None:
    source, result = tmp_path / "source.onnx", tmp_path / "result.tflite"
    source.write_bytes(quantized(kind, **options))  # type: ignore[arg-type]
    convert(source, result, target=target or "")
    report = check(source, result)
    assert report.passed, (report.problems, report.unjudged)
    assert len(report.operators) >= 4  # the outputs alone say nothing here, since roundings differ


def test_a_constant_whose_operator_is_spelled_out_on_the_way_back_is_the_sources(tmp_path: Path) -> None:
    """An Add that rounds as XNNPACK does, decomposed for onnxruntime, reads the stored integers of its constant as plain numbers."""
    source, between, result = tmp_path / "source.onnx", tmp_path / "between.tflite", tmp_path / "result.onnx"
    source.write_bytes(quantized("matmul_bias", activation_type="QUInt8", per_channel=True))
    convert(source, between)
    convert(between, result)
    for before in (source, between):
        report = check(before, result)
        assert report.passed, report.problems


def _joined(dtype: str) -> ModelProto:
    """A Concat of a constant with a scale of its own, as the class token of a ViT."""
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        joined (float[1,4,8] x) => (float[1,5,8] y) <float sx = {{0.05}}, {dtype} zx = {{5}}, float sk = {{0.011}}, {dtype} zk = {{0}}> {{
            xq = QuantizeLinear(x, sx, zx)
            xf = DequantizeLinear(xq, sx, zx)
            kq = QuantizeLinear(k, sk, zk)
            kf = DequantizeLinear(kq, sk, zk)
            joined = Concat <axis = 1> (kf, xf)
            yq = QuantizeLinear(joined, sx, zx)
            y = DequantizeLinear(yq, sx, zx)
        }}""")
    model.graph.initializer.append(numpy_helper.from_array(np.linspace(0, 1, 8, dtype=np.float32).reshape(1, 1, 8), "k"))
    return model


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_constant_on_another_scale_stays_declared_on_the_way_back(dtype: str, tmp_path: Path) -> None:
    """TFLite joins tensors of one scale, so that the constant is requantized; onnxruntime joins plain integers."""
    source, between, result = tmp_path / "source.onnx", tmp_path / "between.tflite", tmp_path / "result.onnx"
    source.write_bytes(_joined(dtype).SerializeToString())
    convert(source, between)
    convert(between, result)
    (op,) = load(result).of_kind("Concat")
    assert all(load(result)[name].is_quantized for name in op.names)
    report = check(source, result)
    assert report.passed, report.problems


@pytest.mark.parametrize(("kind", "shape"), [("InstanceNormalization", (1, 8, 256)), ("LayerNormalization", (1, 4, 256))])
def test_equal_elements_less_their_mean_are_roundings_in_int16(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Both runtimes are some steps of 16 bits off where all elements of a row are at an end of the range."""
    source, result = tmp_path / "source.onnx", tmp_path / "result.tflite"
    count, rng = shape[-1] if kind == "LayerNormalization" else shape[1], np.random.default_rng(0)
    sizes = ",".join(map(str, shape))
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        normalized (int16[{sizes}] x) => (int16[{sizes}] y) <float sx = {{0.0003}}, int16 z = {{0}}, float sy = {{0.0001}}> {{
            xf = DequantizeLinear(x, sx, z)
            yf = {kind} <epsilon = 0.00001> (xf, w, b)
            y = QuantizeLinear(yf, sy, z)
        }}""")
    for name, mean in (("w", 1.0), ("b", 0.0)):
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(mean, 0.1, count).astype(np.float32), name))
    source.write_bytes(model.SerializeToString())
    convert(source, result)
    report = check(source, result)
    assert report.passed, report.problems


@pytest.mark.cross_section
def test_a_concatenation_of_more_than_xnnpack_takes(tmp_path: Path) -> None:
    """Its own kernel rounds nothing; the QUANTIZE before each operand is XNNPACK's, with 8 fractional bits."""
    source, result = tmp_path / "source.tflite", tmp_path / "result.tflite"
    scales = np.linspace(0.027, 0.049, 6)
    operands = [TensorSpec(f"x{i}", (1, 4, 300), "uint8", scale=scale, zero_point=200 + i) for i, scale in enumerate(scales)]
    source.write_bytes(
        single_op("CONCATENATION", {"axis": 1}, operands, [TensorSpec("y", (1, 24, 300), "uint8", scale=0.0497, zero_point=223)])
    )
    convert(source, result, target="tflite")
    report = check(source, result)
    assert report.passed, report.problems


def test_weights_that_took_in_a_batch_normalization_are_judged_with_it(tmp_path: Path) -> None:
    """They are far from the source's weights, and the Conv's own result is nowhere in the result."""
    source, result = tmp_path / "source.onnx", tmp_path / "result.tflite"
    source.write_bytes(build("batch_normalization", NETWORKS["batch_normalization"]).SerializeToString())
    convert(source, result)
    report = check(source, result)
    assert report.passed, report.problems


@pytest.mark.torch
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_in_blocks_are_the_sources_in_a_program(bits: int, tmp_path: Path) -> None:
    """It has their integers as uint8, from which it takes the zero points and which it multiplies by the scales, in float."""
    source, result, rng = tmp_path / "source.onnx", tmp_path / "result.pt2", np.random.default_rng(0)
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        blocks (float[2,64] x) => (float[2,32] y) {{
            y = com.microsoft.MatMulNBits <K = 64, N = 32, bits = {bits}, block_size = 16> (x, w, s)
        }}""")
    weights = rng.integers(0, 256, (32, 4, 2 * bits)).astype(np.uint8)
    for name, values in (("w", weights), ("s", rng.uniform(0.01, 0.1, 128).astype(np.float32))):
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    source.write_bytes(model.SerializeToString())
    convert(source, result)
    report = check(source, result)
    assert report.passed, report.problems
