"""A batch whose size is known only at run time: what does not depend on it is written to TFLite, and gives onnxruntime's results."""

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

#: Nodes from x (N, 4, 6, 5) to y.
NODES = {
    "global average": "y = GlobalAveragePool (x)",
    "global maximum": "y = GlobalMaxPool (x)",
    "windows that hang over": "y = MaxPool <kernel_shape=[2,2], strides=[2,2], ceil_mode=1> (x)",
    "kept axis": "i = ArgMax <axis=1, keepdims=1> (x) y = Cast <to=1> (i)",
    "axis not kept": "y = ReduceLogSumExp <keepdims=0> (x, a)",
    "triangle": "y = Trilu (x)",
    "coordinates": 'y = Resize <mode="linear", coordinate_transformation_mode="pytorch_half_pixel"> (x, , s)',
    "nearest": 'y = Resize <mode="nearest", coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_floor"> (x, , s)',
}


@pytest.mark.parametrize("name", NODES)
def test_a_free_batch(name: str, tmp_path: Path) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g (float[N,4,6,5] x) => (float y) {{ {NODES[name]} }}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    constants = {"a": np.array([3], np.int64), "s": np.array([1, 1, 2, 2], np.float32)}
    used = {item for node in model.graph.node for item in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in constants.items() if key in used)
    source, result = tmp_path / "source.onnx", tmp_path / "result.tflite"
    onnx.save(model, source)
    convert(source, result)
    feed = {"x": np.random.default_rng(0).normal(size=(3, 4, 6, 5)).astype(np.float32)}
    (wanted,) = OnnxRuntime(source.read_bytes()).run(feed).values()
    (found,) = LiteRT(map_file(result)).run(feed).values()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)
