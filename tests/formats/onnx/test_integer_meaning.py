"""What a file says of integers next to their scale counts too: zero points of int32, and reductions along no axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import run
from onnx_nodes import model_of
from tflite_models import run_litert

from qconvert import convert, load
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.reader import read_bytes

pytestmark = pytest.mark.onnxruntime

FORMS = {"qdq": ("onnx", {}), "qoperator": ("onnx", {"form": "qoperator"}), "tflite": ("tflite", {})}


def model(nodes: list[Any], constants: dict[str, Any], shape: tuple[int, ...] = (1, 8), kind: int = TensorProto.FLOAT) -> bytes:
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, values)
    data: bytes = model_of(graph, 18).SerializeToString()
    return data


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def gemm(bias: Any, scale: Any, zero_point: Any, weight_scale: Any) -> bytes:
    """Data at 0.02, weights (4, 8), a bias after its own DequantizeLinear."""
    rng = np.random.default_rng(0)
    axis = {} if np.ndim(weight_scale) == 0 else {"axis": 0}
    constants = {
        "s": np.float32(0.02), "z": np.int8(0), "w": rng.integers(-99, 99, (4, 8), dtype=np.int8), "ws": weight_scale,
        "wz": np.zeros(np.shape(weight_scale), np.int8), "b": np.int32(bias), "bs": np.float32(scale), "bz": np.int32(zero_point),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"), node("DequantizeLinear", "w ws wz", "dw", **axis),
        node("DequantizeLinear", "b bs bz", "db", **axis), node("Gemm", "d dw db", "g", transB=1), node("QuantizeLinear", "g s z", "k"),
        node("DequantizeLinear", "k s z", "y"),
    ]  # fmt: skip
    return model(nodes, constants)


def results(data: bytes, folder: Path, form: str, x: np.ndarray) -> np.ndarray:
    """The output of the converted model in its runtime."""
    suffix, options = FORMS[form]
    (folder / "m.onnx").write_bytes(data)
    convert(folder / "m.onnx", folder / f"r.{suffix}", force=True, **options)
    written = (folder / f"r.{suffix}").read_bytes()
    return run(written, {"x": x})[0] if suffix == "onnx" else run_litert(written, [x])[0]


SCALES = np.float32([0.01, 0.02, 0.005, 0.04])
BIASES = {
    "one zero point": ([10, 20, 30, 40], 0.0002, 5000, np.float32(0.01)),
    "one each": ([10, 20, 30, 40], SCALES * np.float32(0.02), [5000, -5000, 0, 7], SCALES),
    "no room in int32": ([2**31 - 1, 0, 0, -5], 0.0002, -9, np.float32(0.01)),
}


@pytest.mark.litert
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", BIASES)
def test_a_bias_with_a_zero_point(case: str, form: str, tmp_path: Path) -> None:
    """onnxruntime's optimizer drops the zero point as well, so the source runs as it stands."""
    data = gemm(*BIASES[case])
    x = np.random.default_rng(1).standard_normal((1, 8)).astype(np.float32)
    (expected,) = run(data, {"x": x})
    if case == "no room in int32":
        expected[0, 0] = 127 * 0.02  # the largest; onnxruntime's difference wraps to the smallest
    assert np.abs(results(data, tmp_path, form, x) - expected).max() < 0.021


def test_the_integers_of_such_a_bias_are_exact() -> None:
    graph = read_bytes(gemm(*BIASES["one zero point"]), "m")
    (bias,) = (tensor for tensor in graph.constants() if tensor.dtype == "int32")
    assert np.asarray(bias.data).tolist() == [-4990, -4980, -4970, -4960]
    assert bias.quantization is not None
    assert bias.quantization.is_symmetric


def test_int32_data_with_a_zero_point(tmp_path: Path) -> None:
    """Of an input, which no fold reaches; onnxruntime runs the differences in float64."""
    data = model([node("DequantizeLinear", "x s z", "y")], {"s": np.float32(0.5), "z": np.int32(7)}, (4,), TensorProto.INT32)
    x = np.int32([0, 7, 2**31 - 1, -(2**31)])
    expected = ((x.astype(np.float64) - 7) * 0.5).astype(np.float32)
    assert np.array_equal(results(data, tmp_path, "qdq", x), expected)
    graph = load(tmp_path / "m.onnx")
    assert np.array_equal(evaluate(graph, {"x": x})["y"], expected)


@pytest.mark.litert
@pytest.mark.parametrize("form", ["qdq", "tflite"])
@pytest.mark.parametrize("axes", [None, [], [1]], ids=str)
@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMax"])
def test_reductions_along_no_axis(kind: str, noop: int, axes: list[int] | None, form: str, tmp_path: Path) -> None:
    """Nothing is reduced with noop_with_empty_axes, and everything without."""
    constants = {"s": np.float32(0.05), "t": np.float32(0.2), "z": np.int8(3)} | ({} if axes is None else {"a": np.int64(axes)})
    nodes = [
        node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"),
        node(kind, "d" if axes is None else "d a", "r", noop_with_empty_axes=noop),
        node("QuantizeLinear", "r t z", "k"), node("DequantizeLinear", "k t z", "y"),
    ]  # fmt: skip
    data = model(nodes, constants, (2, 3, 4))
    x = np.random.default_rng(1).uniform(0.1, 1, (2, 3, 4)).astype(np.float32)
    (expected,) = run(data, {"x": x})
    found = results(data, tmp_path, form, x)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 0.21


def test_a_constant_with_the_name_of_a_scale_is_not_taken_for_it(tmp_path: Path) -> None:
    """The writer calls the scale of q "q/scale", unless another tensor of the model has that name."""
    nodes = [
        node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"), node("Add", "d q/scale", "a"),
        node("Mul", "a q/zero_point", "y"),
    ]  # fmt: skip
    constants = {"s": np.float32(0.05), "z": np.int8(3), "q/scale": np.float32(7), "q/zero_point": np.float32(2)}
    data = model(nodes, constants)
    x = np.random.default_rng(1).standard_normal((1, 8)).astype(np.float32)
    assert np.array_equal(results(data, tmp_path, "qdq", x), run(data, {"x": x})[0])


@pytest.mark.cross_section
@pytest.mark.parametrize("outside", [False, True], ids=["all moved", "one joined"])
def test_a_scale_is_said_of_what_was_moved_before_it_was_known_too(outside: bool, tmp_path: Path) -> None:
    """x (uint8) -> Transpose -> t -> Reshape -> y, and x -> DequantizeLinear after them."""
    rows = node("Concat", "t t", "y", axis=0) if outside else node("Reshape", "t n", "y")
    nodes = [node("Transpose", "x", "t", perm=[1, 0]), rows, node("DequantizeLinear", "x s z", "d"), node("Relu", "d", "w")]
    constants = {"s": np.float32(0.02), "z": np.uint8(7), "n": np.array([8])}
    found = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, (2, 4))],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None), helper.make_tensor_value_info("w", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    data = model_of(found, 18).SerializeToString()
    graph = read_bytes(data, "m")
    assert (graph["t"].quantization == graph["x"].quantization) and (graph["t"].quantization is None) == outside
    (tmp_path / "m.onnx").write_bytes(data)
    convert(tmp_path / "m.onnx", tmp_path / "r.onnx")
    x = np.random.default_rng(0).integers(0, 256, (2, 4)).astype(np.uint8)
    for a, b in zip(run(data, {"x": x}), run((tmp_path / "r.onnx").read_bytes(), {"x": x}), strict=True):
        np.testing.assert_array_equal(a, b)
