"""Forms that compute on stored integers where float values would do too, but slower: equal to LiteRT, and the operator comes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tflite_models import OpSpec, TensorSpec, model, run_litert, single_op

from qconvert import audit, check, convert, diff, load
from qconvert.runtimes.onnxruntime import OnnxRuntime

SHAPE = (1, 16, 16, 4)


def converted(folder: Path, data: bytes, inputs: list[TensorSpec], target: str) -> set[str]:
    """The operators of the ONNX file, whose results are LiteRT's, optimized or not, and which becomes the same TFLite again."""
    source, result, back = (folder / name for name in ("m.tflite", "m.onnx", "back.tflite"))
    source.write_bytes(data)
    convert(source, result, target=target)
    rng = np.random.default_rng(3)
    feeds = {item.name: rng.integers(0, 256, item.shape).astype(np.uint8).view(item.dtype) for item in inputs if item.data is None}
    (wanted,) = run_litert(source.read_bytes(), list(feeds.values()))
    for optimize in (True, False):
        session = OnnxRuntime(result, optimize=optimize)
        own = {name: value if value.shape == session.inputs[name][1] else value.transpose(0, 3, 1, 2) for name, value in feeds.items()}
        (got,) = session.run(own).values()
        assert np.array_equal(got if got.shape == wanted.shape else got.transpose(0, 2, 3, 1), wanted)
    convert(result, back)
    assert diff(load(source), load(back)) == []
    assert check(source, result).passed
    return {node.op_type for node in onnx.load(result).graph.node}


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("target", ["generic", "ort-x86"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("builtin", "kind"), [("MAXIMUM", "Max"), ("MINIMUM", "Min")])
def test_extremes_of_one_quantization_compare_stored_integers(builtin: str, kind: str, dtype: str, target: str, tmp_path: Path) -> None:
    specs = [TensorSpec(name, SHAPE, dtype, 0.031, 7) for name in "aby"]
    kinds = converted(tmp_path, single_op(builtin, {}, specs[:2], specs[2:]), specs[:2], target)
    moved = target == "ort-x86" and dtype == "int8"  # stored as uint8 inside
    assert kinds == ({kind, "DequantizeLinear", "QuantizeLinear"} if moved else {kind})
    (line,) = (line for line in audit(tmp_path / "m.tflite", "ort-x86").lines if line.kind == kind)
    assert (line.integer, line.reason) == (True, "compares stored integers")


@pytest.mark.formats
def test_extremes_of_real_numbers_stay(tmp_path: Path) -> None:
    specs = [TensorSpec(name, SHAPE, "float32") for name in "aby"]
    (tmp_path / "m.tflite").write_bytes(single_op("MAXIMUM", {}, specs[:2], specs[2:]))
    convert(tmp_path / "m.tflite", tmp_path / "m.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node] == ["Max"]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("options", [{}, {"halfPixelCenters": True}, {"alignCorners": True}], ids=["asymmetric", "half", "corners"])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (32, 48), (8, 32)])
def test_doubling_has_the_fast_coordinates(height: int, width: int, options: dict[str, bool], dtype: str, tmp_path: Path) -> None:
    quantization, x = (1 / 256, -128 if dtype == "int8" else 0), TensorSpec("x", SHAPE, dtype, 0.031, 7)
    inner, y = TensorSpec("h", SHAPE, dtype, *quantization), TensorSpec("y", (1, height, width, 4), dtype, *quantization)
    sizes = TensorSpec("sizes", (2,), "int32", data=np.array([height, width], np.int32))
    ops = [OpSpec("LOGISTIC", ["x"], ["h"]), OpSpec("RESIZE_NEAREST_NEIGHBOR", ["h", "sizes"], ["y"], options)]
    converted(tmp_path, model(ops, [x, inner, sizes, y], ["x"], ["y"]), [x], "generic")
    (node,) = (node for node in onnx.load(tmp_path / "m.onnx").graph.node if node.op_type == "Resize")
    stated = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    is_fast = stated["coordinate_transformation_mode"] == b"asymmetric" and stated["nearest_mode"] == b"floor"
    assert is_fast == ("alignCorners" not in options and ((height, width) == (32, 32) or not options))
    assert all(line.integer for line in audit(tmp_path / "m.tflite", "ort-x86").lines if line.kind == "Resize")


@pytest.mark.formats
def test_what_an_onnx_file_states_of_a_resize_stays(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,2,4,4] x) => (float[1,2,8,8] y)
        <int64[4] sizes = {1, 2, 8, 8}> { y = Resize <mode = "nearest", coordinate_transformation_mode = "half_pixel",
        nearest_mode = "round_prefer_floor"> (x, , , sizes) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    convert(tmp_path / "m.onnx", tmp_path / "again.onnx")
    (node,) = onnx.load(tmp_path / "again.onnx").graph.node
    stated = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    assert (stated["coordinate_transformation_mode"], stated["nearest_mode"]) == (b"half_pixel", b"round_prefer_floor")
