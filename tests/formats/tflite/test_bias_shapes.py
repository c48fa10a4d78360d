"""ONNX spreads the bias of a Gemm over rows and columns; FULLY_CONNECTED takes one number for each output, ADD the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from qconvert import convert
from qconvert.files import map_file
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]


def gemm(path: Path, *shape: int) -> Path:
    """x (2, 4) times weights, and a bias of a shape; two operators read the bias."""
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,3] y) '
        "{ h = Gemm (x, w, b) i = Gemm (x, v, b) y = Add (h, i) }"
    )
    model, rng = parser.parse_model(text), np.random.default_rng(0)
    for name, sizes in (("w", (4, 3)), ("v", (4, 3)), ("b", shape)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(rng.normal(size=sizes), np.float32), name))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (3,), (1, 3), (2, 3), (2, 1)], ids=str)
def test_a_bias_that_is_spread(shape: tuple[int, ...], tmp_path: Path) -> None:
    source, result = gemm(tmp_path / "source.onnx", *shape), tmp_path / "result.tflite"
    convert(source, result)
    feed = {"x": np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)}
    (wanted,), (found,) = OnnxRuntime(source.read_bytes()).run(feed).values(), LiteRT(map_file(result)).run(feed).values()
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-6)
