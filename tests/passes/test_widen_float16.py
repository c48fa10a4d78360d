"""Networks of float16 become TFLite files that compute in float32 with float16 weights; bfloat16 likewise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite_models import run_litert

import qconvert
from qconvert.conversion import run_passes
from qconvert.graph import Graph, Op, Tensor, numpy_dtype
from qconvert.plugins import target_named
from qconvert.runtimes.onnxruntime import OnnxRuntime

RNG = np.random.default_rng(8)
KERNEL = RNG.normal(0, 0.3, (8, 4, 3, 3))
MATRIX = RNG.normal(0, 0.1, (5, 288))


def network(body: str, dtype: str = "float16", outer: str = "float16") -> bytes:
    """A network of ONNX's text form, whose constants are of one type."""
    from onnx import numpy_helper, parser

    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g ({outer}[1,4,6,6] x) => ({outer} y) {{ {body} }}')
    constants = {"w": KERNEL, "b": KERNEL[:, 0, 0, 0], "m": MATRIX, "half": np.array(0.5)}
    model.graph.initializer.extend(numpy_helper.from_array(value.astype(numpy_dtype(dtype)), name) for name, value in constants.items())
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return bytes(model.SerializeToString())


WHOLE = "c = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(c) s = Mul(r, half) f = Flatten(s) g = Gemm<transB=1>(f, m) y = Softmax(g)"


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize(
    ("body", "outer"),
    [(WHOLE, "float16"), (f"x16 = Cast<to=10>(x) {WHOLE.replace('x, w', 'x16, w').replace('y =', 'p =')} y = Cast<to=1>(p)", "float")],
)
def test_float16_networks_run_in_litert(body: str, outer: str, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(network(body, outer=outer))
    report = qconvert.convert(tmp_path / "x.onnx", tmp_path / "y.tflite", io_layout="nchw")
    assert any("are float32" in str(change) and "2 constants of float16" in str(change) for change in report.changes)
    data = RNG.normal(0, 1, (1, 4, 6, 6)).astype(np.float16 if outer == "float16" else np.float32)
    wanted = OnnxRuntime((tmp_path / "x.onnx").read_bytes()).run({"x": data})["y"]
    (found,) = run_litert((tmp_path / "y.tflite").read_bytes(), [data])
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=2e-3)
    assert (tmp_path / "y.tflite").stat().st_size < 2 * (KERNEL.size + MATRIX.size) + 4000
    assert qconvert.check(tmp_path / "x.onnx", tmp_path / "y.tflite").passed


@pytest.mark.formats
def test_elementwise_float16_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(network("y = Mul(x, half)"))
    qconvert.convert(tmp_path / "x.onnx", tmp_path / "y.tflite")
    assert {op.kind for op in qconvert.load(tmp_path / "y.tflite").ops} == {"Mul"}


def test_bfloat16_becomes_float32() -> None:
    def tensor(name: str, *shape: int, data: Any = None) -> Tensor:
        return Tensor(name, "bfloat16", shape, None if data is None else data.astype(numpy_dtype("bfloat16")))

    tensors = [tensor("x", 1, 288), tensor("m", 5, 288, data=MATRIX), tensor("y", 1, 5)]
    graph = Graph("g", {item.name: item for item in tensors}, (Op("Gemm", ("x", "m"), ("y",)),), ("x",), ("y",))
    changed, notes = run_passes(graph, ["widen_float16"], target_named("tflite"))
    assert [op.kind for op in changed.ops] == ["Cast", "Gemm", "Cast"] and len(notes) == 1
    data = changed.constant("m")
    assert data is not None and data.dtype == np.float32
    np.testing.assert_array_equal(data, MATRIX.astype(numpy_dtype("bfloat16")).astype(np.float32))
    assert (changed["x"].dtype, changed["y"].dtype) == ("bfloat16", "bfloat16")
    tflite = target_named("tflite")
    other = replace(tflite, kernels=replace(tflite.kernels, product_types=("float32", "bfloat16")))
    assert run_passes(graph, ["widen_float16"], other) == (graph, ())
