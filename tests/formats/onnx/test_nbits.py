"""Weights in blocks: MatMulNBits of 2, 4 and 8 bits, float32 and float16, zero points, negative and zero scales, and DequantizeLinear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaded import onnx_graph
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from refusals import refused
from tflite_models import run_litert

import qconvert
from qconvert.errors import InvalidModelError
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.writer import build
from qconvert.graph import integer_range
from qconvert.runtimes.onnxruntime import OnnxRuntime

ROWS, DEPTH, COLUMNS = 3, 80, 5


def packed(rows: Any, bits: int) -> Any:
    """Numbers as bytes, the first in the lowest bits; as MatMulNBits has them."""
    each = 8 // bits
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % each))).astype(np.int64).reshape(len(rows), -1, each)
    return sum(padded[..., part] << (bits * part) for part in range(each)).astype(np.uint8)  # type: ignore[union-attr]


def model(
    bits: int, block: int, points: bool, real: str, scales: str = "positive", stated: dict[str, int] | None = None
) -> tuple[bytes, Any]:
    """A MatMulNBits, and the real weights (K, N) that it stands for."""
    rng = np.random.default_rng(bits + block)
    blocks = -(-DEPTH // block)
    stored = rng.integers(0, 2**bits, (COLUMNS, blocks * block))
    scale = rng.uniform(0.01, 0.2, (COLUMNS, blocks)).astype(real)
    if scales == "any":
        scale *= rng.choice([-1, 0, 1], scale.shape).astype(real)
    zero = rng.integers(0, 2**bits, (COLUMNS, blocks)) if points else np.full((COLUMNS, blocks), 2 ** (bits - 1))
    weights = ((stored - np.repeat(zero, block, 1)) * np.repeat(scale.astype(np.float32), block, 1))[:, :DEPTH].T.astype(np.float32)
    constants = {"b": packed(stored, bits).reshape(COLUMNS, blocks, -1), "s": scale}
    if points:
        constants["z"] = packed(zero, bits)
    number = TensorProto.FLOAT if real == "float32" else TensorProto.FLOAT16
    sizes = {"K": DEPTH, "N": COLUMNS, "bits": bits, "block_size": block, **(stated or {})}
    node = helper.make_node("MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", **sizes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", number, [ROWS, DEPTH])],
        [helper.make_tensor_value_info("y", number, [ROWS, COLUMNS])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()), weights


def run(data: bytes, x: Any) -> Any:
    return OnnxRuntime(data, optimize=False).run({"x": x})["y"]


CASES = [
    (bits, block, points, real)
    for bits in (2, 4, 8)
    for block in (16, 32, 128)
    for points in (False, True)
    for real in ("float32", "float16")
]


@pytest.mark.onnxruntime
@pytest.mark.parametrize(("bits", "block", "points", "real"), CASES)
def test_products_are_those_of_onnxruntime(bits: int, block: int, points: bool, real: str) -> None:
    data, weights = model(bits, block, points, real)
    x = np.random.default_rng(1).normal(0, 1, (ROWS, DEPTH)).astype(real)
    exact = x.astype(np.float64) @ weights
    bound = {"float32": 2e-6, "float16": 4e-3}[real] * np.abs(exact).max()
    graph = onnx_graph(data)
    assert [op.kind for op in graph.ops] == ["Dequantize", "MatMul"]
    for form in ("qdq", "qoperator"):
        written = build(graph, 0, {}, form=form)
        assert ("MatMulNBits" in {node.op_type for node in written.graph.node}) == (form == "qoperator")
        np.testing.assert_allclose(run(written.SerializeToString(), x), exact, rtol=0, atol=bound)
    if (bits, real) != (2, "float16"):  # which onnxruntime computes otherwise
        np.testing.assert_allclose(run(data, x), exact, rtol=0, atol=bound)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_scales_may_be_negative_or_zero(form: str, tmp_path: Path) -> None:
    data, weights = model(4, 32, False, "float32", "any")
    x = np.random.default_rng(2).normal(0, 1, (ROWS, DEPTH)).astype(np.float32)
    written = build(onnx_graph(data), 0, {}, form=form).SerializeToString()
    np.testing.assert_allclose(run(written, x), x @ weights, rtol=0, atol=1e-5)
    (tmp_path / "x.onnx").write_bytes(written)
    qconvert.convert(tmp_path / "x.onnx", tmp_path / "y.tflite")
    np.testing.assert_allclose(run_litert((tmp_path / "y.tflite").read_bytes(), [x])[0], x @ weights, rtol=0, atol=1e-5)


@pytest.mark.formats
@pytest.mark.parametrize(
    "attributes", [{"block_size": 0}, {"block_size": -16}, {"block_size": 2**40}, {"K": 0}, {"N": 2**31}, {"K": 79 * 64}]
)
def test_sizes_that_do_not_fit_the_weights_are_an_error(attributes: dict[str, int]) -> None:
    with refused(InvalidModelError, "block-scales"):
        onnx_graph(model(4, 32, True, "float32", stated=attributes)[0])


@pytest.mark.formats
@pytest.mark.parametrize("attributes", [{"bits": 3}, {"bits": 0}, {"bits": 16}, {"accuracy_level": 4}])
def test_other_forms_stay_nodes(attributes: dict[str, int]) -> None:
    graph = onnx_graph(model(4, 32, False, "float32", stated=attributes)[0])
    assert [op.kind for op in graph.ops] == ["Opaque"]


def table(dtype: str, block: int, real: str, shape: tuple[int, ...] = (8, 96)) -> tuple[bytes, Any]:
    """Rows of a table in blocks at indices, and the real values of the table."""
    rng = np.random.default_rng(block)
    low, high = integer_range(dtype)
    stored, points = (rng.integers(low, high + 1, (*shape[:-1], shape[-1] // each)) for each in (1, block))
    scale = rng.uniform(0.01, 0.2, points.shape).astype(real)
    values = (stored - np.repeat(points, block, -1)) * np.repeat(scale, block, -1).astype(np.float32)
    number, kind = (getattr(TensorProto, name.upper()) for name in (real.replace("float32", "float"), dtype))
    constants = [helper.make_tensor(name, kind, item.shape, item.reshape(-1).tolist()) for name, item in (("t", stored), ("z", points))]
    nodes = [
        helper.make_node("DequantizeLinear", ["t", "s", "z"], ["real"], axis=len(shape) - 1, block_size=block),
        helper.make_node("Gather", ["real", "i"], ["y"], axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [2, 3])],
        [helper.make_tensor_value_info("y", number, [2, 3, *shape[1:]])],
        [*constants, numpy_helper.from_array(scale, "s")],
    )
    found = model_of(graph, 21)
    return bytes(found.SerializeToString()), values.astype(real)


@pytest.mark.onnxruntime
@pytest.mark.parametrize("shape", [(8, 96), (8, 5, 64)])
@pytest.mark.parametrize(("dtype", "block", "real"), [("uint4", 32, "float32"), ("int4", 16, "float16"), ("int8", 32, "float32")])
def test_rows_of_tables_in_blocks(dtype: str, block: int, real: str, shape: tuple[int, ...]) -> None:
    """And matrices of experts: both are dequantized where they are read."""
    data, values = table(dtype, block, real, shape)
    graph = onnx_graph(data)
    indices = np.array([[0, 7, 3], [-1, 5, 5]])
    for source in (graph, onnx_graph(build(graph, 0, {}, form="qoperator").SerializeToString())):
        np.testing.assert_array_equal(evaluate(source, {"i": indices})["y"], values[indices])
        written = build(source, 0, {}, form="qoperator")
        np.testing.assert_array_equal(OnnxRuntime(written.SerializeToString(), optimize=False).run({"i": indices})["y"], values[indices])
    assert [node.op_type for node in build(graph, 0, {}, form="qoperator").graph.node] == ["GatherBlockQuantized"]
    assert "DequantizeLinear" in {node.op_type for node in build(onnx_graph(table(dtype, 8, real)[0]), 0, {}, form="qoperator").graph.node}
