"""expand_definitions: what stands in place of an operator gives its values, within what the pass declares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_models
import pytest
from onnx import numpy_helper, parser
from tflite_models import run_litert

from qconvert import check, convert, load, save
from qconvert.conversion import run_passes
from qconvert.plugins import pass_named, target_named

pytestmark = pytest.mark.onnxruntime

#: Body -> shapes of the inputs a, b and c that it reads.
CASES: dict[str, tuple[tuple[int, ...], ...]] = {
    "y = MatMul(a, b)": ((3, 5), (5,)),
    "y = LpPool<kernel_shape=[2,3], p=3>(a)": ((1, 2, 6, 7),),
    "y = GlobalLpPool<p=2>(a)": ((1, 2, 6, 7),),
    "y = AveragePool<kernel_shape=[2,2], dilations=[2,2]>(a)": ((1, 2, 6, 7),),
    "y = MeanVarianceNormalization(a)": ((2, 3, 4, 5),),
    "y = GridSample<mode=\"cubic\", padding_mode=\"reflection\">(a, b)": ((1, 2, 6, 7), (1, 4, 5, 2)),
}  # fmt: skip


@pytest.mark.cross_section
@pytest.mark.parametrize("body", CASES)
def test_a_definition_has_the_operator_s_values(body: str, tmp_path: Path) -> None:
    shapes = dict(zip("abc", CASES[body], strict=False))
    inputs = ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items())
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]> g ({inputs}) => (float y) {{ {body} }}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    source, result = tmp_path / "m.onnx", tmp_path / "defined.onnx"
    source.write_bytes(model.SerializeToString())
    graph = load(source)
    assert any(op.kind == "Opaque" for op in graph.ops)
    changed, _ = run_passes(graph, ["expand_definitions"], target_named("tflite"))
    assert not any(op.kind == "Opaque" for op in changed.ops)
    save(changed, result)
    rng = np.random.default_rng(0)
    for spread in (0.5, 3.0):
        feed = {name: (spread * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
        (wanted,), (found,) = (onnx_models.run(path.read_bytes(), feed, False) for path in (source, result))
        assert wanted.shape == found.shape and np.ptp(wanted) > 0.1
        within = pass_named("expand_definitions").within
        assert within is not None and np.abs(wanted - found).max() <= within * np.abs(wanted).max()


@pytest.mark.litert
@pytest.mark.parametrize("scale", [1.0, 0.0, -3.0])
@pytest.mark.parametrize("shape", [(2, 5), (1, 4, 4, 3)])
def test_data_rounded_at_each_run_that_no_product_reads(shape: tuple[int, ...], scale: float, tmp_path: Path) -> None:
    """DynamicQuantizeLinear, integers moved, and a DequantizeLinear of its scale and zero point: every value is onnxruntime's."""
    sizes = ",".join(map(str, shape))
    body = "q, s, z = DynamicQuantizeLinear(a)  t = Transpose(q)  y = DequantizeLinear(t, s, z)"
    text = f'<ir_version: 9, opset_import: ["" : 17]> g (float[{sizes}] a) => (float[{",".join(map(str, shape[::-1]))}] y) {{ {body} }}'
    source, result = tmp_path / "m.onnx", tmp_path / "m.tflite"
    source.write_bytes(parser.parse_model(text).SerializeToString())
    convert(source, result)
    for seed in range(20):
        values = (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)
        (wanted,) = onnx_models.run(source.read_bytes(), {"a": values})
        (found,) = run_litert(result.read_bytes(), [values])
        assert np.array_equal(found, wanted)
        assert scale == 0 or len(np.unique(found)) > 5
    assert check(source, result, per_op=True).verdict == "passed"


@pytest.mark.litert
@pytest.mark.parametrize("scales", ["w", "v"])
def test_sums_of_data_rounded_at_each_run_times_a_computed_scale(scales: str, tmp_path: Path) -> None:
    """MatMulInteger and a DequantizeLinear of its int32 sums, by the scale of the data times one of the weights, or one a column."""
    body = f"q, s, z = DynamicQuantizeLinear(a)  p = MatMulInteger(q, k, z)  t = Mul(s, {scales})  y = DequantizeLinear(p, t)"
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]> g (float[3,6] a) => (float[3,4] y) {{ {body} }}')
    rng = np.random.default_rng(3)
    weights, one, several = rng.integers(-127, 128, (6, 4), np.int8), np.float32(0.02), np.linspace(0.01, 0.05, 4, dtype=np.float32)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(data), name) for name, data in (("k", weights), ("w", one), ("v", several))
    )
    source, result = tmp_path / "m.onnx", tmp_path / "m.tflite"
    source.write_bytes(model.SerializeToString())
    convert(source, result)
    for spread in (0.5, 3.0):
        values = (rng.normal(size=(3, 6)) * spread).astype(np.float32)
        (wanted,), (found,) = onnx_models.run(source.read_bytes(), {"a": values}), run_litert(result.read_bytes(), [values])
        assert np.abs(wanted - found).max() <= 0.02 * np.ptp(wanted)
    assert [op["arithmetic"] for op in load(source).ops] == ["dynamic_tensor"]
    assert check(source, result).verdict in ("passed", "as declared")


@pytest.mark.litert
@pytest.mark.parametrize("scales", [0.02, (0.01, 0.02, 0.03, 0.05)])
@pytest.mark.parametrize("bias", [True, False])
def test_sums_of_integers_times_a_known_scale(bias: bool, scales: float | tuple[float, ...], tmp_path: Path) -> None:
    """QuantizeLinear, MatMulInteger, a bias of int32 and a DequantizeLinear by the product of both scales: a product with a bias."""
    total = "u = Add(p, b)  y = DequantizeLinear(u, t)" if bias else "y = DequantizeLinear(p, t)"
    body = f"q = QuantizeLinear(a, s, z)  p = MatMulInteger(q, k, z)  t = Mul(s, w)  {total}  v = Reshape(y, o)"
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]> g (float[3,6] a) => (float[12] v) {{ {body} }}')
    rng = np.random.default_rng(3)
    constants = {"k": rng.integers(-127, 128, (6, 4), np.int8), "b": rng.integers(-9000, 9000, 4, np.int32)}
    constants |= {"s": np.float32(0.03), "z": np.uint8(120), "w": np.float32(scales), "o": np.array([-1], np.int64)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(data), name) for name, data in constants.items())
    source, result = tmp_path / "m.onnx", tmp_path / "m.tflite"
    source.write_bytes(model.SerializeToString())
    product = next(op for op in load(source).ops if op.kind == "MatMul")
    weights = load(source)[product.inputs[1]]
    assert weights.data is not None and np.array_equal(weights.data, constants["k"])
    assert weights.quantization is not None and np.allclose(weights.quantization.scale, scales)
    convert(source, result)
    values = rng.normal(size=(3, 6)).astype(np.float32)
    (wanted,), (found,) = onnx_models.run(source.read_bytes(), {"a": values}), run_litert(result.read_bytes(), [values])
    assert np.abs(wanted - found).max() <= 1e-5 * np.ptp(wanted)
    assert check(source, result).verdict in ("passed", "as declared")
