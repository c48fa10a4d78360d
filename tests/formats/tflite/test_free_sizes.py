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

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

#: Nodes from x (N, 4, 6, 5) to y.
NODES = {
    "global average": "y = GlobalAveragePool (x)",
    "global maximum": "y = GlobalMaxPool (x)",
    "windows that hang over": "y = MaxPool <kernel_shape=[2,2], strides=[2,2], ceil_mode=1> (x)",
    "kept axis": "i = ArgMax <axis=1, keepdims=1> (x) y = Cast <to=1> (i)",
    "axis not kept": "y = ReduceLogSumExp <keepdims=0> (x, a)",
    "triangle": "y = Trilu (x)",
    "coordinates": 'y = Resize <mode="linear", coordinate_transformation_mode="pytorch_half_pixel"> (x, , s)',
    "token for each of the batch": "n = Shape <start=0, end=1> (x) t = Concat <axis=0> (n, o) y = Expand (k, t)",
    "sizes of one keep the data's": "y = Expand (x, e)",
    "groups of a volume": "v = Unsqueeze (x, a4) y = Conv <group=2, strides=[2,1,1], pads=[1,0,0,1,0,0]> (v, w, b)",
    "nearest": 'y = Resize <mode="nearest", coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_floor"> (x, , s)',
}


@pytest.mark.cross_section
@pytest.mark.parametrize("name", NODES)
def test_a_free_batch(name: str, tmp_path: Path) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g (float[N,4,6,5] x) => (float y) {{ {NODES[name]} }}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(6, 2, 2, 3, 1)).astype(np.float32), "b": rng.normal(size=6).astype(np.float32)}
    constants = {"a": np.array([3], np.int64), "a4": np.array([4], np.int64), "s": np.array([1, 1, 2, 2], np.float32), **weights}
    constants |= {"o": np.ones(3, np.int64), "k": np.arange(10, dtype=np.float32).reshape(1, 2, 1, 5), "e": np.array([2, 1, 1, 1, 1])}
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


#: Nodes from x (N, 2, H, W) to y.
OPEN = {
    "copied sizes": "y = Reshape (x, copied)",
    "joined sizes": "s = Shape (x) a = Slice (s, i0, i2) t = Concat <axis=0> (a, last) y = Reshape (x, t)",
    "a shuffle of channels": """s = Shape (x) n = Slice (s, i0, i1) hw = Slice (s, i2, i4) t = Concat <axis=0> (n, i2, i1, hw)
                              a = Reshape (x, t) b = Transpose <perm=[0,2,1,3,4]> (a) y = Reshape (b, s)""",
    "an expansion": "s = Shape (x) y = Expand (one, s)",
    "factors": 'y = Resize <mode="linear", coordinate_transformation_mode="half_pixel"> (x, , factors)',
    "sizes": """s = Shape (x) a = Slice (s, i0, i2) b = Slice (s, i2, i4) d = Mul (b, i2) t = Concat <axis=0> (a, d)
              y = Resize <mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"> (x, , , t)""",
    "half of the rows": "s = Shape (x) h = Slice (s, i2, i3) e = Div (h, i2) y = Slice (x, i0, e, i2)",
    "pads": """s = Shape (x) h = Slice (s, i2, i3) r = Mod (h, i3) p = Concat <axis=0> (i0, i0, i0, i1, i0, i0, r, i1) y = Pad (x, p)""",
    "repeats": "s = Shape (x) n = Slice (s, i0, i1) r = Concat <axis=0> (i1, i1, i1, n) y = Tile (x, r)",
    "a deconvolution": "y = ConvTranspose <strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]> (x, w)",
    "the same deconvolution": 'y = ConvTranspose <strides=[3,2], auto_pad="SAME_UPPER"> (x, w)',
    "windows": "y = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x)",
    "strides": "y = Conv <strides=[2,2], pads=[1,1,1,1]> (x, w)",
    "attention": "q = Reshape (x, copied) t = Transpose <perm=[0,2,1]> (q) m = MatMul (q, t) y = Softmax <axis=-1> (m)",
    "several new axes": "y = Unsqueeze (x, axes)",
    "cut at both ends": "y = Pad (x, cut)",
    "a whole power": "p = Abs (x) y = Pow (p, i3)",
    "joined before a Relu": "n = Neg (x) j = Concat <axis=1> (x, n) y = Relu (j)",
    "the largest half": "s = Shape (x) h = Slice (s, i2, i3) k = Div (h, i2) y, i = TopK <axis=2> (x, k)",
    "the last row and the first": "y = Gather <axis=2> (x, ends)",
    "the last column": "y = Gather <axis=3> (x, end)",
    "a computed row from the end": "a = ArgMin <axis=1> (one) r = Reshape (a, i1) m = Sub (r, i2) y = Gather <axis=2> (x, m)",
    "a corner": "t = Transpose <perm=[2,3,0,1]> (x) y = GatherND (t, corner)",
    "computed corners": "s = Shape (x) h = Slice (s, i2, i4) n = Neg (h) t = Transpose <perm=[2,3,0,1]> (x) y = GatherND (t, n)",
    "an index with its axis": "i = ArgMax <axis=1, keepdims=1> (x) y = Cast <to=1> (i)",
}
_OPEN_CONSTANTS = {
    **{f"i{value}": np.array([value]) for value in range(5)},
    "axes": np.array([1, -1]), "cut": np.array([0, 1, -1, 2, 0, 0, -2, -1]),
    "copied": np.array([0, 0, -1]), "last": np.array([-1]), "one": np.full((1, 1, 1, 1), 2, np.float32),
    "ends": np.array([-1, 0]), "end": np.array(-1), "corner": np.array([[-1, 0], [1, -2]]),
    "factors": np.array([1, 1, 2, 3], np.float32), "w": np.random.default_rng(0).normal(size=(2, 2, 3, 3)).astype(np.float32),
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_a_free_batch_height_and_width(name: str, tmp_path: Path) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g (float[N,2,H,W] x) => (float y) {{ {OPEN[name]} }}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    used = {item for node in model.graph.node for item in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in _OPEN_CONSTANTS.items() if key in used)
    source, result, back = tmp_path / "source.onnx", tmp_path / "result.tflite", tmp_path / "back.onnx"
    onnx.save(model, source)
    convert(source, result)
    convert(result, back)
    for shape in ((1, 2, 6, 8), (3, 2, 5, 4)):
        feed = {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
        (wanted,) = OnnxRuntime(source.read_bytes()).run(feed).values()
        for runtime in (LiteRT(map_file(result)), OnnxRuntime(back.read_bytes())):
            (found,) = runtime.run(feed).values()
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)
