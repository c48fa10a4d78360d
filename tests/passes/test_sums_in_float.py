"""sums_in_float: MatMulInteger and ConvInteger in LiteRT, every sum exact, whatever its depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_nodes import model_of
from passes.graphs import random_integers
from refusals import refused
from tflite_models import run_litert

from qconvert import convert, load
from qconvert.errors import UnsupportedError
from qconvert.passes import BUILTIN


def model(op: str, feed: dict[str, Any], constants: dict[str, Any], **attributes: Any) -> bytes:
    values = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(data.dtype), data.shape) for name, data in feed.items()]
    names = ["a", "b", *(name for name in ("az", "bz") if name in {**feed, **constants})]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "g",
        values,
        [helper.make_tensor_value_info("y", 6, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return bytes(model_of(graph).SerializeToString())


def points(dtype: str, other: str, columns: int = 0) -> dict[str, Any]:
    """Zero points in the middle, and for the weights one of each column if there are some."""
    return {"az": np.asarray(3, dtype), "bz": random_integers((columns,), other) if columns else np.asarray(5, other)}


def case(name: str) -> tuple[bytes, dict[str, Any]]:
    kind, dtype, other = name.split()[:3]
    if kind == "convolution":
        data, weights = random_integers((1, 3, 9, 8), dtype), random_integers((4, 3, 3, 2), other)
        zeros = points(dtype, other)
        return model("ConvInteger", {"a": data}, {"b": weights, **zeros}, pads=[1, 0, 1, 1], strides=[2, 1]), {"a": data}
    if kind == "deep":
        low = {"uint8": 255, "int8": -128}
        data, weights = np.full((2, 1500), low[dtype], dtype), np.full((1500, 3), low[other], other)
        return model("MatMulInteger", {"a": data}, {"b": weights}), {"a": data}
    if kind == "wide":
        data, weights = np.full((1, 700, 4, 4), 255, dtype), np.full((2, 700, 1, 1), 127, other)
        return model("ConvInteger", {"a": data}, {"b": weights}), {"a": data}
    data, weights = random_integers((2, 3, 300), dtype), random_integers((2, 300, 5) if kind == "both" else (300, 5), other)
    if kind == "both":
        return model("MatMulInteger", {"a": data, "b": weights}, points(dtype, other)), {"a": data, "b": weights}
    if kind == "vector":
        return model("MatMulInteger", {"a": data[0, 0]}, {"b": weights, **points(dtype, other)}), {"a": data[0, 0]}
    return model("MatMulInteger", {"a": data}, {"b": weights, **points(dtype, other, 5)}), {"a": data}


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize(
    "name",
    [
        *(f"{kind} {dtype} {other}" for kind in ("product", "both", "deep") for dtype in ("uint8", "int8") for other in ("uint8", "int8")),
        "convolution uint8 uint8", "convolution uint8 int8", "wide uint8 int8", "vector uint8 uint8",
    ],
)  # fmt: skip
def test_sums_are_those_of_integers(name: str, tmp_path: Path) -> None:
    data, feed = case(name)
    (tmp_path / "m.onnx").write_bytes(data)
    convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
    (found,) = run_litert((tmp_path / "m.tflite").read_bytes(), list(feed.values()))
    (wanted,) = ReferenceEvaluator(onnx.load_from_string(data)).run(None, feed)  # onnxruntime's own sums saturate on some CPUs
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.formats
def test_parts_are_no_more_than_needed(tmp_path: Path) -> None:
    for depth, parts in ((258, 1), (259, 2), (516, 2), (517, 3)):
        data = np.full((2, depth), 255, np.uint8)
        both = model("MatMulInteger", {"a": data, "b": np.full((depth, 3), 255, np.uint8)}, {})
        (tmp_path / "m.onnx").write_bytes(both)
        changed, notes = BUILTIN["sums_in_float"].run(load(tmp_path / "m.onnx"), None)
        assert [op.kind for op in changed.ops].count("MatMul") == parts and len(notes) == 1


@pytest.mark.formats
def test_what_would_need_too_many_parts_is_refused(tmp_path: Path) -> None:
    data, other = np.zeros((1, 2**15), np.uint8), np.zeros((2**15, 1), np.uint8)
    (tmp_path / "m.onnx").write_bytes(model("MatMulInteger", {"a": data, "b": other}, {}))
    with refused(UnsupportedError, "target-rules", holds=("MatMulInteger",)):
        convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
