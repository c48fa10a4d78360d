"""Operators in forms that no exporter writes: constants as data, no axes, parameters that do not fit. They convert, or are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qconvert import Graph, Op, QConvertError, Quantization, Tensor, convert, load, save
from qconvert.errors import InvalidGraphError

#: ONNX models -> whether they mean something.
MODELS = {
    "pool of a constant": ("() => (float[1, 1, 1, 1] y) <float[1, 1, 2, 3] c = {1, 2, 3, 4, 5, 6}> { y = GlobalAveragePool(c) }", True),
    "pool of a constant of channels": (
        "() => (float[1, 2, 1, 1] y) <float[1, 2, 1, 3] c = {1, 2, 3, 4, 5, 6}> { y = GlobalMaxPool(c) }", True),
    "transpose of a number": ("(float x) => (float y) { y = Transpose <perm: ints = []> (x) }", True),
    "wide scale": ("(float[4, 1] x) => (float[4, 3] y) <float[3] s = {1, 2, 3}> { y = LayerNormalization(x, s) }", False),
    "no inputs": ("(float[1, 2, 4, 4] x) => (float[1, 2, 1, 1] y, float[2] z) { y = GlobalMaxPool(x) z = other.Numbers() }", True),
}  # fmt: skip


def model(text: str) -> bytes:
    from onnx import parser

    data: bytes = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "other": 1]> g {text}').SerializeToString()
    return data


@pytest.mark.formats
@pytest.mark.parametrize("suffix", ["onnx", "tflite", "qgraph"])
@pytest.mark.parametrize("name", MODELS)
def test_onnx(tmp_path: Path, name: str, suffix: str) -> None:
    text, means = MODELS[name]
    (tmp_path / "m.onnx").write_bytes(model(text))
    try:
        convert(tmp_path / "m.onnx", tmp_path / f"r.{suffix}")
    except QConvertError as error:
        assert error.code == ("invalid-model" if not means else "unsupported-op")
        assert not means or name == "no inputs"
        return
    assert means
    assert load(tmp_path / f"r.{suffix}").outputs


@pytest.mark.formats
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_a_bias_may_be_absent(tmp_path: Path, suffix: str) -> None:
    """A third input without a name is none."""
    quantization = Quantization.per_tensor(0.1, 0)
    tensors = [
        Tensor("x", "int8", (1, 3, 3, 3), None, quantization),
        Tensor("w", "int8", (4, 3, 2, 2), np.ones((4, 3, 2, 2), np.int8), quantization),
        Tensor("y", "int8", (1, 4, 4, 4), None, quantization),
    ]
    window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "output_padding": (0, 0)}
    op = Op("ConvTranspose", ("x", "w", ""), ("y",), {**window, "data_format": "channels_last"})
    save(Graph("g", {item.name: item for item in tensors}, (op,), ("x",), ("y",)), tmp_path / "m.qgraph")
    convert(tmp_path / "m.qgraph", tmp_path / f"r.{suffix}")
    assert load(tmp_path / f"r.{suffix}").inputs == ("x",)


@pytest.mark.parametrize("kind", ["BatchToSpace", "SpaceToBatch"])
def test_edges_are_two_for_each_block(tmp_path: Path, kind: str) -> None:
    tensors = [
        Tensor("x", "float32", (4, 2, 2, 1)),
        Tensor("b", "int64", (2,)),
        Tensor("e", "int64", (3,), np.zeros(3, np.int64)),
        Tensor("y", "float32", None),
    ]
    op = Op(kind, ("x", "b", "e"), ("y",), {"data_format": "channels_last"})
    with refused(InvalidGraphError, "counts-differ"):
        save(Graph("g", {item.name: item for item in tensors}, (op,), ("x", "b"), ("y",)), tmp_path / "m.qgraph")
