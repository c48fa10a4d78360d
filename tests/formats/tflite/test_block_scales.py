"""Scales in blocks (BlockwiseQuantization) and tensor types of newer schemas; tables of wrong sizes are one error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from loaded import tflite_graph
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model, run_litert

import qconvert
from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.litert

OUTPUTS, DEPTH, BLOCK = 8, 64, 32
RNG = np.random.default_rng(3)
STORED = RNG.integers(-8, 8, (OUTPUTS, DEPTH))
SCALES = RNG.uniform(0.01, 0.1, (OUTPUTS, DEPTH // BLOCK)).astype(np.float16)
BIAS = RNG.normal(0, 1, OUTPUTS).astype(np.float32)
X = RNG.normal(0, 1, (2, DEPTH)).astype(np.float32)
EXACT = X @ (STORED * np.repeat(SCALES.astype(np.float32), BLOCK, 1)).T + BIAS
WEIGHTS = TensorSpec("w", (OUTPUTS, DEPTH), "int4", data=STORED, blocks=("s", BLOCK, ""))
OF_BLOCKS = TensorSpec("s", SCALES.shape, "float16", data=SCALES)


def layer(weights: TensorSpec = WEIGHTS, scales: TensorSpec = OF_BLOCKS, points: TensorSpec | None = None) -> bytes:
    tensors = [TensorSpec("x", (2, DEPTH), "float32"), weights, TensorSpec("b", (OUTPUTS,), "float32", data=BIAS), scales]
    tensors += [points] if points is not None else []
    op = OpSpec("FULLY_CONNECTED", ["x", "w", "b"], ["y"], {})
    return model([op], [*tensors, TensorSpec("y", (2, OUTPUTS), "float32")], ["x"], ["y"])


@pytest.mark.onnxruntime
def test_blocks_are_read_and_written_to_onnx(tmp_path: Path) -> None:
    (tmp_path / "x.tflite").write_bytes(layer())
    weights = qconvert.load(tmp_path / "x.tflite")["w"]
    assert weights.quantization is not None and weights.dtype == "int4"
    assert (weights.quantization.axis, weights.quantization.block_size) == (1, BLOCK)
    np.testing.assert_array_equal(weights.quantization.scale, SCALES.astype(np.float32))
    qconvert.convert(tmp_path / "x.tflite", tmp_path / "y.onnx")
    assert (tmp_path / "y.onnx").read_bytes().count(b"block_size") == 1
    (found,) = OnnxRuntime((tmp_path / "y.onnx").read_bytes()).run({"x": X}).values()
    np.testing.assert_allclose(found, EXACT, rtol=0, atol=1e-5)
    qconvert.convert(tmp_path / "y.onnx", tmp_path / "z.tflite")  # as float values: LiteRT's kernel rounds the data too
    np.testing.assert_allclose(run_litert((tmp_path / "z.tflite").read_bytes(), [X])[0], EXACT, rtol=0, atol=1e-5)


def test_blocks_are_written_to_tflite_again(tmp_path: Path) -> None:
    (tmp_path / "x.tflite").write_bytes(layer())
    qconvert.convert(tmp_path / "x.tflite", tmp_path / "y.tflite")
    before, after = (run_litert((tmp_path / name).read_bytes(), [X])[0] for name in ("x.tflite", "y.tflite"))
    np.testing.assert_array_equal(before, after)
    np.testing.assert_allclose(after, EXACT, rtol=0, atol=0.02 * np.abs(EXACT).max())
    assert qconvert.load(tmp_path / "y.tflite")["w"] == qconvert.load(tmp_path / "x.tflite")["w"]


def test_zero_points_of_blocks_are_read() -> None:
    points = RNG.integers(-8, 8, SCALES.shape)
    spec = TensorSpec("z", SCALES.shape, "int4", data=points)
    quantization = tflite_graph(layer(replace(WEIGHTS, blocks=("s", BLOCK, "z")), points=spec))["w"].quantization
    assert quantization is not None
    np.testing.assert_array_equal(quantization.zero_point, points)


@pytest.mark.parametrize("block", [0, -32, 3, 65, 2**31 - 1])
def test_blocks_that_do_not_divide_are_an_error(block: int) -> None:
    with refused(InvalidModelError, "block-scales"):
        tflite_graph(layer(replace(WEIGHTS, blocks=("s", block, ""))))


@pytest.mark.parametrize(
    ("scales", "rule"),
    [
        (TensorSpec("s", (OUTPUTS, 3), "float16", data=np.ones((OUTPUTS, 3))), "block-scales"),
        (TensorSpec("s", (OUTPUTS * 2,), "float16", data=np.ones(OUTPUTS * 2)), "block-scales"),
        (TensorSpec("s", SCALES.shape, "int32", data=np.ones(SCALES.shape)), "block-scales"),
        (TensorSpec("s", SCALES.shape, "float16"), "block-scales"),
        (replace(OF_BLOCKS, data=-SCALES), "scale-not-positive"),
        (replace(OF_BLOCKS, data=SCALES * 0), "scale-not-positive"),
        (replace(OF_BLOCKS, data=np.full(SCALES.shape, np.nan)), "scale-not-positive"),
    ],
    ids=["shape", "rank", "type", "no constant", "negative", "zero", "nan"],
)
def test_scales_that_do_not_fit_are_an_error(scales: TensorSpec, rule: str) -> None:
    with refused(InvalidModelError, rule):
        tflite_graph(layer(scales=scales))


@pytest.mark.parametrize("number", [-7, 99])
def test_scales_in_no_tensor_are_an_error(number: int) -> None:
    with refused(InvalidModelError, "block-scales"):
        tflite_graph(_changed(layer(), lambda tensor: setattr(tensor.quantization.details, "scales", number)))


@pytest.mark.cross_section
@pytest.mark.parametrize("number", [21, 22, 23, 127])
def test_types_of_later_schemas_are_refused_by_number(number: int) -> None:
    with refused(UnsupportedError, "unknown-type", holds=(number,)):
        tflite_graph(_changed(layer(), lambda tensor: setattr(tensor, "type", number)))


def _changed(data: bytes, change: Any) -> bytes:
    """A model with another weights tensor."""
    import flatbuffers

    found = schema.ModelT.InitFromPackedBuf(data, 0)
    change(next(tensor for tensor in found.subgraphs[0].tensors if tensor.name == b"w"))
    builder = flatbuffers.Builder(1024)
    builder.Finish(found.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("dtype", "low", "high"), [("int2", -2, 2), ("int4", -8, 8), ("uint4", 0, 16)])
def test_packed_constants_are_read_and_dequantized(dtype: str, low: int, high: int, tmp_path: Path) -> None:
    stored = np.random.default_rng(4).integers(low, high, (3, 5))
    weights = TensorSpec("w", (3, 5), dtype, scale=0.5, zero_point=0, data=stored)
    tensors = [weights, *(TensorSpec(name, (3, 5), "float32") for name in "dxy")]
    ops = [OpSpec("DEQUANTIZE", ["w"], ["d"], {}), OpSpec("ADD", ["d", "x"], ["y"], {})]
    (tmp_path / "x.tflite").write_bytes(model(ops, tensors, ["x"], ["y"]))
    x = np.random.default_rng(0).normal(0, 1, (3, 5)).astype(np.float32)
    qconvert.convert(tmp_path / "x.tflite", tmp_path / "y.tflite")
    wanted = run_litert((tmp_path / "x.tflite").read_bytes(), [x])[0]
    np.testing.assert_array_equal(wanted, stored.astype(np.float32) * np.float32(0.5) + x)
    np.testing.assert_array_equal(run_litert((tmp_path / "y.tflite").read_bytes(), [x])[0], wanted)
    if dtype != "int2":  # which needs opset 25
        qconvert.convert(tmp_path / "x.tflite", tmp_path / "y.onnx")
        (found,) = OnnxRuntime((tmp_path / "y.onnx").read_bytes()).run({"x": x}).values()
        np.testing.assert_array_equal(found, wanted)


def test_a_buffer_that_is_too_short_is_an_error() -> None:
    short = replace(WEIGHTS, data=STORED[:-1])
    with refused(InvalidModelError, "buffer-too-short", holds=(256,)):
        tflite_graph(layer(short))
