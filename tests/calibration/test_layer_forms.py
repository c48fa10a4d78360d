"""Layers in every form in which exporters leave them get integer weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from refusals import refused

import qconvert
from qconvert.calibration.driver import run_calibration
from qconvert.calibration.files import calibrate_file
from qconvert.errors import UnsupportedError
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.onnxruntime

RNG = np.random.default_rng(3)
node = helper.make_node
_FLOAT = TensorProto.FLOAT


def real(*shape: int) -> Any:
    return (RNG.normal(size=shape) * 0.3).astype(np.float32)


W, B = real(6, 4, 3, 3), real(6)
IMAGE, ROWS = (1, 4, 8, 8), (3, 8)
CONV: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4}


def conv(data: str = "x", weights: str = "c", result: str = "y", bias: str = "b") -> Any:
    return node("Conv", [data, weights, *([bias] if bias else [])], [result], **CONV)


def cast(name: str = "w", result: str = "c") -> Any:
    return node("Cast", [name], [result], to=_FLOAT)


#: Nodes, constants, the shape of the input x, and how many constants get integers, biases left out.
Form = tuple[list[Any], dict[str, Any], tuple[int, ...], int]
FORMS: dict[str, Form] = {
    "float16 after a Cast": ([cast(), cast("h", "b"), conv()], {"w": W.astype(np.float16), "h": B.astype(np.float16)}, IMAGE, 1),
    "float64 after a Cast": ([cast(), conv()], {"w": W.astype(np.float64), "b": B}, IMAGE, 1),
    "a Reshape": ([node("Reshape", ["w", "s"], ["c"]), conv()], {"w": W.reshape(6, -1), "s": np.array(W.shape), "b": B}, IMAGE, 1),
    "a Transpose": ([node("Transpose", ["w"], ["c"], perm=[3, 2, 0, 1]), conv()], {"w": W.transpose(2, 3, 1, 0), "b": B}, IMAGE, 1),
    "an Identity": ([node("Identity", ["w"], ["c"]), conv()], {"w": W, "b": B}, IMAGE, 1),
    "an Expand": ([node("Expand", ["w", "s"], ["c"]), conv()], {"w": W[:1], "s": np.array(W.shape), "b": B}, IMAGE, 1),
    "a Concat": ([node("Concat", ["v", "w"], ["c"], axis=0), conv()], {"v": W[:2], "w": W[2:], "b": B}, IMAGE, 1),
    "a Split": (
        [node("Split", ["w"], ["c", "d"], axis=0, num_outputs=2), conv(bias="", result="e"), conv("x", "d", "f", ""),
         node("Add", ["e", "f"], ["y"])], {"w": W}, IMAGE, 2,
    ),
    "weight normalization": (
        [node("ReduceL2", ["w"], ["n"], axes=[1, 2, 3], keepdims=1), node("Div", ["w", "n"], ["d"]),
         node("Mul", ["d", "g"], ["c"]), conv()],
        {"w": W, "g": real(6, 1, 1, 1), "b": B}, IMAGE, 1,
    ),
    "a bias that is computed": ([node("Mul", ["k", "g"], ["b"]), conv(weights="w")], {"w": W, "k": B, "g": real(6)}, IMAGE, 1),
    "a normalization after float16": (
        [cast(), conv(result="a", bias=""), node("BatchNormalization", ["a", *"gbmv"], ["y"])],
        {"w": W.astype(np.float16), "g": np.abs(B) + 1, "b": B, "m": real(6), "v": np.abs(real(6)) + 1}, IMAGE, 1,
    ),
    "two layers": (
        [conv(weights="w", result="a", bias=""), node("Relu", ["a"], ["r"]), conv("r", "w", bias="")], {"w": real(4, 4, 3, 3)}, IMAGE, 1,
    ),
    "transposed convolution": (
        [cast(), node("ConvTranspose", ["x", "c"], ["y"], kernel_shape=[3, 3], strides=[2, 2])],
        {"w": real(4, 6, 3, 3).astype(np.float16)}, IMAGE, 1,
    ),
    "Gemm of float16": ([cast(), node("Gemm", ["x", "c"], ["y"], transB=1)], {"w": real(6, 8).astype(np.float16)}, ROWS, 1),
    "Gemm of columns": ([node("Gemm", ["x", "w", "b"], ["y"], transA=1)], {"w": real(8, 6), "b": B}, (8, 3), 1),
    "Gemm and one number": ([node("Gemm", ["x", "w", "b"], ["y"])], {"w": real(8, 6), "b": real(1)}, ROWS, 1),
    "Gemm and a matrix": ([node("Gemm", ["x", "w", "b"], ["y"])], {"w": real(8, 6), "b": real(3, 6)}, ROWS, 2),
    "MatMul of float16": ([cast(), node("MatMul", ["x", "c"], ["y"])], {"w": real(8, 6).astype(np.float16)}, ROWS, 1),
    "weights on the left": ([node("MatMul", ["w", "x"], ["y"])], {"w": real(6, 8)}, (8, 3), 1),
    "batched weights on the left": ([node("MatMul", ["w", "x"], ["y"])], {"w": real(6, 8)}, (2, 8, 3), 1),
    "float16 weights on the left": ([cast(), node("MatMul", ["c", "x"], ["y"])], {"w": real(6, 8).astype(np.float16)}, (8, 3), 1),
}  # fmt: skip


def written(form: Form, path: Path) -> Path:
    nodes, constants, shape, _ = form
    inputs, outputs = ([helper.make_tensor_value_info(name, _FLOAT, size)] for name, size in (("x", shape), ("y", None)))
    given = [numpy_helper.from_array(np.ascontiguousarray(data), name) for name, data in constants.items()]
    opset = 13 if any(item.op_type == "ReduceL2" for item in nodes) else 18
    graph = helper.make_graph(nodes, "made", inputs, outputs, given)
    onnx.save(onnx.shape_inference.infer_shapes(model_of(graph, opset)), path)
    return path


def samples(form: Form) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.uniform(-1, 1, form[2]).astype(np.float32) for _ in range(6)]


def decibels(one: Path, other: Path, feeds: list[Any]) -> float:
    a, b = (np.stack([OnnxRuntime(path).run({"x": feed})["y"] for feed in feeds]).astype(np.float64) for path in (one, other))
    return float(10 * np.log10(np.square(a).sum() / np.square(a - b).sum()))


@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
@pytest.mark.parametrize("name", FORMS)
def test_weights_are_integers(name: str, suffix: str, tmp_path: Path) -> None:
    form = FORMS[name]
    source, result = written(form, tmp_path / "float.onnx"), tmp_path / f"q{suffix}"
    found, _ = calibrate_file(source, samples(form), result)
    constants = [place.name for place in found.encodings.entries if found.graph[place.name].is_constant]
    assert len(constants) == form[3]
    graph = qconvert.load(result)
    layers = [op for op in graph.ops if op.kind in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    assert layers and all(graph[name].is_quantized for op in layers for name in (*op.inputs, *op.outputs) if name)
    if suffix == ".onnx":
        assert 30 < decibels(source, result, samples(form)) < 70


def test_what_stays_float_stays_as_it_is_stored(tmp_path: Path) -> None:
    form = FORMS["float16 after a Cast"]
    source = written(form, tmp_path / "float.onnx")
    calibrate_file(source, samples(form), tmp_path / "scales.json", skip=("c",))
    qconvert.convert(source, tmp_path / "q.onnx", encodings=str(tmp_path / "scales.json"))
    assert qconvert.load(tmp_path / "q.onnx")["w"].dtype == "float16"


@pytest.mark.cross_section
def test_quantized_weights_are_no_constants_to_compute(tmp_path: Path) -> None:
    nodes = [node("DequantizeLinear", ["w", "s"], ["c"]), conv()]
    form: Form = (nodes, {"w": np.ones((6, 4, 3, 3), np.int8), "s": np.float32(0.5), "b": B}, IMAGE, 1)
    with refused(UnsupportedError, "already-quantized"):
        run_calibration(written(form, tmp_path / "float.onnx"), samples(form))


@pytest.mark.parametrize("size", [1e-38, 1e-40, 1e-25])
def test_values_too_small_for_products_of_float32_stay_float(size: float, tmp_path: Path) -> None:
    """The result is no worse than float, and says which tensors those are."""
    form: Form = ([conv(weights="w")], {"w": (W.astype(np.float64) * size).astype(np.float32), "b": B * 0}, IMAGE, 1)
    source, result = written(form, tmp_path / "float.onnx"), tmp_path / "q.onnx"
    found, _ = calibrate_file(source, samples(form), result)
    assert [place.name for place in found.encodings.entries] == ["x"]
    assert [note.partition(" stays float")[0] for note in found.notes] == ["'y'", "'w'"]
    assert decibels(source, result, samples(form)) > 40


@pytest.mark.parametrize(("size", "per_channel"), [(0.0, True), (1e-12, True), (1e-30, True), (1e-40, True), (1e-12, False)])
def test_a_channel_of_nothing_but_a_bias_keeps_it_in_integers(size: float, per_channel: bool, tmp_path: Path) -> None:
    weights = W.copy()
    weights[2 if per_channel else slice(None)] *= np.float32(size)
    form: Form = ([conv(weights="w")], {"w": weights, "b": B}, IMAGE, 1)
    source, result = written(form, tmp_path / "float.onnx"), tmp_path / "q.tflite"
    calibrate_file(source, samples(form), result, per_channel=per_channel)
    graph = qconvert.load(result)
    layer = next(op for op in graph.ops if op.kind == "Conv")
    assert [graph[name].dtype for name in layer.inputs] == ["int8", "int8", "int32"]
    bias = graph[layer.inputs[2]]
    assert bias.data is not None and bias.quantization is not None
    assert np.allclose(bias.data * bias.quantization.scale, B, atol=1e-4)
